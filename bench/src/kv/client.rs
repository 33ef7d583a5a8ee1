//! What runs in a node: a client for each path, which carries out orders.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use domains::member::Member;
use serde::{Deserialize, Serialize};
use serde_json::{Value, to_value};

use super::plan::{Measurement, Path};
use crate::memcpy::Source;
use crate::network::socket::Sockets;
use crate::sampler::Pace;
use crate::stats::Slice;
use crate::store::memcached::Memcached;
use crate::store::rdma::RdmaClient;
use crate::store::{self, KeySet};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a store is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Target {
    /// At a place of a domain.
    Rdma {
        /// The domain.
        domain: String,
        /// The place.
        place: String,
    },
    /// At a TCP port.
    Tcp(SocketAddrV4),
    /// At a unix socket.
    Unix(PathBuf),
}

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Connect to a store.
    Connect(Path, Target),
    /// Store version 0 of every key, by memcached's protocol.
    Fill(Path, KeySet),
    /// Remove every key, by memcached's protocol.
    Empty(Path, KeySet),
    /// Get every key and verify its value, so that places are known. Answer: how many are missing or
    /// wrong.
    Verify(Path, KeySet),
    /// Measure. Answer: [`Measured`].
    Measure {
        /// What.
        measurement: Measurement,
        /// A version for what is written.
        salt: u64,
        /// For how long.
        pace: Pace,
    },
    /// Find the version of memcached. Answer: it.
    Version(Path),
}

/// What was measured once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Times.
    pub slice: Slice,
    /// Gets by reading, and the reads that these took.
    pub gets: u64,
    /// See `gets`.
    pub reads: u64,
}

type Error = Box<dyn std::error::Error>;

/// The clients of a process.
#[derive(Default)]
pub struct Process {
    rdma: Option<RdmaClient>,
    memcached: HashMap<Path, Memcached>,
    source: Option<(u64, Source)>,
}

impl Process {
    /// Carries out an order.
    ///
    /// # Errors
    /// Whatever went wrong.
    pub fn obey(&mut self, order: Order) -> Result<Value, Error> {
        Ok(match order {
            Order::Connect(_, Target::Rdma { domain, place }) => {
                let domain = Member::attach()?.domain(&domain)?;
                self.rdma = Some(RdmaClient::connect(&domain, place.parse()?)?);
                Value::Null
            }
            Order::Connect(path, target) => {
                self.memcached.insert(path, connect(&target)?);
                Value::Null
            }
            Order::Fill(path, set) => to_value(self.memcached(path)?.fill(set)?)?,
            Order::Empty(path, set) => to_value(self.memcached(path)?.empty(set)?)?,
            Order::Verify(Path::Rdma, set) => to_value(store::verify(self.rdma()?, set)?)?,
            Order::Verify(path, set) => to_value(store::verify(self.memcached(path)?, set)?)?,
            Order::Measure {
                measurement,
                salt,
                pace,
            } => to_value(self.measure(&measurement, salt, pace)?)?,
            Order::Version(path) => to_value(self.memcached(path)?.version()?)?,
        })
    }

    fn measure(
        &mut self,
        measurement: &Measurement,
        salt: u64,
        pace: Pace,
    ) -> Result<Measured, Error> {
        let (set, bytes) = (measurement.keys(), measurement.bytes);
        let Some(op) = measurement.store_op() else {
            let slice = self.source(set.total()).copy(bytes, pace);
            return Ok(Measured {
                slice,
                gets: 0,
                reads: 0,
            });
        };
        if measurement.path != Path::Rdma {
            let slice = store::measure(self.memcached(measurement.path)?, op, set, salt, pace)?;
            return Ok(Measured {
                slice,
                gets: 0,
                reads: 0,
            });
        }
        let client = self.rdma()?;
        let before = client.stats();
        let slice = store::measure(client, op, set, salt, pace)?;
        let after = client.stats();
        Ok(Measured {
            slice,
            gets: after.gets - before.gets,
            reads: after.reads - before.reads,
        })
    }

    /// Memory of its own for copies, one size at a time.
    fn source(&mut self, len: u64) -> &mut Source {
        let source = self.source.take().filter(|(of, _)| *of == len);
        let source = source.unwrap_or_else(|| (len, Source::new(len as usize)));
        &mut self.source.insert(source).1
    }

    fn rdma(&mut self) -> Result<&mut RdmaClient, Error> {
        self.rdma.as_mut().ok_or_else(|| "not connected".into())
    }

    fn memcached(&mut self, path: Path) -> Result<&mut Memcached, Error> {
        let client = self.memcached.get_mut(&path);
        client.ok_or_else(|| "not connected".into())
    }
}

/// Connects, also to a server that has only been started.
fn connect(target: &Target) -> Result<Memcached, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let connected = match target {
            Target::Tcp(address) => Memcached::connect(&Sockets::Kernel, *address),
            Target::Unix(path) => Memcached::connect_unix(path),
            Target::Rdma { .. } => Err(io::ErrorKind::Unsupported.into()),
        };
        match connected {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            connected => return Ok(connected?),
        }
    }
}
