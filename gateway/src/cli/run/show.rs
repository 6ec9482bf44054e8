//! What runs and their steps look like.

use std::io;

use runcast_client::{RunObject, RunStep};
use serde_json::Value;

use super::out::{Out, Paint};

/// Arguments of a tool are shown up to so many characters.
const INPUT_CHARS_MAX: usize = 200;

/// A run on a page of its own.
pub(super) fn run(run: &RunObject, out: &mut Out) -> io::Result<()> {
    out.line(Paint::Bold, &format!("run       {}", run.id()))?;
    out.line(paint(run), &format!("status    {}", run.status()))?;
    for (name, member) in [("created", "created_at"), ("started", "started_at"), ("ended", "ended_at")] {
        if let Some(at) = run.text(member) {
            out.line(Paint::Plain, &format!("{name:<9} {at}"))?;
        }
    }
    let facts = facts(run);
    if !facts.is_empty() {
        out.line(Paint::Plain, &format!("took      {}", facts.join(", ")))?;
    }
    words(run, out)
}

/// A run in a list.
pub(super) fn row(run: &RunObject, out: &mut Out) -> io::Result<()> {
    // A name with a line end must not make a second row.
    let name = run.id().replace(['\n', '\t'], " ");
    out.text(paint(run), &format!("{:<12}", run.status()))?;
    out.text(Paint::Plain, &format!(" {:<24} {name}", run.text("created_at").unwrap_or("-")))?;
    out.end_line()
}

/// How a run ended.
pub(super) fn end(run: &RunObject, out: &mut Out) -> io::Result<()> {
    let facts = facts(run);
    let facts = if facts.is_empty() { String::new() } else { format!(": {}", facts.join(", ")) };
    out.line(paint(run), &format!("run {} is {}{facts}", run.id(), run.status()))?;
    words(run, out)
}

fn words(run: &RunObject, out: &mut Out) -> io::Result<()> {
    if let Some(error) = run.error() {
        out.line(Paint::Red, &format!("error     {}", indented(&error)))?;
    }
    match run.text("summary") {
        Some(summary) if !summary.is_empty() => out.line(Paint::Plain, &format!("summary   {}", indented(summary))),
        _ => Ok(()),
    }
}

/// Further lines below the first one.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n          ")
}

fn facts(run: &RunObject) -> Vec<String> {
    let mut facts = Vec::new();
    facts.extend(run.duration_ms().map(|ms| format!("{:.1} s", ms / 1000.0)));
    facts.extend(run.cost_usd().map(|cost| format!("${cost:.4}")));
    facts.extend(run.last_step_index().map(|last| match last {
        0 => "1 step".to_owned(),
        last => format!("{} steps", last.saturating_add(1)),
    }));
    facts
}

pub(super) fn paint(run: &RunObject) -> Paint {
    match run.status() {
        "completed" => Paint::Green,
        _ if run.is_terminal() => Paint::Red,
        _ => Paint::Cyan,
    }
}

/// Shows the steps of a run, and the live text between them.
pub(super) struct Steps {
    verbose: bool,
    /// What is shown of the message that is being written.
    open: String,
}

impl Steps {
    pub fn new(verbose: bool) -> Self {
        Self { verbose, open: String::new() }
    }

    /// Live text, from the `start`-th character of the open message on.
    pub fn delta(&mut self, text: &str, start: usize, out: &mut Out) -> io::Result<()> {
        let kept: String = self.open.chars().take(start).collect();
        let whole = kept + text;
        self.show_open(&whole, out)?;
        self.open = whole;
        Ok(())
    }

    /// What of `whole` is not shown yet; all of it where something else was shown.
    fn show_open(&self, whole: &str, out: &mut Out) -> io::Result<()> {
        match whole.strip_prefix(&self.open) {
            Some(rest) => out.text(Paint::Plain, rest),
            // What was shown is longer already: the same text came again after a new connection.
            None if self.open.starts_with(whole) => Ok(()),
            None => {
                out.end_line()?;
                out.text(Paint::Plain, whole)
            }
        }
    }

    pub fn step(&mut self, step: &RunStep, out: &mut Out) -> io::Result<()> {
        let Ok(data) = serde_json::from_str::<Value>(step.data.get()) else {
            return out.line(Paint::Dim, &format!("[step {} cannot be shown]", step.step_index));
        };
        let is_main = data["parent_tool_use_id"].is_null();
        let indent = if is_main { "" } else { "    " };
        match data["type"].as_str().unwrap_or_default() {
            "assistant" => self.assistant(&data, is_main, indent, out),
            "user" => self.user(&data, indent, out),
            "system" if data["subtype"] == "init" => {
                let model = data["model"].as_str().unwrap_or("?");
                out.line(Paint::Dim, &format!("[model {model}, in {}]", data["cwd"].as_str().unwrap_or("?")))
            }
            // How it ended is said at the end.
            "result" | "stream_event" => Ok(()),
            kind if self.verbose => {
                let subtype = data["subtype"].as_str().map(|subtype| format!(" {subtype}")).unwrap_or_default();
                out.line(Paint::Dim, &format!("{indent}[{kind}{subtype}]"))
            }
            _ => Ok(()),
        }
    }

    fn assistant(&mut self, data: &Value, is_main: bool, indent: &str, out: &mut Out) -> io::Result<()> {
        let blocks = blocks(&data["message"]["content"]);
        let texts: Vec<&str> =
            blocks.iter().filter(|block| block["type"] == "text").filter_map(|block| block["text"].as_str()).collect();
        if is_main && !texts.is_empty() {
            let text = texts.concat();
            if self.open.is_empty() {
                out.end_line()?;
            }
            self.show_open(&text, out)?;
            out.end_line()?;
            self.open.clear();
        } else {
            for text in &texts {
                out.marked(Paint::Plain, indent, text)?;
            }
        }
        for block in &blocks {
            match block["type"].as_str().unwrap_or_default() {
                "thinking" if self.verbose => {
                    let text = block["thinking"].as_str().unwrap_or_default();
                    out.marked(Paint::Dim, &format!("{indent}[thinking] "), text)?;
                }
                "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                    let name = block["name"].as_str().unwrap_or("?");
                    out.line(Paint::Cyan, &format!("{indent}→ {name} {}", short(&block["input"])))?;
                }
                kind if kind.ends_with("_tool_result") => result(block, &Value::Null, indent, out)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn user(&mut self, data: &Value, indent: &str, out: &mut Out) -> io::Result<()> {
        for block in blocks(&data["message"]["content"]) {
            match block["type"].as_str().unwrap_or_default() {
                "text" => out.marked(Paint::Bold, &format!("{indent}> "), block["text"].as_str().unwrap_or_default())?,
                "tool_result" => result(&block, &data["tool_use_result"], indent, out)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// What a tool gave: its output and its errors, told apart where they are.
fn result(block: &Value, twin: &Value, indent: &str, out: &mut Out) -> io::Result<()> {
    let failed = block["is_error"] == true;
    let (stdout, stderr) = (twin["stdout"].as_str(), twin["stderr"].as_str());
    if stdout.is_some() || stderr.is_some() {
        if let Some(text) = stdout.filter(|text| !text.is_empty()) {
            out.marked(if failed { Paint::Red } else { Paint::Dim }, &format!("{indent}  | "), text)?;
        }
        if let Some(text) = stderr.filter(|text| !text.is_empty()) {
            out.marked(Paint::Red, &format!("{indent}  ! "), text)?;
        }
        return Ok(());
    }
    let texts: Vec<String> = match &block["content"] {
        Value::String(text) => vec![text.clone()],
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => Vec::new(),
    };
    let text = texts.join("\n");
    if text.is_empty() {
        return Ok(());
    }
    let (paint, mark) = if failed { (Paint::Red, "  ! ") } else { (Paint::Dim, "  | ") };
    out.marked(paint, &format!("{indent}{mark}"), &text)
}

fn part(part: &Value) -> String {
    match part {
        Value::String(text) => text.clone(),
        part => match part["text"].as_str() {
            Some(text) => text.to_owned(),
            None => format!("[{}]", part["type"].as_str().unwrap_or("?")),
        },
    }
}

/// The blocks of a message, whose content may be a text.
fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![serde_json::json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks.iter().filter(|block| block.is_object()).cloned().collect(),
        _ => Vec::new(),
    }
}

/// The arguments of a call on one line: a single text as it is, else as JSON.
fn short(input: &Value) -> String {
    let main = ["command", "file_path", "path", "pattern", "url", "query", "description", "prompt"];
    let text = main.iter().find_map(|name| input[name].as_str()).map_or_else(|| input.to_string(), Into::into);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(INPUT_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
