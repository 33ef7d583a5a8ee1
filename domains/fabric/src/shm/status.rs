//! Whether a region or connection may still be used, and whether its memory is moving.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::fence::FencePage;
use crate::endpoint::OpError;

/// Whether a region or connection may still be used: set by the control thread of the process,
/// and over its head by the agent's fence; looked at by every operation, before and after.
///
/// ```text
///  31                  3    2       1        0
///  +-------------------+--------+------+---------+
///  | moves begun       | moving | dead | revoked |
///  +-------------------+--------+------+---------+
/// ```
#[derive(Debug, Default)]
pub struct Status {
    word: AtomicU32,
    fence: Option<(Arc<FencePage>, u32)>,
}

/// What an operation saw of a [`Status`]; another value afterwards means: do it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u32);

impl Status {
    const REVOKED: u32 = 1;
    const PEER_DEAD: u32 = 1 << 1;
    const ENDED: u32 = Self::REVOKED | Self::PEER_DEAD;
    const MOVING: u32 = 1 << 2;
    const ONE_MOVE: u32 = 1 << 3;

    /// A status that also ends when the agent writes the word `slot` of `page`.
    pub fn fenced(page: Arc<FencePage>, slot: u32) -> Self {
        Status {
            word: AtomicU32::new(0),
            fence: Some((page, slot)),
        }
    }

    /// Ends everything under this status with [`OpError::Revoked`], also what is in flight.
    pub fn revoke(&self) {
        self.end(Self::REVOKED);
    }

    /// Ends everything under this status with [`OpError::PeerDead`].
    pub fn peer_died(&self) {
        self.end(Self::PEER_DEAD);
    }

    /// The first end stays: a revoked peer that dies afterwards was revoked.
    fn end(&self, how: u32) {
        self.update(|word| (word & Self::ENDED == 0).then_some(word | how));
    }

    /// From now on reads look for each chunk where it is; those in flight start again.
    pub(super) fn start_moving(&self) {
        self.update(|word| Some((word | Self::MOVING).wrapping_add(Self::ONE_MOVE)));
    }

    pub(super) fn stop_moving(&self) {
        self.update(|word| Some(word & !Self::MOVING));
    }

    fn update(&self, change: impl Fn(u32) -> Option<u32>) {
        // Release: pairs with the Acquire in `see`. It fails when `change` has nothing to change.
        let _ = self
            .word
            .fetch_update(Ordering::Release, Ordering::Relaxed, change);
    }

    /// # Errors
    /// How it ended.
    pub fn check(&self) -> Result<(), OpError> {
        self.see().map(drop)
    }

    /// # Errors
    /// How it ended.
    #[inline]
    pub(super) fn see(&self) -> Result<Seen, OpError> {
        // Acquire: pairs with the Release in `update`.
        let word = self.word.load(Ordering::Acquire);
        if word & Self::ENDED != 0 {
            return Err(match word & Self::REVOKED {
                0 => OpError::PeerDead,
                _ => OpError::Revoked,
            });
        }
        match &self.fence {
            Some((page, slot)) if page.is_set(*slot) => Err(OpError::Revoked),
            _ => Ok(Seen(word)),
        }
    }
}

impl Seen {
    pub(super) fn is_moving(self) -> bool {
        self.0 & Status::MOVING != 0
    }
}
