//! The choice of the segment to clean, and of the items that stay.

use std::cmp::Ordering;

use super::{FREQUENCIES, Queue, Segment, SegmentNumber, Segments};

/// Mode of a cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleaningMode {
    /// All items stay: the holes between them are enough.
    Compact,
    /// Unused items are evicted.
    Evict,
}

/// The items of a main segment that stay at an eviction: the most used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Items above this frequency stay; at least 1.
    above: u16,
    /// Bytes of items of just this frequency that stay.
    equal: u32,
    /// Bytes that stay in all, as frequencies may rise meanwhile.
    all: u32,
}

impl Retention {
    /// Whether an item of this frequency stays.
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
    /// Chooses a segment to clean and takes it out of its queue; [`Segments::recycle`] or
    /// [`Segments::put_back`] follows. `None` if none is worth it, or eviction is needed and
    /// not allowed.
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
        // A queue has at least two.
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

    /// Whether a main segment had no use since a young one was opened: the young items are
    /// newer than its last use.
    pub(super) fn is_dead(&self, main: u32, young: u32) -> bool {
        self.segments[main as usize].used_at < self.segments[young as usize].opened
    }

    /// The retention of a segment that is evicted.
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
            self.clear_free_list_of(number);
        }
    }

    /// Half of the holes per segment, if all holes together are one segment long.
    pub fn half_of_holes(&self) -> u32 {
        self.len / (2 * self.count() as u32)
    }

    /// Chooses the segment with the most holes, if these have at least `least` bytes; all its
    /// items stay. The open young segment may be chosen, and is then closed.
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
            self.clear_free_list();
        }
        Some((SegmentNumber(number), queue, CleaningMode::Compact))
    }

    pub(super) fn is_sparse(&self, number: u32) -> bool {
        // The rest behind the last item does not count: it would be lost anywhere.
        let Segment { used, live, .. } = self.segments[number as usize];
        u64::from(live) * 10 <= u64::from(used) * Self::SPARSE_TENTHS
    }
}
