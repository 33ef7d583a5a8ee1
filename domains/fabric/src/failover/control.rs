//! The target side: registered regions that the device of another host may reach.

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

/// Bytes of the longest region or local buffer that is registered. A change of membership may wait for
/// a registration, and must not take that for a process that sleeps.
pub(super) const LONGEST: u64 = 4 << 30;

/// A queue pair that answers the device of another host, and the regions that it may reach. Each has a
/// protection domain of its own, so that no peer reaches the registrations of another.
#[derive(Debug)]
pub struct Target {
    /// Exports by handle; dropped before the protection domain.
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
        // This side sends no requests, so the route is not used.
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

    /// A region that is open under several handles is registered for one of them: each registration
    /// has to end before the memory may migrate, one after another.
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
