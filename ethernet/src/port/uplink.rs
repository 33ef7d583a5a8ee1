//! Uplinks: interfaces of the host that lead outside, as packet sockets (packet(7)). With
//! [`crate::port::tap`] the only module here with `unsafe`.
//!
//! Packets have the header of [`crate::offload`] in both directions, so what the outside has left
//! undone comes in with a word about it. What goes out is complete.
//!
//! The kernel takes VLAN tags out of what comes in, so that a tagged frame would look like any other
//! and get into a domain that it is not for. A filter in the kernel drops them, and what is for
//! nobody in a fabric: on a busy network that is most.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;

use crate::offload::Offload;
use crate::offload::segmentation::FrameParts;

/// Room for what comes in while the driver does something else: some 60 GSO packets.
const BUFFER_BYTES: i32 = 4 << 20;

/// An interface of the host, opened without blocking. It takes in every frame, for whomever it is, as
/// long as this value lives.
#[derive(Debug)]
pub struct Uplink(std::fs::File);

/// Why an interface is no uplink.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {name}: {source}")]
pub struct UplinkError {
    /// The interface.
    pub name: String,
    /// The system's reason.
    pub source: io::Error,
}

impl Uplink {
    /// Opens the interface with this number in the network namespace of the calling thread. `name` is for
    /// people.
    ///
    /// # Errors
    /// [`UplinkError`]: the system refused, or it is gone.
    pub fn open(index: u32, name: &str) -> Result<Self, UplinkError> {
        let opened = request::open(index, BUFFER_BYTES);
        opened.map(Uplink).map_err(|source| UplinkError {
            name: name.into(),
            source,
        })
    }

    /// Reads the next packet that came in, cut off at the length of `into`, and returns its length.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; `ENETDOWN` once after the interface was
    /// taken down.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }

    /// Sends a frame that needs no offload out.
    ///
    /// # Errors
    /// The system's; the frame is lost then. `EMSGSIZE`: it is longer than the interface takes;
    /// `ENETDOWN`: that is down.
    pub fn send_frame(&self, frame: &FrameParts<'_>) -> io::Result<()> {
        let [a, b, c] = frame.0;
        let parts = [&Offload::NONE, a, b, c].map(IoSlice::new);
        (&self.0).write_vectored(&parts).map(drop)
    }
}

impl AsFd for Uplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the interface was taken down; it may come up again.
pub fn is_down(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENETDOWN as i32)
}

/// Requests of linux/if_packet.h and linux/filter.h.
mod request {
    use std::ffi::c_int;
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::ptr;

    use nix::errno::Errno;
    use nix::libc;

    /// In frames of fabric and outside alike this is the first byte of a member's MAC.
    const FABRIC: u32 = 0x06;

    /// The bit of a MAC's first byte that marks groups.
    const GROUP: u32 = 0x01;

    const fn step(code: u32, k: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: if_true,
            jf: if_false,
            k,
        }
    }

    /// Untagged frames for groups and for addresses like those of members.
    const FILTER: [libc::sock_filter; 7] = {
        let tag = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
        [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, tag, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 0, 4),
            step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, GROUP, 1, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, FABRIC, 0, 1),
            step(libc::BPF_RET | libc::BPF_K, u32::MAX, 0, 0),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        ]
    };

    /// A packet socket on an interface, promiscuous, with headers of virtio-net.
    pub(super) fn open(index: u32, buffer: c_int) -> io::Result<File> {
        let index = c_int::try_from(index).map_err(io::Error::other)?;
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Without a protocol nothing comes in until all is set.
        // SAFETY: the call takes no pointers.
        let socket = Errno::result(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: it succeeded, so its result is a descriptor that it has just opened for us.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let filter = libc::sock_fprog {
            len: FILTER.len() as u16,
            filter: ptr::from_ref(&FILTER).cast_mut().cast(),
        };
        set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &buffer)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &buffer)?;
        let on: c_int = 1;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)?;
        // What members send out is no news to them.
        set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)?;
        let promiscuous = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set(
            &socket,
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            &promiscuous,
        )?;
        bind(&socket, index)?;
        Ok(File::from(socket))
    }

    /// Sets an option whose value is a `T`.
    fn set<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: `value` is borrowed for the call, and has the length given, of which the kernel
        // reads no more. The one value with a pointer in it is that of SO_ATTACH_FILTER, to
        // FILTER, which is static, has the length said beside it, and is only read.
        let result = unsafe {
            let value = ptr::from_ref(value).cast();
            libc::setsockopt(socket.as_raw_fd(), level, option, value, len)
        };
        Errno::result(result)?;
        Ok(())
    }

    fn bind(socket: &OwnedFd, index: c_int) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `address` is a `sockaddr_ll`, as the family in it says, borrowed for the call,
        // and of the length given.
        let bound = unsafe {
            let address = ptr::from_ref(&address).cast();
            libc::bind(socket.as_raw_fd(), address, len)
        };
        Errno::result(bound)?;
        Ok(())
    }
}
