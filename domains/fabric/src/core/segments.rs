//! The local side of a transfer: a scatter/gather list.

use std::iter;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use crate::core::region::{self, Region};
use crate::error::OpError;

/// Bytes of a local region: an element of a scatter/gather list.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The region.
    pub region: Region,
    /// Offset of the first byte in `region`.
    pub offset: u64,
    /// Number of bytes; may be 0.
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

    /// Checks that the segment is inside its region, and that the region has not ended.
    fn check(&self) -> Result<(), OpError> {
        let memory = self.region.memory();
        region::bounds(memory, self.offset, self.len)?;
        memory.status().check()
    }
}

/// A scatter/gather list: segments that a transfer takes in order as one range of bytes.
///
/// A list has any number of segments, of any number of regions. A single segment and the clone of a
/// list need no allocation. Each part of a long transfer searches the list from the start. Where
/// segments of a read overlap, the bytes are unspecified.
#[derive(Clone, Debug)]
pub struct Segments(List);

#[derive(Clone, Debug)]
enum List {
    One(Segment),
    /// With the sum of their bytes.
    Many(Arc<[Segment]>, u64),
}

impl Segments {
    /// Bytes of all segments.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        match &self.0 {
            List::One(segment) => segment.len,
            List::Many(_, len) => *len,
        }
    }

    /// The segments.
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        match &self.0 {
            List::One(segment) => slice::from_ref(segment),
            List::Many(segments, _) => segments,
        }
    }

    /// Checks each segment.
    pub(crate) fn check(&self) -> Result<(), OpError> {
        self.as_slice().iter().try_for_each(Segment::check)
    }

    /// The pieces that hold the bytes `first..first + len` of the list: region, offset of the first
    /// byte and number of bytes, which is not 0.
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
        // The sum saturates far above the length of any region.
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
    fn parts_of_a_list_hold_the_bytes_of_its_concatenation() {
        let region = Region::local(4096).unwrap();
        // Each byte of the concatenation is identified by its offset in the region.
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
