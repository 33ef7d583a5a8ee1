//! Clients of key-value stores in a worker, one for each path.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use toroid_client::member::Domain;
use toroid_fabric::Place;

use super::files::{self, Block, Blocks, FileSamples};
use super::mix::Mix;
use super::mixed::{self, Mixed};
use super::network::socket::Sockets;
use super::sampler::Pace;
use super::store::memcached::Memcached;
use super::store::rdma::RdmaClient;
use super::store::{self, Keys, StoreOp};
use super::traces::{self, Trace};
use super::{Job, borrow, crowd, pattern};
use crate::plan::Path;
use crate::samples::Samples;

/// Longest start of a server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Blocks of real input per turn of a path.
const CHUNK: usize = 64;

/// Address of a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Target {
    Rdma { domain: String, place: String },
    Tcp(SocketAddrV4),
    Unix(PathBuf),
}

#[derive(Default)]
pub struct Stores {
    rdma: Option<RdmaClient>,
    memcached: HashMap<Path, Memcached>,
    targets: HashMap<Path, (Target, Sockets)>,
    crowds: HashMap<Path, Vec<Memcached>>,
    traces: HashMap<Trace, traces::Keys>,
    blocks: Option<Blocks>,
}

impl Stores {
    /// Connects the client of one-sided gets.
    pub fn connect_rdma(&mut self, path: Path, domain: &Domain, place: Place) -> Result<()> {
        if path != Path::Rdma {
            bail!("{path:?} is no path to memory");
        }
        self.rdma = Some(RdmaClient::connect(domain, place)?);
        Ok(())
    }

    pub fn connect(&mut self, path: Path, target: Target, sockets: Sockets) -> Result<()> {
        self.memcached.insert(path, connect(&target, &sockets)?);
        self.targets.insert(path, (target, sockets));
        Ok(())
    }

    pub fn fill(&mut self, path: Path, keys: Keys) -> Result<()> {
        self.memcached(path)?.fill(keys)
    }

    pub fn empty(&mut self, path: Path, keys: Keys) -> Result<()> {
        self.memcached(path)?.empty(keys)
    }

    /// Returns the number of missing or wrong values.
    pub fn verify(&mut self, path: Path, keys: Keys) -> Result<u64> {
        match path {
            Path::Rdma => store::verify(self.rdma()?, keys),
            path => store::verify(self.memcached(path)?, keys),
        }
    }

    pub fn mix(&mut self, path: Path, mix: Mix, salt: u64, time: Duration) -> Result<Mixed> {
        // Otherwise all clients would draw the same keys.
        let salt = pattern::mix(salt ^ u64::from(std::process::id()));
        if path != Path::Rdma {
            return mixed::run(self.memcached(path)?, mix, salt, time);
        }
        let mut sets = Samples::default();
        let gets = self.rdma()?.counting_reads(|client| {
            let mixed = mixed::run(client, mix, salt, time)?;
            sets = mixed.sets;
            Ok(mixed.gets)
        })?;
        Ok(Mixed { gets, sets })
    }

    pub fn measure(&mut self, job: Job, salt: u64, pace: Pace) -> Result<Samples> {
        match job {
            Job::Store(Path::Rdma, op, set) => self
                .rdma()?
                .counting_reads(|client| store::measure(client, op, set, salt, pace)),
            Job::Store(path, op, set) => store::measure(self.memcached(path)?, op, set, salt, pace),
            Job::Borrow(reading, set) => self
                .rdma()?
                .counting_reads(|client| borrow::measure(client, reading, set, salt, pace)),
            Job::Crowd(Path::Rdma, op, set, load) => {
                // The client has one connection.
                let client = std::slice::from_mut(self.rdma()?);
                crowd::measure(client, load, op, set, salt, pace.time)
            }
            Job::Crowd(path, op, set, load) => {
                let crowd = self.crowd(path, load.clients as usize)?;
                crowd::measure(crowd, load, op, set, salt, pace.time)
            }
            Job::Trace(path, trace, gets) => {
                let keys = self.traces.entry(trace);
                let keys = keys.or_insert_with(|| traces::Keys::new(trace));
                let client = self.memcached.get_mut(&path).context("not connected")?;
                traces::run(client, keys, gets)
            }
            job => bail!("{job:?} is no job for a store"),
        }
    }

    pub fn open_files(&mut self, dir: PathBuf, limit: u64, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        self.blocks = Some(Blocks::under(&reachable(dir), limit, Some(end))?);
        Ok(())
    }

    /// Stores a chunk of blocks over one path, reads them back over both, removes them, and repeats
    /// that over the other path, so that sets of both paths are verified.
    pub fn next_files(&mut self) -> Result<FileSamples> {
        let blocks = self.blocks.as_mut().context("no directory")?;
        let chunk: Vec<Block> = blocks.by_ref().take(CHUNK).collect();
        let tally = blocks.tally().clone();
        if tally.blocks == 0 {
            return Err(blocks.nothing());
        }
        let ethernet = self
            .memcached
            .get_mut(&Path::Ethernet)
            .context("not connected")?;
        let rdma = self.rdma.as_mut().context("not connected")?;
        let mut samples = Vec::new();
        for path in [Path::Ethernet, Path::Rdma] {
            if chunk.is_empty() {
                break;
            }
            let stored = match path {
                Path::Rdma => files::store(rdma, &chunk)?,
                _ => files::store(ethernet, &chunk)?,
            };
            samples.extend([
                (path, StoreOp::Set, stored),
                (
                    Path::Ethernet,
                    StoreOp::Get,
                    files::read_back(ethernet, &chunk)?,
                ),
                (Path::Rdma, StoreOp::Get, files::read_back(rdma, &chunk)?),
            ]);
            match path {
                Path::Rdma => files::forget(rdma, &chunk)?,
                _ => files::forget(ethernet, &chunk)?,
            }
        }
        Ok(FileSamples { samples, tally })
    }

    /// `count` connections of a path.
    fn crowd(&mut self, path: Path, count: usize) -> Result<&mut [Memcached]> {
        let (target, sockets) = self.targets.get(&path).context("not connected")?;
        let crowd = self.crowds.entry(path).or_default();
        while crowd.len() < count {
            crowd.push(connect(target, sockets)?);
        }
        Ok(&mut crowd[..count])
    }

    fn rdma(&mut self) -> Result<&mut RdmaClient> {
        self.rdma.as_mut().context("not connected")
    }

    pub fn memcached(&mut self, path: Path) -> Result<&mut Memcached> {
        self.memcached.get_mut(&path).context("not connected")
    }
}

/// Connects to a server, and retries while it starts.
fn connect(target: &Target, sockets: &Sockets) -> Result<Memcached> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let connected = match target {
            Target::Tcp(address) => Memcached::connect(sockets, *address),
            Target::Unix(path) => Memcached::connect_unix(path),
            Target::Rdma { .. } => Err(io::ErrorKind::Unsupported.into()),
        };
        match connected {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            connected => return Ok(connected?),
        }
    }
}

/// The directory, or `.` for a working directory whose path this process may not walk.
fn reachable(dir: PathBuf) -> PathBuf {
    let is_here = || std::env::current_dir().is_ok_and(|here| here == dir);
    match fs::metadata(&dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_here() => ".".into(),
        _ => dir,
    }
}
