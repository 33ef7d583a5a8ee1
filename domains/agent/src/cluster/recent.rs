//! Entries about hosts that are not known otherwise. Anybody with the pre-shared key chooses the names
//! of such hosts, so their number is bounded and each entry lasts for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time that an entry lasts. The agents of such hosts try again within seconds.
pub(super) const LASTS: Duration = Duration::from_secs(60);

/// Entries by host. The oldest makes way for one that would be too many.
#[derive(Debug)]
pub(crate) struct Recent<T> {
    most: usize,
    entries: BTreeMap<String, (T, Instant)>,
}

impl<T> Recent<T> {
    pub(super) fn new(most: usize) -> Self {
        Recent {
            most,
            entries: BTreeMap::new(),
        }
    }

    /// Enters a host, and returns its former entry.
    pub(super) fn note(&mut self, host: &str, what: T, now: Instant) -> Option<T> {
        self.expire(now);
        if self.entries.len() >= self.most && !self.entries.contains_key(host) {
            let oldest = self.entries.iter().min_by_key(|(_, (_, noted))| *noted);
            let oldest = oldest.map(|(host, _)| host.clone());
            oldest.and_then(|host| self.entries.remove(&host));
        }
        let before = self.entries.insert(host.into(), (what, now));
        before.map(|(what, _)| what)
    }

    pub(crate) fn of(&self, host: &str, now: Instant) -> Option<&T> {
        let present = self.entries.get(host);
        let present = present.filter(|(_, noted)| lasts(*noted, now));
        present.map(|(what, _)| what)
    }

    pub(crate) fn hosts(&mut self, now: Instant) -> Vec<String> {
        self.expire(now);
        self.entries.keys().cloned().collect()
    }

    pub(crate) fn remove(&mut self, host: &str) {
        self.entries.remove(host);
    }

    fn expire(&mut self, now: Instant) {
        self.entries.retain(|_, (_, noted)| lasts(*noted, now));
    }
}

fn lasts(noted: Instant, now: Instant) -> bool {
    now.saturating_duration_since(noted) < LASTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that nobody has once kept real hosts out for ever.
    #[test]
    fn an_entry_lasts_for_a_while_and_the_oldest_makes_way() {
        let mut recent = Recent::new(2);
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(recent.note("b", 1, begin), None);
        assert_eq!(recent.note("c", 2, after(1)), None);
        // Again, so that the other one is the oldest.
        assert_eq!(recent.note("b", 3, after(2)), Some(1));
        assert_eq!(recent.note("d", 4, after(3)), None);
        assert_eq!(recent.hosts(after(3)), ["b", "d"]);
        let expired = after(2) + LASTS;
        assert_eq!(recent.of("b", after(3)), Some(&3));
        assert_eq!(recent.of("b", expired), None);
        assert_eq!(recent.of("d", expired), Some(&4));
        assert_eq!(recent.hosts(expired), ["d"]);
        recent.remove("d");
        assert!(recent.hosts(expired).is_empty());
    }
}
