//! The network device of smoltcp: a [`StackSocket`] that the driver may close, and its successors.

use std::io;
use std::sync::Arc;

use smoltcp::phy::{self, Checksum, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use crate::headers::frame::HEADER_LEN;
use crate::offload::MAX_PACKET;
use crate::offload::Offload;
use crate::port::stack_socket::StackSocket;

/// Packets received in one turn, so that calling threads get theirs.
const BATCH: usize = 64;

/// The device.
#[derive(Debug)]
pub(super) struct Device {
    stack_socket: Option<Arc<StackSocket>>,
    mtu: usize,
    arrived: Vec<u8>,
    /// Packets left of this turn.
    batch: usize,
    outgoing: Outgoing,
}

/// The next packet to send.
#[derive(Debug, Default)]
struct Outgoing {
    packet: Vec<u8>,
    /// Whether the packet still waits, because the socket is full.
    is_held: bool,
    is_cut: bool,
}

impl Device {
    /// A device for frames with up to `mtu` bytes of payload.
    pub(super) fn new(stack_socket: StackSocket, mtu: usize) -> Self {
        Device {
            stack_socket: Some(Arc::new(stack_socket)),
            mtu,
            arrived: vec![0; MAX_PACKET],
            batch: BATCH,
            outgoing: Outgoing::default(),
        }
    }

    /// The stack socket, unless the driver has closed it.
    pub(super) fn stack_socket(&mut self) -> Option<Arc<StackSocket>> {
        if self.outgoing.is_cut {
            self.stack_socket = None;
        }
        self.stack_socket.clone()
    }

    /// Replaces the stack socket. A waiting packet is lost, and its sender repeats it.
    pub(super) fn plug(&mut self, stack_socket: StackSocket) {
        self.stack_socket = Some(Arc::new(stack_socket));
        self.outgoing.is_held = false;
        self.outgoing.is_cut = false;
    }

    #[cfg(test)]
    pub(super) fn cut(&mut self) {
        self.outgoing.is_cut = true;
    }

    /// Whether the socket is full.
    pub(super) fn is_blocked(&self) -> bool {
        self.outgoing.is_held
    }

    /// Whether the turn ended before all packets were received.
    pub(super) fn has_more(&self) -> bool {
        self.batch == 0
    }

    /// Begins another turn.
    pub(super) fn begin(&mut self) {
        self.batch = BATCH;
        if let (true, Some(stack_socket)) = (self.outgoing.is_held, &self.stack_socket) {
            self.outgoing.send(stack_socket);
        }
    }
}

impl Outgoing {
    fn send(&mut self, stack_socket: &StackSocket) {
        let sent = stack_socket.send(&self.packet);
        let kind = sent.err().map(|error| error.kind());
        self.is_held = kind == Some(io::ErrorKind::WouldBlock);
        let cut = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        // After other errors, such as no memory, the packet is lost.
        self.is_cut |= kind.is_some_and(|kind| cut.contains(&kind));
    }
}

impl phy::Device for Device {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sending<'_>)> {
        let stack_socket = self.stack_socket.as_deref()?;
        self.batch = self.batch.checked_sub(1)?;
        let len = match stack_socket.receive(&mut self.arrived) {
            Ok(len) => len,
            Err(error) => {
                // No more packets now.
                self.batch = BATCH;
                self.outgoing.is_cut |= error.kind() == io::ErrorKind::UnexpectedEof;
                return None;
            }
        };
        let frame = self.arrived.get(Offload::LEN..len).unwrap_or_default();
        let sending = Sending {
            stack_socket,
            outgoing: &mut self.outgoing,
        };
        Some((Received(frame), sending))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        let stack_socket = self.stack_socket.as_deref()?;
        let outgoing = &mut self.outgoing;
        (!outgoing.is_held && !outgoing.is_cut).then_some(Sending {
            stack_socket,
            outgoing,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        // Packets of the driver come from memory of this host, or were checked on their way into
        // the host. Members leave checksums out among themselves.
        checksum.tcp = Checksum::Tx;
        checksum.udp = Checksum::Tx;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = HEADER_LEN + self.mtu;
        capabilities.checksum = checksum;
        capabilities
    }
}

/// A received frame.
pub(super) struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// A frame to be sent.
pub(super) struct Sending<'a> {
    stack_socket: &'a StackSocket,
    outgoing: &'a mut Outgoing,
}

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        if self.outgoing.is_held {
            // A reply to a received frame, which is lost like any packet.
            return fill(&mut vec![0; len]);
        }
        let packet = &mut self.outgoing.packet;
        packet.clear();
        packet.extend(Offload::NONE);
        packet.resize(Offload::LEN + len, 0);
        let result = fill(&mut packet[Offload::LEN..]);
        self.outgoing.send(self.stack_socket);
        result
    }
}
