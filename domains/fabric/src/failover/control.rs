//! The side of the target: what the device of another host may reach here.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::core::parameters::{ConnectionParameters, RegionParameters};
use crate::key::Partition;
use crate::mem::DropGuard;
use crate::shm;
use crate::tcp::DeviceTarget;
use crate::topology::NodeId;
use crate::verbs::{Answering, Device, Export, ProtectionDomain};

/// Bytes of the longest region, or buffer of ours, that is registered: a change of membership may wait for it, and must
/// not take that for the sleep of a process.
pub(super) const LONGEST: u64 = 4 << 30;

/// What a far process's device may reach, at the host where the memory is. It is a protection
/// domain of its own, so that nobody reaches what was registered for somebody else.
#[derive(Debug)]
pub struct Target {
    /// By handle; before what they are registered in.
    exports: HashMap<usize, Export>,
    pair: Answering,
    domain: Arc<ProtectionDomain>,
}

impl Target {
    /// Connects `device` with the queue pair of the other side.
    ///
    /// # Errors
    /// The system's, also when no route leads to the peer.
    pub fn new(device: &Arc<Device>, peer: &ConnectionParameters) -> io::Result<Self> {
        // Nothing is asked from here, so nobody needs to know whose it is.
        let domain = ProtectionDomain::new(device, NodeId(0), Partition(0))?;
        Ok(Target {
            exports: HashMap::new(),
            pair: domain.answer(peer)?,
            domain,
        })
    }
}

impl DeviceTarget for Target {
    fn parameters(&self) -> ConnectionParameters {
        self.pair.parameters()
    }

    /// Registers a region, for which `admit` has to have room. One that is open under several handles
    /// is registered for one of them: each registration has to be taken back before the memory may
    /// move, one after another.
    fn register(
        &mut self,
        handle: usize,
        region: &shm::RemoteRegion,
        admit: &mut dyn FnMut() -> Option<DropGuard>,
    ) -> io::Result<RegionParameters> {
        self.exports.retain(|_, export| export.is_valid());
        if let Some(export) = self.exports.get(&handle) {
            return Ok(export.parameters());
        }
        if region.len() > LONGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let key = region.key();
        if self.exports.values().any(|e| e.parameters().key == key) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let account = admit().ok_or(io::ErrorKind::WouldBlock)?;
        let export = self.domain.export_remote(region, account)?;
        let parameters = export.parameters();
        self.exports.insert(handle, export);
        Ok(parameters)
    }

    fn forget(&mut self, handle: usize) {
        self.exports.remove(&handle);
    }
}
