//! `sdk.v1.RunStreamMessage` as any reader of protobuf sees it (contracts/sdk-v1.md, section 4), and as protobuf's JSON.
//! Written apart from the encoder's own tables on purpose.

use prost_types::{Struct, value::Kind as ValueKind};
use runcast_translators::json::{Kind, Raw};
use serde_json::{Map, Value, json};

#[derive(Clone, PartialEq, prost::Message)]
pub struct RunStreamMessage {
    #[prost(message, optional, tag = "1")]
    pub sdk_message: Option<SdkMessage>,
    #[prost(message, optional, tag = "2")]
    pub result: Option<RunStreamResult>,
    #[prost(message, optional, tag = "3")]
    pub done: Option<RunStreamDone>,
    #[prost(string, optional, tag = "4")]
    pub offset: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SdkMessage {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(message, optional, tag = "2")]
    pub message: Option<Struct>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RunStreamDone {
    #[prost(string, tag = "1")]
    pub agent_id: String,
    #[prost(string, tag = "2")]
    pub run_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RunStreamResult {
    #[prost(string, tag = "1")]
    pub agent_id: String,
    #[prost(string, tag = "2")]
    pub run_id: String,
    #[prost(int32, tag = "3")]
    pub status: i32,
    #[prost(string, optional, tag = "4")]
    pub error_code: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub result: Option<RunSnapshot>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RunSnapshot {
    #[prost(string, tag = "1")]
    pub run_id: String,
    #[prost(string, tag = "2")]
    pub agent_id: String,
    #[prost(int32, tag = "3")]
    pub status: i32,
    #[prost(string, tag = "4")]
    pub result: String,
    #[prost(message, optional, tag = "5")]
    pub model: Option<ModelSelection>,
    #[prost(uint64, tag = "6")]
    pub duration_ms: u64,
    #[prost(message, optional, tag = "8")]
    pub created_at: Option<prost_types::Timestamp>,
    #[prost(message, optional, tag = "9")]
    pub usage: Option<TokenUsage>,
    #[prost(string, optional, tag = "10")]
    pub error_code: Option<String>,
    #[prost(string, optional, tag = "11")]
    pub error_message: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelSelection {
    #[prost(string, tag = "1")]
    pub id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TokenUsage {
    #[prost(int64, tag = "1")]
    pub input_tokens: i64,
    #[prost(int64, tag = "2")]
    pub output_tokens: i64,
    #[prost(int64, tag = "3")]
    pub cache_read_tokens: i64,
    #[prost(int64, tag = "4")]
    pub cache_write_tokens: i64,
    #[prost(int64, tag = "5")]
    pub total_tokens: i64,
    #[prost(int64, optional, tag = "6")]
    pub reasoning_tokens: Option<i64>,
}

impl RunStreamMessage {
    /// As protobuf's JSON has it: lowerCamelCase, 64-bit numbers as strings, enums by name, defaults left out.
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        if let Some(said) = &self.sdk_message {
            let payload = said.message.as_ref().map_or(Value::Null, structure);
            out.insert("sdkMessage".into(), json!({ "type": said.kind, "message": payload }));
        }
        if let Some(result) = &self.result {
            let mut inner = Map::new();
            put(&mut inner, "agentId", &result.agent_id);
            put(&mut inner, "runId", &result.run_id);
            inner.insert("status".into(), lifecycle(result.status));
            inner.extend(result.error_code.iter().map(|code| ("errorCode".to_owned(), json!(code))));
            inner.extend(result.result.iter().map(|run| ("result".to_owned(), run.to_json())));
            out.insert("result".into(), inner.into());
        }
        if let Some(done) = &self.done {
            out.insert("done".into(), json!({ "agentId": done.agent_id, "runId": done.run_id }));
        }
        out.extend(self.offset.iter().map(|offset| ("offset".to_owned(), json!(offset))));
        out.into()
    }
}

impl RunSnapshot {
    fn to_json(&self) -> Value {
        let mut out = Map::new();
        put(&mut out, "runId", &self.run_id);
        put(&mut out, "agentId", &self.agent_id);
        out.insert("status".into(), lifecycle(self.status));
        put(&mut out, "result", &self.result);
        out.extend(self.model.iter().map(|model| ("model".to_owned(), json!({ "id": model.id }))));
        put_number(&mut out, "durationMs", self.duration_ms);
        out.extend(self.created_at.iter().map(|at| ("createdAt".to_owned(), json!(at.to_string()))));
        if let Some(usage) = &self.usage {
            let mut inner = Map::new();
            put_number(&mut inner, "inputTokens", usage.input_tokens);
            put_number(&mut inner, "outputTokens", usage.output_tokens);
            put_number(&mut inner, "cacheReadTokens", usage.cache_read_tokens);
            put_number(&mut inner, "cacheWriteTokens", usage.cache_write_tokens);
            put_number(&mut inner, "totalTokens", usage.total_tokens);
            inner.extend(usage.reasoning_tokens.iter().map(|n| ("reasoningTokens".to_owned(), json!(n.to_string()))));
            out.insert("usage".into(), inner.into());
        }
        out.extend(self.error_code.iter().map(|code| ("errorCode".to_owned(), json!(code))));
        out.extend(self.error_message.iter().map(|message| ("errorMessage".to_owned(), json!(message))));
        out.into()
    }
}

/// What a `google.protobuf.Struct` can hold of `json`: doubles, and text for a number that none can hold.
pub fn as_held(json: Raw<'_>) -> Value {
    match json.kind() {
        Kind::Object => json.members().map(|(key, value)| (key.into_owned(), as_held(value))).collect::<Map<_, _>>().into(),
        Kind::Array => json.items().map(as_held).collect(),
        Kind::String => json.string().into(),
        Kind::Boolean => json.boolean().into(),
        Kind::Null => Value::Null,
        Kind::Number => {
            let large = json.text().parse::<i128>().is_ok_and(|n| n.unsigned_abs() > 1 << 53);
            let digits = json.text().bytes().all(|byte| byte.is_ascii_digit());
            match json.number().filter(|n| n.is_finite() && !large && !(digits && json.text().len() > 38)) {
                Some(double) => json!(double),
                None => json.text().into(),
            }
        }
    }
}

fn structure(from: &Struct) -> Value {
    from.fields.iter().map(|(key, value)| (key.clone(), held(value.kind.as_ref()))).collect::<Map<_, _>>().into()
}

fn held(kind: Option<&ValueKind>) -> Value {
    match kind.expect("a Value without a kind is not valid") {
        ValueKind::NullValue(_) => Value::Null,
        ValueKind::NumberValue(double) => json!(double),
        ValueKind::StringValue(text) => json!(text),
        ValueKind::BoolValue(yes) => json!(yes),
        ValueKind::StructValue(inner) => structure(inner),
        ValueKind::ListValue(list) => list.values.iter().map(|value| held(value.kind.as_ref())).collect(),
    }
}

fn put(out: &mut Map<String, Value>, key: &str, text: &str) {
    if !text.is_empty() {
        out.insert(key.into(), text.into());
    }
}

fn put_number(out: &mut Map<String, Value>, key: &str, number: impl ToString) {
    let text = number.to_string();
    if text != "0" {
        out.insert(key.into(), text.into());
    }
}

fn lifecycle(number: i32) -> Value {
    let words = ["UNSPECIFIED", "CREATING", "RUNNING", "FINISHED", "ERROR", "CANCELLED", "EXPIRED"];
    format!("RUN_LIFECYCLE_STATUS_{}", words[number as usize]).into()
}
