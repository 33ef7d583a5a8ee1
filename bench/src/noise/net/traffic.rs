//! Measured traffic of either end: streams of messages, and datagrams without sleeping.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::control::is_pause;
use super::error::{NetError, Peer};
use super::packets::Handling;
use super::window::Counter;
use super::wire::{Flow, Streams};
use super::{PATIENCE, wire};
use crate::noise::os::{shortest_gap, since};
use crate::noise::signals::Signals;

/// Bytes of a read from a stream of messages that are not longer.
const READ: usize = 128 << 10;

/// Limits of a session, shared by its threads.
#[derive(Debug)]
pub struct Budget {
    deadline: Instant,
    bytes: AtomicU64,
    signals: Signals,
}

impl Budget {
    /// A budget from now on.
    pub fn new(time: Duration, bytes: u64, signals: &Signals) -> Self {
        Budget {
            deadline: Instant::now() + time,
            bytes: AtomicU64::new(bytes),
            signals: signals.clone(),
        }
    }

    /// Takes bytes of messages.
    ///
    /// # Errors
    /// [`NetError::Spent`] beyond a limit, [`NetError::Interrupted`] after a signal.
    pub fn spend(&self, bytes: usize) -> Result<(), NetError> {
        let take = |left: u64| left.checked_sub(bytes as u64);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.bytes.fetch_update(set, fetch, take).is_err() {
            return Err(NetError::Spent {
                what: "bytes",
                option: "--max-gib",
            });
        }
        self.check(Instant::now())
    }

    /// Checks time and signals alone.
    ///
    /// # Errors
    /// As [`Budget::spend`].
    pub fn check(&self, now: Instant) -> Result<(), NetError> {
        if self.signals.arrived() {
            return Err(NetError::Interrupted);
        }
        if now > self.deadline {
            return Err(NetError::Spent {
                what: "time",
                option: "--max-seconds",
            });
        }
        Ok(())
    }

    /// Time that is left.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// A connection of an order.
#[derive(Debug)]
pub struct Data {
    /// The connection.
    pub stream: TcpStream,
    /// The other end.
    pub peer: Peer,
    /// Whether this end sends.
    pub sends: bool,
}

impl Data {
    /// Sets the time-outs.
    ///
    /// # Errors
    /// The system's.
    pub fn new(stream: TcpStream, peer: SocketAddr, sends: bool) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let peer = Peer(peer);
        Ok(Data {
            stream,
            peer,
            sends,
        })
    }
}

/// Sends and receives on all connections of an order at the same time. Returns the bytes sent, and
/// the streams received in the order of the connections.
///
/// # Errors
/// The first one of any connection.
pub fn streams(
    order: &Streams,
    connections: &[Data],
    budget: &Budget,
) -> Result<(u64, Vec<Flow>), NetError> {
    let start = Instant::now();
    let halves = on_each(connections, |data| stream(order, data, start, budget))?;
    let (mut sent, mut flows) = (0, Vec::new());
    for half in halves {
        match half {
            Half::Sent(bytes) => sent += bytes,
            Half::Received(flow) => flows.push(flow),
        }
    }
    Ok((sent, flows))
}

/// Works on all connections at the same time. Returns the results in the order of the connections.
///
/// # Errors
/// The first one of any connection.
pub fn on_each<'connections, T: Send>(
    connections: &'connections [Data],
    work: impl Fn(&Data) -> Result<T, NetError> + Sync,
) -> Result<Vec<T>, NetError> {
    let work = &work;
    thread::scope(|scope| {
        let begin = |data: &'connections Data| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || work(data));
            thread.map_err(|source| NetError::System {
                action: "start a thread for",
                peer: data.peer.0,
                source,
            })
        };
        let threads: Vec<_> = connections.iter().map(begin).collect();
        let joined = threads.into_iter().map(|thread| {
            let joined = thread?.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        // All are joined before the first error is returned.
        let outcomes: Vec<Result<T, NetError>> = joined.collect();
        outcomes.into_iter().collect()
    })
}

/// One direction of a stream.
enum Half {
    Sent(u64),
    Received(Flow),
}

fn stream(order: &Streams, data: &Data, start: Instant, budget: &Budget) -> Result<Half, NetError> {
    if data.sends {
        send(order, data, start, budget).map(Half::Sent)
    } else {
        receive(order, data, start, budget).map(Half::Received)
    }
}

/// Time in which an order sends.
pub fn duration(order: &Streams) -> Duration {
    Duration::from_millis(u64::from(order.slice_ms) * u64::from(order.slices))
}

fn send(order: &Streams, data: &Data, start: Instant, budget: &Budget) -> Result<u64, NetError> {
    let message = vec![wire::FILL; order.bytes as usize];
    let (time, mut sent) = (duration(order), 0);
    while start.elapsed() < time {
        budget.spend(message.len())?;
        write_message(&data.stream, data.peer, &message, budget)?;
        sent += message.len() as u64;
    }
    let ended = data.stream.shutdown(Shutdown::Write);
    ended.map_err(|error| data.peer.error("end the stream to", error))?;
    Ok(sent)
}

/// Reads a whole message; `false` if the connection has ended before it. The limits are checked
/// between its parts only, so that one that comes at once costs nothing more.
///
/// # Errors
/// [`NetError::Closed`] within the message, the limits' and the system's.
pub fn read_message(
    mut from: impl Read,
    peer: Peer,
    message: &mut [u8],
    budget: &Budget,
) -> Result<bool, NetError> {
    let mut len = 0;
    loop {
        match from.read(&mut message[len..]) {
            Ok(0) if len == 0 => return Ok(false),
            Ok(0) => return Err(NetError::Closed { peer: peer.0 }),
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(peer.error("read from", error)),
        }
        if len == message.len() {
            return Ok(true);
        }
        budget.check(Instant::now())?;
    }
}

/// Writes a whole message. The limits are checked between its parts.
///
/// # Errors
/// The limits' and the system's.
pub fn write_message(
    mut to: impl Write,
    peer: Peer,
    message: &[u8],
    budget: &Budget,
) -> Result<(), NetError> {
    let mut left = message;
    loop {
        match to.write(left) {
            Ok(len) => left = &left[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(peer.error("send to", error)),
        }
        if left.is_empty() {
            return Ok(());
        }
        budget.check(Instant::now())?;
    }
}

fn receive(
    order: &Streams,
    data: &Data,
    start: Instant,
    budget: &Budget,
) -> Result<Flow, NetError> {
    let mut bytes = vec![0; READ.max(order.bytes as usize)];
    let (mut counter, mut stream) = (Counter::new(order), &data.stream);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(counter.finish()),
            Ok(len) => {
                counter.add(since(start), len as u64);
                budget.spend(len)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => budget.spend(0)?,
            Err(error) => return Err(data.peer.error("read from", error)),
        }
    }
}

/// Sends datagrams for the time of an order, as fast as possible.
///
/// # Errors
/// The limits', and the system's.
pub fn send_datagrams(
    order: &Streams,
    socket: &UdpSocket,
    to: SocketAddr,
    budget: &Budget,
) -> Result<u64, NetError> {
    let message = vec![wire::FILL; order.bytes as usize];
    let (start, time, mut sent) = (Instant::now(), duration(order), 0);
    while start.elapsed() < time {
        budget.spend(message.len())?;
        match socket.send_to(&message, to) {
            Ok(_) => sent += message.len() as u64,
            // A full queue of the interface drops, as the network does.
            Err(error) if is_full(&error) => {}
            Err(error) => return Err(Peer(to).error("send to", error)),
        }
    }
    Ok(sent)
}

fn is_full(error: &io::Error) -> bool {
    is_pause(error) || error.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32)
}

/// Shortest gap in nanoseconds between two looks that find nothing, at a socket of its own: looks
/// at that of an order would take its datagrams.
///
/// # Errors
/// The system's.
pub fn calibrate() -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    let (start, mut nothing) = (Instant::now(), [0]);
    Ok(shortest_gap(|| {
        let _ = socket.recv_from(&mut nothing);
        since(start)
    }))
}

/// A socket that looks for datagrams of one peer without sleeping.
#[derive(Debug)]
pub struct Poller<'a> {
    socket: &'a UdpSocket,
    /// The other end.
    pub peer: SocketAddr,
    start: Instant,
    last_ns: u64,
}

/// A datagram that a [`Poller`] found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Bytes of the datagram.
    pub len: usize,
    /// Time of the look that found it, from the start of the poller.
    pub now_ns: u64,
    /// Time since the look before.
    pub gap_ns: u64,
}

impl<'a> Poller<'a> {
    /// Makes `socket` non-blocking.
    ///
    /// # Errors
    /// The system's.
    pub fn new(socket: &'a UdpSocket, peer: SocketAddr) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Poller {
            socket,
            peer,
            start: Instant::now(),
            last_ns: 0,
        })
    }

    /// Sends a datagram. Returns the times before and after.
    ///
    /// # Errors
    /// The system's.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(u64, u64), NetError> {
        let before = since(self.start);
        match self.socket.send_to(bytes, self.peer) {
            Err(error) if !is_full(&error) => return Err(Peer(self.peer).error("send to", error)),
            _ => {}
        }
        self.last_ns = since(self.start);
        Ok((before, self.last_ns))
    }

    /// Looks until a datagram of the peer has come; `None` after some time without one.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self, bytes: &mut [u8], within: Duration) -> Result<Option<Found>, NetError> {
        let end_ns = self.last_ns + within.as_nanos() as u64;
        loop {
            let found = self.socket.recv_from(bytes);
            let now_ns = since(self.start);
            let gap_ns = now_ns - self.last_ns;
            self.last_ns = now_ns;
            match found {
                Ok((len, from)) if from == self.peer => {
                    return Ok(Some(Found {
                        len,
                        now_ns,
                        gap_ns,
                    }));
                }
                Ok(_) => {}
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(Peer(self.peer).error("read from", error)),
            }
            if now_ns > end_ns {
                return Ok(None);
            }
        }
    }
}

impl Drop for Poller<'_> {
    fn drop(&mut self) {
        // Fails only for a closed socket.
        let _ = self.socket.set_nonblocking(false);
    }
}

impl Found {
    /// The handling of a datagram that was found, and of the one sent in `send_ns`.
    pub fn handling(self, send_ns: u64) -> Handling {
        Handling {
            gap_ns: self.gap_ns,
            send_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes and gives a byte at a time, and ends after some.
    struct Trickle(usize);

    impl Read for Trickle {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let len = self.0.min(1).min(bytes.len());
            self.0 -= len;
            Ok(len)
        }
    }

    impl Write for Trickle {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.read(&mut vec![0; bytes.len()])
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn parts_of_a_message_come_within_the_limits() {
        let [spent, large] = [0, 60].map(|seconds| {
            let time = Duration::from_secs(seconds);
            Budget::new(time, 0, &Signals::none())
        });
        let peer = Peer((Ipv4Addr::LOCALHOST, 1).into());
        let read = |len, budget: &Budget| read_message(Trickle(len), peer, &mut [0; 100], budget);
        assert!(matches!(read(100, &large), Ok(true)));
        assert!(matches!(read(0, &large), Ok(false)));
        assert!(matches!(read(99, &large), Err(NetError::Closed { .. })));
        assert!(matches!(read(100, &spent), Err(NetError::Spent { .. })));
        let write = |budget: &Budget| write_message(Trickle(100), peer, &[0; 100], budget);
        assert!(write(&large).is_ok());
        assert!(matches!(write(&spent), Err(NetError::Spent { .. })));
    }
}
