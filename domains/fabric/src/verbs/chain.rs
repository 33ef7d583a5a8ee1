//! Work requests that are posted to the device together.

use std::fmt;
use std::io;
use std::ptr;

use ibverbs_sys as ffi;

use super::connection::Connection;
use super::objects::{Locals, errno};

/// Address and key of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: u64,
    pub(super) rkey: u32,
}

/// Operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read(Target),
    Write(Target),
    /// A write that completes a receive of the peer with an immediate value.
    WriteWithImmediate {
        target: Target,
        immediate: u32,
    },
    CompareAndSwap {
        target: Target,
        expected: u64,
        desired: u64,
    },
    FetchAdd {
        target: Target,
        add: u64,
    },
    /// A message with an immediate value.
    Send {
        immediate: u32,
    },
}

/// A work request before it is posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkRequest {
    pub(super) number: u64,
    pub(super) action: Action,
    pub(super) local: Locals,
    /// Whether posting copies its bytes.
    pub(super) inline: bool,
    /// Whether success has a completion. A failure always has one.
    pub(super) signalled: bool,
}

/// Work requests in posting order.
pub(super) struct Chain {
    requests: Vec<ffi::ibv_send_wr>,
    parts: Vec<ffi::ibv_sge>,
}

// SAFETY: the pointers within requests are set by `post`, and used only until its call returns.
unsafe impl Send for Chain {}
// SAFETY: as above; a shared chain can only be read.
unsafe impl Sync for Chain {}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain of {}", self.requests.len())
    }
}

/// Failure to post: the device has taken the requests before `first` only.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) first: u64,
    pub(super) error: io::Error,
}

impl Chain {
    /// An empty chain with room for `requests` requests of `locals` segments each.
    pub(super) fn with_capacity(requests: usize, locals: usize) -> Self {
        Chain {
            requests: Vec::with_capacity(requests),
            parts: Vec::with_capacity(requests * locals),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn push(&mut self, work: &WorkRequest) {
        let mut request = ffi::ibv_send_wr {
            wr_id: work.number,
            num_sge: work.local.count() as libc::c_int,
            opcode: opcode(work.action),
            ..Default::default()
        };
        fill_in(&mut request, work.action);
        set(&mut request, Flags::IBV_SEND_INLINE, work.inline);
        set(&mut request, Flags::IBV_SEND_SIGNALED, work.signalled);
        self.requests.push(request);
        self.parts.extend(work.local.parts());
    }

    /// Requests a completion of the last request; returns the number of signalled requests.
    pub(super) fn signal_last(&mut self) -> usize {
        if let Some(last) = self.requests.last_mut() {
            set(last, Flags::IBV_SEND_SIGNALED, true);
        }
        let asks =
            |request: &&ffi::ibv_send_wr| request.send_flags & Flags::IBV_SEND_SIGNALED.0 != 0;
        self.requests.iter().filter(asks).count()
    }

    /// Posts all requests and removes them. Their memory must stay unchanged until they have ended.
    pub(super) fn post(&mut self, connection: &Connection) -> Result<(), Refused> {
        self.link();
        let Some(first) = self.requests.first_mut() else {
            return Ok(());
        };
        let (mut refused, pair) = (ptr::null_mut(), connection.raw());
        // SAFETY: the pair and its context are alive. The requests and their parts are linked
        // (`link`) and do not move during the call.
        let failed = unsafe {
            let post = (*(*pair).context).ops.post_send;
            post.map_or(libc::EOPNOTSUPP, |post| post(pair, first, &raw mut refused))
        };
        let result = errno(failed).map_err(|error| Refused {
            first: first_refused(&self.requests, refused),
            error,
        });
        self.requests.clear();
        self.parts.clear();
        result
    }

    fn link(&mut self) {
        let mut next = ptr::null_mut();
        let mut parts = self.parts.as_mut_slice();
        for request in self.requests.iter_mut().rev() {
            let (before, own) = parts.split_at_mut(parts.len() - request.num_sge as usize);
            parts = before;
            request.sg_list = own.as_mut_ptr();
            request.next = next;
            next = request;
        }
    }
}

/// Number of the request at `refused`, or of the first if the driver names none.
fn first_refused(requests: &[ffi::ibv_send_wr], refused: *const ffi::ibv_send_wr) -> u64 {
    let named = requests.iter().find(|request| ptr::eq(*request, refused));
    named
        .or(requests.first())
        .map_or(0, |request| request.wr_id)
}

type Flags = ffi::ibv_send_flags;

fn set(request: &mut ffi::ibv_send_wr, flag: Flags, on: bool) {
    if on {
        request.send_flags |= flag.0;
    }
}

fn opcode(action: Action) -> ffi::ibv_wr_opcode::Type {
    use ffi::ibv_wr_opcode as codes;
    match action {
        Action::Read(_) => codes::IBV_WR_RDMA_READ,
        Action::Write(_) => codes::IBV_WR_RDMA_WRITE,
        Action::WriteWithImmediate { .. } => codes::IBV_WR_RDMA_WRITE_WITH_IMM,
        Action::CompareAndSwap { .. } => codes::IBV_WR_ATOMIC_CMP_AND_SWP,
        Action::FetchAdd { .. } => codes::IBV_WR_ATOMIC_FETCH_AND_ADD,
        Action::Send { .. } => codes::IBV_WR_SEND_WITH_IMM,
    }
}

fn fill_in(request: &mut ffi::ibv_send_wr, action: Action) {
    match action {
        Action::Read(target) | Action::Write(target) => one_sided(request, target),
        Action::WriteWithImmediate { target, immediate } => {
            one_sided(request, target);
            request.__bindgen_anon_1.imm_data = immediate.to_be();
        }
        Action::CompareAndSwap {
            target,
            expected,
            desired,
        } => atomic(request, target, expected, desired),
        Action::FetchAdd { target, add } => atomic(request, target, add, 0),
        Action::Send { immediate } => request.__bindgen_anon_1.imm_data = immediate.to_be(),
    }
}

fn one_sided(request: &mut ffi::ibv_send_wr, target: Target) {
    request.wr.rdma.remote_addr = target.address;
    request.wr.rdma.rkey = target.rkey;
}

fn atomic(request: &mut ffi::ibv_send_wr, target: Target, compare_add: u64, swap: u64) {
    request.wr.atomic.remote_addr = target.address;
    request.wr.atomic.rkey = target.rkey;
    request.wr.atomic.compare_add = compare_add;
    request.wr.atomic.swap = swap;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refused_request_is_found_by_its_address() {
        let requests = [5, 6, 7].map(|wr_id| ffi::ibv_send_wr {
            wr_id,
            ..Default::default()
        });
        for request in &requests {
            assert_eq!(first_refused(&requests, request), request.wr_id);
        }
        assert_eq!(first_refused(&requests, ptr::null()), 5);
        assert_eq!(first_refused(&[], ptr::null()), 0);
    }
}
