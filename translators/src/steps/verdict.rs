//! How a run of this family ended, told by its results.

use crate::{
    event::{Millis, Outcome, RunStatus},
    json::{Json, Raw},
};

/// A fold over the `result` messages of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    last: Option<Told>,
    cost: Option<Json>,
    cost_value: f64,
}

#[derive(Clone, Debug)]
struct Told {
    status: RunStatus,
    error_code: Option<String>,
    error_message: Option<String>,
    result: Option<String>,
    duration_ms: Option<u64>,
    usage: Option<Json>,
}

impl Verdict {
    /// How much text it holds, in bytes.
    pub fn text_bytes(&self) -> usize {
        let texts = self.last.iter().flat_map(|told| [&told.result, &told.error_message]);
        texts.flatten().map(String::len).sum()
    }

    /// Takes in the next `result` message.
    pub fn hear(&mut self, result: &Json) {
        let raw = result.raw();
        let owned =
            |value: Option<Raw<'_>>| value.filter(|value| !value.is_null()).map(|value| Json::built(value.bytes().to_vec()));
        let cost = raw.get("total_cost_usd").or_else(|| raw.get("total_cost")).or_else(|| raw.get("cost_usd"));
        if let Some((cost, value)) = cost.and_then(|cost| Some((cost, cost.number()?)))
            && (self.cost.is_none() || value > self.cost_value)
        {
            (self.cost, self.cost_value) = (owned(Some(cost)), value);
        }
        let whole = |key| raw.get(key).and_then(Raw::integer);
        // A later result without a turn and without a duration is an echo of a shutdown: it decides nothing.
        if self.last.is_some() && whole("num_turns") == Some(0) && whole("duration_ms") == Some(0) {
            return;
        }
        let subtype = raw.get_string("subtype").unwrap_or_default().into_owned();
        let is_error = raw.get("is_error").and_then(Raw::boolean) == Some(true);
        let failed = is_error || (!subtype.is_empty() && subtype != "success");
        let text = raw.get_string("result").map(std::borrow::Cow::into_owned);
        let error_code = failed.then(|| match &*subtype {
            "success" | "" => "api_error".to_owned(),
            _ => subtype.clone(),
        });
        let error_message = failed.then(|| {
            let errors: Vec<_> = raw.get("errors").into_iter().flat_map(Raw::items).filter_map(Raw::string).collect();
            match &text {
                Some(text) if !text.is_empty() => text.clone(),
                _ if !errors.is_empty() => errors.join("\n"),
                _ => format!("the run ended with {}", if subtype.is_empty() { "an error" } else { &subtype }),
            }
        });
        self.last = Some(Told {
            status: if failed { RunStatus::Error } else { RunStatus::Finished },
            error_code,
            error_message,
            result: text.filter(|_| !is_error),
            duration_ms: whole("duration_ms").and_then(|n| u64::try_from(n).ok()),
            usage: owned(raw.get("usage")),
        });
    }

    pub fn is_heard(&self) -> bool {
        self.last.is_some()
    }

    pub fn outcome(&self, at: Millis, exit_status: Option<i32>) -> Outcome {
        let Some(told) = self.last.clone() else {
            return Outcome { cost_usd: self.cost.clone(), ..Outcome::ended_without_result(at, exit_status) };
        };
        Outcome {
            error_code: told.error_code,
            error_message: told.error_message,
            result: told.result,
            duration_ms: told.duration_ms,
            usage: told.usage,
            cost_usd: self.cost.clone(),
            ..Outcome::new(told.status, at)
        }
    }
}
