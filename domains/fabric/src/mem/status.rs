//! Whether a region or connection may still be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::OpError;
use crate::mem::fence::FencePage;

/// Whether a region or connection may still be used. The control thread of the process ends the
/// status, or the agent by a fence. Every operation checks the status before and after its
/// accesses.
#[derive(Debug, Default)]
pub struct Status {
    end: AtomicU32,
    fence: Option<(Arc<FencePage>, u32)>,
}

impl Status {
    const REVOKED: u32 = 1;
    const PEER_DEAD: u32 = 2;

    /// A status that also ends when the agent sets the fence `slot` of `page`.
    pub fn fenced(page: Arc<FencePage>, slot: u32) -> Self {
        Status {
            end: AtomicU32::new(0),
            fence: Some((page, slot)),
        }
    }

    /// Ends all operations under this status with [`OpError::Revoked`], including those in flight.
    /// Takes effect also after the death of the peer: other processes may still hold its memory.
    pub fn revoke(&self) {
        // Release: pairs with the Acquire in `check`.
        self.end.store(Self::REVOKED, Ordering::Release);
    }

    /// Ends all operations under this status with [`OpError::PeerDead`], unless it was revoked.
    pub fn peer_died(&self) {
        // Release: pairs with the Acquire in `check`. A failure means that the status has ended
        // before.
        let _ = self
            .end
            .compare_exchange(0, Self::PEER_DEAD, Ordering::Release, Ordering::Relaxed);
    }

    /// Checks that the status has not ended.
    ///
    /// # Errors
    /// [`OpError::Revoked`] or [`OpError::PeerDead`].
    #[inline]
    pub fn check(&self) -> Result<(), OpError> {
        // Acquire: pairs with the Release in `revoke` and in `peer_died`.
        let end = self.end.load(Ordering::Acquire);
        let is_fenced = |(page, slot): &(Arc<FencePage>, u32)| page.is_set(*slot);
        match end {
            Self::REVOKED => Err(OpError::Revoked),
            _ if self.fence.as_ref().is_some_and(is_fenced) => Err(OpError::Revoked),
            0 => Ok(()),
            _ => Err(OpError::PeerDead),
        }
    }
}
