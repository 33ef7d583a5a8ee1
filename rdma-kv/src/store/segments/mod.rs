//! Segments: allocation of the items region as a log.
//!
//! The region is divided into segments of one length. Items are appended to an open segment. A
//! removed item leaves a hole. Holes are not filled, except those of the open segment by items of
//! exactly their length ([`crate::store::free_list`]). A segment becomes free as a whole: when no
//! item in it is live, or when the store has *cleaned* it by moving the items that stay. So memory
//! is never bound to a size, and no size that was once common starves another.
//!
//! There are two queues of segments, as in S3-FIFO (Yang et al., SOSP 2023). New items go to
//! *young* segments. Items that were used there move on to *main* ones; the others, mostly items
//! that are used once, leave soon. In a cache with many one-time items, the common case, this keeps
//! more useful items than LRU, segmented or not. It needs no list: two bits in the item, and no
//! lock or line that all gets share.
//!
//! The young queue has a tenth of the memory at first. Its share follows the
//! [ghosts](crate::store::ghosts) of keys that were evicted too early. A main segment without a use
//! since the oldest young one was opened is evicted first, whatever the share: an abandoned working
//! set does not stay.
//!
//! [Borrowed](crate::protocol::hazards) memory is not reused: a segment without live items waits
//! until no client reads from it.
//!
//! This module only accounts: it touches no byte of the region.

mod ahead;
mod borrowed;
mod reuse;
#[cfg(test)]
mod tests;
mod victim;

use std::collections::VecDeque;

use crate::protocol::layout::{ItemAddress, UNIT};
use crate::store::borrows::Borrows;
use crate::store::free_list::FreeList;

pub use victim::{CleaningMode, Retention};

/// A segment's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentNumber(u32);

/// Queue of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// New items.
    Young,
    /// Items that were used.
    Main,
}

/// Accounts of the items region.
#[derive(Debug)]
pub struct Segments {
    /// Bytes of a segment.
    len: u32,
    /// Segments that were ever in use.
    segments: Vec<Segment>,
    /// Most segments of the region, and most that may be in use.
    most: u32,
    limit: u32,
    /// Free segments of those in use.
    free: Vec<u32>,
    /// Segments out of use.
    withheld: Vec<u32>,
    /// Segments that were borrowed from at the last scan, and are free otherwise.
    borrowed: Vec<u32>,
    borrows: Borrows,
    open: [Option<u32>; 2],
    /// Holes of the open young segment, or all holes.
    free_list: FreeList,
    /// Whether holes are filled everywhere: where nothing is evicted, no other memory becomes
    /// free.
    fills_all: bool,
    /// The segment that is being cleaned.
    victim: Option<u32>,
    /// Pinned items, once per pin.
    pinned: Vec<ItemAddress>,
    /// Full segments, the oldest first.
    sealed: [VecDeque<u32>; 2],
    /// Last stamp of a segment.
    stamp: u64,
    /// Segments opened so far: the clock of uses.
    opened: u64,
    /// Bytes of the region that have been populated or in use.
    populated: u64,
    /// Bytes of the young queue from which it is evicted before the main queue.
    young: u64,
    /// Tests: holes are filled at once, wherever they are.
    #[cfg(test)]
    reuses_at_once: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    /// Bytes allocated, from its start.
    used: u32,
    /// Allocated bytes that are reserved or live.
    live: u32,
    /// Allocated bytes that are reserved.
    reserved: u32,
    /// Lower bound of the expiry of its items; `u32::MAX` when none expires.
    earliest: u32,
    /// Changes each time the segment is reused.
    stamp: u64,
    /// Value of [`Segments::opened`] when it was opened.
    opened: u64,
    /// Value of [`Segments::opened`] at the last use of an item.
    used_at: u64,
    /// Bytes of its items by frequency.
    by_frequency: [u32; FREQUENCIES],
}

/// Values of [`Marks::frequency`](crate::protocol::layout::Marks::frequency).
const FREQUENCIES: usize = 4;

impl Segment {
    const EMPTY: Segment = Segment {
        used: 0,
        live: 0,
        reserved: 0,
        earliest: u32::MAX,
        stamp: 0,
        opened: 0,
        used_at: 0,
        by_frequency: [0; FREQUENCIES],
    };
}

impl Segment {
    /// Subtracts bytes from a frequency. A frequency may be older than the last use, so this
    /// can hit the wrong one.
    fn uncount(&mut self, frequency: u16, room: u32) {
        let count = &mut self.by_frequency[usize::from(frequency)];
        *count = count.saturating_sub(room);
    }
}

/// Allocated memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its address.
    pub address: ItemAddress,
    /// The rest of its hole and its length; the rest needs a header, as headers lead from one
    /// item to the next.
    pub rest: Option<(ItemAddress, u32)>,
}

/// Bytes that an item of `len` bytes occupies.
pub fn room_of(len: usize) -> u32 {
    u32::try_from(len.next_multiple_of(UNIT)).unwrap_or(u32::MAX)
}

impl Segments {
    /// Segments with at most this many tenths of live bytes are compacted before any eviction.
    /// So at most two tenths of the memory are holes, and to free a byte costs at most four
    /// copied bytes.
    const SPARSE_TENTHS: u64 = 8;

    /// Tenths of a main segment that stay at an eviction, at most. This bounds the work, at
    /// less cost than compaction.
    const KEPT_TENTHS: u64 = 6;

    /// Least and greatest share of the young queue in tenths of the memory. The least is that
    /// of the S3-FIFO paper.
    const YOUNG_TENTHS: [u64; 2] = [1, 8];

    /// One segment in this many may wait for borrowed values.
    const BORROWED_SHARE: usize = 4;

    /// Least number of segments of which one is kept for cleaning.
    const SPARE_FROM: usize = 4;

    /// Segments of `len` bytes for `memory` of the `most` bytes of a region, rounded down to
    /// units.
    pub fn new(memory: u64, most: u64, len: u32) -> Self {
        let len = (len / UNIT as u32).max(1) * UNIT as u32;
        let segments = |bytes: u64| {
            let bytes = bytes.min(ItemAddress::LIMIT * UNIT as u64);
            u32::try_from(bytes / u64::from(len)).unwrap_or(u32::MAX)
        };
        let memory = memory.min(most);
        Segments {
            len,
            segments: Vec::new(),
            most: segments(most),
            limit: segments(memory),
            free: Vec::new(),
            withheld: Vec::new(),
            borrowed: Vec::new(),
            borrows: Borrows::default(),
            open: [None; 2],
            free_list: FreeList::default(),
            fills_all: false,
            victim: None,
            pinned: Vec::new(),
            sealed: [VecDeque::new(), VecDeque::new()],
            stamp: 0,
            opened: 0,
            populated: 0,
            young: memory * Self::YOUNG_TENTHS[0] / 10,
            #[cfg(test)]
            reuses_at_once: false,
        }
    }

    /// Free segments, in use or not.
    pub fn free(&self) -> usize {
        self.free.len() + self.limit.saturating_sub(self.in_use()) as usize
    }

    /// Segments that may be in use.
    pub fn count(&self) -> usize {
        self.limit as usize
    }

    /// Limits the bytes in use to `memory`; segments beyond have to be
    /// [withheld](Segments::withhold). Returns whether that is possible: the region may be too
    /// short, or too few segments would be left for cleaning.
    pub fn limit_to(&mut self, memory: u64) -> bool {
        let limit = u32::try_from(memory / u64::from(self.len)).unwrap_or(u32::MAX);
        if limit > self.most || limit < Self::SPARE_FROM as u32 {
            return false;
        }
        let young = u128::from(self.young) * u128::from(limit) / u128::from(self.limit.max(1));
        (self.limit, self.young) = (limit, young as u64);
        true
    }

    /// Takes a free segment, or brings one into use.
    fn take_free(&mut self) -> Option<u32> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        if self.in_use() >= self.limit {
            return None;
        }
        Some(self.withheld.pop().unwrap_or_else(|| {
            self.segments.push(Segment::EMPTY);
            self.segments.len() as u32 - 1
        }))
    }

    /// Segments in use.
    fn in_use(&self) -> u32 {
        (self.segments.len() - self.withheld.len()) as u32
    }

    /// Whether more segments are in use than may be, even without those that wait for borrowed
    /// values.
    pub fn is_over(&self) -> bool {
        self.in_use() - self.borrowed.len() as u32 > self.limit
    }

    /// Takes a free segment out of use if there are too many, but none that cleaning needs.
    pub fn withhold(&mut self) -> Option<SegmentNumber> {
        if self.in_use() <= self.limit {
            return None;
        }
        if self.free.len() <= self.spare() && !self.borrowed.is_empty() {
            self.free_returned();
        }
        if self.free.len() <= self.spare() {
            return None;
        }
        let number = self.free.pop()?;
        self.withheld.push(number);
        Some(SegmentNumber(number))
    }

    /// Whether a queue will soon need another segment.
    pub fn is_nearly_full(&self, queue: Queue) -> bool {
        let open = self.open[queue as usize];
        open.is_none_or(|open| self.segments[open as usize].used >= self.len / 8 * 7)
    }

    /// Segments that only cleaning may take, so that it can always move items.
    pub fn spare(&self) -> usize {
        usize::from(self.count() >= Self::SPARE_FROM)
    }

    /// Allocates `room` bytes at the end of a queue, leaving `spare` segments free, or in a
    /// hole. They are reserved: their segment is not cleaned until [`Segments::commit`] or
    /// [`Segments::release`].
    pub fn append(&mut self, queue: Queue, room: u32, spare: usize) -> Option<Allocation> {
        if queue == Queue::Young
            && let Some(allocation) = self.fill(room)
        {
            return Some(allocation);
        }
        if room > self.len {
            return None;
        }
        let open = self.open[queue as usize];
        let open = open.filter(|&open| self.fits(open, room) || self.starts_over(open));
        let number = match open {
            Some(open) => open,
            None => self.open_another(queue, spare)?,
        };
        let segment = &mut self.segments[number as usize];
        let at = u64::from(number) * u64::from(self.len) + u64::from(segment.used);
        segment.used += room;
        segment.live += room;
        segment.reserved += room;
        let address = ItemAddress((at / UNIT as u64) as u32);
        Some(Allocation {
            address,
            rest: None,
        })
    }

    fn fits(&self, number: u32, room: u32) -> bool {
        self.segments[number as usize].used + room <= self.len
    }

    /// Reuses an open segment from its start, if it has neither live items nor readers.
    fn starts_over(&mut self, number: u32) -> bool {
        if self.segments[number as usize].live > 0 {
            return false;
        }
        self.borrows.scan();
        let is_borrowed = self.is_borrowed(number);
        if !is_borrowed {
            self.stamp += 1;
            let segment = &mut self.segments[number as usize];
            (segment.used, segment.earliest) = (0, u32::MAX);
            segment.stamp = self.stamp;
            segment.by_frequency = [0; FREQUENCIES];
            self.clear_free_list_of(number);
        }
        !is_borrowed
    }

    fn open_another(&mut self, queue: Queue, spare: usize) -> Option<u32> {
        if self.free() <= spare && !self.borrowed.is_empty() {
            self.free_returned();
        }
        if self.free() <= spare {
            return None;
        }
        let next = self.take_free()?;
        self.opened += 1;
        let segment = &mut self.segments[next as usize];
        segment.opened = self.opened;
        if queue == Queue::Young {
            self.clear_free_list();
        }
        if let Some(full) = self.open[queue as usize].replace(next) {
            self.sealed[queue as usize].push_back(full);
            self.recycle_if_empty(full);
        }
        Some(next)
    }

    /// Commits reserved memory to an item with this expiry (0 for none) and frequency.
    pub fn commit(&mut self, address: ItemAddress, room: u32, exptime: u32, frequency: u16) {
        let number = self.number_of(address);
        let segment = &mut self.segments[number.0 as usize];
        segment.reserved -= room;
        segment.by_frequency[usize::from(frequency)] += room;
        self.note_expiry(address, exptime);
    }

    /// Notes a use of an item, which changes its frequency.
    pub fn note_use(&mut self, address: ItemAddress, room: u32, from: u16, to: u16) {
        let number = self.number_of(address);
        let segment = &mut self.segments[number.0 as usize];
        segment.used_at = self.opened;
        segment.uncount(from, room);
        segment.by_frequency[usize::from(to)] += room;
    }

    /// Notes that evicted keys of a queue are stored again, with this many bytes, by which its
    /// share of the memory grows.
    pub fn note_ghost(&mut self, queue: Queue, room: u64) {
        let all = u64::from(self.len) * self.count() as u64;
        let [least, most] = Self::YOUNG_TENTHS.map(|tenths| all * tenths / 10);
        self.young = match queue {
            Queue::Young => self.young.saturating_add(room),
            Queue::Main => self.young.saturating_sub(room),
        };
        self.young = self.young.clamp(least, most);
    }

    /// Frees reserved memory.
    pub fn abandon(&mut self, address: ItemAddress, room: u32) {
        let number = self.number_of(address);
        self.segments[number.0 as usize].reserved -= room;
        self.release_memory(address, room);
    }

    /// Pins the memory of an item until [`Segments::unpin`], even if the item is removed.
    pub fn pin(&mut self, address: ItemAddress, room: u32) {
        self.pinned.push(address);
        self.pin_memory(address, room);
    }

    fn pin_memory(&mut self, address: ItemAddress, room: u32) {
        let number = self.number_of(address);
        let segment = &mut self.segments[number.0 as usize];
        segment.live += room;
        segment.reserved += room;
    }

    /// Unpins the memory of an item.
    pub fn unpin(&mut self, address: ItemAddress, room: u32) {
        if let Some(at) = self.pinned.iter().position(|pinned| *pinned == address) {
            self.pinned.swap_remove(at);
        }
        let SegmentNumber(number) = self.number_of(address);
        let segment = &mut self.segments[number as usize];
        segment.live -= room;
        segment.reserved -= room;
        self.recycle_if_empty(number);
    }

    /// Frees an item of this frequency.
    pub fn release(&mut self, address: ItemAddress, room: u32, frequency: u16) {
        let number = self.number_of(address);
        self.segments[number.0 as usize].uncount(frequency, room);
        self.release_memory(address, room);
    }

    fn release_memory(&mut self, address: ItemAddress, room: u32) {
        let SegmentNumber(number) = self.number_of(address);
        self.segments[number as usize].live -= room;
        if self.may_be_filled(number) && !self.pinned.contains(&address) {
            self.free_list.add(address, room);
        }
        #[cfg(test)]
        if self.reuses_at_once {
            return;
        }
        self.recycle_if_empty(number);
    }

    /// Notes that an item expires at `exptime`, unless that is 0.
    pub fn note_expiry(&mut self, address: ItemAddress, exptime: u32) {
        if exptime != 0 {
            let number = self.number_of(address);
            let segment = &mut self.segments[number.0 as usize];
            segment.earliest = segment.earliest.min(exptime);
        }
    }

    /// Frees a segment that was cleaned, as soon as no client reads from it.
    pub fn recycle(&mut self, number: SegmentNumber) {
        self.empty(number);
        self.free_returned();
    }

    fn empty(&mut self, number: SegmentNumber) {
        self.victim.take_if(|victim| *victim == number.0);
        if self.fills_all {
            self.clear_free_list_of(number.0);
        }
        self.stamp += 1;
        self.segments[number.0 as usize] = Segment {
            stamp: self.stamp,
            ..Segment::EMPTY
        };
        self.borrowed.push(number.0);
    }

    /// Frees a segment that was cleaned, unless memory in it is pinned: then it returns to its
    /// queue. Returns whether it is free.
    pub fn recycle_unless_pinned(&mut self, number: SegmentNumber, queue: Queue) -> bool {
        let pinned = self.segments[number.0 as usize].reserved > 0;
        self.victim = None;
        if pinned {
            self.sealed[queue as usize].push_back(number.0)
        } else {
            self.recycle(number)
        }
        !pinned
    }

    /// Returns a segment to its queue uncleaned, as the newest.
    pub fn put_back(&mut self, number: SegmentNumber, queue: Queue) {
        self.victim = None;
        self.sealed[queue as usize].push_back(number.0);
        self.recycle_if_empty(number.0);
    }

    fn recycle_if_empty(&mut self, number: u32) {
        if self.segments[number as usize].live > 0 {
            return;
        }
        for sealed in &mut self.sealed {
            if let Some(at) = sealed.iter().position(|&other| other == number) {
                sealed.remove(at);
                self.recycle(SegmentNumber(number));
                return;
            }
        }
    }

    /// Frees all memory that is not reserved.
    pub fn clear(&mut self) {
        self.open = [None; 2];
        self.sealed = [VecDeque::new(), VecDeque::new()];
        self.free.clear();
        self.borrowed.clear();
        self.free_list.clear();
        self.victim = None;
        let mut in_use = vec![true; self.segments.len()];
        for number in &self.withheld {
            in_use[*number as usize] = false;
        }
        let in_use = (0..self.segments.len() as u32).filter(|number| in_use[*number as usize]);
        for number in in_use.rev() {
            let segment = &mut self.segments[number as usize];
            segment.live = segment.reserved;
            match segment.reserved {
                0 => self.empty(SegmentNumber(number)),
                _ => self.sealed[Queue::Young as usize].push_back(number),
            }
        }
        self.free_returned();
    }

    /// A segment that may have an item that has expired at `clock`.
    pub fn stale(&self, clock: u32) -> Option<SegmentNumber> {
        let mut all = self.all();
        all.find(|number| self.segments[number.0 as usize].earliest <= clock)
    }

    /// All segments with items, full ones first.
    pub fn all(&self) -> impl Iterator<Item = SegmentNumber> {
        let open = self.open.iter().flatten();
        let all = self.sealed.iter().flatten().chain(open);
        all.map(|number| SegmentNumber(*number))
    }

    /// Forgets the expiry of a segment, which is about to be swept.
    pub fn forget_expiry(&mut self, number: SegmentNumber) {
        self.segments[number.0 as usize].earliest = u32::MAX;
    }

    /// Notes that nothing in a segment expires before `earliest`, except what was noted
    /// meanwhile.
    pub fn expect_expiry(&mut self, number: SegmentNumber, earliest: u32) {
        let segment = &mut self.segments[number.0 as usize];
        segment.earliest = segment.earliest.min(earliest);
    }

    /// Stamp of a segment; see [`Segments::is_still`].
    pub fn stamp(&self, number: SegmentNumber) -> u64 {
        self.segments[number.0 as usize].stamp
    }

    /// Whether a segment has not been reused since [`Segments::stamp`].
    pub fn is_still(&self, number: SegmentNumber, stamp: u64) -> bool {
        self.stamp(number) == stamp
    }

    /// The address behind the last item of a segment.
    pub fn end_of(&self, number: SegmentNumber) -> ItemAddress {
        let used = self.segments[number.0 as usize].used;
        ItemAddress(self.start_of(number).0 + used / UNIT as u32)
    }

    /// The bytes of a segment, from its start.
    pub fn bytes_of(&self, number: SegmentNumber) -> (u64, usize) {
        (self.start_of(number).offset(), self.len as usize)
    }

    /// The address of the first item of a segment.
    pub fn start_of(&self, number: SegmentNumber) -> ItemAddress {
        ItemAddress((u64::from(number.0) * u64::from(self.len) / UNIT as u64) as u32)
    }

    fn number_of(&self, address: ItemAddress) -> SegmentNumber {
        number_of(address, self.len)
    }
}

fn number_of(address: ItemAddress, segment_len: u32) -> SegmentNumber {
    SegmentNumber((address.offset() / u64::from(segment_len)) as u32)
}
