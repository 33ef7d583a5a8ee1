//! Hosts of a rack: agents with Ethernet drivers, each in a network of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use toroid_agent::Config;
use toroid_fabric::Torus;
use toroid_fabric::topology::TopologyError;
use toroid_model::hosts::{Admission, Commands, Encryption, HostConfig, Provider};
use toroid_model::info::HostState;

use super::network::{self, Networks};
use crate::cluster::{Cluster, ClusterError, check_signals, check_tun, private, system};
use crate::roles;

/// Nodes of each host.
pub const NODES: u16 = 2;

/// Time in which a rack gets to an expected state.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two looks at a state.
const PAUSE: Duration = Duration::from_millis(10);

/// Digits of the key that the hosts of a run share.
const KEY_DIGITS: usize = 64;

/// Why a part of the command was not measured.
#[derive(Debug, thiserror::Error)]
pub enum Absence {
    /// Only root may make networks that agents of several hosts are in.
    #[error("only root can make networks for hosts; run it with sudo")]
    NotRoot,
    /// Nodes have no interfaces.
    #[error(transparent)]
    Tun(ClusterError),
    /// The agent was built without etcd.
    #[error("this build has no etcd; build with `--features toroid-cli/etcd`")]
    NotBuilt,
    /// There is no server.
    #[error("cannot run the program etcd: {0}; install Debian's package etcd-server")]
    NoEtcd(io::Error),
    /// There is nothing to compare with.
    #[error("cannot run {program}: {error}; install Debian's package {package}")]
    NoRival {
        program: &'static str,
        package: &'static str,
        error: io::Error,
    },
}

/// Checks that this process can have racks.
pub fn check() -> Result<(), Absence> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Absence::NotRoot);
    }
    check_tun().map_err(Absence::Tun)
}

/// Checks that a rack can have servers of etcd, too.
pub fn check_etcd() -> Result<(), Absence> {
    if !toroid_agent::HAS_ETCD {
        return Err(Absence::NotBuilt);
    }
    let version = Command::new("etcd").arg("--version").output();
    version.map(drop).map_err(Absence::NoEtcd)
}

/// Name of a host.
pub fn name(host: usize) -> String {
    format!("h{host}")
}

/// Place of a node of a host.
pub fn node(host: usize, number: u16) -> String {
    format!("{number},{host},0")
}

/// Digits of a random key.
pub fn key() -> String {
    let mut digits = String::new();
    while digits.len() < KEY_DIGITS {
        digits += &format!("{:016x}", fastrand::u64(..));
    }
    digits
}

/// Writes a key into a directory of this user alone.
pub fn write_key(state: &Path, digits: &str) -> Result<PathBuf, ClusterError> {
    let path = state.join("key");
    fs::create_dir_all(state)
        .and_then(|()| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(&path)
        })
        .and_then(|mut file| file.write_all(digits.as_bytes()))
        .map_err(system("write a key"))?;
    Ok(path)
}

/// Configuration of one of `count` hosts, of which the first leads.
pub fn host(number: usize, count: usize, key: PathBuf) -> Result<HostConfig, TopologyError> {
    let torus = Torus::new(NODES, count as u16, 1)?;
    let is_its = |id: &u32| {
        let place = torus.place(toroid_fabric::NodeId(*id));
        place.is_some_and(|place| usize::from(place.y) == number)
    };
    let others = (0..count).filter(|other| *other != number);
    // Each has another address on each of its cables.
    let address = network::agent(number, usize::from(number == 0));
    Ok(HostConfig {
        host: name(number),
        torus,
        nodes: (0..torus.nodes()).filter(is_its).collect(),
        aliases: BTreeMap::new(),
        listen: network::listen(),
        address: Some(address),
        key,
        directory: name(0),
        provider: Provider::Tcp,
        encryption: Encryption::On,
        admission: Admission::Key,
        commands: Commands::On,
        candidates: BTreeSet::new(),
        etcd: None,
        rdma: None,
        hosts: others
            .map(|other| (name(other), network::agent(other, number)))
            .collect(),
        lost: None,
    })
}

/// Configuration of an agent of a rack: it ends with this process, and has a driver.
pub fn agent(state: PathBuf, hosts: HostConfig) -> Config {
    Config {
        driver_command: Some(["/proc/self/exe", roles::DRIVER].map(Into::into).into()),
        hosts: Some(hosts),
        ..private(state)
    }
}

/// A rack. The first host leads. Dropping it ends all hosts, followers first.
pub struct Rack {
    pub hosts: Vec<Cluster>,
    pub networks: Networks,
}

impl Rack {
    /// Starts `count` hosts, and waits until each has sessions with all others, and frames pass.
    pub fn start(
        count: usize,
        encryption: Encryption,
        ack_timeout: Duration,
    ) -> Result<Self, ClusterError> {
        let mut rack = Rack {
            hosts: Vec::new(),
            networks: Networks::mesh(count)?,
        };
        let key = key();
        for number in 0..count {
            check_signals()?;
            let start = || {
                Cluster::start_as(|state| {
                    let hosts = host(number, count, write_key(state, &key)?)?;
                    let encrypted = HostConfig {
                        encryption,
                        ..hosts
                    };
                    Ok(Config {
                        ack_timeout_ms: ack_timeout.as_millis() as u64,
                        ..agent(state.into(), encrypted)
                    })
                })
            };
            let cluster = rack.networks.inside(number, start)??;
            rack.hosts.push(cluster);
        }
        Ok(rack)
    }

    /// Waits until the leader and each host have a session, and frames pass between all.
    pub fn connected(&mut self) -> Result<(), ClusterError> {
        until("the hosts are connected", || {
            for (number, cluster) in self.hosts.iter_mut().enumerate() {
                let status = cluster.control()?.status()?;
                let mut others = status.hosts.iter().filter(|host| host.name != name(number));
                let is_lost = |host: &HostState| *host == HostState::Away;
                if !others.all(|host| host.frames && !is_lost(&host.state)) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        while self.hosts.pop().is_some() {}
    }
}

/// Waits until something is so, at most [`PATIENCE`].
pub fn until(
    what: &'static str,
    mut is_so: impl FnMut() -> Result<bool, ClusterError>,
) -> Result<(), ClusterError> {
    let start = Instant::now();
    while !is_so()? {
        check_signals()?;
        if start.elapsed() > PATIENCE {
            let message =
                format!("{what}: not within {PATIENCE:?}; run it again on a quiet machine");
            return Err(ClusterError::ours(message));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
