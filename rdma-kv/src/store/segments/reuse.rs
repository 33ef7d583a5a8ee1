//! Reuse of the memory of removed items (holes, by the free list) before their segment is cleaned.

use super::Queue;
use super::{Allocation, SegmentNumber, Segments, number_of, room_of};
use crate::protocol::layout::{ItemAddress, ItemHeader, UNIT};

impl Segments {
    /// Allocates memory in a hole, as [`Segments::append`] does.
    pub fn fill(&mut self, room: u32) -> Option<Allocation> {
        let allocation = self.take_hole(room)?;
        self.pin_memory(allocation.address, room);
        if let Some((rest, len)) = allocation.rest {
            self.free_list.add_ready(rest, len);
        }
        Some(allocation)
    }

    /// Takes a hole that is not borrowed.
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

    /// Fills holes in all segments, or only in the open young one.
    pub fn fill_all(&mut self, fills_all: bool) {
        self.fills_all = fills_all;
        if !fills_all {
            self.free_list.clear();
        }
    }

    /// Clients whose hazard pointers a scan reads.
    pub(super) fn borrowers(&self) -> usize {
        #[cfg(test)]
        if self.reuses_at_once {
            return 0;
        }
        self.borrows.borrowers()
    }

    /// Whether holes of a segment may be filled.
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

    /// Empties the free list, as new items go to another segment.
    pub(super) fn clear_free_list(&mut self) {
        #[cfg(test)]
        if self.reuses_at_once {
            return;
        }
        if !self.fills_all {
            self.free_list.clear();
        }
    }

    /// Removes the holes of a segment that is reused.
    pub(super) fn clear_free_list_of(&mut self, number: u32) {
        #[cfg(test)]
        if self.reuses_at_once {
            return;
        }
        let len = self.len;
        self.free_list
            .forget(|address| number_of(address, len) == SegmentNumber(number));
    }

    /// Reuses freed memory at once, for items of the same length: the worst case for readers.
    #[cfg(test)]
    pub fn reuse_at_once(&mut self) {
        self.reuses_at_once = true;
    }
}
