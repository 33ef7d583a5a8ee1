//! What runs in a node: a client for each path, which carries out orders.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddrV4;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, to_value};
use toroid_client::member::Member;
use toroid_kv::ReaderStats;

use super::crowd;
use super::mix::{KEYS, Mix};
use super::mixed::{self, Mixed};
use super::plan::{Load, Measurement, Op, Path};
use super::processor::Bound;
use super::traces::{self, Trace};
use crate::memcpy::Source;
use crate::network::socket::Sockets;
use crate::pattern;
use crate::sampler::Pace;
use crate::stats::Slice;
use crate::store::memcached::Memcached;
use crate::store::rdma::RdmaClient;
use crate::store::{self, KeySet, borrow};

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
        /// On which processor, if it matters.
        processor: Option<usize>,
    },
    /// Find the version of memcached. Answer: it.
    Version(Path),
    /// Store version 0 of every key of a mix, by memcached's protocol.
    FillMix(Path, Mix),
    /// Remove every key of a mix, by memcached's protocol.
    EmptyMix(Path, Mix),
    /// Get every key of a mix by reading, and verify its value, so that places are known. Answer: how
    /// many are missing or wrong.
    VerifyMix(Mix),
    /// Carry out a mix. Answer: [`MixedByOne`].
    Mix {
        /// By what.
        path: Path,
        /// Which.
        mix: Mix,
        /// A version for what is written.
        salt: u64,
        /// For how long, in microseconds.
        time_us: u64,
    },
    /// Carry out gets of a trace, by memcached's protocol. Answer: [`traces::Hits`].
    Trace {
        /// By what.
        path: Path,
        /// Which.
        trace: Trace,
        /// The numbers of the gets.
        gets: Range<u64>,
    },
}

/// What was measured once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Times.
    pub slice: Slice,
    /// What it read, if it did.
    pub reads: Reads,
}

/// What one client did of a mix.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MixedByOne {
    /// Times.
    pub mixed: Mixed,
    /// What it read, if it did.
    pub reads: Reads,
}

/// How a client read the server's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    /// Gets by reading.
    pub gets: u64,
    /// The reads that these took.
    pub reads: u64,
    /// Of the gets, those that the server had to answer.
    pub asked: u64,
}

impl Reads {
    fn between(before: ReaderStats, after: ReaderStats) -> Self {
        Reads {
            gets: after.gets - before.gets,
            reads: after.reads - before.reads,
            asked: after.asked - before.asked,
        }
    }

    /// Adds those of another client.
    pub fn add(&mut self, other: Reads) {
        self.gets += other.gets;
        self.reads += other.reads;
        self.asked += other.asked;
    }
}

type Error = Box<dyn std::error::Error>;

/// The clients of a process.
#[derive(Default)]
pub struct Process {
    rdma: Option<RdmaClient>,
    memcached: HashMap<Path, Memcached>,
    targets: HashMap<Path, Target>,
    /// More connections.
    crowds: HashMap<Path, Vec<Memcached>>,
    source: Option<(u64, Source)>,
    traces: HashMap<Trace, traces::Keys>,
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
                self.targets.insert(path, target);
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
                processor,
            } => {
                let _bound = processor.map(Bound::this_thread).transpose()?;
                to_value(self.measure(&measurement, salt, pace)?)?
            }
            Order::Version(path) => to_value(self.memcached(path)?.version()?)?,
            Order::FillMix(path, mix) => {
                let name = move |key, name: &mut Vec<u8>| mix.name(key, name);
                let client = self.memcached(path)?;
                to_value(client.fill_with(KEYS, move |key| mix.value_len(key), name)?)?
            }
            Order::EmptyMix(path, mix) => {
                let client = self.memcached(path)?;
                to_value(client.empty_with(KEYS, move |key, name| mix.name(key, name))?)?
            }
            Order::VerifyMix(mix) => to_value(mixed::verify(self.rdma()?, mix)?)?,
            Order::Mix {
                path,
                mix,
                salt,
                time_us,
            } => to_value(self.mix(path, mix, salt, Duration::from_micros(time_us))?)?,
            Order::Trace { path, trace, gets } => {
                let keys = self.traces.entry(trace);
                let keys = keys.or_insert_with(|| traces::Keys::new(trace));
                let client = self.memcached.get_mut(&path).ok_or("not connected")?;
                to_value(traces::run(client, keys, gets)?)?
            }
        })
    }

    fn measure(
        &mut self,
        measurement: &Measurement,
        salt: u64,
        pace: Pace,
    ) -> Result<Measured, Error> {
        let &Measurement {
            path, bytes, load, ..
        } = measurement;
        let set = measurement.keys();
        let without_reads = |slice| Measured {
            slice,
            reads: Reads::default(),
        };
        if let Some(reading) = measurement.reading() {
            let client = self.rdma()?;
            let before = client.stats();
            let slice = borrow::measure(client, reading, set, salt, pace)?;
            let reads = Reads::between(before, client.stats());
            return Ok(Measured { slice, reads });
        }
        let Some(op) = measurement.store_op() else {
            let source = self.source(set.total());
            return Ok(without_reads(match measurement.op {
                Op::CopyFound => source.copy_found(bytes, pace),
                _ => source.copy(bytes, pace),
            }));
        };
        if load != Load::ONE && path == Path::Rdma {
            // It has one connection.
            let client = std::slice::from_mut(self.rdma()?);
            let slice = crowd::measure(client, load, op, set, salt, pace.time())?;
            return Ok(without_reads(slice));
        }
        if load != Load::ONE {
            let crowd = self.crowd(path, load.clients)?;
            let slice = crowd::measure(crowd, load, op, set, salt, pace.time())?;
            return Ok(without_reads(slice));
        }
        if path != Path::Rdma {
            let slice = store::measure(self.memcached(path)?, op, set, salt, pace)?;
            return Ok(without_reads(slice));
        }
        let client = self.rdma()?;
        let before = client.stats();
        let slice = store::measure(client, op, set, salt, pace)?;
        Ok(Measured {
            slice,
            reads: Reads::between(before, client.stats()),
        })
    }

    fn mix(
        &mut self,
        path: Path,
        mix: Mix,
        salt: u64,
        time: Duration,
    ) -> Result<MixedByOne, Error> {
        // Clients with the same numbers would all ask for the same.
        let salt = pattern::mix(salt ^ u64::from(std::process::id()));
        if path != Path::Rdma {
            return Ok(MixedByOne {
                mixed: mixed::run(self.memcached(path)?, mix, salt, time)?,
                reads: Reads::default(),
            });
        }
        let client = self.rdma()?;
        let before = client.stats();
        let mixed = mixed::run(client, mix, salt, time)?;
        Ok(MixedByOne {
            mixed,
            reads: Reads::between(before, client.stats()),
        })
    }

    /// So many connections besides the first.
    fn crowd(&mut self, path: Path, count: u32) -> Result<&mut [Memcached], Error> {
        let target = self.targets.get(&path).ok_or("not connected")?;
        let crowd = self.crowds.entry(path).or_default();
        while crowd.len() < count as usize {
            crowd.push(connect(target)?);
        }
        Ok(&mut crowd[..count as usize])
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
