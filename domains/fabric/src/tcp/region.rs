//! Regions of peers on `tcp`: opened at the peer's host.

use std::sync::Arc;
use std::sync::Weak;

use crate::core::mapped::Mapped;
use crate::error::OpError;
use crate::key::{Access, RemoteKey};
use crate::mem::DropGuard;
use crate::mem::status::Status;

/// A region of a node on another host. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct RemoteRegion(pub(super) Arc<Grant>);

/// A region that was opened, with its rights.
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

    /// The key of the region.
    pub fn key(&self) -> RemoteKey {
        self.0.key
    }

    /// The rights granted.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The status that ends access: for the control thread.
    pub fn status(&self) -> &Arc<Status> {
        &self.0.status
    }

    /// The identity of the region, which all handles to it share.
    pub fn identity(&self) -> Identity {
        Identity(Arc::downgrade(&self.0))
    }

    /// A number that no other region has while this handle or its identity exists.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

/// A region of another host has no address here: its bytes are read and written through a queue
/// pair.
impl Mapped for RemoteRegion {
    fn is_mapped(&self) -> bool {
        false
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), OpError> {
        Err(OpError::NotMapped)
    }

    fn fold<A: Clone>(
        &self,
        _: u64,
        _: u64,
        _: A,
        _: impl Fn(&mut A, &[u8]),
    ) -> Result<A, OpError> {
        Err(OpError::NotMapped)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), OpError> {
        Err(OpError::NotMapped)
    }
}

/// The identity of a region, which keeps its address from being another's.
#[derive(Clone, Debug)]
pub struct Identity(Weak<Grant>);

impl Identity {
    /// Whether the last handle has been dropped.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}
