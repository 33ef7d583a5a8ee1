//! Where a transfer's bytes are at the local side: in one place, or scattered over several.

use std::iter;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use crate::core::region::{self, Region};
use crate::error::OpError;

/// Bytes of a local region.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Where they are.
    pub region: Region,
    /// The first of them in `region`.
    pub offset: u64,
    /// How many they are; may be 0.
    pub len: u64,
}

impl Segment {
    /// These bytes of `region`.
    pub fn new(region: &Region, bytes: Range<u64>) -> Self {
        Segment {
            region: region.clone(),
            offset: bytes.start,
            len: bytes.end.saturating_sub(bytes.start),
        }
    }

    /// Whether it is inside of its region, and that may still be used.
    fn check(&self) -> Result<(), OpError> {
        let memory = self.region.memory();
        region::bounds(memory, self.offset, self.len)?;
        memory.status().check()
    }
}

/// Segments that a transfer takes for one, in order: a scatter/gather list.
///
/// They may be as many as wanted, of as many regions; a single one needs no allocation, and to clone
/// a list takes none. Each part of a long transfer looks for its segments from the first on. Where those
/// that a read fills overlap it is not specified what is there.
#[derive(Clone, Debug)]
pub struct Segments(List);

#[derive(Clone, Debug)]
enum List {
    One(Segment),
    /// With the bytes of all together.
    Many(Arc<[Segment]>, u64),
}

impl Segments {
    /// Bytes of all together.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        match &self.0 {
            List::One(segment) => segment.len,
            List::Many(_, len) => *len,
        }
    }

    /// Each of them.
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        match &self.0 {
            List::One(segment) => slice::from_ref(segment),
            List::Many(segments, _) => segments,
        }
    }

    /// Whether all are inside of their regions, and those may still be used.
    pub(crate) fn check(&self) -> Result<(), OpError> {
        self.as_slice().iter().try_for_each(Segment::check)
    }

    /// What of them has the bytes `first..first + len` of all: the region, the first byte in it and how
    /// many, none of them empty.
    pub(crate) fn part(&self, first: u64, len: u64) -> impl Iterator<Item = (&Region, u64, u64)> {
        let (mut skip, mut left) = (first, len);
        let mut segments = self.as_slice().iter();
        iter::from_fn(move || {
            while left > 0 {
                let segment = segments.next()?;
                let skipped = skip.min(segment.len);
                skip -= skipped;
                let len = left.min(segment.len - skipped);
                if len > 0 {
                    left -= len;
                    return Some((&segment.region, segment.offset + skipped, len));
                }
            }
            None
        })
    }
}

impl From<Segment> for Segments {
    fn from(segment: Segment) -> Self {
        Segments(List::One(segment))
    }
}

impl From<Vec<Segment>> for Segments {
    fn from(mut segments: Vec<Segment>) -> Self {
        if segments.len() == 1
            && let Some(segment) = segments.pop()
        {
            return segment.into();
        }
        // No region has as many as what this stops at.
        let add = |all: u64, segment: &Segment| all.saturating_add(segment.len);
        let len = segments.iter().fold(0, add);
        Segments(List::Many(segments.into(), len))
    }
}

impl FromIterator<Segment> for Segments {
    fn from_iter<I: IntoIterator<Item = Segment>>(segments: I) -> Self {
        Vec::from_iter(segments).into()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_they_would_be_of_one() {
        let region = Region::local(4096).unwrap();
        // The bytes of all together are numbered by where they are.
        let ranges = [7..10, 100..100, 300..301, 0..5, 4095..4096, 50..50];
        let bytes: Vec<u64> = ranges.iter().flat_map(Range::clone).collect();
        let segments = ranges.map(|range| Segment::new(&region, range));
        let segments = Segments::from_iter(segments);
        assert_eq!(segments.len(), bytes.len() as u64);
        for first in 0..=bytes.len() {
            for len in 0..=bytes.len() - first {
                let parts = segments.part(first as u64, len as u64);
                let found: Vec<u64> = parts
                    .inspect(|(_, _, len)| assert!(*len > 0))
                    .flat_map(|(_, offset, len)| offset..offset + len)
                    .collect();
                assert_eq!(found, bytes[first..first + len]);
            }
        }
        assert_eq!(segments.check(), Ok(()));
    }

    #[test]
    fn lengths_do_not_overflow() {
        let region = Region::local(8).unwrap();
        let huge = Segment {
            region,
            offset: 0,
            len: u64::MAX - 1,
        };
        let segments = Segments::from(vec![huge.clone(), huge]);
        assert_eq!(segments.len(), u64::MAX);
        assert!(segments.check().is_err());
        assert_eq!(Segments::from(Vec::new()).len(), 0);
    }
}
