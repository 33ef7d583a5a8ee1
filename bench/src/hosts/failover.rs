//! Failover with a directory on etcd: the time from the end of a coordinator or a server to the
//! return of the next change.
//!
//! Three hosts are candidates, and three servers are in a network that all of them reach. The change
//! is a growth or a shrink, in turns, of a domain of the two hosts without the coordinator, by a
//! client on one of them.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use toroid_agent::Config;
use toroid_agent::background::{Background, spawn_background};
use toroid_client::admin::{ClientError, Control};
use toroid_model::hosts::etcd::{DEFAULT_PREFIX, EtcdConfig};
use toroid_model::hosts::{ETCD, HostConfig};
use toroid_model::info::{EtcdState, HostState, Status};

use super::etcd::{Etcd, MEMORY};
use super::network::Networks;
use super::rack::{agent, host, key, name, node, until, write_key};
use crate::cluster::{ClusterError, check_signals, system};
use crate::directory::create_in;
use crate::janitor::Janitor;
use crate::progress::Progress;
use crate::samples::Samples;

/// Number of candidates.
const HOSTS: usize = 3;

/// Number of the network of the servers.
const OF_ETCD: usize = HOSTS;

/// Longest wait for a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two attempts of a refused change.
const PAUSE: Duration = Duration::from_millis(20);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The coordinator is killed.
    Kill,
    /// The coordinator gets SIGTERM, as by `toroid down`.
    HandOver,
    /// The leader of etcd's servers is killed.
    EtcdLeader,
}

impl Fault {
    pub const ALL: [Fault; 3] = [Fault::Kill, Fault::HandOver, Fault::EtcdLeader];

    /// What happens.
    pub fn text(self) -> &'static str {
        match self {
            Fault::Kill => "coordinator killed",
            Fault::HandOver => "coordinator hands over",
            Fault::EtcdLeader => "leader of etcd killed",
        }
    }
}

/// Times of all rounds of each fault.
#[derive(Debug, Default)]
pub struct Failover([Samples; 3]);

impl Failover {
    /// Times of a fault.
    pub fn of(&self, fault: Fault) -> &Samples {
        &self.0[fault as usize]
    }
}

/// Measures `rounds` of each fault. The caller is the main thread.
pub fn measure(rounds: u32, progress: &Progress) -> Result<Failover, ClusterError> {
    let mut bed = Bed::start()?;
    let mut failover = Failover::default();
    for _ in 0..rounds {
        for fault in Fault::ALL {
            progress.step(fault.text());
            let took = bed.round(fault)?;
            failover.0[fault as usize].record(took, 0, true);
        }
    }
    Ok(failover)
}

/// Candidates and servers. Dropping it ends them, and removes their directories.
struct Bed {
    // Dropped in this order.
    agents: Vec<Agent>,
    etcd: Etcd,
    networks: Networks,
    _janitor: Janitor,
}

impl Bed {
    fn start() -> Result<Self, ClusterError> {
        let directory = |parent: &Path| create_in(parent).map_err(system("make a directory"));
        let states = directory(&std::env::temp_dir())?;
        let data = directory(MEMORY.as_ref())?;
        let janitor = Janitor::start(&states, &data).map_err(system("start a process"))?;
        let networks = Networks::mesh(HOSTS + 1)?;
        let mut bed = Bed {
            agents: Vec::new(),
            etcd: Etcd::start(&networks, OF_ETCD, &data)?,
            networks,
            _janitor: janitor,
        };
        let key = key();
        for number in 0..HOSTS {
            check_signals()?;
            let config = bed.config(number, states.join(name(number)), &key)?;
            let mut agent = Agent::new(number, config);
            agent.start(&bed.networks)?;
            bed.agents.push(agent);
        }
        bed.leader()?;
        for without in 0..HOSTS {
            let nodes: Vec<String> = others(without).map(|other| node(other, 0)).collect();
            let mut control = bed.agents[0].control()?;
            control.create(&domain(without), &nodes, None, None)?;
        }
        Ok(bed)
    }

    fn config(&self, number: usize, state: PathBuf, key: &str) -> Result<Config, ClusterError> {
        let key = write_key(&state, key)?;
        let hosts = HostConfig {
            directory: ETCD.into(),
            candidates: (0..HOSTS).map(name).collect(),
            etcd: Some(EtcdConfig {
                endpoints: self.etcd.endpoints(number),
                prefix: DEFAULT_PREFIX.into(),
                ca: None,
                cert: None,
                key: None,
            }),
            ..host(number, HOSTS, key)?
        };
        Ok(agent(state, hosts))
    }

    /// Waits until one host coordinates for all, and all reach etcd. Returns its number.
    fn leader(&mut self) -> Result<usize, ClusterError> {
        let mut found = None;
        until("a host coordinates, and all others follow", || {
            let status = |agent: &Agent| agent.control().ok()?.status().ok();
            let all: Option<Vec<Status>> = self.agents.iter().map(status).collect();
            let leaders = all.map(|all| all.iter().map(leader_in).collect::<Vec<_>>());
            let leaders = leaders.unwrap_or_default();
            found = leaders.first().cloned().flatten();
            Ok(found.is_some() && leaders.iter().all(|its| *its == found))
        })?;
        let number = (0..HOSTS).find(|number| found.as_ref() == Some(&name(*number)));
        number.ok_or(ClusterError::NoServer)
    }

    /// Lets the fault happen, changes a domain, and restores all servers and hosts. Returns the time
    /// from the fault to the return of the change.
    fn round(&mut self, fault: Fault) -> Result<Duration, ClusterError> {
        check_signals()?;
        let server = self.etcd.decides(&self.networks)?;
        let leader = self.leader()?;
        let client = (leader + 1) % HOSTS;
        // As the command in the fault, but nothing is to be waited for.
        self.change(client, leader)?;
        let start = Instant::now();
        match fault {
            Fault::Kill => self.agents[leader].signal(Signal::SIGKILL)?,
            Fault::HandOver => self.agents[leader].signal(Signal::SIGTERM)?,
            Fault::EtcdLeader => self.etcd.kill(server)?,
        }
        self.change(client, leader)?;
        let took = start.elapsed();
        match fault {
            Fault::Kill | Fault::HandOver => self.agents[leader].start(&self.networks)?,
            Fault::EtcdLeader => self.etcd.restart(server)?,
        }
        Ok(took)
    }

    /// Changes the domain without a host, by an agent's client, until that succeeds.
    fn change(&self, client: usize, without: usize) -> Result<(), ClusterError> {
        let (start, domain) = (Instant::now(), domain(without));
        loop {
            match self.try_change(client, &domain) {
                Ok(()) => return Ok(()),
                Err(error) if start.elapsed() > PATIENCE => return Err(error.into()),
                Err(_) => check_signals()?,
            }
            thread::sleep(PAUSE);
        }
    }

    /// The second node of the client's host joins, or leaves if it is a member.
    fn try_change(&self, client: usize, domain: &str) -> Result<(), ClientError> {
        let mut control = self.agents[client].control()?;
        let second = [node(client, 1)];
        let members = control.show(domain)?.members;
        let mut members = members.iter().map(|member| member.node.to_string());
        match members.any(|member| member == second[0]) {
            true => control.shrink(domain, &second).map(drop),
            false => control.grow(domain, &second).map(drop),
        }
    }
}

/// An agent in one life after the other.
struct Agent {
    number: usize,
    config: Config,
    running: Option<Background>,
    /// The signal that it got in this life.
    signal: Option<Signal>,
}

impl Agent {
    fn new(number: usize, config: Config) -> Self {
        Agent {
            number,
            config,
            running: None,
            signal: None,
        }
    }

    /// Starts it, also after its end by a signal. The nodes of a killed agent go on.
    fn start(&mut self, networks: &Networks) -> Result<(), ClusterError> {
        let former = self.running.take();
        let wait = |former: Background| former.end().map_err(system("wait for an agent"));
        // The lifeline of a killed agent is that of its nodes until the next life has begun.
        let former = match self.signal.take() {
            Some(Signal::SIGKILL) => former,
            _ => former.map(wait).transpose()?.and(None),
        };
        let start = || spawn_background(&self.config);
        self.running = Some(networks.inside(self.number, start)??);
        former.map_or(Ok(()), wait)
    }

    fn signal(&mut self, signal: Signal) -> Result<(), ClusterError> {
        self.signal = Some(signal);
        let pid = self.running.as_ref().map(Background::pid);
        let pid = Pid::from_raw(pid.ok_or(ClusterError::NoServer)?.cast_signed());
        kill(pid, signal).map_err(|error| system("signal an agent")(error.into()))
    }

    fn control(&self) -> Result<Control, ClientError> {
        Control::connect(&self.config.state)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(agent) = self.running.take() {
            // It ends with its lifeline in any case.
            let _ = agent.end();
        }
    }
}

/// The host that coordinates, as this one sees it, if this one reaches it and etcd.
fn leader_in(status: &Status) -> Option<String> {
    let leader = status.hosts.iter().find(|host| host.directory)?;
    let is_there = matches!(leader.state, HostState::Here | HostState::Connected);
    let is_well = is_there && status.etcd == Some(EtcdState::Connected);
    is_well.then(|| leader.name.clone())
}

/// The domain of all hosts but one.
fn domain(without: usize) -> String {
    format!("without-{without}")
}

fn others(without: usize) -> impl Iterator<Item = usize> {
    (0..HOSTS).filter(move |other| *other != without)
}
