//! Several gets in one go.

use fabric::{Endpoint, OpError, Read};

use super::{Item, Reader, Sought, Tried, ValueRef, Way, unless_outside};
use crate::hash::hash;
use crate::layout::{Placement, Word};

/// Keys whose items are read in one go, at most.
const KEYS: usize = 64;

/// Bytes that are read in one go, at most, but for one item.
const BYTES: usize = 1 << 20;

/// An item to be read.
struct Planned {
    /// Which of the keys.
    number: usize,
    hash: u64,
    place: Placement,
    /// Where in the buffer it goes.
    start: usize,
}

impl<E: Endpoint> Reader<E> {
    /// Gets several values, in any order: `each` gets the number of a key and what came of it. The items
    /// whose places are known are read in one go, with their slots; the rest is looked up one by one.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn get_many(
        &mut self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Sought<ValueRef<'_>>),
    ) -> Result<(), OpError> {
        self.look_many(keys, |number, sought| {
            each(number, sought.map(|item| item.value()));
        })
    }

    /// As [`Reader::get_many`], with all that is known of the items.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn look_many(
        &mut self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Sought<Item<'_>>),
    ) -> Result<(), OpError> {
        self.stats.gets += keys.len() as u64;
        let mut others = Vec::new();
        let mut next = 0;
        while next < keys.len() {
            let planned = self.plan(keys, &mut next, &mut others);
            self.read_planned(keys, &planned, &mut others, &mut each)?;
        }
        for (number, hash) in others {
            let sought = self.look_up_repeatedly(hash, keys[number], Way::Copied)?;
            self.note_use(hash, &sought);
            each(number, sought.map(|item| self.item(&item)));
        }
        Ok(())
    }

    /// Plans a batch from `next` on, and moves that behind it; whose place is not known is added to
    /// `others`.
    fn plan(
        &self,
        keys: &[&[u8]],
        next: &mut usize,
        others: &mut Vec<(usize, u64)>,
    ) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        let mut bytes = 0;
        while let Some(key) = keys.get(*next) {
            let hash = hash(self.seed, key);
            match self.places.find(hash) {
                None => others.push((*next, hash)),
                Some(place) => {
                    let len = place.len as usize;
                    if planned.len() == KEYS || !planned.is_empty() && bytes + len > BYTES {
                        break;
                    }
                    planned.push(Planned {
                        number: *next,
                        hash,
                        place,
                        start: bytes,
                    });
                    // Each aligned as a single one is, so that words travel whole.
                    bytes += len.next_multiple_of(64);
                }
            }
            *next += 1;
        }
        planned
    }

    fn read_planned(
        &mut self,
        keys: &[&[u8]],
        planned: &[Planned],
        others: &mut Vec<(usize, u64)>,
        each: &mut impl FnMut(usize, Sought<Item<'_>>),
    ) -> Result<(), OpError> {
        let unlike = self.read_all(planned);
        let unlike = match unlike {
            // A place is wrong. Which one does not matter: it happens once.
            Err(OpError::OutOfBounds { .. }) => {
                for Planned { number, hash, .. } in planned {
                    self.places.remove(*hash);
                    others.push((*number, *hash));
                }
                return Ok(());
            }
            unlike => unlike?,
        };
        for (item, unlike) in planned.iter().zip(unlike) {
            let bytes = item.start..item.start + item.place.len as usize;
            let tried = self.judge(item.place, keys[item.number], bytes, unlike);
            let tried = unless_outside(tried)?;
            match self.settle(item.hash, tried) {
                Sought::Unsettled => others.push((item.number, item.hash)),
                settled => {
                    self.note_use(item.hash, &settled);
                    each(item.number, settled.map(|item| self.item(&item)));
                }
            }
        }
        Ok(())
    }

    /// Reads all items, then what tells that they are whole; returns what it means where they are not.
    fn read_all(&mut self, planned: &[Planned]) -> Result<Vec<Option<Tried>>, OpError> {
        let end = planned
            .last()
            .map_or(0, |last| last.start + last.place.len as usize);
        if self.item.len() < end {
            self.item.resize(end, 0);
        }
        let mut words = vec![Word::default(); planned.len()];
        let mut reads = Vec::with_capacity(2 * planned.len());
        let (mut buffer, mut at) = (&mut self.item[..], 0);
        for Planned { place, start, .. } in planned {
            let (_, rest) = buffer.split_at_mut(start - at);
            let (into, rest) = rest.split_at_mut(place.len as usize);
            (buffer, at) = (rest, start + into.len());
            reads.push(Read {
                remote: &self.items,
                offset: place.word.place().offset(),
                into,
            });
        }
        let last_look = |planned: &Planned| {
            let consistency = self.consistency;
            consistency.last_look(&self.index, &self.items, planned.place)
        };
        let last: Vec<_> = planned.iter().filter_map(last_look).collect();
        for (last, word) in last.iter().zip(&mut words) {
            reads.push(Read {
                remote: last.remote,
                offset: last.offset,
                into: &mut word.0,
            });
        }
        self.stats.reads += reads.len() as u64;
        self.endpoint.read_batch(&mut reads)?;
        let is_needed = self.checks().slot;
        let all = words.iter().enumerate();
        let unlike = all.map(|(n, word)| last.get(n)?.unlike(*word).filter(|_| is_needed));
        Ok(unlike.collect())
    }
}
