//! A userspace stack: TCP and UDP sockets of a domain over IPv4 and IPv6, by smoltcp, without an
//! interface of the kernel and without root.
//!
//! A node whose interface in a domain is a *stack* has no TAP there. One of its processes at a time
//! has the addresses instead, and by [`Stack::open`] an end of a `StackSocket` to the driver. To
//! other members it is a member like any other.
//!
//! ```no_run
//! use std::io::Read;
//!
//! use toroid_client::member::Member;
//! use toroid_ethernet::Stack;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let stack = Stack::open(&Member::attach()?.domain("blue")?)?;
//! let mut text = String::new();
//! stack.connect("10.64.0.1:7000".parse()?)?.read_to_string(&mut text)?;
//! # Ok(())
//! # }
//! ```
//!
//! `ethernet/examples/sockets.rs` is a complete program. From the bytes up:
//!
//! * `device`: a stack socket as a network device of smoltcp.
//! * `core`: the interface and the sockets, under one lock.
//! * `worker`: the thread that receives packets and serves timers.
//! * [`tcp`], [`udp`]: sockets that behave like those of std.
//!
//! When the driver or the agent is killed, the stack asks for another stack socket, and connections
//! go on, because TCP repeats lost segments. When the node leaves the domain, all operations fail
//! with [`StackError::Revoked`].
//!
//! IP packets are not fragmented, so a datagram must fit the MTU.

mod core;
mod device;
pub mod tcp;
pub mod udp;
mod worker;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use smoltcp::wire::{IpAddress, IpEndpoint};
use toroid_client::member::{Domain, MemberError};
use toroid_model::refusal::RefusalKind;
use toroid_protocol::agent::StackInfo;

use self::core::Shared;
use self::tcp::{TcpListener, TcpStream};
use self::udp::UdpSocket;
use crate::port::stack_socket::StackSocket;

/// Time for the end of a stack, in which peers receive written data.
const LINGER: Duration = Duration::from_secs(5);

const STACK_BYTES: usize = 256 * 1024;

/// Reasons why there is no stack, or no longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// The agent refused, or is not running.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// Policy: the node has left the domain.
    #[error("the node has left the domain")]
    Revoked,
    /// The system refused a resource that every stack needs.
    #[error("cannot start a stack: {0}")]
    System(io::Error),
}

impl From<StackError> for io::Error {
    fn from(error: StackError) -> Self {
        let kind = match &error {
            StackError::Revoked => io::ErrorKind::ConnectionAborted,
            StackError::Member(_) | StackError::System(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Whether an operation failed because the node has left the domain.
pub fn is_revoked(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(StackError::Revoked))
}

/// Sockets of one domain. Clones share them. The stack ends with the last clone and socket, and
/// waits up to 5 s until peers have received written data.
#[derive(Clone, Debug)]
pub struct Stack {
    running: Arc<Running>,
    info: Arc<StackInfo>,
}

impl Stack {
    /// Gives this process the node's addresses in the domain.
    ///
    /// # Errors
    /// [`StackError::Member`] when the node's interface is no stack, or another process has it;
    /// [`StackError::System`].
    pub fn open(domain: &Domain) -> Result<Self, StackError> {
        let (info, socket) = domain.stack()?;
        Self::start(info, StackSocket::new(socket), Box::new(domain.clone()))
    }

    fn start(
        info: StackInfo,
        stack_socket: StackSocket,
        connector: Box<dyn Connector>,
    ) -> Result<Self, StackError> {
        let shared = Shared::new(stack_socket, &info)?;
        Ok(Stack {
            running: Arc::new(Running::start(shared, connector)?),
            info: Arc::new(info),
        })
    }

    /// IPv4 address of the node in the domain.
    pub fn ipv4(&self) -> Ipv4Addr {
        self.info.ipv4
    }

    /// IPv6 address of the node in the domain.
    pub fn ipv6(&self) -> Ipv6Addr {
        self.info.ipv6
    }

    /// Whether an address belongs to the domain. There are no routes to other addresses.
    pub fn is_on_link(&self, address: IpAddr) -> bool {
        let core = self.running.shared.lock();
        core.is_on_link(address.into())
    }

    /// The longest IP packet in bytes.
    pub fn mtu(&self) -> u32 {
        self.info.mtu
    }

    /// Listens on `port` of both addresses.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`]; [`io::ErrorKind::InvalidInput`] for port 0.
    pub fn listen(&self, port: u16) -> io::Result<TcpListener> {
        TcpListener::new(&self.running, port)
    }

    /// Connects to a member, within 20 s.
    ///
    /// # Errors
    /// As in std: [`io::ErrorKind::ConnectionRefused`], [`io::ErrorKind::TimedOut`], or
    /// [`io::ErrorKind::AddrNotAvailable`] when the address does not belong to the domain.
    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(&self.running, to)
    }

    /// Binds a UDP socket to `port`, or to a free port for 0.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`].
    pub fn bind_udp(&self, port: u16) -> io::Result<UdpSocket> {
        UdpSocket::bind(&self.running, port)
    }
}

/// Source of stack sockets.
trait Connector: Send {
    fn connect(&mut self) -> Result<StackSocket, Unavailable>;
}

/// Reasons why there is no stack socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unavailable {
    /// There will be no other.
    Revoked,
    /// There may be one later.
    NotYet,
}

impl Connector for Domain {
    fn connect(&mut self) -> Result<StackSocket, Unavailable> {
        match self.stack() {
            Ok((_, socket)) => Ok(StackSocket::new(socket)),
            Err(MemberError::Revoked) => Err(Unavailable::Revoked),
            Err(MemberError::Refused(refusal)) => Err(match refusal.kind {
                RefusalKind::Denied | RefusalKind::NotFound | RefusalKind::Invalid => {
                    Unavailable::Revoked
                }
                _ => Unavailable::NotYet,
            }),
            Err(_) => Err(Unavailable::NotYet),
        }
    }
}

/// A stack with its thread, which all sockets hold.
struct Running {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

impl Running {
    fn start(shared: Arc<Shared>, mut connector: Box<dyn Connector>) -> Result<Self, StackError> {
        let working = Arc::clone(&shared);
        let worker = thread::Builder::new()
            .name("toroid-stack".into())
            .stack_size(STACK_BYTES)
            .spawn(move || worker::run(&working, &mut *connector))
            .map_err(StackError::System)?;
        Ok(Running {
            shared,
            worker: Mutex::new(Some(worker)),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.lock().end_within(LINGER);
        self.shared.ring();
        let worker = self.worker.get_mut();
        if let Some(worker) = worker.unwrap_or_else(PoisonError::into_inner).take() {
            // A panic has been reported already.
            let _ = worker.join();
        }
    }
}

fn endpoint(address: SocketAddr) -> IpEndpoint {
    IpEndpoint::new(IpAddress::from(address.ip()), address.port())
}

fn address(endpoint: IpEndpoint) -> SocketAddr {
    SocketAddr::new(endpoint.addr.into(), endpoint.port)
}

#[cfg(test)]
mod tests;
