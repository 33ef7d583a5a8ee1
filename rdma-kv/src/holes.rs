//! Holes in the segment that new items go to: memory that the next item of the same length takes before
//! any other. In a store that may not evict all holes are here, and longer ones are divided.
//!
//! A store whose items are set again and again would else write through several whole segments in
//! turn, and meet only memory that has left the caches. Holes elsewhere are not filled: what is put there would
//! be as old as what is around it, and leave with that.
//!
//! What was given back may still be [borrowed](crate::borrows), so it is not used before the hazard pointers have been looked at. A
//! look costs something for each client that borrows; so then it is for many holes at a time.

use std::collections::BTreeMap;

use crate::layout::ItemAddress;

/// Bytes that are given back for each client that borrows before there is a look: little enough to
/// stay in the caches.
const BYTES_PER_LOOK: u64 = 64 << 10;

/// Memory of one segment that was given back.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    /// Since the last look.
    fresh: Vec<(ItemAddress, u32)>,
    fresh_bytes: u64,
    /// Free to be used, by their bytes.
    ready: BTreeMap<u32, Vec<ItemAddress>>,
    /// For [`Holes::is_worn`].
    random: u64,
}

/// Of so many holes one is worn.
const WEAR: u64 = 16;

impl Holes {
    /// What was here is gone.
    pub(crate) fn add(&mut self, address: ItemAddress, room: u32) {
        self.fresh.push((address, room));
        self.fresh_bytes += u64::from(room);
    }

    /// Whether it is time to look at the hazard pointers of so many clients, and then to
    /// [admit](Holes::admit).
    pub(crate) fn is_look_due(&self, borrowers: usize) -> bool {
        !self.fresh.is_empty() && self.fresh_bytes >= BYTES_PER_LOOK * borrowers as u64
    }

    /// After a look: all that is not borrowed may be used. The rest stays a hole until its segment is
    /// cleaned.
    pub(crate) fn admit(&mut self, is_borrowed: impl Fn(ItemAddress) -> bool) {
        self.fresh_bytes = 0;
        for (address, room) in std::mem::take(&mut self.fresh) {
            if !is_borrowed(address) {
                self.add_ready(address, room);
            }
        }
    }

    /// A hole of exactly so many bytes: the newest, which is the likeliest to be in a cache.
    pub(crate) fn take(&mut self, room: u32) -> Option<ItemAddress> {
        self.ready.get_mut(&room)?.pop()
    }

    /// A hole of more bytes, of which at least `rest` remain: the shortest, with its bytes.
    pub(crate) fn take_longer(&mut self, room: u32, rest: u32) -> Option<(ItemAddress, u32)> {
        let mut longer = self.ready.range_mut(room.checked_add(rest)?..);
        let (len, addresses) = longer.find(|(_, addresses)| !addresses.is_empty())?;
        Some((addresses.pop()?, *len))
    }

    /// A hole that is not borrowed.
    pub(crate) fn add_ready(&mut self, address: ItemAddress, room: u32) {
        self.ready.entry(room).or_default().push(address);
    }

    /// Holes there are not to be filled any more.
    pub(crate) fn forget(&mut self, is_there: impl Fn(ItemAddress) -> bool) {
        self.fresh.retain(|(address, _)| !is_there(*address));
        self.ready.retain(|_, addresses| {
            addresses.retain(|address| !is_there(*address));
            !addresses.is_empty()
        });
    }

    /// Whether there is one for [`Holes::take`].
    pub(crate) fn has(&self, room: u32) -> bool {
        self.ready
            .get(&room)
            .is_some_and(|addresses| !addresses.is_empty())
    }

    /// Whether the next hole is to stay one, by chance. A reader tells an item from another at the same address
    /// by the low bits of its generation. If one key, set again and again, had two addresses in turn, both
    /// would be the same once in 131,072 sets; so an address is used a few times only, and new ones follow.
    pub(crate) fn is_worn(&mut self) -> bool {
        // Knuth's generator (MMIX), whose upper bits are good.
        let next = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = next.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 32).is_multiple_of(WEAR)
    }

    /// They are not to be filled any more.
    pub(crate) fn clear(&mut self) {
        *self = Holes {
            random: self.random,
            ..Holes::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_is_used_for_long() {
        let mut holes = Holes::default();
        let uses: Vec<bool> = (0..1 << 20).map(|_| holes.is_worn()).collect();
        let longest = uses.split(|worn| *worn).map(<[bool]>::len).max();
        assert!(
            longest.is_some_and(|uses| (16..400).contains(&uses)),
            "{longest:?}"
        );
    }

    #[test]
    fn holes_are_filled_by_their_like_once_hazards_were_looked_at() {
        let mut holes = Holes::default();
        for n in 0..4 {
            holes.add(ItemAddress(n), 32 << (n / 3));
        }
        assert!(holes.is_look_due(0) && !holes.is_look_due(1));
        assert!(!holes.has(32));
        holes.admit(|address| address == ItemAddress(1));
        assert!(!holes.is_look_due(0));
        assert!(holes.has(32) && holes.has(64) && !holes.has(16));
        let taken = [32, 32, 32, 64, 64].map(|room| holes.take(room));
        let expected = [Some(2), Some(0), None, Some(3), None];
        assert_eq!(taken, expected.map(|address| address.map(ItemAddress)));
        holes.add(ItemAddress(7), 48 << 10);
        assert!(!holes.is_look_due(1));
        holes.add(ItemAddress(8), 16 << 10);
        assert!(holes.is_look_due(1) && !holes.is_look_due(2));
        holes.clear();
        assert!(!holes.is_look_due(0));
    }
}
