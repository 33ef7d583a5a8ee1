//! State that the threads of a process share: the interface and sockets of smoltcp, under one lock.
//!
//! A thread that changes something sends the resulting packets itself. The thread of the stack
//! ([`super::worker`]) receives packets and serves timers. A thread that waits for a socket sleeps
//! on its [`Bell`], which smoltcp rings under the lock, so that no change is missed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::Device as _;
use smoltcp::socket::{AnySocket, Socket, tcp, udp};
use smoltcp::time::Instant as Clock;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use toroid_protocol::agent::StackInfo;

use super::StackError;
use super::device::Device;
use crate::port::stack_socket::StackSocket;

/// Time for a dropped connection to send its written data and to receive the end of the peer's.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that datagrams wait for the MAC address of the first of them. smoltcp has no limit.
const RESOLUTION_TIMEOUT: Duration = Duration::from_secs(2);

/// The shortest sleep when nothing is due at once. A wrong timer therefore causes no busy loop.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// Local ports of connections (RFC 6335).
const PORTS: std::ops::RangeInclusive<u16> = 49152..=65535;

/// The lock, and the eventfd that wakes the thread of the stack.
pub(super) struct Shared {
    core: Mutex<Core>,
    pub(super) doorbell: EventFd,
}

/// A condition variable that smoltcp notifies as a waker.
#[derive(Debug, Default)]
pub(super) struct Bell(Condvar);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_all();
    }
}

/// State under the lock.
pub(super) struct Core {
    interface: Interface,
    sockets: SocketSet<'static>,
    device: Device,
    /// Addresses with their prefixes.
    links: [IpCidr; 2],
    began: Instant,
    bells: HashMap<SocketHandle, Arc<Bell>>,
    /// Dropped connections, and their deadlines.
    closing: Vec<(SocketHandle, Instant)>,
    /// Sockets with datagrams that wait for a MAC address, since when.
    unresolved: HashMap<SocketHandle, Instant>,
    next_port: u16,
    /// Sleep of the thread of the stack.
    sleep: Sleep,
    revoked: bool,
    ending: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Sleep {
    Awake,
    Until(Option<Instant>),
}

/// The next step of the thread of the stack.
pub(super) enum Next {
    /// Ask for another stack socket.
    Plug,
    /// Sleep until the stack socket or the doorbell is readable, or for the timeout.
    Wait {
        stack_socket: Arc<StackSocket>,
        is_blocked: bool,
        timeout: Option<Duration>,
    },
    /// Wait for the doorbell: there will be no other stack socket.
    Idle,
    /// End.
    End,
}

impl Shared {
    pub(super) fn new(
        stack_socket: StackSocket,
        info: &StackInfo,
    ) -> Result<Arc<Self>, StackError> {
        let doorbell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| StackError::System(error.into()))?;
        Ok(Arc::new(Shared {
            core: Mutex::new(Core::new(stack_socket, info)),
            doorbell,
        }))
    }

    /// Runs `work` under the lock, and sends the resulting packets.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let result = work(&mut core);
        self.follow_up(&mut core);
        result
    }

    /// Runs `work` under the lock until it returns a result, again after each ring of the socket's
    /// bell.
    ///
    /// # Errors
    /// Those of `work`. As in std [`io::ErrorKind::WouldBlock`] after the timeout, and an error
    /// around [`StackError::Revoked`] after the node has left the domain.
    pub(super) fn wait<R>(
        &self,
        socket: SocketHandle,
        timeout: Option<Duration>,
        mut work: impl FnMut(&mut Core) -> io::Result<Option<R>>,
    ) -> io::Result<R> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut core = self.lock();
        loop {
            core.check()?;
            let result = work(&mut core);
            if let Some(result) = result.transpose() {
                self.follow_up(&mut core);
                return result;
            }
            let rest = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            let bell = core.bell(socket);
            core = match rest {
                None => bell.0.wait(core).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Err(io::ErrorKind::WouldBlock.into()),
                Some(rest) => {
                    let waiting = bell.0.wait_timeout(core, rest);
                    waiting.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    pub(super) fn ring(&self) {
        // Fails when it rings already.
        let _ = self.doorbell.write(1);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow_up(&self, core: &mut Core) {
        core.advance();
        if core.is_due_before_waking() {
            self.ring();
        }
    }
}

impl Core {
    fn new(stack_socket: StackSocket, info: &StackInfo) -> Self {
        let mut device = Device::new(stack_socket, info.mtu as usize);
        let mut config = Config::new(EthernetAddress(info.mac).into());
        let random = RandomState::new().hash_one(info.mac);
        // Initial sequence numbers must not be predictable.
        config.random_seed = random;
        let mut interface = Interface::new(config, &mut device, Clock::ZERO);
        let links = [
            IpCidr::new(info.ipv4.into(), info.prefix),
            IpCidr::new(info.ipv6.into(), info.ipv6_prefix),
        ];
        // The list has room for two.
        interface.update_ip_addrs(|ips| ips.extend(links));
        let range = u64::from(PORTS.end() - PORTS.start());
        Core {
            interface,
            sockets: SocketSet::new(Vec::new()),
            device,
            links,
            began: Instant::now(),
            bells: HashMap::new(),
            closing: Vec::new(),
            unresolved: HashMap::new(),
            next_port: PORTS.start() + u16::try_from(random % range).unwrap_or_default(),
            sleep: Sleep::Awake,
            revoked: false,
            ending: None,
        }
    }

    /// The longest IP packet in bytes.
    pub(super) fn mtu(&self) -> usize {
        self.device.capabilities().ip_mtu()
    }

    pub(super) fn add(&mut self, socket: impl AnySocket<'static>) -> SocketHandle {
        let handle = self.sockets.add(socket);
        self.bells.insert(handle, Arc::default());
        handle
    }

    /// Makes a socket ring the bell of another, on which a thread waits.
    pub(super) fn share_bell(&mut self, socket: SocketHandle, of: SocketHandle) {
        let bell = self.bell(of);
        self.bells.insert(socket, bell);
    }

    /// Gives a socket a bell of its own again.
    pub(super) fn own_bell(&mut self, socket: SocketHandle) {
        self.bells.insert(socket, Arc::default());
    }

    pub(super) fn remove(&mut self, socket: SocketHandle) {
        self.bells.remove(&socket);
        self.unresolved.remove(&socket);
        self.sockets.remove(socket);
    }

    pub(super) fn tcp(&mut self, socket: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(socket)
    }

    pub(super) fn udp(&mut self, socket: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(socket)
    }

    /// A socket and the context, to open a connection.
    pub(super) fn opening(
        &mut self,
        socket: SocketHandle,
    ) -> (&mut tcp::Socket<'static>, &mut smoltcp::iface::Context) {
        (self.sockets.get_mut(socket), self.interface.context())
    }

    pub(super) fn waker(&self, socket: SocketHandle) -> Waker {
        self.bell(socket).into()
    }

    /// Closes a connection that the application has dropped.
    pub(super) fn close(&mut self, socket: SocketHandle) {
        self.tcp(socket).close();
        self.closing.push((socket, Instant::now() + CLOSE_TIMEOUT));
    }

    /// Whether an address belongs to the domain. There are no routes to other addresses.
    pub(super) fn is_on_link(&self, address: IpAddress) -> bool {
        self.links.iter().any(|link| link.contains_addr(&address))
    }

    /// A port that no socket uses.
    pub(super) fn free_port(&mut self) -> Option<u16> {
        let used = |port| {
            self.sockets.iter().any(|(_, socket)| match socket {
                Socket::Tcp(socket) => {
                    let local = socket.local_endpoint().map(|local| local.port);
                    local.unwrap_or(socket.listen_endpoint().port) == port
                }
                Socket::Udp(socket) => socket.endpoint().port == port,
                _ => false,
            })
        };
        let next = |port| {
            if port == *PORTS.end() {
                *PORTS.start()
            } else {
                port + 1
            }
        };
        let all = std::iter::successors(Some(self.next_port), |port| Some(next(*port)));
        let port = all.take(PORTS.len()).find(|port| !used(*port))?;
        self.next_port = next(port);
        Some(port)
    }

    pub(super) fn is_listened_on(&self, port: u16) -> bool {
        self.sockets.iter().any(|(_, socket)| {
            matches!(socket, Socket::Tcp(socket) if socket.listen_endpoint().port == port)
        })
    }

    pub(super) fn is_bound(&self, port: u16) -> bool {
        self.sockets.iter().any(
            |(_, socket)| matches!(socket, Socket::Udp(socket) if socket.endpoint().port == port),
        )
    }

    /// # Errors
    /// An error around [`StackError::Revoked`].
    pub(super) fn check(&self) -> io::Result<()> {
        if self.revoked {
            Err(StackError::Revoked.into())
        } else {
            Ok(())
        }
    }

    /// Receives and sends all packets that are possible now.
    pub(super) fn advance(&mut self) {
        if self.revoked {
            return;
        }
        self.device.begin();
        let now = self.clock();
        let polled = self
            .interface
            .poll(now, &mut self.device, &mut self.sockets);
        if polled == PollResult::SocketStateChanged {
            self.remove_closed();
        }
    }

    /// The next step of the thread of the stack, which has woken up.
    pub(super) fn next(&mut self) -> Next {
        self.sleep = Sleep::Awake;
        self.advance();
        self.remove_closed();
        self.drop_unresolved();
        if self.is_over() {
            return Next::End;
        }
        if self.revoked {
            return Next::Idle;
        }
        let Some(stack_socket) = self.device.stack_socket() else {
            return Next::Plug;
        };
        let timeout = self.rest();
        self.sleep = Sleep::Until(timeout.map(|timeout| Instant::now() + timeout));
        Next::Wait {
            stack_socket,
            is_blocked: self.device.is_blocked(),
            timeout,
        }
    }

    pub(super) fn plug(&mut self, stack_socket: StackSocket) {
        self.device.plug(stack_socket);
    }

    /// Ends all communication: the node has left the domain.
    pub(super) fn revoke(&mut self) {
        self.revoked = true;
        self.bells.values().for_each(|bell| bell.0.notify_all());
    }

    /// Ends the stack within this time, in which written data is still sent.
    pub(super) fn end_within(&mut self, timeout: Duration) {
        self.ending = Some(Instant::now() + timeout);
    }

    fn is_over(&mut self) -> bool {
        let Some(end) = self.ending else {
            return false;
        };
        let closing = std::mem::take(&mut self.closing);
        // In these states the peer has acknowledged all data.
        let has_all = |state| {
            matches!(
                state,
                tcp::State::Closed | tcp::State::FinWait2 | tcp::State::TimeWait
            )
        };
        let peers_have_all = closing
            .iter()
            .all(|(socket, _)| has_all(self.tcp(*socket).state()));
        self.closing = closing;
        self.revoked || peers_have_all || Instant::now() >= end
    }

    /// Time without work unless a packet arrives.
    fn rest(&mut self) -> Option<Duration> {
        if self.device.has_more() {
            return Some(Duration::ZERO);
        }
        let due = self.due();
        let now = Instant::now();
        let closing = self.closing.iter().map(|(_, end)| *end);
        let unresolved = self.unresolved.values();
        let unresolved = unresolved.map(|since| *since + RESOLUTION_TIMEOUT);
        let own = closing.chain(unresolved).chain(self.ending).min();
        let own = own.map(|end| end.saturating_duration_since(now));
        let rest = due.into_iter().chain(own).min();
        rest.map(|rest| rest.max(MIN_SLEEP))
    }

    /// Time until smoltcp has work, except sending over a full socket.
    fn due(&mut self) -> Option<Duration> {
        let now = self.clock();
        let delay = self.interface.poll_delay(now, &self.sockets)?;
        let delay = Duration::from(delay);
        (!delay.is_zero() || !self.device.is_blocked()).then_some(delay)
    }

    /// Whether work is due before the thread of the stack wakes up.
    fn is_due_before_waking(&mut self) -> bool {
        let Sleep::Until(end) = self.sleep else {
            return false;
        };
        if self.device.is_blocked()
            || self.device.has_more()
            || self.device.stack_socket().is_none()
        {
            return true;
        }
        let Some(due) = self.rest() else {
            return false;
        };
        end.is_none_or(|end| Instant::now() + due < end)
    }

    fn remove_closed(&mut self) {
        let now = Instant::now();
        let closing = std::mem::take(&mut self.closing);
        for (socket, end) in closing {
            if now >= end {
                self.tcp(socket).abort();
                // Sends the reset.
                let now = self.clock();
                self.interface
                    .poll_egress(now, &mut self.device, &mut self.sockets);
            }
            match self.tcp(socket).state() {
                tcp::State::Closed => self.remove(socket),
                _ => self.closing.push((socket, end)),
            }
        }
    }

    /// Drops datagrams for addresses without a node.
    fn drop_unresolved(&mut self) {
        let can_send = !self.device.is_blocked() && self.device.stack_socket().is_some();
        let now = Instant::now();
        for (handle, socket) in self.sockets.iter_mut() {
            let Socket::Udp(socket) = socket else {
                continue;
            };
            if socket.send_queue() == 0 || !can_send {
                self.unresolved.remove(&handle);
                continue;
            }
            let since = *self.unresolved.entry(handle).or_insert(now);
            if now >= since + RESOLUTION_TIMEOUT {
                self.unresolved.remove(&handle);
                let endpoint = socket.endpoint();
                socket.close();
                // Succeeds: the port was bound a moment ago.
                let _ = socket.bind(endpoint);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn cut_for_test(&mut self) {
        self.device.cut();
    }

    fn bell(&self, socket: SocketHandle) -> Arc<Bell> {
        self.bells.get(&socket).cloned().unwrap_or_default()
    }

    fn clock(&self) -> Clock {
        let micros = self.began.elapsed().as_micros();
        Clock::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    /// Limit of the payload of a datagram to an address of this family, in bytes.
    pub(super) fn longest_datagram(&self, is_ipv6: bool) -> usize {
        let ip = if is_ipv6 { 40 } else { 20 };
        self.mtu() - ip - 8
    }
}
