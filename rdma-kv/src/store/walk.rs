//! Going through all items, a few at a time.

use fabric::OpError;

use super::{KeyCopy, Store};
use crate::layout::{Buckets, ItemHeader};

/// Main buckets that are gone through in one go, of some five items each: others wait for so long.
const BUCKETS_AT_ONCE: u32 = 4;

/// How far somebody has come who goes through all items.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// As they were when it began.
    buckets: Buckets,
    next: u32,
}

impl Store {
    /// Begins to go through all items.
    pub fn walk(&self) -> Walk {
        Walk {
            buckets: self.index.buckets(),
            next: 0,
        }
    }

    /// Calls `each` with the headers and keys of some items that are alive; returns whether there may be
    /// more. What is there from the walk's beginning to its end is met once, what comes or goes meanwhile
    /// once or not at all.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn walk_on(
        &self,
        walk: &mut Walk,
        mut each: impl FnMut(&ItemHeader, &[u8]),
    ) -> Result<bool, OpError> {
        let end = walk.buckets.count().min(walk.next + BUCKETS_AT_ONCE);
        for number in walk.next..end {
            self.index.each_of(&walk.buckets, number, |word| {
                let header = self.header(word.place())?;
                let mut key = KeyCopy::default();
                let key = key.read(&self.items, word.place(), &header)?;
                if !header.expired(self.clock.into()) {
                    each(&header, key);
                }
                Ok(())
            })?;
        }
        walk.next = end;
        Ok(end < walk.buckets.count())
    }

    /// The Unix time in seconds at which the store's clock is at `at`.
    pub fn unix_s(&self, at: u32) -> i64 {
        self.epoch_s.saturating_add(at.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::store::Limits;
    use crate::testing;

    #[test]
    fn each_item_is_met_once_however_the_index_grows_meanwhile() {
        let shared = testing::shared(Limits::DEFAULT);
        let set = |n: u32| {
            let key = format!("key{n}");
            shared.set(key.as_bytes(), 0, 0, b"").unwrap();
        };
        // The index begins with 64 buckets, and then has neither a power of two of them nor the
        // double of what it had.
        for (before, meanwhile) in [(0, 0), (300, 0), (350, 20_000), (30_000, 50)] {
            shared.with(|store| store.flush()).unwrap();
            (0..before).for_each(set);
            let mut met = BTreeMap::new();
            let (mut walk, mut others) = (shared.with(|store| store.walk()), before..);
            loop {
                let note = |_: &_, key: &[u8]| {
                    *met.entry(key.to_vec()).or_insert(0) += 1;
                };
                if !shared.with(|store| store.walk_on(&mut walk, note)).unwrap() {
                    break;
                }
                others.by_ref().take(meanwhile).for_each(set);
            }
            assert!(
                met.values().all(|times| *times == 1),
                "{before} {meanwhile}"
            );
            for n in 0..before {
                assert!(met.contains_key(format!("key{n}").as_bytes()), "key{n}");
            }
        }
    }

    #[test]
    fn what_has_expired_is_not_met() {
        let shared = testing::shared(Limits::DEFAULT);
        shared.set(b"a", 0, 0, b"").unwrap();
        shared.set(b"b", 0, 10, b"").unwrap();
        shared.tick(11).unwrap();
        let mut met = Vec::new();
        shared
            .with(|store| {
                let mut walk = store.walk();
                while store.walk_on(&mut walk, |_, key| met.push(key.to_vec()))? {}
                Ok::<_, fabric::OpError>(())
            })
            .unwrap();
        assert_eq!(met, [b"a"]);
    }
}
