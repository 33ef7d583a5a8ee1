//! Walks through all items, a few at a time.

use toroid_fabric::OpError;

use super::Store;
use super::item::KeyCopy;
use crate::protocol::layout::{ItemHeader, SlotWord};

/// Position of a walk.
#[derive(Debug, Default)]
pub struct Walk {
    /// See [`crate::protocol::layout::Buckets::onwards`].
    at: u64,
    /// Buffer.
    words: Vec<SlotWord>,
}

impl Store {
    /// Calls `each` with headers and keys of the next few live items, usually five; returns
    /// whether there may be more. A walk meets each item that stays once, and others at most
    /// once.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn walk_on(
        &self,
        walk: &mut Walk,
        mut each: impl FnMut(&ItemHeader, &[u8]),
    ) -> Result<bool, OpError> {
        walk.words.clear();
        let Some(onwards) = self.index.walk(walk.at, &mut walk.words)? else {
            return Ok(false);
        };
        walk.at = onwards;
        let addresses = || walk.words.iter().map(|word| word.address());
        addresses().for_each(|address| self.items.fetch_ahead(address.offset()));
        for address in addresses() {
            let header = self.header(address)?;
            let mut key = KeyCopy::default();
            let key = key.read(&self.items, address, &header)?;
            if !header.expired(self.clock.into()) {
                each(&header, key);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Walk;
    use crate::store::Limits;
    use crate::testing;

    #[test]
    fn a_walk_meets_each_item_once_while_the_index_grows() {
        let shared = testing::shared(Limits::DEFAULT);
        let set = |n: u32| {
            let key = format!("key{n}");
            shared.set(key.as_bytes(), 0, 0, b"").unwrap();
        };
        // The index begins with 64 buckets. Later counts are neither a power of two nor twice the
        // earlier count.
        for (before, meanwhile) in [(0, 0), (300, 0), (350, 20_000), (9_000, 1_000)] {
            shared.with(|store| store.flush()).unwrap();
            (0..before).for_each(set);
            let mut met = BTreeMap::new();
            let (mut walk, mut others) = (Walk::default(), before..before + meanwhile);
            loop {
                let note = |_: &_, key: &[u8]| {
                    *met.entry(key.to_vec()).or_insert(0) += 1;
                };
                if !shared.with(|store| store.walk_on(&mut walk, note)).unwrap() {
                    break;
                }
                others.by_ref().take(500).for_each(set);
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
    fn a_walk_skips_expired_items() {
        let shared = testing::shared(Limits::DEFAULT);
        shared.set(b"a", 0, 0, b"").unwrap();
        shared.set(b"b", 0, 10, b"").unwrap();
        shared.tick(11).unwrap();
        let mut met = Vec::new();
        shared
            .with(|store| {
                let mut walk = Walk::default();
                while store.walk_on(&mut walk, |_, key| met.push(key.to_vec()))? {}
                Ok::<_, toroid_fabric::OpError>(())
            })
            .unwrap();
        assert_eq!(met, [b"a"]);
    }
}
