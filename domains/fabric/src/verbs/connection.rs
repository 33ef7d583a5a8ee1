//! A reliable connection: a queue pair of the device, from its making to its end.

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibverbs_sys as ffi;

use super::device::Device;
use super::objects::{CompletionQueue, Object, Protection, SharedReceive, errno};
use crate::core::parameters::ConnectionParameters;
use crate::key::Access;

/// Time after which an unanswered request is repeated: 4.096 us times 2 to this, 0.27 s.
const TIMEOUT: u8 = 16;

/// Repetitions before the peer counts as dead: some 2 s, and more where devices round up. 7 is for
/// ever when a peer has no buffer, and at the emulated device of Linux in any case.
const RETRIES: u8 = 6;

/// Time that a peer asks us to wait when it has no buffer: 12 stands for 0.64 ms.
const NOT_READY_TIMER: u8 = 12;

/// Hops of the packets.
const HOPS: u8 = 64;

/// What a connection has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) requests: usize,
    /// Places in our memory that a request may have.
    pub(super) locals: u32,
    /// Bytes that a request may carry with it. A device that has less says so.
    pub(super) inline: u32,
}

/// A queue pair of the device, connected or not.
#[derive(Debug)]
pub(super) struct Connection {
    pair: NonNull<ffi::ibv_qp>,
    end: Closer,
    inline: u32,
    /// The number of the first packet that it sends.
    psn: u32,
    _receive: Option<Arc<SharedReceive>>,
    _protection: Arc<Protection>,
}

// SAFETY: libibverbs lets any thread use its objects; the pointer is that of the object in `end`.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// Ends a connection, from any thread, also when it has ended before.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Mutex<Option<Object<ffi::ibv_qp>>>>);

impl Closer {
    /// Ends what is in flight, and keeps the device from sending or answering anything more.
    pub fn close(&self) {
        if let Some(pair) = self.pair().as_ref() {
            let mut attributes = state(ffi::ibv_qp_state::IBV_QPS_ERR);
            // It fails if it has ended already.
            let _ = modify(pair.raw(), &mut attributes, Mask::IBV_QP_STATE);
        }
    }

    fn pair(&self) -> MutexGuard<'_, Option<Object<ffi::ibv_qp>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Whoever has a closer finds nothing any more.
        drop(self.end.pair().take());
    }
}

impl Connection {
    /// Makes a queue pair whose requests end in `completions`, as what it receives does.
    pub(super) fn new(
        protection: &Arc<Protection>,
        completions: &CompletionQueue,
        receive: Option<&Arc<SharedReceive>>,
        room: Room,
    ) -> io::Result<Self> {
        let mut attributes = ffi::ibv_qp_init_attr {
            send_cq: completions.raw(),
            recv_cq: completions.raw(),
            srq: receive.map_or(std::ptr::null_mut(), |queue| queue.raw()),
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        attributes.cap.max_send_wr =
            u32::try_from(room.requests).map_err(|_| io::ErrorKind::InvalidInput)?;
        attributes.cap.max_send_sge = room.locals;
        attributes.cap.max_inline_data = room.inline;
        // SAFETY: the domain and the queues are alive; the caller keeps the completion queue longer
        // than this. The object is freed by its own call only.
        let object = unsafe {
            let raw = ffi::ibv_create_qp(protection.raw(), &raw mut attributes);
            Object::new(raw, ffi::ibv_destroy_qp)?
        };
        Ok(Connection {
            pair: NonNull::new(object.raw()).ok_or(io::ErrorKind::Other)?,
            end: Closer(Arc::new(Mutex::new(Some(object)))),
            inline: attributes.cap.max_inline_data.min(room.inline),
            psn: random() & 0xff_ffff,
            _receive: receive.cloned(),
            _protection: Arc::clone(protection),
        })
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_qp {
        self.pair.as_ptr()
    }

    /// The longest write that may carry its bytes with it.
    pub(super) fn inline_bytes(&self) -> u32 {
        self.inline
    }

    pub(super) fn close(&self) {
        self.end.close();
    }

    pub(super) fn closer(&self) -> Closer {
        self.end.clone()
    }

    /// What the other end has to know.
    pub(super) fn parameters(&self, device: &Device) -> ConnectionParameters {
        ConnectionParameters {
            // SAFETY: the object is alive, and nobody writes its number.
            number: unsafe { (*self.raw()).qp_num },
            psn: self.psn,
            lid: device.lid(),
            mtu: device.mtu(),
            depth: device.answers(),
            gid: device.gid(),
        }
    }

    /// Connects it: from now on the peer may reach what is exported in the same protection domain.
    pub(super) fn connect(&self, device: &Device, peer: &ConnectionParameters) -> io::Result<()> {
        self.initialize(device)?;
        self.get_ready_to_receive(device, peer)?;
        self.get_ready_to_send(device, peer)
    }

    fn initialize(&self, device: &Device) -> io::Result<()> {
        let mut attributes = state(ffi::ibv_qp_state::IBV_QPS_INIT);
        attributes.pkey_index = device.partition_key_index();
        attributes.port_num = device.port();
        attributes.qp_access_flags = access_flags(Access::all()).0;
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_PKEY_INDEX
            | Mask::IBV_QP_PORT
            | Mask::IBV_QP_ACCESS_FLAGS;
        modify(self.raw(), &mut attributes, mask)
    }

    fn get_ready_to_receive(&self, device: &Device, peer: &ConnectionParameters) -> io::Result<()> {
        let mut attributes = state(ffi::ibv_qp_state::IBV_QPS_RTR);
        attributes.path_mtu = u32::from(peer.mtu.min(device.mtu()));
        attributes.dest_qp_num = peer.number;
        attributes.rq_psn = peer.psn;
        attributes.max_dest_rd_atomic = device.answers();
        attributes.min_rnr_timer = NOT_READY_TIMER;
        let path = &mut attributes.ah_attr;
        path.dlid = peer.lid;
        path.port_num = device.port();
        // Without a global identifier the peer is in the same InfiniBand subnet.
        if peer.gid != [0; 16] {
            path.is_global = 1;
            path.grh.dgid.raw = peer.gid;
            path.grh.sgid_index = device.gid_index();
            path.grh.hop_limit = HOPS;
        }
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        modify(self.raw(), &mut attributes, mask)
    }

    fn get_ready_to_send(&self, device: &Device, peer: &ConnectionParameters) -> io::Result<()> {
        let mut attributes = state(ffi::ibv_qp_state::IBV_QPS_RTS);
        attributes.timeout = TIMEOUT;
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RETRIES;
        attributes.sq_psn = self.psn;
        attributes.max_rd_atomic = peer.depth.min(device.asks());
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        modify(self.raw(), &mut attributes, mask)
    }
}

type Mask = ffi::ibv_qp_attr_mask;

fn state(to: ffi::ibv_qp_state::Type) -> ffi::ibv_qp_attr {
    ffi::ibv_qp_attr {
        qp_state: to,
        ..Default::default()
    }
}

fn modify(pair: *mut ffi::ibv_qp, attributes: &mut ffi::ibv_qp_attr, mask: Mask) -> io::Result<()> {
    // SAFETY: the callers have the pair from an object that is alive; the attributes are ours.
    errno(unsafe { ffi::ibv_modify_qp(pair, attributes, mask.0 as libc::c_int) })
}

/// What peers may do, in the words of the device.
fn peer_flags(access: Access) -> ffi::ibv_access_flags {
    use ffi::ibv_access_flags as Flags;
    let flags = [
        (Access::REMOTE_READ, Flags::IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_WRITE, Flags::IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_ATOMIC, Flags::IBV_ACCESS_REMOTE_ATOMIC),
    ];
    let granted = flags.iter().filter(|(right, _)| access.contains(*right));
    granted.fold(ffi::ibv_access_flags(0), |all, (_, flag)| all | *flag)
}

/// The same of memory that the device may also write for us, as it must be able to where peers may.
pub(super) fn access_flags(access: Access) -> ffi::ibv_access_flags {
    peer_flags(access) | ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
}

/// The same of memory that nobody may write.
pub(super) fn read_only_flags(access: Access) -> ffi::ibv_access_flags {
    peer_flags(access & Access::REMOTE_READ)
}

/// A number that differs from one connection to the next, so that a late packet of an old one is
/// not taken for one of a new one. Nobody's safety depends on it.
fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u32
}
