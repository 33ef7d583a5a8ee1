//! A peer's region, as its owner told of it.

use std::sync::Arc;

use crate::core::parameters::RegionParameters;
use crate::error::OpError;
use crate::key::{Access, Partition, RemoteKey};
use crate::topology::NodeId;
use crate::verbs::chain::Target;

/// A peer's region, as its owner told of it. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct RemoteRegion(Arc<RegionParameters>);

impl RemoteRegion {
    /// The region with these parameters. Whether they are true is for its owner's device to say.
    pub fn open(parameters: RegionParameters) -> Self {
        RemoteRegion(Arc::new(parameters))
    }

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

    /// Checks what [`RemoteRegion::target`] does.
    pub(crate) fn check(&self, needed: Access, offset: u64, len: u64) -> Result<(), OpError> {
        self.target(needed, offset, len).map(drop)
    }

    /// How the device reaches `len` bytes at `offset`, if all are inside and the owner gave the
    /// right.
    pub(super) fn target(&self, needed: Access, offset: u64, len: u64) -> Result<Target, OpError> {
        let limit = self.0.len;
        if !self.0.access.contains(needed) {
            return Err(OpError::MissingRight { needed });
        }
        if offset.checked_add(len).is_some_and(|end| end <= limit) {
            Ok(Target {
                // Who made the parameters may have invented them; then the device refuses.
                address: self.0.address.wrapping_add(offset),
                rkey: self.0.rkey,
            })
        } else {
            Err(OpError::OutOfBounds { offset, len, limit })
        }
    }
}

/// Where a queue pair leads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) peer: NodeId,
    pub(super) partition: Partition,
}

impl Route {
    pub(super) fn leads_to<'a>(
        &self,
        remote: &'a RemoteRegion,
    ) -> Result<&'a RemoteRegion, OpError> {
        let key = remote.key();
        let ours = key.node == self.peer && key.partition == self.partition;
        ours.then_some(remote).ok_or(OpError::WrongKey)
    }
}
