//! Programs that paths between two hosts are compared with, on the same cable: messages of libfabric,
//! and memcached.

use std::net::SocketAddrV4;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::network::{self, Networks};
use super::paths;
use super::rack::Absence;
use crate::cluster::{ClusterError, system};
use crate::plan::Path;
use crate::samples::Samples;
use crate::tethered;
use crate::worker::Job;
use crate::worker::libfabric::{self, Exchange};
use crate::worker::network::socket::Sockets;
use crate::worker::sampler::Pace;
use crate::worker::store::{KeySet, Keys, StoreOp};
use crate::worker::stores::{Stores, Target};

/// About the time of a round trip of libfabric.
const ROUND_TRIP: Duration = Duration::from_micros(25);

const MEMCACHED: &str = "memcached";

/// Port of memcached.
const PORT: u16 = 11311;

/// Path of memcached's client.
const PATH: Path = Path::MemcachedTcp;

/// Checks which of the programs are there that paths are compared with.
pub fn check() -> Vec<(paths::Path, Result<(), Absence>)> {
    let check = |program, package, version| {
        let outcome = Command::new(program).arg(version).output();
        outcome.map(drop).map_err(|error| Absence::NoRival {
            program,
            package,
            error,
        })
    };
    let libfabric = check(libfabric::PROGRAM, "libfabric-bin", "-h");
    let memcached = check(MEMCACHED, "memcached", "-V");
    vec![
        (paths::Path::Libfabric, libfabric),
        (paths::Path::Memcached, memcached),
    ]
}

/// Round trips of messages of `bytes` bytes between two processes of libfabric that poll, by its provider
/// `tcp`, for about `time`. The sample is their mean.
pub fn round_trips(
    networks: &Networks,
    bytes: usize,
    time: Duration,
) -> Result<Samples, ClusterError> {
    let count = time.div_duration_f64(ROUND_TRIP).ceil() as u32;
    let exchange = Exchange {
        provider: "tcp",
        endpoint: "msg",
        bytes,
        count,
        is_checked: false,
    };
    let side = |host| tethered::command(&networks.path(host), libfabric::PROGRAM);
    let measured = exchange.serve(side(1)).and_then(|server| {
        let mean_ns = exchange.mean_ns(side(0), network::address(1, 0))?;
        server.end()?;
        Ok(2.0 * mean_ns)
    });
    let round_trip = measured.map_err(ClusterError::ours)?;
    Ok(Samples {
        batch: count,
        samples_ns: vec![round_trip],
        ops: count.into(),
        bytes: u64::from(count) * bytes as u64,
        elapsed_ns: (round_trip * f64::from(count)) as u64,
        ..Samples::default()
    })
}

/// memcached on the second host, and its client on the first.
pub struct Memcached {
    server: Child,
    client: Stores,
    keys: KeySet,
}

impl Memcached {
    /// Starts it, and stores all values.
    pub fn start(networks: &Networks, keys: KeySet) -> Result<Self, ClusterError> {
        let address = SocketAddrV4::new(network::address(1, 0), PORT);
        let mut command = tethered::command(&networks.path(1), MEMCACHED);
        let (ip, port) = (address.ip().to_string(), PORT.to_string());
        command.args(["-u", "root", "-l", &ip, "-p", &port]);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = quiet.spawn().map_err(system("start memcached"))?;
        let mut memcached = Memcached {
            server,
            client: Stores::default(),
            keys,
        };
        let client = &mut memcached.client;
        let connect = || client.connect(PATH, Target::Tcp(address), Sockets::Kernel);
        networks.inside(0, connect)?.map_err(ClusterError::ours)?;
        let filled = client.fill(PATH, Keys::Set(keys));
        filled.map_err(ClusterError::ours)?;
        Ok(memcached)
    }

    /// Gets for some time.
    pub fn gets(&mut self, pace: Pace) -> Result<Samples, ClusterError> {
        let job = Job::Store(PATH, StoreOp::Get, self.keys);
        let samples = self.client.measure(job, 0, pace);
        samples.map_err(ClusterError::ours)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
