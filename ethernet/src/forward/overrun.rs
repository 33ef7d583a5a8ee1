//! Overruns of a transmit queue: whether frames of a member may have been lost before the driver
//! read them.
//!
//! The kernel drops frames that do not fit into the queue of an interface, without notice. A queue
//! that was full is not found empty before all of its frames have been read.

use std::cell::Cell;

use crate::interface::QUEUE_LEN;

/// Number of packets by which a queue may be full too early: the kernel frees the slots of read
/// packets 16 or 32 at a time.
const NOT_FREED: u32 = 64;

/// Number of packets read since the queue was last empty.
#[derive(Debug, Default)]
pub(super) struct OverrunDetector(Cell<u32>);

impl OverrunDetector {
    /// Records one read packet. Returns whether the queue may have been full, and then counts anew.
    pub(super) fn record_read(&self) -> bool {
        let read = self.0.take() + 1;
        let may_have_been_full = read >= QUEUE_LEN - NOT_FREED;
        if !may_have_been_full {
            self.0.set(read);
        }
        may_have_been_full
    }

    /// Records that the queue was empty.
    pub(super) fn record_empty(&self) {
        self.0.set(0);
    }
}
