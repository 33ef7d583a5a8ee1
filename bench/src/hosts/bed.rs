//! The measured hosts: a leader and its followers, real and hollow.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use toroid_agent::Config;
use toroid_agent::background::{Background, spawn_background};
use toroid_agent::hollow::HollowHost;
use toroid_fabric::{NodeId, Torus};
use toroid_model::hosts::{Admission, Commands, Encryption, HostConfig, Provider};

use super::rack::{key, name, write_key};
use crate::cluster::{Cluster, ClusterError, check_signals, private, system};
use crate::directory::Directory;
use crate::memory::kib_field;
use crate::samples::Samples;

/// A place for each host.
const TORUS: &str = "10x10x10";

/// Hollow hosts that begin to follow at a time: fewer than a leader lets in unproven.
const AT_ONCE: usize = 16;

/// The domain that is made and removed.
const CHANGING: &str = "changing";

/// Time between two changes at a steady rate.
const RATE: Duration = Duration::from_millis(10);

/// Changes at a steady rate among many hosts.
#[derive(Clone, Debug)]
pub struct Load {
    pub hosts: usize,
    /// Unchanged domains beside.
    pub domains: u32,
    pub samples: Samples,
    pub elapsed: Duration,
    /// Processor time of the leader.
    pub used: Duration,
    /// Bytes of memory of the leader.
    pub memory: Option<u64>,
}

/// An agent that follows the leader. Its files are in a directory of its own: after a kill, each
/// agent removes its directory when it has ended.
struct Follower {
    agent: Background,
    directory: Directory,
}

/// A leader and its followers. Dropping it ends them, followers first.
pub struct Bed {
    hollow: Vec<HollowHost>,
    real: Vec<Follower>,
    leader: Cluster,
    /// Configuration of the leader, from which those of the followers are derived.
    config: HostConfig,
    /// Places of nodes, by host.
    places: Vec<String>,
    domains: u32,
}

impl Bed {
    /// Starts a leader that has `domains` domains of two nodes of its own.
    pub fn start(domains: u32) -> Result<Self, ClusterError> {
        let torus: Torus = TORUS.parse()?;
        let mut config = None;
        let leader = Cluster::start_as(|state| {
            let hosts = leader(torus, write_key(state, &key())?)?;
            config = Some(hosts.clone());
            Ok(Config {
                hosts: Some(hosts),
                ..private(state.into())
            })
        })?;
        let places = (0..torus.nodes()).filter_map(|node| torus.place(NodeId(node)));
        let mut bed = Bed {
            hollow: Vec::new(),
            real: Vec::new(),
            leader,
            config: config.ok_or(ClusterError::NoServer)?,
            places: places.map(|place| place.to_string()).collect(),
            domains,
        };
        let own = [bed.places[0].clone()];
        for domain in 0..domains {
            check_signals()?;
            let name = format!("other-{domain}");
            bed.leader.control()?.create(&name, &own, None, None)?;
        }
        Ok(bed)
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        1 + self.real.len() + self.hollow.len()
    }

    /// Adds real followers until there are `count` hosts.
    pub fn add_real(&mut self, count: usize) -> Result<(), ClusterError> {
        while self.hosts() < count {
            check_signals()?;
            let directory = Directory::create().map_err(system("make a private directory"))?;
            let agent = spawn_background(&Config {
                hosts: Some(self.follower(self.hosts())),
                ..private(directory.0.clone())
            })?;
            self.real.push(Follower { agent, directory });
        }
        self.settle()
    }

    /// Adds hollow followers until there are `count` hosts. Each takes `delay` to confirm.
    pub fn add_hollow(&mut self, count: usize, delay: Duration) -> Result<(), ClusterError> {
        while self.hosts() < count {
            check_signals()?;
            let numbers = self.hosts()..count.min(self.hosts() + AT_ONCE);
            let configs: Vec<HostConfig> = numbers.map(|n| self.follower(n)).collect();
            let followed: Vec<_> = thread::scope(|scope| {
                let follow = |config| scope.spawn(move || HollowHost::follow(config, delay));
                let threads: Vec<_> = configs.into_iter().map(follow).collect();
                let end = |thread: ScopedJoinHandle<'_, _>| {
                    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
                };
                threads.into_iter().map(end).collect()
            });
            for hollow in followed {
                self.hollow.push(hollow.map_err(ClusterError::ours)?);
            }
        }
        self.settle()
    }

    /// Waits until all hosts have all changes so far: a domain of all of them concerns each.
    fn settle(&mut self) -> Result<(), ClusterError> {
        let all = self.places[..self.hosts()].to_vec();
        let control = self.leader.control()?;
        control.create(CHANGING, &all, None, None)?;
        Ok(control.remove(CHANGING)?)
    }

    /// Makes a domain of a node of each of two followers, and removes it, `count` times. The times
    /// are those of the former. The hosts are the first `among` of all.
    pub fn changes(&mut self, count: usize, among: usize) -> Result<Samples, ClusterError> {
        let mut samples = Samples::default();
        let followers = self.places[1..among].to_vec();
        for n in 0..count {
            check_signals()?;
            let two = [n, n + 1].map(|n| followers[n % followers.len()].clone());
            let control = self.leader.control()?;
            let start = Instant::now();
            control.create(CHANGING, &two, None, None)?;
            samples.record(start.elapsed(), 0, true);
            control.remove(CHANGING)?;
        }
        Ok(samples)
    }

    /// Makes and removes domains of a node of each of two followers, `count` changes at [`RATE`].
    /// A time begins when the change is due, and ends when it is in effect.
    pub fn load(&mut self, count: usize) -> Result<Load, ClusterError> {
        let (mut samples, among) = (Samples::default(), self.hosts());
        let before = self.leader_cpu()?;
        let start = Instant::now();
        for n in 0..count {
            check_signals()?;
            let due = start + RATE * n as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // The same two for both changes.
            let two = [n / 2, n / 2 + 1].map(|n| self.places[1 + n % (among - 1)].clone());
            let control = self.leader.control()?;
            match n % 2 {
                0 => drop(control.create(CHANGING, &two, None, None)?),
                _ => control.remove(CHANGING)?,
            }
            samples.record(due.elapsed(), 0, true);
        }
        let used = self.leader_cpu()?.saturating_sub(before);
        Ok(Load {
            hosts: among,
            domains: self.domains,
            samples,
            elapsed: start.elapsed(),
            used,
            memory: self.leader_memory(),
        })
    }

    fn leader_cpu(&self) -> Result<Duration, ClusterError> {
        cpu(self.leader.agent_pid().ok_or(ClusterError::NoServer)?)
    }

    /// Processor time of the agents of all real followers, also of threads that have ended.
    pub fn followers_cpu(&self) -> Result<Duration, ClusterError> {
        self.real
            .iter()
            .map(|follower| cpu(follower.agent.pid()))
            .sum()
    }

    /// Number of real followers.
    pub fn real_followers(&self) -> usize {
        self.real.len()
    }

    /// Bytes of memory of the leader's agent.
    pub fn leader_memory(&self) -> Option<u64> {
        let status = format!("/proc/{}/status", self.leader.agent_pid()?);
        kib_field(status.as_ref(), "VmRSS:")
    }

    fn follower(&self, number: usize) -> HostConfig {
        HostConfig {
            host: name(number),
            nodes: [number as u32].into(),
            // No host connects to it: it has no Ethernet, and its node no processes.
            listen: local(0),
            address: Some((Ipv4Addr::from_bits(UNUSED + number as u32), 1).into()),
            hosts: [(name(0), self.config.listen)].into(),
            ..self.config.clone()
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.hollow.clear();
        for Follower { agent, directory } in self.real.drain(..) {
            // It ends with its lifeline in any case.
            let _ = agent.end();
            drop(directory);
        }
    }
}

/// 127.1.0.0, from which on each follower has an address at which nothing listens.
const UNUSED: u32 = 0x7f01_0000;

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Processor time of a process.
fn cpu(pid: u32) -> Result<Duration, ClusterError> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()));
    let time = clock.and_then(clock_gettime).map(Duration::from);
    time.map_err(|error| system("read a processor clock")(error.into()))
}

/// Configuration of the leader.
fn leader(torus: Torus, key: PathBuf) -> Result<HostConfig, ClusterError> {
    let free = TcpListener::bind(local(0)).and_then(|listener| listener.local_addr());
    Ok(HostConfig {
        host: name(0),
        torus,
        nodes: [0].into(),
        aliases: BTreeMap::new(),
        listen: free.map_err(system("find a free port"))?,
        address: None,
        key,
        directory: name(0),
        provider: Provider::Tcp,
        encryption: Encryption::On,
        admission: Admission::Key,
        commands: Commands::On,
        candidates: BTreeSet::new(),
        etcd: None,
        rdma: None,
        hosts: BTreeMap::new(),
        lost: None,
    })
}
