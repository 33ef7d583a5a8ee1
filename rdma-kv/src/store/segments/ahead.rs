//! Memory ahead of the items: populated by an idle thread, so that no set waits for the system.

use std::ops::Range;

use super::Segments;

impl Segments {
    /// Takes the next unused bytes of the region to populate, `most` at a time. At most the bytes
    /// of one segment behind the last item are populated, and none while a segment is free that
    /// has been in use before.
    pub fn take_unpopulated(&mut self, most: u64) -> Option<Range<u64>> {
        let newest = self.segments.last().filter(|_| self.free.is_empty())?;
        let len = u64::from(self.len);
        let used = (self.segments.len() as u64 - 1) * len + u64::from(newest.used);
        let end = (used + len).min(u64::from(self.limit) * len);
        let from = self.populated.max(used);
        let to = end.min(from + most);
        (from < to).then(|| {
            self.populated = to;
            from..to
        })
    }
}
