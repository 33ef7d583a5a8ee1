//! TAPs: interfaces of the kernel whose other end is a descriptor. This module and
//! `crate::port::uplink` are the only ones with `unsafe`.
//!
//! A TAP is persistent: it outlives the driver that made it, and the next driver finds the
//! interface with its addresses and connections. Its packets have a virtio-net header
//! ([`crate::offload`]), also where no offload is used, because offloads of a port change while its
//! interface stays.
//!
//! The crate `tun-tap` (0.1.4) cannot open such a TAP: its only request (`TUNSETIFF`) has no
//! `IFF_VNET_HDR`, and a name longer than 15 bytes is truncated in silence. The crate
//! has neither persistence nor offloads nor the namespace, so all other requests would stay here.

use std::ffi::c_short;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc;

use crate::offload::segmentation::FrameParts;
use crate::offload::{Capabilities, Offload};
use crate::port::is_one_of;

/// Limit of the discarded packets; more than any queue holds.
const LONGEST_QUEUE: u32 = 1 << 16;

/// A non-blocking TAP. Dropping it leaves the interface in place.
#[derive(Debug)]
pub struct Tap {
    file: File,
    capabilities: Capabilities,
}

impl Tap {
    /// Opens the TAP `name` in the network namespace of the calling thread, after making it if
    /// there is none. `capabilities` are the offloads in both directions. Takes 0.3 ms.
    ///
    /// # Errors
    /// The system's: without /dev/net/tun or the right to use it; `EINVAL` if the interface is no
    /// TAP, `EBUSY` if another process holds it.
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

    /// Offloads that the interface accepts.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Changes the offloads that the interface accepts and, from its next packet on, those that it
    /// uses.
    ///
    /// # Errors
    /// The system's: the interface is gone.
    pub fn set_capabilities(&mut self, capabilities: Capabilities) -> io::Result<()> {
        request::set_offload(self.as_fd(), capabilities)?;
        self.capabilities = capabilities;
        Ok(())
    }

    /// Reads the next packet of the interface, truncated to the length of `into`; returns its
    /// length.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without a packet. All errors except that and
    /// [`io::ErrorKind::Interrupted`] mean that the interface is gone.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(into)
    }

    /// Sends a packet to the interface.
    ///
    /// # Errors
    /// The system's; the packet is lost then. `EIO`: the interface is down; `EBADFD`: it is gone.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        whole((&self.file).write(packet)?, packet.len())
    }

    /// Sends a frame that needs no offload to the interface.
    ///
    /// # Errors
    /// As [`Tap::send`].
    pub(crate) fn send_frame(&self, frame: &FrameParts<'_>) -> io::Result<()> {
        let [a, b, c] = frame.0;
        self.send_parts(&[&Offload::NONE, a, b, c].map(IoSlice::new))
    }

    /// Sends a packet in parts to the interface.
    ///
    /// # Errors
    /// As [`Tap::send`].
    pub(crate) fn send_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        whole((&self.file).write_vectored(parts)?, len)
    }

    /// Discards unread packets of the interface. Returns whether there are no more, which is false
    /// only if the interface goes on sending.
    pub(crate) fn discard(&self) -> bool {
        for _ in 0..LONGEST_QUEUE {
            // The kernel cuts off the rest of a packet.
            match self.receive(&mut [0; Offload::LEN]) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return true,
                _ => {}
            }
        }
        false
    }

    /// Sets whether the interface outlives this value. Otherwise the interface ends with this value,
    /// even if the process is killed.
    ///
    /// # Errors
    /// The system's: the interface is gone already.
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        request::set_persistence(self.as_fd(), persistent)
    }

    /// The network namespace in which the TAP was opened.
    ///
    /// # Errors
    /// The system's: out of descriptors.
    pub(crate) fn namespace(&self) -> io::Result<OwnedFd> {
        request::namespace(self.as_fd())
    }

    /// Deletes the interface. The kernel waits for a grace period of 15 to 25 ms.
    ///
    /// # Errors
    /// The system's. A deleted interface is no error.
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

/// Whether an operation on a TAP failed because its interface is gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::EBADFD])
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

    /// `struct ifreq` of linux/if.h with the member of its union that is used here.
    #[repr(C)]
    pub(super) struct InterfaceRequest {
        name: [u8; libc::IFNAMSIZ],
        flags: c_short,
        rest: [u8; 22],
    }

    /// The flags of the kernel for these offloads.
    fn flags(capabilities: Capabilities) -> u64 {
        let flags = [
            (Capabilities::CHECKSUM, libc::TUN_F_CSUM),
            (Capabilities::TSO4, libc::TUN_F_TSO4 | libc::TUN_F_TSO_ECN),
            (Capabilities::TSO6, libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN),
            // The kernel accepts both or none.
            (Capabilities::USO, libc::TUN_F_USO4 | libc::TUN_F_USO6),
        ];
        let used = flags
            .into_iter()
            .filter(|(of, _)| capabilities.contains(*of));
        used.fold(0, |all, (_, flags)| all | u64::from(flags))
    }

    mod raw {
        use super::*;

        nix::ioctl_readwrite_bad!(tunsetiff, libc::TUNSETIFF, InterfaceRequest);
        nix::ioctl_write_int!(tunsetpersist, b'T', 203);
        nix::ioctl_write_int!(tunsetoffload, b'T', 208);
        nix::ioctl_none_bad!(siocgskns, libc::SIOCGSKNS);
    }

    /// Attaches the descriptor to the TAP `name`.
    pub(super) fn attach(tun: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let mut request = InterfaceRequest {
            name: [0; libc::IFNAMSIZ],
            // Before a packet is its virtio-net header only.
            flags: (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as c_short,
            rest: [0; 22],
        };
        match request.name[..libc::IFNAMSIZ - 1].get_mut(..name.len()) {
            Some(space) => space.copy_from_slice(name.as_bytes()),
            None => return Err(Errno::ENAMETOOLONG.into()),
        }
        // SAFETY: the request reads and writes one `struct ifreq`. `request` is one: 40 bytes
        // with C's layout, and borrowed mutably for the call. The name in it ends with a 0,
        // because at most 15 of its 16 bytes were written. `tun` stays open meanwhile.
        unsafe { raw::tunsetiff(tun.as_raw_fd(), &mut request) }?;
        Ok(())
    }

    /// Sets the offloads of a TAP.
    pub(super) fn set_offload(tap: BorrowedFd<'_>, capabilities: Capabilities) -> io::Result<()> {
        // SAFETY: the request takes an integer and no pointer; `tap` stays open meanwhile.
        unsafe { raw::tunsetoffload(tap.as_raw_fd(), flags(capabilities)) }?;
        Ok(())
    }

    /// Opens the network namespace of a TAP.
    pub(super) fn namespace(tap: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // SAFETY: the request takes no argument; `tap` stays open meanwhile.
        let namespace = unsafe { raw::siocgskns(tap.as_raw_fd()) }?;
        // SAFETY: the call succeeded, so its result is a descriptor that it has just opened, which
        // nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
    }

    /// Sets whether the interface stays when its descriptor is closed.
    pub(super) fn set_persistence(tap: BorrowedFd<'_>, persistent: bool) -> io::Result<()> {
        // SAFETY: the request takes an integer and no pointer; `tap` stays open meanwhile.
        unsafe { raw::tunsetpersist(tap.as_raw_fd(), persistent.into()) }?;
        Ok(())
    }
}
