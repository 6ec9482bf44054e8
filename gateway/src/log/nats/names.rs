//! What is called how on the bus: streams, buckets and subjects.

use runcast_translators::event::RunId;

/// The names of one installation; several may share an account under different names.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// The first word of all subjects.
    root: String,
    /// The stream of events.
    pub stream: String,
    /// The stream of the parts of large events.
    pub parts: String,
    /// The stream of packs of events.
    pub packs: String,
    /// The bucket with what is known of each run.
    pub runs: String,
    /// The bucket that tells which replica follows which run.
    pub owners: String,
    /// The bucket of the replicas that live.
    pub leases: String,
    /// The bucket of names that were claimed.
    pub claims: String,
}

impl Names {
    pub fn new(name: &str) -> Self {
        let upper = name.to_ascii_uppercase();
        Self {
            root: name.to_owned(),
            parts: format!("{upper}_PARTS"),
            packs: format!("{upper}_PACKS"),
            runs: format!("{upper}_RUNS"),
            owners: format!("{upper}_OWNERS"),
            leases: format!("{upper}_LEASES"),
            claims: format!("{upper}_CLAIMS"),
            stream: upper,
        }
    }

    pub fn log(&self, run: &RunId) -> String {
        format!("{}.log.{}", self.root, token(run))
    }

    pub fn all_logs(&self) -> String {
        format!("{}.log.*", self.root)
    }

    pub fn tail(&self, run: &RunId) -> String {
        format!("{}.tail.{}", self.root, token(run))
    }

    /// Where the server repeats what it has stored.
    pub fn all_tails(&self) -> String {
        format!("{}.tail.{{{{wildcard(1)}}}}", self.root)
    }

    pub fn live(&self, run: &RunId) -> String {
        format!("{}.live.{}", self.root, token(run))
    }

    /// Where open text is asked for.
    pub fn open(&self, run: &RunId) -> String {
        format!("{}.open.{}", self.root, token(run))
    }

    pub fn all_opens(&self) -> String {
        format!("{}.open.*", self.root)
    }

    /// One part of a large event, or with `*` all of them.
    pub fn part(&self, run: &RunId, hash: &str, part: &str) -> String {
        format!("{}.part.{}.{hash}.{part}", self.root, token(run))
    }

    pub fn parts_of(&self, run: &RunId) -> String {
        format!("{}.part.{}.>", self.root, token(run))
    }

    pub fn all_parts(&self) -> String {
        format!("{}.part.>", self.root)
    }

    pub fn pack(&self, run: &RunId, incarnation: u32, number: u64) -> String {
        format!("{}.pack.{}.{incarnation}.{number}", self.root, token(run))
    }

    pub fn packs_of(&self, run: &RunId) -> String {
        format!("{}.pack.{}.>", self.root, token(run))
    }

    pub fn all_packs(&self) -> String {
        format!("{}.pack.*.*.*", self.root)
    }
}

/// A run's id as one token of a subject, or as a key: bytes outside `A-Za-z0-9_-` as `=HH`.
pub(super) fn token(run: &RunId) -> String {
    let mut token = String::with_capacity(run.as_str().len());
    for byte in run.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("={byte:02X}"));
        }
    }
    token
}

/// The run of a token, or of the last token of a subject.
pub(super) fn run_of(subject: &str) -> Option<RunId> {
    let token = subject.rsplit('.').next()?.as_bytes();
    let mut id = Vec::with_capacity(token.len());
    let mut at = 0;
    while let Some(byte) = token.get(at) {
        if *byte == b'=' {
            let digits = std::str::from_utf8(token.get(at + 1..at + 3)?).ok()?;
            id.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            id.push(*byte);
            at += 1;
        }
    }
    RunId::new(&String::from_utf8(id).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_one_token_and_comes_back() {
        for id in ["r", "r-1_A", "a.b", "a*b>c", "ü=41", "a:b@c", "..."] {
            let Ok(run) = RunId::new(id) else { continue };
            let token = token(&run);
            assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-=".contains(&byte)), "{token}");
            assert_eq!(run_of(&format!("runcast.log.{token}")), Some(run), "{token}");
        }
        assert_eq!(run_of("runcast.log.=4"), None);
        assert_eq!(run_of("runcast.log."), None);
    }
}
