//! TCP: connections that behave as [`std::net::TcpStream`].

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{ConnectError, RecvError, SendError, Socket, SocketBuffer, State};

use super::core::Core;
use super::{Running, address, endpoint};

/// What a connection may have under way in either direction, unless the MTU asks for more.
const BUFFER_BYTES: usize = 512 * 1024;

/// Packets of the MTU that there is room for at least.
const BUFFER_PACKETS: usize = 4;

/// Connections to a listener that are being opened or wait to be accepted; more are turned away.
const BACKLOG: usize = 16;

/// How long [`super::Stack::connect`] waits.
const CONNECTING: Duration = Duration::from_secs(20);

/// How long a peer may leave unanswered what was sent to it. Drivers and agents may come and go
/// meanwhile.
const UNANSWERED: Duration = Duration::from_secs(60);

/// Accepts connections.
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
    /// When the node has left the domain ([`super::is_revoked`]).
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let Some(first) = self.waiting().first().copied() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let socket = self.running.shared.wait(first, None, |core| {
            let mut waiting = self.waiting();
            // Those that broke off before they were accepted.
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
            let next = core.add(new_socket(core));
            core.share_bell(next, accepted);
            core.own_bell(accepted);
            listen(core, next, self.port);
            waiting[at] = next;
            Ok(Some(accepted))
        })?;
        let stream = TcpStream(Arc::new(Connection::new(&self.running, socket)));
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
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
                // Who has connected and was not accepted hears of it.
                core.tcp(socket).abort();
                core.say_goodbye(socket);
            }
        });
    }
}

/// A connection. Clones are the same one, which ends with the last of them.
#[derive(Clone)]
pub struct TcpStream(Arc<Connection>);

/// What clones of a stream share.
struct Connection {
    running: Arc<Running>,
    socket: SocketHandle,
    options: Mutex<Options>,
}

#[derive(Clone, Copy, Default)]
struct Options {
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    is_deaf: bool,
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
        let deadline = Instant::now() + CONNECTING;
        let opened = running.shared.wait(socket, Some(CONNECTING), |core| {
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

    /// The same connection once more.
    ///
    /// # Errors
    /// None; as std's.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// The other end.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] when it is closed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = |core: &mut Core| core.tcp(self.0.socket).remote_endpoint();
        let peer = self.0.running.shared.with(peer);
        Ok(address(peer.ok_or(io::ErrorKind::NotConnected)?))
    }

    /// This end.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] when it is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = |core: &mut Core| core.tcp(self.0.socket).local_endpoint();
        let local = self.0.running.shared.with(local);
        Ok(address(local.ok_or(io::ErrorKind::NotConnected)?))
    }

    /// Ends what is sent, what is received, or both.
    ///
    /// # Errors
    /// None; as std's.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.0.options().is_deaf = true;
        }
        self.0.running.shared.with(|core| {
            if how != Shutdown::Read {
                core.tcp(self.0.socket).close();
            }
            core.waker(self.0.socket).wake();
        });
        Ok(())
    }

    /// Whether to send small pieces at once, instead of waiting for the answer to the one before.
    ///
    /// # Errors
    /// None; as std's.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        let set = |core: &mut Core| core.tcp(self.0.socket).set_nagle_enabled(!nodelay);
        self.0.running.shared.with(set);
        Ok(())
    }

    /// How long a read may wait; for ever if there is no limit.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for no time at all.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.options().read_timeout = checked(timeout)?;
        Ok(())
    }

    /// How long a write may wait; for ever if there is no limit.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for no time at all.
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
            if connection.options().is_deaf {
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
                    let waker = core.waker(connection.socket);
                    core.tcp(connection.socket).register_send_waker(&waker);
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

    /// What was written is on its way already.
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
        self.running
            .shared
            .with(|core| core.say_goodbye(self.socket));
    }
}

/// Takes as much as there is room for, so that small parts leave in one packet.
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
    let len = BUFFER_BYTES.max(BUFFER_PACKETS * core.addresses().mtu);
    let buffer = || SocketBuffer::new(vec![0; len]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_timeout(Some(smoltcp::time::Duration::from_millis(
        UNANSWERED.as_millis() as u64,
    )));
    socket
}

/// A closed socket listens, and rings its bell when somebody has connected.
fn listen(core: &mut Core, socket: SocketHandle, port: u16) {
    // It fails for open sockets and port 0 only.
    let _ = core.tcp(socket).listen(port);
    watch(core, socket);
}

/// Lets a socket ring when its state changes.
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
