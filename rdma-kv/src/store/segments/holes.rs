//! Holes: memory of items that are gone, used again before its segment is cleaned.

use super::Queue;
use super::{Allocation, SegmentNumber, Segments, number_of, room_of};
use crate::protocol::layout::{ItemAddress, ItemHeader, UNIT};

impl Segments {
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
    pub(super) fn take_hole(&mut self, room: u32) -> Option<Allocation> {
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
    pub(super) fn borrowers(&self) -> usize {
        #[cfg(test)]
        if self.reuses_at_once {
            return 0;
        }
        self.borrows.borrowers()
    }

    /// Whether holes in a segment are for new items.
    pub(super) fn may_be_filled(&self, number: u32) -> bool {
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
    pub(super) fn forget_holes(&mut self) {
        #[cfg(test)]
        if self.reuses_at_once {
            return;
        }
        if !self.fills_all {
            self.free_list.clear();
        }
    }

    /// A segment is used anew, or is going to be.
    pub(super) fn forget_holes_of(&mut self, number: u32) {
        #[cfg(test)]
        if self.reuses_at_once {
            return;
        }
        let len = self.len;
        self.free_list
            .forget(|address| number_of(address, len) == SegmentNumber(number));
    }

    /// From now on memory that is given back is used again at once, for items of the same
    /// length: the worst that can happen to a reader.
    #[cfg(test)]
    pub fn reuse_at_once(&mut self) {
        self.reuses_at_once = true;
    }
}
