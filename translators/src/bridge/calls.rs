//! The calls that the gateway itself makes to a bridge: requests and answers, in both codecs.

use bytes::Bytes;

use super::{
    envelope::Codec,
    fields::fields,
    proto::{field, number, text},
    schema::{AGENT, Malformed, RUN, status, to_json},
};
use crate::{
    event::RunStatus,
    json::{Json, Kind, Raw, push_string},
};

/// A run as a bridge tells it: a `RunSnapshot`.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot(pub Json);

/// One page of a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    pub items: Vec<Json>,
    /// Empty at the last page.
    pub next_cursor: String,
}

impl Snapshot {
    pub fn agent(&self) -> String {
        self.text("agentId", "agent_id")
    }

    pub fn run(&self) -> String {
        self.text("runId", "run_id")
    }

    pub fn status(&self) -> Option<RunStatus> {
        self.0.raw().get("status").and_then(status)
    }

    pub fn is_terminal(&self) -> bool {
        self.status().is_some_and(RunStatus::is_terminal)
    }

    /// The `RunStreamResult` that a stream would end with.
    pub fn result(&self) -> Json {
        let mut out = vec![b'{'];
        for (key, value) in [
            ("agentId", self.0.raw().get("agentId")),
            ("runId", self.0.raw().get("runId")),
            ("status", self.0.raw().get("status")),
            ("errorCode", self.0.raw().get("errorCode")),
        ] {
            if let Some(value) = value.map(Raw::bytes) {
                push_string(&mut out, key);
                out.push(b':');
                out.extend_from_slice(value);
                out.push(b',');
            }
        }
        out.extend_from_slice(b"\"result\":");
        out.extend_from_slice(self.0.bytes());
        out.push(b'}');
        Json::built(out)
    }

    fn text(&self, key: &str, snake: &str) -> String {
        let raw = self.0.raw();
        raw.get_string(key).or_else(|| raw.get_string(snake)).unwrap_or_default().into_owned()
    }
}

/// A request whose fields are texts: number, name in JSON, value. Empty ones are left out.
pub fn request(codec: Codec, members: &[(u32, &str, &str)]) -> Bytes {
    let members = members.iter().filter(|(_, _, value)| !value.is_empty());
    let mut out = Vec::new();
    match codec {
        Codec::Proto => members.for_each(|(number, _, value)| text(&mut out, *number, value)),
        Codec::Json => {
            out.push(b'{');
            for (at, (_, name, value)) in members.enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                push_string(&mut out, name);
                out.push(b':');
                push_string(&mut out, value);
            }
            out.push(b'}');
        }
    }
    out.into()
}

/// `ListRunsRequest` (`agent` given) or `ListAgentsRequest`: one page of `limit` behind `cursor`.
pub fn list_request(codec: Codec, agent: Option<&str>, limit: u32, cursor: &str) -> Bytes {
    match codec {
        Codec::Proto => {
            let (mut out, mut options) = (Vec::new(), Vec::new());
            number(&mut options, 1, u64::from(limit));
            text(&mut options, 2, cursor);
            let place = match agent {
                Some(agent) => {
                    text(&mut out, 1, agent);
                    2
                }
                None => 1,
            };
            field(&mut out, place, &options);
            out.into()
        }
        Codec::Json => {
            let quoted = |text: &str| Json::string(text).text().to_owned();
            let agent = agent.map(|agent| format!("\"agentId\":{},", quoted(agent))).unwrap_or_default();
            let cursor = if cursor.is_empty() { String::new() } else { format!(",\"cursor\":{}", quoted(cursor)) };
            format!("{{{agent}\"options\":{{\"limit\":{limit}{cursor}}}}}").into()
        }
    }
}

/// `GetRunResponse`.
pub fn read_run(codec: Codec, bytes: &Bytes) -> Result<Snapshot, Malformed> {
    let run = match codec {
        Codec::Json => {
            let json = Json::parse(bytes).map_err(|_| Malformed)?;
            let run = json.raw().get("run").filter(|run| run.kind() == Kind::Object).ok_or(Malformed)?;
            json.share(run)
        }
        Codec::Proto => {
            let mut run = None;
            for found in fields(bytes) {
                let found = found?;
                if found.number == 1 {
                    run = Some(to_json(RUN, found.bytes()?)?);
                }
            }
            Json::built(run.ok_or(Malformed)?)
        }
    };
    Ok(Snapshot(run))
}

/// `ListRunsResponse`: its items are snapshots.
pub fn read_runs(codec: Codec, bytes: &Bytes) -> Result<Page, Malformed> {
    read_page(codec, bytes, RUN)
}

/// `ListAgentsResponse`: its items say at least `agentId`.
pub fn read_agents(codec: Codec, bytes: &Bytes) -> Result<Page, Malformed> {
    read_page(codec, bytes, AGENT)
}

fn read_page(codec: Codec, bytes: &Bytes, table: &'static [super::schema::Entry]) -> Result<Page, Malformed> {
    let mut page = Page::default();
    match codec {
        Codec::Json => {
            let json = Json::parse(bytes).map_err(|_| Malformed)?;
            let items = json.raw().get("items").map(Raw::items).into_iter().flatten();
            page.items = items.filter(|item| item.kind() == Kind::Object).map(|item| json.share(item)).collect();
            let next = json.raw().get_string("nextCursor").or_else(|| json.raw().get_string("next_cursor"));
            page.next_cursor = next.unwrap_or_default().into_owned();
        }
        Codec::Proto => {
            for found in fields(bytes) {
                let found = found?;
                match found.number {
                    1 => page.items.push(Json::built(to_json(table, found.bytes()?)?)),
                    2 => page.next_cursor = found.text()?.unwrap_or_default().into_owned(),
                    _ => {}
                }
            }
        }
    }
    Ok(page)
}

/// What of a `SendRequest` must be known: the agent. (All else is the bridge's.)
pub fn agent_of_send(codec: Codec, bytes: &Bytes) -> Result<String, Malformed> {
    match codec {
        Codec::Json => {
            let json = Json::parse(bytes).map_err(|_| Malformed)?;
            let raw = json.raw();
            if raw.kind() != Kind::Object {
                return Err(Malformed);
            }
            Ok(raw.get_string("agentId").or_else(|| raw.get_string("agent_id")).unwrap_or_default().into_owned())
        }
        Codec::Proto => {
            let mut agent = String::new();
            for found in fields(bytes) {
                let found = found?;
                if found.number == 1 {
                    agent = found.text()?.unwrap_or_default().into_owned();
                }
            }
            Ok(agent)
        }
    }
}
