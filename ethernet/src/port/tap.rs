//! TAPs: the kernel's end of an interface whose other end is a descriptor. With [`crate::port::uplink`]
//! and [`crate::port::stack_socket`] the only module here with `unsafe`.
//!
//! A TAP of ours is persistent, so that it outlives the driver that made it and the next driver
//! finds the interface with its addresses and connections as they were. What passes through it
//! are packets as [`crate::offload`] describes them, also where nothing may be left undone in them.
//! The crate `tun-tap` opens no such TAPs, so
//! the requests are our own.

use std::ffi::{c_int, c_short};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;

use crate::offload::segmentation::FrameParts;
use crate::offload::{Capabilities, Offload};

/// Packets to discard at most; the kernel queues 500 unless it is told otherwise.
const LONGEST_QUEUE: u32 = 1 << 16;

/// A TAP, opened without blocking. Dropping it leaves the interface where it is.
#[derive(Debug)]
pub struct Tap {
    file: File,
    capabilities: Capabilities,
}

impl Tap {
    /// Opens the TAP `name` in the network namespace of the calling thread, and makes it first
    /// if there is none. The kernel leaves undone in what it sends what `capabilities` say. Takes
    /// 0.3 ms.
    ///
    /// # Errors
    /// The system's: without /dev/net/tun or the right to use it; if the interface is no TAP
    /// (`EINVAL`), or another process holds it (`EBUSY`).
    pub fn open(name: &str, capabilities: Capabilities) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits());
        let tap = Tap {
            file: options.open("/dev/net/tun")?,
            capabilities,
        };
        request::attach(tap.as_fd(), name)?;
        request::set_offload(tap.as_fd(), capabilities)?;
        request::set_persistence(tap.as_fd(), true)?;
        Ok(tap)
    }

    /// What may be left undone in packets for it.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Changes what may be left undone in packets for it and, from the next that its kernel
    /// sends, from it.
    ///
    /// # Errors
    /// The system's: the interface is gone.
    pub fn set_capabilities(&mut self, capabilities: Capabilities) -> io::Result<()> {
        request::set_offload(self.as_fd(), capabilities)?;
        self.capabilities = capabilities;
        Ok(())
    }

    /// Reads the next packet that the interface sent, cut off at the length of `into`, and
    /// returns its length.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none. Anything but that and
    /// [`io::ErrorKind::Interrupted`] means that the interface is gone.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(into)
    }

    /// Lets the interface receive a packet.
    ///
    /// # Errors
    /// The system's; the packet is lost then. `EIO`: the interface is down; `EBADFD`: it is
    /// gone.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        whole((&self.file).write(packet)?, packet.len())
    }

    /// Lets the interface receive a frame that needs no offload.
    ///
    /// # Errors
    /// As [`Tap::send`].
    pub fn send_frame(&self, frame: &FrameParts<'_>) -> io::Result<()> {
        let [a, b, c] = frame.0;
        self.send_parts(&[&Offload::NONE, a, b, c].map(IoSlice::new))
    }

    /// Lets the interface receive a packet that is these parts, one behind the other.
    ///
    /// # Errors
    /// As [`Tap::send`].
    pub fn send_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        whole((&self.file).write_vectored(parts)?, len)
    }

    /// Discards the packets that the interface has sent and nobody has read. Returns whether there
    /// are no more, which is so unless the interface goes on sending.
    pub fn discard(&self) -> bool {
        for _ in 0..LONGEST_QUEUE {
            // What does not fit is cut off.
            match self.receive(&mut [0; Offload::LEN]) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return true,
                _ => {}
            }
        }
        false
    }

    /// Sets whether the interface outlives this value. One that does not goes with it, even if
    /// the process is killed.
    ///
    /// # Errors
    /// The system's: the interface is gone already.
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        request::set_persistence(self.as_fd(), persistent)
    }

    /// The network namespace in which it was opened.
    ///
    /// # Errors
    /// The system's: no descriptors are left.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        request::namespace(self.as_fd())
    }

    /// Takes the interface away. The kernel waits until nobody can be using it: 15 to 25 ms.
    ///
    /// # Errors
    /// The system's. That the interface is gone already is none.
    pub fn delete(self) -> io::Result<()> {
        match request::set_persistence(self.as_fd(), false) {
            Err(error) if is_gone(&error) => Ok(()),
            result => result,
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether an operation on a TAP failed because its interface no longer exists.
pub fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EBADFD as i32)
}

fn whole(written: usize, len: usize) -> io::Result<()> {
    if written == len {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Requests of linux/if_tun.h.
mod request {
    use super::*;

    /// Bytes of an interface's name with its final 0.
    const NAME_LEN: usize = 16;

    /// `struct ifreq` of linux/if.h with the one member of its union that is used here.
    #[repr(C)]
    pub(super) struct InterfaceRequest {
        name: [u8; NAME_LEN],
        flags: c_short,
        rest: [u8; 22],
    }

    const IFF_TAP: c_short = 0x0002;
    /// No further header before the packet.
    const IFF_NO_PI: c_short = 0x1000;
    /// Packets start with the header of virtio-net.
    const IFF_VNET_HDR: c_short = 0x4000;

    const TUN_F_CSUM: u64 = 0x01;
    const TUN_F_TSO4: u64 = 0x02;
    const TUN_F_TSO6: u64 = 0x04;
    const TUN_F_TSO_ECN: u64 = 0x08;
    /// The kernel takes both or none.
    const TUN_F_USO4: u64 = 0x20;
    const TUN_F_USO6: u64 = 0x40;

    /// What the kernel may leave undone, in its words.
    fn flags(capabilities: Capabilities) -> u64 {
        let flags = [
            (Capabilities::CHECKSUM, TUN_F_CSUM),
            (Capabilities::TSO4, TUN_F_TSO4 | TUN_F_TSO_ECN),
            (Capabilities::TSO6, TUN_F_TSO6 | TUN_F_TSO_ECN),
            (Capabilities::USO, TUN_F_USO4 | TUN_F_USO6),
        ];
        let flags = flags
            .into_iter()
            .filter(|(capability, _)| capabilities.contains(*capability));
        flags.fold(0, |all, (_, flags)| all | flags)
    }

    mod raw {
        use super::*;

        nix::ioctl_readwrite_bad! {
            tunsetiff, nix::request_code_write!(b'T', 202, size_of::<c_int>()), InterfaceRequest
        }
        nix::ioctl_write_int!(tunsetpersist, b'T', 203);
        nix::ioctl_write_int!(tunsetoffload, b'T', 208);
        nix::ioctl_none_bad!(siocgskns, 0x894c);
    }

    /// Makes this descriptor the other end of the TAP `name`.
    pub(super) fn attach(tun: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let mut request = InterfaceRequest {
            name: [0; NAME_LEN],
            flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR,
            rest: [0; 22],
        };
        match request.name[..NAME_LEN - 1].get_mut(..name.len()) {
            Some(space) => space.copy_from_slice(name.as_bytes()),
            None => return Err(Errno::ENAMETOOLONG.into()),
        }
        // SAFETY: the request reads and writes one `struct ifreq`. `request` is one: 40 bytes
        // with C's layout, and borrowed mutably for the call. The name in it ends with a 0,
        // because at most 15 of its 16 bytes were written. `tun` stays open meanwhile.
        unsafe { raw::tunsetiff(tun.as_raw_fd(), &mut request) }?;
        Ok(())
    }

    /// Tells the kernel what it may leave undone in the packets that it sends.
    pub(super) fn set_offload(tap: BorrowedFd<'_>, capabilities: Capabilities) -> io::Result<()> {
        // SAFETY: the request takes an integer and no pointer; `tap` stays open meanwhile.
        unsafe { raw::tunsetoffload(tap.as_raw_fd(), flags(capabilities)) }?;
        Ok(())
    }

    /// Opens the network namespace of a TAP.
    pub(super) fn namespace(tap: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // SAFETY: the request takes no argument; `tap` stays open meanwhile.
        let namespace = unsafe { raw::siocgskns(tap.as_raw_fd()) }?;
        // SAFETY: it succeeded, so its result is a descriptor that it has just opened for us,
        // and nobody else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
    }

    /// Sets whether the interface stays when its descriptor is closed.
    pub(super) fn set_persistence(tap: BorrowedFd<'_>, persistent: bool) -> io::Result<()> {
        // SAFETY: the request takes an integer and no pointer; `tap` stays open meanwhile.
        unsafe { raw::tunsetpersist(tap.as_raw_fd(), persistent.into()) }?;
        Ok(())
    }
}
