//! Which runs somebody may see.

use runcast_translators::event::{RunId, RunInfo};

/// Runs by their ids and by whose they are. The default covers none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunScope {
    all: bool,
    ids: Vec<String>,
    prefixes: Vec<String>,
    customer: Option<String>,
}

impl RunScope {
    /// Every run.
    pub fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// `runs`: ids, and beginnings of ids with `*` behind them; a `*` alone is every run. `customer`: whose runs it covers
    /// beside these.
    pub fn new(runs: impl IntoIterator<Item = impl AsRef<str>>, customer: Option<String>) -> Self {
        let mut scope = Self { customer: customer.filter(|customer| !customer.is_empty()), ..Self::default() };
        for run in runs {
            match run.as_ref().strip_suffix('*') {
                Some("") => scope.all = true,
                Some(prefix) => scope.prefixes.push(prefix.into()),
                None => scope.ids.push(run.as_ref().into()),
            }
        }
        scope
    }

    pub fn is_all(&self) -> bool {
        self.all
    }

    /// Whose runs it covers, whatever their ids.
    pub fn customer(&self) -> Option<&str> {
        self.customer.as_deref()
    }

    /// Whether it covers a run of this id, whosever it is.
    pub fn covers_id(&self, run: &RunId) -> bool {
        let id = run.as_str();
        self.all || self.ids.iter().any(|own| own == id) || self.prefixes.iter().any(|prefix| id.starts_with(prefix.as_str()))
    }

    pub fn covers(&self, run: &RunInfo) -> bool {
        self.covers_id(&run.run) || (self.customer.is_some() && self.customer == run.origin.customer)
    }
}

#[cfg(test)]
mod tests {
    use runcast_translators::event::NewRun;

    use super::*;

    fn run(id: &str, customer: Option<&str>) -> RunInfo {
        let origin = NewRun { customer: customer.map(str::to_owned), ..NewRun::default() };
        RunInfo::new(RunId::new(id).expect("an id"), origin, 0)
    }

    #[test]
    fn a_scope_covers_what_it_names_and_nothing_else() {
        let scope = RunScope::new(["one", "night-*"], Some("acme".into()));
        for (id, customer, is_covered) in [
            ("one", None, true),
            ("one", Some("other"), true),
            ("one1", None, false),
            ("night-", None, true),
            ("night-42", Some("other"), true),
            ("night", None, false),
            ("x", Some("acme"), true),
            ("x", Some("acme2"), false),
            ("x", Some(""), false),
            ("x", None, false),
        ] {
            assert_eq!(scope.covers(&run(id, customer)), is_covered, "{id} of {customer:?}");
            assert!(!scope.covers_id(&run("x", customer).run));
        }
        assert!(!scope.is_all());
    }

    #[test]
    fn nobody_and_everybody() {
        let none = RunScope::new(Vec::<String>::new(), Some(String::new()));
        assert_eq!(none, RunScope::default());
        assert!(!none.covers(&run("x", None)) && !none.covers(&run("x", Some(""))));
        assert!(RunScope::new(["*"], None).is_all() && RunScope::all().covers(&run("x", Some("y"))));
    }
}
