//! Regions of peers, by the parameters of their owners.

use std::sync::Arc;

use crate::core::parameters::RegionParameters;
use crate::error::OpError;
use crate::key::{Access, Partition, RemoteKey};
use crate::topology::NodeId;
use crate::verbs::chain::Target;

/// A region of a peer. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct RemoteRegion(Arc<RegionParameters>);

impl RemoteRegion {
    /// The region with these parameters, which the owner's device verifies at each access.
    pub fn open(parameters: RegionParameters) -> Self {
        RemoteRegion(Arc::new(parameters))
    }

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

    /// Checks rights and bounds, as [`RemoteRegion::target`].
    pub(crate) fn check(&self, needed: Access, offset: u64, len: u64) -> Result<(), OpError> {
        self.target(needed, offset, len).map(drop)
    }

    /// Address and key of `len` bytes at `offset`, if they are in bounds and the owner granted the
    /// right.
    pub(super) fn target(&self, needed: Access, offset: u64, len: u64) -> Result<Target, OpError> {
        let limit = self.0.len;
        if !self.0.access.contains(needed) {
            return Err(OpError::MissingRight { needed });
        }
        if offset.checked_add(len).is_some_and(|end| end <= limit) {
            Ok(Target {
                // The device refuses invented parameters.
                address: self.0.address.wrapping_add(offset),
                rkey: self.0.rkey,
            })
        } else {
            Err(OpError::OutOfBounds { offset, len, limit })
        }
    }
}

/// Peer and partition of a queue pair.
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
