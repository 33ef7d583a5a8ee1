//! The paths between nodes of two hosts: in the clear, encrypted, and encrypted in a fenced domain.
//! Beside them a bare [relay], and the [rivals] where these are installed.

use std::fmt;
use std::net::SocketAddrV4;
use std::time::Duration;

use serde::Serialize;
use toroid_model::hosts::Encryption;
use toroid_protocol::agent::NewDomain;

use super::rack::{Rack, node};
use super::relay;
use super::rivals::{self, Memcached};
use crate::cluster::{ClusterError, Process, member};
use crate::plan::{self, LONG_WRITE};
use crate::progress::Progress;
use crate::report::{self, Fields, RATE, Row, Show, TEXT, TIME};
use crate::roles::StoreConfig;
use crate::runner::Runner;
use crate::samples::{Samples, Series};
use crate::worker::network::Transport;
use crate::worker::one_sided::{Direction, HOT};
use crate::worker::sampler::Pace;
use crate::worker::store::{KeySet, Keys, StoreOp};
use crate::worker::stores::Target;
use crate::worker::{Job, Order};

/// Seconds of the fence: longer than a host of a busy machine is not heard of.
const FENCE: u32 = 30;

/// Time in which processes must acknowledge a change.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a one-sided read.
const SHORT: usize = 64;

/// Values of each store.
const VALUES: KeySet = KeySet {
    bytes: 1024,
    keys: 1000,
};

/// Limits of each store.
const MEMORY: u64 = 64 << 20;
const ITEM: u32 = 1 << 20;

/// A kind of path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    Clear,
    Encrypted,
    /// Encrypted, in a fenced domain.
    Fenced,
    /// A round trip through three threads that poll and only copy bytes, beside a read.
    Relay,
    /// Messages of two processes that poll, by libfabric's provider `tcp`; a round trip beside a read.
    Libfabric,
    /// A process of memcached and its client, beside a get.
    Memcached,
}

impl Path {
    /// Paths of domains.
    const OF_DOMAINS: [Path; 3] = [Path::Clear, Path::Encrypted, Path::Fenced];

    /// The operation that another path is beside.
    fn is_beside(self) -> Option<Op> {
        match self {
            Path::Clear | Path::Encrypted | Path::Fenced => None,
            Path::Relay | Path::Libfabric => Some(Op::Read),
            Path::Memcached => Some(Op::Get),
        }
    }
}

/// A measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A TCP stream over the interfaces of the domain.
    Stream,
    /// Half a round trip of 1 B by TCP.
    Pingpong,
    /// A one-sided read of 64 B.
    Read,
    /// A one-sided get of 1 KiB from a store.
    Get,
}

impl Op {
    const ALL: [Op; 4] = [Op::Stream, Op::Pingpong, Op::Read, Op::Get];
}

/// A measurement on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    pub path: Path,
    pub op: Op,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", report::name(self.path), report::name(self.op))
    }
}

/// All measurements with their rounds.
#[derive(Debug)]
pub struct Paths(pub Vec<(Measurement, Series)>);

/// Number of measurements beside so many rivals.
pub const fn count(rivals: usize) -> usize {
    Op::ALL.len() * Path::OF_DOMAINS.len() + 1 + rivals
}

/// Takes `rounds` turns of each measurement, of this time each, and of these rivals.
pub fn measure(
    rounds: u32,
    slice: Duration,
    rivals: &[Path],
    progress: &Progress,
) -> Result<Paths, ClusterError> {
    let mut bed = Bed::start(rivals.contains(&Path::Memcached))?;
    let mut runner = Runner::new(progress);
    for op in Op::ALL {
        let others = [Path::Relay].iter().chain(rivals);
        let beside = others.filter(|other| other.is_beside() == Some(op));
        let paths = Path::OF_DOMAINS.iter().chain(beside);
        let mut contest: Vec<_> = paths.map(|&path| Measurement { path, op }).collect();
        runner.contest(
            &mut contest,
            rounds..=rounds,
            Duration::MAX,
            |measurement| bed.measure(measurement, slice),
        )?;
    }
    Ok(Paths(runner.finish()))
}

/// Nodes of two hosts on each path.
struct Bed {
    // Processes end before their hosts.
    pairs: Vec<Pair>,
    memcached: Option<Memcached>,
    racks: [Rack; 2],
}

/// The owner of memory, server and store on the second host, and their user on the first.
struct Pair {
    rack: usize,
    _owner: Process,
    _store: Process,
    user: Process,
    server: SocketAddrV4,
}

impl Bed {
    fn start(has_memcached: bool) -> Result<Self, ClusterError> {
        let rack = |encryption| Rack::start(2, encryption, ACK_TIMEOUT);
        let mut bed = Bed {
            pairs: Vec::new(),
            memcached: None,
            racks: [rack(Encryption::Off)?, rack(Encryption::On)?],
        };
        for path in Path::OF_DOMAINS {
            let pair = bed.pair(path)?;
            bed.pairs.push(pair);
        }
        if has_memcached {
            let networks = &bed.racks[0].networks;
            bed.memcached = Some(Memcached::start(networks, VALUES)?);
        }
        Ok(bed)
    }

    fn pair(&mut self, path: Path) -> Result<Pair, ClusterError> {
        let at = usize::from(path != Path::Clear);
        let rack = &mut self.racks[at];
        let name = report::name(path);
        rack.connected()?;
        let nodes = [node(0, 0), node(1, 0)];
        let [first, second] = &mut rack.hosts[..] else {
            return Err(ClusterError::NoServer);
        };
        let domain = first.control()?.create_domain(NewDomain {
            name: name.clone(),
            nodes: nodes.to_vec(),
            fence: (path == Path::Fenced).then_some(FENCE),
            ..NewDomain::default()
        })?;
        let (mut user, mut owner) = (first.worker(&nodes[0])?, second.worker(&nodes[1])?);
        let port = second.ask(&mut owner, &Order::Serve)?;
        let keys = second.ask(&mut owner, &Order::Export(name.clone(), HOT))?;
        first.ask::<()>(&mut user, &Order::UseMemory(name.clone(), keys))?;
        let ipv4 = member(&domain, &nodes[1])?.ipv4;
        let config = StoreConfig {
            domain: name.clone(),
            memory: MEMORY,
            item: ITEM,
            stack: false,
        };
        let (store, store_port) = second.start_store(&nodes[1], &config, "")?;
        let one_sided = Target::Rdma {
            domain: name,
            place: nodes[1].clone(),
        };
        let by_tcp = Target::Tcp(SocketAddrV4::new(ipv4, store_port));
        let values = Keys::Set(VALUES);
        for order in [
            Order::Connect(plan::Path::Rdma, one_sided),
            Order::Connect(plan::Path::ToroidTcp, by_tcp),
            Order::Fill(plan::Path::ToroidTcp, values),
        ] {
            first.ask::<()>(&mut user, &order)?;
        }
        // This also fills the cache of locations.
        let wrong: u64 = first.ask(&mut user, &Order::Verify(plan::Path::Rdma, values))?;
        if wrong > 0 {
            return Err(ClusterError::ours(format!("{wrong} values are wrong")));
        }
        Ok(Pair {
            rack: at,
            _owner: owner,
            _store: store,
            user,
            server: SocketAddrV4::new(ipv4, port),
        })
    }

    fn measure(&mut self, of: &Measurement, time: Duration) -> Result<Samples, ClusterError> {
        let networks = &self.racks[0].networks;
        let single = Pace {
            time,
            batch: Some(1),
        };
        match (of.path, &mut self.memcached) {
            (Path::Relay, _) => return relay::round_trips(networks, SHORT, single),
            (Path::Libfabric, _) => return rivals::round_trips(networks, SHORT, time),
            (Path::Memcached, Some(memcached)) => return memcached.gets(single),
            _ => {}
        }
        let Some(pair) = self.pairs.get_mut(of.path as usize) else {
            return Err(ClusterError::NoServer);
        };
        let (job, batch) = match of.op {
            Op::Stream => (Job::Stream(pair.server, Transport::Tcp, LONG_WRITE), None),
            Op::Pingpong => (Job::RoundTrips(pair.server, Transport::Tcp, 1), Some(1)),
            Op::Read => (Job::OneSided(Direction::Read, 1, SHORT), Some(1)),
            Op::Get => (Job::Store(plan::Path::Rdma, StoreOp::Get, VALUES), Some(1)),
        };
        let order = job.order(0, Pace { time, batch });
        self.racks[pair.rack].hosts[0].ask(&mut pair.user, &order)
    }
}

impl Paths {
    /// Rows of all measurements.
    pub fn rows(&self) -> Vec<Row> {
        report::rows_of(&self.0, |measurement, series| {
            Row::of(series)
                .label("path", measurement.path)
                .label("op", measurement.op)
                .figure("p50_ns", series.quantile_ns(0.5))
                .figure("p99_ns", series.quantile_ns(0.99))
                .figure("bytes_per_s", self.rate(*measurement))
        })
    }

    fn rate(&self, of: Measurement) -> Option<f64> {
        let is_stream = of.op == Op::Stream;
        is_stream.then(|| self.series(of)?.bytes_per_s()).flatten()
    }

    fn series(&self, of: Measurement) -> Option<&Series> {
        let mut all = self.0.iter();
        all.find_map(|(known, series)| (*known == of).then_some(series))
    }

    /// Ratio of an operation's figures over two paths, median of the rounds: of rates for streams, of
    /// means beside libfabric, whose program prints no other, and of medians otherwise.
    pub fn ratio(&self, op: Op, over: Path, under: Path) -> Option<f64> {
        let of = |path| self.series(Measurement { path, op });
        of(over)?.ratio(of(under)?, |round| match (op, under) {
            (Op::Stream, _) => round.bytes_per_s(),
            (_, Path::Libfabric) => round.ops_per_s().map(f64::recip),
            (Op::Pingpong | Op::Read | Op::Get, _) => round.quantile_ns(0.5),
        })
    }

    /// All ratios by name.
    pub fn ratios(&self) -> Fields {
        let of = |op, over, under| self.ratio(op, over, under);
        Fields::default()
            .with("stream_ratio", of(Op::Stream, Path::Encrypted, Path::Clear))
            .with(
                "one_sided_ratio",
                of(Op::Read, Path::Encrypted, Path::Clear),
            )
            .with(
                "fence_stream_ratio",
                of(Op::Stream, Path::Fenced, Path::Encrypted),
            )
            .with(
                "fence_pingpong_ratio",
                of(Op::Pingpong, Path::Fenced, Path::Encrypted),
            )
            .with(
                "fence_one_sided_ratio",
                of(Op::Read, Path::Fenced, Path::Encrypted),
            )
            .with("relay_ratio", of(Op::Read, Path::Clear, Path::Relay))
            .with(
                "libfabric_ratio",
                of(Op::Read, Path::Clear, Path::Libfabric),
            )
            .with("memcached_ratio", of(Op::Get, Path::Clear, Path::Memcached))
    }

    /// The table of all rows.
    pub fn table(rows: &[Row]) -> String {
        let columns: [(&str, &str, Show); 5] = [
            ("Between two hosts", "op", TEXT),
            ("path", "path", TEXT),
            ("rate", "bytes_per_s", RATE),
            ("p50", "p50_ns", TIME),
            ("p99", "p99_ns", TIME),
        ];
        report::table(rows, 2, &columns).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_rates_for_streams_and_of_times_otherwise() {
        let round = |path: Path, op: Op, figure: u64| {
            let mut samples = Samples::default();
            match op {
                Op::Stream => samples.record(Duration::from_secs(1), figure as usize, false),
                _ => samples.record(Duration::from_nanos(figure), 1, true),
            }
            (Measurement { path, op }, Series::from(samples))
        };
        let paths = Paths(vec![
            round(Path::Clear, Op::Stream, 1000),
            round(Path::Encrypted, Op::Stream, 750),
            round(Path::Clear, Op::Read, 1000),
            round(Path::Encrypted, Op::Read, 1050),
            round(Path::Libfabric, Op::Read, 800),
        ]);
        let ratios = serde_json::json!(paths.ratios());
        assert_eq!(ratios["stream_ratio"], 0.75);
        assert_eq!(ratios["one_sided_ratio"], 1.05);
        assert_eq!(ratios["libfabric_ratio"], 1.25);
        assert!(ratios["fence_stream_ratio"].is_null());
        let rows = paths.rows();
        assert_eq!(rows[1].number("bytes_per_s"), Some(750.0));
        assert_eq!(rows[3].number("bytes_per_s"), None);
    }
}
