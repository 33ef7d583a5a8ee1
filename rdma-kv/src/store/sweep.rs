//! Memory that comes back by itself: of expired items that nobody asks for any more, and what is too much.

use toroid_fabric::OpError;

use super::Store;
use super::cleaning::CleaningStep;
use super::item::behind;
use crate::protocol::layout::ItemAddress;
use crate::store::segments::SegmentNumber;

/// Items that are looked at in one go for whether they have expired.
const SWEPT: u32 = 4096;

/// The same where each is also looked up, or moved.
const MOVED: u32 = 1024;

/// A segment that was swept is not swept again for so many seconds, or one in which items expire all
/// the time would be all the time.
const SWEEP_REST_S: u32 = 10;

/// Where the search for expired items in a segment goes on.
#[derive(Debug)]
pub(super) struct Sweep {
    segment: SegmentNumber,
    /// Of the segment; another one is used anew.
    stamp: u64,
    next: ItemAddress,
    /// The earliest expiry that is still to come.
    earliest: u32,
    /// It was asked for, so all items count that are alive.
    is_asked: bool,
}

impl Store {
    /// Takes the memory of some expired items back, and some that is over the limit; returns whether there
    /// may be more.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn sweep(&mut self) -> Result<bool, OpError> {
        if self.shrink()? {
            return Ok(true);
        }
        let Some(mut sweep) = self.sweep.take().or_else(|| self.start_sweep()) else {
            return Ok(false);
        };
        for _ in 0..if sweep.is_asked { MOVED } else { SWEPT } {
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
            let expired = header.expired(self.clock.into());
            if !expired && header.exptime != 0 {
                sweep.earliest = sweep.earliest.min(header.exptime);
            }
            let live = if expired || sweep.is_asked {
                self.live(&header, at)?
            } else {
                None
            };
            self.counters.swept += u64::from(live.is_some() || !sweep.is_asked);
            if let Some((slot, ..)) = live.filter(|_| expired) {
                self.index.clear(slot)?;
                self.expire(&header, at);
            }
        }
        self.sweep = Some(sweep);
        Ok(true)
    }

    /// Looks through all segments for expired items from now on, by [`Store::sweep`].
    pub fn crawl(&mut self) {
        self.crawl = self.segments.all().collect();
    }

    /// Whether there is something left of [`Store::crawl`].
    pub fn is_crawling(&self) -> bool {
        !self.crawl.is_empty() || self.sweep.as_ref().is_some_and(|sweep| sweep.is_asked)
    }

    fn start_sweep(&mut self) -> Option<Sweep> {
        let asked = self.crawl.pop();
        let segment = asked.or_else(|| self.segments.stale(self.clock))?;
        self.segments.forget_expiry(segment);
        self.counters.sweeps += 1;
        Some(Sweep {
            segment,
            stamp: self.segments.stamp(segment),
            next: self.segments.start_of(segment),
            earliest: u32::MAX,
            is_asked: asked.is_some(),
        })
    }

    /// Takes a segment out of use if too many are, or empties one in part; returns whether there may be
    /// more to do.
    fn shrink(&mut self) -> Result<bool, OpError> {
        if let Some(number) = self.segments.withhold() {
            let (start, len) = self.segments.bytes_of(number);
            self.items.drop_pages(start, len)?;
            return Ok(true);
        }
        for _ in 0..MOVED {
            if !self.segments.is_over() || !self.start_cleaning(None) {
                return Ok(false);
            }
            match self.clean_item()? {
                CleaningStep::Item { .. } => {}
                CleaningStep::Freed => return Ok(true),
                CleaningStep::Stuck => return Ok(false),
            }
        }
        Ok(true)
    }
}
