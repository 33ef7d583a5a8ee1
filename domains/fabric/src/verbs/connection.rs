//! Reliable connections: queue pairs of the device, from creation to destruction.

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibverbs_sys as ffi;

use super::device::Device;
use super::objects::{CompletionQueue, Object, Protection, SharedReceive, errno};
use crate::core::parameters::ConnectionParameters;
use crate::key::Access;
use crate::mem::DropGuard;

/// Retransmission timeout: 4.096 us * 2^16 = 0.27 s.
const TIMEOUT: u8 = 16;

/// Retransmissions before the peer counts as dead: some 2 s, and more where devices round up. 7 is
/// without limit for a peer without a buffer, and for all failures at the emulated device of Linux.
const RETRIES: u8 = 6;

/// RNR timer, the wait that a side without a buffer asks for: 12 stands for 0.64 ms.
const NOT_READY_TIMER: u8 = 12;

/// Hop limit of packets.
const HOPS: u8 = 64;

/// Capacity of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) requests: usize,
    /// Segments of local memory of a request.
    pub(super) locals: u32,
    /// Bytes of inline data of a request; the device may have less.
    pub(super) inline: u32,
}

/// A queue pair of the device, connected or not.
#[derive(Debug)]
pub(super) struct Connection {
    pair: NonNull<ffi::ibv_qp>,
    end: Closer,
    inline: u32,
    /// Number of the first packet that it sends.
    psn: u32,
    _receive: Option<Arc<SharedReceive>>,
}

// SAFETY: libibverbs lets any thread use its objects; `pair` is the object in `end`.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// Ends a connection from any thread; without effect on one that has ended.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Mutex<Option<Object<ffi::ibv_qp>>>>);

impl Closer {
    /// Moves the queue pair to the error state: requests in flight end, and the device sends and
    /// answers nothing more.
    pub fn close(&self) {
        if let Some(pair) = self.pair().as_ref() {
            let mut attributes = state(ffi::ibv_qp_state::IBV_QPS_ERR);
            // Fails on a queue pair that has ended already.
            let _ = modify(pair.raw(), &mut attributes, Mask::IBV_QP_STATE);
        }
    }

    fn pair(&self) -> MutexGuard<'_, Option<Object<ffi::ibv_qp>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Closers find no queue pair from now on.
        drop(self.end.pair().take());
    }
}

impl Connection {
    /// A queue pair whose sends and receives complete in `completions`.
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
        let parent = Some(Arc::clone(protection) as DropGuard);
        // SAFETY: the domain and the queues are alive; the caller keeps the completion queue longer
        // than the connection. The object is freed by its own call only.
        let object = unsafe {
            let raw = ffi::ibv_create_qp(protection.raw(), &raw mut attributes);
            Object::new(raw, ffi::ibv_destroy_qp, parent)?
        };
        Ok(Connection {
            pair: NonNull::new(object.raw()).ok_or(io::ErrorKind::Other)?,
            end: Closer(Arc::new(Mutex::new(Some(object)))),
            inline: attributes.cap.max_inline_data.min(room.inline),
            psn: random() & 0xff_ffff,
            _receive: receive.cloned(),
        })
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_qp {
        self.pair.as_ptr()
    }

    /// Bytes of the longest inline data.
    pub(super) fn inline_bytes(&self) -> u32 {
        self.inline
    }

    pub(super) fn close(&self) {
        self.end.close();
    }

    pub(super) fn closer(&self) -> Closer {
        self.end.clone()
    }

    /// Parameters that the other end needs to connect.
    pub(super) fn parameters(&self, device: &Device) -> ConnectionParameters {
        ConnectionParameters {
            // SAFETY: the object is alive, and its number is constant.
            number: unsafe { (*self.raw()).qp_num },
            psn: self.psn,
            lid: device.lid,
            mtu: device.mtu,
            depth: device.responder_resources,
            gid: device.gid,
        }
    }

    /// Connects the queue pair: the peer may now reach the exports of the protection domain.
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
        attributes.path_mtu = u32::from(peer.mtu.min(device.mtu));
        attributes.dest_qp_num = peer.number;
        attributes.rq_psn = peer.psn;
        attributes.max_dest_rd_atomic = device.responder_resources;
        attributes.min_rnr_timer = NOT_READY_TIMER;
        let path = &mut attributes.ah_attr;
        path.dlid = peer.lid;
        path.port_num = device.port();
        // A peer without a global identifier is in the same InfiniBand subnet.
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
        attributes.max_rd_atomic = peer.depth.min(device.initiator_depth);
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
    // SAFETY: the callers' pair is of an object that is alive; the attributes are borrowed.
    errno(unsafe { ffi::ibv_modify_qp(pair, attributes, mask.0 as libc::c_int) })
}

/// Device flags of the rights of peers.
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

/// Device flags of writable memory. The device must be able to write wherever peers may.
pub(super) fn access_flags(access: Access) -> ffi::ibv_access_flags {
    peer_flags(access) | ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
}

/// Device flags of read-only memory.
pub(super) fn read_only_flags(access: Access) -> ffi::ibv_access_flags {
    peer_flags(access & Access::REMOTE_READ)
}

/// A number that differs between connections, so that a late packet of an old connection does not
/// match a new one. Isolation does not depend on it.
fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u32
}
