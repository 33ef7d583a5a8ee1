//! The command `compare`: both paths between two nodes, and the baselines, in one run.
//!
//! [`plan`] has the measurements, [`report`] and [`tables`] the rows and tables. [`concurrent`]
//! measures both paths at the same time, [`emulated`] on the machine of the [`paper`], and over
//! [`external`] networks.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use toroid_model::info::DomainInfo;
use toroid_model::link::FabricProfile;
use toroid_model::refusal::Refusal;

use self::plan::{Cost, Op, TRIAL_BYTES, Test, VALUES};
use crate::cluster::{Cluster, ClusterError, Process, member};
use crate::memory;
use crate::outside::Outside;
use crate::plan::{COLD_BYTES, Effort, HOT_BYTES, Path};
use crate::progress::Progress;
use crate::report::Report;
use crate::roles::{self, StoreConfig};
use crate::runner::Runner;
use crate::samples::{Samples, entry};
use crate::worker::files::{FileSamples, Tally};
use crate::worker::messages::Session;
use crate::worker::one_sided::{Direction, HOT};
use crate::worker::sampler::Pace;
use crate::worker::store::{KeySet, Keys, StoreOp};
use crate::worker::stores::Target;
use crate::worker::{Job, Order, veth};

pub mod concurrent;
pub mod emulated;
pub mod external;
pub mod figures;
pub mod paper;
pub mod plan;
pub mod report;
pub mod tables;

const TORUS: &str = "2x1x1";
const DOMAIN: &str = "bench";
const SERVER: &str = "0,0,0";
const CLIENT: &str = "1,0,0";

/// Memory of the store in halves of the values' bytes: headers, keys and rounding take at most a
/// third. More memory would cost time for its first touch.
const STORE_HALVES: u64 = 3;

/// Divisor of available memory: a cold working set exists twice, in the store and for `memcpy`, and
/// the machine keeps a reserve.
const MEMORY_SHARE: u64 = 4;

/// Time of a turn on an emulated torus over that on the machine itself: a turn needs some thousand
/// datagrams.
const EMULATED: u32 = 5;

/// Round trips of messages in a sample, and samples in a turn. In most samples both sides keep their
/// processors throughout.
const ROUND_TRIPS: u32 = 50;
const SAMPLES: u32 = 20;

/// The input and the time of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the real input.
    pub dir: PathBuf,
    pub effort: Effort,
}

/// Measures everything; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    progress.say("starting two nodes");
    let mut bed = Bed::prepare(&options.dir, options.effort, Setup::default())?;
    let mut runner = Runner::new(progress);
    bed.plan_progress(progress);
    bed.hot(&mut runner)?;
    let left = options.effort.limit().saturating_sub(start.elapsed());
    let files = bed.files(options, plan::file_time(left), progress)?;
    let cold_sets = bed.all_cold(start, &mut runner)?;
    let rootless = bed.cluster.control()?.status()?.rootless;
    let (no_taps, mtus) = (bed.no_taps.take(), std::mem::take(&mut bed.mtus));
    progress.say("cleaning up");
    drop(bed);
    let run = report::Run {
        start,
        dir: options.dir.clone(),
        effort: options.effort,
        no_taps,
        rootless,
        mtus,
        cold_sets,
        files,
    };
    Ok(run.report(&runner.finish()))
}

/// Measured real input.
#[derive(Default)]
pub struct Files {
    pub tally: Tally,
    pub samples: Vec<((Path, StoreOp), Samples)>,
}

impl Files {
    /// Adds samples. Chunks of blocks differ and are no rounds, so all count together.
    fn add(&mut self, path: Path, op: StoreOp, next: Samples) {
        entry(&mut self.samples, (path, op)).extend(&next);
    }
}

/// The surroundings of the two nodes.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Costs of an emulated torus.
    pub fabric: Option<FabricProfile>,
    /// Whether there is a host outside.
    pub external: bool,
}

impl Setup {
    /// Whether the paper has figures for it.
    pub fn is_beside_paper(&self) -> bool {
        self.external || self.fabric.is_some()
    }

    /// The shape of the torus.
    fn torus(&self) -> &'static str {
        if self.external {
            external::TORUS
        } else {
            TORUS
        }
    }
}

/// Two nodes with all paths, workers and the store.
struct Bed {
    // Processes end before the cluster.
    /// At the host outside.
    outside: Option<Process>,
    passive: Process,
    neighbour: Process,
    active: Process,
    store: Option<Process>,
    cluster: Cluster,
    address: Ipv4Addr,
    /// Addresses of session servers by path.
    sessions: HashMap<Path, SocketAddrV4>,
    /// The reason if Ethernet is between the userspace stacks of the store and of the active side.
    no_taps: Option<Refusal>,
    /// MTUs of the interfaces in bytes.
    mtus: HashMap<Path, u32>,
    effort: Effort,
    /// Time of a turn over that on this machine itself.
    slowness: u32,
    cold_bytes: u64,
    salt: u64,
}

impl Bed {
    /// Starts the nodes.
    fn prepare(dir: &std::path::Path, effort: Effort, setup: Setup) -> Result<Self, ClusterError> {
        let slowness = if setup.fabric.is_some() { EMULATED } else { 1 };
        // The agent starts in the network that this thread is in.
        let outside = setup.external.then(Outside::create).transpose()?;
        let (mut cluster, domain, address) = start_pair(setup)?;
        let mut bed = Bed {
            outside: None,
            passive: cluster.worker(SERVER)?,
            neighbour: cluster.worker(CLIENT)?,
            active: cluster.spawn_in(dir, CLIENT, &[roles::WORKER])?,
            store: None,
            sessions: HashMap::new(),
            no_taps: cluster.no_taps()?,
            cluster,
            address,
            mtus: HashMap::from([(Path::Ethernet, domain.mtu)]),
            effort,
            slowness,
            cold_bytes: memory_for_cold_set(),
            salt: 0,
        };
        bed.connect_interfaces()?;
        if let Some(outside) = outside {
            bed.connect_outside(&outside, &domain)?;
        }
        bed.cluster
            .connect_memory(DOMAIN, HOT, &mut bed.passive, &mut bed.active)?;
        bed.start_store()?;
        Ok(bed)
    }

    /// Creates the veth pair, and serves network sessions over every path.
    fn connect_interfaces(&mut self) -> Result<(), ClusterError> {
        let ends = [(SERVER, &mut self.passive), (CLIENT, &mut self.active)];
        crate::veth::connect(&mut self.cluster, ends)?;
        for (path, interface) in [(Path::Loopback, "lo"), (Path::Veth, veth::NAME)] {
            let mtu = self.active(&Order::Mtu(interface.into()))?;
            self.mtus.insert(path, mtu);
        }

        let remote = self.passive(&Order::Serve)?;
        let local = self.cluster.ask(&mut self.neighbour, &Order::Serve)?;
        let mut by_ethernet = remote;
        if self.no_taps.is_some() {
            self.active::<()>(&Order::UseStack(DOMAIN.into()))?;
            by_ethernet = roles::SESSIONS;
        }
        let sessions = [
            (Path::Ethernet, self.address, by_ethernet),
            (Path::Veth, veth::LENDER, remote),
            (Path::Loopback, Ipv4Addr::LOCALHOST, local),
        ];
        self.sessions = sessions
            .map(|(path, ip, port)| (path, SocketAddrV4::new(ip, port)))
            .into();
        Ok(())
    }

    /// Connects a host outside, and serves network sessions there and for it.
    fn connect_outside(
        &mut self,
        outside: &Outside,
        domain: &DomainInfo,
    ) -> Result<(), ClusterError> {
        let host = external::connect(&mut self.cluster, outside, domain)?;
        let port = self.passive(&Order::Serve)?;
        let bridge = (Path::Bridge, SocketAddrV4::new(host.node, port));
        for (path, server) in [(Path::Nat, host.server), bridge] {
            self.sessions.insert(path, server);
            self.mtus.insert(path, domain.mtu);
        }
        self.outside = Some(host.process);
        Ok(())
    }

    fn passive<A: DeserializeOwned>(&mut self, order: &Order) -> Result<A, ClusterError> {
        self.cluster.ask(&mut self.passive, order)
    }

    fn active<A: DeserializeOwned>(&mut self, order: &Order) -> Result<A, ClusterError> {
        self.cluster.ask(&mut self.active, order)
    }

    /// Connects a channel for messages.
    fn connect_messages(&mut self) -> Result<(), ClusterError> {
        self.passive::<()>(&Order::ServeMessages(DOMAIN.into()))?;
        self.active(&Order::UseMessages(DOMAIN.into(), SERVER.into()))
    }

    fn plan_progress(&self, progress: &Progress) {
        let cold = VALUES
            .iter()
            .flat_map(|&bytes| plan::turns(&plan::cold(bytes)));
        let turns = plan::turns(&plan::hot()).len() + cold.count();
        progress.expect(turns * self.effort.rounds() as usize);
    }

    fn start_store(&mut self) -> Result<(), ClusterError> {
        let config = StoreConfig {
            item: toroid_kv::server::Limits::DEFAULT.item,
            domain: DOMAIN.into(),
            memory: self.cold_bytes / 2 * STORE_HALVES,
            stack: self.no_taps.is_some(),
        };
        let (store, port) = self.cluster.start_store(SERVER, &config, "")?;
        self.store = Some(store);
        let server = |ip| Target::Tcp(SocketAddrV4::new(ip, port));
        self.passive::<()>(&Order::Connect(Path::Loopback, server(Ipv4Addr::LOCALHOST)))?;
        let by_memory = Target::Rdma {
            domain: DOMAIN.into(),
            place: SERVER.into(),
        };
        for (path, target) in [
            (Path::Ethernet, server(self.address)),
            (Path::Veth, server(veth::LENDER)),
            (Path::Rdma, by_memory),
        ] {
            self.active::<()>(&Order::Connect(path, target))?;
        }
        Ok(())
    }

    fn hot(&mut self, runner: &mut Runner<'_, Test>) -> Result<(), ClusterError> {
        let sets = VALUES.map(|bytes| KeySet::of_total(HOT_BYTES, bytes));
        for set in sets {
            self.fill(set, runner.progress)?;
        }
        self.rounds(plan::hot(), HOT_BYTES, runner)?;
        // Every path has written some values by now.
        for set in sets {
            self.verify(Path::Ethernet, set)?;
            self.verify(Path::Rdma, set)?;
        }
        Ok(())
    }

    /// Measures every value size with a cold working set as large as time allows.
    fn all_cold(
        &mut self,
        start: Instant,
        runner: &mut Runner<'_, Test>,
    ) -> Result<Vec<KeySet>, ClusterError> {
        let (mut sets, mut cost) = (Vec::new(), None);
        // Large values first: removing few values is quick, and the many of the last set stay.
        for (at, bytes) in VALUES.into_iter().rev().enumerate() {
            let expected = match cost {
                Some(cost) => cost,
                None => self.try_cold(bytes, runner.progress)?,
            };
            let tests = plan::cold(bytes);
            let measuring = self.effort.all_rounds(&tests);
            let left = self.effort.limit().saturating_sub(start.elapsed());
            let share = (left / (VALUES.len() - at) as u32).saturating_sub(measuring);
            let total = plan::cold_bytes(self.cold_bytes, share, expected);
            let (set, begin) = (KeySet::of_total(total, bytes), Instant::now());
            self.fill(set, runner.progress)?;
            self.rounds(tests, total, runner)?;
            if at + 1 < VALUES.len() {
                runner
                    .progress
                    .say(format!("removing {} values of {bytes} B", set.keys));
                self.passive::<()>(&Order::Empty(Path::Loopback, Keys::Set(set)))?;
            }
            let took = begin.elapsed().saturating_sub(measuring);
            cost = Some(Cost::after_larger_values(total, took));
            sets.push(set);
        }
        Ok(sets)
    }

    /// Fills a part of a cold working set to estimate the time of the whole on this machine.
    fn try_cold(&mut self, bytes: usize, progress: &Progress) -> Result<Cost, ClusterError> {
        let total = TRIAL_BYTES.min(self.cold_bytes);
        let begin = Instant::now();
        self.fill(KeySet::of_total(total, bytes), progress)?;
        Ok(Cost::after_trial(total, begin.elapsed()))
    }

    /// Fills the store from its own node, and reads every value to fill the client's location
    /// cache.
    fn fill(&mut self, set: KeySet, progress: &Progress) -> Result<(), ClusterError> {
        let KeySet { keys, bytes } = set;
        progress.say(format!("storing {keys} values of {bytes} B"));
        self.passive::<()>(&Order::Fill(Path::Loopback, Keys::Set(set)))?;
        progress.say(format!("reading {keys} values of {bytes} B once"));
        self.verify(Path::Rdma, set)
    }

    fn verify(&mut self, path: Path, set: KeySet) -> Result<(), ClusterError> {
        match self.active(&Order::Verify(path, Keys::Set(set)))? {
            0_u64 => Ok(()),
            wrong => {
                let message = format!("{wrong} of {} values are missing or wrong", set.keys);
                Err(self.active.failed(message))
            }
        }
    }

    /// Measures `tests` in turns for all rounds.
    fn rounds(
        &mut self,
        tests: Vec<Test>,
        working_set: u64,
        runner: &mut Runner<'_, Test>,
    ) -> Result<(), ClusterError> {
        let turns = plan::turns(&tests);
        for _ in 0..self.effort.rounds() {
            for at in &turns {
                runner.turn(&tests[*at], |test, batch| {
                    self.measure(test, working_set, batch)
                })?;
            }
        }
        Ok(())
    }

    fn measure(
        &mut self,
        test: &Test,
        working_set: u64,
        batch: Option<u32>,
    ) -> Result<Samples, ClusterError> {
        self.salt += 1;
        let (bytes, salt) = (test.bytes, self.salt);
        let pace = Pace {
            time: self.slowness * self.effort.slice(test),
            batch,
        };
        let job = self.job(test, working_set)?;
        let repeats = match job {
            Job::Messages(_) => SAMPLES,
            _ => 1,
        };
        let order = job.order(salt, pace);
        let client = match &mut self.outside {
            Some(outside) if test.path == Path::Bridge => outside,
            _ => &mut self.active,
        };
        let mut samples = Samples::default();
        for _ in 0..repeats {
            samples.extend(&self.cluster.ask(client, &order)?);
        }
        if test.op == Op::Write {
            let count = samples.ops;
            let check = Order::CheckWrites { bytes, count, salt };
            samples.errors += self.passive::<u64>(&check)?;
        }
        Ok(samples)
    }

    fn job(&self, test: &Test, working_set: u64) -> Result<Job, ClusterError> {
        let Test { path, bytes, .. } = *test;
        let session = || {
            let session = self.sessions.get(&path).copied();
            session.zip(test.proto).ok_or(ClusterError::NoServer)
        };
        let depth = test.depth.unwrap_or(1);
        let one_sided = |direction| Job::OneSided(direction, depth, bytes);
        let store = |op| Job::Store(path, op, KeySet::of_total(working_set, bytes));
        Ok(match test.op {
            Op::Pingpong if path == Path::Rdma => Job::Messages(Session {
                pingpong: true,
                bytes,
                count: ROUND_TRIPS,
                bound: true,
            }),
            Op::Pingpong => {
                let (server, transport) = session()?;
                Job::RoundTrips(server, transport, bytes)
            }
            Op::Stream => {
                let (server, transport) = session()?;
                Job::Stream(server, transport, bytes)
            }
            Op::Read => one_sided(Direction::Read),
            Op::Write => one_sided(Direction::Write),
            Op::Get => store(StoreOp::Get),
            Op::Set => store(StoreOp::Set),
            Op::Copy => Job::Copy(bytes, working_set, false),
        })
    }

    fn files(
        &mut self,
        options: &Options,
        time: Duration,
        progress: &Progress,
    ) -> Result<Files, ClusterError> {
        self.active::<()>(&Order::OpenFiles(
            std::path::absolute(&options.dir).unwrap_or_else(|_| options.dir.clone()),
            self.effort.file_bytes(),
            time,
        ))?;
        let mut files = Files::default();
        loop {
            progress.say(format!("real input: {} blocks", files.tally.blocks));
            let FileSamples { samples, tally } = self.active(&Order::NextFiles)?;
            files.tally = tally;
            if samples.is_empty() {
                return Ok(files);
            }
            for (path, op, samples) in samples {
                files.add(path, op, samples);
            }
        }
    }
}

/// Starts two nodes of one domain. Returns cluster, domain and the server node's address there.
fn start_pair(setup: Setup) -> Result<(Cluster, DomainInfo, Ipv4Addr), ClusterError> {
    let torus = setup.torus().parse()?;
    let mut cluster = Cluster::start_emulating(setup.fabric, torus, Some(roles::DRIVER))?;
    let domain = cluster.create_domain(DOMAIN)?;
    let address = member(&domain, SERVER)?.ipv4;
    Ok((cluster, domain, address))
}

/// Bytes of a cold working set: [`COLD_BYTES`], or less if available memory is short.
fn memory_for_cold_set() -> u64 {
    let share = memory::available().map_or(COLD_BYTES, |bytes| (bytes / MEMORY_SHARE) >> 20 << 20);
    share.clamp(HOT_BYTES, COLD_BYTES)
}
