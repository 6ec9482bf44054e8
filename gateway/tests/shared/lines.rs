//! Lines of Claude Code's stream-json as tests build them.

use serde_json::json;

pub fn init() -> String {
    json!({"type":"system","subtype":"init","session_id":"s","model":"m","tools":["Bash"]}).to_string()
}

pub fn message_start(id: &str) -> String {
    json!({"type":"stream_event","event":{"type":"message_start","message":{"id":id,"content":[]}},"parent_tool_use_id":null})
        .to_string()
}

pub fn delta(text: &str) -> String {
    json!({"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":text}},"parent_tool_use_id":null})
        .to_string()
}

pub fn assistant(id: &str, text: &str, parent: Option<&str>) -> String {
    json!({"type":"assistant","message":{"id":id,"role":"assistant","content":[{"type":"text","text":text}]},"parent_tool_use_id":parent}).to_string()
}

pub fn tool_only(id: &str, call: &str) -> String {
    json!({"type":"assistant","message":{"id":id,"content":[{"type":"tool_use","id":call,"name":"Bash","input":{"command":"ls"}}]},"parent_tool_use_id":null})
        .to_string()
}

pub fn thinking_only(id: &str) -> String {
    json!({"type":"assistant","message":{"id":id,"content":[{"type":"thinking","thinking":"hm","signature":"x"}]},"parent_tool_use_id":null}).to_string()
}

pub fn tool_result(call: &str, parent: Option<&str>) -> String {
    json!({"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":call,"content":"ok"}]},"parent_tool_use_id":parent})
        .to_string()
}

pub fn result(text: &str) -> String {
    json!({"type":"result","subtype":"success","is_error":false,"num_turns":1,"duration_ms":5,"result":text,"total_cost_usd":0.1})
        .to_string()
}

/// One assistant line with everything in it: several events of one message.
pub fn mixed(id: &str, text: &str, call: &str) -> String {
    json!({"type":"assistant","message":{"id":id,"content":[
        {"type":"thinking","thinking":"first","signature":"x"},
        {"type":"text","text":text},
        {"type":"tool_use","id":call,"name":"Read","input":[1,2]},
        {"type":"tool_use","id":format!("{call}b"),"name":"Grep","input":null},
    ]},"parent_tool_use_id":null})
    .to_string()
}

pub fn keep_alive() -> String {
    json!({"type":"keep_alive"}).to_string()
}
