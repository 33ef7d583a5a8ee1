//! Problems of other hosts, reported once each to `toroid status`, the log and the events.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Reports about unauthenticated sides in each [`QUIET`] period.
const MAX_UNAUTHENTICATED: usize = 64;
const QUIET: Duration = Duration::from_secs(60);

/// Present problems, and the times of reports.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// Present problem of each host.
    hosts: Mutex<BTreeMap<String, String>>,
    /// Problems of hosts that neither the directory nor the file has, and when they were noted last.
    /// Their agents try again within seconds.
    refused: Mutex<BTreeMap<String, (String, Instant)>>,
    /// Times of reports about unauthenticated sides, by name or address and kind of problem.
    unauthenticated: Mutex<BTreeMap<(String, &'static str), Instant>>,
}

impl Problems {
    /// Present problem of a host.
    pub(crate) fn of(&self, host: &str) -> Option<String> {
        let refused = || self.refused.lock().get(host).map(|(what, _)| what.clone());
        self.hosts.lock().get(host).cloned().or_else(refused)
    }

    /// Hosts that were refused lately, and that neither the directory nor the file has.
    pub(crate) fn refused(&self, now: Instant) -> Vec<String> {
        let mut refused = self.refused.lock();
        refused.retain(|_, (_, noted)| now.saturating_duration_since(*noted) < QUIET);
        refused.keys().cloned().collect()
    }

    /// Notes a problem of such a host, if there are not too many. Returns whether it is new.
    pub(crate) fn note_refused(&self, host: &str, problem: &str, now: Instant) -> bool {
        let known = self.refused(now).len();
        let mut refused = self.refused.lock();
        let before = refused.get(host).map(|(what, _)| what.clone());
        if before.is_none() && known >= MAX_UNAUTHENTICATED {
            return false;
        }
        refused.insert(host.into(), (problem.into(), now));
        before.as_deref() != Some(problem)
    }

    /// Notes a problem of a host. Returns whether it is new.
    pub(crate) fn note(&self, host: &str, problem: &str) -> bool {
        let mut all = self.hosts.lock();
        if all.get(host).is_some_and(|known| known == problem) {
            return false;
        }
        all.insert(host.into(), problem.into());
        true
    }

    /// Whether to report a problem of an unauthenticated side: each kind once in a while, and a
    /// bounded number at a time.
    pub(crate) fn may_tell(&self, name: &str, kind: &'static str, now: Instant) -> bool {
        let mut unauthenticated = self.unauthenticated.lock();
        unauthenticated.retain(|_, told| now.saturating_duration_since(*told) < QUIET);
        let key = (name.to_owned(), kind);
        if unauthenticated.contains_key(&key) || unauthenticated.len() >= MAX_UNAUTHENTICATED {
            return false;
        }
        unauthenticated.insert(key, now);
        true
    }

    /// Removes the problem of a host.
    pub(crate) fn clear(&self, host: &str) {
        self.hosts.lock().remove(host);
        self.refused.lock().remove(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_reported_as_new_once() {
        let problems = Problems::default();
        assert!(problems.note("b", "away") && !problems.note("b", "away"));
        assert!(problems.note("b", "other key"));
        problems.clear("b");
        assert_eq!(problems.of("b"), None);
    }

    /// Anybody with the pre-shared key chooses names.
    #[test]
    fn so_many_refused_hosts_are_known_for_a_while() {
        let problems = Problems::default();
        let now = Instant::now();
        assert!(problems.note_refused("d", "nodes of c", now));
        assert!(!problems.note_refused("d", "nodes of c", now));
        assert!(problems.note_refused("d", "another torus", now + QUIET / 2));
        assert_eq!(problems.of("d").as_deref(), Some("another torus"));
        for n in 0..2 * MAX_UNAUTHENTICATED {
            problems.note_refused(&n.to_string(), "nodes of c", now);
        }
        assert_eq!(problems.refused(now).len(), MAX_UNAUTHENTICATED);
        assert_eq!(problems.refused(now + QUIET), ["d"]);
        problems.clear("d");
        assert!(problems.refused(now + QUIET).is_empty() && problems.of("d").is_none());
    }

    /// Unauthenticated sides could once fill the log, because every text of theirs was new.
    #[test]
    fn reports_about_unauthenticated_sides_are_limited() {
        let problems = Problems::default();
        let now = Instant::now();
        assert!(problems.may_tell("b", "version", now));
        assert!(!problems.may_tell("b", "version", now + QUIET / 2));
        assert!(problems.may_tell("b", "key", now + QUIET / 2));
        assert!(problems.may_tell("b", "version", now + QUIET));
        let later = now + 2 * QUIET;
        let told = (0..10 * MAX_UNAUTHENTICATED)
            .filter(|n| problems.may_tell(&n.to_string(), "key", later))
            .count();
        assert_eq!(told, MAX_UNAUTHENTICATED);
    }
}
