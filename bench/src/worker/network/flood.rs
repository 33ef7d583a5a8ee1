//! Datagrams at a given rate from one sender to some receivers: to each in turn, or to their group.

use std::io::{self, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::Session;
use super::client::open;
use super::server::receive_line;
use super::socket::{Datagrams, Sockets, Stream};
use crate::samples::Samples;

/// Sleep of a sender ahead of its rate, which leaves the core to the driver and the receivers.
/// Their queues have room for the datagrams of this time.
const PAUSE: Duration = Duration::from_micros(50);

/// After a longer pause the sender does not catch up: the burst would fill every queue.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// Datagrams between two reads of the clock.
const BURST: u64 = 32;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flood {
    /// Addresses of the receivers' session servers.
    pub servers: Vec<SocketAddrV4>,
    /// The group that all receivers join; without a group each receiver gets separate datagrams.
    pub group: Option<SocketAddrV4>,
    /// The address of the sender's interface for the group.
    pub interface: Ipv4Addr,
    pub bytes: usize,
    /// Datagrams per second.
    pub per_s: f64,
    pub time: Duration,
}

impl Flood {
    /// A flood of no datagrams to one server.
    pub fn to(server: SocketAddrV4, time: Duration) -> Self {
        Flood {
            servers: vec![server],
            group: None,
            interface: Ipv4Addr::UNSPECIFIED,
            bytes: 0,
            per_s: 0.0,
            time,
        }
    }
}

/// The result of a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    pub sent: u64,
    /// Expected receptions of all receivers together.
    pub due: u64,
    /// Receptions of all receivers together.
    pub received: u64,
    /// Receptions of wrong length.
    pub errors: u64,
    /// Longest time from first to last datagram at the sender or a receiver, in nanoseconds.
    pub elapsed_ns: u64,
    /// The same at a receiver.
    pub receivers_ns: u64,
}

impl Flow {
    /// Lost fraction of expected receptions.
    pub fn loss(&self) -> f64 {
        1.0 - self.received as f64 / self.due.max(1) as f64
    }

    /// Receptions per second.
    pub fn received_per_s(&self) -> f64 {
        per_second(self.received, self.elapsed_ns)
    }

    /// Rate at which a single receiver gets datagrams, in datagrams per second. The first one starts
    /// the time.
    pub fn arrivals_per_s(&self) -> Option<f64> {
        let timed = self.received.checked_sub(1)?;
        (self.receivers_ns > 0).then(|| per_second(timed, self.receivers_ns))
    }

    /// Sent datagrams per second.
    pub fn sent_per_s(&self) -> f64 {
        per_second(self.sent, self.elapsed_ns)
    }
}

fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    count as f64 * 1e9 / elapsed_ns.max(1) as f64
}

/// Sends a flood, and collects the receivers' counts.
pub fn flood(sockets: &Sockets, flood: &Flood) -> io::Result<Flow> {
    flood_while(sockets, flood, &mut || true)
}

/// As [`flood`], but no longer than `goes_on`, which is asked after the first datagram.
pub fn flood_while(
    sockets: &Sockets,
    flood: &Flood,
    goes_on: &mut dyn FnMut() -> bool,
) -> io::Result<Flow> {
    let session = Session::Count(flood.bytes, flood.group);
    let open = |server: &SocketAddrV4| -> io::Result<(Stream, SocketAddrV4)> {
        let stream = open(sockets, *server, &session)?;
        let port = receive_line(&mut BufReader::new(&stream))?;
        Ok((stream, SocketAddrV4::new(*server.ip(), port)))
    };
    let sessions: Vec<_> = flood.servers.iter().map(open).collect::<Result<_, _>>()?;
    let destinations = match flood.group {
        Some(group) => vec![group],
        None => sessions.iter().map(|(_, address)| *address).collect(),
    };
    // A socket bound to the interface's address sends to the group through that interface.
    let socket = sockets.datagrams(flood.interface.into())?;
    let (sent, elapsed) = send(&socket, flood, &destinations, goes_on)?;

    let copies = match flood.group {
        Some(_) => sessions.len() as u64,
        None => 1,
    };
    let mut flow = Flow {
        sent,
        due: sent * copies,
        elapsed_ns: elapsed.as_nanos() as u64,
        ..Flow::default()
    };
    for (stream, _) in &sessions {
        stream.end_writing()?;
    }
    for (stream, _) in &sessions {
        let received: Samples = receive_line(&mut BufReader::new(stream))?;
        flow.received += received.ops;
        flow.errors += received.errors;
        flow.receivers_ns = flow.receivers_ns.max(received.elapsed_ns);
        flow.elapsed_ns = flow.elapsed_ns.max(received.elapsed_ns);
    }
    Ok(flow)
}

/// Sends for the flood's time, or as long as `goes_on`. Returns the number of datagrams and the elapsed time.
fn send(
    socket: &Datagrams,
    flood: &Flood,
    destinations: &[SocketAddrV4],
    goes_on: &mut dyn FnMut() -> bool,
) -> io::Result<(u64, Duration)> {
    let message = vec![0; flood.bytes];
    let mut destinations = destinations.iter().cycle();
    // At least one, or a slow flood would send nothing.
    let lag = ((LONGEST_PAUSE.as_secs_f64() * flood.per_s) as u64).max(1);
    let (start, mut sent, mut forgiven) = (Instant::now(), 0, 0);
    loop {
        let passed = start.elapsed();
        if passed >= flood.time || (sent > 0 && !goes_on()) {
            return Ok((sent, passed));
        }
        let due = (passed.as_secs_f64() * flood.per_s) as u64;
        forgiven = due.saturating_sub(sent + lag).max(forgiven);
        let burst = due.saturating_sub(forgiven + sent).min(BURST);
        if burst == 0 {
            thread::sleep(PAUSE);
        }
        for destination in destinations.by_ref().take(burst as usize) {
            match socket.send_to(&message, (*destination).into()) {
                // A full queue may lose datagrams.
                Err(error) if !is_full(&error) => return Err(error),
                _ => sent += 1,
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

#[cfg(test)]
mod tests {
    use super::super::server;
    use super::*;

    const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

    fn servers(count: usize) -> Vec<SocketAddrV4> {
        let start = |_| SocketAddrV4::new(HERE, server::start(HERE).unwrap());
        (0..count).map(start).collect()
    }

    #[test]
    fn every_receiver_gets_its_share_at_the_given_rate() {
        let to_all = Flood {
            servers: servers(3),
            group: None,
            interface: HERE,
            bytes: 64,
            per_s: 3000.0,
            time: Duration::from_millis(20),
        };
        // On a loaded machine the time may be over before the sender runs again.
        let mut flows = (0..100).map(|_| flood(&Sockets::Kernel, &to_all).unwrap());
        let flow = flows.find(|flow| flow.sent > 0).expect("some are sent");
        assert!((1..=60).contains(&flow.sent), "{flow:?}");
        assert_eq!((flow.due, flow.received), (flow.sent, flow.sent));
        assert_eq!(flow.errors, 0);
        assert_eq!(flow.loss(), 0.0);
        assert!(flow.elapsed_ns >= 20_000_000, "{flow:?}");
    }

    #[test]
    fn loss_is_the_missing_share_of_expected_receptions() {
        let flow = Flow {
            sent: 100,
            due: 200,
            received: 150,
            errors: 0,
            elapsed_ns: 500_000_000,
            receivers_ns: 298_000_000,
        };
        assert_eq!(flow.loss(), 0.25);
        assert_eq!((flow.sent_per_s(), flow.received_per_s()), (200.0, 300.0));
        assert_eq!(flow.arrivals_per_s(), Some(500.0));
        assert_eq!(Flow::default().arrivals_per_s(), None);
        assert_eq!(Flow::default().loss(), 1.0);
    }
}
