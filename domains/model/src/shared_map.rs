//! An ordered map whose versions share what they have in common.
//!
//! A clone takes constant time. A change copies one chunk of entries and the list of chunks, and
//! [`SharedMap::differences`] passes over chunks that two versions share.

use std::borrow::Borrow;
use std::sync::Arc;

/// Most entries of a chunk. A full one is split into halves.
const CHUNK: usize = 64;

/// Entries of a chunk, in order of their keys.
type Chunk<K, V> = Arc<Vec<(K, V)>>;

/// An ordered map. No chunk is empty.
#[derive(Clone, Debug)]
pub struct SharedMap<K, V> {
    chunks: Arc<Vec<Chunk<K, V>>>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        SharedMap {
            chunks: Arc::default(),
        }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let chunk = self.chunks.get(self.place(key))?;
        let at = find(chunk, key).ok()?;
        Some(&chunk[at].1)
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Entry with the greatest key up to this one.
    pub(crate) fn last_up_to<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let chunk = self.chunks.get(self.place(key))?;
        let at = match find(chunk, key) {
            Ok(at) => at,
            Err(at) => at.checked_sub(1)?,
        };
        let (key, value) = &chunk[at];
        Some((key, value))
    }

    /// Sets the value of a key. Returns the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let place = self.place(&key);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(chunk) = chunks.get_mut(place) else {
            chunks.push(Arc::new(vec![(key, value)]));
            return None;
        };
        let entries = Arc::make_mut(chunk);
        match find(entries, &key) {
            Ok(at) => Some(std::mem::replace(&mut entries[at].1, value)),
            Err(at) => {
                entries.insert(at, (key, value));
                if entries.len() > CHUNK {
                    let half = entries.split_off(CHUNK / 2);
                    chunks.insert(place + 1, Arc::new(half));
                }
                None
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key);
        let at = find(self.chunks.get(place)?, key).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let entries = Arc::make_mut(chunks.get_mut(place)?);
        let (_, value) = entries.remove(at);
        if entries.is_empty() {
            chunks.remove(place);
        }
        Some(value)
    }

    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        let (key, value) = self.chunks.first()?.first()?;
        Some((key, value))
    }

    pub(crate) fn last(&self) -> Option<(&K, &V)> {
        let (key, value) = self.chunks.last()?.last()?;
        Some((key, value))
    }

    /// All entries, in order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        entries.map(|(key, value)| (key, value))
    }

    /// Entries from the first key that is not below this one.
    pub(crate) fn iter_from<'m, Q: Ord>(
        &'m self,
        key: &Q,
    ) -> impl Iterator<Item = (&'m K, &'m V)> + use<'m, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key);
        let chunk = self.chunks.get(place).map(|chunk| chunk.as_slice());
        let chunk = chunk.unwrap_or_default();
        let at = find(chunk, key).unwrap_or_else(|at| at);
        let rest = self.chunks.iter().skip(place + 1);
        let rest = rest.flat_map(|chunk| chunk.iter());
        let entries = chunk[at..].iter().chain(rest);
        entries.map(|(key, value)| (key, value))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Chunk that has the key, if any has.
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let begins_before = |chunk: &Chunk<K, V>| {
            let first = chunk.first();
            first.is_some_and(|(first, _)| first.borrow() <= key)
        };
        let after = self.chunks.partition_point(begins_before);
        after.saturating_sub(1)
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> SharedMap<K, V> {
    /// Keys with another value than in `old`, or only in one of the two; with both values.
    pub(crate) fn differences<'m>(
        &'m self,
        old: &'m Self,
    ) -> Vec<(&'m K, Option<&'m V>, Option<&'m V>)> {
        let mut all = Vec::new();
        if Arc::ptr_eq(&self.chunks, &old.chunks) {
            return all;
        }
        let (mut ours, mut theirs) = (Cursor::new(&self.chunks), Cursor::new(&old.chunks));
        loop {
            if let (Some(a), Some(b)) = (ours.whole_chunk(), theirs.whole_chunk())
                && Arc::ptr_eq(a, b)
            {
                ours.skip_chunk();
                theirs.skip_chunk();
                continue;
            }
            match (ours.entry(), theirs.entry()) {
                (None, None) => return all,
                (Some((key, new)), before) if before.is_none_or(|(other, _)| key < other) => {
                    all.push((key, None, Some(new)));
                    ours.skip();
                }
                (after, Some((key, was))) if after.is_none_or(|(other, _)| key < other) => {
                    all.push((key, Some(was), None));
                    theirs.skip();
                }
                (Some((key, new)), Some((_, was))) => {
                    if new != was {
                        all.push((key, Some(was), Some(new)));
                    }
                    ours.skip();
                    theirs.skip();
                }
                _ => return all,
            }
        }
    }
}

/// A place among the entries of all chunks.
struct Cursor<'m, K, V> {
    chunks: &'m [Chunk<K, V>],
    at: usize,
}

impl<'m, K, V> Cursor<'m, K, V> {
    fn new(chunks: &'m [Chunk<K, V>]) -> Self {
        Cursor { chunks, at: 0 }
    }

    /// The present chunk, if the place is its begin.
    fn whole_chunk(&self) -> Option<&'m Chunk<K, V>> {
        self.chunks.first().filter(|_| self.at == 0)
    }

    fn skip_chunk(&mut self) {
        self.chunks = self.chunks.get(1..).unwrap_or_default();
        self.at = 0;
    }

    fn entry(&self) -> Option<(&'m K, &'m V)> {
        let (key, value) = self.chunks.first()?.get(self.at)?;
        Some((key, value))
    }

    fn skip(&mut self) {
        self.at += 1;
        if self
            .chunks
            .first()
            .is_some_and(|chunk| chunk.len() == self.at)
        {
            self.skip_chunk();
        }
    }
}

fn find<K: Borrow<Q>, V, Q: Ord + ?Sized>(entries: &[(K, V)], key: &Q) -> Result<usize, usize> {
    entries.binary_search_by(|(other, _)| other.borrow().cmp(key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn apply(map: &mut SharedMap<u16, u8>, model: &mut BTreeMap<u16, u8>, steps: &[(u16, u8)]) {
        for (key, value) in steps {
            if value % 3 == 0 {
                assert_eq!(map.remove(key), model.remove(key));
            } else {
                assert_eq!(map.insert(*key, *value), model.insert(*key, *value));
            }
        }
    }

    fn steps(most: usize) -> impl Strategy<Value = Vec<(u16, u8)>> {
        proptest::collection::vec((0..400_u16, any::<u8>()), 0..most)
    }

    proptest! {
        #[test]
        fn a_shared_map_is_a_map_and_knows_differences(before in steps(600), after in steps(40)) {
            let (mut map, mut model) = (SharedMap::default(), BTreeMap::new());
            apply(&mut map, &mut model, &before);
            let (old, old_model) = (map.clone(), model.clone());
            apply(&mut map, &mut model, &after);
            prop_assert!(map.iter().eq(&model) && old.iter().eq(&old_model));
            prop_assert_eq!(map.first(), model.first_key_value());
            prop_assert_eq!(map.last(), model.last_key_value());
            for key in 0..400 {
                prop_assert_eq!(map.get(&key), model.get(&key));
                prop_assert_eq!(map.last_up_to(&key), model.range(..=key).next_back());
                prop_assert!(map.iter_from(&key).take(70).eq(model.range(key..).take(70)));
            }
            let keys: std::collections::BTreeSet<&u16> = model.keys().chain(old_model.keys()).collect();
            let expected: Vec<_> = keys
                .into_iter()
                .map(|key| (key, old_model.get(key), model.get(key)))
                .filter(|(_, was, now)| was != now)
                .collect();
            prop_assert_eq!(map.differences(&old), expected);
            // Equal without a common chunk.
            let mut anew = SharedMap::default();
            for (key, value) in &model {
                anew.insert(*key, *value);
            }
            prop_assert!(anew.differences(&map).is_empty());
        }
    }

    #[test]
    fn a_change_leaves_other_chunks_shared() {
        let mut map = SharedMap::default();
        for key in 0..10_000 {
            map.insert(key, key);
        }
        let old = map.clone();
        map.insert(5_000, 0);
        let pairs = map.chunks.iter().zip(old.chunks.iter());
        let copied = pairs.filter(|(new, old)| !Arc::ptr_eq(new, old)).count();
        assert_eq!((copied, map.differences(&old).len()), (1, 1));
    }
}
