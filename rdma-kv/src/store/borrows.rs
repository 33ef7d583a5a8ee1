//! The server's side of [hazard pointers](crate::protocol::hazards): addresses that clients have
//! borrowed.

use std::fmt;

use toroid_fabric::Mapped;
use toroid_fabric::mapped::full_fence;

use crate::protocol::hazards::{HAZARDS, HAZARDS_PER_LINE, RECALLED, hazard_offset};
use crate::protocol::layout::{ItemAddress, Line, Word};

/// The address in a hazard pointer, if there is one. A client may write anything.
fn address_in(word: u64) -> Option<ItemAddress> {
    u32::try_from(word.checked_sub(1)?).ok().map(ItemAddress)
}

/// Identifies a client that may borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrower(u64);

/// The hazard pointers of all clients, as the server sees them.
#[derive(Default)]
pub struct Borrows {
    borrowers: Vec<(Borrower, Box<dyn Mapped>)>,
    admitted: u64,
    /// Content of the hazard pointers at the last scan.
    addresses: Vec<(Borrower, ItemAddress)>,
    /// Tests: scans find nothing.
    #[cfg(test)]
    blind: bool,
}

impl Borrows {
    /// Adds the hazard pointers of a client to later scans. Each line of 64 bytes must be
    /// readable with atomic words.
    pub fn admit(&mut self, hazards: Box<dyn Mapped>) -> Borrower {
        self.admitted += 1;
        let borrower = Borrower(self.admitted);
        self.borrowers.push((borrower, hazards));
        borrower
    }

    /// Writes `recalled` for a client, then drops its hazard pointers.
    pub fn dismiss(&mut self, borrower: Borrower) {
        self.borrowers.retain(|(other, hazards)| {
            if *other == borrower {
                // If it cannot be written, the client cannot read borrowed values
                // either.
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

    /// Reads all hazard pointers. Called after the slots have changed that led to memory that
    /// is to be reused.
    pub fn scan(&mut self) {
        self.addresses.clear();
        #[cfg(test)]
        if self.blind {
            return;
        }
        // Pairs with the fence of the borrower, between its hazard pointer and its read of
        // the slot.
        full_fence();
        let addresses = &mut self.addresses;
        self.borrowers.retain(|(borrower, hazards)| {
            let found = read_hazards(&**hazards, |address| addresses.push((*borrower, address)));
            // Otherwise its node has left, or its process has ended.
            found.is_ok()
        });
    }

    /// Whether the last scan found an address for which `is_there` holds.
    pub fn any(&self, is_there: impl Fn(ItemAddress) -> bool) -> bool {
        self.addresses.iter().any(|(_, address)| is_there(*address))
    }

    /// Addresses of the last scan, sorted.
    pub fn sorted(&self) -> Vec<ItemAddress> {
        let mut addresses: Vec<ItemAddress> =
            self.addresses.iter().map(|(_, address)| *address).collect();
        addresses.sort_unstable();
        addresses
    }

    /// Drops the client with the most addresses for which `is_there` holds at the last scan;
    /// returns whether there was one.
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

    /// Makes later scans find nothing.
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
    use crate::protocol::hazards::{HAZARDS_LEN, hazard_word};
    use toroid_fabric::Region;

    fn hazards(words: &[(u32, u64)]) -> Region {
        let region = Region::local(HAZARDS_LEN as usize).unwrap();
        for (number, word) in words {
            region.store(hazard_offset(*number), *word).unwrap();
        }
        region
    }

    #[test]
    fn a_scan_finds_every_hazard_and_ignores_invalid_words() {
        let mut borrows = Borrows::default();
        let all: Vec<(u32, u64)> = (0..HAZARDS).map(|n| (n, u64::from(n) + 1)).collect();
        borrows.admit(Box::new(hazards(&all)));
        borrows.admit(Box::new(hazards(&[
            (0, 0),
            (1, u64::MAX),
            (63, (1 << 32) + 1),
        ])));
        assert!(!borrows.any(|_| true), "no scan so far");
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
    fn recall_drops_the_borrower_of_the_most_addresses() {
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
