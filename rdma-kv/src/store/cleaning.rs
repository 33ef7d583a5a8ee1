//! Cleaning: room for new items, by compaction and eviction.

use toroid_fabric::OpError;

use super::item::{behind, write_header};
use super::{SetError, Store};
use crate::protocol::layout::{ItemAddress, ItemHeader, Marks, Slot, SlotWord};
use crate::store::segments::{Allocation, CleaningMode, Queue, Retention, SegmentNumber, room_of};

/// Cost of examining an item, in copied bytes.
const LOOK: u32 = 256;

/// Bytes to clean per byte that is stored when memory gets short: by [`Segments::SPARSE_TENTHS`]
/// fewer are needed.
const CLEANING_RATIO: u32 = 6;

/// Least number of segments of a store without eviction that keeps one for changes of present
/// items.
const KEEP_FROM: usize = 8;

/// Purpose of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Another item, or a longer one.
    More,
    /// An item as long as the one that it replaces. Each replacement leaves a hole, so the next
    /// one finds room.
    Instead,
}

/// Position of the cleaning in a segment.
#[derive(Debug)]
pub(super) struct Cursor {
    segment: SegmentNumber,
    queue: Queue,
    cleaning: CleaningMode,
    next: ItemAddress,
    /// Items of a main segment that stay at an eviction.
    retention: Retention,
}

/// A live item that is moved.
struct LiveItem {
    slot: Slot,
    from: ItemAddress,
    /// Hash of its key.
    hash: u64,
    header: ItemHeader,
}

/// Result of a step of cleaning.
pub(super) enum CleaningStep {
    /// The next item was handled, at this cost in copied bytes.
    Item { cost: u32 },
    /// The segment is free.
    Freed,
    /// An item that has to stay cannot be moved.
    Stuck,
}

impl Store {
    /// Finds `room` bytes, after cleaning if needed.
    pub(super) fn room_for(
        &mut self,
        room: u32,
        need: Need,
        queue: Queue,
    ) -> Result<ItemAddress, SetError> {
        // A few items at a time, before it is urgent.
        let mut budget = room.saturating_mul(CLEANING_RATIO).saturating_add(4 * LOOK);
        while budget > 0 && self.is_short(need, queue) && self.start_cleaning(None) {
            match self.clean_item()? {
                CleaningStep::Item { cost } => budget = budget.saturating_sub(cost),
                CleaningStep::Freed => {}
                CleaningStep::Stuck => break,
            }
        }
        // Each round frees some memory, but items with many uses may stay twice.
        for _ in 0..4 * self.segments.count() {
            if let Some(address) = self.append_new(room, need, queue)? {
                return Ok(address);
            }
            if !self.clean_segment(room, need)? {
                break;
            }
        }
        // Borrowed values are recalled before a set is refused.
        self.segments.recall_borrows();
        self.append_new(room, need, queue)?
            .ok_or(SetError::OutOfMemory)
    }

    fn append_new(
        &mut self,
        room: u32,
        need: Need,
        queue: Queue,
    ) -> Result<Option<ItemAddress>, OpError> {
        let spare = self.segments.spare();
        let kept = self.kept(need);
        // A kept segment stays reserved once it is open.
        let is_kept = kept > 0 && self.segments.free() < spare + kept;
        // An open segment without room is kept as well in a store with too many segments.
        let is_over = need == Need::More && !self.may_evict && self.segments.is_over();
        let allocation = if is_kept || is_over {
            self.segments.fill(room)
        } else {
            self.segments.append(queue, room, spare + kept)
        };
        self.address_of(allocation)
    }

    /// Address of allocated memory, after a header for the rest of its hole was written.
    fn address_of(
        &mut self,
        allocation: Option<Allocation>,
    ) -> Result<Option<ItemAddress>, OpError> {
        let Some(Allocation { address, rest }) = allocation else {
            return Ok(None);
        };
        if let Some((rest, len)) = rest {
            // A reader of the old item meets another generation before this header.
            self.start_item(address)?;
            let header = ItemHeader {
                generation: self.start_item(rest)?,
                value_len: len - ItemHeader::LEN as u32,
                ..ItemHeader::default()
            };
            write_header(&self.items, rest, &header)?;
        }
        Ok(Some(address))
    }

    /// Segments that a store without eviction keeps for changes of present items.
    fn kept(&self, need: Need) -> usize {
        let many = self.segments.count() >= KEEP_FROM;
        usize::from(need == Need::More && many && !self.may_evict)
    }

    /// Cleans a segment to its end; returns whether one became free.
    fn clean_segment(&mut self, room: u32, need: Need) -> Result<bool, OpError> {
        let holes = match need {
            Need::Instead => Some(self.segments.half_of_holes()),
            // Smaller holes would not give room for the item.
            Need::More => (!self.may_evict).then_some(room),
        };
        while self.start_cleaning(holes) {
            match self.clean_item()? {
                CleaningStep::Item { .. } => {}
                CleaningStep::Freed => return Ok(true),
                CleaningStep::Stuck => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Whether only kept memory is free and a queue will soon need more. Earlier cleaning would
    /// evict items without need. Once the spare segment is in use, the segment under cleaning
    /// comes first: new items would take the room of the items that move.
    fn is_short(&self, need: Need, queue: Queue) -> bool {
        let (spare, free) = (self.segments.spare(), self.segments.free());
        let is_full = free <= spare + self.kept(need);
        let is_moving = free < spare && self.cleaning.is_some();
        spare > 0 && is_full && (is_moving || self.segments.is_nearly_full(queue))
    }

    /// Starts cleaning a segment, if none is under way; one with at least this many bytes of
    /// holes will do. Returns whether one is under way.
    pub(super) fn start_cleaning(&mut self, holes: Option<u32>) -> bool {
        if self.cleaning.is_none() {
            let victim = self.segments.victim(self.may_evict);
            let victim = victim.or_else(|| self.segments.victim_with_holes(holes?));
            self.cleaning = victim.map(|(segment, queue, cleaning)| Cursor {
                segment,
                queue,
                cleaning,
                next: self.segments.start_of(segment),
                retention: self.segments.retention(segment),
            });
        }
        self.cleaning.is_some()
    }

    /// Moves or evicts the next item of the segment under cleaning.
    pub(super) fn clean_item(&mut self) -> Result<CleaningStep, OpError> {
        let Some(mut cursor) = self.cleaning.take() else {
            return Ok(CleaningStep::Stuck);
        };
        let at = cursor.next;
        if at == self.segments.end_of(cursor.segment) {
            let (segment, queue) = (cursor.segment, cursor.queue);
            return Ok(if self.segments.recycle_unless_pinned(segment, queue) {
                CleaningStep::Freed
            } else {
                // Another segment will do; this one is not chosen while it is
                // pinned.
                CleaningStep::Item { cost: LOOK }
            });
        }
        let header = self.header(at)?;
        cursor.next = behind(at, &header);
        let mut cost = LOOK;
        if let Some((slot, word, hash)) = self.live(&header, at)? {
            let room = room_of(header.item_len() as usize);
            let expired = header.expired(self.clock.into());
            let moved = match self.destination(&mut cursor, &header, room) {
                Some(queue) => {
                    let marks = match cursor.cleaning {
                        CleaningMode::Compact => header.marks,
                        CleaningMode::Evict => header.marks.decayed(),
                    };
                    let item = LiveItem {
                        slot,
                        from: word.address(),
                        hash,
                        header,
                    };
                    self.move_item(&item, marks, queue)?
                }
                None => false,
            };
            if moved {
                cost += room;
            } else if expired || self.may_evict {
                if !expired {
                    // There is no room to move this item, so there is none for the rest.
                    cursor.cleaning = CleaningMode::Evict;
                    self.ghosts.add(hash, cursor.queue);
                }
                self.index.clear(slot)?;
                self.lose(&header, at);
            } else {
                self.segments.put_back(cursor.segment, cursor.queue);
                return Ok(CleaningStep::Stuck);
            }
        }
        self.cleaning = Some(cursor);
        Ok(CleaningStep::Item { cost })
    }

    /// Queue that an item moves to; `None` when it is evicted.
    fn destination(&self, cursor: &mut Cursor, header: &ItemHeader, room: u32) -> Option<Queue> {
        let frequency = header.marks.frequency();
        match (cursor.cleaning, cursor.queue) {
            _ if header.expired(self.clock.into()) => None,
            (CleaningMode::Compact, queue) => Some(queue),
            (CleaningMode::Evict, Queue::Young) => (frequency > 0).then_some(Queue::Main),
            (CleaningMode::Evict, Queue::Main) => {
                let stays = cursor.retention.admits(frequency, room);
                stays.then_some(Queue::Main)
            }
        }
    }

    /// Moves an item, with other marks; returns whether there was room.
    fn move_item(&mut self, item: &LiveItem, marks: Marks, queue: Queue) -> Result<bool, OpError> {
        let len = item.header.item_len() as u32;
        let room = room_of(len as usize);
        let allocation = self.segments.append(queue, room, 0);
        let Some(to) = self.address_of(allocation)? else {
            return Ok(false);
        };
        let header = ItemHeader {
            generation: self.start_item(to)?,
            marks,
            ..item.header
        };
        write_header(&self.items, to, &header)?;
        let rest = len as usize - ItemHeader::LEN;
        self.scratch.resize(rest.max(self.scratch.len()), 0);
        let rest = &mut self.scratch[..rest];
        self.items
            .read(item.from.offset() + ItemHeader::LEN as u64, rest)?;
        self.items
            .write(to.offset() + ItemHeader::LEN as u64, rest)?;
        let word = SlotWord::new(item.hash, len, to, header.generation);
        self.index.replace(item.slot, word)?;
        self.segments
            .commit(to, room, header.exptime, marks.frequency());
        let before = item.header.marks.frequency();
        self.segments.release(item.from, room, before);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use crate::store::Limits;
    use crate::testing;

    /// A segment that is pinned during its cleaning cannot be freed. A set was refused then, although
    /// other segments could be freed.
    #[test]
    fn a_pinned_segment_does_not_stop_the_cleaning_of_others() {
        let store = testing::shared(Limits {
            memory: 4 << 20,
            item: 64 << 10,
        });
        store.with(|store| {
            let key = |n: u32| n.to_le_bytes();
            let set = |store: &mut super::Store, n| {
                let room = store.reserve(&key(n), 0, 2000).unwrap();
                store.commit(room, &key(n), &Default::default()).unwrap();
            };
            (0..3000).for_each(|n| set(store, n));
            while store.cleaning.is_none() {
                let oldest = (0..).find_map(|n| store.find(&key(n)).unwrap());
                store.used(&mut oldest.unwrap()).unwrap();
                assert!(store.start_cleaning(None));
                store.clean_item().unwrap();
            }
            let cleaned = store.cleaning.as_ref().unwrap().next;
            let all = (0..3000).filter_map(|n| store.find(&key(n)).unwrap());
            let pinned = all
                .into_iter()
                .find(|item| item.location.word.address() == cleaned);
            store.pin(&pinned.unwrap());
            assert_eq!(store.clean_segment(2048, super::Need::More), Ok(true));
            store.unpin(&pinned.unwrap());
            (3000..6000).for_each(|n| set(store, n));
        });
    }
}
