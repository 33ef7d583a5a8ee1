//! The socket between the driver and a userspace stack in a process of a member.
//!
//! One message is one packet with its virtio-net header ([`crate::offload`]). A full socket refuses
//! packets, so neither side can make the other hold more than the buffer of the socket. The driver
//! treats packets of a stack like those of a TAP: a process can send any bytes, and the
//! driver checks them. A process that sends an empty message has closed its socket.

use std::ffi::c_int;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send, sendmsg, setsockopt};
use nix::{setsockopt_impl, sockopt_impl};

use crate::offload::Offload;
use crate::offload::segmentation::FrameParts;

/// One end of the socket.
#[derive(Debug)]
pub(crate) struct StackSocket(OwnedFd);

impl StackSocket {
    /// Takes an end of a connected `SOCK_SEQPACKET` socket.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        StackSocket(socket)
    }

    /// Refuses descriptors of the peer, which this process would have to close. Kernels before
    /// Linux 6.16 cannot refuse them, and close them at once.
    ///
    /// # Errors
    /// The system's, except that the kernel is older.
    pub(crate) fn refuse_descriptors(&self) -> io::Result<()> {
        match setsockopt(&self.0, PassRights, &false) {
            Err(Errno::ENOPROTOOPT) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Whether the peer has closed its end.
    pub(crate) fn is_cut(&self) -> bool {
        let mut ends = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        let hung_up = |end: &PollFd<'_>| end.any() == Some(true);
        poll(&mut ends, PollTimeout::ZERO).is_ok() && ends.iter().any(hung_up)
    }

    /// Reads the next packet, truncated to the length of `into`; returns its length. Never blocks.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without a packet, [`io::ErrorKind::UnexpectedEof`] when the
    /// peer is gone.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match recv(self.0.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT) {
            Ok(0) | Err(Errno::ECONNRESET) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => Ok(len),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a whole packet or nothing. Never blocks.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when the socket is full, `EPIPE` or `ECONNRESET` when the peer
    /// is gone.
    pub(crate) fn send(&self, packet: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), packet, SENDING)?;
        Ok(())
    }

    /// Sends a frame that needs no offload.
    ///
    /// # Errors
    /// As [`StackSocket::send`].
    pub(crate) fn send_frame(&self, frame: &FrameParts<'_>) -> io::Result<()> {
        let [a, b, c] = frame.0;
        let parts = [&Offload::NONE, a, b, c].map(IoSlice::new);
        sendmsg::<()>(self.0.as_raw_fd(), &parts, &[], SENDING, None)?;
        Ok(())
    }
}

const SENDING: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

impl AsFd for StackSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

sockopt_impl!(
    /// Whether a socket accepts descriptors.
    PassRights,
    SetOnly,
    libc::SOL_SOCKET,
    SO_PASSRIGHTS,
    bool
);

/// Of asm-generic/socket.h; no crate has it yet.
const SO_PASSRIGHTS: c_int = 83;

#[cfg(test)]
pub(crate) mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    /// Both ends of a stack socket.
    pub(crate) fn pair() -> [StackSocket; 2] {
        let kind = (AddressFamily::Unix, SockType::SeqPacket);
        let (here, there) = socketpair(kind.0, kind.1, None, SockFlag::SOCK_CLOEXEC).unwrap();
        [here, there].map(StackSocket::new)
    }

    pub(crate) fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn a_message_is_a_packet() {
        let [here, there] = pair();
        here.send(b"one").unwrap();
        here.send_frame(&FrameParts([b"two", &[], &[]])).unwrap();
        let mut buffer = [0; 64];
        assert_eq!(there.receive(&mut buffer).unwrap(), 3);
        assert_eq!(&buffer[..3], b"one");
        assert_eq!(there.receive(&mut buffer).unwrap(), Offload::LEN + 3);
        assert_eq!(buffer[..Offload::LEN], Offload::NONE);
        assert_eq!(kind(there.receive(&mut buffer)), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn neither_end_waits_for_the_other() {
        let [here, there] = pair();
        let full = (0..10_000).find_map(|_| here.send(&[0; 9000]).err());
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(there);
        // The first error reports that packets were never read.
        let cut = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
        assert_eq!([(); 2].map(|()| kind(here.send(&[0]))), cut);
        let [here, there] = pair();
        drop(there);
        assert_eq!(kind(here.receive(&mut [0])), io::ErrorKind::UnexpectedEof);
    }
}
