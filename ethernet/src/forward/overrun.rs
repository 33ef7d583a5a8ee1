//! Whether what a member sent may have been lost before anybody read it.
//!
//! Its kernel throws away what does not fit into its queue, and tells nobody. But a queue that was full is not
//! found empty before all that was in it has been read.

use std::cell::Cell;

use crate::interface::QUEUE_LEN;

/// By how many packets a queue may be full too early: the kernel frees the places of those that were read
/// 16 or 32 at a time.
const NOT_FREED: u32 = 64;

/// How many packets were read from a queue since it was last empty.
#[derive(Debug, Default)]
pub(super) struct OverrunDetector(Cell<u32>);

impl OverrunDetector {
    /// One more was read. Returns whether the queue may have been full, and then counts anew.
    pub(super) fn has_read(&self) -> bool {
        let read = self.0.take() + 1;
        let may_have_been_full = read >= QUEUE_LEN - NOT_FREED;
        if !may_have_been_full {
            self.0.set(read);
        }
        may_have_been_full
    }

    /// There was none to read.
    pub(super) fn was_empty(&self) {
        self.0.set(0);
    }
}
