//! Regions of peers on `tcp`: opened at the peer's host.

use std::sync::Arc;
#[cfg(feature = "verbs")]
use std::sync::Weak;

use crate::key::{Access, RemoteKey};
use crate::mem::DropGuard;
use crate::mem::status::Status;

/// A region of a node on another host. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct RemoteRegion(pub(super) Arc<Grant>);

/// What was opened.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) key: RemoteKey,
    pub(super) access: Access,
    pub(super) len: u64,
    pub(super) status: Arc<Status>,
    /// Dropped with the last handle.
    pub(super) _guard: Option<DropGuard>,
}

impl RemoteRegion {
    /// Bytes of the region.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// The key that it was opened with.
    pub fn key(&self) -> RemoteKey {
        self.0.key
    }

    /// The rights granted.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// For the control thread: whether it may still be used.
    pub fn status(&self) -> &Arc<Status> {
        &self.0.status
    }

    /// What all handles to the same have in common.
    #[cfg(feature = "verbs")]
    pub(crate) fn identity(&self) -> Identity {
        Identity(Arc::downgrade(&self.0))
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

/// Which region it is. No other has its address as long as this is here.
#[cfg(feature = "verbs")]
#[derive(Clone, Debug)]
pub(crate) struct Identity(Weak<Grant>);

#[cfg(feature = "verbs")]
impl Identity {
    /// Whether nobody has it open any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}
