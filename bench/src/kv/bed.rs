//! Two nodes: one with the servers and the clients of memcached's protocol, one with the clients of
//! one-sided gets.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use toroid_fabric::Torus;
pub(super) use toroid_kv::server::Limits;

use super::plan::{MIX_CLIENTS, Measurement, SERVERS, SMALL, STORES};
use crate::cluster::{Cluster, ClusterError, Process};
use crate::directory;
use crate::memory::kib_field;
use crate::plan::{COLD_BYTES, Path};
use crate::report::name;
use crate::roles::{self, StoreConfig};
use crate::samples::Samples;
use crate::worker::Order;
use crate::worker::mix::Mix;
use crate::worker::mixed::Mixed;
use crate::worker::processor::{self, Bound};
use crate::worker::sampler::Pace;
use crate::worker::store::{KeySet, Keys};
use crate::worker::stores::Target;

/// Threads of each server.
pub const THREADS: u32 = 4;

/// Clients in each node.
const CLIENTS: u32 = MIX_CLIENTS[MIX_CLIENTS.len() - 1];

/// Port of memcached in the node's own network.
pub(super) const PORT: u16 = 11311;

pub(super) const DOMAIN: &str = "kv";

/// Node of the servers.
const SERVER: &str = "0,0,0";

/// Bytes for items: a cold working set of small values, and a segment or two.
const MEMORY: u64 = COLD_BYTES + COLD_BYTES / 2;

/// Bytes of the largest item: memcached's default does not take values of 1 MiB.
const ITEM: u32 = 2 << 20;

/// Limits of memcached.
const LIMITS: Limits = Limits {
    memory: 256 << 20,
    item: ITEM,
};

pub struct Bed {
    /// Clients in the servers' node.
    near: Vec<Process>,
    /// Clients in the other node.
    far: Vec<Process>,
    _servers: Vec<Process>,
    cluster: Cluster,
    salt: u64,
    /// Processor of both ends of a connection while they work in turns; `None` if the scheduler
    /// chooses, or after a failure to bind.
    processor: Option<usize>,
}

impl Bed {
    /// Starts nodes, servers and clients, and connects. With `may_bind` both ends of a connection
    /// are [bound](processor) to one processor.
    pub fn prepare(may_bind: bool) -> Result<Self, ClusterError> {
        let mut cluster = Cluster::start(Torus::new(2, 1, 1)?, None)?;
        cluster.create_domain(DOMAIN)?;
        let mark = marker(&cluster, Path::Rdma).unwrap_or_default();
        let (store, port) = cluster.start_store(SERVER, &store_config(MEMORY, ITEM), &mark)?;
        let socket = directory::socket(&cluster.path(""));
        let (unix, tcp) = (socket.to_string_lossy().into_owned(), PORT.to_string());
        let by_tcp = ["-l", "127.0.0.1", "-p", &tcp];
        let by_unix = ["-s", &unix];
        let servers = vec![
            store,
            start_memcached(&mut cluster, SERVER, Path::MemcachedTcp, LIMITS, &by_tcp)?,
            start_memcached(&mut cluster, SERVER, Path::MemcachedUnix, LIMITS, &by_unix)?,
        ];
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..CLIENTS {
            near.push(cluster.worker(SERVER)?);
            far.push(cluster.worker("1,0,0")?);
        }
        let mut bed = Bed {
            near,
            far,
            _servers: servers,
            cluster,
            salt: 0,
            processor: may_bind.then(|| processor::first().ok()).flatten(),
        };
        let local = |port| Target::Tcp(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        let place = Target::Rdma {
            domain: DOMAIN.into(),
            place: SERVER.into(),
        };
        for (path, target) in [
            (Path::Rdma, place),
            (Path::ToroidTcp, local(port)),
            (Path::MemcachedTcp, local(PORT)),
            (Path::MemcachedUnix, Target::Unix(socket)),
        ] {
            bed.ask_all::<()>(path, CLIENTS, &Order::Connect(path, target))?;
        }
        Ok(bed)
    }

    /// Stores a contest's values, and fills the clients' location caches.
    pub fn fill(&mut self, contest: &[Measurement]) -> Result<(), ClusterError> {
        for (path, set) in stores(contest) {
            self.ask::<()>(path, &Order::Fill(path, Keys::Set(set)))?;
        }
        for path in STORES {
            let Some(used) = contest.iter().find(|used| used.path == path) else {
                continue;
            };
            let wrong: u64 = self.ask(path, &Order::Verify(path, Keys::Set(used.keys())))?;
            Self::expect_none_wrong(path, wrong)?;
        }
        Ok(())
    }

    fn expect_none_wrong(path: Path, wrong: u64) -> Result<(), ClusterError> {
        match wrong {
            0 => Ok(()),
            _ => {
                let path = name(path);
                let message = format!("{wrong} values by {path} are wrong");
                Err(ClusterError::ours(message))
            }
        }
    }

    /// Removes a contest's values.
    pub fn empty(&mut self, contest: &[Measurement]) -> Result<(), ClusterError> {
        stores(contest)
            .into_iter()
            .try_for_each(|(path, set)| self.ask(path, &Order::Empty(path, Keys::Set(set))))
    }

    /// Measures once. The figure `server_cpu_ns_per_op` is the server's processor time.
    pub fn measure(
        &mut self,
        measurement: &Measurement,
        time: Duration,
    ) -> Result<Samples, ClusterError> {
        self.salt += 1;
        let marker = marker(&self.cluster, measurement.path);
        let marker = marker.as_deref();
        let bound = marker
            .filter(|_| measurement.is_in_turns())
            .and_then(|marker| self.bind(marker));
        let order = Order::Measure {
            job: measurement.job(),
            salt: self.salt,
            pace: Pace::of(time),
            processor: self.processor.filter(|_| bound.is_some()),
        };
        let before = marker.and_then(cpu_ns);
        let samples: Samples = self.ask(measurement.path, &order)?;
        let after = marker.and_then(cpu_ns);
        let cpu_ns = before.zip(after).filter(|_| samples.ops > 0);
        let per_op =
            cpu_ns.map(|(before, after)| after.saturating_sub(before) as f64 / samples.ops as f64);
        Ok(samples.with("server_cpu_ns_per_op", per_op))
    }

    /// Binds the server with this mark to the shared processor. After a failure no process is bound
    /// again.
    fn bind(&mut self, marker: &str) -> Option<Bound> {
        let (processor, server) = (self.processor?, process_of(marker));
        let bound = server.and_then(|server| Bound::new(Some(server), processor).ok());
        if bound.is_none() {
            self.processor = None;
        }
        bound
    }

    /// Whether both ends of a connection shared a processor while they worked in turns.
    pub fn shares_processor(&self) -> bool {
        self.processor.is_some()
    }

    /// Stores a mix's values, and fills all clients' location caches.
    pub fn fill_mix(&mut self, mix: Mix) -> Result<(), ClusterError> {
        for path in SERVERS {
            self.ask::<()>(path, &Order::Fill(path, Keys::Mix(mix)))?;
        }
        let wrong: Vec<u64> = self.ask_all(
            Path::Rdma,
            CLIENTS,
            &Order::Verify(Path::Rdma, Keys::Mix(mix)),
        )?;
        Self::expect_none_wrong(Path::Rdma, wrong.iter().sum())
    }

    /// Removes a mix's values.
    pub fn empty_mix(&mut self, mix: Mix) -> Result<(), ClusterError> {
        SERVERS
            .into_iter()
            .try_for_each(|path| self.ask(path, &Order::Empty(path, Keys::Mix(mix))))
    }

    /// Carries out a mix once, by `clients` clients at the same time.
    pub fn mix(
        &mut self,
        path: Path,
        mix: Mix,
        clients: u32,
        time: Duration,
    ) -> Result<Vec<Mixed>, ClusterError> {
        self.salt += 1;
        self.ask_all(path, clients, &Order::Mix(path, mix, self.salt, time))
    }

    /// Bytes of a server's memory per small item; `None` if unknown.
    pub fn memory_per_item(&mut self, path: Path) -> Result<Option<f64>, ClusterError> {
        let marker = marker(&self.cluster, path);
        let marker = marker.as_deref();
        let before = marker.and_then(resident);
        self.ask::<()>(path, &Order::Fill(path, Keys::Set(SMALL)))?;
        let after = marker.and_then(resident);
        self.ask::<()>(path, &Order::Empty(path, Keys::Set(SMALL)))?;
        let grown = before.zip(after);
        Ok(grown.map(|(before, after)| after.saturating_sub(before) as f64 / SMALL.keys as f64))
    }

    /// Memcached's version.
    pub fn memcached_version(&mut self) -> Result<String, ClusterError> {
        let path = Path::MemcachedTcp;
        self.ask(path, &Order::MemcachedVersion(path))
    }

    fn ask<A: DeserializeOwned>(&mut self, path: Path, order: &Order) -> Result<A, ClusterError> {
        let mut answers = self.ask_all(path, 1, order)?;
        answers.pop().ok_or(ClusterError::NoServer)
    }

    /// Asks `count` clients, which work at the same time.
    fn ask_all<A: DeserializeOwned>(
        &mut self,
        path: Path,
        count: u32,
        order: &Order,
    ) -> Result<Vec<A>, ClusterError> {
        let is_far = matches!(path, Path::Rdma | Path::Memcpy);
        let clients = if is_far {
            &mut self.far
        } else {
            &mut self.near
        };
        self.cluster.ask_all(&mut clients[..count as usize], order)
    }
}

/// Name of this run: that of its private directory.
fn run_of(cluster: &Cluster) -> String {
    let directory = cluster.path("");
    let name = directory.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Paths by which a contest's values are stored. The store's two paths share their values.
fn stores(contest: &[Measurement]) -> Vec<(Path, KeySet)> {
    let mut stores: Vec<(Path, KeySet)> = Vec::new();
    for measurement in contest {
        let path = match measurement.path {
            Path::Rdma => Path::ToroidTcp,
            Path::Memcpy => continue,
            path => path,
        };
        if !stores.iter().any(|(known, _)| *known == path) {
            stores.push((path, measurement.keys()));
        }
    }
    stores
}

/// Configuration of a store in nodes with interfaces.
pub(super) fn store_config(memory: u64, item: u32) -> StoreConfig {
    StoreConfig {
        domain: DOMAIN.into(),
        memory,
        item,
        stack: false,
    }
}

/// Starts Debian's memcached in a node, with the path's mark as `argv[0]`.
pub(super) fn start_memcached(
    cluster: &mut Cluster,
    node: &str,
    path: Path,
    limits: Limits,
    place: &[&str],
) -> Result<Process, ClusterError> {
    let threads = THREADS.to_string();
    let (memory, item) = (limits.memory >> 20, limits.item >> 20);
    let (memory, item) = (memory.to_string(), format!("{item}m"));
    let common = ["-u", "root", "-t", &threads, "-m", &memory, "-I", &item];
    let name = marker(cluster, path).unwrap_or_default();
    let program = [roles::EXEC, "memcached", &name];
    cluster.spawn(node, &[&program[..], place, &common].concat())
}

/// Unique mark in the command line of the path's server in this run; `None` without a server.
fn marker(cluster: &Cluster, path: Path) -> Option<String> {
    let server = match path {
        Path::Rdma | Path::ToroidTcp => "store",
        Path::MemcachedTcp => "memcached-tcp",
        Path::MemcachedUnix => "memcached-unix",
        _ => return None,
    };
    Some(format!("{}-{server}", run_of(cluster)))
}

/// The directory below `/proc` of the process with this mark.
fn process_of(marker: &str) -> Option<PathBuf> {
    let mut processes = fs::read_dir("/proc").ok()?.flatten();
    let marked = processes.find(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0)
            .any(|word| word == marker.as_bytes())
    });
    Some(marked?.path())
}

/// Resident bytes of the process with this mark, shared memory included (`status` of proc(5)).
fn resident(marker: &str) -> Option<u64> {
    kib_field(&process_of(marker)?.join("status"), "VmRSS:")
}

/// Processor time of the process with this mark in nanoseconds, over all threads (`schedstat` of
/// proc(5)).
fn cpu_ns(marker: &str) -> Option<u64> {
    let threads = fs::read_dir(process_of(marker)?.join("task")).ok()?;
    let ran = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Some(ran.sum())
}
