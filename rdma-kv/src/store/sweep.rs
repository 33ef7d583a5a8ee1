//! Memory of expired items that nobody asks for any more.

use fabric::OpError;

use super::{Store, behind};
use crate::layout::Place;
use crate::segments::SegmentNumber;

/// Items that are looked at in one go for whether they have expired.
const SWEPT: u32 = 4096;

/// A segment that was swept is not swept again for so many seconds, or one in which items expire all
/// the time would be all the time.
const SWEEP_REST_S: u32 = 10;

/// Where the search for expired items in a segment goes on.
#[derive(Debug)]
pub(super) struct Sweep {
    segment: SegmentNumber,
    /// Of the segment; another one is used anew.
    stamp: u64,
    next: Place,
    /// The earliest expiry that is still to come.
    earliest: u32,
}

impl Store {
    /// Takes the memory of some expired items back; returns whether there may be more.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn sweep(&mut self) -> Result<bool, OpError> {
        let Some(mut sweep) = self.sweep.take().or_else(|| self.start_sweep()) else {
            return Ok(false);
        };
        for _ in 0..SWEPT {
            // It may have been freed meanwhile, also by us.
            if !self.segments.is_still(sweep.segment, sweep.stamp) {
                return Ok(true);
            }
            if sweep.next == self.segments.end_of(sweep.segment) {
                let rested = self.clock.saturating_add(SWEEP_REST_S);
                self.segments
                    .expect_expiry(sweep.segment, sweep.earliest.max(rested));
                return Ok(true);
            }
            let at = sweep.next;
            let header = self.header(at)?;
            sweep.next = behind(at, &header);
            if !header.expired(self.clock.into()) {
                if header.exptime != 0 {
                    sweep.earliest = sweep.earliest.min(header.exptime);
                }
            } else if let Some((slot, ..)) = self.live(&header, at)? {
                self.index.clear(slot)?;
                self.lose(&header, at);
            }
        }
        self.sweep = Some(sweep);
        Ok(true)
    }

    fn start_sweep(&mut self) -> Option<Sweep> {
        let segment = self.segments.stale(self.clock)?;
        self.segments.forget_expiry(segment);
        Some(Sweep {
            segment,
            stamp: self.segments.stamp(segment),
            next: self.segments.start_of(segment),
            earliest: u32::MAX,
        })
    }
}
