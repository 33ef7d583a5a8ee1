//! The choice of the segment to clean, and of the items that stay.

use std::cmp::Ordering;

use super::{FREQUENCIES, Queue, Segment, SegmentNumber, Segments};

/// What is to become of the items of a segment that is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleaningMode {
    /// All stay: there are enough holes between them.
    Compact,
    /// Those that were not used go.
    Evict,
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

impl Segments {
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
    pub(super) fn is_dead(&self, main: u32, young: u32) -> bool {
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

    pub(super) fn take_victim(&mut self, number: u32, queue: Queue) {
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

    pub(super) fn is_sparse(&self, number: u32) -> bool {
        // What is left over behind the last item would be left over anywhere.
        let Segment { used, live, .. } = self.segments[number as usize];
        u64::from(live) * 10 <= u64::from(used) * Self::SPARSE_TENTHS
    }
}
