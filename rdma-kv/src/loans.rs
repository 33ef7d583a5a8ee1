//! What clients have borrowed: values that they read where these are, which therefore must not change.
//!
//! A client that borrows has a region of its own, its *slips*, which the server may read and
//! write:
//!
//! ```text
//!  0          8      64       72            576
//!  +----------+------+--------+-----+---------+
//!  | recalled | zero | slip 0 | ... | slip 63 |
//!  +----------+------+--------+-----+---------+
//! ```
//!
//! A slip is 0, or the place of an item plus 1. Only the client writes slips, and only the server
//! writes `recalled`.
//!
//! **To borrow**, the client writes the place on a slip, then looks at the slot, and then at the
//! item's header and key. **To use memory again**, the server clears or changes the slots that led
//! there, then looks at all slips; memory with a place that is on one waits. Between the two steps
//! each has a full fence. All these fences have one order, and whoever's is the second sees what
//! the other wrote before its own: either the client sees that the slot has changed, and does
//! not borrow, or the server sees the slip. So what a client finds behind a slot that has not
//! changed stays as it is, and a look at the header and key that comes later is a look at that item.
//!
//! **To give back**, the client writes 0 on the slip, which is seen after all its reads (a Release
//! store, which pairs with the Acquire of the server's look).
//!
//! **Nobody waits for a client.** One whose channel has ended is forgotten with its slips. What
//! waits only for slips is at most a quarter of the segments; beyond that, or before the store refuses a set
//! for want of memory, the client with the most slips in the way is. Before the server
//! forgets slips it writes `recalled` there. The client looks at that word after each read of what
//! it borrowed: bytes that are newer than the word come after it (each read ends with an Acquire fence, which pairs with
//! the Release after the server's write), so they are noticed and not given out.
//!
//! **Moving.** When a node leaves, the regions that it may have mapped move to fresh memory, and nothing of the above
//! changes for those who stay. A write to the fresh memory waits until what was there is copied, and that begins
//! when all have changed who stay, or are fenced. So whoever still reads the old memory misses no write, and finds
//! in either what was lent; a slip that was written to the old memory is copied before the server's look at
//! the fresh one comes back, and a slot likewise. Who is fenced neither borrows nor reads: each operation looks at its fence last.
//!
//! **Revocation.** A client whose node leaves is fenced before any page of what it has mapped is taken away, also
//! if it sleeps; so its reads fail rather than give zeros. The server's process first changes the items to fresh
//! memory, and only then hears that the node has left: what the leaver still has mapped when its slips are
//! forgotten is never written again.

use std::fmt;

use toroid_fabric::Mapped;
use toroid_fabric::mapped::full_fence;

use crate::layout::{LINE, Line, Place, Word};

/// Values that a client can have borrowed at a time.
pub const SLIPS: u32 = 64;

/// Bytes of a region of slips.
pub const SLIPS_LEN: u64 = (1 + SLIPS as u64 / SLIPS_PER_LINE) * LINE as u64;

/// Where the server says that it keeps nothing for this client any more.
pub const RECALLED: u64 = 0;

const SLIPS_PER_LINE: u64 = LINE as u64 / 8;

/// Where a slip is in its region.
pub fn slip_offset(number: u32) -> u64 {
    LINE as u64 + u64::from(number) * 8
}

/// What is on a slip.
pub fn slip_word(place: Place) -> u64 {
    u64::from(place.0) + 1
}

/// The place on a slip, if there is one. A client may write anything.
fn place_on(word: u64) -> Option<Place> {
    u32::try_from(word.checked_sub(1)?).ok().map(Place)
}

/// A client that may borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrower(u64);

/// The slips of all clients, as the server sees them.
#[derive(Default)]
pub struct Loans {
    borrowers: Vec<(Borrower, Box<dyn Mapped>)>,
    admitted: u64,
    /// What was on the slips at the last look.
    places: Vec<(Borrower, Place)>,
    /// Tests: nobody looks at slips.
    #[cfg(test)]
    blind: bool,
}

impl Loans {
    /// From now on looks at these slips, too. They must be read as 64 bytes at a time, whose words
    /// are whole.
    pub fn admit(&mut self, slips: Box<dyn Mapped>) -> Borrower {
        self.admitted += 1;
        let borrower = Borrower(self.admitted);
        self.borrowers.push((borrower, slips));
        borrower
    }

    /// Forgets a client's slips, after saying so there.
    pub fn dismiss(&mut self, borrower: Borrower) {
        self.borrowers.retain(|(other, slips)| {
            if *other == borrower {
                // Where it cannot be written nobody reads what was borrowed, either.
                let _ = slips.write(RECALLED, &word(1).0);
            }
            *other != borrower
        });
        self.places.retain(|(other, _)| *other != borrower);
    }

    /// Clients that may borrow.
    pub fn borrowers(&self) -> usize {
        self.borrowers.len()
    }

    /// Looks at all slips. To be done after the slots have changed that led to the memory that is
    /// to be used again.
    pub fn look(&mut self) {
        self.places.clear();
        #[cfg(test)]
        if self.blind {
            return;
        }
        // Pairs with the borrower's, between its slip and its look at the slot.
        full_fence();
        let places = &mut self.places;
        self.borrowers.retain(|(borrower, slips)| {
            let found = read_slips(&**slips, |place| places.push((*borrower, place)));
            // Its node has left, or its process has ended.
            found.is_ok()
        });
    }

    /// Whether a place for which `is_there` was on a slip at the last look.
    pub fn any(&self, is_there: impl Fn(Place) -> bool) -> bool {
        self.places.iter().any(|(_, place)| is_there(*place))
    }

    /// What was on the slips at the last look, in order.
    pub fn sorted(&self) -> Vec<Place> {
        let mut places: Vec<Place> = self.places.iter().map(|(_, place)| *place).collect();
        places.sort_unstable();
        places
    }

    /// Dismisses who had the most slips with places for which `is_there` at the last look; returns
    /// whether there was anybody.
    pub fn recall_most(&mut self, is_there: impl Fn(Place) -> bool) -> bool {
        let count = |borrower: Borrower| {
            let places = self.places.iter();
            places
                .filter(|(of, place)| *of == borrower && is_there(*place))
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

    /// From now on slips are not looked at.
    #[cfg(test)]
    pub fn go_blind(&mut self) {
        self.blind = true;
    }
}

impl fmt::Debug for Loans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let borrowers = self.borrowers.iter().map(|(borrower, _)| borrower);
        f.debug_list().entries(borrowers).finish()
    }
}

fn read_slips(
    slips: &dyn Mapped,
    mut each: impl FnMut(Place),
) -> Result<(), toroid_fabric::OpError> {
    let mut line = Line::default();
    for number in (0..SLIPS).step_by(SLIPS_PER_LINE as usize) {
        slips.read(slip_offset(number), line.bytes_mut())?;
        line.words().filter_map(place_on).for_each(&mut each);
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

    fn slips(words: &[(u32, u64)]) -> Region {
        let region = Region::local(SLIPS_LEN as usize).unwrap();
        for (number, word) in words {
            region.store(slip_offset(*number), *word).unwrap();
        }
        region
    }

    #[test]
    fn every_slip_is_seen_and_nonsense_is_none() {
        let mut loans = Loans::default();
        let all: Vec<(u32, u64)> = (0..SLIPS).map(|n| (n, u64::from(n) + 1)).collect();
        loans.admit(Box::new(slips(&all)));
        loans.admit(Box::new(slips(&[
            (0, 0),
            (1, u64::MAX),
            (63, (1 << 32) + 1),
        ])));
        assert!(!loans.any(|_| true), "nobody has looked");
        loans.look();
        let places: Vec<u32> = loans.places.iter().map(|(_, place)| place.0).collect();
        assert_eq!(places, (0..SLIPS).collect::<Vec<u32>>());
        assert_eq!(slip_word(Place(u32::MAX)), 1 << 32);
        assert_eq!(place_on(1 << 32), Some(Place(u32::MAX)));
    }

    #[test]
    fn who_has_most_in_the_way_is_told_and_forgotten() {
        let mut loans = Loans::default();
        let regions = [
            slips(&[(0, 5), (1, 6), (2, 7)]),
            slips(&[(3, 50), (9, 51)]),
            slips(&[(3, 50)]),
        ];
        for region in &regions {
            loans.admit(Box::new(region.clone()));
        }
        loans.look();
        let recalled = || regions.each_ref().map(|region| region.load(RECALLED));
        assert!(loans.recall_most(|place| place.0 >= 40));
        assert_eq!(recalled(), [Ok(0), Ok(1), Ok(0)]);
        assert!(loans.any(|place| place.0 == 49) && !loans.any(|place| place.0 == 50));
        assert!(loans.recall_most(|place| place.0 >= 40));
        assert!(!loans.recall_most(|place| place.0 >= 40));
        assert_eq!(recalled(), [Ok(0), Ok(1), Ok(1)]);
        loans.look();
        assert_eq!(loans.places.len(), 3);
    }
}
