//! Control path: protection domains, registered memory, and queue pairs before they are connected.

use std::collections::HashMap;
use std::io;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::channel::{Channel, Ends};
use super::connection::{Connection, Room, access_flags, read_only_flags};
use super::device::Device;
use super::objects::{CompletionQueue, Protection, Registration};
use super::pinning;
use super::queue_pair::QueuePair;
use super::receive::Pool;
use super::region::Route;
use crate::core::link::LinkCheck;
use crate::core::membership::Membership;
use crate::core::parameters::{ConnectionParameters, RegionParameters};
use crate::core::region::Region;
use crate::key::{Access, Partition, RemoteKey};
use crate::mem::DropGuard;
use crate::mem::mapping::Mapping;
use crate::mem::memory::Memory;
use crate::mem::status::Status;
use crate::shm;
use crate::topology::NodeId;

/// Bytes of the longest inline write, if the device can.
const INLINE: u32 = 128;

/// The part of a device that one partition uses. Queue pairs of a protection domain reach memory of
/// the same domain only.
#[derive(Debug)]
pub struct ProtectionDomain {
    /// Local memory by address; dropped before the domain in which it is registered.
    local: Mutex<HashMap<usize, Pinned>>,
    /// Alive while there are channels.
    pool: Mutex<Weak<Pool>>,
    protection: Arc<Protection>,
    device: Arc<Device>,
    node: NodeId,
    partition: Partition,
}

impl ProtectionDomain {
    /// The protection domain of `node` in `partition`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(device: &Arc<Device>, node: NodeId, partition: Partition) -> io::Result<Arc<Self>> {
        Ok(Arc::new(ProtectionDomain {
            local: Mutex::default(),
            pool: Mutex::default(),
            protection: Arc::new(Protection::allocate(&device.context)?),
            device: Arc::clone(device),
            node,
            partition,
        }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Grants peers `access` to a region, by any queue pair of this domain, until the export is
    /// dropped or the memory migrates or ends.
    ///
    /// # Errors
    /// The system's: the limit of locked memory (`ulimit -l`); `WouldBlock` during a migration.
    pub fn export(&self, region: &Region, key: RemoteKey, access: Access) -> io::Result<Export> {
        let owner = Arc::new(region.clone());
        self.export_memory(region.memory(), key, access, owner, None)
    }

    /// As [`ProtectionDomain::export`], for a region of a node of this host, with the rights
    /// granted except atomics: atomics of a device are not atomic with those of a processor.
    /// `account` is dropped when the registration ends.
    ///
    /// # Errors
    /// As [`ProtectionDomain::export`].
    pub(crate) fn export_remote(
        &self,
        region: &shm::RemoteRegion,
        account: DropGuard,
    ) -> io::Result<Export> {
        let access = region.access() & (Access::REMOTE_READ | Access::REMOTE_WRITE);
        self.export_memory(
            region.memory(),
            region.key(),
            access,
            Arc::new(region.clone()),
            Some(account),
        )
    }

    fn export_memory(
        &self,
        memory: &Arc<Memory>,
        key: RemoteKey,
        access: Access,
        owner: DropGuard,
        account: Option<DropGuard>,
    ) -> io::Result<Export> {
        let mut export = Export {
            pinned: Weak::new(),
            memory: Arc::clone(memory),
            parameters: RegionParameters {
                key,
                rkey: 0,
                access,
                address: 0,
                len: memory.mapping().len() as u64,
            },
            _owner: owner,
        };
        // Before the registration, because a migration waits for that, and other processes for the
        // migration.
        let goes_on = || memory.device_registrations().are_allowed();
        pinning::populate(memory.mapping(), memory.is_writable(), goes_on);
        memory.device_registrations().register(|| {
            let pinned = Arc::new(self.pin(memory, access, account)?);
            export.parameters.rkey = pinned.registration.rkey();
            export.parameters.address = pinned.start(memory) as u64;
            export.pinned = Arc::downgrade(&pinned);
            Ok(pinned)
        })?;
        Ok(export)
    }

    /// The local key of a region. The first call registers the region, until it ends or migrates or
    /// this domain is dropped.
    pub(crate) fn register(self: &Arc<Self>, region: &Region) -> io::Result<u32> {
        let memory = region.memory();
        let place = Arc::as_ptr(memory) as usize;
        if let Some(pinned) = self.local().get(&place) {
            return Ok(pinned.registration.lkey());
        }
        // Before the locks, for which migrations of other memory wait.
        let goes_on = || memory.device_registrations().are_allowed();
        if goes_on() {
            pinning::populate(memory.mapping(), memory.is_writable(), goes_on);
        }
        let mut local = self.local();
        if let Some(pinned) = local.get(&place) {
            return Ok(pinned.registration.lkey());
        }
        let mut lkey = 0;
        memory.device_registrations().register(|| {
            let pinned = self.pin(memory, Access::empty(), None)?;
            lkey = pinned.registration.lkey();
            local.insert(place, pinned);
            Ok(Arc::new(Forget {
                domain: Arc::downgrade(self),
                place,
            }))
        })?;
        Ok(lkey)
    }

    /// Registers memory with the device. Callers pass the result to
    /// [`crate::mem::device_registrations`], so that the registration ends before the memory.
    fn pin(
        &self,
        memory: &Memory,
        access: Access,
        account: Option<DropGuard>,
    ) -> io::Result<Pinned> {
        let flags = if memory.is_writable() {
            access_flags(access).0
        } else {
            read_only_flags(access).0
        };
        let register = |mapping: &Mapping| {
            // SAFETY: the memory is mapped until the registration is dropped: `Memory` drops its
            // device registrations before its mapping, and `Pinned` drops its registration before
            // its own mapping. There are no references to the bytes.
            unsafe {
                Registration::register(&self.protection, mapping.start(), mapping.len(), flags)
            }
        };
        let (registration, elsewhere) = match register(memory.mapping()) {
            // Linux before 6.2 registers only memory that the process may write.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && !memory.is_writable() => {
                let writable = pinning::map_again_writable(memory.mapping())?;
                (register(&writable)?, Some(writable))
            }
            registered => (registered?, None),
        };
        Ok(Pinned {
            registration,
            elsewhere,
            _account: account,
        })
    }

    /// A queue pair to `peer` for up to `depth` operations that are posted or not yet polled.
    ///
    /// # Errors
    /// The system's; `InvalidInput` if the device has no room for `depth` operations.
    pub fn prepare(self: &Arc<Self>, peer: NodeId, depth: usize) -> io::Result<Prepared> {
        let requests = QueuePair::requests_for(depth);
        if depth == 0 || requests > self.device.most_requests {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // One entry for each request: the queue cannot overrun.
        let completions = CompletionQueue::new(&self.device.context, requests)?;
        let room = Room {
            requests,
            locals: self.device.most_locals as u32,
            inline: INLINE,
        };
        let connection = Connection::new(&self.protection, &completions, None, room)?;
        Ok(Prepared {
            connection,
            completions,
            domain: Arc::clone(self),
            peer,
            depth,
        })
    }

    /// A queue pair by which `peer` reaches the exports of this domain. It sends no requests.
    ///
    /// # Errors
    /// The system's, also when no route leads to the peer.
    pub fn answer(&self, peer: &ConnectionParameters) -> io::Result<Answering> {
        let completions = CompletionQueue::new(&self.device.context, 1)?;
        let room = Room {
            requests: 1,
            locals: 1,
            inline: 0,
        };
        let connection = Connection::new(&self.protection, &completions, None, room)?;
        connection.connect(&self.device, peer)?;
        Ok(Answering {
            parameters: connection.parameters(&self.device),
            _connection: connection,
            _completions: completions,
        })
    }

    /// One end of a channel that admits packets by `check`.
    ///
    /// # Errors
    /// The system's.
    pub fn prepare_channel(
        self: &Arc<Self>,
        check: LinkCheck,
        membership: Membership,
    ) -> io::Result<PreparedChannel> {
        let ends = Ends::new(&self.device, &self.protection, self.pool()?)?;
        Ok(PreparedChannel {
            ends,
            domain: Arc::clone(self),
            check,
            membership,
        })
    }

    /// The receive buffers of all channels of this domain.
    fn pool(&self) -> io::Result<Arc<Pool>> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pool.upgrade() {
            return Ok(pool);
        }
        let made = Arc::new(Pool::new(&self.protection, self.device.most_buffers)?);
        *pool = Arc::downgrade(&made);
        Ok(made)
    }

    fn local(&self) -> MutexGuard<'_, HashMap<usize, Pinned>> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the registration of local memory when dropped.
#[derive(Debug)]
struct Forget {
    domain: Weak<ProtectionDomain>,
    place: usize,
}

impl Drop for Forget {
    fn drop(&mut self) {
        if let Some(domain) = self.domain.upgrade() {
            let registration = domain.local().remove(&self.place);
            drop(registration);
        }
    }
}

/// Registered memory.
#[derive(Debug)]
struct Pinned {
    /// Dropped before the memory.
    registration: Registration,
    /// A second, writable mapping, if the registration needs one.
    elsewhere: Option<Mapping>,
    /// Dropped last: it counts pinned memory.
    _account: Option<DropGuard>,
}

impl Pinned {
    /// Address of the registered mapping.
    fn start(&self, memory: &Memory) -> usize {
        self.elsewhere.as_ref().unwrap_or(memory.mapping()).start()
    }
}

/// A grant of a region to peers, until the export is dropped or the region migrates or ends. After
/// that its rkey is invalid.
#[derive(Debug)]
pub struct Export {
    /// Owned by the memory.
    pinned: Weak<Pinned>,
    memory: Arc<Memory>,
    parameters: RegionParameters,
    _owner: DropGuard,
}

impl Export {
    /// Parameters that a peer needs to use the region.
    pub fn parameters(&self) -> RegionParameters {
        self.parameters
    }

    /// Whether peers can still use the region.
    pub fn is_valid(&self) -> bool {
        self.pinned.strong_count() > 0
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let ours = self.pinned.as_ptr();
        let is_ours = |guard: &DropGuard| ptr::addr_eq(Arc::as_ptr(guard), ours);
        self.memory.device_registrations().forget(is_ours);
    }
}

/// A connected queue pair that answers its peer, until it is dropped.
#[derive(Debug)]
pub struct Answering {
    parameters: ConnectionParameters,
    /// Dropped before its completion queue.
    _connection: Connection,
    _completions: CompletionQueue,
}

impl Answering {
    /// Parameters that the other end needs to connect.
    pub fn parameters(&self) -> ConnectionParameters {
        self.parameters
    }
}

/// A queue pair that is not connected yet.
#[derive(Debug)]
pub struct Prepared {
    connection: Connection,
    completions: CompletionQueue,
    domain: Arc<ProtectionDomain>,
    peer: NodeId,
    depth: usize,
}

impl Prepared {
    /// Parameters that the other end needs to connect.
    pub fn parameters(&self) -> ConnectionParameters {
        self.connection.parameters(&self.domain.device)
    }

    /// Connects the queue pair with `peer`, which does the same. All operations end with `status`.
    ///
    /// # Errors
    /// The system's, also when no route leads to the peer.
    pub fn connect(
        self,
        peer: &ConnectionParameters,
        status: Arc<Status>,
    ) -> io::Result<QueuePair> {
        self.connection.connect(&self.domain.device, peer)?;
        let route = Route {
            peer: self.peer,
            partition: self.domain.partition,
        };
        QueuePair::new(
            self.completions,
            self.connection,
            &self.domain,
            route,
            self.depth,
            status,
        )
    }
}

/// One end of a channel that is not connected yet.
#[derive(Debug)]
pub struct PreparedChannel {
    ends: Ends,
    domain: Arc<ProtectionDomain>,
    check: LinkCheck,
    membership: Membership,
}

impl PreparedChannel {
    /// Parameters that the other end needs to connect.
    pub fn parameters(&self) -> ConnectionParameters {
        self.ends.connection.parameters(&self.domain.device)
    }

    /// Connects the channel, as [`Prepared::connect`].
    ///
    /// # Errors
    /// The system's, also when no route leads to the peer.
    pub fn connect(self, peer: &ConnectionParameters, status: Arc<Status>) -> io::Result<Channel> {
        self.ends.connection.connect(&self.domain.device, peer)?;
        let (node, check) = (self.domain.node, self.check);
        Channel::new(self.ends, node, check, self.membership, status)
    }
}
