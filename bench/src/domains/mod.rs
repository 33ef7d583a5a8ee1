//! The command `domains`: cost and effect of membership changes.
//!
//! * [`cycles`]: a member leaves and returns, with real processes of
//!   [members](crate::worker::member).
//! * [`scale`]: large and many domains; [`bystander`]: the effect of changes on other domains.
//! * [`report`]: rows, targets and tables.

pub mod bystander;
pub mod cycles;
pub mod report;
pub mod scale;

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::Torus;

use self::cycles::{Outcome, Scenario};
use self::report::{Export, Rest, Run};
use crate::cluster::{Cluster, ClusterError, check_tun};
use crate::memory;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::report::Report;
use crate::roles;

const SMALL: &str = "2x2x2";
const MEDIUM: &str = "4x4x4";
const LARGE: &str = "8x8x8";

const MIB: u64 = 1 << 20;

/// Number of rows of shrinks and growths, without the large domain.
pub const SMALL_ROWS: i64 = 6;

/// Divisor of available memory: registered memory may exist three times during a migration, and the
/// machine keeps a reserve.
const MEMORY_SHARE: u64 = 4;

/// Changing domains beside the unchanged one.
const BUSY_DOMAINS: u32 = 100;

/// Writes to the disk of one measurement.
const SYNCS: u32 = 300;

/// The amount of work.
struct Plan {
    /// Cycles with nothing registered, with 512 members, with 64 MiB and with 1 GiB.
    cycles: [u32; 4],
    idle_domains: u32,
    busy: Duration,
}

impl Plan {
    fn of(effort: Effort) -> Self {
        Plan {
            cycles: effort.quick_or([40, 15, 15, 3], [1000, 200, 200, 30]),
            idle_domains: effort.quick_or(200, 1000),
            busy: Duration::from_secs(effort.quick_or(2, 20)),
        }
    }

    fn small_scenarios(&self) -> Vec<Scenario> {
        let [few, _, some, much] = self.cycles;
        let gibibyte = memory::available()
            .map_or(1024 * MIB, |bytes| bytes / MEMORY_SHARE)
            .min(1024 * MIB);
        let scenario = |members, export, bytes, cycles| Scenario {
            members,
            export,
            bytes,
            cycles,
        };
        let all: [_; SMALL_ROWS as usize] = [
            scenario(2, Export::None, 0, few),
            scenario(8, Export::None, 0, few),
            scenario(8, Export::Ro, 64 * MIB, some),
            scenario(8, Export::Rw, 64 * MIB, some),
            scenario(8, Export::Ro, gibibyte / MIB * MIB, much),
            scenario(8, Export::Rw, gibibyte / MIB * MIB, much),
        ];
        all.into()
    }

    fn large_scenario(&self) -> Scenario {
        Scenario {
            members: 512,
            export: Export::None,
            bytes: 0,
            cycles: self.cycles[1],
        }
    }
}

/// Measures everything, or only the shrinks and growths in the given rows of the report, counted
/// from 1. Nothing is left behind.
pub fn measure(effort: Effort, rows: &[u8], progress: &Progress) -> Result<Report, ClusterError> {
    let (start, plan) = (Instant::now(), Plan::of(effort));
    let is_wanted = |row: u8| rows.is_empty() || rows.contains(&row);
    let scenarios = plan.small_scenarios().into_iter().zip(1..);
    let scenarios = scenarios.filter(|(_, row)| is_wanted(*row));
    let scenarios: Vec<Scenario> = scenarios.map(|(scenario, _)| scenario).collect();
    progress.expect(scenarios.len() + if rows.is_empty() { 4 } else { 0 });
    progress.say("starting eight nodes");
    check_tun()?;
    let mut cluster = Cluster::start(SMALL.parse()?, Some(roles::DRIVER))?;
    let mut run = Run {
        start,
        effort,
        rootless: cluster.control()?.status()?.rootless,
        data: data_of(&cluster),
        syncs_ns: fdatasync(&cluster)?,
        outcomes: Vec::new(),
        rest: None,
    };
    for scenario in scenarios {
        let Scenario { members, bytes, .. } = scenario;
        progress.step(format!("{members} members, {} MiB registered", bytes / MIB));
        run.outcomes.push(cycles::play(&mut cluster, scenario)?);
    }
    if rows.is_empty() {
        let (rest, outcome) = measure_rest(cluster, &plan, progress)?;
        run.outcomes.extend(outcome);
        run.rest = Some(rest);
    }
    Ok(run.report())
}

/// Measures everything but the small scenarios. Also returns the outcome of the large domain.
fn measure_rest(
    mut cluster: Cluster,
    plan: &Plan,
    progress: &Progress,
) -> Result<(Rest, Option<Outcome>), ClusterError> {
    progress.step("one domain beside many that change");
    let beside = bystander::measure(&mut cluster, BUSY_DOMAINS, plan.busy)?;
    drop(cluster);

    let large: Torus = LARGE.parse()?;
    progress.step("512 nodes");
    let (with, outcome) = scale::all_nodes(large, true, Some(plan.large_scenario()))?;
    progress.step("512 nodes without Ethernet");
    let (without, _) = scale::all_nodes(large, false, None)?;
    progress.step("many idle domains");
    let rest = Rest {
        scale: vec![with, without],
        idle: scale::many_domains(MEDIUM.parse()?, plan.idle_domains)?,
        beside,
    };
    Ok((rest, outcome))
}

/// Names of the first `count` nodes of a cluster.
fn nodes(cluster: &mut Cluster, count: u32) -> Result<Vec<String>, ClusterError> {
    let nodes = cluster.control()?.nodes()?;
    let places = nodes.iter().map(|node| node.place.to_string());
    Ok(places.take(count as usize).collect())
}

fn data_of(cluster: &Cluster) -> String {
    let place = cluster.path("");
    place.parent().unwrap_or(&place).display().to_string()
}

/// Times of synchronous writes of 4 KiB to the disk of the directory, in nanoseconds.
fn fdatasync(cluster: &Cluster) -> Result<Vec<f64>, ClusterError> {
    let write = || -> io::Result<Vec<f64>> {
        let mut file = File::create(cluster.path("fdatasync"))?;
        (0..SYNCS)
            .map(|_| {
                let start = Instant::now();
                file.write_all(&[1; 4096])?;
                file.sync_data()?;
                Ok(start.elapsed().as_nanos() as f64)
            })
            .collect()
    };
    write().map_err(|source| ClusterError::System {
        action: "write to the disk",
        source,
    })
}

/// Does some work. Also returns the peak growth of the machine's shared memory meanwhile in bytes;
/// `None` if the kernel does not tell.
fn memory_peak<T>(work: impl FnOnce() -> T) -> (T, Option<u64>) {
    let ending = AtomicBool::new(false);
    thread::scope(|scope| {
        let before = memory::shared();
        let ending = &ending;
        let watch = move || {
            let mut peak = before;
            while !ending.load(Ordering::Relaxed) {
                peak = peak.max(memory::shared());
                thread::sleep(Duration::from_millis(1));
            }
            peak
        };
        let watching = scope.spawn(watch);
        let result = work();
        ending.store(true, Ordering::Relaxed);
        let peak = watching.join().unwrap_or_default();
        let extra = peak.zip(before).map(|(peak, before)| peak - before);
        (result, extra)
    })
}
