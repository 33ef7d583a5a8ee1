//! Bound on what is done at a time, and so on its memory.

use parking_lot::{Condvar, Mutex};

/// Slots, each of which is free or taken.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A slot. Dropping it frees it.
#[derive(Debug)]
pub(crate) struct Slot<'s>(&'s Slots);

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        Slots {
            free: Mutex::new(count),
            freed: Condvar::new(),
        }
    }

    /// Waits for a free slot, and takes it.
    pub(crate) fn take(&self) -> Slot<'_> {
        let mut free = self.free.lock();
        self.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Slot(self)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn no_more_slots_are_taken_than_there_are() {
        let (slots, taken) = (Slots::new(2), AtomicUsize::new(0));
        drop([slots.take(), slots.take()]);
        let take = || {
            for _ in 0..100 {
                let _slot = slots.take();
                assert!(taken.fetch_add(1, Ordering::SeqCst) < 2);
                thread::yield_now();
                taken.fetch_sub(1, Ordering::SeqCst);
            }
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(take);
            }
        });
        assert_eq!(*slots.free.lock(), 2);
    }
}
