//! Uplinks: interfaces of the host to external networks, opened as packet sockets (packet(7)). This
//! module and [`crate::port::tap`] are the only ones with `unsafe`.
//!
//! Packets have a virtio-net header ([`crate::offload`]) in both directions. Received packets may
//! need offloads; sent frames are complete.
//!
//! The kernel strips VLAN tags from received frames, so a frame of a VLAN would look like an
//! untagged one and enter the wrong domain. A socket filter drops such frames, and
//! frames that no member can receive: on a busy network most.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;

use crate::offload::Offload;
use crate::offload::segmentation::FrameParts;
use crate::port::is_one_of;

/// Socket buffer in bytes: some 60 GSO packets while the driver is busy.
const BUFFER_BYTES: i32 = 4 << 20;

/// An interface of the host, non-blocking, and promiscuous as long as this value lives.
#[derive(Debug)]
pub(crate) struct Uplink(std::fs::File);

impl Uplink {
    /// Opens the interface with this index in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's, also if the interface is gone.
    pub(crate) fn open(index: u32) -> io::Result<Self> {
        request::open(index, BUFFER_BYTES).map(Uplink)
    }

    /// Reads the next received packet, truncated to the length of `into`; returns its length.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without a packet; `ENETDOWN` once after the interface went
    /// down.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }

    /// Sends a frame that needs no offload.
    ///
    /// # Errors
    /// The system's; the frame is lost then. `EMSGSIZE`: it exceeds the MTU; `ENETDOWN`: the
    /// interface is down.
    pub(crate) fn send_frame(&self, frame: &FrameParts<'_>) -> io::Result<()> {
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

/// Whether the interface went down; it may come up again.
pub(crate) fn is_down(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::ENETDOWN])
}

/// Requests of linux/if_packet.h and linux/filter.h.
mod request {
    use std::ffi::c_int;
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::ptr;

    use nix::errno::Errno;
    use nix::libc;
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

    /// First byte of the MAC address of a member of any fabric.
    const FABRIC: u32 = 0x06;

    /// Bit of that byte that marks a group address.
    const GROUP: u32 = 0x01;

    const fn step(code: u32, k: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: if_true,
            jf: if_false,
            k,
        }
    }

    /// Accepts untagged frames for groups and for addresses like those of members.
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

    /// Opens a promiscuous packet socket with virtio-net headers on an interface.
    pub(super) fn open(index: u32, buffer: c_int) -> io::Result<File> {
        let index = c_int::try_from(index).map_err(io::Error::other)?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        // Without a protocol nothing is received until the socket is configured.
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            flags,
            None::<SockProtocol>,
        )?;
        let filter = libc::sock_fprog {
            len: FILTER.len() as u16,
            filter: ptr::from_ref(&FILTER).cast_mut().cast(),
        };
        set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &buffer)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &buffer)?;
        let on: c_int = 1;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)?;
        // Members receive frames of other members from the switch.
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
        // SAFETY: `value` is borrowed for the call, and has the given length, beyond which the
        // kernel does not read. The only value that contains a pointer is that of SO_ATTACH_FILTER.
        // It points to FILTER, which is static, has the length stated beside it, and is only read.
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
        // SAFETY: `address` is a `sockaddr_ll`, as its family states, borrowed for the call, and of
        // the given length.
        let bound = unsafe {
            let address = ptr::from_ref(&address).cast();
            libc::bind(socket.as_raw_fd(), address, len)
        };
        Errno::result(bound)?;
        Ok(())
    }
}
