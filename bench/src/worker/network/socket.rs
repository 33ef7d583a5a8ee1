//! Sockets of a node's kernel or of a userspace stack in this process, for the same measurements.

use std::io::{self, Read, Write};
use std::net::{self, IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use toroid_ethernet::stack::{Stack, tcp, udp};

/// Requested receive buffer in bytes, which bridges moments without a core. The kernel may grant
/// less.
const BUFFER: usize = 4 << 20;

/// One expression for a socket of any kind.
macro_rules! each {
    ($sockets:expr, $of:ident::{$($kind:ident),+}, $socket:ident => $then:expr) => {
        match $sockets {
            $($of::$kind($socket) => $then,)+
        }
    };
}

/// Source of sockets.
#[derive(Clone, Debug)]
pub enum Sockets {
    Kernel,
    Stack(Stack),
}

#[derive(Debug)]
pub enum Stream {
    Kernel(net::TcpStream),
    Stack(tcp::TcpStream),
    Unix(UnixStream),
}

#[derive(Debug)]
pub(super) enum Listener {
    Kernel(net::TcpListener),
    Stack(tcp::TcpListener),
}

#[derive(Debug)]
pub(super) enum Datagrams {
    Kernel(net::UdpSocket),
    Stack {
        socket: udp::UdpSocket,
        /// The destination of [`Datagrams::send`].
        peer: Option<SocketAddr>,
    },
}

impl Sockets {
    /// Connects; `patience` is the time-out of connecting, reads and writes.
    pub fn connect(&self, to: SocketAddrV4, patience: Duration) -> io::Result<Stream> {
        let to = SocketAddr::from(to);
        let stream = match self {
            Sockets::Kernel => Stream::Kernel(net::TcpStream::connect_timeout(&to, patience)?),
            Sockets::Stack(stack) => Stream::Stack(stack.connect(to)?),
        };
        stream.set_timeouts(patience)?;
        Ok(stream)
    }

    pub(super) fn listen(&self, at: SocketAddrV4) -> io::Result<Listener> {
        match self {
            Sockets::Kernel => net::TcpListener::bind(at).map(Listener::Kernel),
            Sockets::Stack(stack) => stack.listen(at.port()).map(Listener::Stack),
        }
    }

    /// A UDP socket at any port of `address`.
    pub(super) fn datagrams(&self, address: IpAddr) -> io::Result<Datagrams> {
        match self {
            Sockets::Kernel => net::UdpSocket::bind((address, 0)).map(Datagrams::Kernel),
            Sockets::Stack(stack) => Ok(Datagrams::Stack {
                socket: stack.bind_udp(0)?,
                peer: None,
            }),
        }
    }

    /// A UDP socket that receives a group's datagrams on the interface with this address.
    pub(super) fn datagrams_of(
        &self,
        group: SocketAddrV4,
        interface: Ipv4Addr,
    ) -> io::Result<Datagrams> {
        match self {
            Sockets::Kernel => {
                let socket = net::UdpSocket::bind(group)?;
                socket.join_multicast_v4(group.ip(), &interface)?;
                Ok(Datagrams::Kernel(socket))
            }
            Sockets::Stack(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// A UDP socket that sends to `to`.
    pub(super) fn datagrams_to(&self, to: SocketAddrV4) -> io::Result<Datagrams> {
        let mut datagrams = self.datagrams(Ipv4Addr::UNSPECIFIED.into())?;
        match &mut datagrams {
            Datagrams::Kernel(socket) => socket.connect(to)?,
            Datagrams::Stack { peer, .. } => *peer = Some(to.into()),
        }
        Ok(datagrams)
    }
}

impl Stream {
    pub fn connect_unix(to: &Path, patience: Duration) -> io::Result<Self> {
        let stream = Stream::Unix(UnixStream::connect(to)?);
        stream.set_timeouts(patience)?;
        Ok(stream)
    }

    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        each!(self, Stream::{Kernel, Stack, Unix}, stream => {
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))
        })
    }

    /// Another handle of the connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Stream::Kernel(stream) => stream.try_clone().map(Stream::Kernel),
            Stream::Stack(stream) => stream.try_clone().map(Stream::Stack),
            Stream::Unix(stream) => stream.try_clone().map(Stream::Unix),
        }
    }

    /// Switches Nagle's algorithm off.
    pub fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Stream::Kernel(stream) => stream.set_nodelay(true),
            Stream::Stack(stream) => stream.set_nodelay(true),
            Stream::Unix(_) => Ok(()),
        }
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Kernel(stream) => stream.local_addr(),
            Stream::Stack(stream) => stream.local_addr(),
            Stream::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(super) fn end_writing(&self) -> io::Result<()> {
        each!(self, Stream::{Kernel, Stack, Unix}, stream => stream.shutdown(Shutdown::Write))
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        each!(self, Stream::{Kernel, Stack, Unix}, stream => { stream }.read(into))
    }
}

impl Write for &Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        each!(self, Stream::{Kernel, Stack, Unix}, stream => { stream }.write(from))
    }

    fn write_vectored(&mut self, from: &[io::IoSlice<'_>]) -> io::Result<usize> {
        each!(self, Stream::{Kernel, Stack, Unix}, stream => { stream }.write_vectored(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }

    fn write_vectored(&mut self, from: &[io::IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Listener {
    pub(super) fn local_port(&self, asked: u16) -> io::Result<u16> {
        match self {
            Listener::Kernel(listener) => Ok(listener.local_addr()?.port()),
            // A userspace stack listens at the given port.
            Listener::Stack(_) => Ok(asked),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Kernel(listener) => Ok(Stream::Kernel(listener.accept()?.0)),
            Listener::Stack(listener) => Ok(Stream::Stack(listener.accept()?.0)),
        }
    }
}

impl Datagrams {
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Datagrams::Kernel(socket) => socket.set_read_timeout(Some(timeout)),
            Datagrams::Stack { socket, .. } => socket.set_read_timeout(Some(timeout)),
        }
    }

    /// Enlarges the receive buffer; that of a userspace stack is fixed.
    pub(super) fn take_much(&self) -> io::Result<()> {
        match self {
            Datagrams::Kernel(socket) => Ok(setsockopt(socket, sockopt::RcvBuf, &BUFFER)?),
            Datagrams::Stack { .. } => Ok(()),
        }
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        match self {
            Datagrams::Kernel(socket) => Ok(socket.local_addr()?.port()),
            Datagrams::Stack { socket, .. } => Ok(socket.port()),
        }
    }

    pub(super) fn send(&self, message: &[u8]) -> io::Result<usize> {
        match self {
            Datagrams::Kernel(socket) => socket.send(message),
            Datagrams::Stack { socket, peer } => {
                socket.send_to(message, peer.ok_or(io::ErrorKind::NotConnected)?)
            }
        }
    }

    pub(super) fn send_to(&self, message: &[u8], to: SocketAddr) -> io::Result<usize> {
        match self {
            Datagrams::Kernel(socket) => socket.send_to(message, to),
            Datagrams::Stack { socket, .. } => socket.send_to(message, to),
        }
    }

    pub(super) fn receive(&self, message: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        match self {
            Datagrams::Kernel(socket) => socket.recv_from(message),
            Datagrams::Stack { socket, .. } => socket.recv_from(message),
        }
    }
}
