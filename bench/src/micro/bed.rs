//! Live hosts: processes in two nodes of a domain, or in one node.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Error, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use toroid_fabric::Torus;
use toroid_model::info::DomainInfo;

use crate::cluster::{Cluster, ClusterError, Process, member};
use crate::plan::or_all;
use crate::roles;
use crate::samples::Samples;
use crate::worker::micro::exchange::Count;
use crate::worker::micro::script::{Pattern, Script, Wait};
use crate::worker::micro::{Carrier, devices};
use crate::worker::sampler::Pace;
use crate::worker::{Job, Order};

const DOMAIN: &str = "micro";

/// Node of the followers.
const FOLLOWER: &str = "0,0,0";

/// Node of the leader, if it is another.
const LEADER: &str = "1,0,0";

/// The most round trips in a sample: more than the clock's resolution needs.
const BATCH: u64 = 32;

/// Least and most samples of a round.
const SAMPLES: [u64; 2] = [5, 400];

/// Path of messages between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// The fabric between two nodes of this host.
    Shm,
    /// The fabric's provider for several hosts, over the loopback interface of one node.
    Tcp,
    /// The fabric's provider for RDMA devices, between two processes of one node.
    Verbs,
    /// TCP sockets between two nodes, over the interfaces of their domain.
    Ethernet,
}

impl Path {
    pub const ALL: [Path; 4] = [Path::Shm, Path::Tcp, Path::Verbs, Path::Ethernet];

    /// The paths to measure, by default all, and the reason for which verbs is left out, if this
    /// build has it. `devices` are those of the hosts.
    pub fn chosen(paths: &[Path], devices: &[String]) -> Result<(Vec<Path>, Option<Error>)> {
        let count = devices.len();
        let has_verbs = paths.contains(&Path::Verbs);
        ensure!(
            has_verbs || paths.is_empty() || count == 0,
            "--device is for the path verbs: add verbs to --path, or leave --device out"
        );
        if !paths.is_empty() {
            if has_verbs {
                devices::check(devices)?;
            }
            return Ok((or_all(paths, &[]), None));
        }
        match devices::check(devices) {
            Ok(()) => Ok((Path::ALL.into(), None)),
            Err(reason) if count > 0 => Err(reason),
            Err(reason) => {
                let others = Path::ALL.into_iter().filter(|&path| path != Path::Verbs);
                let reason = Some(reason).filter(|_| cfg!(feature = "verbs"));
                Ok((others.collect(), reason))
            }
        }
    }

    /// Whether all hosts are in one node.
    pub fn has_one_node(self) -> bool {
        matches!(self, Path::Tcp | Path::Verbs)
    }

    /// Starts nodes with a domain of all, and with interfaces if the path needs them.
    pub fn start(self, torus: Torus, domain: &str) -> Result<(Cluster, DomainInfo), ClusterError> {
        let is_ethernet = self == Path::Ethernet;
        let mut cluster = Cluster::start(torus, is_ethernet.then_some(roles::DRIVER))?;
        let domain = cluster.create_domain(domain)?;
        if is_ethernet && let Some(reason) = cluster.no_taps()? {
            return Err(ClusterError::ours(reason));
        }
        Ok((cluster, domain))
    }

    /// The carrier at a host with this RDMA device.
    pub fn carrier(self, device: Option<&String>) -> Carrier {
        match self {
            Path::Shm => Carrier::Fabric,
            Path::Tcp => Carrier::Tcp,
            Path::Verbs => Carrier::Verbs(device.cloned()),
            Path::Ethernet => Carrier::Ethernet,
        }
    }

    /// The usual wait. The driver of an interface needs a processor, which polling would take.
    pub fn wait(self) -> Wait {
        match self {
            Path::Shm | Path::Tcp | Path::Verbs => Wait::Poll,
            Path::Ethernet => Wait::Block,
        }
    }

    /// An exchange whose completions can come through one queue for several queue pairs.
    pub fn completions(self) -> Option<Pattern> {
        (self != Path::Ethernet).then_some(Pattern::Write)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::report::name(self))
    }
}

/// Two live hosts.
pub struct Bed {
    // Processes end before the cluster.
    leader: Process,
    _follower: Process,
    cluster: Cluster,
    /// Number of samples and round trips by script, chosen by trials.
    counts: Vec<(Script, Count)>,
    /// Time of a script in a round.
    slice: Duration,
}

impl Bed {
    /// Starts nodes and processes. A round of a script takes about `slice`. The first of `devices` is
    /// the leader's, the last the follower's; without any both use the first of this host.
    pub fn prepare(path: Path, devices: &[String], slice: Duration) -> Result<Self, ClusterError> {
        let (mut cluster, domain) = path.start(Torus::new(2, 1, 1)?, DOMAIN)?;
        let address = match path {
            Path::Ethernet => member(&domain, FOLLOWER)?.ipv4,
            Path::Shm | Path::Tcp | Path::Verbs => Ipv4Addr::LOCALHOST,
        };
        let mut follower = cluster.worker(FOLLOWER)?;
        let serve = Order::ServeMicro(path.carrier(devices.last()), DOMAIN.into());
        let port = cluster.ask(&mut follower, &serve)?;
        let node = if path.has_one_node() {
            FOLLOWER
        } else {
            LEADER
        };
        let mut leader = cluster.worker(node)?;
        let connect = Order::UseMicro(
            path.carrier(devices.first()),
            DOMAIN.into(),
            FOLLOWER.into(),
            SocketAddrV4::new(address, port),
        );
        cluster.ask::<()>(&mut leader, &connect)?;
        Ok(Bed {
            leader,
            _follower: follower,
            cluster,
            counts: Vec::new(),
            slice,
        })
    }

    /// Carries out a script for one round.
    pub fn measure(&mut self, script: &Script) -> Result<Samples, ClusterError> {
        let known = self.counts.iter().find(|(known, _)| known == script);
        if let Some((_, count)) = known {
            return self.run(script, *count);
        }
        let mut count = Count {
            samples: 1,
            batch: 1,
        };
        let slice = self.slice.as_nanos() as u64;
        let trial = self.run(script, count)?.elapsed_ns.max(1);
        if let Pattern::PingPong | Pattern::Delayed { .. } | Pattern::Write = script.pattern {
            // Where other processes take the processors, a round trip may take a time slice.
            count.batch = (slice / SAMPLES[0] / trial).clamp(1, BATCH) as u32;
        }
        let trial = self.run(script, count)?.elapsed_ns.max(1);
        let [least, most] = SAMPLES;
        count.samples = (slice / trial).clamp(least, most) as u32;
        self.counts.push((*script, count));
        self.run(script, count)
    }

    fn run(&mut self, script: &Script, count: Count) -> Result<Samples, ClusterError> {
        let order = Job::Micro(*script, count).order(0, Pace::of(self.slice));
        self.cluster.ask(&mut self.leader, &order)
    }
}
