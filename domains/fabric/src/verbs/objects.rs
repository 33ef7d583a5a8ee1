//! The objects of libibverbs, each freed with its last handle, and before what it was made of.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use ibverbs_sys as ffi;

use crate::mem::waker::sleep_on;

/// Something that libibverbs made, and the call that frees it.
pub(super) struct Object<T> {
    raw: NonNull<T>,
    free: unsafe extern "C" fn(*mut T) -> libc::c_int,
}

// SAFETY: libibverbs lets any thread use its objects, several at a time.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// What a call made: null is the system's error.
    ///
    /// # Safety
    /// `free` must free what `raw` leads to, and nobody else does.
    pub(super) unsafe fn new(
        raw: *mut T,
        free: unsafe extern "C" fn(*mut T) -> libc::c_int,
    ) -> io::Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Object { raw, free })
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
        // SAFETY: made by libibverbs and freed here only (`new`). What was made of it holds it, so
        // nothing of that is left.
        unsafe { (self.free)(self.raw.as_ptr()) };
    }
}

/// An open device.
pub(super) type Context = Object<ffi::ibv_context>;

/// A protection domain of a device.
#[derive(Debug)]
pub(super) struct Protection {
    object: Object<ffi::ibv_pd>,
    _context: Arc<Context>,
}

impl Protection {
    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.object.raw()
    }

    pub(super) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open, and the object is freed by its own call only.
        let object = unsafe {
            let raw = ffi::ibv_alloc_pd(context.raw());
            Object::new(raw, ffi::ibv_dealloc_pd)?
        };
        let _context = Arc::clone(context);
        Ok(Protection { object, _context })
    }
}

/// Memory that a device has been told of.
#[derive(Debug)]
pub(super) struct Registration {
    object: Object<ffi::ibv_mr>,
    _protection: Arc<Protection>,
}

impl Registration {
    /// Tells the device of `len` bytes at `address`, with these flags of `enum ibv_access_flags`.
    ///
    /// # Safety
    /// The memory must stay mapped, and ours, until this is dropped; and be such as others may
    /// write at any time, if the flags say that peers do.
    pub(super) unsafe fn new(
        protection: &Arc<Protection>,
        address: usize,
        len: usize,
        flags: u32,
    ) -> io::Result<Self> {
        let (pd, address) = (protection.object.raw(), address as *mut libc::c_void);
        // SAFETY: the domain is alive, and the memory is the caller's promise. The object is freed
        // by its own call only.
        let object = unsafe {
            let raw = ffi::ibv_reg_mr(pd, address, len, flags as libc::c_int);
            Object::new(raw, deregister)?
        };
        let _protection = Arc::clone(protection);
        Ok(Registration {
            object,
            _protection,
        })
    }

    /// The key by which our own requests name it.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the object is alive, and nobody writes it.
        unsafe { (*self.object.raw()).lkey }
    }

    /// The key by which peers name it.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { (*self.object.raw()).rkey }
    }
}

/// Lets the device forget memory, which is about to be unmapped, or to move.
///
/// # Safety
/// As `ibv_dereg_mr`.
unsafe extern "C" fn deregister(registered: *mut ffi::ibv_mr) -> libc::c_int {
    // SAFETY: the caller's promise.
    let failed = unsafe { ffi::ibv_dereg_mr(registered) };
    let error = match failed {
        0 => return 0,
        // Some drivers return no number.
        -1 => io::Error::last_os_error(),
        number => io::Error::from_raw_os_error(number.abs()),
    };
    if !is_gone(&error) {
        // The device goes on writing there. Its kernel takes all from it that a process had which
        // has ended.
        eprintln!("an RDMA device does not let go of memory: {error}");
        std::process::abort();
    }
    0
}

/// Whether it says that there is no device any more: it was reset or taken out, before which its
/// kernel has taken all from it that processes had.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV))
}

/// Where a device tells what has ended, and a descriptor that becomes readable when it was asked
/// to say so.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    object: Object<ffi::ibv_cq>,
    channel: Object<ffi::ibv_comp_channel>,
    _context: Arc<Context>,
}

impl CompletionQueue {
    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.object.raw()
    }

    /// A queue with at least `entries` entries.
    pub(super) fn new(context: &Arc<Context>, entries: usize) -> io::Result<Self> {
        let entries = libc::c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let no_context = ptr::null_mut();
        // SAFETY: the context is open; the objects are freed by their own calls only, the queue
        // before its channel (the order of the fields).
        let (channel, object) = unsafe {
            let channel = ffi::ibv_create_comp_channel(context.raw());
            let channel = Object::new(channel, ffi::ibv_destroy_comp_channel)?;
            let raw = ffi::ibv_create_cq(context.raw(), entries, no_context, channel.raw(), 0);
            (channel, Object::new(raw, ffi::ibv_destroy_cq)?)
        };
        let _context = Arc::clone(context);
        let queue = CompletionQueue {
            object,
            channel,
            _context,
        };
        never_block(queue.fd().as_raw_fd())?;
        Ok(queue)
    }

    /// Moves what has ended to `into` and returns how many.
    pub(super) fn poll(&self, into: &mut [ffi::ibv_wc]) -> io::Result<usize> {
        let (queue, room) = (self.object.raw(), into.len() as libc::c_int);
        // SAFETY: the queue is alive and so is the context that it leads to; the driver writes at
        // most `room` entries to `into`.
        let count = unsafe {
            let poll = (*(*queue).context).ops.poll_cq;
            poll.map_or(-1, |poll| poll(queue, room, into.as_mut_ptr()))
        };
        usize::try_from(count).map_err(|_| io::ErrorKind::Other.into())
    }

    /// Asks that the descriptor become readable when something ends from now on.
    pub(super) fn request_event(&self) -> io::Result<()> {
        let queue = self.object.raw();
        // SAFETY: as in `poll`.
        let failed = unsafe {
            let notify = (*(*queue).context).ops.req_notify_cq;
            notify.map_or(libc::EOPNOTSUPP, |notify| notify(queue, 0))
        };
        errno(failed)
    }

    /// Makes the descriptor unreadable. That it cannot be read means that the device has gone.
    pub(super) fn take_events(&self) -> io::Result<()> {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and its descriptor does not block; each event taken is of
        // the one queue of this channel, and acknowledged, without which that could not be freed.
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
        // SAFETY: the channel has it open as long as it is alive.
        unsafe { BorrowedFd::borrow_raw((*self.channel.raw()).fd) }
    }

    /// Sleeps until the descriptor is readable or `timeout` has passed.
    pub(super) fn sleep(&self, timeout: Duration) {
        sleep_on(self.fd(), timeout);
    }
}

fn never_block(fd: RawFd) -> io::Result<()> {
    // SAFETY: the command takes integers.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A queue of buffers into which what peers send arrives, whichever of them it is.
#[derive(Debug)]
pub(super) struct SharedReceive {
    object: Object<ffi::ibv_srq>,
    _protection: Arc<Protection>,
}

impl SharedReceive {
    pub(super) fn raw(&self) -> *mut ffi::ibv_srq {
        self.object.raw()
    }

    /// A queue with room for so many buffers.
    pub(super) fn new(protection: &Arc<Protection>, buffers: u32) -> io::Result<Self> {
        let mut attributes = ffi::ibv_srq_init_attr::default();
        attributes.attr.max_wr = buffers;
        attributes.attr.max_sge = 1;
        // SAFETY: the domain is alive and the attributes are ours; the object is freed by its own
        // call only.
        let object = unsafe {
            let raw = ffi::ibv_create_srq(protection.object.raw(), &raw mut attributes);
            Object::new(raw, ffi::ibv_destroy_srq)?
        };
        let _protection = Arc::clone(protection);
        Ok(SharedReceive {
            object,
            _protection,
        })
    }

    /// Adds a buffer of registered memory under a number; no bytes are no memory.
    ///
    /// # Safety
    /// The memory must stay registered until a completion has named the number, or this is dropped.
    pub(super) unsafe fn post(&self, number: u64, buffer: &Local) -> io::Result<()> {
        let mut part = buffer.part();
        let mut request = ffi::ibv_recv_wr {
            wr_id: number,
            next: ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: libc::c_int::from(buffer.len > 0),
        };
        let (mut refused, queue) = (ptr::null_mut(), self.object.raw());
        // SAFETY: the queue is alive and so is the context that it leads to; the driver copies the
        // request, and writes only where it refuses one.
        let failed = unsafe {
            let post = (*(*queue).context).ops.post_srq_recv;
            post.map_or(libc::EOPNOTSUPP, |post| {
                post(queue, &raw mut request, &raw mut refused)
            })
        };
        errno(failed)
    }
}

/// Registered memory of ours, as a request names it.
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

/// Several of these that one request takes for one, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Locals {
    some: [Local; Locals::MOST],
    count: usize,
    len: u32,
}

impl Locals {
    /// So many have room in a request where its own bytes would have it, at the devices that we know.
    pub(super) const MOST: usize = 8;

    /// Adds one, if it has bytes; there must be room for it.
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

    /// Bytes of all together.
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

/// What a call returned that returns 0 or the number of an error.
pub(super) fn errno(failed: libc::c_int) -> io::Result<()> {
    match failed {
        0 => Ok(()),
        // Some drivers return it negated.
        number => Err(io::Error::from_raw_os_error(number.abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reset of the device once ended every program that had told it of memory.
    #[test]
    fn only_a_device_that_is_gone_may_refuse_to_forget() {
        let is_gone = |errno| is_gone(&io::Error::from_raw_os_error(errno));
        assert!(is_gone(libc::EIO) && is_gone(libc::ENODEV));
        for errno in [libc::EBUSY, libc::EINVAL, libc::ENOMEM, libc::EPERM] {
            assert!(!is_gone(errno));
        }
    }
}
