//! What is wrong with other hosts: for `toroid status`, the log and the events, once each.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Strangers whose last problem is remembered.
const MAX_STRANGERS: usize = 64;

/// What is wrong, by host, or by address of those who are none that is known.
#[derive(Debug, Default)]
pub(super) struct Problems(Mutex<BTreeMap<String, String>>);

impl Problems {
    /// What is wrong with a host.
    pub(super) fn of(&self, host: &str) -> Option<String> {
        self.lock().get(host).cloned()
    }

    /// Notes a problem of a host; returns whether it is another than before.
    pub(super) fn note(&self, host: &str, problem: &str) -> bool {
        let mut all = self.lock();
        if all.get(host).is_some_and(|known| known == problem) {
            return false;
        }
        all.insert(host.into(), problem.into());
        true
    }

    /// The same of somebody who may be anybody. When there are too many all of them are new again.
    pub(super) fn note_stranger(&self, address: &str, problem: &str) -> bool {
        let key = format!("stranger {address}");
        let mut all = self.lock();
        let is_stranger = |key: &str| key.starts_with("stranger ");
        if all.keys().filter(|key| is_stranger(key)).count() >= MAX_STRANGERS {
            all.retain(|key, _| !is_stranger(key));
        }
        drop(all);
        self.note(&key, problem)
    }

    /// Nothing is wrong with a host any more.
    pub(super) fn clear(&self, host: &str) {
        self.lock().remove(host);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        for n in 0..10 * MAX_STRANGERS {
            assert!(problems.note_stranger(&n.to_string(), "other key"));
        }
        assert!(problems.lock().len() <= MAX_STRANGERS);
    }
}
