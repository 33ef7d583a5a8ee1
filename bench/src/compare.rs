//! The command `compare`: both paths between two nodes, and the baselines, in one run.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use toroid_fabric::Torus;
use toroid_model::refusal::Refusal;

use crate::cluster::{Cluster, ClusterError, Process};
use crate::files::{BLOCK, Tally};
use crate::machine::Machine;
use crate::memory;
use crate::one_sided::Direction;
use crate::plan::{
    self, COLD_BYTES, Cost, Effort, HOT_BYTES, PIPELINE, Path, TRIAL_BYTES, Test, VALUES,
};
use crate::progress::Progress;
use crate::report::{Config, Report};
use crate::roles;
use crate::rows::{Mtus, Row};
use crate::sampler::Pace;
use crate::stats::{Series, Slice};
use crate::store::{KeySet, StoreOp};
use crate::veth;
use crate::worker::{FileSlices, Order};

const TORUS: [u16; 3] = [2, 1, 1];
const DOMAIN: &str = "bench";
const SERVER: &str = "0,0,0";
const CLIENT: &str = "1,0,0";

/// Headers, keys, and rounding up take a third of the values' bytes at most; memory that is not
/// needed would only be touched for the first time, which takes long.
const STORE_HALVES: u64 = 3;

/// A cold working set is there twice, in the store and for `memcpy`, and more must be left.
const MEMORY_SHARE: u64 = 4;

/// What to compare, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Real input: the files under this directory.
    pub dir: PathBuf,
    /// How much time it may take.
    pub effort: Effort,
}

/// Measures everything.
///
/// # Errors
/// [`ClusterError`]; nothing is left behind.
pub fn compare(options: &Options, progress: &mut Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let [x, y, z] = TORUS;
    let torus = Torus::new(x, y, z)?;
    progress.say("starting two nodes");
    let mut run = Run::prepare(Cluster::start(torus, Some(roles::DRIVER))?, options)?;
    run.plan_progress(progress);
    run.hot(progress)?;
    let left = options.effort.limit().saturating_sub(start.elapsed());
    let files = run.files(options, plan::file_time(left), progress)?;
    let cold_sets = run.all_cold(start, progress)?;
    let rootless = run.cluster.rootless()?;
    let no_taps = run.no_taps.take();
    progress.say("cleaning up");
    let (series, mtus) = (std::mem::take(&mut run.series), run.mtus);
    drop(run);

    let mut rows: Vec<Row> = series
        .iter()
        .map(|(test, series)| Row::of_test(test, series, mtus))
        .collect();
    rows.extend(files.rows(mtus));
    Ok(Report {
        config: Config {
            mtu: mtus.ethernet,
            ethernet: if no_taps.is_some() { "stack" } else { "tap" },
            no_taps,
            rootless,
            cold_bytes: cold_sets.iter().map(KeySet::total).min().unwrap_or(0),
            cold_sets,
            files: files.tally,
            elapsed_s: start.elapsed().as_secs_f64(),
            ..config(options)
        },
        rows,
    })
}

/// Two nodes with everything in place, and what was measured so far.
struct Run {
    // Processes end before the cluster.
    passive: Process,
    neighbour: Process,
    active: Process,
    store: Option<Process>,
    store_port: u16,
    cluster: Cluster,
    address: Ipv4Addr,
    /// Why Ethernet is between stacks: those of the store and of the active side.
    no_taps: Option<Refusal>,
    mtus: Mtus,
    effort: Effort,
    cold_bytes: u64,
    salt: u64,
    series: Vec<(Test, Series)>,
}

impl Run {
    fn prepare(mut cluster: Cluster, options: &Options) -> Result<Self, ClusterError> {
        let domain = cluster.create_domain(DOMAIN)?;
        let mut members = domain.members.iter();
        let server = members.find(|member| member.node.to_string() == SERVER);
        let server = server.ok_or(ClusterError::NoServer)?;
        let worker = |cluster: &mut Cluster, node| cluster.spawn(node, &[roles::WORKER]);
        let mut run = Run {
            passive: worker(&mut cluster, SERVER)?,
            neighbour: worker(&mut cluster, CLIENT)?,
            active: cluster.spawn_in(&options.dir, CLIENT, &[roles::WORKER])?,
            store: None,
            store_port: 0,
            no_taps: cluster.no_taps()?,
            cluster,
            address: server.ipv4,
            mtus: Mtus {
                ethernet: domain.mtu,
                ..Mtus::default()
            },
            effort: options.effort,
            cold_bytes: memory_for_cold_set(),
            salt: 0,
            series: Vec::new(),
        };
        run.connect_interfaces()?;
        run.connect_memory()?;
        run.start_store()?;
        Ok(run)
    }

    /// The veth pair, and network sessions over every path.
    fn connect_interfaces(&mut self) -> Result<(), ClusterError> {
        self.create_veth()?;
        let configure = |address| Order::ConfigureVeth { address };
        let () = self.passive(&configure(veth::LENDER))?;
        let () = self.active(&configure(veth::CREATOR))?;
        let interface = Some("lo".into());
        self.mtus.loopback = self.active(&Order::Mtu { interface })?;
        self.mtus.veth = self.active(&Order::Mtu { interface: None })?;

        let remote = self.passive(&Order::Serve)?;
        let local = self.cluster.ask(&mut self.neighbour, &Order::Serve)?;
        let mut by_ethernet = remote;
        if self.no_taps.is_some() {
            let domain = DOMAIN.into();
            let () = self.active(&Order::UseStack { domain })?;
            by_ethernet = roles::SESSIONS;
        }
        let sessions = [
            (Path::Ethernet, self.address, by_ethernet),
            (Path::Veth, veth::LENDER, remote),
            (Path::Loopback, Ipv4Addr::LOCALHOST, local),
        ];
        let sessions = sessions.map(|(path, ip, port)| (path, SocketAddrV4::new(ip, port)));
        self.active(&Order::UseSessions(sessions.into()))
    }

    fn create_veth(&mut self) -> Result<(), ClusterError> {
        if self.cluster.private_users()? {
            let networks = [self.cluster.network(CLIENT)?, self.cluster.network(SERVER)?];
            return veth::create_between(networks.each_ref()).map_err(|error| {
                ClusterError::Failed {
                    process: "toroid-bench".into(),
                    message: error.to_string(),
                }
            });
        }
        let socket = || self.cluster.path("namespace.sock");
        let (lend, create) = (
            Order::LendNamespace { socket: socket() },
            Order::CreateVeth { socket: socket() },
        );
        let () = self.passive(&lend)?;
        self.active(&create)
    }

    /// Memory of the server's node to read and write.
    fn connect_memory(&mut self) -> Result<(), ClusterError> {
        let domain = || DOMAIN.to_owned();
        let keys = self.passive(&Order::Export { domain: domain() })?;
        self.active(&Order::UseMemory {
            domain: domain(),
            keys,
        })
    }

    fn passive<A: DeserializeOwned>(&mut self, order: &Order) -> Result<A, ClusterError> {
        self.cluster.ask(&mut self.passive, order)
    }

    fn active<A: DeserializeOwned>(&mut self, order: &Order) -> Result<A, ClusterError> {
        self.cluster.ask(&mut self.active, order)
    }

    fn plan_progress(&self, progress: &mut Progress) {
        let cold = VALUES
            .iter()
            .flat_map(|&bytes| plan::turns(&plan::cold(bytes)));
        let turns = plan::turns(&plan::hot()).len() + cold.count();
        progress.expect(turns as u32 * self.effort.rounds());
    }

    fn start_store(&mut self) -> Result<(), ClusterError> {
        let config = roles::StoreConfig {
            item: toroid_kv::server::Limits::DEFAULT.item,
            domain: DOMAIN.into(),
            memory: self.cold_bytes / 2 * STORE_HALVES,
            stack: self.no_taps.is_some(),
        };
        let config = serde_json::to_string(&config).unwrap_or_default();
        let store = self.cluster.spawn(SERVER, &[roles::STORE, &config])?;
        let port = self.cluster.answer(&store)?;
        (self.store, self.store_port) = (Some(store), port);
        let server = |ip| SocketAddrV4::new(ip, port);
        self.active(&Order::UseStore {
            domain: DOMAIN.into(),
            place: SERVER.into(),
            servers: vec![
                (Path::Ethernet, server(self.address)),
                (Path::Veth, server(veth::LENDER)),
            ],
        })
    }

    fn hot(&mut self, progress: &mut Progress) -> Result<(), ClusterError> {
        let sets = VALUES.map(|bytes| KeySet::of_total(HOT_BYTES, bytes));
        for set in sets {
            self.fill(set, progress)?;
        }
        self.rounds(plan::hot(), HOT_BYTES, progress)?;
        // By now every path has written some of them.
        for set in sets {
            self.verify(Path::Ethernet, set)?;
            self.verify(Path::Rdma, set)?;
        }
        Ok(())
    }

    /// Measures every size of value with a cold working set, as large as the time allows.
    fn all_cold(
        &mut self,
        start: Instant,
        progress: &mut Progress,
    ) -> Result<Vec<KeySet>, ClusterError> {
        let mut sets = Vec::new();
        let mut cost = None;
        // Few large values are quicker to remove than many small ones, which come last.
        for (at, bytes) in VALUES.into_iter().rev().enumerate() {
            let expected = match cost {
                Some(cost) => cost,
                None => self.try_cold(bytes, progress)?,
            };
            let tests = plan::cold(bytes);
            let measuring = self.effort.all_rounds(&tests);
            let left = self.effort.limit().saturating_sub(start.elapsed());
            let share = (left / (VALUES.len() - at) as u32).saturating_sub(measuring);
            let total = plan::cold_bytes(self.cold_bytes, share, expected);
            let (set, begin) = (KeySet::of_total(total, bytes), Instant::now());
            self.fill(set, progress)?;
            self.rounds(tests, total, progress)?;
            if at + 1 < VALUES.len() {
                self.make_room(set, progress)?;
            }
            let took = begin.elapsed().saturating_sub(measuring);
            cost = Some(Cost::after_larger_values(total, took));
            sets.push(set);
        }
        Ok(sets)
    }

    /// Fills a part of a cold working set to see how long it takes on this machine today.
    fn try_cold(&mut self, bytes: usize, progress: &Progress) -> Result<Cost, ClusterError> {
        let total = TRIAL_BYTES.min(self.cold_bytes);
        let begin = Instant::now();
        self.fill(KeySet::of_total(total, bytes), progress)?;
        Ok(Cost::after_trial(total, begin.elapsed()))
    }

    fn make_room(&mut self, set: KeySet, progress: &Progress) -> Result<(), ClusterError> {
        progress.say(&format!("removing {} values of {} B", set.keys, set.bytes));
        let server = self.local_store();
        self.passive(&Order::Empty { server, set })
    }

    /// Fills the store from its own node, and has the client read and so find every value.
    fn fill(&mut self, set: KeySet, progress: &Progress) -> Result<(), ClusterError> {
        let KeySet { keys, bytes } = set;
        progress.say(&format!("storing {keys} values of {bytes} B"));
        let server = self.local_store();
        let () = self.passive(&Order::Fill { server, set })?;
        progress.say(&format!("reading {keys} values of {bytes} B once"));
        self.verify(Path::Rdma, set)
    }

    fn verify(&mut self, path: Path, set: KeySet) -> Result<(), ClusterError> {
        match self.active(&Order::Verify { path, set })? {
            0_u64 => Ok(()),
            wrong => {
                let message = format!("{wrong} of {} values are missing or wrong", set.keys);
                Err(self.active.failed(message))
            }
        }
    }

    fn local_store(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.store_port)
    }

    /// Measures `tests` in turn, again and again.
    fn rounds(
        &mut self,
        tests: Vec<Test>,
        working_set: u64,
        progress: &mut Progress,
    ) -> Result<(), ClusterError> {
        let first = self.series.len();
        let turns = plan::turns(&tests);
        let series = tests.into_iter().map(|test| (test, Series::default()));
        self.series.extend(series);
        for _ in 0..self.effort.rounds() {
            for at in turns.iter().map(|turn| first + turn) {
                let (test, batch) = (self.series[at].0, self.series[at].1.batch());
                progress.step(&test.to_string());
                let slice = self.measure(test, working_set, batch)?;
                self.series[at].1.add(&slice);
            }
        }
        Ok(())
    }

    fn measure(
        &mut self,
        test: Test,
        working_set: u64,
        batch: Option<u32>,
    ) -> Result<Slice, ClusterError> {
        self.salt += 1;
        let order = Order::Measure {
            test,
            working_set,
            salt: self.salt,
            pace: Pace {
                time_us: self.effort.slice(&test).as_micros() as u64,
                batch,
            },
        };
        let mut slice: Slice = self.active(&order)?;
        if let Test::OneSided {
            direction: Direction::Write,
            bytes,
            ..
        } = test
        {
            let (count, salt) = (slice.ops, self.salt);
            let check = Order::CheckWrites { bytes, count, salt };
            slice.errors += self.passive::<u64>(&check)?;
        }
        Ok(slice)
    }

    fn files(
        &mut self,
        options: &Options,
        time: Duration,
        progress: &mut Progress,
    ) -> Result<Files, ClusterError> {
        let () = self.active(&Order::OpenFiles {
            dir: std::path::absolute(&options.dir).unwrap_or_else(|_| options.dir.clone()),
            limit: self.effort.file_bytes(),
            time_us: time.as_micros() as u64,
        })?;
        let mut files = Files::default();
        loop {
            progress.say(&format!("real input: {} blocks", files.tally.blocks));
            let FileSlices { slices, tally } = self.active(&Order::NextFiles)?;
            files.tally = tally;
            if slices.is_empty() {
                return Ok(files);
            }
            for (path, op, slice) in slices {
                files.add(path, op, slice);
            }
        }
    }
}

/// Real input, measured.
#[derive(Default)]
struct Files {
    tally: Tally,
    slices: Vec<((Path, StoreOp), Slice)>,
}

impl Files {
    /// Blocks differ, so they count together and not as rounds.
    fn add(&mut self, path: Path, op: StoreOp, next: Slice) {
        match self.slices.iter_mut().find(|(key, _)| *key == (path, op)) {
            Some((_, slice)) => slice.extend(&next),
            None => self.slices.push(((path, op), next)),
        }
    }

    fn rows(&self, mtus: Mtus) -> impl Iterator<Item = Row> {
        self.slices.iter().map(move |((path, op), slice)| {
            let mut series = Series::default();
            series.add(slice);
            Row::of_files(*path, *op, BLOCK, &series, mtus)
        })
    }
}

/// What is known before a run.
fn config(options: &Options) -> Config {
    Config {
        provider: "shm",
        ethernet: "tap",
        no_taps: None,
        torus: TORUS.map(|size| size.to_string()).join("x"),
        server: SERVER,
        client: CLIENT,
        mtu: 0,
        rootless: false,
        effort: options.effort,
        rounds: options.effort.rounds(),
        hot_bytes: HOT_BYTES,
        cold_bytes: COLD_BYTES,
        cold_sets: Vec::new(),
        pipeline: PIPELINE,
        dir: options.dir.clone(),
        files: Tally::default(),
        machine: Machine::this(),
        elapsed_s: 0.0,
    }
}

/// [`COLD_BYTES`], or less where that would not fit the memory that we may use.
fn memory_for_cold_set() -> u64 {
    // Whoever does not say how much there is has enough.
    let share = memory::available().map_or(COLD_BYTES, |bytes| (bytes / MEMORY_SHARE) >> 20 << 20);
    share.clamp(HOT_BYTES, COLD_BYTES)
}
