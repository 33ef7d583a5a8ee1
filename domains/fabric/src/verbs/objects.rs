//! Objects of libibverbs. Each is freed before the object that it was created from.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use ibverbs_sys as ffi;
use rustix::io::ioctl_fionbio;

use crate::mem::DropGuard;
use crate::os::thread::sleep_on;

/// An object of libibverbs and the call that frees it.
pub(super) struct Object<T> {
    raw: NonNull<T>,
    free: unsafe extern "C" fn(*mut T) -> libc::c_int,
    /// The object that it was created from; dropped after the call of `free`.
    _parent: Option<DropGuard>,
}

// SAFETY: libibverbs lets any thread use its objects, several at a time.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// The object that a call returned; null stands for the system's error.
    ///
    /// # Safety
    /// `free` must free the object at `raw`, and no other code frees it.
    pub(super) unsafe fn new(
        raw: *mut T,
        free: unsafe extern "C" fn(*mut T) -> libc::c_int,
        parent: Option<DropGuard>,
    ) -> io::Result<Self> {
        Ok(Object {
            raw: NonNull::new(raw).ok_or_else(io::Error::last_os_error)?,
            free,
            _parent: parent,
        })
    }

    pub(super) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> fmt::Debug for Object<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({:p})", self.raw)
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: created by libibverbs and freed here only (`new`). Objects created from it hold
        // it, so none of them is left.
        unsafe { (self.free)(self.raw.as_ptr()) };
    }
}

/// An open device.
pub(super) type Context = Object<ffi::ibv_context>;

/// A protection domain of a device.
pub(super) type Protection = Object<ffi::ibv_pd>;

impl Protection {
    pub(super) fn allocate(context: &Arc<Context>) -> io::Result<Self> {
        let parent = Some(Arc::clone(context) as DropGuard);
        // SAFETY: the context is open, and the object is freed by its own call only.
        unsafe {
            let raw = ffi::ibv_alloc_pd(context.raw());
            Object::new(raw, ffi::ibv_dealloc_pd, parent)
        }
    }
}

/// Memory registered with a device.
pub(super) type Registration = Object<ffi::ibv_mr>;

impl Registration {
    /// Registers `len` bytes at `address` with flags of `enum ibv_access_flags`.
    ///
    /// # Safety
    /// The memory must stay mapped and owned by the caller until the registration is dropped. If
    /// the flags permit writes of peers, the memory must be such as may change at any time.
    pub(super) unsafe fn register(
        protection: &Arc<Protection>,
        address: usize,
        len: usize,
        flags: u32,
    ) -> io::Result<Self> {
        let (pd, address) = (protection.raw(), address as *mut libc::c_void);
        let parent = Some(Arc::clone(protection) as DropGuard);
        // SAFETY: the domain is alive; the caller promises the memory. The object is freed by its
        // own call only.
        unsafe {
            let raw = ffi::ibv_reg_mr(pd, address, len, flags as libc::c_int);
            Object::new(raw, deregister, parent)
        }
    }

    /// The key of the memory in local requests.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the object is alive and constant.
        unsafe { (*self.raw()).lkey }
    }

    /// The key of the memory in requests of peers.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { (*self.raw()).rkey }
    }
}

/// Deregisters memory that is about to be unmapped or migrated; aborts the process if that fails.
///
/// # Safety
/// As `ibv_dereg_mr`.
unsafe extern "C" fn deregister(registered: *mut ffi::ibv_mr) -> libc::c_int {
    // SAFETY: the caller's promise.
    let failed = unsafe { ffi::ibv_dereg_mr(registered) };
    let error = match failed {
        0 => return 0,
        // Some drivers set errno instead.
        -1 => io::Error::last_os_error(),
        number => io::Error::from_raw_os_error(number.abs()),
    };
    if !is_gone(&error) {
        // The device would still write there. When the process ends, the kernel deregisters all of
        // its memory.
        eprintln!("an RDMA device does not let go of memory: {error}");
        std::process::abort();
    }
    0
}

/// Whether the error means that the device was reset or removed. The kernel has deregistered all
/// memory before that.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV))
}

/// A completion queue, and a descriptor that becomes readable at a requested event.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    object: Object<ffi::ibv_cq>,
    channel: Object<ffi::ibv_comp_channel>,
}

impl CompletionQueue {
    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.object.raw()
    }

    /// A queue with at least `entries` entries.
    pub(super) fn new(context: &Arc<Context>, entries: usize) -> io::Result<Self> {
        let entries = libc::c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (no_context, parent) = (ptr::null_mut(), Some(Arc::clone(context) as DropGuard));
        // SAFETY: the context is open; the objects are freed by their own calls only, the queue
        // before its channel (the order of the fields).
        let (channel, object) = unsafe {
            let channel = ffi::ibv_create_comp_channel(context.raw());
            let channel = Object::new(channel, ffi::ibv_destroy_comp_channel, parent.clone())?;
            let raw = ffi::ibv_create_cq(context.raw(), entries, no_context, channel.raw(), 0);
            (channel, Object::new(raw, ffi::ibv_destroy_cq, parent)?)
        };
        let queue = CompletionQueue { object, channel };
        ioctl_fionbio(queue.fd(), true)?;
        Ok(queue)
    }

    /// Moves completions to `into`; returns their number.
    pub(super) fn poll(&self, into: &mut [ffi::ibv_wc]) -> io::Result<usize> {
        let (queue, room) = (self.object.raw(), into.len() as libc::c_int);
        // SAFETY: the queue and its context are alive; the driver writes at most `room` entries to
        // `into`.
        let count = unsafe {
            let poll = (*(*queue).context).ops.poll_cq;
            poll.map_or(-1, |poll| poll(queue, room, into.as_mut_ptr()))
        };
        usize::try_from(count).map_err(|_| io::ErrorKind::Other.into())
    }

    /// Requests that the descriptor become readable at the next completion.
    pub(super) fn request_event(&self) -> io::Result<()> {
        let queue = self.object.raw();
        // SAFETY: as in `poll`.
        let failed = unsafe {
            let notify = (*(*queue).context).ops.req_notify_cq;
            notify.map_or(libc::EOPNOTSUPP, |notify| notify(queue, 0))
        };
        errno(failed)
    }

    /// Makes the descriptor unreadable. An error means that the device has gone.
    pub(super) fn take_events(&self) -> io::Result<()> {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and its descriptor does not block. Each event is of the one
        // queue of this channel and is acknowledged, as freeing that queue requires.
        unsafe {
            while ffi::ibv_get_cq_event(self.channel.raw(), &raw mut queue, &raw mut context) == 0 {
                ffi::ibv_ack_cq_events(queue, 1);
            }
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }
    }

    /// The descriptor.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps the descriptor open as long as it is alive.
        unsafe { BorrowedFd::borrow_raw((*self.channel.raw()).fd) }
    }

    /// Sleeps until the descriptor is readable or `timeout` has passed.
    pub(super) fn sleep(&self, timeout: Duration) {
        sleep_on(self.fd(), timeout);
    }
}

/// A shared receive queue.
pub(super) type SharedReceive = Object<ffi::ibv_srq>;

impl SharedReceive {
    /// A queue with room for `buffers` buffers.
    pub(super) fn create(protection: &Arc<Protection>, buffers: u32) -> io::Result<Self> {
        let parent = Some(Arc::clone(protection) as DropGuard);
        let mut attributes = ffi::ibv_srq_init_attr::default();
        attributes.attr.max_wr = buffers;
        attributes.attr.max_sge = 1;
        // SAFETY: the domain is alive and the attributes are borrowed; the object is freed by its
        // own call only.
        unsafe {
            let raw = ffi::ibv_create_srq(protection.raw(), &raw mut attributes);
            Object::new(raw, ffi::ibv_destroy_srq, parent)
        }
    }

    /// Adds a buffer of registered memory under a number. A buffer of 0 bytes names no memory.
    ///
    /// # Safety
    /// The memory must stay registered until a completion has the number, or the queue is dropped.
    pub(super) unsafe fn post(&self, number: u64, buffer: &Local) -> io::Result<()> {
        let mut part = buffer.part();
        let mut request = ffi::ibv_recv_wr {
            wr_id: number,
            next: ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: libc::c_int::from(buffer.len > 0),
        };
        let (mut refused, queue) = (ptr::null_mut(), self.raw());
        // SAFETY: the queue and its context are alive; the driver copies the request, and writes
        // only the address of a refused one.
        let failed = unsafe {
            let post = (*(*queue).context).ops.post_srq_recv;
            post.map_or(libc::EOPNOTSUPP, |post| {
                post(queue, &raw mut request, &raw mut refused)
            })
        };
        errno(failed)
    }
}

/// A segment of registered local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Local {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) lkey: u32,
}

impl Local {
    fn part(&self) -> ffi::ibv_sge {
        ffi::ibv_sge {
            addr: self.address,
            length: self.len,
            lkey: self.lkey,
        }
    }
}

/// The segments of local memory of a request, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Locals {
    some: [Local; Locals::MOST],
    count: usize,
    len: u32,
}

impl Locals {
    /// The most segments of a request: at known devices they fit into the room of inline data.
    pub(super) const MOST: usize = 8;

    /// Adds a segment, unless it is empty; there must be room for it.
    pub(super) fn push(&mut self, local: Local) {
        if local.len > 0 {
            self.some[self.count] = local;
            self.count += 1;
            self.len += local.len;
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of all segments.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = ffi::ibv_sge> {
        self.some[..self.count].iter().map(Local::part)
    }
}

impl From<Local> for Locals {
    fn from(local: Local) -> Self {
        let mut locals = Locals::default();
        locals.push(local);
        locals
    }
}

/// Result of a call that returns 0 or an error number.
pub(super) fn errno(failed: libc::c_int) -> io::Result<()> {
    match failed {
        0 => Ok(()),
        // Some drivers return the negated number.
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reset of the device once aborted every program with registered memory.
    #[test]
    fn only_a_device_that_is_gone_may_refuse_to_deregister() {
        let is_gone = |errno| is_gone(&io::Error::from_raw_os_error(errno));
        assert!(is_gone(libc::EIO) && is_gone(libc::ENODEV));
        for errno in [libc::EBUSY, libc::EINVAL, libc::ENOMEM, libc::EPERM] {
            assert!(!is_gone(errno));
        }
    }
}
