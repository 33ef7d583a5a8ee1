//! A worker: a process in a node that carries out orders.
//!
//! Orders arrive on standard input and answers leave on standard output, in lines of JSON, until
//! the input ends. An answer is a [`Result`]: the value that the order's documentation names, or
//! the reason of the failure. A measurement is a [`Job`], and every job yields [`Samples`].
//!
//! * [`sampler`], [`pattern`]: timing, and verifiable bytes.
//! * [`network`], [`veth`]: sockets of the kernel and of userspace stacks. [`one_sided`], [`window`]:
//!   memory of a peer. [`messages`], [`libfabric`]: packets. [`micro`]: micro-benchmarks.
//!   [`programs`]: parallel programs, and [`ranks`] that run them. [`memcpy`]: the processor alone.
//! * [`stores`]: clients of key-value stores, and their work: [`store`], [`borrow`], [`crowd`],
//!   [`mixed`] ([`mix`]), [`traces`] and [`files`]; [`processor`] binds threads.
//! * [`congestor`]: load beside a measurement.
//! * [`member`]: members of changing domains, with [`hammer`], [`hostile`], [`stamps`] and
//!   [`traffic`].

#![expect(
    clippy::unit_arg,
    reason = "an order without a result is answered with ()"
)]

use std::fs;
use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toroid_client::member::{Domain, Member};
use toroid_ethernet::stack::Stack;
use toroid_netlink::Netlink;

use self::borrow::Reading;
use self::congestor::{Congestion, Congestor};
use self::memcpy::Source;
use self::messages::Session;
use self::messages::one_way::OneWay;
use self::micro::Carrier;
use self::micro::exchange::Count;
use self::micro::host::LiveHost;
use self::micro::script::Script;
use self::mix::Mix;
use self::network::flood::{self, Flood};
use self::network::socket::Sockets;
use self::network::{Transport, client, server};
use self::one_sided::{Direction, ExportedKeys, Exports, Peer};
use self::processor::Bound;
use self::ranks::{Join, LiveRank, Newcomer};
use self::sampler::Pace;
use self::store::{KeySet, Keys, StoreOp};
use self::stores::{Stores, Target};
use self::traces::Trace;
use crate::causes::with_causes;
use crate::plan::Path;
use crate::samples::Samples;
use crate::worker::programs::task::Task;

pub(crate) mod borrow;
pub(crate) mod congestor;
pub(crate) mod crowd;
pub(crate) mod files;
pub(crate) mod hammer;
pub(crate) mod hostile;
pub(crate) mod libfabric;
pub(crate) mod member;
pub(crate) mod memcpy;
pub(crate) mod messages;
pub(crate) mod micro;
pub(crate) mod mix;
pub(crate) mod mixed;
pub(crate) mod network;
pub(crate) mod one_sided;
pub(crate) mod pattern;
pub(crate) mod processor;
pub(crate) mod programs;
pub(crate) mod ranks;
pub(crate) mod sampler;
pub(crate) mod stamps;
pub(crate) mod store;
pub(crate) mod stores;
pub(crate) mod traces;
pub(crate) mod traffic;
pub(crate) mod veth;
pub(crate) mod window;

/// Number of messages that libfabric's program verifies.
const CHECKED: u32 = 100;

/// Position of "bytes sent" in a line of `/proc/net/dev`, after eight counters of reception.
const BYTES_SENT: usize = 8;

/// An order to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Open a userspace stack with the node's addresses in a domain.
    UseStack(String),
    /// Serve network sessions. Answer: the port.
    Serve,
    /// Lend the network namespace to the first process that connects to a unix socket.
    LendNamespace(PathBuf),
    /// Create a veth pair to the namespace that is lent at a unix socket.
    CreateVeth(PathBuf),
    /// Configure this end of the pair.
    ConfigureVeth(Ipv4Addr),
    /// Answer: the version of `tc`.
    TcVersion,
    /// Limit what this end of the pair sends, in bits per second, or no longer.
    LimitVeth(Option<u64>),
    /// Answer: the MTU in bytes of an interface.
    Mtu(String),
    /// Answer: the name of TCP's congestion control.
    CongestionControl,
    /// Answer: the number of bytes sent by an interface.
    BytesSent(String),
    /// Send datagrams at a given rate. Answer: [`Flow`](flood::Flow).
    Flood(Flood),

    /// Export in a domain a region to read and one to write, of this length in bytes, and a word.
    /// Answer: [`ExportedKeys`].
    Export(String, usize),
    /// Open a peer's exported memory.
    UseMemory(String, ExportedKeys),
    /// Verify the first `count` writes of a peer, of `bytes` bytes in version `salt`. Answer: the
    /// number of missing or wrong writes.
    CheckWrites { bytes: usize, count: u64, salt: u64 },
    /// Answer: the value of the exported word.
    Word,
    /// Answer: the expected value of the peer's word after all additions.
    Added,
    /// Answer messages of a peer.
    ServeMessages(String),
    /// Connect in a domain to a peer that answers messages, given by place.
    UseMessages(String, String),
    /// Follow scripts of micro-benchmarks in a domain. Answer: the port.
    ServeMicro(Carrier, String),
    /// Connect in a domain to a peer that follows scripts, given by place and address.
    UseMicro(Carrier, String, String, SocketAddrV4),
    /// Listen in a domain to the other ranks of programs, as the rank of this number. Answer: the
    /// port.
    ListenToRanks(Carrier, String, usize),
    /// Connect with all other ranks, which carry out the same order.
    JoinRanks(Join),
    /// Run a program with all other ranks, which carry out the same order. Answer:
    /// [`Usage`](crate::worker::programs::rank::Usage).
    RunProgram(Task),
    /// Answer: the version of libfabric.
    LibfabricVersion,
    /// Let libfabric's program verify some messages of this length in bytes. Answer: the number of
    /// wrong messages.
    CheckLibfabric(usize),

    /// Connect to a store, by the path of later orders.
    Connect(Path, Target),
    /// Store version 0 of every key, by memcached's protocol.
    Fill(Path, Keys),
    /// Remove every key, by memcached's protocol.
    Empty(Path, Keys),
    /// Get every key and verify the value, which also fills a location cache. Answer: the number of
    /// missing or wrong values.
    Verify(Path, Keys),
    /// Answer: the version of memcached.
    MemcachedVersion(Path),
    /// Carry out a mix of gets and sets for some time; sets write this version. Answer: [`mixed::Mixed`].
    Mix(Path, Mix, u64, Duration),
    /// Open the files of a directory as input, with limits of bytes and time.
    OpenFiles(PathBuf, u64, Duration),
    /// Store and read back some blocks over each path. Answer: [`files::FileSamples`].
    NextFiles,

    /// Congest links until [`Order::EndCongestion`]. Answered when all traffic has begun.
    Congest(Congestion),
    /// Answer: [`Samples`] of the traffic since [`Order::Congest`].
    EndCongestion,

    /// Do a job for one round; writes carry version `salt`. Answer: [`Samples`].
    Measure {
        job: Job,
        salt: u64,
        pace: Pace,
        /// Processor to bind this thread to.
        processor: Option<usize>,
    },
    /// An order to a member of a changing domain.
    Member(member::Order),
}

/// Measured work. Lengths are in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Job {
    /// Round trips with a server, by messages of this length; a sample is half a round trip.
    RoundTrips(SocketAddrV4, Transport, usize),
    /// Messages of this length to a server.
    Stream(SocketAddrV4, Transport, usize),
    /// This number of TCP streams side by side, of messages of this length.
    Streams(SocketAddrV4, usize, usize),
    /// One-sided operations on the peer's memory: direction, depth, length.
    OneSided(Direction, u32, usize),
    /// Reads of this length, with this many under way.
    Window(usize, u32),
    /// Messages with the peer.
    Messages(Session),
    /// A script of micro-benchmarks with the peer.
    Micro(Script, Count),
    /// Packets of this length from the peer; a sample is their one-way time.
    OneWay(usize),
    /// Messages between two processes of libfabric's program: length, number.
    Libfabric(usize, u32),
    /// Single operations of a store.
    Store(Path, StoreOp, KeySet),
    /// Operations of a store under a load of several requests.
    Crowd(Path, StoreOp, KeySet, crowd::Load),
    /// Reading of values in place, or of copies.
    Borrow(Reading, KeySet),
    /// `memcpy`: length, bytes of the source, and whether each location is looked up.
    Copy(usize, u64, bool),
    /// Gets of a trace, by memcached's protocol. The figure `hits` counts gets that found a value.
    Trace(Path, Trace, Range<u64>),
}

impl Job {
    /// The order to measure this job.
    pub(crate) fn order(self, salt: u64, pace: Pace) -> Order {
        Order::Measure {
            job: self,
            salt,
            pace,
            processor: None,
        }
    }
}

/// Takes orders until the input ends.
pub(crate) fn run() -> io::Result<()> {
    let mut worker = Worker::default();
    serve(io::stdin().lock(), io::stdout(), |order| {
        worker.obey(order).map_err(explained)
    })
}

/// Lets `obey` carry out orders of any kind until the input ends.
///
/// # Errors
/// The system's, when an answer cannot be written.
pub fn serve<O: DeserializeOwned>(
    orders: impl BufRead,
    mut answers: impl Write,
    mut obey: impl FnMut(O) -> std::result::Result<Value, String>,
) -> io::Result<()> {
    for line in orders.lines() {
        let answer = serde_json::from_str(&line?)
            .map_err(|error| error.to_string())
            .and_then(&mut obey);
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        answers.write_all(&line)?;
        answers.flush()?;
    }
    Ok(())
}

/// The error and its causes, with an explanation of the kernel's `WouldBlock`, a socket's time-out.
fn explained(error: anyhow::Error) -> String {
    let error = match error.downcast_ref::<io::Error>() {
        Some(system) if system.kind() == io::ErrorKind::WouldBlock => {
            let seconds = client::PATIENCE.as_secs();
            error.context(format!(
                "nothing came and nothing could be sent for {seconds} s"
            ))
        }
        _ => error,
    };
    with_causes(&error)
}

/// State of a worker, set up by orders.
#[derive(Default)]
struct Worker {
    node: Option<Member>,
    stacks: Vec<Stack>,
    exports: Option<Exports>,
    memory: Option<Peer>,
    messages: Option<messages::Client>,
    micro: Option<LiveHost>,
    newcomer: Option<Newcomer>,
    rank: Option<LiveRank>,
    stores: Stores,
    /// Source of copies and its length in bytes.
    source: Option<(u64, Source)>,
    member: member::Process,
    congestor: Option<Congestor>,
}

impl Worker {
    fn obey(&mut self, order: Order) -> Result<Value> {
        match order {
            Order::UseStack(domain) => {
                let domain = self.domain(&domain)?;
                answer(self.stacks.push(Stack::open(&domain)?))
            }
            Order::Serve => answer(self.serve()?),
            Order::LendNamespace(socket) => answer(veth::lend(&socket)?),
            Order::CreateVeth(socket) => answer(veth::create(&socket)?),
            Order::ConfigureVeth(address) => answer(veth::configure(address)?),
            Order::TcVersion => answer(veth::tc_version()?),
            Order::LimitVeth(bits_per_s) => answer(veth::limit(bits_per_s)?),
            Order::Mtu(interface) => answer(Netlink::open()?.link(&interface)?.mtu),
            Order::CongestionControl => {
                let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")?;
                answer(name.trim_end())
            }
            Order::BytesSent(interface) => answer(bytes_sent(&interface)?),
            Order::Flood(flood) => {
                let sockets = flood.servers.first().map(|server| self.sockets(*server));
                answer(flood::flood(&sockets.unwrap_or(Sockets::Kernel), &flood)?)
            }

            Order::Export(domain, len) => {
                let domain = self.domain(&domain)?;
                let exports = self.exports.insert(Exports::new(&domain, len)?);
                answer(exports.keys().context("exported memory has no key")?)
            }
            Order::UseMemory(domain, keys) => {
                let domain = self.domain(&domain)?;
                answer(self.memory = Some(Peer::open(&domain, &keys)?))
            }
            Order::CheckWrites { bytes, count, salt } => {
                answer(self.exports()?.wrong_writes(bytes, count, salt)?)
            }
            Order::Word => answer(self.exports()?.word()?),
            Order::Added => answer(self.memory()?.added),
            Order::ServeMessages(domain) => {
                let domain = self.domain(&domain)?;
                answer(serve_messages(domain)?)
            }
            Order::UseMessages(domain, place) => {
                let domain = self.domain(&domain)?;
                let client = messages::Client::connect(&domain, place.parse()?)?;
                answer(self.messages = Some(client))
            }
            Order::ServeMicro(carrier, domain) => {
                let domain = self.domain(&domain)?;
                answer(micro::serve(carrier, &domain)?)
            }
            Order::UseMicro(carrier, domain, place, at) => {
                let domain = self.domain(&domain)?;
                let host = micro::connect(carrier, &domain, place.parse()?, at)?;
                answer(self.micro = Some(host))
            }
            Order::ListenToRanks(carrier, domain, rank) => {
                let domain = self.domain(&domain)?;
                let (newcomer, port) = Newcomer::listen(carrier, &domain, rank)?;
                self.newcomer = Some(newcomer);
                answer(port)
            }
            Order::JoinRanks(join) => {
                let newcomer = self.newcomer.take().context("this rank does not listen")?;
                answer(self.rank = Some(newcomer.join(join)?))
            }
            Order::RunProgram(task) => {
                // Connections stay open after an error: otherwise another rank could answer first,
                // with the consequence instead of the cause. The end of the run ends all ranks.
                let rank = self.rank.as_mut().context("no other ranks")?;
                answer(rank.run(&task)?)
            }
            Order::LibfabricVersion => answer(libfabric::version()?),
            Order::CheckLibfabric(bytes) => answer(libfabric::wrong_messages(bytes, CHECKED)?),

            Order::Connect(path, Target::Rdma { domain, place }) => {
                let domain = self.domain(&domain)?;
                answer(self.stores.connect_rdma(path, &domain, place.parse()?)?)
            }
            Order::Connect(path, target) => {
                let sockets = match &target {
                    Target::Tcp(server) => self.sockets(*server),
                    _ => Sockets::Kernel,
                };
                answer(self.stores.connect(path, target, sockets)?)
            }
            Order::Fill(path, keys) => answer(self.stores.fill(path, keys)?),
            Order::Empty(path, keys) => answer(self.stores.empty(path, keys)?),
            Order::Verify(path, keys) => answer(self.stores.verify(path, keys)?),
            Order::MemcachedVersion(path) => answer(self.stores.memcached(path)?.version()?),
            Order::Mix(path, mix, salt, time) => answer(self.stores.mix(path, mix, salt, time)?),
            Order::OpenFiles(dir, limit, time) => answer(self.stores.open_files(dir, limit, time)?),
            Order::NextFiles => answer(self.stores.next_files()?),

            Order::Congest(congestion) => answer(self.congest(congestion)?),
            Order::EndCongestion => {
                let congestor = self.congestor.take();
                answer(congestor.context("nothing congests links")?.end()?)
            }

            Order::Measure {
                job,
                salt,
                pace,
                processor,
            } => {
                let _bound = processor.map(|to| Bound::new(None, to)).transpose()?;
                answer(self.measure(job, salt, pace)?)
            }
            Order::Member(order) => self.member.obey(order),
        }
    }

    fn measure(&mut self, job: Job, salt: u64, pace: Pace) -> Result<Samples> {
        match job {
            Job::RoundTrips(server, transport, bytes) => {
                client::round_trips(&self.sockets(server), server, transport, bytes, pace)
            }
            Job::Stream(server, transport, bytes) => {
                client::stream(&self.sockets(server), server, transport, bytes, pace.time)
            }
            Job::Streams(server, bytes, count) => {
                client::streams(&self.sockets(server), server, bytes, pace.time, count)
            }
            Job::OneSided(direction, depth, bytes) => {
                self.memory()?.measure(direction, depth, bytes, salt, pace)
            }
            Job::Window(bytes, depth) => {
                let peer = self.memory()?;
                window::measure(peer, bytes, depth, pace.time)
            }
            Job::Messages(session) => self.messages()?.measure(session),
            Job::OneWay(bytes) => {
                let time = pace.time;
                self.messages()?.one_way(OneWay { bytes, time })
            }
            Job::Micro(script, count) => {
                let host = self
                    .micro
                    .as_mut()
                    .context("no peer for micro-benchmarks")?;
                let _bound = Bound::new(None, processor::first()?)?;
                host.measure(&script, count)
            }
            Job::Libfabric(bytes, count) => libfabric::pingpong(bytes, count),
            Job::Copy(bytes, total, found) => {
                let source = self.source.take().filter(|(of, _)| *of == total);
                let source = source.unwrap_or_else(|| (total, Source::new(total as usize)));
                let (_, source) = self.source.insert(source);
                source.copy(bytes, found, pace)
            }
            job => self.stores.measure(job, salt, pace),
        }
    }

    fn congest(&mut self, congestion: Congestion) -> Result<()> {
        let domain = self.domain(&congestion.domain)?;
        self.congestor = Some(Congestor::start(&domain, congestion.flows)?);
        Ok(())
    }

    fn domain(&mut self, name: &str) -> Result<Domain> {
        let node = match self.node.take() {
            Some(node) => node,
            None => Member::attach()?,
        };
        Ok(self.node.insert(node).domain(name)?)
    }

    fn exports(&self) -> Result<&Exports> {
        self.exports.as_ref().context("no exported memory")
    }

    fn memory(&mut self) -> Result<&mut Peer> {
        self.memory.as_mut().context("no memory of a peer")
    }

    fn messages(&mut self) -> Result<&mut messages::Client> {
        self.messages.as_mut().context("no peer for messages")
    }

    /// Serves network sessions over the kernel and all userspace stacks at one port.
    fn serve(&self) -> io::Result<u16> {
        let port = server::start(Ipv4Addr::UNSPECIFIED)?;
        for stack in &self.stacks {
            let at = SocketAddrV4::new(stack.ipv4(), port);
            server::start_with(&Sockets::Stack(stack.clone()), at)?;
        }
        Ok(port)
    }

    /// The stack on the link of `to`, otherwise the kernel.
    fn sockets(&self, to: SocketAddrV4) -> Sockets {
        let mut stacks = self.stacks.iter();
        let stack = stacks.find(|stack| stack.is_on_link(IpAddr::V4(*to.ip())));
        stack.map_or(Sockets::Kernel, |stack| Sockets::Stack(stack.clone()))
    }
}

fn answer(value: impl Serialize) -> Result<Value> {
    Ok(serde_json::to_value(value)?)
}

/// Bytes sent by an interface of this node.
fn bytes_sent(interface: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/self/net/dev")?;
    let of_line = |line: &str| -> Option<u64> {
        let counters = line
            .trim_start()
            .strip_prefix(interface)?
            .strip_prefix(':')?;
        counters.split_whitespace().nth(BYTES_SENT)?.parse().ok()
    };
    text.lines().find_map(of_line).context("no such interface")
}

/// Starts a thread that answers messages. The measuring peer notices its end.
fn serve_messages(domain: Domain) -> Result<()> {
    let listener = messages::listen(&domain)?;
    let serve = move || {
        if let Err(error) = messages::serve(&domain, &listener) {
            eprintln!("toroid-bench: {error}");
        }
    };
    thread::Builder::new()
        .name("messages".into())
        .spawn(serve)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// Answer to an order that fails with this error of the system, while a stream is sent.
    fn answer_after(kind: io::ErrorKind) -> String {
        let mut answers = Vec::new();
        let obey = |to: SocketAddr| {
            let sent: io::Result<()> = Err(kind.into());
            let sent = sent.with_context(|| format!("cannot send a stream to {to}"));
            sent.map(|()| Value::Null).map_err(explained)
        };
        serve(&b"\"10.1.0.2:7471\"\n"[..], &mut answers, obey).unwrap();
        let answer: Value = serde_json::from_slice(&answers).unwrap();
        answer["Err"].as_str().unwrap().into()
    }

    #[test]
    fn answers_have_the_causes_of_a_failure() {
        assert_eq!(
            answer_after(io::ErrorKind::ConnectionReset),
            "cannot send a stream to 10.1.0.2:7471: connection reset"
        );
    }

    #[test]
    fn a_time_out_is_explained_in_its_context() {
        let answer = answer_after(io::ErrorKind::WouldBlock);
        let seconds = client::PATIENCE.as_secs();
        let explanation = format!("nothing came and nothing could be sent for {seconds} s: ");
        let context = answer.strip_prefix(&explanation).expect("it is explained");
        assert!(
            context.starts_with("cannot send a stream to 10.1.0.2:7471: "),
            "{answer}"
        );
    }
}
