//! Wrong credentials are counted by address, so that nobody can try many.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use runcast_config::Auth;

/// See the module.
pub struct Failures {
    count_max: u32,
    span: Duration,
    addresses_max: usize,
    counted: Mutex<HashMap<IpAddr, Counted>>,
}

#[derive(Clone, Copy)]
struct Counted {
    since: Instant,
    count: u32,
}

impl Failures {
    pub fn new(settings: &Auth) -> Self {
        Self {
            count_max: settings.failures_max,
            span: Duration::from_millis(settings.failures_ms),
            addresses_max: settings.addresses_max,
            counted: Mutex::default(),
        }
    }

    /// Whether there were too many. `None` is nobody's address: who has no address is not counted.
    pub fn is_refused(&self, address: Option<IpAddr>) -> bool {
        let Some(address) = address.map(network) else { return false };
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.get(&address).is_some_and(|counted| counted.since.elapsed() < self.span && counted.count >= self.count_max)
    }

    pub fn add(&self, address: Option<IpAddr>) {
        let Some(address) = address.map(network) else { return };
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= self.addresses_max && !counted.contains_key(&address) {
            counted.retain(|_, counted| counted.since.elapsed() < self.span);
            let oldest = counted.iter().min_by_key(|(_, counted)| counted.since).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| counted.len() >= self.addresses_max) {
                counted.remove(&oldest);
            }
        }
        let fresh = Counted { since: Instant::now(), count: 0 };
        let entry = counted.entry(address).or_insert(fresh);
        if entry.since.elapsed() >= self.span {
            *entry = fresh;
        }
        entry.count = entry.count.saturating_add(1);
    }
}

/// Whoever has an IPv6 address has a whole network of them.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(addresses_max: usize, failures_ms: u64) -> Failures {
        Failures::new(&Auth { failures_max: 2, failures_ms, addresses_max, ..Auth::default() })
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn an_ipv6_network_counts_as_one() {
        let failures = failures(10, 60_000);
        failures.add(address("2001:db8::1"));
        assert!(!failures.is_refused(address("2001:db8::1")));
        failures.add(address("2001:db8::2"));
        assert!(failures.is_refused(address("2001:db8::3")) && !failures.is_refused(address("2001:db8:0:1::1")));
        failures.add(None);
        failures.add(None);
        assert!(!failures.is_refused(None));
    }

    #[test]
    fn as_many_addresses_are_remembered_as_may_be_and_for_as_long() {
        let few = failures(2, 60_000);
        for last in 1..=100 {
            few.add(address(&format!("10.0.0.{last}")));
            few.add(address(&format!("10.0.0.{last}")));
        }
        assert_eq!(few.counted.lock().expect("not poisoned").len(), 2);
        assert!(few.is_refused(address("10.0.0.100")));
        let short = failures(2, 1);
        short.add(address("10.0.0.1"));
        short.add(address("10.0.0.1"));
        while short.is_refused(address("10.0.0.1")) {
            std::thread::yield_now();
        }
        short.add(address("10.0.0.1"));
        assert_eq!(short.counted.lock().expect("not poisoned").values().next().map(|counted| counted.count), Some(1));
    }
}
