//! Sweeps: removal of expired items that no client asks for, and release of memory over the limit.

use toroid_fabric::OpError;

use super::Store;
use super::cleaning::CleaningStep;
use super::item::behind;
use crate::protocol::layout::ItemAddress;
use crate::store::segments::SegmentNumber;

/// Items that a sweep examines per call.
const SWEPT: u32 = 4096;

/// Items per call if each is also looked up, or moved.
const MOVED: u32 = 1024;

/// Seconds until a segment is swept again; otherwise a segment in which items always expire would
/// be swept without pause.
const SWEEP_REST_S: u32 = 10;

/// Position of a sweep in a segment.
#[derive(Debug)]
pub(super) struct Sweep {
    segment: SegmentNumber,
    /// Stamp of the segment; it changes when the segment is reused.
    stamp: u64,
    next: ItemAddress,
    /// Earliest expiry still to come.
    earliest: u32,
    /// Whether a crawl asked for it; then all live items count.
    is_asked: bool,
}

impl Store {
    /// Removes some expired items, and releases some memory over the limit; returns whether
    /// there may be more.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn sweep(&mut self) -> Result<bool, OpError> {
        if self.shrink()? {
            return Ok(true);
        }
        let Some(mut sweep) = self.sweep.take().or_else(|| self.start_sweep()) else {
            return Ok(false);
        };
        for _ in 0..if sweep.is_asked { MOVED } else { SWEPT } {
            // The segment may have been freed meanwhile, also by this sweep.
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

    /// Starts a crawl: [`Store::sweep`] searches all segments.
    pub fn crawl(&mut self) {
        self.crawl = self.segments.all().collect();
    }

    /// Whether a crawl is under way.
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

    /// Takes a segment out of use if there are too many, or empties one in part; returns
    /// whether there may be more to do.
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
