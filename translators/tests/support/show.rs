//! Events as one line of text each: the kind, the main fields, `@line` where the source cursor stands, and the step.

use runcast_translators::{
    event::{Body, Decoded, Fact, Family, Live, Mark, SourceCursor},
    json::Json,
};

pub fn decoded(decoded: &Decoded) -> String {
    match decoded {
        Decoded::Fact(fact) => self::fact(fact),
        Decoded::Live(Live::Text { message_id, text }) => Shown::new("live text").value(text).text("of", message_id.as_deref()).0,
        Decoded::Live(Live::Thinking { text }) => Shown::new("live thinking").value(text).0,
        Decoded::Live(Live::Upstream { .. }) => "live upstream".into(),
        Decoded::Omitted(name) => format!("omitted {name}"),
    }
}

pub fn fact(fact: &Fact) -> String {
    let mut shown = body(&fact.body, fact.original.as_ref()).0;
    if let Some(SourceCursor::Line { line, open_from, .. }) = &fact.source {
        shown += &format!(" @{line}");
        shown += &open_from.map(|from| format!(" open@{from}")).unwrap_or_default();
    }
    if let Some(SourceCursor::Row { id }) = &fact.source {
        shown += &format!(" @row {id}");
    }
    if let Some(SourceCursor::Sequence { number, mark }) = &fact.source {
        let mark = match mark {
            Mark::Read => "",
            Mark::Seen => " seen",
            Mark::Lost => " lost",
        };
        shown += &format!(" @{number}{mark}");
    }
    if let Some(SourceCursor::Offset { offset, sent }) = &fact.source {
        shown += &format!(" @{}{}", offset.as_deref().unwrap_or("-"), if *sent { " sent" } else { "" });
    }
    if let Some(step) = &fact.step {
        let late = if step.late { " late" } else { "" };
        shown += &format!(
            " step {}{late}{}",
            step.index,
            if fact.original.is_none() || fact.family != Family::Steps { " built" } else { "" }
        );
    }
    shown
}

/// A value that is the whole line is shown as `<line>`.
fn body(body: &Body, line: Option<&Json>) -> Shown {
    let whole = |json: &Option<Json>| {
        json.as_ref().map(|json| if Some(json) == line { "<line>".to_owned() } else { json.text().to_owned() })
    };
    let shown = Shown::new(body.kind());
    match body {
        Body::RunStarted { init, model } => shown.raw("init", whole(init)).text("model", model.as_deref()),
        Body::RunChanged { status, changed, .. } => {
            shown.raw("status", Some(format!("{status:?}"))).raw("changed", Some(changed.to_string()))
        }
        Body::UserMessage { content, parent } => shown.raw("content", whole(content)).text("parent", parent.as_deref()),
        Body::AssistantMessage(said) => shown
            .text("id", said.message_id.as_deref())
            .raw("content", whole(&said.content))
            .text("model", said.model.as_deref())
            .text("stop", said.stop_reason.as_deref())
            .raw("usage", whole(&said.usage))
            .text("parent", said.parent.as_deref())
            .raw("partial", said.partial.then(|| "yes".into())),
        Body::Thinking { text, duration_ms, parent } => {
            shown.value(text).raw("ms", duration_ms.map(|ms| ms.to_string())).text("parent", parent.as_deref())
        }
        Body::ToolCallStarted { call_id, name, args, parent } => {
            shown.value(call_id).text("name", Some(name)).raw("args", whole(args)).text("parent", parent.as_deref())
        }
        Body::ToolCallFinished(call) => shown
            .value(&call.call_id)
            .text("name", Some(&call.name))
            .raw("ok", Some(call.ok.to_string()))
            .raw("result", whole(&call.result))
            .raw("detail", whole(&call.detail))
            .text("summary", Some(&call.summary))
            .raw("truncated", call.truncated.then(|| "yes".into()))
            .raw("ms", call.duration_ms.map(|ms| ms.to_string()))
            .text("parent", call.parent.as_deref()),
        Body::Status { status, message, .. } => {
            shown.raw("status", status.map(|status| format!("{status:?}"))).text("message", message.as_deref())
        }
        Body::Task { text, status } => shown.text("text", text.as_deref()).text("status", status.as_deref()),
        Body::Report { title, text } => shown.value(text).text("title", title.as_deref()),
        Body::Usage { usage } => shown.raw("usage", whole(usage)),
        Body::Request { request_id } => shown.value(request_id),
        Body::TurnEnded { result } => shown.raw("result", whole(result)),
        Body::StepOnly => shown,
        Body::Gap { from, to, .. } => shown.text("from", from.as_deref()).text("to", to.as_deref()),
        Body::Settled(outcome) => shown
            .raw("status", Some(format!("{:?}", outcome.status)))
            .text("code", outcome.error_code.as_deref())
            .text("message", outcome.error_message.as_deref())
            .text("result", outcome.result.as_deref())
            .raw("ms", outcome.duration_ms.map(|ms| ms.to_string()))
            .raw("usage", whole(&outcome.usage))
            .raw("cost", whole(&outcome.cost_usd))
            .raw("git", whole(&outcome.git)),
        Body::Unknown { kind, payload } => shown.value(kind).raw("payload", whole(payload)),
        Body::Unreadable(report) => shown
            .value(&report.reason)
            .raw("line", report.line.map(|line| line.to_string()))
            .raw("step_index", report.step_index.map(|index| index.to_string()))
            .raw("bytes", Some(report.bytes.to_string()))
            .text("head", Some(&report.head)),
    }
}

/// A line in the making; fields without a value are left out.
struct Shown(String);

impl Shown {
    fn new(kind: &str) -> Self {
        Self(kind.to_owned())
    }

    fn value(mut self, text: &str) -> Self {
        self.0 += &format!(" {}", Json::string(text).text());
        self
    }

    fn text(self, key: &str, text: Option<&str>) -> Self {
        self.raw(key, text.map(|text| Json::string(text).text().to_owned()))
    }

    fn raw(mut self, key: &str, text: Option<String>) -> Self {
        if let Some(text) = text {
            self.0 += &format!(" {key}={text}");
        }
        self
    }
}
