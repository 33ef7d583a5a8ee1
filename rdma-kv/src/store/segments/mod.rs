//! Who owns which part of the items region: a log of segments.
//!
//! The region is divided into segments of one length. Items are appended to the open one; what is
//! removed leaves a hole, and holes are not filled, but those of the open one by items of just their
//! length ([`crate::store::free_list`]): a segment becomes free as a whole, when
//! nothing in it is live, or when the store has *cleaned* it by moving to another what is to be
//! kept. So memory is never bound to a size, and no size that was once common starves another.
//!
//! There are two queues of segments, as in S3-FIFO (Yang et al., SOSP 2023): new items go to
//! *young* ones, and what was used there goes on to *main* ones; the rest, mostly items that
//! nobody asks for again, leaves soon. In a cache that is fuller of one-time items than of others,
//! which is the common case, this keeps more of what is wanted than LRU, segmented or not, and it
//! needs no list: two bits in the item, and no lock or line that all gets share.
//!
//! The share of the young queue is a tenth at first. It follows the [ghosts](crate::store::ghosts) of keys
//! that were evicted too early. A main segment without a use since the oldest young one was opened
//! gives way first, whatever the share: a working set that nobody uses any more does not stay.
//!
//! What clients have [borrowed](crate::protocol::hazards) is not used again: a segment in which nothing lives,
//! but of which somebody still reads something, waits.
//!
//! This is bookkeeping: no byte of the region is touched here.

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::protocol::layout::{ItemAddress, ItemHeader, UNIT};
use crate::store::borrows::Borrows;
use crate::store::free_list::FreeList;

/// A segment's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentNumber(u32);

/// Which queue a segment is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// New items.
    Young,
    /// Items that were used.
    Main,
}

/// What is to become of the items of a segment that is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleaningMode {
    /// All stay: there are enough holes between them.
    Compact,
    /// Those that were not used go.
    Evict,
}

/// The bookkeeping of the items region.
#[derive(Debug)]
pub struct Segments {
    /// Bytes of a segment.
    len: u32,
    /// Those that were ever in use.
    segments: Vec<Segment>,
    /// Segments that the region has room for, and how many of them may be in use.
    most: u32,
    limit: u32,
    /// Free ones of those in use.
    free: Vec<u32>,
    /// Those that are out of use.
    withheld: Vec<u32>,
    /// Those that would be free, but for what was borrowed when somebody last looked.
    borrowed: Vec<u32>,
    borrows: Borrows,
    open: [Option<u32>; 2],
    /// In the open segment of young items, or in all.
    free_list: FreeList,
    /// FreeList are filled wherever they are, as nothing else gives memory back.
    fills_all: bool,
    /// The one that is being cleaned.
    victim: Option<u32>,
    /// What is read by somebody who does not keep others out, once for each of them.
    pinned: Vec<ItemAddress>,
    /// Full ones, the oldest first.
    sealed: [VecDeque<u32>; 2],
    /// The last that was given to a segment.
    stamp: u64,
    /// Segments ever opened: the time by which uses are told.
    opened: u64,
    /// Bytes that the young queue may have before it gives way to the main one.
    young: u64,
    /// Tests: holes are filled at once, wherever they are.
    #[cfg(test)]
    reuses_at_once: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    /// Bytes given out, from its start.
    used: u32,
    /// Bytes of these that are reserved or live.
    live: u32,
    /// Bytes of these that are reserved.
    reserved: u32,
    /// The earliest expiry of its items, or before it; `u32::MAX` when none expires.
    earliest: u32,
    /// Different each time that it is used anew.
    stamp: u64,
    /// When it was opened, by [`Segments::opened`].
    opened: u64,
    /// When one of its items was used last.
    used_at: u64,
    /// Bytes of its items that were used so often since they were moved.
    by_frequency: [u32; FREQUENCIES],
}

/// How often an item may have been used: see [`Marks::frequency`](crate::protocol::layout::Marks::frequency).
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
    /// Some bytes that were used so often are no more. What somebody saw of an item may be older than
    /// the last use, so this may be told of the wrong ones.
    fn uncount(&mut self, frequency: u16, room: u32) {
        let count = &mut self.by_frequency[usize::from(frequency)];
        *count = count.saturating_sub(room);
    }
}

/// Which items of a main segment stay when it is cleaned: those that were used most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// All that were used more often than this, which is at least once.
    above: u16,
    /// Bytes of those that were used just so often.
    equal: u32,
    /// Bytes of all, which may be used more often meanwhile.
    all: u32,
}

impl Retention {
    /// Whether an item stays that was used so often.
    pub fn admits(&mut self, frequency: u16, room: u32) -> bool {
        let is_kept = room <= self.all
            && match frequency.cmp(&self.above) {
                Ordering::Greater => true,
                Ordering::Equal => room <= self.equal,
                Ordering::Less => false,
            };
        if is_kept {
            self.all -= room;
            if frequency == self.above {
                self.equal -= room;
            }
        }
        is_kept
    }
}

/// Memory that was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Where it begins.
    pub address: ItemAddress,
    /// The rest of the hole that it is in, and its bytes, where something that looks like an item has to be:
    /// these lead from one item to the next.
    pub rest: Option<(ItemAddress, u32)>,
}

/// The bytes that an item takes.
pub fn room_of(len: usize) -> u32 {
    u32::try_from(len.next_multiple_of(UNIT)).unwrap_or(u32::MAX)
}

impl Segments {
    /// Segments of whose bytes, of ten, at most this many are live are compacted before anything is
    /// evicted. So at most two tenths of the memory are holes, and to free a byte costs to copy at
    /// most four.
    const SPARSE_TENTHS: u64 = 8;

    /// Of ten bytes of a main segment that is evicted, those of items that were used stay up to this
    /// many. So there is an end to it, at less cost than compaction.
    const KEPT_TENTHS: u64 = 6;

    /// The least and the most share of the young queue in tenths of the memory. The least is that
    /// of S3-FIFO's paper.
    const YOUNG_TENTHS: [u64; 2] = [1, 8];

    /// Of so many segments, one at most waits for what clients have borrowed.
    const BORROWED_SHARE: usize = 4;

    /// Fewer segments than this have none for cleaning.
    const SPARE_FROM: usize = 4;

    /// Manages `memory` of the `most` bytes of a region in segments of `len` bytes, all rounded down to
    /// whole units.
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
            young: memory * Self::YOUNG_TENTHS[0] / 10,
            #[cfg(test)]
            reuses_at_once: false,
        }
    }

    /// How many segments are free, in use or not.
    pub fn free(&self) -> usize {
        self.free.len() + self.limit.saturating_sub(self.in_use()) as usize
    }

    /// How many segments may be in use.
    pub fn count(&self) -> usize {
        self.limit as usize
    }

    /// From now on `memory` bytes may be in use; those that are too many have to be
    /// [withheld](Segments::withhold). Returns whether that is possible: the region may be too short, and
    /// there have to be enough segments for cleaning.
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

    /// Segments that have or had items, and their memory.
    fn in_use(&self) -> u32 {
        (self.segments.len() - self.withheld.len()) as u32
    }

    /// Whether more segments are in use than may be, and those that wait for what clients have borrowed
    /// are not enough to give back.
    pub fn is_over(&self) -> bool {
        self.in_use() - self.borrowed.len() as u32 > self.limit
    }

    /// Takes a free segment out of use if too many are, but none that cleaning needs.
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

    /// Segments that only cleaning may take, so that it always has somewhere to move items to.
    pub fn spare(&self) -> usize {
        usize::from(self.count() >= Self::SPARE_FROM)
    }

    /// Gives out `room` bytes at the end of a queue, leaving `spare` segments free, or those of a hole
    /// there. They are reserved: their segment is not cleaned until [`Segments::commit`] or
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

    /// As [`Segments::append`], in a hole.
    pub fn fill(&mut self, room: u32) -> Option<Allocation> {
        let allocation = self.take_hole(room)?;
        self.pin_memory(allocation.address, room);
        if let Some((rest, len)) = allocation.rest {
            self.free_list.add_ready(rest, len);
        }
        Some(allocation)
    }

    /// A hole of which nobody has borrowed what was there.
    fn take_hole(&mut self, room: u32) -> Option<Allocation> {
        if !self.free_list.has(room) && self.free_list.is_scan_due(self.borrowers()) {
            self.borrows.scan();
            let borrowed = self.borrows.sorted();
            self.free_list
                .admit(|address| borrowed.binary_search(&address).is_ok());
        }
        while let Some(address) = self.free_list.take(room) {
            #[cfg(test)]
            if self.reuses_at_once {
                return Some(Allocation {
                    address,
                    rest: None,
                });
            }
            if !self.free_list.retires_next() {
                return Some(Allocation {
                    address,
                    rest: None,
                });
            }
            if !self.fills_all {
                return None;
            }
        }
        if !self.fills_all {
            return None;
        }
        let (address, len) = self.free_list.take_longer(room, room_of(ItemHeader::LEN))?;
        let rest = ItemAddress(address.0 + room / UNIT as u32);
        Some(Allocation {
            address,
            rest: Some((rest, len - room)),
        })
    }

    /// From now on holes are filled wherever they are, or only where new items go.
    pub fn fill_all(&mut self, fills_all: bool) {
        self.fills_all = fills_all;
        if !fills_all {
            self.free_list.clear();
        }
    }

    /// Clients for each of whom a look at hazard pointers costs something.
    fn borrowers(&self) -> usize {
        #[cfg(test)]
        if self.reuses_at_once {
            return 0;
        }
        self.borrows.borrowers()
    }

    fn fits(&self, number: u32, room: u32) -> bool {
        self.segments[number as usize].used + room <= self.len
    }

    /// Uses an open segment from its start again, if nothing lives in it and nobody reads from it.
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
            self.forget_holes_of(number);
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
            self.forget_holes();
        }
        if let Some(full) = self.open[queue as usize].replace(next) {
            self.sealed[queue as usize].push_back(full);
            self.recycle_if_empty(full);
        }
        Some(next)
    }

    /// What was reserved holds an item, which expires at `exptime` unless that is 0, and which was used
    /// so often.
    pub fn commit(&mut self, address: ItemAddress, room: u32, exptime: u32, frequency: u16) {
        let number = self.number_of(address);
        let segment = &mut self.segments[number.0 as usize];
        segment.reserved -= room;
        segment.by_frequency[usize::from(frequency)] += room;
        self.note_expiry(address, exptime);
    }

    /// An item was used, and by that so often as `to` says.
    pub fn note_use(&mut self, address: ItemAddress, room: u32, from: u16, to: u16) {
        let number = self.number_of(address);
        let segment = &mut self.segments[number.0 as usize];
        segment.used_at = self.opened;
        segment.uncount(from, room);
        segment.by_frequency[usize::from(to)] += room;
    }

    /// Keys that were evicted from a queue are stored again, with so many bytes: that queue is to have as
    /// much more of the memory.
    pub fn note_ghost(&mut self, queue: Queue, room: u64) {
        let all = u64::from(self.len) * self.count() as u64;
        let [least, most] = Self::YOUNG_TENTHS.map(|tenths| all * tenths / 10);
        self.young = match queue {
            Queue::Young => self.young.saturating_add(room),
            Queue::Main => self.young.saturating_sub(room),
        };
        self.young = self.young.clamp(least, most);
    }

    /// What was reserved will hold nothing.
    pub fn abandon(&mut self, address: ItemAddress, room: u32) {
        let number = self.number_of(address);
        self.segments[number.0 as usize].reserved -= room;
        self.release_memory(address, room);
    }

    /// The memory of an item is to stay as it is, also without the item, until
    /// [`Segments::unpin`].
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

    /// The end of [`Segments::pin`].
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

    /// An item is gone that was used so often.
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

    /// Whether holes in a segment are for new items.
    fn may_be_filled(&self, number: u32) -> bool {
        #[cfg(test)]
        if self.reuses_at_once {
            return true;
        }
        if self.fills_all {
            self.victim != Some(number)
        } else {
            self.open[Queue::Young as usize] == Some(number)
        }
    }

    /// New items go to another segment from now on.
    fn forget_holes(&mut self) {
        #[cfg(test)]
        if self.reuses_at_once {
            return;
        }
        if !self.fills_all {
            self.free_list.clear();
        }
    }

    /// A segment is used anew, or is going to be.
    fn forget_holes_of(&mut self, number: u32) {
        #[cfg(test)]
        if self.reuses_at_once {
            return;
        }
        let len = self.len;
        self.free_list
            .forget(|address| number_of(address, len) == SegmentNumber(number));
    }

    /// An item now expires at `exptime`, unless that is 0.
    pub fn note_expiry(&mut self, address: ItemAddress, exptime: u32) {
        if exptime != 0 {
            let number = self.number_of(address);
            let segment = &mut self.segments[number.0 as usize];
            segment.earliest = segment.earliest.min(exptime);
        }
    }

    /// A segment worth cleaning, taken out of its queue: [`Segments::recycle`] it afterwards, or
    /// [`Segments::put_back`]. `None` if there is none, or only by an eviction that is not allowed.
    pub fn victim(&mut self, may_evict: bool) -> Option<(SegmentNumber, Queue, CleaningMode)> {
        let sealed = [Queue::Young, Queue::Main].map(|queue| {
            let numbers = self.sealed[queue as usize].iter().copied();
            let idle = numbers.filter(|&n| self.segments[n as usize].reserved == 0);
            (queue, idle.collect::<Vec<u32>>())
        });
        let all = sealed
            .iter()
            .flat_map(|(queue, numbers)| numbers.iter().map(|&number| (number, *queue)));
        let holes = |number: u32| {
            let Segment { used, live, .. } = self.segments[number as usize];
            used - live
        };
        let sparse = all.filter(|&(number, _)| self.is_sparse(number));
        let sparsest = sparse.max_by_key(|&(number, _)| holes(number));
        let [(_, young), (_, main)] = &sealed;
        // Fewer than two would be no queue.
        let enough = young.len() as u64 >= (self.young / u64::from(self.len)).max(2);
        let oldest = match (young.first(), main.first()) {
            (Some(&young), Some(&main)) if enough && self.is_dead(main, young) => {
                Some((main, Queue::Main))
            }
            (Some(&young), _) if enough => Some((young, Queue::Young)),
            (_, Some(&main)) => Some((main, Queue::Main)),
            (Some(&young), None) => Some((young, Queue::Young)),
            (None, None) => None,
        };
        let (number, queue, cleaning) = match (sparsest, oldest) {
            (Some((number, queue)), _) => (number, queue, CleaningMode::Compact),
            (None, Some((number, queue))) if may_evict => (number, queue, CleaningMode::Evict),
            _ => return None,
        };
        self.take_victim(number, queue);
        Some((SegmentNumber(number), queue, cleaning))
    }

    /// Whether nothing in a main segment was used since a young one was opened. So the young items are
    /// newer than the last use of any of these.
    fn is_dead(&self, main: u32, young: u32) -> bool {
        self.segments[main as usize].used_at < self.segments[young as usize].opened
    }

    /// Which items of a segment stay when it is evicted.
    pub fn retention(&self, number: SegmentNumber) -> Retention {
        let all = (u64::from(self.len) * Self::KEPT_TENTHS / 10) as u32;
        let Segment { by_frequency, .. } = self.segments[number.0 as usize];
        let (mut above, mut equal) = (FREQUENCIES - 1, all);
        while above > 1
            && let Some(left) = equal.checked_sub(by_frequency[above])
        {
            (above, equal) = (above - 1, left);
        }
        Retention {
            above: above as u16,
            equal,
            all,
        }
    }

    fn take_victim(&mut self, number: u32, queue: Queue) {
        self.sealed[queue as usize].retain(|&other| other != number);
        self.victim = Some(number);
        if self.fills_all {
            self.forget_holes_of(number);
        }
    }

    /// Half of the holes that each segment would have if all together were one segment long.
    pub fn half_of_holes(&self) -> u32 {
        self.len / (2 * self.count() as u32)
    }

    /// As [`Segments::victim`], one whose items all stay: that with the most holes, if these are at
    /// least so many bytes. It may be the one where new items go, which is then closed.
    pub fn victim_with_holes(
        &mut self,
        least: u32,
    ) -> Option<(SegmentNumber, Queue, CleaningMode)> {
        let sealed = [Queue::Young, Queue::Main]
            .into_iter()
            .flat_map(|queue| self.sealed[queue as usize].iter().map(move |&n| (n, queue)));
        let open = self.open[Queue::Young as usize].map(|open| (open, Queue::Young));
        let (holes, number, queue) = sealed
            .chain(open)
            .map(|(number, queue)| (self.segments[number as usize], number, queue))
            .filter(|(segment, ..)| segment.reserved == 0)
            .map(|(segment, number, queue)| (segment.used - segment.live, number, queue))
            .max_by_key(|&(holes, ..)| holes)?;
        if holes < least {
            return None;
        }
        self.take_victim(number, queue);
        let open = &mut self.open[Queue::Young as usize];
        if open.take_if(|open| *open == number).is_some() {
            self.forget_holes();
        }
        Some((SegmentNumber(number), queue, CleaningMode::Compact))
    }

    fn is_sparse(&self, number: u32) -> bool {
        // What is left over behind the last item would be left over anywhere.
        let Segment { used, live, .. } = self.segments[number as usize];
        u64::from(live) * 10 <= u64::from(used) * Self::SPARSE_TENTHS
    }

    /// A segment that was cleaned is free, or will be when nobody reads from it.
    pub fn recycle(&mut self, number: SegmentNumber) {
        self.empty(number);
        self.free_returned();
    }

    fn empty(&mut self, number: SegmentNumber) {
        self.victim.take_if(|victim| *victim == number.0);
        if self.fills_all {
            self.forget_holes_of(number.0);
        }
        self.stamp += 1;
        self.segments[number.0 as usize] = Segment {
            stamp: self.stamp,
            ..Segment::EMPTY
        };
        self.borrowed.push(number.0);
    }

    /// Looks which segments nobody reads from any more: no slot leads there, so nobody begins to. If
    /// too many would still have to wait, clients lose what they have borrowed.
    fn free_returned(&mut self) {
        self.borrows.scan();
        self.free_others();
        while self.borrowed.len() > self.count() / Self::BORROWED_SHARE && self.recall_most() {}
    }

    fn free_others(&mut self) {
        let waited = std::mem::take(&mut self.borrowed).into_iter();
        let (borrowed, free): (Vec<u32>, Vec<u32>) =
            waited.partition(|&number| self.is_borrowed(number));
        self.borrowed = borrowed;
        self.free.extend(free);
    }

    /// Whether somebody read from a segment at the last look.
    fn is_borrowed(&self, number: u32) -> bool {
        let is_there = |address| self.number_of(address).0 == number;
        self.borrows.any(is_there)
    }

    /// Takes away what the client has borrowed for whom the most segments wait; returns whether
    /// there was one.
    fn recall_most(&mut self) -> bool {
        let (len, borrowed, segments) = (self.len, &self.borrowed, &self.segments);
        let is_idle = |open: &u32| segments[*open as usize].live == 0;
        let idle: Vec<u32> = self.open.into_iter().flatten().filter(is_idle).collect();
        let waits = |address| {
            let SegmentNumber(number) = number_of(address, len);
            borrowed.contains(&number) || idle.contains(&number)
        };
        let recalled = self.borrows.recall_most(waits);
        self.free_others();
        recalled
    }

    /// Ends all waiting for what clients have borrowed: they lose it.
    pub fn recall_borrows(&mut self) {
        self.borrows.scan();
        while self.recall_most() {}
    }

    /// What clients have borrowed.
    pub fn borrows(&mut self) -> &mut Borrows {
        &mut self.borrows
    }

    /// A segment that was cleaned is free, unless memory in it is pinned; then it is one of its
    /// queue again. Returns which.
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

    /// A segment is not cleaned after all, and becomes the newest of its queue.
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

    /// Everything is free but what is reserved.
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

    /// A segment with an item that has expired at `clock`, perhaps.
    pub fn stale(&self, clock: u32) -> Option<SegmentNumber> {
        let mut all = self.all();
        all.find(|number| self.segments[number.0 as usize].earliest <= clock)
    }

    /// The segments that something was appended to, full ones first.
    pub fn all(&self) -> impl Iterator<Item = SegmentNumber> {
        let open = self.open.iter().flatten();
        let all = self.sealed.iter().flatten().chain(open);
        all.map(|number| SegmentNumber(*number))
    }

    /// What expires in a segment will be looked for now.
    pub fn forget_expiry(&mut self, number: SegmentNumber) {
        self.segments[number.0 as usize].earliest = u32::MAX;
    }

    /// Nothing in a segment is to be looked for before `earliest`, but for what was noted meanwhile.
    pub fn expect_expiry(&mut self, number: SegmentNumber, earliest: u32) {
        let segment = &mut self.segments[number.0 as usize];
        segment.earliest = segment.earliest.min(earliest);
    }

    /// Which of its uses a segment is in; see [`Segments::is_still`].
    pub fn stamp(&self, number: SegmentNumber) -> u64 {
        self.segments[number.0 as usize].stamp
    }

    /// Whether a segment has not been used anew since [`Segments::stamp`].
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

    /// From now on memory that is given back is used again at once, for items of the same
    /// length: the worst that can happen to a reader.
    #[cfg(test)]
    pub fn reuse_at_once(&mut self) {
        self.reuses_at_once = true;
    }
}

fn number_of(address: ItemAddress, segment_len: u32) -> SegmentNumber {
    SegmentNumber((address.offset() / u64::from(segment_len)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u32 = 1 << 12;

    fn of_memory(memory: u64) -> Segments {
        Segments::new(memory, memory, LEN)
    }

    fn fill(segments: &mut Segments, queue: Queue, room: u32) -> Vec<ItemAddress> {
        let mut addresses = vec![];
        while let Some(Allocation { address, .. }) = segments.append(queue, room, 0) {
            segments.commit(address, room, 0, 0);
            addresses.push(address);
        }
        addresses
    }

    #[test]
    fn the_whole_region_is_given_out_without_overlap() {
        let mut segments = of_memory(16 * u64::from(LEN) + 5);
        let addresses = fill(&mut segments, Queue::Young, 1024);
        let expected: Vec<ItemAddress> = (0..64).map(|n| ItemAddress(n * 64)).collect();
        assert_eq!(addresses, expected);
        assert_eq!(segments.free(), 0);
    }

    #[test]
    fn a_segment_without_live_items_is_free_again() {
        let mut segments = of_memory(4 * u64::from(LEN));
        let addresses = fill(&mut segments, Queue::Young, 1024);
        for address in &addresses[..3] {
            segments.release(*address, 1024, 0);
        }
        assert_eq!(segments.free(), 0);
        segments.release(addresses[3], 1024, 0);
        assert_eq!(segments.free(), 1);
        // The open one stays open, and is filled from its start.
        for address in &addresses[12..] {
            segments.release(*address, 1024, 0);
        }
        assert_eq!(segments.free(), 1);
        let again = segments.append(Queue::Young, LEN, 1).unwrap();
        assert_eq!(again.address, addresses[12]);
    }

    #[test]
    fn what_is_held_is_not_used_again() {
        let mut segments = of_memory(4 * u64::from(LEN));
        let addresses = fill(&mut segments, Queue::Young, LEN);
        segments.pin(addresses[0], LEN);
        segments.release(addresses[0], LEN, 0);
        assert_eq!(segments.free(), 0);
        segments.unpin(addresses[0], LEN);
        assert_eq!(segments.free(), 1);
        // Also by who began to clean it before.
        let (number, queue, _) = segments.victim(true).unwrap();
        segments.pin(addresses[1], LEN);
        segments.release(addresses[1], LEN, 0);
        assert!(!segments.recycle_unless_pinned(number, queue));
        assert_eq!(segments.free(), 1);
        segments.unpin(addresses[1], LEN);
        assert_eq!(segments.free(), 2);
    }

    #[test]
    fn holes_are_filled_where_new_items_go_and_nowhere_else() {
        let mut segments = of_memory(8 * u64::from(LEN));
        let append = |segments: &mut Segments, room| {
            let address = segments.append(Queue::Young, room, 0).unwrap().address;
            segments.commit(address, room, 0, 0);
            address
        };
        let addresses: Vec<ItemAddress> = (0..3).map(|_| append(&mut segments, 1024)).collect();
        segments.release(addresses[1], 1024, 0);
        let other = append(&mut segments, 512);
        assert!(!addresses.contains(&other));
        assert_eq!(append(&mut segments, 1024), addresses[1]);
        // Somebody reads it.
        segments.pin(addresses[0], 1024);
        segments.release(addresses[0], 1024, 0);
        segments.unpin(addresses[0], 1024);
        // Not this one, which is in the next segment, but those before it.
        let next = append(&mut segments, 1024);
        segments.release(addresses[2], 1024, 0);
        assert!(
            ![&addresses[..], &[next]]
                .concat()
                .contains(&append(&mut segments, 1024))
        );
        segments.release(next, 1024, 0);
        assert_eq!(append(&mut segments, 1024), next);
        segments.release(next, 1024, 0);
        segments.clear();
        let other = segments.append(Queue::Young, 1024, 0).unwrap();
        assert_ne!(other.address, next);
    }

    #[test]
    fn sparse_segments_are_cleaned_before_any_eviction() {
        let mut segments = of_memory(8 * u64::from(LEN));
        let addresses = fill(&mut segments, Queue::Young, 512);
        assert_eq!(segments.victim(false), None);
        segments.release(addresses[17], 512, 0);
        assert_eq!(segments.victim(false), None);
        segments.release(addresses[18], 512, 0);
        let victim = (SegmentNumber(2), Queue::Young, CleaningMode::Compact);
        assert_eq!(segments.victim(true), Some(victim));
        segments.put_back(victim.0, victim.1);
        assert_eq!(segments.victim(true), Some(victim));
        segments.recycle(victim.0);
        let oldest = (SegmentNumber(0), Queue::Young, CleaningMode::Evict);
        assert_eq!(segments.victim(true), Some(oldest));
    }

    #[test]
    fn main_items_stay_while_young_ones_are_many() {
        use Queue::{Main, Young};
        let queues = |are_used: bool, ghosts: u64| {
            let mut segments = of_memory(8 * u64::from(LEN));
            let mut main = vec![];
            for _ in 0..4 {
                let address = segments.append(Main, LEN, 0).unwrap().address;
                segments.commit(address, LEN, 0, 0);
                main.push(address);
            }
            fill(&mut segments, Young, LEN);
            if are_used {
                let use_it = |address: ItemAddress| segments.note_use(address, LEN, 0, 1);
                main.into_iter().for_each(use_it);
            }
            segments.note_ghost(Young, ghosts * u64::from(LEN));
            let mut queues = vec![];
            while let Some((number, queue, _)) = segments.victim(true) {
                segments.recycle(number);
                queues.push(queue);
            }
            queues
        };
        assert_eq!(queues(true, 0), [Young, Young, Main, Main, Main, Young]);
        // Young ones are to be more.
        assert_eq!(queues(true, 3), [Young, Main, Main, Main, Young, Young]);
        // No main one was used since there are young ones.
        assert_eq!(queues(false, 0), [Main, Main, Main, Young, Young, Young]);
    }

    #[test]
    fn what_was_used_most_stays_of_a_segment() {
        let mut segments = of_memory(4 * u64::from(LEN));
        let addresses: Vec<ItemAddress> = (0..16)
            .map(|_| {
                let address = segments.append(Queue::Main, LEN / 16, 0).unwrap().address;
                segments.commit(address, LEN / 16, 0, 0);
                address
            })
            .collect();
        let room = LEN / 16;
        // Six were used three times, six once; one of the former is gone, and one is used meanwhile.
        for address in &addresses[..6] {
            segments.note_use(*address, room, 0, 3);
        }
        for address in &addresses[6..12] {
            segments.note_use(*address, room, 0, 1);
        }
        segments.release(addresses[0], room, 3);
        let mut retention = segments.retention(segments.number_of(addresses[0]));
        let mut kept = |frequency, count: usize| {
            let takes = (0..count).map(|_| retention.admits(frequency, room));
            takes.filter(|is_kept| *is_kept).count()
        };
        // Nine are six tenths of sixteen.
        assert_eq!([kept(0, 4), kept(1, 4), kept(2, 1)], [0, 4, 1]);
        assert_eq!([kept(1, 2), kept(3, 5)], [0, 4]);
    }

    #[test]
    fn what_is_reserved_is_neither_cleaned_nor_cleared() {
        let mut segments = of_memory(2 * u64::from(LEN));
        let first = segments.append(Queue::Young, LEN, 0).unwrap().address;
        let second = segments.append(Queue::Young, LEN, 0).unwrap().address;
        assert_eq!(segments.append(Queue::Young, UNIT as u32, 0), None);
        assert_eq!(segments.victim(true), None);
        segments.clear();
        assert_eq!(segments.free(), 0);
        segments.abandon(first, LEN);
        segments.commit(second, LEN, 0, 0);
        assert_eq!(segments.free(), 1);
        assert!(segments.victim(true).is_some());
    }

    #[test]
    fn segments_with_expired_items_are_found() {
        let mut segments = of_memory(4 * u64::from(LEN));
        for exptime in [0, 9, 7, 5] {
            let address = segments.append(Queue::Young, LEN, 0).unwrap().address;
            segments.commit(address, LEN, exptime, 0);
        }
        assert_eq!(segments.stale(4), None);
        // The open one.
        assert_eq!(segments.stale(6), Some(SegmentNumber(3)));
        segments.forget_expiry(SegmentNumber(3));
        assert_eq!(segments.stale(7), Some(SegmentNumber(2)));
        segments.forget_expiry(SegmentNumber(2));
        assert_eq!(segments.stale(9), Some(SegmentNumber(1)));
    }

    #[test]
    fn segments_beyond_the_limit_are_withheld_until_it_is_raised() {
        let mut segments = Segments::new(8 * u64::from(LEN), 12 * u64::from(LEN), LEN);
        let withhold = |segments: &mut Segments| {
            let all = std::iter::from_fn(|| segments.withhold());
            all.count()
        };
        let addresses = fill(&mut segments, Queue::Young, LEN);
        assert_eq!(addresses.len(), 8);
        assert!(segments.limit_to(5 * u64::from(LEN)));
        assert_eq!((segments.count(), withhold(&mut segments)), (5, 0));
        for address in &addresses[..5] {
            segments.release(*address, LEN, 0);
        }
        // All that are too many, and what cleaning needs stays.
        assert_eq!((segments.is_over(), segments.free()), (true, 5));
        assert_eq!((withhold(&mut segments), segments.is_over()), (3, false));
        assert_eq!(fill(&mut segments, Queue::Young, LEN).len(), 2);
        // None of these is any more than before, whatever is flushed.
        segments.clear();
        assert_eq!(segments.free(), 5);
        assert!(segments.limit_to(12 * u64::from(LEN)));
        let mut addresses = fill(&mut segments, Queue::Young, LEN);
        addresses.sort_by_key(|address| address.0);
        addresses.dedup();
        assert_eq!(addresses.len(), 12);
        // Beyond the region, or too little to clean in.
        assert!(!segments.limit_to(13 * u64::from(LEN)));
        assert!(!segments.limit_to(3 * u64::from(LEN)));
        assert_eq!(segments.count(), 12);
    }
}
