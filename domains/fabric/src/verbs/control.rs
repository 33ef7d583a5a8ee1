//! What is made once: protection domains, registered memory, and queue pairs on their way to be
//! connected.

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

/// Bytes that a small write carries with it, if the device can.
const INLINE: u32 = 128;

/// What one partition may use of a device: memory and queue pairs of one protection domain know
/// nothing of another's.
#[derive(Debug)]
pub struct ProtectionDomain {
    /// Memory of ours, by its place; before the domain that it is registered in.
    local: Mutex<HashMap<usize, Pinned>>,
    /// As long as there are channels.
    pool: Mutex<Weak<Pool>>,
    protection: Arc<Protection>,
    device: Arc<Device>,
    node: NodeId,
    partition: Partition,
}

impl ProtectionDomain {
    /// A protection domain for what `node` has in `partition`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(device: &Arc<Device>, node: NodeId, partition: Partition) -> io::Result<Arc<Self>> {
        Ok(Arc::new(ProtectionDomain {
            local: Mutex::default(),
            pool: Mutex::default(),
            protection: Arc::new(Protection::new(device.context())?),
            device: Arc::clone(device),
            node,
            partition,
        }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Lets peers use a region as `access` says, by any queue pair of this domain, until what is
    /// returned is dropped, or the memory moves or ends.
    ///
    /// # Errors
    /// The system's: no right to lock so much memory (`ulimit -l`); `WouldBlock` while it moves.
    pub fn export(&self, region: &Region, key: RemoteKey, access: Access) -> io::Result<Export> {
        let owner = Arc::new(region.clone());
        self.export_memory(region.memory(), key, access, owner, None)
    }

    /// The same with a peer's region, as far as it was granted, but for atomics: those of a device
    /// are none for who uses the processor's on the same words. `account` is dropped when the device
    /// has forgotten it.
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
        // Who is about to move the memory waits while it is pinned, and others for that.
        let goes_on = || memory.device_registrations().are_allowed();
        pinning::populate(memory.mapping(), memory.is_writable(), goes_on);
        memory.device_registrations().register(|| {
            let pinned = self.pin(memory, access)?;
            let pinned = Arc::new(Pinned {
                _account: account,
                ..pinned
            });
            export.parameters.rkey = pinned.registration.rkey();
            export.parameters.address = pinned.start(memory) as u64;
            export.pinned = Arc::downgrade(&pinned);
            Ok(pinned)
        })?;
        Ok(export)
    }

    /// The key by which our own requests use a region. It is registered the first time, for as
    /// long as both it and this domain are there, and it does not move.
    pub(crate) fn register(self: &Arc<Self>, region: &Region) -> io::Result<u32> {
        let memory = region.memory();
        let place = Arc::as_ptr(memory) as usize;
        if let Some(pinned) = self.local().get(&place) {
            return Ok(pinned.registration.lkey());
        }
        // Before the locks, for which others wait whose memory is about to move.
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
            let pinned = self.pin(memory, Access::empty())?;
            lkey = pinned.registration.lkey();
            local.insert(place, pinned);
            Ok(Arc::new(Forget {
                domain: Arc::downgrade(self),
                place,
            }))
        })?;
        Ok(lkey)
    }

    /// Tells the device of memory. Whoever calls it does so by [`DeviceRegistrations::register`], so that the
    /// memory forgets it in time.
    ///
    /// [`DeviceRegistrations::register`]: crate::mem::device_registrations::DeviceRegistrations::register
    fn pin(&self, memory: &Memory, access: Access) -> io::Result<Pinned> {
        let flags = if memory.is_writable() {
            access_flags(access).0
        } else {
            read_only_flags(access).0
        };
        let register = |mapping: &Mapping| {
            // SAFETY: the memory is mapped until the registration is dropped: `Memory` drops what
            // it was told of before its mapping, and `Pinned` drops it before its own. Nobody has a
            // reference to it.
            unsafe { Registration::new(&self.protection, mapping.start(), mapping.len(), flags) }
        };
        match register(memory.mapping()) {
            // Until 6.2 Linux took only memory that the process itself may write.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && !memory.is_writable() => {
                let writable = pinning::map_again_writable(memory.mapping())?;
                Ok(Pinned {
                    registration: register(&writable)?,
                    elsewhere: Some(writable),
                    _account: None,
                })
            }
            registered => Ok(Pinned {
                registration: registered?,
                elsewhere: None,
                _account: None,
            }),
        }
    }

    /// A queue pair to `peer` for up to `depth` operations that are posted or not yet polled.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when the device has no room for so many.
    pub fn prepare(self: &Arc<Self>, peer: NodeId, depth: usize) -> io::Result<Prepared> {
        let requests = QueuePair::requests_for(depth);
        if depth == 0 || requests > self.device.most_requests() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // An entry for each request, so that it cannot overrun.
        let completions = CompletionQueue::new(self.device.context(), requests)?;
        let room = Room {
            requests,
            locals: self.device.most_locals() as u32,
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

    /// A queue pair by which the end that has these parameters can reach what is exported here, and
    /// which asks for nothing itself.
    ///
    /// # Errors
    /// The system's, also when there is no way to the peer.
    pub fn answer(&self, peer: &ConnectionParameters) -> io::Result<Answering> {
        let completions = CompletionQueue::new(self.device.context(), 1)?;
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

    /// One end of a channel whose packets are to be as `check` says.
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

    /// The buffers that all channels of this domain receive in.
    fn pool(&self) -> io::Result<Arc<Pool>> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pool.upgrade() {
            return Ok(pool);
        }
        let made = Arc::new(Pool::new(&self.protection, self.device.most_buffers())?);
        *pool = Arc::downgrade(&made);
        Ok(made)
    }

    fn local(&self) -> MutexGuard<'_, HashMap<usize, Pinned>> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets memory of ours that is about to go.
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

/// Memory that a device has been told of.
#[derive(Debug)]
struct Pinned {
    /// Before the memory.
    registration: Registration,
    /// Where it was mapped once more for that.
    elsewhere: Option<Mapping>,
    /// Last: it counts what is pinned.
    _account: Option<DropGuard>,
}

impl Pinned {
    /// Where the device knows it.
    fn start(&self, memory: &Memory) -> usize {
        self.elsewhere.as_ref().unwrap_or(memory.mapping()).start()
    }
}

/// A region that peers may use as long as this is here, and the region neither moves nor ends. Then
/// the key is worth nothing any more, whoever kept it.
#[derive(Debug)]
pub struct Export {
    /// The memory alone keeps it.
    pinned: Weak<Pinned>,
    memory: Arc<Memory>,
    parameters: RegionParameters,
    _owner: DropGuard,
}

impl Export {
    /// What a peer has to know to use it.
    pub fn parameters(&self) -> RegionParameters {
        self.parameters
    }

    /// Whether it can still be used.
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

/// A queue pair that answers its peer until it is dropped.
#[derive(Debug)]
pub struct Answering {
    parameters: ConnectionParameters,
    /// Before where it would tell what has ended.
    _connection: Connection,
    _completions: CompletionQueue,
}

impl Answering {
    /// What the other end has to know.
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
    /// What the other end has to know.
    pub fn parameters(&self) -> ConnectionParameters {
        self.connection.parameters(&self.domain.device)
    }

    /// Connects it to the end that has these parameters, which does the same. `status` says
    /// whether it may still be used.
    ///
    /// # Errors
    /// The system's, also when there is no way to the peer.
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
    /// What the other end has to know.
    pub fn parameters(&self) -> ConnectionParameters {
        self.ends.connection.parameters(&self.domain.device)
    }

    /// Connects it, as [`Prepared::connect`].
    ///
    /// # Errors
    /// The system's, also when there is no way to the peer.
    pub fn connect(self, peer: &ConnectionParameters, status: Arc<Status>) -> io::Result<Channel> {
        self.ends.connection.connect(&self.domain.device, peer)?;
        let (node, check) = (self.domain.node, self.check);
        Channel::new(self.ends, node, check, self.membership, status)
    }
}
