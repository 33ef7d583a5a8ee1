//! Removal of all items, at once or at a later time.

use toroid_fabric::OpError;

use super::Store;

impl Store {
    /// Removes all items.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn flush(&mut self) -> Result<(), OpError> {
        self.index.clear_all()?;
        self.free_all();
        Ok(())
    }

    /// As [`Store::flush`], and calls `between` after each slot that was cleared.
    #[cfg(test)]
    pub(crate) fn flush_in_steps(&mut self, between: impl FnMut()) {
        self.index.clear_each(between).unwrap();
        self.free_all();
    }

    /// Frees all memory, after the index was cleared.
    pub(super) fn free_all(&mut self) {
        self.cleaning = None;
        self.crawl.clear();
        self.segments.clear();
        self.ghosts.clear();
        (self.counters.items, self.counters.bytes) = (0, 0);
    }

    /// Sets the clock time at which all items are removed, or cancels it.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn flush_at(&mut self, at: Option<u32>) -> Result<(), OpError> {
        self.flush_at = at;
        self.flush_if_due()
    }

    pub(super) fn flush_if_due(&mut self) -> Result<(), OpError> {
        match self.flush_at.take_if(|at| *at <= self.clock) {
            Some(_) => self.flush(),
            None => Ok(()),
        }
    }
}
