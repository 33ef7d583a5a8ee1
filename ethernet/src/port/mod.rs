//! Ports of the switch, where frames come in and leave: TAPs, sockets of userspace stacks, uplinks.

pub(crate) mod stack_socket;
#[allow(unsafe_code)]
pub mod tap;
#[allow(unsafe_code)]
pub(crate) mod uplink;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;

use crate::offload::segmentation::{FrameParts, Segmenter};
use crate::offload::{Capabilities, Offload};
use stack_socket::StackSocket;
use tap::Tap;
use uplink::Uplink;

/// A port of the switch.
#[derive(Debug)]
pub(crate) enum SwitchPort {
    /// The interface of a member.
    Tap(Tap),
    /// The userspace stack of a member, while a process has it.
    Stack(Option<StackSocket>),
    /// An external network.
    Uplink(Uplink),
}

impl SwitchPort {
    /// Offloads that the port accepts.
    pub(crate) fn capabilities(&self) -> Capabilities {
        match self {
            SwitchPort::Tap(tap) => tap.capabilities(),
            // smoltcp accepts segments of any length, and the stack verifies no checksums.
            SwitchPort::Stack(_) => {
                Capabilities::CHECKSUM | Capabilities::TSO4 | Capabilities::TSO6
            }
            SwitchPort::Uplink(_) => Capabilities::empty(),
        }
    }

    /// Reads the next packet, truncated to the length of `into`; returns its length.
    ///
    /// # Errors
    /// Those of [`Tap::receive`], `StackSocket::receive` and `Uplink::receive`.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            SwitchPort::Tap(tap) => tap.receive(into),
            SwitchPort::Stack(stack_socket) => plugged(stack_socket)?.receive(into),
            SwitchPort::Uplink(uplink) => uplink.receive(into),
        }
    }

    /// Sends a frame that needs no offload.
    ///
    /// # Errors
    /// Those of [`Tap::send`], `StackSocket::send` and `Uplink::send_frame`.
    pub(crate) fn send_frame(&self, frame: &FrameParts<'_>) -> io::Result<()> {
        match self {
            SwitchPort::Tap(tap) => tap.send_frame(frame),
            SwitchPort::Stack(stack_socket) => plugged(stack_socket)?.send_frame(frame),
            SwitchPort::Uplink(uplink) => uplink.send_frame(frame),
        }
    }

    /// The TAP, if it accepts UDP GSO packets.
    pub(crate) fn accepts_udp_gso(&self) -> Option<&Tap> {
        let needed = Capabilities::CHECKSUM | Capabilities::USO;
        match self {
            SwitchPort::Tap(tap) if tap.capabilities().contains(needed) => Some(tap),
            _ => None,
        }
    }

    /// Sends a packet that the forwarding has admitted: unchanged if the port accepts its offloads,
    /// otherwise as its frames, up to the first that fails. Returns the number of frames.
    ///
    /// # Errors
    /// As [`SwitchPort::send_frame`].
    pub(crate) fn deliver(&self, packet: &[u8], segmenter: &mut Segmenter) -> io::Result<usize> {
        // The forwarding has checked the packet.
        let (offload, frame) = Offload::split(packet).ok_or(io::ErrorKind::InvalidData)?;
        let as_it_is = self.capabilities().contains(offload.needs());
        match self {
            SwitchPort::Tap(tap) if as_it_is => return tap.send(packet).map(|()| 1),
            SwitchPort::Stack(stack_socket) if as_it_is => {
                return plugged(stack_socket)?.send(packet).map(|()| 1);
            }
            _ => {}
        }
        let mut frames = segmenter.frames(&offload, frame);
        let mut sent = 0;
        while let Some(frame) = frames.next() {
            self.send_frame(&frame)?;
            sent += 1;
        }
        Ok(sent)
    }

    /// The descriptor that is readable when packets wait; `None` without a stack.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            SwitchPort::Tap(tap) => Some(tap.as_fd()),
            SwitchPort::Stack(stack_socket) => stack_socket.as_ref().map(AsFd::as_fd),
            SwitchPort::Uplink(uplink) => Some(uplink.as_fd()),
        }
    }
}

fn plugged(stack_socket: &Option<StackSocket>) -> io::Result<&StackSocket> {
    Ok(stack_socket.as_ref().ok_or(io::ErrorKind::NotConnected)?)
}

/// Whether the system returned one of these errors.
pub(crate) fn is_one_of(error: &io::Error, errors: &[Errno]) -> bool {
    let error = error.raw_os_error().map(Errno::from_raw);
    error.is_some_and(|error| errors.contains(&error))
}

/// Whether an operation failed because the peer is gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    let gone = [
        io::ErrorKind::NotConnected,
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::UnexpectedEof,
    ];
    tap::is_gone(error) || gone.contains(&error.kind())
}
