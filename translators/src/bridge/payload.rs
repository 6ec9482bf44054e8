//! Events to the JSON payloads of `SdkMessage`.

use crate::{
    event::{AssistantMessage, Body, Event, RunStatus, ToolCallFinished},
    frame::Context,
    json::{Json, Kind, Object, Raw, cut, push_string},
};

/// `SdkMessage.type` and its payload; `None` where the event has no message in this family.
pub(super) fn payload(event: &Event, context: &Context) -> Option<(String, Json)> {
    let open = |kind: &str| Object::new(kind).string("agent_id", Some(&context.agent)).string("run_id", Some(event.run.as_str()));
    let status = |status: RunStatus, message: Option<&str>| {
        open("status").string("status", Some(status.bridge_word())).string("message", message).end()
    };
    let (kind, payload) = match &event.fact.body {
        Body::RunStarted { init, model } => {
            let tools = init.as_ref().and_then(|init| init.raw().get("tools")).filter(|tools| tools.kind() == Kind::Array);
            let model = model.as_deref().map(|id| {
                let mut out = Vec::from(*b"{\"id\":");
                push_string(&mut out, id);
                out.push(b'}');
                out
            });
            (
                "system",
                open("system")
                    .string("subtype", Some("init"))
                    .json("model", model.as_deref())
                    .json("tools", tools.map(Raw::bytes))
                    .end(),
            )
        }
        Body::RunChanged { status: word, changed: true, .. } => ("status", status(*word, None)),
        Body::UserMessage { content, .. } => {
            let content = content.as_ref().map_or_else(|| b"[]".to_vec(), |content| blocks(content.raw()));
            ("user", open("user").json("message", Some(&role("user", &content))).end())
        }
        Body::AssistantMessage(message) if message.partial => return None,
        Body::AssistantMessage(message) => ("assistant", assistant(message, open("assistant"))),
        Body::Thinking { text, duration_ms, .. } => {
            let duration = duration_ms.map(|ms| ms.to_string());
            (
                "thinking",
                open("thinking")
                    .string("text", Some(text))
                    .json("thinking_duration_ms", duration.as_ref().map(|ms| ms.as_bytes()))
                    .end(),
            )
        }
        Body::ToolCallStarted { call_id, name, args, .. } => {
            let start = || {
                open("tool_call").string("call_id", Some(call_id)).string("name", Some(name)).string("status", Some("running"))
            };
            ("tool_call", tool_call(start, "args", args.as_ref(), false, context))
        }
        Body::ToolCallFinished(call) => ("tool_call", finished(call, open, context)),
        Body::Status { status: word, message, .. } => ("status", status(word.unwrap_or(RunStatus::Running), message.as_deref())),
        Body::Gap { reason, .. } => ("status", status(RunStatus::Running, Some(reason))),
        Body::Task { text, status } => {
            ("task", open("task").string("status", status.as_deref()).string("text", text.as_deref()).end())
        }
        Body::Report { title, text } => {
            let text = title.as_ref().map_or_else(|| text.clone(), |title| format!("{title}\n\n{text}"));
            ("task", open("task").string("text", Some(&text)).end())
        }
        Body::Usage { usage } => ("usage", open("usage").json("usage", usage.as_ref().map(|usage| usage.bytes().as_ref())).end()),
        Body::Request { request_id } => ("request", open("request").string("request_id", Some(request_id)).end()),
        Body::Unknown { kind, payload: Some(payload) } if event.fact.family == crate::event::Family::Bridge => {
            return Some((kind.clone(), cut(payload, context.message_bytes_max).unwrap_or_else(|| payload.clone())));
        }
        _ => return None,
    };
    let payload = Json::built(payload);
    let payload = cut(&payload, context.message_bytes_max).unwrap_or(payload);
    Some((kind.to_owned(), payload))
}

/// Whether [`payload`] gives one.
pub(super) fn shows(event: &Event) -> bool {
    match &event.fact.body {
        Body::RunChanged { changed, .. } => *changed,
        Body::AssistantMessage(message) => !message.partial,
        Body::Unknown { payload, .. } => payload.is_some() && event.fact.family == crate::event::Family::Bridge,
        Body::TurnEnded { .. } | Body::StepOnly | Body::Unreadable(_) => false,
        _ => true,
    }
}

fn assistant(message: &AssistantMessage, open: Object) -> Vec<u8> {
    let content = message.content.as_ref().map_or_else(|| b"[]".to_vec(), |content| blocks(content.raw()));
    open.json("message", Some(&role("assistant", &content))).string("parent_tool_use_id", message.parent.as_deref()).end()
}

fn role(role: &str, content: &[u8]) -> Vec<u8> {
    let mut out = format!("{{\"role\":\"{role}\",\"content\":").into_bytes();
    out.extend_from_slice(content);
    out.push(b'}');
    out
}

/// Content as the blocks of `sdk.v1`: text and tool use with the members they have there, other objects as they are.
fn blocks(content: Raw<'_>) -> Vec<u8> {
    let mut out = Vec::from(*b"[");
    let single = (content.kind() == Kind::String).then_some(content);
    for item in single.into_iter().chain(content.items()) {
        let block = match (item.kind(), item.get_string("type").as_deref()) {
            (Kind::String, _) => Object::new("text").json("text", Some(item.bytes())).end(),
            (Kind::Object, Some("text")) => {
                Object::new("text").json("text", Some(item.get("text").map_or(b"\"\"", Raw::bytes))).end()
            }
            (Kind::Object, Some("tool_use")) => Object::new("tool_use")
                .json("id", item.get("id").map(Raw::bytes))
                .json("name", item.get("name").map(Raw::bytes))
                .json("input", item.get("input").map(Raw::bytes))
                .end(),
            (Kind::Object, Some(_)) => item.bytes().to_vec(),
            _ => continue,
        };
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend(block);
    }
    out.push(b']');
    out
}

fn finished(call: &ToolCallFinished, open: impl Fn(&str) -> Object, context: &Context) -> Vec<u8> {
    let start = || {
        open("tool_call")
            .string("call_id", Some(&call.call_id))
            .string("name", Some(&call.name))
            .string("status", Some(if call.ok { "completed" } else { "error" }))
    };
    tool_call(start, "result", call.result.as_ref(), call.truncated, context)
}

/// A `tool_call` whose large value is cut, and said to be, when the message would be too large.
fn tool_call(start: impl Fn() -> Object, key: &str, value: Option<&Json>, truncated: bool, context: &Context) -> Vec<u8> {
    let room = context.message_bytes_max.saturating_sub(4096);
    let small = value.and_then(|value| cut(value, room));
    // Nothing but numbers and structure: the only way left is its text, cut.
    let small = small
        .map(|small| if small.bytes().len() <= room { small } else { cut(&Json::string(small.text()), room).unwrap_or(small) });
    let truncated = truncated || small.is_some();
    let flags = format!("{{\"{key}\":true}}");
    start()
        .json(key, small.as_ref().or(value).map(|value| value.bytes().as_ref()))
        .json("truncated", truncated.then_some(flags.as_bytes()))
        .end()
}
