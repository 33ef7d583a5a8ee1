//! The part that runs inside a node: it takes orders on standard input and answers each on
//! standard output, in lines of JSON, until the input ends. An answer is a [`Result`]: what the
//! order's documentation says, or why it could not be done.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toroid_client::member::{Member, MemberError};
use toroid_ethernet::stack::{Stack, StackError};
use toroid_fabric::Place;
use toroid_fabric::key::KeyFormatError;
use toroid_fabric::topology::TopologyError;
use toroid_netlink::{Netlink, NetlinkError};

use crate::files::{self, Block, Blocks, InputError, Tally};
use crate::memcpy::Source;
use crate::network::flood::{self, Flood};
use crate::network::socket::Sockets;
use crate::network::{Transport, client, server};
use crate::one_sided::{self, ExportedKeys, Exports, OneSidedError, Peer};
use crate::plan::{Path, Test};
use crate::sampler::Pace;
use crate::stats::Slice;
use crate::store::memcached::{Memcached, MemcachedError};
use crate::store::rdma::{RdmaClient, RdmaError};
use crate::store::{self, KeySet, StoreOp};
use crate::veth::{self, VethError};

/// Blocks of real input that go over one path before it is the other's turn.
const CHUNK: usize = 64;

/// Of the numbers in a line of `/proc/net/dev`: eight on what was received come first.
const BYTES_SENT: usize = 8;

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Have the node's addresses in a domain where it has no interface, from now on.
    UseStack {
        /// The domain.
        domain: String,
    },
    /// Serve network sessions. Answer: the port.
    Serve,
    /// Export memory in a domain. Answer: [`ExportedKeys`].
    Export {
        /// The domain.
        domain: String,
    },
    /// Look at what a peer wrote. Answer: how many are missing or wrong.
    CheckWrites {
        /// Bytes of an operation.
        bytes: usize,
        /// Operations.
        count: u64,
        /// The version written.
        salt: u64,
    },
    /// Store version 0 of a set of keys by many sets in a row.
    Fill {
        /// The server.
        server: SocketAddrV4,
        /// The keys.
        set: KeySet,
    },
    /// Remove what was filled, in the same way.
    Empty {
        /// The server.
        server: SocketAddrV4,
        /// The keys.
        set: KeySet,
    },
    /// Lend the network namespace to whoever connects.
    LendNamespace {
        /// A path to listen at.
        socket: PathBuf,
    },
    /// Make a veth pair to a lent namespace.
    CreateVeth {
        /// Where the lender listens.
        socket: PathBuf,
    },
    /// Configure this end of the pair.
    ConfigureVeth {
        /// Its address.
        address: Ipv4Addr,
    },
    /// Find an interface's MTU. Answer: bytes.
    Mtu {
        /// The interface; the veth pair when absent.
        interface: Option<String>,
    },
    /// Where the network sessions of each path are.
    UseSessions(Vec<(Path, SocketAddrV4)>),
    /// Open a peer's exported memory.
    UseMemory {
        /// The domain.
        domain: String,
        /// What the owner published.
        keys: ExportedKeys,
    },
    /// Connect to the store by every path.
    UseStore {
        /// The domain.
        domain: String,
        /// The server's place.
        place: String,
        /// Where it speaks memcached's protocol.
        servers: Vec<(Path, SocketAddrV4)>,
    },
    /// Read every key of a set and verify it. Answer: how many are missing or wrong.
    Verify {
        /// How.
        path: Path,
        /// The keys.
        set: KeySet,
    },
    /// Do one round of a measurement. Answer: a [`Slice`].
    Measure {
        /// What.
        test: Test,
        /// Bytes of its working set, if it has one.
        working_set: u64,
        /// A version for what is written.
        salt: u64,
        /// For how long.
        pace: Pace,
    },
    /// Measure round trips of TCP with any server. Answer: a [`Slice`].
    RoundTrips {
        /// Where its sessions are.
        server: SocketAddrV4,
        /// Bytes of a message.
        bytes: usize,
        /// For how long.
        pace: Pace,
    },
    /// Measure a stream of TCP to any server. Answer: a [`Slice`].
    Stream {
        /// Where its sessions are.
        server: SocketAddrV4,
        /// Bytes of a write.
        bytes: usize,
        /// For how long, in microseconds.
        time_us: u64,
    },
    /// Send datagrams at a given rate. Answer: a [`Flow`](flood::Flow).
    Flood(Flood),
    /// Find what TCP here does about congestion. Answer: its name.
    CongestionControl,
    /// Count the bytes that an interface has sent. Answer: how many.
    BytesSent {
        /// Its name.
        interface: String,
    },
    /// Begin to read files.
    OpenFiles {
        /// The directory.
        dir: PathBuf,
        /// The most bytes to read.
        limit: u64,
        /// The time for all of it, in microseconds.
        time_us: u64,
    },
    /// Store and read back some blocks over each path. Answer: [`FileSlices`].
    NextFiles,
}

/// Some blocks of real input over each path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileSlices {
    /// Per path and operation; empty when all was read.
    pub slices: Vec<(Path, StoreOp, Slice)>,
    /// What was read so far.
    pub tally: Tally,
}

/// Why a worker could not do what it was told.
#[derive(Debug, thiserror::Error)]
enum WorkerError {
    #[error("nothing came and nothing could be sent for {} s", client::PATIENCE.as_secs())]
    Stalled,
    #[error("{0}")]
    Io(io::Error),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error(transparent)]
    OneSided(#[from] OneSidedError),
    #[error(transparent)]
    Memcached(#[from] MemcachedError),
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    #[error(transparent)]
    Veth(#[from] VethError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Key(#[from] KeyFormatError),
    #[error(transparent)]
    Place(#[from] TopologyError),
    #[error("not an order: {0}")]
    Order(#[from] serde_json::Error),
    #[error("{0} was asked for before it was set up")]
    NotSetUp(&'static str),
}

impl From<io::Error> for WorkerError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // What the kernel calls a time-out of a socket.
            io::ErrorKind::WouldBlock => WorkerError::Stalled,
            _ => WorkerError::Io(error),
        }
    }
}

/// Takes orders until the input ends.
///
/// # Errors
/// The system's, when an answer cannot be written.
pub fn run(orders: impl BufRead, answers: impl Write) -> io::Result<()> {
    let mut worker = Worker::default();
    serve(orders, answers, |order| worker.obey(order))
}

/// Lets `obey` carry out orders of any kind until the input ends.
///
/// # Errors
/// The system's, when an answer cannot be written.
pub fn serve<O: DeserializeOwned, E: From<serde_json::Error> + ToString>(
    orders: impl BufRead,
    mut answers: impl Write,
    mut obey: impl FnMut(O) -> Result<Value, E>,
) -> io::Result<()> {
    for line in orders.lines() {
        let answer = serde_json::from_str(&line?)
            .map_err(E::from)
            .and_then(&mut obey)
            .map_err(|error| error.to_string());
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        answers.write_all(&line)?;
        answers.flush()?;
    }
    Ok(())
}

#[derive(Default)]
struct Worker {
    member: Option<Member>,
    stacks: Vec<Stack>,
    exports: Option<Exports>,
    sessions: HashMap<Path, SocketAddrV4>,
    memory: Option<Peer>,
    memcached: HashMap<Path, Memcached>,
    rdma: Option<RdmaClient>,
    sources: HashMap<u64, Source>,
    blocks: Option<Blocks>,
}

/// The directory, or, where only its descriptor leads there, this process's own.
fn reachable(dir: PathBuf) -> PathBuf {
    let is_here = || std::env::current_dir().is_ok_and(|here| here == dir);
    match fs::metadata(&dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_here() => ".".into(),
        _ => dir,
    }
}

impl Worker {
    fn obey(&mut self, order: Order) -> Result<Value, WorkerError> {
        match order {
            Order::UseStack { domain } => {
                let domain = self.member()?.domain(&domain)?;
                self.stacks.push(Stack::open(&domain)?);
                answer(())
            }
            Order::Serve => answer(self.serve()?),
            Order::Export { domain } => self.export(&domain),
            Order::CheckWrites { bytes, count, salt } => {
                let exports = self
                    .exports
                    .as_ref()
                    .ok_or(WorkerError::NotSetUp("memory"))?;
                answer(exports.wrong_writes(bytes, count, salt)?)
            }
            Order::Fill { server, set } => answer(self.connect(server)?.fill(set)?),
            Order::Empty { server, set } => answer(self.connect(server)?.empty(set)?),
            Order::LendNamespace { socket } => answer(veth::lend(&socket)?),
            Order::CreateVeth { socket } => answer(veth::create(&socket)?),
            Order::ConfigureVeth { address } => answer(veth::configure(address)?),
            Order::Mtu { interface } => answer(match interface {
                Some(name) => Netlink::open()?.link(&name)?.mtu,
                None => veth::mtu()?,
            }),
            Order::UseSessions(sessions) => {
                self.sessions = sessions.into_iter().collect();
                answer(())
            }
            Order::UseMemory { domain, keys } => self.use_memory(&domain, &keys),
            Order::UseStore {
                domain,
                place,
                servers,
            } => self.use_store(&domain, &place, &servers),
            Order::Verify {
                path: Path::Rdma,
                set,
            } => answer(store::verify(rdma(&mut self.rdma)?, set)?),
            Order::Verify { path, set } => {
                let client = memcached(&mut self.memcached, path)?;
                answer(store::verify(client, set)?)
            }
            Order::Measure {
                test,
                working_set,
                salt,
                pace,
            } => answer(self.measure(test, working_set, salt, pace)?),
            Order::RoundTrips {
                server,
                bytes,
                pace,
            } => answer(client::round_trips(
                &self.sockets(server),
                server,
                Transport::Tcp,
                bytes,
                pace,
            )?),
            Order::Stream {
                server,
                bytes,
                time_us,
            } => {
                let time = Duration::from_micros(time_us);
                let sockets = self.sockets(server);
                answer(client::stream(
                    &sockets,
                    server,
                    Transport::Tcp,
                    bytes,
                    time,
                )?)
            }
            Order::Flood(flood) => {
                let sockets = flood.servers.first().map(|server| self.sockets(*server));
                let sockets = sockets.unwrap_or(Sockets::Kernel);
                answer(flood::flood(&sockets, &flood)?)
            }
            Order::CongestionControl => {
                let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")?;
                answer(name.trim_end())
            }
            Order::BytesSent { interface } => answer(bytes_sent(&interface)?),
            Order::OpenFiles {
                dir,
                limit,
                time_us,
            } => {
                let end = Instant::now() + Duration::from_micros(time_us);
                self.blocks = Some(Blocks::under(&reachable(dir), limit, Some(end))?);
                answer(())
            }
            Order::NextFiles => self.next_files(),
        }
    }

    fn member(&mut self) -> Result<&Member, WorkerError> {
        if self.member.is_none() {
            self.member = Some(Member::attach()?);
        }
        self.member.as_ref().ok_or(WorkerError::NotSetUp("a node"))
    }

    /// By its kernel and by all its stacks at the same port.
    fn serve(&self) -> io::Result<u16> {
        let port = server::start(Ipv4Addr::UNSPECIFIED)?;
        for stack in &self.stacks {
            let at = SocketAddrV4::new(stack.ipv4(), port);
            server::start_with(&Sockets::Stack(stack.clone()), at)?;
        }
        Ok(port)
    }

    /// Those that lead to an address.
    fn sockets(&self, to: SocketAddrV4) -> Sockets {
        let mut stacks = self.stacks.iter();
        let stack = stacks.find(|stack| stack.is_on_link(IpAddr::V4(*to.ip())));
        stack.map_or(Sockets::Kernel, |stack| Sockets::Stack(stack.clone()))
    }

    fn connect(&self, server: SocketAddrV4) -> io::Result<Memcached> {
        Memcached::connect(&self.sockets(server), server)
    }

    fn export(&mut self, domain: &str) -> Result<Value, WorkerError> {
        let domain = self.member()?.domain(domain)?;
        let exports = self.exports.insert(Exports::new(&domain, one_sided::HOT)?);
        let keys = exports.keys().ok_or(WorkerError::NotSetUp("a key"))?;
        answer(keys)
    }

    fn use_memory(&mut self, domain: &str, keys: &ExportedKeys) -> Result<Value, WorkerError> {
        let domain = self.member()?.domain(domain)?;
        let (readable, writable) = (keys.readable.parse()?, keys.writable.parse()?);
        self.memory = Some(Peer::open(&domain, readable, writable)?);
        answer(())
    }

    fn use_store(
        &mut self,
        domain: &str,
        place: &str,
        servers: &[(Path, SocketAddrV4)],
    ) -> Result<Value, WorkerError> {
        self.memcached.clear();
        self.rdma = None;
        for (path, server) in servers {
            let client = self.connect(*server)?;
            self.memcached.insert(*path, client);
        }
        let place: Place = place.parse()?;
        let domain = self.member()?.domain(domain)?;
        self.rdma = Some(RdmaClient::connect(&domain, place)?);
        answer(())
    }

    fn measure(
        &mut self,
        test: Test,
        working_set: u64,
        salt: u64,
        pace: Pace,
    ) -> Result<Slice, WorkerError> {
        match test {
            Test::RoundTrip {
                path,
                transport,
                bytes,
            } => {
                let server = self.session(path)?;
                let sockets = self.sockets(server);
                Ok(client::round_trips(
                    &sockets, server, transport, bytes, pace,
                )?)
            }
            Test::Stream {
                path,
                transport,
                bytes,
            } => {
                let server = self.session(path)?;
                let (sockets, time) = (self.sockets(server), pace.time());
                Ok(client::stream(&sockets, server, transport, bytes, time)?)
            }
            Test::OneSided {
                direction,
                depth,
                bytes,
            } => {
                let memory = self
                    .memory
                    .as_ref()
                    .ok_or(WorkerError::NotSetUp("memory"))?;
                Ok(memory.measure(direction, depth, bytes, salt, pace)?)
            }
            Test::Store {
                path, op, bytes, ..
            } => {
                let set = KeySet::of_total(working_set, bytes);
                if path == Path::Rdma {
                    return Ok(store::measure(rdma(&mut self.rdma)?, op, set, salt, pace)?);
                }
                let client = memcached(&mut self.memcached, path)?;
                Ok(store::measure(client, op, set, salt, pace)?)
            }
            Test::Copy { bytes, .. } => {
                let source = self.sources.entry(working_set);
                let source = source.or_insert_with(|| Source::new(working_set as usize));
                Ok(source.copy(bytes, pace))
            }
        }
    }

    fn session(&self, path: Path) -> Result<SocketAddrV4, WorkerError> {
        let server = self.sessions.get(&path);
        server.copied().ok_or(WorkerError::NotSetUp("a session"))
    }

    /// Blocks go over one path, are read back over both, are forgotten, and go over the other:
    /// so each path is seen to have stored them.
    fn next_files(&mut self) -> Result<Value, WorkerError> {
        let blocks = self
            .blocks
            .as_mut()
            .ok_or(WorkerError::NotSetUp("a directory"))?;
        let chunk: Vec<Block> = blocks.by_ref().take(CHUNK).collect();
        let tally = blocks.tally().clone();
        if tally.blocks == 0 {
            return Err(blocks.nothing().into());
        }
        let ethernet = memcached(&mut self.memcached, Path::Ethernet)?;
        let rdma = rdma(&mut self.rdma)?;
        let mut slices = Vec::new();
        if !chunk.is_empty() {
            let stored = files::store(ethernet, &chunk)?;
            slices.push((Path::Ethernet, StoreOp::Set, stored));
            read_over_both(ethernet, rdma, &chunk, &mut slices)?;
            files::forget(ethernet, &chunk)?;
            let stored = files::store(rdma, &chunk)?;
            slices.push((Path::Rdma, StoreOp::Set, stored));
            read_over_both(ethernet, rdma, &chunk, &mut slices)?;
            files::forget(rdma, &chunk)?;
        }
        answer(FileSlices { slices, tally })
    }
}

fn answer(what: impl Serialize) -> Result<Value, WorkerError> {
    Ok(serde_json::to_value(what)?)
}

/// What the interface of this node counts.
fn bytes_sent(interface: &str) -> Result<u64, WorkerError> {
    let text = fs::read_to_string("/proc/self/net/dev")?;
    let counters = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let mut counters = counters.into_iter().flat_map(str::split_whitespace);
    let sent = counters
        .nth(BYTES_SENT)
        .and_then(|count| count.parse().ok());
    sent.ok_or(WorkerError::NotSetUp("an interface"))
}

fn memcached(
    connections: &mut HashMap<Path, Memcached>,
    path: Path,
) -> Result<&mut Memcached, WorkerError> {
    connections
        .get_mut(&path)
        .ok_or(WorkerError::NotSetUp("a connection to the store"))
}

fn rdma(client: &mut Option<RdmaClient>) -> Result<&mut RdmaClient, WorkerError> {
    client.as_mut().ok_or(WorkerError::NotSetUp("the store"))
}

fn read_over_both(
    ethernet: &mut Memcached,
    rdma: &mut RdmaClient,
    chunk: &[Block],
    slices: &mut Vec<(Path, StoreOp, Slice)>,
) -> Result<(), WorkerError> {
    let slice = files::read_back(ethernet, chunk)?;
    slices.push((Path::Ethernet, StoreOp::Get, slice));
    let slice = files::read_back(rdma, chunk)?;
    slices.push((Path::Rdma, StoreOp::Get, slice));
    Ok(())
}
