//! Who may speak for a node, and when nobody may begin anything in it.
//!
//! A connection to a node's socket can leave the node, because descriptors can be passed on. It
//! then outlives the processes of the node and their owner's right to it. So each connection
//! belongs to one generation, and the next one begins when the node's processes have ended, or
//! before the node changes hands.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// The tenancies of a node.
#[derive(Debug, Default)]
pub(crate) struct NodeGeneration {
    number: AtomicU64,
    /// Whether the node is changing hands. Read-locked by whoever starts something in it.
    is_closed: RwLock<bool>,
}

/// Nothing is started in the node while this lives.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a NodeGeneration);

/// The node does not change hands while this lives.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    _open: RwLockReadGuard<'a, bool>,
}

impl NodeGeneration {
    /// The number of the present one.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Begins the next one.
    pub(crate) fn end(&self) {
        self.number.fetch_add(1, Ordering::SeqCst);
    }

    /// Keeps the node in the hands in which it is; `None` when it is about to leave them. To be
    /// asked before the directory is asked whose it is.
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        let open = self.is_closed.read();
        let open = open.unwrap_or_else(PoisonError::into_inner);
        (!*open).then_some(Held { _open: open })
    }

    /// Lets nothing be started until the node has changed hands. Waits for those who
    /// [`NodeGeneration::hold`] it.
    pub(crate) fn close(&self) -> Closed<'_> {
        self.set_closed(true);
        Closed(self)
    }

    fn set_closed(&self, closed: bool) {
        *self
            .is_closed
            .write()
            .unwrap_or_else(PoisonError::into_inner) = closed;
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.set_closed(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_node_and_who_takes_it_away_exclude_each_other() {
        let generation = NodeGeneration::default();
        let held = generation.hold().unwrap();
        assert!(generation.hold().is_some());
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| generation.close());
            assert!(!closing.is_finished());
            drop(held);
            let closed = closing.join().unwrap();
            assert!(generation.hold().is_none());
            drop(closed);
        });
        assert!(generation.hold().is_some());
    }
}
