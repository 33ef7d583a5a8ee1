//! Several gets in one batch.

use toroid_fabric::{Endpoint, OpError, Read};

use super::{Attempt, Consistency, ItemRef, Lookup, ReadMode, Reader, ValueRef, unless_outside};
use crate::protocol::hash::hash;
use crate::protocol::layout::{Location, SlotWord, Word};

/// Most keys of a batch.
const KEYS: usize = 64;

/// Most bytes of a batch of several items.
const BYTES: usize = 1 << 20;

/// A planned read of an item.
#[derive(Clone, Copy)]
struct Planned {
    /// Index of the key.
    number: usize,
    hash: u64,
    location: Location,
    /// Whether only its slot is known: then `len` is an upper bound, and the generation is
    /// unknown.
    is_new: bool,
    /// Offset in the buffer.
    start: usize,
}

impl<E: Endpoint> Reader<E> {
    /// Gets several values. Calls `each` in any order with the index of a key and its result.
    /// Items with cached locations are read in batches, with their slots; the others are looked
    /// up one by one.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn get_many(
        &mut self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Lookup<ValueRef<'_>>),
    ) -> Result<(), OpError> {
        self.look_many(keys, |number, lookup| {
            each(number, lookup.map(|item| item.value()));
        })
    }

    /// Looks several keys up as [`Reader::get_many`] does, with their headers.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn look_many(
        &mut self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), OpError> {
        self.stats.gets += keys.len() as u64;
        let mut others = Vec::new();
        for first in (0..keys.len()).step_by(KEYS) {
            let planned = self.plan(keys, first, &mut others)?;
            let replaced = self.read_planned(keys, planned, &mut others, &mut each)?;
            // Items that have replaced others. A slot is followed once.
            self.read_planned(keys, replaced, &mut others, &mut each)?;
        }
        for (number, hash) in others {
            let lookup = self.look_up_repeatedly(hash, keys[number], ReadMode::Copy)?;
            self.note_use(hash, &lookup);
            each(number, lookup.map(|item| self.item(&item)));
        }
        Ok(())
    }

    /// Plans a batch from key `first` on. Keys without a cached location are added to `others`.
    fn plan(
        &mut self,
        keys: &[&[u8]],
        first: usize,
        others: &mut Vec<(usize, u64)>,
    ) -> Result<Vec<Planned>, OpError> {
        let (mut planned, mut contended) = (Vec::with_capacity(KEYS), Vec::new());
        for (number, key) in keys.iter().enumerate().skip(first).take(KEYS) {
            let hash = hash(self.seed, key);
            let Some(hit) = self.locations.get(hash) else {
                others.push((number, hash));
                continue;
            };
            let of_its_kind = if hit.is_contended && self.consistency == Consistency::Strict {
                &mut contended
            } else {
                &mut planned
            };
            of_its_kind.push(Planned {
                number,
                hash,
                location: hit.location,
                is_new: false,
                start: 0,
            });
        }
        if !contended.is_empty() {
            self.look_at_slots(&contended, &mut planned, others)?;
        }
        Ok(planned)
    }

    /// Plans to read the items that the slots of contended locations lead to now.
    fn look_at_slots(
        &mut self,
        contended: &[Planned],
        planned: &mut Vec<Planned>,
        others: &mut Vec<(usize, u64)>,
    ) -> Result<(), OpError> {
        let mut words = vec![Word::default(); contended.len()];
        let slots = contended.iter().zip(&mut words);
        let reads = slots.map(|(Planned { location, .. }, word)| Read {
            remote: &self.index,
            offset: location.slot.offset(),
            into: &mut word.0,
        });
        let mut reads: Vec<_> = reads.collect();
        self.stats.reads += reads.len() as u64;
        match self.endpoint.read_batch(&mut reads) {
            Err(OpError::OutOfBounds { .. }) => {
                self.give_up(contended, others);
                return Ok(());
            }
            read => read?,
        }
        for (hit, word) in contended.iter().zip(words) {
            let word = SlotWord(word.value());
            if word == hit.location.word {
                self.locations.decay(hit.hash);
                planned.push(*hit);
                continue;
            }
            match self.behind(hit, word) {
                Some(new) => planned.push(new),
                None => self.give_up(&[*hit], others),
            }
        }
        Ok(())
    }

    /// The item that a slot leads to now, if it can be the same key's.
    fn behind(&self, hit: &Planned, word: SlotWord) -> Option<Planned> {
        let len = self.reach(word).filter(|_| word.may_be(hit.hash))?;
        let location = Location {
            word,
            generation: 0,
            len: len as u32,
            ..hit.location
        };
        Some(Planned {
            location,
            is_new: true,
            ..*hit
        })
    }

    /// Removes wrong locations from the cache; their keys are looked up.
    fn give_up(&mut self, wrong: &[Planned], others: &mut Vec<(usize, u64)>) {
        for Planned { number, hash, .. } in wrong {
            self.locations.remove(*hash);
            others.push((*number, *hash));
        }
    }

    /// Reads the planned items, as many as possible per batch; returns those that were
    /// replaced.
    fn read_planned(
        &mut self,
        keys: &[&[u8]],
        mut planned: Vec<Planned>,
        others: &mut Vec<(usize, u64)>,
        each: &mut impl FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<Vec<Planned>, OpError> {
        let (mut rest, mut replaced) = (&mut planned[..], Vec::new());
        while !rest.is_empty() {
            let count = lay_out(rest);
            let (batch, later) = rest.split_at_mut(count);
            rest = later;
            match self.read_all(batch) {
                // One of the locations is wrong. All are dropped, which happens
                // once.
                Err(OpError::OutOfBounds { .. }) => self.give_up(batch, others),
                mismatch => {
                    let all = batch.iter().zip(mismatch?);
                    for (item, mismatch) in all {
                        self.take(keys, item, mismatch, &mut replaced, others, each)?;
                    }
                }
            }
        }
        Ok(replaced)
    }

    /// Checks an item that was read, and passes it to `each` if it is whole.
    fn take(
        &mut self,
        keys: &[&[u8]],
        item: &Planned,
        mismatch: Option<Attempt>,
        replaced: &mut Vec<Planned>,
        others: &mut Vec<(usize, u64)>,
        each: &mut impl FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), OpError> {
        let (key, bytes) = (keys[item.number], item.start..item.end());
        let attempt = if item.is_new {
            self.judge_new(item.hash, item.location, key, bytes, mismatch)
        } else {
            self.judge(item.location, key, bytes, mismatch)
        };
        let attempt = unless_outside(attempt)?;
        if let Attempt::Replaced(word) = attempt
            && let Some(new) = self.behind(item, word)
        {
            replaced.push(new);
            return Ok(());
        }
        match self.settle(item.hash, attempt) {
            Lookup::Retry => others.push((item.number, item.hash)),
            settled => {
                self.note_use(item.hash, &settled);
                each(item.number, settled.map(|item| self.item(&item)));
            }
        }
        Ok(())
    }

    /// Reads all items, then the words that show whether they are whole; returns the results of
    /// those that are not.
    fn read_all(&mut self, planned: &[Planned]) -> Result<Vec<Option<Attempt>>, OpError> {
        let end = planned.last().map_or(0, Planned::end);
        if self.item.len() < end {
            self.item.resize(end, 0);
        }
        let mut words = vec![Word::default(); planned.len()];
        let mut reads = Vec::with_capacity(2 * planned.len());
        let (mut buffer, mut at) = (&mut self.item[..], 0);
        for Planned {
            location, start, ..
        } in planned
        {
            let (_, rest) = buffer.split_at_mut(start - at);
            let (into, rest) = rest.split_at_mut(location.len as usize);
            (buffer, at) = (rest, start + into.len());
            reads.push(Read {
                remote: &self.items,
                offset: location.word.address().offset(),
                into,
            });
        }
        let last_look = |planned: &Planned| {
            let consistency = self.consistency;
            consistency.last_look(&self.index, &self.items, planned.location)
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
        let mismatch = all.map(|(n, word)| last.get(n)?.mismatch(*word).filter(|_| is_needed));
        Ok(mismatch.collect())
    }
}

impl Planned {
    /// End in the buffer.
    fn end(&self) -> usize {
        self.start + self.location.len as usize
    }
}

/// Assigns offsets in the buffer to the first items; returns how many fit into one batch.
fn lay_out(planned: &mut [Planned]) -> usize {
    let mut start = 0;
    for (count, item) in planned.iter_mut().enumerate() {
        item.start = start;
        if count > 0 && item.end() > BYTES {
            return count;
        }
        // Aligned as a single item is, so that words are copied atomically.
        start = item.end().next_multiple_of(64);
    }
    planned.len()
}
