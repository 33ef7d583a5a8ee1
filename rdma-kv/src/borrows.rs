//! Borrowed values: clients read them in place, so their memory must not change.
//!
//! This is reclamation by hazard pointers (Michael, IEEE TPDS 2004), across processes. A client that
//! borrows registers a region of *hazard pointers*, which the server may read and write:
//!
//! ```text
//!  0          8      64         72              576
//!  +----------+------+----------+-----+-----------+
//!  | recalled | zero | hazard 0 | ... | hazard 63 |
//!  +----------+------+----------+-----+-----------+
//! ```
//!
//! A hazard pointer is 0, or the address of an item plus 1. Only the client writes hazard pointers.
//! Only the server writes `recalled`.
//!
//! **To borrow**, the client writes the item's address to a hazard pointer, then reads the slot, then
//! the item's header and key. **To reuse memory**, the server clears or changes the slots that led
//! there, then reads all hazard pointers. Memory that a hazard pointer names is not reused. Both sides
//! have a full fence between the two steps. All these fences have one total order, and the side whose
//! fence is the second sees the store of the other: either the client sees that the slot has changed
//! and does not borrow, or the server sees the hazard pointer. So an item behind an unchanged slot stays
//! as it is, and the header and key that are read after the slot belong to that item.
//!
//! **To give back**, the client writes 0 to the hazard pointer with a Release store, which pairs with the
//! Acquire of the server's scan: the server sees the 0 after all reads of the client.
//!
//! **The server never waits for a client.** The hazard pointers of a client whose channel has ended are
//! dropped. At most a quarter of the segments wait for hazard pointers. Beyond that, or before a set is
//! refused for want of memory, the server drops the client whose hazard pointers hold the most segments.
//! Before it drops hazard pointers, the server writes `recalled`. The client reads that word after each
//! read of borrowed bytes. Bytes newer than the word come after the word: each read ends with an Acquire
//! fence, which pairs with the Release after the server's write. So such bytes are never returned.
//!
//! **Migration.** When a node leaves, the regions that it may have mapped move to fresh memory. For the
//! remaining nodes nothing changes. A write to the fresh memory waits until its old content is copied,
//! and copying begins when all remaining processes have switched, or are fenced. So a process that still
//! reads the old memory misses no write, and finds the borrowed bytes in either memory. A hazard pointer
//! that was written to the old memory is copied before the server's read of the fresh one returns, and so
//! is a slot. A fenced process neither borrows nor reads: each operation checks its fence last.
//!
//! **Revocation.** A client whose node leaves is fenced before any of its mapped pages is taken away, also
//! if it sleeps; its reads fail, and never return zeros. The server's process first switches the items to
//! fresh memory, and only then learns that the node has left. So the pages that the former member still
//! has mapped when its hazard pointers are dropped are never written again.

use std::fmt;

use toroid_fabric::Mapped;
use toroid_fabric::mapped::full_fence;

use crate::layout::{ItemAddress, LINE, Line, Word};

/// Values that a client can have borrowed at a time.
pub const HAZARDS: u32 = 64;

/// Bytes of a region of hazard pointers.
pub const HAZARDS_LEN: u64 = (1 + HAZARDS as u64 / HAZARDS_PER_LINE) * LINE as u64;

/// Where the server says that it keeps nothing for this client any more.
pub const RECALLED: u64 = 0;

const HAZARDS_PER_LINE: u64 = LINE as u64 / 8;

/// Where a hazard pointer is in its region.
pub fn hazard_offset(number: u32) -> u64 {
    LINE as u64 + u64::from(number) * 8
}

/// What is on a hazard pointer.
pub fn hazard_word(address: ItemAddress) -> u64 {
    u64::from(address.0) + 1
}

/// The address in a hazard pointer, if there is one. A client may write anything.
fn address_in(word: u64) -> Option<ItemAddress> {
    u32::try_from(word.checked_sub(1)?).ok().map(ItemAddress)
}

/// A client that may borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrower(u64);

/// The hazard pointers of all clients, as the server sees them.
#[derive(Default)]
pub struct Borrows {
    borrowers: Vec<(Borrower, Box<dyn Mapped>)>,
    admitted: u64,
    /// What was on the hazard pointers at the last look.
    addresses: Vec<(Borrower, ItemAddress)>,
    /// Tests: nobody looks at hazard pointers.
    #[cfg(test)]
    blind: bool,
}

impl Borrows {
    /// From now on looks at these hazard pointers, too. They must be read as 64 bytes at a time, whose words
    /// are whole.
    pub fn admit(&mut self, hazards: Box<dyn Mapped>) -> Borrower {
        self.admitted += 1;
        let borrower = Borrower(self.admitted);
        self.borrowers.push((borrower, hazards));
        borrower
    }

    /// Forgets a client's hazard pointers, after saying so there.
    pub fn dismiss(&mut self, borrower: Borrower) {
        self.borrowers.retain(|(other, hazards)| {
            if *other == borrower {
                // Where it cannot be written nobody reads what was borrowed, either.
                let _ = hazards.write(RECALLED, &word(1).0);
            }
            *other != borrower
        });
        self.addresses.retain(|(other, _)| *other != borrower);
    }

    /// Clients that may borrow.
    pub fn borrowers(&self) -> usize {
        self.borrowers.len()
    }

    /// Looks at all hazard pointers. To be done after the slots have changed that led to the memory that is
    /// to be used again.
    pub fn scan(&mut self) {
        self.addresses.clear();
        #[cfg(test)]
        if self.blind {
            return;
        }
        // Pairs with the borrower's, between its hazard pointer and its look at the slot.
        full_fence();
        let addresses = &mut self.addresses;
        self.borrowers.retain(|(borrower, hazards)| {
            let found = read_hazards(&**hazards, |address| addresses.push((*borrower, address)));
            // Its node has left, or its process has ended.
            found.is_ok()
        });
    }

    /// Whether an address for which `is_there` was on a hazard pointer at the last look.
    pub fn any(&self, is_there: impl Fn(ItemAddress) -> bool) -> bool {
        self.addresses.iter().any(|(_, address)| is_there(*address))
    }

    /// What was on the hazard pointers at the last look, in order.
    pub fn sorted(&self) -> Vec<ItemAddress> {
        let mut addresses: Vec<ItemAddress> =
            self.addresses.iter().map(|(_, address)| *address).collect();
        addresses.sort_unstable();
        addresses
    }

    /// Dismisses who had the most hazard pointers with addresses for which `is_there` at the last look; returns
    /// whether there was anybody.
    pub fn recall_most(&mut self, is_there: impl Fn(ItemAddress) -> bool) -> bool {
        let count = |borrower: Borrower| {
            let addresses = self.addresses.iter();
            addresses
                .filter(|(of, address)| *of == borrower && is_there(*address))
                .count()
        };
        let all = self.borrowers.iter().map(|(borrower, _)| *borrower);
        let most = all.max_by_key(|borrower| count(*borrower));
        let Some(most) = most.filter(|borrower| count(*borrower) > 0) else {
            return false;
        };
        self.dismiss(most);
        true
    }

    /// From now on hazard pointers are not looked at.
    #[cfg(test)]
    pub fn go_blind(&mut self) {
        self.blind = true;
    }
}

impl fmt::Debug for Borrows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let borrowers = self.borrowers.iter().map(|(borrower, _)| borrower);
        f.debug_list().entries(borrowers).finish()
    }
}

fn read_hazards(
    hazards: &dyn Mapped,
    mut each: impl FnMut(ItemAddress),
) -> Result<(), toroid_fabric::OpError> {
    let mut line = Line::default();
    for number in (0..HAZARDS).step_by(HAZARDS_PER_LINE as usize) {
        hazards.read(hazard_offset(number), line.bytes_mut())?;
        line.words().filter_map(address_in).for_each(&mut each);
    }
    Ok(())
}

fn word(value: u64) -> Word {
    Word(value.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use toroid_fabric::Region;

    fn hazards(words: &[(u32, u64)]) -> Region {
        let region = Region::local(HAZARDS_LEN as usize).unwrap();
        for (number, word) in words {
            region.store(hazard_offset(*number), *word).unwrap();
        }
        region
    }

    #[test]
    fn every_hazard_is_seen_and_nonsense_is_none() {
        let mut borrows = Borrows::default();
        let all: Vec<(u32, u64)> = (0..HAZARDS).map(|n| (n, u64::from(n) + 1)).collect();
        borrows.admit(Box::new(hazards(&all)));
        borrows.admit(Box::new(hazards(&[
            (0, 0),
            (1, u64::MAX),
            (63, (1 << 32) + 1),
        ])));
        assert!(!borrows.any(|_| true), "nobody has looked");
        borrows.scan();
        let addresses: Vec<u32> = borrows
            .addresses
            .iter()
            .map(|(_, address)| address.0)
            .collect();
        assert_eq!(addresses, (0..HAZARDS).collect::<Vec<u32>>());
        assert_eq!(hazard_word(ItemAddress(u32::MAX)), 1 << 32);
        assert_eq!(address_in(1 << 32), Some(ItemAddress(u32::MAX)));
    }

    #[test]
    fn who_has_most_in_the_way_is_told_and_forgotten() {
        let mut borrows = Borrows::default();
        let regions = [
            hazards(&[(0, 5), (1, 6), (2, 7)]),
            hazards(&[(3, 50), (9, 51)]),
            hazards(&[(3, 50)]),
        ];
        for region in &regions {
            borrows.admit(Box::new(region.clone()));
        }
        borrows.scan();
        let recalled = || regions.each_ref().map(|region| region.load(RECALLED));
        assert!(borrows.recall_most(|address| address.0 >= 40));
        assert_eq!(recalled(), [Ok(0), Ok(1), Ok(0)]);
        assert!(borrows.any(|address| address.0 == 49) && !borrows.any(|address| address.0 == 50));
        assert!(borrows.recall_most(|address| address.0 >= 40));
        assert!(!borrows.recall_most(|address| address.0 >= 40));
        assert_eq!(recalled(), [Ok(0), Ok(1), Ok(1)]);
        borrows.scan();
        assert_eq!(borrows.addresses.len(), 3);
    }
}
