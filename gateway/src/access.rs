//! Who asks, and what for: the one place that says whether somebody may see or change a run. Credentials are read by the
//! client port (`downstream/auth.rs`); everybody who acts for a client is handed a [`Caller`].

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use runcast_config::Right;
use runcast_translators::event::{Millis, RunId, RunInfo};

use crate::log::RunScope;

/// Whoever asks, by the credential that was shown.
#[derive(Clone, Debug)]
pub struct Caller {
    credential: Arc<Credential>,
    /// From where it asks, for the log.
    address: Option<IpAddr>,
}

/// What a credential says.
#[derive(Clone, Debug, Default)]
pub struct Credential {
    /// Whom its streams are counted for; `None`: they are not counted.
    pub subject: Option<String>,
    pub rights: Rights,
    pub runs: RunScope,
    /// When it is not good any more.
    pub expires_at: Option<Millis>,
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Nothing about the run is told, not even whether it is there.
    Run,
    /// There is no such run; who may see all runs may know it.
    Unknown,
}

impl Rights {
    pub const ALL: Self = Self(7);

    /// For a ticket.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Bits that mean nothing are left out.
    pub fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    pub fn has(self, right: Right) -> bool {
        self.0 & bit(right) != 0
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        Self(rights.into_iter().fold(0, |all, right| all | bit(right)))
    }
}

fn bit(right: Right) -> u8 {
    match right {
        Right::Watch => 1,
        Right::Ingest => 2,
        Right::Control => 4,
    }
}

impl Caller {
    pub fn new(credential: Credential) -> Self {
        Self { credential: Arc::new(credential), address: None }
    }

    /// The same, as it asks from there.
    pub fn from(&self, address: Option<IpAddr>) -> Self {
        Self { address, ..self.clone() }
    }

    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whoever reaches a server that asks for no credential.
    pub fn anybody() -> Self {
        Self::new(Credential { rights: Rights::ALL, runs: RunScope::all(), ..Credential::default() })
    }

    /// The same, where the run is one that the caller itself has just made.
    pub fn with_own(&self, run: &RunId) -> Self {
        let runs = RunScope::new([run.as_str()], None);
        Self::new(Credential { runs, ..Credential::clone(&self.credential) }).from(self.address)
    }

    pub fn subject(&self) -> Option<&str> {
        self.credential.subject.as_deref()
    }

    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    pub fn has(&self, right: Right) -> bool {
        self.credential.rights.has(right)
    }

    /// Whether it is good for every run, and so for what belongs to none.
    pub fn has_all_runs(&self) -> bool {
        self.credential.runs.is_all()
    }

    pub fn runs(&self) -> &RunScope {
        &self.credential.runs
    }

    /// Whether the run may be shown to the caller, or changed by it. `info`: what is known of it, if it is there.
    pub fn may_have(&self, info: Option<&RunInfo>) -> Result<(), Denied> {
        let runs = &self.credential.runs;
        match info {
            Some(info) if runs.covers(info) => Ok(()),
            None if runs.is_all() => Err(Denied::Unknown),
            _ => Err(Denied::Run),
        }
    }

    /// Whether the caller may have the run looked for: where its credential is good for it, whosever it turns out to be.
    pub fn may_look_for(&self, run: &RunId) -> bool {
        self.credential.runs.covers_id(run)
    }

    /// Whether the caller may have something done to a run which the log may not have.
    pub fn may_act_on(&self, run: &RunId, info: Option<&RunInfo>) -> bool {
        info.map_or_else(|| self.may_look_for(run), |info| self.credential.runs.covers(info))
    }

    /// Whether the caller may make the run, and as whose.
    pub fn may_make(&self, run: &RunId) -> Result<Option<String>, Denied> {
        match self.credential.runs.customer() {
            Some(customer) => Ok(Some(customer.to_owned())),
            None if self.credential.runs.covers_id(run) => Ok(None),
            None => Err(Denied::Run),
        }
    }

    /// When the credential expires, by the clock that does not jump.
    pub fn expires(&self) -> Option<Instant> {
        let left = u64::try_from(self.credential.expires_at?.saturating_sub(crate::now())).unwrap_or(0);
        // What lies too far away never comes.
        Instant::now().checked_add(Duration::from_millis(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_what_they_are_made_of() {
        let rights: Rights = [Right::Watch, Right::Control].into_iter().collect();
        assert!(rights.has(Right::Watch) && rights.has(Right::Control) && !rights.has(Right::Ingest));
        assert_eq!(Rights::from_bits(rights.bits()), rights);
        assert_eq!(Rights::from_bits(0xFF), Right::ALL.into_iter().collect());
    }

    #[test]
    fn only_who_may_see_all_runs_is_told_that_one_is_not_there() {
        let run = RunId::new("a-1").expect("an id");
        let caller = |runs| Caller::new(Credential { runs, ..Credential::default() });
        let owner = |customer: &str| {
            let mut info = RunInfo::new(run.clone(), Default::default(), 0);
            info.origin.customer = Some(customer.into());
            info
        };
        let acme = caller(RunScope::new(Vec::<String>::new(), Some("acme".into())));
        assert_eq!(acme.may_have(Some(&owner("acme"))), Ok(()));
        assert_eq!(acme.may_have(Some(&owner("evil"))), Err(Denied::Run));
        assert_eq!(acme.may_have(None), Err(Denied::Run));
        assert!(!acme.may_look_for(&run));
        assert_eq!(acme.may_make(&run), Ok(Some("acme".into())));
        let prefix = caller(RunScope::new(["a-*"], None));
        assert_eq!(prefix.may_have(Some(&owner("anybody"))), Ok(()));
        assert_eq!(prefix.may_have(None), Err(Denied::Run));
        assert!(prefix.may_look_for(&run));
        assert_eq!(prefix.may_make(&run), Ok(None));
        assert_eq!(prefix.may_make(&RunId::new("b").expect("an id")), Err(Denied::Run));
        assert_eq!(Caller::anybody().may_have(None), Err(Denied::Unknown));
        assert_eq!(Caller::anybody().expires(), None);
    }
}
