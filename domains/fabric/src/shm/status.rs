//! Whether a region or connection may still be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::fence::FencePage;
use crate::endpoint::OpError;

/// Whether a region or connection may still be used: set by the control thread of the process,
/// and over its head by the agent's fence; looked at by every operation, before and after.
#[derive(Debug, Default)]
pub struct Status {
    end: AtomicU32,
    fence: Option<(Arc<FencePage>, u32)>,
}

impl Status {
    const REVOKED: u32 = 1;
    const PEER_DEAD: u32 = 2;

    /// A status that also ends when the agent writes the word `slot` of `page`.
    pub fn fenced(page: Arc<FencePage>, slot: u32) -> Self {
        Status {
            end: AtomicU32::new(0),
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
        // Release: pairs with the Acquire in `check`. It fails when it has ended before.
        let _ = self
            .end
            .compare_exchange(0, how, Ordering::Release, Ordering::Relaxed);
    }

    /// # Errors
    /// How it ended.
    #[inline]
    pub fn check(&self) -> Result<(), OpError> {
        // Acquire: pairs with the Release in `end`.
        match self.end.load(Ordering::Acquire) {
            0 => {}
            Self::PEER_DEAD => return Err(OpError::PeerDead),
            _ => return Err(OpError::Revoked),
        }
        match &self.fence {
            Some((page, slot)) if page.is_set(*slot) => Err(OpError::Revoked),
            _ => Ok(()),
        }
    }
}
