//! What nodes say, written down: one JSON object a line.
//!
//! `{"pause_ms":500}` waits; any other line is a record, `{"node":"n1","type":"node.output_text.delta","delta":"Hi"}`.

use std::time::Duration;

use serde_json::{Map, Value};

/// One line of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    Pause(Duration),
    Say {
        /// Who says it; else the node that the script is played for.
        node: Option<String>,
        kind: String,
        members: Value,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// Counted from 1.
    pub line: usize,
    pub what: &'static str,
}

impl std::fmt::Display for ScriptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {} of the script: {}", self.line, self.what)
    }
}

impl std::error::Error for ScriptError {}

/// Lines that are empty or begin with `#` say nothing.
pub fn read_script(text: &str) -> Result<Vec<Line>, ScriptError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|(at, line)| read_line(line).map_err(|what| ScriptError { line: at + 1, what })).collect()
}

fn read_line(line: &str) -> Result<Line, &'static str> {
    let Ok(Value::Object(mut members)) = serde_json::from_str(line) else { return Err("is no JSON object") };
    if let Some(pause) = members.get("pause_ms") {
        let pause = pause.as_u64().ok_or("`pause_ms` is no number of milliseconds")?;
        return Ok(Line::Pause(Duration::from_millis(pause)));
    }
    let text = |members: &mut Map<String, Value>, key: &str| match members.remove(key) {
        Some(Value::String(text)) => Ok(Some(text)),
        None => Ok(None),
        Some(_) => Err("`node` and `type` are texts"),
    };
    let node = text(&mut members, "node")?;
    let kind = text(&mut members, "type")?.ok_or("has neither `type` nor `pause_ms`")?;
    Ok(Line::Say { node, kind, members: Value::Object(members) })
}

/// Puts the prompt where `{prompt}` stands.
pub fn fill(members: Value, prompt: Option<&str>) -> Value {
    match members {
        Value::String(text) => Value::String(text.replace("{prompt}", prompt.unwrap_or_default())),
        Value::Array(items) => items.into_iter().map(|item| fill(item, prompt)).collect(),
        Value::Object(members) => members.into_iter().map(|(key, value)| (key, fill(value, prompt))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_and_says_where_it_is_wrong() {
        let script = "# greets\n{\"pause_ms\":5}\n\n{\"node\":\"n\",\"type\":\"t\",\"a\":[\"say {prompt}\"]}\n";
        let members = serde_json::json!({"a": ["say {prompt}"]});
        let say = Line::Say { node: Some("n".into()), kind: "t".into(), members: members.clone() };
        assert_eq!(read_script(script), Ok(vec![Line::Pause(Duration::from_millis(5)), say]));
        assert_eq!(fill(members, Some("hi")), serde_json::json!({"a": ["say hi"]}));
        for wrong in ["[]", "{}", "{\"type\":1}", "{\"pause_ms\":\"5\"}", "x"] {
            assert_eq!(read_script(&format!("# \n{wrong}")).map_err(|error| error.line), Err(2), "{wrong}");
        }
    }
}
