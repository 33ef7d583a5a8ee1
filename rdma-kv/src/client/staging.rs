//! Staging: a region through which large values pass, in pieces that are given out in turn.

use std::collections::VecDeque;

use toroid_fabric::{OpError, Region};

use crate::protocol::messages::Piece;

/// Least bytes of the region.
const MIN: u64 = 64 * 1024;

/// Most bytes of a region for several values, unless one value needs more.
const AMPLE: u64 = 8 << 20;

/// Values that such a region should hold.
const VALUES: u64 = 8;

/// Alignment of pieces.
const LINE: u64 = 64;

/// A region and its pieces in use.
pub(super) struct Staging {
    region: Region,
    /// Pieces in use, as start and end; the oldest first.
    taken: VecDeque<(u64, u64)>,
    /// Whether the server has released the region.
    lost: bool,
}

impl Staging {
    pub(super) fn new(region: Region) -> Self {
        Staging {
            region,
            taken: VecDeque::new(),
            lost: false,
        }
    }

    /// Bytes of a region for one value of `len` bytes at a time.
    pub(super) fn len_for_one(len: usize) -> u64 {
        (len as u64).next_power_of_two().max(MIN)
    }

    /// Bytes of a region for several values of `len` bytes.
    pub(super) fn len_for_several(len: usize) -> u64 {
        let several = (VALUES * len as u64).next_power_of_two().min(AMPLE);
        several.max(Self::len_for_one(len))
    }

    /// Bytes of the region.
    pub(super) fn len(&self) -> u64 {
        self.region.len()
    }

    /// Notes that the server has released the region. It may still read pieces of earlier
    /// requests.
    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether a value of `len` bytes fits, now or later.
    pub(super) fn is_enough_for(&self, len: usize) -> bool {
        !self.lost && len as u64 <= self.len()
    }

    /// Whether no piece is in use.
    pub(super) fn is_idle(&self) -> bool {
        self.taken.is_empty()
    }

    /// The whole region, to be used when the server has answered all requests.
    pub(super) fn whole(&self) -> Piece {
        Piece {
            offset: 0,
            len: u32::try_from(self.len()).unwrap_or(u32::MAX),
        }
    }

    /// Puts a value into a free piece, if there is one that is long enough. The piece belongs
    /// to the server until [`Staging::give_back`].
    pub(super) fn put(&mut self, value: &[u8]) -> Result<Option<Piece>, OpError> {
        let len = value.len() as u64;
        let start = match (self.taken.front(), self.taken.back()) {
            (Some(&(oldest, _)), Some(&(newest, end))) => {
                let wrapped = newest < oldest;
                let limit = if wrapped { oldest } else { self.len() };
                let at = end.next_multiple_of(LINE);
                if at + len <= limit {
                    Some(at)
                } else {
                    (!wrapped && len <= oldest).then_some(0)
                }
            }
            _ => (len <= self.len()).then_some(0),
        };
        let Some(offset) = start else {
            return Ok(None);
        };
        self.region.write_to_peer(offset, value)?;
        self.taken.push_back((offset, offset + len));
        Ok(Some(Piece {
            offset,
            len: len as u32,
        }))
    }

    /// Releases the oldest piece.
    pub(super) fn give_back(&mut self) {
        self.taken.pop_front();
    }

    pub(super) fn read(&self, piece: Piece) -> Result<Vec<u8>, OpError> {
        let mut data = vec![0; piece.len as usize];
        self.region.read(piece.offset, &mut data)?;
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_never_overlap_and_wrap_around_the_region() {
        let mut staging = Staging::new(Region::local(MIN as usize).unwrap());
        let mut taken: VecDeque<Piece> = VecDeque::new();
        for n in 0..1000usize {
            let len = [1, 5000, 20_000, 64, 65][n % 5];
            while let Some(piece) = staging.put(&vec![n as u8; len]).unwrap() {
                let end = piece.offset + u64::from(piece.len);
                assert!(end <= MIN && piece.len as usize == len);
                assert!(taken.iter().all(|other| end <= other.offset
                    || other.offset + u64::from(other.len) <= piece.offset));
                assert_eq!(staging.read(piece).unwrap(), vec![n as u8; len]);
                taken.push_back(piece);
            }
            assert!(!taken.is_empty());
            for _ in 0..taken.len().min(1 + n % 3) {
                taken.pop_front();
                staging.give_back();
            }
        }
    }

    #[test]
    fn an_empty_region_has_room_for_a_value_of_its_length() {
        let mut staging = Staging::new(Region::local(MIN as usize).unwrap());
        assert!(staging.put(&[1; 100]).unwrap().is_some());
        assert_eq!(staging.put(&[2; MIN as usize]), Ok(None));
        staging.give_back();
        assert!(staging.put(&[2; MIN as usize]).unwrap().is_some());
        assert_eq!(staging.put(&[2; MIN as usize + 1]), Ok(None));
    }

    #[test]
    fn region_lengths_follow_the_length_of_values() {
        assert_eq!(Staging::len_for_one(5000), MIN);
        assert_eq!(Staging::len_for_several(5000), MIN);
        assert_eq!(Staging::len_for_several(60_000), 512 << 10);
        assert_eq!(Staging::len_for_several(1 << 20), AMPLE);
        assert_eq!(Staging::len_for_several(9 << 20), 16 << 20);
    }
}
