//! The RDMA stream of a tunnel: packets between the RDMA devices of two hosts.

use std::cell::RefCell;
use std::io;

use toroid_fabric::RdmaStream;

use super::header::TunnelHeader;
use super::queues::{ReceiveBuffer, SendQueue};

/// One end of an RDMA stream, with the bytes that wait at it.
#[derive(Debug)]
pub(crate) struct StreamEnd {
    /// Number of the stream, as both sides call it.
    pub(crate) number: u32,
    stream: RefCell<Box<dyn RdmaStream>>,
    send_queue: RefCell<SendQueue>,
    /// Bytes that have arrived.
    pub(crate) received: ReceiveBuffer,
    /// Whether this side has signalled that its packets go over the stream.
    pub(crate) sends: bool,
    /// Whether the other side has signalled so. Packets that arrive before wait.
    pub(crate) receives: bool,
}

impl StreamEnd {
    /// An end over which no packets go yet.
    pub(crate) fn new(number: u32, stream: Box<dyn RdmaStream>) -> Self {
        StreamEnd {
            number,
            stream: RefCell::new(stream),
            send_queue: RefCell::default(),
            received: ReceiveBuffer::default(),
            sends: false,
            receives: false,
        }
    }

    /// Whether packets go over the stream in both directions.
    pub(crate) fn is_up(&self) -> bool {
        self.sends && self.receives
    }

    /// Processes completions: bytes that have arrived, and room to send.
    ///
    /// # Errors
    /// The stream has ended.
    pub(crate) fn process_events(&mut self) -> io::Result<()> {
        self.send_queue.get_mut().is_blocked = false;
        self.stream.get_mut().process_events()
    }

    /// Whether more packets can be received.
    pub(crate) fn has_more(&self) -> bool {
        self.receives && (self.received.has_next() || self.stream.borrow().has_bytes())
    }

    /// Reads bytes that have arrived into the receive buffer, which holds no complete message.
    ///
    /// # Errors
    /// The stream has ended.
    pub(crate) fn receive(&mut self) -> io::Result<()> {
        if self.stream.get_mut().has_bytes() {
            self.received.fill(self.stream.get_mut()).map(drop)
        } else {
            Ok(())
        }
    }

    /// As [`Tunnel::send`](super::Tunnel::send).
    pub(super) fn send(&self, header: &[u8; TunnelHeader::LEN], packet: &[u8]) -> io::Result<()> {
        let mut stream = self.stream.borrow_mut();
        self.send_queue
            .borrow_mut()
            .send(&mut *stream, header, packet)
    }

    /// Sends queued packets, as many as the stream accepts. Returns whether the stream still exists.
    pub(crate) fn flush(&self) -> bool {
        let mut send_queue = self.send_queue.borrow_mut();
        send_queue.flush(&mut *self.stream.borrow_mut());
        !send_queue.has_ended
    }

    /// The stream; queued packets are lost.
    pub(crate) fn into_stream(self) -> Box<dyn RdmaStream> {
        self.stream.into_inner()
    }
}
