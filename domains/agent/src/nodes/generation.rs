//! Node generations: the connections that may speak for a node, and hand-over between owners.
//!
//! A connection to a node's socket can leave the node, because descriptors can be passed on. The
//! connection then outlives the node's processes and their owner's right to the node. So each
//! connection belongs to one generation. The next generation begins when the node's processes have
//! ended, or before the node changes hands.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

/// Generations of a node.
#[derive(Debug, Default)]
pub(crate) struct NodeGeneration {
    number: AtomicU64,
    /// Hand-overs of the node that are under way. Read-locked while something is started in it.
    hand_overs: RwLock<u32>,
}

/// Guard: nothing is started in the node while this lives.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a NodeGeneration);

/// Guard: the node does not change hands while this lives.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    _open: RwLockReadGuard<'a, u32>,
}

impl NodeGeneration {
    /// Number of the present generation.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Begins the next generation.
    pub(crate) fn end(&self) {
        self.number.fetch_add(1, Ordering::SeqCst);
    }

    /// Prevents a hand-over; `None` when one is under way. Called before the directory is asked for
    /// the owner.
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        let open = self.hand_overs.read();
        (*open == 0).then_some(Held { _open: open })
    }

    /// Prevents starts until the hand-over is complete. Waits for guards of
    /// [`NodeGeneration::hold`].
    pub(crate) fn close(&self) -> Closed<'_> {
        *self.hand_overs.write() += 1;
        Closed(self)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        *self.0.hand_overs.write() -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_and_hand_over_of_a_node_exclude_each_other() {
        let generation = NodeGeneration::default();
        let held = generation.hold().unwrap();
        assert!(generation.hold().is_some());
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| generation.close());
            assert!(!closing.is_finished());
            drop(held);
            let closed = closing.join().unwrap();
            assert!(generation.hold().is_none());
            // Of two hand-overs the last opens the node.
            drop(generation.close());
            assert!(generation.hold().is_none());
            drop(closed);
        });
        assert!(generation.hold().is_some());
    }
}
