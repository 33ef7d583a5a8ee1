//! Segments that wait because clients have borrowed values in them.

use super::{SegmentNumber, Segments, number_of};
use crate::store::borrows::Borrows;

impl Segments {
    /// Frees segments that no client reads from any more: no slot leads there, so no client
    /// begins to. If too many would still wait, clients lose their borrowed values.
    pub(super) fn free_returned(&mut self) {
        self.borrows.scan();
        self.free_others();
        while self.borrowed.len() > self.count() / Self::BORROWED_SHARE && self.recall_most() {}
    }

    pub(super) fn free_others(&mut self) {
        let waited = std::mem::take(&mut self.borrowed).into_iter();
        let (borrowed, free): (Vec<u32>, Vec<u32>) =
            waited.partition(|&number| self.is_borrowed(number));
        self.borrowed = borrowed;
        self.free.extend(free);
    }

    /// Whether the last scan found an address in a segment.
    pub(super) fn is_borrowed(&self, number: u32) -> bool {
        let is_there = |address| self.number_of(address).0 == number;
        self.borrows.any(is_there)
    }

    /// Drops the client for which the most segments wait; returns whether there was one.
    pub(super) fn recall_most(&mut self) -> bool {
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

    /// Drops all clients for which segments wait.
    pub fn recall_borrows(&mut self) {
        self.borrows.scan();
        while self.recall_most() {}
    }

    /// Hazard pointers of all clients.
    pub fn borrows(&mut self) -> &mut Borrows {
        &mut self.borrows
    }
}
