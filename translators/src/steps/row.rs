//! The row of a run: the run in the upstream's own words.

use crate::{
    event::{Millis, Outcome, RunStatus, customer_of},
    json::{Json, Raw, push_string},
};

/// What every run object has at least, beside `last_step_index` (contracts/ws-run-stream.md).
const MEMBERS: [&str; 10] =
    ["id", "status", "created_at", "started_at", "ended_at", "error", "summary", "usage", "cost_usd", "duration_ms"];

/// A run's row as one JSON object, its columns as members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow(pub Json);

impl RunRow {
    /// The run object: the row's members, null where one that clients know is not there.
    pub fn object(&self, last_step_index: Option<i64>) -> Json {
        let (mut out, mut missing) = (Vec::from(*b"{"), MEMBERS.to_vec());
        let mut member = |key: &str, value: &[u8]| {
            push_string(&mut out, key);
            out.push(b':');
            out.extend_from_slice(value);
            out.push(b',');
        };
        for (key, value) in self.0.raw().members().filter(|(key, _)| key != "last_step_index") {
            missing.retain(|known| *known != key);
            member(&key, value.bytes());
        }
        missing.into_iter().for_each(|key| member(key, b"null"));
        member("last_step_index", last_step_index.map_or_else(|| "null".into(), |index| index.to_string()).as_bytes());
        out.pop();
        out.push(b'}');
        Json::built(out)
    }

    /// Whether it says the same as the run object that was made from an earlier row.
    pub fn is_in(&self, object: &Json) -> bool {
        let last = object.raw().get("last_step_index").and_then(Raw::integer);
        self.object(last) == *object
    }

    /// A word that nobody knows, or none at all, counts as running.
    pub fn status(&self) -> RunStatus {
        self.0.raw().get_string("status").map_or(RunStatus::Running, |word| RunStatus::from_row(&word))
    }

    /// Whose run it is.
    pub fn customer(&self) -> Option<String> {
        customer_of(self.0.raw().get("customer_id")?)
    }

    /// How the run ended: what the row says, and what it leaves open as `told` by the run's messages.
    pub fn outcome(&self, told: Outcome) -> Outcome {
        let status = self.status();
        let given = |key| self.0.raw().get(key).filter(|value| !value.is_null());
        let owned = |value: Raw<'_>| Json::built(value.bytes().to_vec());
        let text = |key| given(key).and_then(Raw::string).filter(|text| !text.is_empty()).map(std::borrow::Cow::into_owned);
        // What the messages do not say either is no error of a run that has not failed.
        let has_failed = status == RunStatus::Error;
        let told_of_failure = has_failed && told.status == RunStatus::Error;
        let ended_without_result = told.error_code.as_deref() == Some(Outcome::WITHOUT_RESULT);
        let error_code = told.error_code.filter(|_| told_of_failure && !ended_without_result);
        let error_message = told.error_message.filter(|_| told_of_failure && !ended_without_result);
        Outcome {
            status,
            error_code: error_code.or_else(|| has_failed.then(|| "run_error".to_owned())),
            error_message: text("error")
                .filter(|_| status != RunStatus::Finished)
                .or(error_message)
                .or_else(|| has_failed.then(|| "the run ended with an error".to_owned())),
            result: told.result.or_else(|| text("summary")),
            duration_ms: given("duration_ms").and_then(Raw::integer).and_then(|ms| u64::try_from(ms).ok()).or(told.duration_ms),
            usage: given("usage").map(owned).or(told.usage),
            cost_usd: given("cost_usd").map(owned).or(told.cost_usd),
            ..Outcome { git: told.git, ..Outcome::new(status, told.settled_at) }
        }
    }

    /// The end of a run whose row was removed before it said how the run ended.
    pub fn deleted(told: Outcome, settled_at: Millis) -> Outcome {
        Outcome {
            error_code: Some("run_deleted".into()),
            error_message: Some("the run was deleted before it was over".into()),
            usage: told.usage,
            cost_usd: told.cost_usd,
            ..Outcome::new(RunStatus::Error, settled_at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &'static str) -> RunRow {
        RunRow(Json::built(text))
    }

    fn told() -> Outcome {
        let json = |text: &'static str| Some(Json::built(text));
        Outcome {
            result: Some("said".into()),
            duration_ms: Some(5),
            usage: json("{\"tokens\":1}"),
            cost_usd: json("0.1"),
            ..Outcome::new(RunStatus::Finished, 9)
        }
    }

    #[test]
    fn a_row_decides_and_its_messages_fill_in() {
        let outcome =
            row(r#"{"status":"completed","summary":"short","usage":null,"cost_usd":0.250,"duration_ms":7}"#).outcome(told());
        assert_eq!(
            (outcome.status, outcome.result.as_deref(), outcome.duration_ms),
            (RunStatus::Finished, Some("said"), Some(7))
        );
        assert_eq!((outcome.usage, outcome.cost_usd), (told().usage, Some(Json::built("0.250"))), "numbers keep their text");
        let stopped = row(r#"{"status":"stopped","error":"by hand"}"#).outcome(Outcome::ended_without_result(9, None));
        assert_eq!(
            (stopped.status, stopped.error_code, stopped.error_message.as_deref()),
            (RunStatus::Cancelled, None, Some("by hand"))
        );
        let failed = row(r#"{"status":"error","error":null}"#).outcome(Outcome::ended_without_result(9, None));
        assert_eq!(failed.error_code.as_deref(), Some("run_error"), "no result is no reason of its own where the row says error");
        let said = Outcome {
            error_code: Some("max_turns".into()),
            error_message: Some("too long".into()),
            ..Outcome::new(RunStatus::Error, 9)
        };
        let failed = row(r#"{"status":"error","error":""}"#).outcome(said);
        assert_eq!((failed.error_code.as_deref(), failed.error_message.as_deref()), (Some("max_turns"), Some("too long")));
    }

    #[test]
    fn a_run_object_has_all_members_and_tells_whether_the_row_has_changed() {
        let before = row(r#"{"id":"r","status":"running","cost_usd":1.50,"mine":[1]}"#);
        let object = before.object(Some(4));
        let expected = r#"{"id":"r","status":"running","cost_usd":1.50,"mine":[1],"created_at":null,"started_at":null,"ended_at":null,"error":null,"summary":null,"usage":null,"duration_ms":null,"last_step_index":4}"#;
        assert_eq!(object.text(), expected);
        assert!(before.is_in(&object) && before.is_in(&before.object(None)));
        assert!(!row(r#"{"id":"r","status":"running","cost_usd":1.5,"mine":[1]}"#).is_in(&object));
    }

    #[test]
    fn a_word_that_nobody_knows_counts_as_running() {
        for text in [r#"{"status":"pondering"}"#, r#"{"status":null}"#, "{}", r#"{"status":7}"#] {
            assert_eq!(row(text).status(), RunStatus::Running, "{text}");
        }
    }
}
