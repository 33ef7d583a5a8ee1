//! Latencies of the machine itself, one way, and the rate of RDMA.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use toroid_fabric::channel::PacketChannel;
use toroid_fabric::loopback::Network;
use toroid_fabric::provider::Provider;
use toroid_fabric::shm::{Channel, QueuePair};
use toroid_fabric::{Access, Completion, Endpoint, NodeId, Operation, Partition, Protocol, Region};
use toroid_model::directory::{Directory, Domain};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_netlink::namespace;

use super::host::Host;
use crate::fdstore::takeover::Takeover;
use crate::fdstore::{Entry, FdStore};

/// Key of the base in the fd store.
const KEY: &str = "base";

/// Bytes of a packet or datagram.
const BYTES: usize = 56;

/// Round trips of a batch.
const ROUNDS: usize = 200;

/// Batches of packets, of which the fastest counts: another process may disturb some of them.
const BATCHES: usize = 5;

/// Measurements before a latency is refused: for some time both threads may share a processor.
const ATTEMPTS: usize = 10;

/// Time after which the machine is too busy.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which a datagram counts as lost.
const LOST: Duration = Duration::from_millis(50);

/// Round trips of datagrams, the first of which resolve addresses, and of which the median counts.
const DATAGRAMS: usize = 50;

/// Bytes of a long read, of the memory that the reads take in turns, and reads of a batch.
const LONG: usize = 1 << 20;
const MEMORY: usize = 4 * LONG;
const READS: u64 = 8;

/// Batches of long reads, of which the fastest counts: another process may disturb most of them.
const LONG_BATCHES: usize = 45;

/// Latencies in nanoseconds and the rate in bytes per second, once they are measured.
#[derive(Debug, Default)]
pub(crate) struct Base {
    /// The least so far: other processes may disturb a measurement.
    rdma: Mutex<Option<u64>>,
    rate: Mutex<Option<u64>>,
    ethernet: OnceLock<u64>,
}

impl Base {
    /// Takes over what cannot be measured any more when links are emulated.
    pub(crate) fn inherit(takeover: &mut Takeover) -> Self {
        let base = Base::default();
        let kept = takeover.inherit(KEY).and_then(Entry::parse);
        if let Some((ethernet, [])) = kept {
            base.ethernet.get_or_init(|| ethernet);
        }
        base
    }

    pub(crate) fn keep(&self, fd_store: &FdStore) {
        if let Some(ethernet) = self.ethernet.get() {
            fd_store.put(KEY, ethernet, &[]);
        }
    }

    /// Latency of Ethernet, if it was measured before the first links were emulated.
    pub(super) fn ethernet(&self) -> Option<u64> {
        self.ethernet.get().copied()
    }
}

impl Host {
    /// Latency of RDMA: half the median round trip of a packet between two threads. Measured in
    /// about a millisecond, at first and again while `is_enough` is false.
    pub(super) fn rdma_base(&self, is_enough: impl Fn(u64) -> bool) -> Result<u64, Refusal> {
        let mut least = self.base.rdma.lock();
        let mut base = least.unwrap_or(u64::MAX);
        for _ in 0..ATTEMPTS {
            if least.is_some() && is_enough(base) {
                break;
            }
            let measured = measure().map_err(|reason| {
                let message = format!("cannot measure the latency of RDMA: {reason}");
                Refusal::new(RefusalKind::Failed, message, "try again")
            })?;
            base = base.min(measured);
            *least = Some(base);
        }
        Ok(base)
    }

    /// Rate of long reads of another node's memory, in bytes per second, measured until a
    /// measurement succeeds: 386 MB are read.
    pub(super) fn rdma_base_rate(&self) -> Option<u64> {
        let mut rate = self.base.rate.lock();
        if rate.is_none() {
            *rate = measure_rate()
                .inspect_err(|reason| tracing::warn!("cannot measure the rate of RDMA: {reason}"))
                .ok();
        }
        *rate
    }

    /// Measures the latency of Ethernet between two members of a domain whose links are the
    /// machine's, as `toroid ping` does: half the median round trip of a datagram. Does nothing
    /// after the first success, and without two members that have interfaces here.
    pub(super) fn measure_ethernet(&self, domain: &Domain) {
        if self.base.ethernet().is_some() || self.driver.is_none() {
            return;
        }
        let has_interface = |node: &NodeId| !self.interfaces.is_stack(domain, *node);
        let here = domain.members.keys().filter(|node| has_interface(node));
        let here = here.filter_map(|node| Some((*node, self.node(*node)?.network())));
        let here: Vec<(NodeId, Arc<OwnedFd>)> = here.collect();
        let pairs = here.iter().zip(here.iter().skip(1));
        let mut pairs = pairs.filter(|((from, _), (to, _))| domain.may_talk(*from, *to));
        let Some((from, to)) = pairs.next() else {
            return;
        };
        let place = |(node, network): &(NodeId, Arc<OwnedFd>)| {
            let address = domain
                .address(*node)
                .ok_or(io::ErrorKind::AddrNotAvailable)?;
            socket_in(network, address)
        };
        let measured = place(from).and_then(|from| exchange_datagrams(&from, &place(to)?));
        match measured {
            Ok(base) => {
                self.base.ethernet.get_or_init(|| base);
                self.base.keep(&self.fd_store);
                self.members.set_torus_base(base);
            }
            // A node's root may have closed its network.
            Err(error) => tracing::warn!("cannot measure the latency of Ethernet: {error}"),
        }
    }

    /// Does the same between two members of any domain.
    pub(crate) fn measure_ethernet_once(&self) {
        let domains: Vec<Domain> = self
            .members
            .directory(|directory: &Directory| directory.domains().cloned().collect());
        domains
            .iter()
            .for_each(|domain| self.measure_ethernet(domain));
    }
}

fn socket_in(network: &OwnedFd, address: Ipv4Addr) -> io::Result<UdpSocket> {
    let bind = || UdpSocket::bind(SocketAddrV4::new(address, 0));
    let socket = namespace::inside(network, bind)??;
    socket.set_read_timeout(Some(LOST))?;
    Ok(socket)
}

/// Half the median round trip between two sockets.
fn exchange_datagrams(from: &UdpSocket, to: &UdpSocket) -> io::Result<u64> {
    from.connect(to.local_addr()?)?;
    to.connect(from.local_addr()?)?;
    thread::scope(|scope| {
        let answer = scope.spawn(|| {
            let mut datagram = [0; BYTES];
            for _ in 0..DATAGRAMS {
                to.recv(&mut datagram)?;
                to.send(&datagram)?;
            }
            Ok::<_, io::Error>(())
        });
        let ask = || {
            let mut times = Vec::with_capacity(DATAGRAMS);
            for _ in 0..DATAGRAMS {
                let begun = Instant::now();
                from.send(&[0; BYTES])?;
                from.recv(&mut [0; BYTES])?;
                times.push(begun.elapsed());
            }
            times.sort_unstable();
            Ok::<_, io::Error>(times[DATAGRAMS / 2])
        };
        let median = ask()?;
        answer
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))?;
        Ok(half(median))
    })
}

fn half(round_trip: Duration) -> u64 {
    u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX)
}

fn measure() -> Result<u64, String> {
    const PROTOCOL: Protocol = Protocol(1);
    let text = |error: &dyn ToString| error.to_string();
    let network = Network::new(Partition(1));
    let (asking, answering) = (network.join(NodeId(0)), network.join(NodeId(1)));
    let listener = answering.listen(PROTOCOL).map_err(|error| text(&error))?;
    let mut ours = asking
        .channel(NodeId(1), PROTOCOL)
        .map_err(|error| text(&error))?;
    let mut theirs = listener.accept(TIMEOUT).ok_or("no channel came")?;
    let deadline = Instant::now() + TIMEOUT;
    thread::scope(|scope| {
        // Ends with the channel.
        scope.spawn(move || while exchange(&mut theirs, false, deadline).is_some() {});
        let batch = |_| {
            let mut times = Vec::with_capacity(ROUNDS);
            for _ in 0..ROUNDS {
                times.push(exchange(&mut ours, true, deadline)?);
            }
            times.sort_unstable();
            times.get(ROUNDS / 2).copied()
        };
        let fastest = (0..BATCHES).map_while(batch).min();
        network.leave(NodeId(0));
        Ok(half(fastest.ok_or("the machine is too busy")?))
    })
}

/// The rate of long reads, in whole MB/s.
fn measure_rate() -> Result<u64, String> {
    let text = |error: &dyn ToString| error.to_string();
    let network = Network::new(Partition(1));
    let (near, far) = (network.join(NodeId(0)), network.join(NodeId(1)));
    let memory = far.alloc(MEMORY, Access::REMOTE_READ);
    let memory = memory.map_err(|error| text(&error))?;
    let key = memory.remote_key().ok_or("the memory has no key")?;
    let remote = near.open(key, Access::REMOTE_READ);
    let remote = remote.map_err(|error| text(&error))?;
    let local = Region::local(MEMORY).map_err(|error| text(&error))?;
    let mut pair = QueuePair::new(NodeId(1), Partition(1), READS as usize);
    // The first batch touches the pages.
    let batches = (0..=LONG_BATCHES).map(|_| read_long(&mut pair, &remote, &local));
    let times = batches.collect::<Option<Vec<_>>>().ok_or("a read failed")?;
    let fastest = times.iter().skip(1).min().ok_or("no time was taken")?;
    let megabytes = READS as f64 * LONG as f64 / fastest.as_secs_f64() / 1e6;
    Ok(1_000_000 * megabytes as u64)
}

/// Time of a batch of long reads; `None` if one fails.
fn read_long<R: Clone>(
    pair: &mut impl Endpoint<Remote = R>,
    remote: &R,
    local: &Region,
) -> Option<Duration> {
    let begun = Instant::now();
    for number in 0..READS {
        let offset = number * LONG as u64 % MEMORY as u64;
        let range = offset..offset + LONG as u64;
        let read = Operation::read(remote, offset, local, range);
        pair.post(number, read).ok()?;
    }
    pair.flush();
    let mut done = [Completion::default(); READS as usize];
    let count = pair.poll(&mut done);
    let all = count == done.len() && done.iter().all(|one| one.result.is_ok());
    all.then(|| begun.elapsed())
}

/// Sends and receives a packet, in this order if `is_first`; returns the time that both took, or
/// `None` at the end of the channel or at the deadline.
fn exchange(channel: &mut Channel, is_first: bool, deadline: Instant) -> Option<Duration> {
    let begun = Instant::now();
    let mut packet = Vec::with_capacity(BYTES);
    if is_first {
        channel.send(&[&[0; BYTES]]).ok()?;
    }
    while !channel.receive(&mut packet).ok()? {
        if Instant::now() > deadline {
            return None;
        }
        channel.wait(TIMEOUT);
    }
    if !is_first {
        channel.send(&[&packet]).ok()?;
    }
    Some(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_takes_time() {
        let base = measure().unwrap();
        assert!((1..1_000_000_000).contains(&base), "{base} ns");
    }

    #[test]
    fn reads_have_a_rate() {
        let rate = measure_rate().unwrap();
        assert!((1_000_000..1_000_000_000_000).contains(&rate), "{rate} B/s");
    }

    #[test]
    fn a_datagram_takes_time_or_is_lost() {
        let network = std::fs::File::open("/proc/self/ns/net").unwrap().into();
        let sockets = || {
            let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
            let (from, to) = (socket(), socket());
            for socket in [&from, &to] {
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            }
            (from, to)
        };
        let (from, to) = sockets();
        let base = exchange_datagrams(&from, &to).unwrap();
        assert!((1..1_000_000_000).contains(&base), "{base} ns");
        let nowhere: Result<_, io::Error> = socket_in(&network, Ipv4Addr::new(192, 0, 2, 1));
        nowhere.unwrap_err();
    }
}
