//! Free list: holes in the open segment of the young queue, which the next item of the same length fills
//! before any other memory. In a store that may not evict, the list has all holes, and splits long ones.
//!
//! Without it, a store whose items are set again and again would write through several whole segments in
//! turn, and meet only memory that has left the caches. Holes in other segments stay: a new item there
//! would count as old as its neighbours, and leave with them.
//!
//! Memory that was given back may still be [borrowed](crate::protocol::hazards). So a hole is reused only after a
//! scan of the hazard pointers. A scan costs time for each borrowing client, and so covers many holes.

use std::collections::BTreeMap;

use crate::protocol::layout::ItemAddress;

/// Bytes given back per borrowing client between two scans: few enough to stay in the caches.
const BYTES_PER_SCAN: u64 = 64 << 10;

/// Holes by state: not yet scanned for, or ready.
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Holes since the last scan, with their bytes.
    fresh: Vec<(ItemAddress, u32)>,
    fresh_bytes: u64,
    /// Holes that may be reused, by their bytes.
    ready: BTreeMap<u32, Vec<ItemAddress>>,
    /// State of [`FreeList::retires_next`].
    random: fastrand::Rng,
}

impl Default for FreeList {
    fn default() -> Self {
        FreeList {
            fresh: Vec::new(),
            fresh_bytes: 0,
            ready: BTreeMap::new(),
            random: fastrand::Rng::with_seed(1),
        }
    }
}

/// One hole in this many, at random, is retired.
const WEAR: u64 = 16;

impl FreeList {
    /// Adds a hole.
    pub(crate) fn add(&mut self, address: ItemAddress, room: u32) {
        self.fresh.push((address, room));
        self.fresh_bytes += u64::from(room);
    }

    /// Whether a scan of the hazard pointers of so many clients is due, and then
    /// [`FreeList::admit`].
    pub(crate) fn is_scan_due(&self, borrowers: usize) -> bool {
        !self.fresh.is_empty() && self.fresh_bytes >= BYTES_PER_SCAN * borrowers as u64
    }

    /// After a scan: makes holes ready that are not borrowed. The others stay unused until their segment
    /// is cleaned.
    pub(crate) fn admit(&mut self, is_borrowed: impl Fn(ItemAddress) -> bool) {
        self.fresh_bytes = 0;
        for (address, room) in std::mem::take(&mut self.fresh) {
            if !is_borrowed(address) {
                self.add_ready(address, room);
            }
        }
    }

    /// Takes the newest hole of exactly `room` bytes, which is the likeliest to be in a cache.
    pub(crate) fn take(&mut self, room: u32) -> Option<ItemAddress> {
        self.ready.get_mut(&room)?.pop()
    }

    /// Takes the shortest hole of at least `room + rest` bytes, and returns its length as well.
    pub(crate) fn take_longer(&mut self, room: u32, rest: u32) -> Option<(ItemAddress, u32)> {
        let mut longer = self.ready.range_mut(room.checked_add(rest)?..);
        let (len, addresses) = longer.find(|(_, addresses)| !addresses.is_empty())?;
        Some((addresses.pop()?, *len))
    }

    /// Adds a hole that is not borrowed.
    pub(crate) fn add_ready(&mut self, address: ItemAddress, room: u32) {
        self.ready.entry(room).or_default().push(address);
    }

    /// Drops holes at addresses for which `is_there` holds, so that they are not filled.
    pub(crate) fn forget(&mut self, is_there: impl Fn(ItemAddress) -> bool) {
        self.fresh.retain(|(address, _)| !is_there(*address));
        self.ready.retain(|_, addresses| {
            addresses.retain(|address| !is_there(*address));
            !addresses.is_empty()
        });
    }

    /// Whether [`FreeList::take`] would return a hole.
    pub(crate) fn has(&self, room: u32) -> bool {
        self.ready
            .get(&room)
            .is_some_and(|addresses| !addresses.is_empty())
    }

    /// Whether to retire the next hole, at random. A reader tells two items at one address apart by the low
    /// bits of their generations. If a key that is set again and again alternated between two addresses,
    /// address and bits would repeat once in 131,072 sets. So an address is reused a few times only.
    pub(crate) fn retires_next(&mut self) -> bool {
        self.random.u64(..WEAR) == 0
    }

    /// Drops all holes.
    pub(crate) fn clear(&mut self) {
        self.fresh.clear();
        self.fresh_bytes = 0;
        self.ready.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_reused_a_few_times_only() {
        let mut list = FreeList::default();
        let uses: Vec<bool> = (0..1 << 20).map(|_| list.retires_next()).collect();
        let longest = uses.split(|worn| *worn).map(<[bool]>::len).max();
        assert!(
            longest.is_some_and(|uses| (16..400).contains(&uses)),
            "{longest:?}"
        );
    }

    #[test]
    fn a_hole_is_filled_by_an_item_of_its_length_after_a_scan() {
        let mut list = FreeList::default();
        for n in 0..4 {
            list.add(ItemAddress(n), 32 << (n / 3));
        }
        assert!(list.is_scan_due(0) && !list.is_scan_due(1));
        assert!(!list.has(32));
        list.admit(|address| address == ItemAddress(1));
        assert!(!list.is_scan_due(0));
        assert!(list.has(32) && list.has(64) && !list.has(16));
        let taken = [32, 32, 32, 64, 64].map(|room| list.take(room));
        let expected = [Some(2), Some(0), None, Some(3), None];
        assert_eq!(taken, expected.map(|address| address.map(ItemAddress)));
        list.add(ItemAddress(7), 48 << 10);
        assert!(!list.is_scan_due(1));
        list.add(ItemAddress(8), 16 << 10);
        assert!(list.is_scan_due(1) && !list.is_scan_due(2));
        list.clear();
        assert!(!list.is_scan_due(0));
    }
}
