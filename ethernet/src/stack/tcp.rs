//! TCP sockets that behave like [`std::net::TcpStream`] and [`std::net::TcpListener`].

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{ConnectError, RecvError, SendError, Socket, SocketBuffer, State};

use super::core::Core;
use super::{Running, address, endpoint};

/// Buffer of a connection per direction in bytes, unless the MTU asks for more.
const BUFFER_BYTES: usize = 512 * 1024;

/// Number of packets of the MTU that the buffer holds at least.
const BUFFER_PACKETS: usize = 4;

/// Limit of the connections of a listener that are being opened or wait to be accepted; others are
/// refused.
const BACKLOG: usize = 16;

/// Timeout of [`super::Stack::connect`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Time that a peer may leave data unacknowledged. Drivers and agents may restart meanwhile.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);

/// A listening socket.
#[derive(Debug)]
pub struct TcpListener {
    running: Arc<Running>,
    port: u16,
    waiting: Mutex<Vec<SocketHandle>>,
}

impl TcpListener {
    pub(super) fn new(running: &Arc<Running>, port: u16) -> io::Result<Self> {
        if port == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let waiting = running.shared.with(|core| {
            core.check()?;
            if core.is_listened_on(port) {
                return Err(io::Error::from(io::ErrorKind::AddrInUse));
            }
            let mut waiting = Vec::new();
            for _ in 0..BACKLOG {
                let socket = core.add(new_socket(core));
                if let Some(first) = waiting.first() {
                    core.share_bell(socket, *first);
                }
                listen(core, socket, port);
                waiting.push(socket);
            }
            Ok(waiting)
        })?;
        Ok(TcpListener {
            running: Arc::clone(running),
            port,
            waiting: Mutex::new(waiting),
        })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// An error of [`super::is_revoked`] when the node has left the domain.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let Some(first) = self.waiting().first().copied() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let (socket, peer) = self.running.shared.wait(first, None, |core| {
            let mut waiting = self.waiting();
            // Connections that ended before they were accepted.
            for socket in waiting.iter().copied() {
                if core.tcp(socket).state() == State::Closed {
                    listen(core, socket, self.port);
                }
            }
            let is_open = |socket: &SocketHandle| {
                !matches!(
                    core.tcp(*socket).state(),
                    State::Listen | State::SynReceived
                )
            };
            let Some(at) = waiting.iter().position(is_open) else {
                waiting.iter().for_each(|socket| watch(core, *socket));
                return Ok(None);
            };
            let accepted = waiting[at];
            // Under the lock: after a reset, which may arrive next, the socket has no peer.
            let peer = core.tcp(accepted).remote_endpoint();
            let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
            let next = core.add(new_socket(core));
            core.share_bell(next, accepted);
            core.own_bell(accepted);
            listen(core, next, self.port);
            waiting[at] = next;
            Ok(Some((accepted, peer)))
        })?;
        let stream = TcpStream(Arc::new(Connection::new(&self.running, socket)));
        Ok((stream, address(peer)))
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<SocketHandle>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut *self.waiting());
        self.running.shared.with(|core| {
            for socket in waiting {
                // Resets connections that were not accepted.
                core.tcp(socket).abort();
                core.close(socket);
            }
        });
    }
}

/// A connection. Clones share it, and it ends with the last of them.
#[derive(Clone)]
pub struct TcpStream(Arc<Connection>);

/// State that clones share.
struct Connection {
    running: Arc<Running>,
    socket: SocketHandle,
    options: Mutex<Options>,
}

#[derive(Clone, Copy, Default)]
struct Options {
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    is_read_shut: bool,
}

impl TcpStream {
    pub(super) fn connect(running: &Arc<Running>, to: SocketAddr) -> io::Result<Self> {
        let socket = running.shared.with(|core| {
            core.check()?;
            if !core.is_on_link(endpoint(to).addr) {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
            let port = core.free_port().ok_or(io::ErrorKind::AddrInUse)?;
            let socket = core.add(new_socket(core));
            let (opening, context) = core.opening(socket);
            if let Err(error) = opening.connect(context, endpoint(to), port) {
                core.remove(socket);
                return Err(refused(error));
            }
            Ok(socket)
        })?;
        let connection = Connection::new(running, socket);
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let opened = running.shared.wait(socket, Some(CONNECT_TIMEOUT), |core| {
            watch(core, socket);
            match core.tcp(socket).state() {
                State::SynSent | State::SynReceived => Ok(None),
                State::Closed if Instant::now() < deadline => {
                    Err(io::ErrorKind::ConnectionRefused.into())
                }
                State::Closed => Err(io::ErrorKind::TimedOut.into()),
                _ => Ok(Some(())),
            }
        });
        match opened {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::TimedOut.into())
            }
            opened => opened.map(|()| TcpStream(Arc::new(connection))),
        }
    }

    /// Another handle of the same connection.
    ///
    /// # Errors
    /// None; as in std.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Address of the peer.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] after the end of the connection.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = |core: &mut Core| core.tcp(self.0.socket).remote_endpoint();
        let peer = self.0.running.shared.with(peer);
        Ok(address(peer.ok_or(io::ErrorKind::NotConnected)?))
    }

    /// Local address.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] after the end of the connection.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = |core: &mut Core| core.tcp(self.0.socket).local_endpoint();
        let local = self.0.running.shared.with(local);
        Ok(address(local.ok_or(io::ErrorKind::NotConnected)?))
    }

    /// Ends one or both directions.
    ///
    /// # Errors
    /// None; as in std.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.0.options().is_read_shut = true;
        }
        self.0.running.shared.with(|core| {
            if how != Shutdown::Read {
                core.tcp(self.0.socket).close();
            }
            core.waker(self.0.socket).wake();
        });
        Ok(())
    }

    /// Sets whether small segments are sent at once, without waiting for acknowledgements.
    ///
    /// # Errors
    /// None; as in std.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let set = |core: &mut Core| core.tcp(self.0.socket).set_nagle_enabled(!nodelay);
        self.0.running.shared.with(set);
        Ok(())
    }

    /// Limits the time of a read; `None` is no limit.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a limit of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.options().read_timeout = checked(timeout)?;
        Ok(())
    }

    /// Limits the time of a write; `None` is no limit.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a limit of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.options().write_timeout = checked(timeout)?;
        Ok(())
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpStream").field(&self.0.socket).finish()
    }
}

impl Read for &TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let (connection, timeout) = (&self.0, self.0.options().read_timeout);
        let shared = &connection.running.shared;
        shared.wait(connection.socket, timeout, |core| {
            if connection.options().is_read_shut {
                return Ok(Some(0));
            }
            let socket = core.tcp(connection.socket);
            match socket.recv_slice(into) {
                Ok(0) => {
                    let waker = core.waker(connection.socket);
                    core.tcp(connection.socket).register_recv_waker(&waker);
                    Ok(None)
                }
                Ok(len) => Ok(Some(len)),
                Err(RecvError::Finished) => Ok(Some(0)),
                Err(RecvError::InvalidState) => Err(io::ErrorKind::ConnectionReset.into()),
            }
        })
    }
}

impl Write for &TcpStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if from.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        let (connection, timeout) = (&self.0, self.0.options().write_timeout);
        let shared = &connection.running.shared;
        shared.wait(connection.socket, timeout, |core| {
            let socket = core.tcp(connection.socket);
            match send_parts(socket, from) {
                Ok(0) => {
                    watch(core, connection.socket);
                    Ok(None)
                }
                Ok(len) => Ok(Some(len)),
                Err(_) if socket.state() == State::Closed => {
                    Err(io::ErrorKind::ConnectionReset.into())
                }
                Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
            }
        })
    }

    /// Does nothing: written data is sent at once.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for TcpStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl Connection {
    fn new(running: &Arc<Running>, socket: SocketHandle) -> Self {
        Connection {
            running: Arc::clone(running),
            socket,
            options: Mutex::default(),
        }
    }

    fn options(&self) -> MutexGuard<'_, Options> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.running.shared.with(|core| core.close(self.socket));
    }
}

/// Writes as much as fits, so that small parts leave in one packet.
fn send_parts(socket: &mut Socket<'_>, parts: &[IoSlice<'_>]) -> Result<usize, SendError> {
    let mut sent = 0;
    for part in parts {
        let len = socket.send_slice(part)?;
        sent += len;
        if len < part.len() {
            break;
        }
    }
    Ok(sent)
}

fn new_socket(core: &Core) -> Socket<'static> {
    let len = BUFFER_BYTES.max(BUFFER_PACKETS * core.mtu());
    let buffer = || SocketBuffer::new(vec![0; len]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_timeout(Some(ACK_TIMEOUT.into()));
    socket
}

/// Makes a closed socket listen, and ring its bell when a peer has connected.
fn listen(core: &mut Core, socket: SocketHandle, port: u16) {
    // Fails for open sockets and port 0 only.
    let _ = core.tcp(socket).listen(port);
    watch(core, socket);
}

/// Makes a socket ring its bell when its state changes.
fn watch(core: &mut Core, socket: SocketHandle) {
    let waker = core.waker(socket);
    core.tcp(socket).register_send_waker(&waker);
}

fn refused(error: ConnectError) -> io::Error {
    match error {
        ConnectError::Unaddressable => io::ErrorKind::AddrNotAvailable.into(),
        ConnectError::InvalidState => io::ErrorKind::AlreadyExists.into(),
    }
}

pub(super) fn checked(timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    match timeout {
        Some(Duration::ZERO) => Err(io::ErrorKind::InvalidInput.into()),
        timeout => Ok(timeout),
    }
}
