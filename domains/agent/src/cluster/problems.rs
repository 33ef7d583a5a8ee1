//! What is wrong with other hosts: for `toroid status`, the log and the events, once each.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Problems of strangers that people are told of in that time.
const MAX_UNAUTHENTICATED: usize = 64;
const QUIET: Duration = Duration::from_secs(60);

/// What is wrong.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// By host.
    hosts: Mutex<BTreeMap<String, String>>,
    /// When people were told of somebody who may be anybody, by name or address and kind.
    unauthenticated: Mutex<BTreeMap<(String, &'static str), Instant>>,
}

impl Problems {
    /// What is wrong with a host.
    pub(crate) fn of(&self, host: &str) -> Option<String> {
        self.lock().get(host).cloned()
    }

    /// Notes a problem of a host; returns whether it is another than before.
    pub(crate) fn note(&self, host: &str, problem: &str) -> bool {
        let mut all = self.lock();
        if all.get(host).is_some_and(|known| known == problem) {
            return false;
        }
        all.insert(host.into(), problem.into());
        true
    }

    /// Whether people are told of somebody who may be anybody: of each kind of problem once in a
    /// while, and not of too many at a time.
    pub(crate) fn may_tell(&self, name: &str, kind: &'static str, now: Instant) -> bool {
        let unauthenticated = self.unauthenticated.lock();
        let mut unauthenticated = unauthenticated.unwrap_or_else(PoisonError::into_inner);
        unauthenticated.retain(|_, told| now.saturating_duration_since(*told) < QUIET);
        let key = (name.to_owned(), kind);
        if unauthenticated.contains_key(&key) || unauthenticated.len() >= MAX_UNAUTHENTICATED {
            return false;
        }
        unauthenticated.insert(key, now);
        true
    }

    /// Nothing is wrong with a host any more.
    pub(crate) fn clear(&self, host: &str) {
        self.lock().remove(host);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_new_once() {
        let problems = Problems::default();
        assert!(problems.note("b", "away") && !problems.note("b", "away"));
        assert!(problems.note("b", "other key"));
        problems.clear("b");
        assert_eq!(problems.of("b"), None);
    }

    /// Once strangers could fill the log, because each text that they chose was news.
    #[test]
    fn of_strangers_people_are_told_now_and_then() {
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
