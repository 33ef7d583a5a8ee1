//! Tunnels: TCP connections to the drivers of other hosts, and the RDMA streams beside them.
//!
//! A tunnel carries packets with their virtio-net headers ([`crate::offload`]), in the byte order of these
//! machines, each behind a header that names its domain, epoch and sender. The destination is in
//! the frame. GSO packets and frames without checksums cross unchanged; the other driver does the offloads
//! that its ports do not accept.
//!
//! The bytes of the connection are [sealed](toroid_fabric::tcp::secure), unless the hosts have
//! encryption off. Those of RDMA streams are clear.
//!
//! **No host waits for another.** Packets that the connection does not accept at once wait in a queue,
//! and packets that do not fit there are lost, as in any network with a slow receiver.
//!
//! Where both hosts have RDMA devices, packets go over an RDMA stream (`rdma_stream`) while there is one,
//! in the same form. The connection stays, and carries signals about the stream.

pub(crate) mod header;
pub(crate) mod queues;
pub(crate) mod rdma_stream;
pub(crate) mod signal;

use std::cell::RefCell;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use header::{Message, ProtocolViolation, TunnelHeader};
pub use queues::ReceiveBuffer;
use queues::SendQueue;
use rdma_stream::StreamEnd;
pub use signal::Signal;
use toroid_fabric::tcp::secure::Keys;

/// Number of another host. The control path knows the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// A tunnel to the driver of another host.
#[derive(Debug)]
pub(crate) struct Tunnel {
    connection: TcpStream,
    send_queue: RefCell<SendQueue>,
    /// Bytes that have arrived over the connection.
    pub(crate) received: ReceiveBuffer,
    /// Packets of domains without local members.
    pub(crate) unknown_domain: u64,
    /// The RDMA stream, while there is one.
    pub(crate) stream: Option<StreamEnd>,
    /// Packets over RDMA streams to and from this host.
    by_rdma: Arc<AtomicU64>,
}

impl Tunnel {
    /// Takes a connected TCP socket, its keys unless it is clear, and the counter of packets over
    /// RDMA.
    ///
    /// # Errors
    /// The system's: the descriptor is no such socket.
    pub(crate) fn new(
        socket: OwnedFd,
        keys: Option<&Keys>,
        by_rdma: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        toroid_fabric::tcp::tune::for_packets(&socket)?;
        let connection = TcpStream::from(socket);
        connection.set_nonblocking(true)?;
        Ok(Tunnel {
            connection,
            send_queue: RefCell::new(SendQueue::new(keys)),
            received: ReceiveBuffer::new(keys),
            unknown_domain: 0,
            stream: None,
            by_rdma,
        })
    }

    /// Reads from the connection into the receive buffer, which holds no complete message. Returns the
    /// number of bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without new bytes; any other error ends the tunnel.
    pub(crate) fn receive(&mut self) -> io::Result<usize> {
        self.received.fill(&self.connection)
    }

    /// Sends a packet, or queues it for [`Tunnel::flush`].
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when the queue is full, [`io::ErrorKind::NotConnected`] after the
    /// connection has ended.
    pub(crate) fn send(&self, header: &TunnelHeader, packet: &[u8]) -> io::Result<()> {
        let header = header.to_bytes(packet.len());
        match self.stream.as_ref().filter(|stream| stream.sends) {
            Some(stream) => {
                stream.send(&header, packet)?;
                self.count_by_rdma(1);
                Ok(())
            }
            None => {
                let mut send_queue = self.send_queue.borrow_mut();
                send_queue.send(&self.connection, &header, packet)
            }
        }
    }

    /// Queues a signal behind all packets so far, for [`Tunnel::flush`].
    pub(crate) fn signal(&self, signal: Signal) {
        self.send_queue.borrow_mut().signal(signal);
    }

    /// Counts packets that went or came over RDMA.
    pub(crate) fn count_by_rdma(&self, packets: u64) {
        self.by_rdma.fetch_add(packets, Ordering::Relaxed);
    }

    /// Sends queued packets, as many as the connection accepts.
    pub(crate) fn flush(&self) {
        self.send_queue.borrow_mut().flush(&self.connection);
    }

    /// Records that the connection is writable again.
    pub(crate) fn set_writable(&self) {
        self.send_queue.borrow_mut().is_blocked = false;
    }

    /// Whether the connection has to become writable before the next packet.
    pub(crate) fn is_blocked(&self) -> bool {
        self.send_queue.borrow().is_blocked
    }

    /// Whether sending has failed because the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.send_queue.borrow().has_ended
    }
}

impl AsFd for Tunnel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use header::tests::HEADER;

    #[test]
    fn sending_and_receiving_fail_after_the_end_of_the_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let mut tunnel = Tunnel::new(ours.into(), None, Arc::default()).unwrap();
        let ended = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            tunnel.send(&HEADER, &[7; 16 << 10]).is_err()
        });
        assert!(ended && tunnel.has_ended());
        let end = tunnel.receive().unwrap_err();
        assert_ne!(end.kind(), io::ErrorKind::WouldBlock);
    }
}
