//! Ports of the switch: where frames come in and leave.

#[allow(unsafe_code)]
pub(crate) mod stack_socket;
#[allow(unsafe_code)]
pub mod tap;
#[allow(unsafe_code)]
pub(crate) mod uplink;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::offload::segmentation::{FrameParts, Segmenter};
use crate::offload::{Capabilities, Offload};
use stack_socket::StackSocket;
use tap::Tap;
use uplink::Uplink;

/// One of them.
#[derive(Debug)]
pub enum SwitchPort {
    /// To a member.
    Tap(Tap),
    /// To a process of a member that brings its own IP stack, while one has the link.
    Stack(Option<StackSocket>),
    /// To the outside.
    Uplink(Uplink),
}

impl SwitchPort {
    /// What may be left undone in packets for it.
    pub fn capabilities(&self) -> Capabilities {
        match self {
            SwitchPort::Tap(tap) => tap.capabilities(),
            // It takes segments as long as they come, and looks at no checksums.
            SwitchPort::Stack(_) => {
                Capabilities::CHECKSUM | Capabilities::TSO4 | Capabilities::TSO6
            }
            SwitchPort::Uplink(_) => Capabilities::empty(),
        }
    }

    /// Reads the next packet, cut off at the length of `into`, and returns its length.
    ///
    /// # Errors
    /// Those of [`Tap::receive`], [`StackSocket::receive`] and [`Uplink::receive`].
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            SwitchPort::Tap(tap) => tap.receive(into),
            SwitchPort::Stack(stack_socket) => plugged(stack_socket)?.receive(into),
            SwitchPort::Uplink(uplink) => uplink.receive(into),
        }
    }

    /// Sends a frame that needs no offload.
    ///
    /// # Errors
    /// Those of [`Tap::send`], [`StackSocket::send`] and [`Uplink::send_frame`].
    pub fn send_frame(&self, frame: &FrameParts<'_>) -> io::Result<()> {
        match self {
            SwitchPort::Tap(tap) => tap.send_frame(frame),
            SwitchPort::Stack(stack_socket) => plugged(stack_socket)?.send_frame(frame),
            SwitchPort::Uplink(uplink) => uplink.send_frame(frame),
        }
    }

    /// The TAP, if it is one that accepts UDP GSO packets.
    pub fn accepts_udp_gso(&self) -> Option<&Tap> {
        let needed = Capabilities::CHECKSUM | Capabilities::USO;
        match self {
            SwitchPort::Tap(tap) if tap.capabilities().contains(needed) => Some(tap),
            _ => None,
        }
    }

    /// Sends a packet that was decided on: as it is where it can be taken so, and otherwise as the
    /// frames that it stands for, up to the first that is refused. Returns how many there were.
    ///
    /// # Errors
    /// As [`SwitchPort::send_frame`].
    pub fn deliver(&self, packet: &[u8], segmenter: &mut Segmenter) -> io::Result<usize> {
        // It has been decided on, so it is a good one.
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

/// Whether an operation failed because the other side is not there.
pub fn is_gone(error: &io::Error) -> bool {
    let gone = [
        io::ErrorKind::NotConnected,
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::UnexpectedEof,
    ];
    tap::is_gone(error) || gone.contains(&error.kind())
}
