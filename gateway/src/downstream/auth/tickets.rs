//! Tickets: what a browser sends in place of a token, with a WebSocket or an `EventSource` (contracts/ws-run-stream.md).

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use rand::RngCore as _;
use runcast_config::{Auth, Secret};
use runcast_translators::{
    event::{Millis, RunId},
    goodbye::Goodbye,
};
use sha2::Sha256;

use crate::{
    access::{Caller, Credential, Rights},
    log::{Log, RunScope},
};

/// Longer than any that we give.
const TEXT_BYTES_MAX: usize = 4096;
const VERSION: u8 = 1;
const MAC_BYTES: usize = 32;

/// A ticket that was given.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    pub text: String,
    pub expires_at: Millis,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// What a ticket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To be used once, at once.
    Once = 1,
    /// In a cookie, as long as the credential is good.
    Cookie = 2,
}

/// Which runs the credential is good for, in a ticket, which is for one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Good {
    All = 1,
    This = 2,
    Customer = 3,
}

/// See the module.
pub struct Tickets {
    key: Secret,
    log: Arc<dyn Log>,
    once_ms: u64,
    cookie_ms: u64,
}

/// What a ticket says.
struct Said {
    nonce: [u8; 16],
    made: Millis,
    expires: Millis,
    caller: Caller,
}

impl Tickets {
    pub fn new(settings: &Auth, log: Arc<dyn Log>) -> Self {
        let key = settings.ticket_key.clone().unwrap_or_else(|| {
            let mut key = [0; 32];
            rand::rng().fill_bytes(&mut key);
            Secret::new(URL_SAFE_NO_PAD.encode(key))
        });
        Self { key, log, once_ms: settings.ticket_ms, cookie_ms: settings.cookie_ms }
    }

    pub fn give(&self, kind: Kind, caller: &Caller, run: &RunId) -> Ticket {
        let mut nonce = [0; 16];
        rand::rng().fill_bytes(&mut nonce);
        let credential = caller.credential();
        let (now, never) = (crate::now(), Millis::MAX);
        let until_over = credential.expires_at.unwrap_or(never);
        let expires_at = match kind {
            Kind::Once => now.saturating_add_unsigned(self.once_ms).min(until_over),
            Kind::Cookie => credential.expires_at.unwrap_or(now.saturating_add_unsigned(self.cookie_ms)),
        };
        let runs = &credential.runs;
        let (good, customer) = match runs.customer() {
            _ if runs.is_all() => (Good::All, ""),
            _ if runs.covers_id(run) => (Good::This, ""),
            customer => (Good::Customer, customer.unwrap_or_default()),
        };
        let mut out = vec![VERSION, kind as u8, credential.rights.bits(), good as u8];
        out.extend_from_slice(&nonce);
        for time in [now, expires_at, until_over] {
            out.extend_from_slice(&time.to_be_bytes());
        }
        let subject = credential.subject.as_deref().unwrap_or_default();
        for text in [run.as_str(), subject, customer] {
            out.extend_from_slice(&(text.len() as u32).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        let mac = self.mac(&out).finalize().into_bytes();
        out.extend_from_slice(&mac);
        Ticket { text: URL_SAFE_NO_PAD.encode(out), expires_at }
    }

    fn mac(&self, said: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.expose().as_bytes())
            .unwrap_or_else(|error| unreachable!("every length is a key: {error}"));
        mac.update(said);
        mac
    }

    /// Whoever the ticket was given to, if it is good here and was not used before, on any replica.
    pub async fn redeem(&self, text: &str, run: &RunId) -> Result<Caller, Goodbye> {
        let Some(said) = self.read(Kind::Once, text, run) else { return Err(Goodbye::Unauthorized) };
        match self.log.claim(&URL_SAFE_NO_PAD.encode(said.nonce), said.made, said.expires).await {
            Ok(true) => Ok(said.caller),
            Ok(false) => Err(Goodbye::Unauthorized),
            Err(error) => {
                tracing::warn!(%error, "whether a ticket was used before cannot be known");
                Err(Goodbye::AuthUnavailable)
            }
        }
    }

    /// Whoever a cookie was given to.
    pub fn open(&self, kind: Kind, text: &str, run: &RunId) -> Option<Caller> {
        Some(self.read(kind, text, run)?.caller)
    }

    fn read(&self, kind: Kind, text: &str, run: &RunId) -> Option<Said> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (said, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        // In constant time.
        self.mac(said).verify_slice(mac).ok()?;
        let mut rest = said;
        let [version, said_kind, rights, good] = take(&mut rest)?;
        let nonce = take(&mut rest)?;
        let (made, expires, over) = (
            Millis::from_be_bytes(take(&mut rest)?),
            Millis::from_be_bytes(take(&mut rest)?),
            Millis::from_be_bytes(take(&mut rest)?),
        );
        let (said_run, subject, customer) = (text_of(&mut rest)?, text_of(&mut rest)?, text_of(&mut rest)?);
        if version != VERSION || said_kind != kind as u8 || said_run != run.as_str() || expires <= crate::now() {
            return None;
        }
        let runs = match good {
            good if good == Good::All as u8 => RunScope::all(),
            good if good == Good::This as u8 => RunScope::new([said_run], None),
            _ => RunScope::new(Vec::<String>::new(), Some(customer.to_owned())),
        };
        let caller = Caller::new(Credential {
            subject: (!subject.is_empty()).then(|| subject.to_owned()),
            rights: Rights::from_bits(rights),
            runs,
            expires_at: (over != Millis::MAX).then_some(over),
        });
        Some(Said { nonce, made, expires, caller })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn text_of<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = u32::from_be_bytes(take(rest)?) as usize;
    let (text, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use runcast_config::Right;

    use super::*;
    use crate::log::Nowhere;

    fn tickets(change: impl Fn(&mut Auth)) -> Tickets {
        let mut settings = Auth { ticket_key: Some(Secret::new("0".repeat(32))), ..Auth::default() };
        change(&mut settings);
        Tickets::new(&settings, Arc::new(Nowhere))
    }

    fn run(id: &str) -> RunId {
        RunId::new(id).expect("an id")
    }

    fn caller(runs: RunScope, expires_at: Option<Millis>) -> Caller {
        let rights = [Right::Watch].into_iter().collect();
        Caller::new(Credential { subject: Some("acme:joe".into()), rights, runs, expires_at })
    }

    #[test]
    fn a_ticket_says_who_came_and_no_more_than_that() {
        let tickets = tickets(|_| {});
        for (runs, wanted) in [
            (RunScope::all(), RunScope::all()),
            (RunScope::new(["a*", "b"], Some("acme".into())), RunScope::new(["a"], None)),
            (RunScope::new(["b"], Some("acme".into())), RunScope::new(Vec::<String>::new(), Some("acme".into()))),
        ] {
            for kind in [Kind::Once, Kind::Cookie] {
                let expires_at = Some(crate::now() + 1_000_000);
                let ticket = tickets.give(kind, &caller(runs.clone(), expires_at), &run("a"));
                let said = tickets.read(kind, &ticket.text, &run("a")).expect("good").caller;
                let credential = said.credential();
                assert_eq!(credential.runs, wanted);
                assert_eq!((credential.subject.as_deref(), credential.expires_at), (Some("acme:joe"), expires_at));
                assert!(said.has(Right::Watch) && !said.has(Right::Control));
                let other = if kind == Kind::Once { Kind::Cookie } else { Kind::Once };
                assert!(tickets.read(other, &ticket.text, &run("a")).is_none());
                assert!(tickets.read(kind, &ticket.text, &run("b")).is_none());
            }
        }
    }

    #[test]
    fn a_ticket_lives_no_longer_than_it_should() {
        let (tickets, now) = (tickets(|settings| (settings.ticket_ms, settings.cookie_ms) = (1000, 5000)), crate::now());
        let lives = |kind, expires_at| tickets.give(kind, &caller(RunScope::all(), expires_at), &run("a")).expires_at - now;
        assert!((1000..1900).contains(&lives(Kind::Once, None)));
        assert_eq!(lives(Kind::Once, Some(now + 10)), 10);
        assert_eq!(lives(Kind::Cookie, Some(now + 7)), 7);
        assert!((5000..5900).contains(&lives(Kind::Cookie, None)));
        let over = tickets.give(Kind::Once, &caller(RunScope::all(), Some(now - 1)), &run("a"));
        assert!(tickets.read(Kind::Once, &over.text, &run("a")).is_none());
    }

    #[test]
    fn a_ticket_of_another_key_is_none() {
        let ticket = tickets(|_| {}).give(Kind::Once, &Caller::anybody(), &run("a"));
        for other in [tickets(|settings| settings.ticket_key = None), tickets(|settings| settings.ticket_key = None)] {
            assert!(other.read(Kind::Once, &ticket.text, &run("a")).is_none());
        }
        assert!(!format!("{ticket:?}").contains(&ticket.text));
    }

    proptest! {
        #[test]
        fn what_is_changed_is_no_ticket(at in 0usize..400, bit in 0u8..8, cut in 0usize..400) {
            let tickets = tickets(|_| {});
            let ticket = tickets.give(Kind::Once, &caller(RunScope::all(), None), &run("a"));
            let mut bytes = URL_SAFE_NO_PAD.decode(&ticket.text).expect("base64");
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(tickets.read(Kind::Once, &URL_SAFE_NO_PAD.encode(&bytes), &run("a")).is_none());
            let cut = cut % ticket.text.len();
            prop_assert!(tickets.read(Kind::Once, &ticket.text[..cut], &run("a")).is_none());
        }

        #[test]
        fn nonsense_is_no_ticket(text in "\\PC*", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let tickets = tickets(|_| {});
            prop_assert!(tickets.read(Kind::Once, &text, &run("a")).is_none());
            prop_assert!(tickets.read(Kind::Once, &URL_SAFE_NO_PAD.encode(&bytes), &run("a")).is_none());
            // Signed nonsense does no harm either.
            let mut signed = bytes.clone();
            let mac = tickets.mac(&bytes).finalize().into_bytes();
            signed.extend_from_slice(&mac);
            let _ = tickets.read(Kind::Once, &URL_SAFE_NO_PAD.encode(&signed), &run("a"));
        }
    }
}
