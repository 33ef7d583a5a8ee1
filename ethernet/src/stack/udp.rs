//! UDP sockets that behave like [`std::net::UdpSocket`].

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::udp::{PacketBuffer, PacketMetadata, SendError, Socket};

use super::tcp::checked;
use super::{Running, address, endpoint};

/// Capacity per direction, in datagrams and bytes.
const DATAGRAMS: usize = 256;
const BUFFER_BYTES: usize = 512 * 1024;

/// A UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    running: Arc<Running>,
    socket: SocketHandle,
    port: u16,
    read_timeout: Mutex<Option<Duration>>,
}

impl UdpSocket {
    pub(super) fn bind(running: &Arc<Running>, port: u16) -> io::Result<Self> {
        let (socket, port) = running.shared.with(|core| {
            core.check()?;
            let port = match port {
                0 => core.free_port().ok_or(io::ErrorKind::AddrInUse)?,
                port if core.is_bound(port) => return Err(io::ErrorKind::AddrInUse.into()),
                port => port,
            };
            let mut socket = Socket::new(buffer(), buffer());
            socket
                .bind(port)
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            Ok::<_, io::Error>((core.add(socket), port))
        })?;
        Ok(UdpSocket {
            running: Arc::clone(running),
            socket,
            port,
            read_timeout: Mutex::default(),
        })
    }

    /// Local port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a datagram, which may be lost.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when it exceeds the MTU, [`io::ErrorKind::AddrNotAvailable`]
    /// when the address does not belong to the domain.
    pub fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.running.shared.wait(self.socket, None, |core| {
            if datagram.len() > core.longest_datagram(to.is_ipv6()) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            if !core.is_on_link(endpoint(to).addr) {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
            match core.udp(self.socket).send_slice(datagram, endpoint(to)) {
                Ok(()) => Ok(Some(datagram.len())),
                Err(SendError::Unaddressable) => Err(io::ErrorKind::AddrNotAvailable.into()),
                Err(SendError::BufferFull) => {
                    let waker = core.waker(self.socket);
                    core.udp(self.socket).register_send_waker(&waker);
                    Ok(None)
                }
            }
        })
    }

    /// Waits for a datagram, and truncates it to `into`.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] after the timeout.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let timeout = *self.timeout();
        self.running.shared.wait(self.socket, timeout, |core| {
            if let Ok((datagram, about)) = core.udp(self.socket).recv() {
                let len = datagram.len().min(into.len());
                into[..len].copy_from_slice(&datagram[..len]);
                return Ok(Some((len, address(about.endpoint))));
            }
            let waker = core.waker(self.socket);
            core.udp(self.socket).register_recv_waker(&waker);
            Ok(None)
        })
    }

    /// Limits the time of [`UdpSocket::recv_from`]; `None` is no limit.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a limit of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *self.timeout() = checked(timeout)?;
        Ok(())
    }

    fn timeout(&self) -> std::sync::MutexGuard<'_, Option<Duration>> {
        self.read_timeout
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.running.shared.with(|core| core.remove(self.socket));
    }
}

fn buffer() -> PacketBuffer<'static> {
    PacketBuffer::new(
        vec![PacketMetadata::EMPTY; DATAGRAMS],
        vec![0; BUFFER_BYTES],
    )
}
