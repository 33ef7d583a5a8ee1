//! What is made once: protection domains, registered memory, and queue pairs on their way to be
//! connected.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::channel::{Channel, Ends};
use super::connection::{Connection, Room, access_flags};
use super::device::Device;
use super::objects::{CompletionQueue, Protection, Registration};
use super::parameters::{ConnectionParameters, RegionParameters};
use super::queue_pair::QueuePair;
use super::receive::Pool;
use super::remote::Route;
use crate::key::{Access, Partition, RemoteKey};
use crate::link::LinkCheck;
use crate::region::Region;
use crate::shm::channel::Membership;
use crate::shm::moving::Memory;
use crate::shm::status::Status;
use crate::topology::NodeId;

/// Bytes that a small write carries with it, if the adapter can.
const INLINE: u32 = 128;

/// What one partition may use of an adapter: memory and queue pairs of one protection domain know
/// nothing of another's.
#[derive(Debug)]
pub struct ProtectionDomain {
    /// Memory of ours, by its place; before the domain that it is registered in.
    local: Mutex<HashMap<usize, Registration>>,
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

    /// The adapter.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Lets peers use a region as `access` says, by any queue pair of this domain, until what is
    /// returned is dropped.
    ///
    /// # Errors
    /// The system's: no right to lock so much memory (`ulimit -l`), or memory that may move.
    pub fn export(&self, region: &Region, key: RemoteKey, access: Access) -> io::Result<Export> {
        let registration = self.register_as(region.memory(), access)?;
        Ok(Export {
            registration,
            region: region.clone(),
            key,
            access,
        })
    }

    /// The key by which our own requests use a region. It is registered the first time, for as
    /// long as both it and this domain are there.
    pub(super) fn register(self: &Arc<Self>, region: &Region) -> io::Result<u32> {
        let memory = region.memory();
        let place = Arc::as_ptr(memory) as usize;
        let mut local = self.local();
        if let Some(registration) = local.get(&place) {
            return Ok(registration.lkey());
        }
        let registration = self.register_as(memory, Access::empty())?;
        let lkey = registration.lkey();
        local.insert(place, registration);
        memory.attach(Arc::new(Forget {
            domain: Arc::downgrade(self),
            place,
        }));
        Ok(lkey)
    }

    fn register_as(&self, memory: &Arc<Memory>, access: Access) -> io::Result<Registration> {
        if memory.can_move() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mapping = memory.mapping();
        let flags = access_flags(access).0;
        // SAFETY: the memory is mapped while it is alive: an export keeps its region, and what is
        // registered for our own use is forgotten before (`Forget`). Nobody has a reference to it.
        unsafe { Registration::new(&self.protection, mapping.start(), mapping.len(), flags) }
    }

    /// A queue pair to `peer` for up to `depth` operations that are posted or not yet polled.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when the adapter has no room for so many.
    pub fn prepare(self: &Arc<Self>, peer: NodeId, depth: usize) -> io::Result<Prepared> {
        let requests = QueuePair::requests_for(depth);
        if depth == 0 || requests > self.device.most_requests() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // An entry for each request, so that it cannot overrun.
        let completions = CompletionQueue::new(self.device.context(), requests)?;
        let inline = INLINE;
        let room = Room { requests, inline };
        let connection = Connection::new(&self.protection, &completions, None, room)?;
        Ok(Prepared {
            connection,
            completions,
            domain: Arc::clone(self),
            peer,
            depth,
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

    fn local(&self) -> MutexGuard<'_, HashMap<usize, Registration>> {
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

/// A region that peers may use as long as this is here. Once it is dropped the key is worth
/// nothing, whoever kept it.
#[derive(Debug)]
pub struct Export {
    /// Before the memory.
    registration: Registration,
    region: Region,
    key: RemoteKey,
    access: Access,
}

impl Export {
    /// What a peer has to know to use it.
    pub fn parameters(&self) -> RegionParameters {
        RegionParameters {
            key: self.key,
            rkey: self.registration.rkey(),
            access: self.access,
            address: self.region.memory().mapping().start() as u64,
            len: self.region.len(),
        }
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
