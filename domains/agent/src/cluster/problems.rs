//! Problems of other hosts, reported once each to `toroid status`, the log and the events.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::recent::Recent;

/// Reports about unauthenticated sides in each [`QUIET`] period.
const MAX_UNAUTHENTICATED: usize = 64;
const QUIET: Duration = Duration::from_secs(60);

/// Present problems, and the times of reports.
#[derive(Debug)]
pub(crate) struct Problems {
    /// Present problem of each host.
    hosts: Mutex<BTreeMap<String, String>>,
    /// Problems of hosts that neither the directory nor the file has.
    refused: Mutex<Recent<String>>,
    /// Times of reports about unauthenticated sides, by name or address and kind of problem.
    unauthenticated: Mutex<BTreeMap<(String, &'static str), Instant>>,
}

impl Default for Problems {
    fn default() -> Self {
        Problems {
            hosts: Mutex::default(),
            refused: Mutex::new(Recent::new(MAX_UNAUTHENTICATED)),
            unauthenticated: Mutex::default(),
        }
    }
}

impl Problems {
    /// Present problem of a host.
    pub(crate) fn of(&self, host: &str, now: Instant) -> Option<String> {
        let refused = || self.refused.lock().of(host, now).cloned();
        self.hosts.lock().get(host).cloned().or_else(refused)
    }

    /// Hosts that were refused lately, and that neither the directory nor the file has.
    pub(crate) fn refused(&self, now: Instant) -> Vec<String> {
        self.refused.lock().hosts(now)
    }

    /// Notes a problem of such a host. Returns whether it is new.
    pub(crate) fn note_refused(&self, host: &str, problem: &str, now: Instant) -> bool {
        let before = self.refused.lock().note(host, problem.into(), now);
        before.as_deref() != Some(problem)
    }

    /// Removes what such hosts were refused for: the directory has these now.
    pub(crate) fn admit<'a>(&self, hosts: impl Iterator<Item = &'a str>) {
        let mut refused = self.refused.lock();
        hosts.for_each(|host| refused.remove(host));
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
        assert_eq!(problems.of("b", Instant::now()), None);
    }

    /// Anybody with the pre-shared key chooses names.
    #[test]
    fn so_many_refused_hosts_are_known_for_a_while() {
        let problems = Problems::default();
        let now = Instant::now();
        assert!(problems.note_refused("d", "nodes of c", now));
        assert!(!problems.note_refused("d", "nodes of c", now));
        assert!(problems.note_refused("d", "another torus", now + QUIET / 2));
        let later = now + QUIET;
        assert_eq!(problems.of("d", later).as_deref(), Some("another torus"));
        for n in 0..2 * MAX_UNAUTHENTICATED {
            problems.note_refused(&n.to_string(), "nodes of c", now);
        }
        assert_eq!(problems.refused(now).len(), MAX_UNAUTHENTICATED);
        assert_eq!(problems.refused(later), ["d"]);
        // Such a host was once asked nothing for ever, although it had been admitted.
        assert_eq!(problems.of("d", later + QUIET), None);
        problems.admit(["c", "d"].into_iter());
        assert!(problems.refused(later).is_empty() && problems.of("d", later).is_none());
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
