//! Contenders in turns on one allocation.
//!
//! Each round has an iteration of every contender, in an order that rotates: noise that comes and
//! goes meets all of them. The network, its neighbours and the policies keep their state between
//! rounds.

use anyhow::{Context, Result};
use toroid_fabric::NodeId;
use toroid_fabric::routes::policy::{Policy, Recorded, Report};
use toroid_fabric::routes::{Counters, Dragonfly, Mode};

use super::contender::Contender;
use super::neighbours::{self, Neighbours, Traffic};
use super::placement::{Allocation, Placement};
use super::workload::Workload;
use crate::causes::without_panic;
use crate::memory;
use crate::sim::packets::PacketNetwork;
use crate::sim::{Network, Profile, Routed, TICKS, Ticks, nanoseconds};
use crate::simulate::ranks::{self, Costs, Job};
use crate::worker::programs::rank::{Nanos, Rank};

/// The measured domain.
pub const DOMAIN: u16 = 0;

/// Rounds before those that count.
const WARM_UP: usize = 1;

/// Time in which neighbours alone fill the network.
const NEIGHBOURS_ALONE: Ticks = 40_000 * TICKS;

/// The machine of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Groups, chassis, routers, nodes.
    pub sizes: [u32; 4],
    /// Global links of each pair of groups.
    pub global_links: u32,
    /// Age of what routers know of far buffers.
    pub snapshot_age_ns: u64,
}

/// A workload on an allocation, beside neighbours.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub machine: Machine,
    pub workload: Workload,
    pub ranks: usize,
    pub placement: Placement,
    /// Share of the nodes that are neighbours, and their traffic.
    pub neighbours: Option<(f64, Traffic)>,
    pub rounds: usize,
    /// Of the allocation, the network and the neighbours.
    pub seed: u64,
    pub contenders: Vec<Contender>,
}

/// Iterations of a contender.
#[derive(Clone, Debug, Default)]
pub struct Iterations {
    /// Nanoseconds of each iteration.
    pub times: Vec<f64>,
    /// Mean latency of a packet in each iteration, in cycles.
    pub latencies: Vec<f64>,
    /// Stalled cycles per flit in each iteration.
    pub stalls: Vec<f64>,
    pub routed: Routed,
    /// Decisions of all ranks after the warm-up. The first switch of a rank is no oscillation and does
    /// not count.
    pub report: Report,
}

/// Results of an experiment.
#[derive(Clone, Debug)]
pub struct Measured {
    pub experiment: Experiment,
    /// In the order of the contenders.
    pub iterations: Vec<Iterations>,
    /// Messages of the neighbours, and bytes of theirs that arrived at the job's nodes.
    pub neighbours_delivered: u64,
    pub neighbours_at_job: u64,
    pub events: u64,
}

impl Machine {
    /// Four groups of 16 routers and 64 nodes, with information of 1 us before.
    pub fn small(global_links: u32) -> Self {
        Machine {
            sizes: [4, 2, 8, 4],
            global_links,
            snapshot_age_ns: 1000,
        }
    }

    /// The topology.
    pub fn dragonfly(&self) -> Result<Dragonfly> {
        Ok(Dragonfly::new(self.sizes, Some(self.global_links))?)
    }

    /// The machine at the level of packets.
    pub fn network(&self, seed: u64) -> Result<PacketNetwork<Dragonfly>> {
        let profile = Profile {
            snapshot_age_ns: self.snapshot_age_ns,
            ..Profile::aries()
        };
        let available = memory::available().unwrap_or(u64::MAX);
        Ok(PacketNetwork::new(
            self.dragonfly()?,
            profile,
            seed,
            available,
        )?)
    }
}

impl Measured {
    /// Iterations of a contender.
    pub fn of(&self, contender: &str) -> Option<&Iterations> {
        let mut names = self.experiment.contenders.iter().map(Contender::name);
        let at = names.position(|name| name == contender)?;
        self.iterations.get(at)
    }
}

impl Experiment {
    /// Runs all rounds.
    ///
    /// # Errors
    /// A machine or placement that is too small, a program that stops, and a policy that panics, by
    /// name.
    pub fn run(&self) -> Result<Measured> {
        let dragonfly = self.machine.dragonfly()?;
        let share = self.neighbours.map_or(0.0, |(share, _)| share);
        let allocation = Allocation::new(&dragonfly, self.placement, self.ranks, share, self.seed)?;
        let mut network = self.machine.network(self.seed)?;
        let traffic = self.neighbours.map(|(_, traffic)| traffic);
        let mut neighbours = traffic.map(|traffic| {
            Neighbours::start(&mut network, &allocation.neighbours, traffic, self.seed)
        });
        if let Some(neighbours) = &mut neighbours {
            neighbours.run(&mut network, NEIGHBOURS_ALONE);
        }
        let policies = self
            .contenders
            .iter()
            .map(|contender| named(contender, || Ok(contender.policies(self.ranks))));
        let mut bench = Bench {
            policies: policies.collect::<Result<_>>()?,
            warm_up: Vec::new(),
            iterations: vec![Iterations::default(); self.contenders.len()],
            experiment: self,
            allocation: &allocation,
            network: &mut network,
            neighbours: neighbours.as_mut(),
        };
        for round in 0..self.rounds + WARM_UP {
            if round == WARM_UP {
                bench.warm_up = bench.reports();
            }
            for turn in 0..self.contenders.len() {
                let contender = (turn + round) % self.contenders.len();
                bench.iterate(contender, round >= WARM_UP)?;
            }
        }
        let iterations = bench.finish();
        let of_neighbours = |node: &NodeId| network.delivered(*node, neighbours::DOMAIN);
        Ok(Measured {
            experiment: self.clone(),
            iterations,
            neighbours_delivered: neighbours.as_ref().map_or(0, Neighbours::delivered),
            neighbours_at_job: allocation.job.iter().map(of_neighbours).sum(),
            events: network.events(),
        })
    }
}

impl Experiment {
    fn workload_of(&self, contender: usize) -> Workload {
        self.contenders[contender]
            .workload()
            .unwrap_or(self.workload)
    }
}

/// A running experiment.
struct Bench<'a> {
    experiment: &'a Experiment,
    allocation: &'a Allocation,
    network: &'a mut PacketNetwork<Dragonfly>,
    neighbours: Option<&'a mut Neighbours>,
    policies: Vec<Vec<Recorded<Box<dyn Policy>>>>,
    /// Reports of the policies before the rounds that count.
    warm_up: Vec<Vec<Report>>,
    iterations: Vec<Iterations>,
}

impl Bench<'_> {
    fn iterate(&mut self, contender: usize, counts: bool) -> Result<()> {
        let (counters, routed) = (self.counters(), self.network.routed_in(DOMAIN));
        let workload = self.experiment.workload_of(contender);
        let name = &self.experiment.contenders[contender];
        let elapsed = named(name, || self.elapsed(contender));
        let elapsed = elapsed.with_context(|| workload.to_string())?;
        if !counts {
            return Ok(());
        }
        let gained = self.counters().since(&counters);
        let routed = self.network.routed_in(DOMAIN).since(&routed);
        let iterations = &mut self.iterations[contender];
        iterations.times.push(elapsed);
        iterations.latencies.extend(gained.latency());
        iterations.stalls.extend(gained.stalls());
        iterations.routed.minimal += routed.minimal;
        iterations.routed.non_minimal += routed.non_minimal;
        Ok(())
    }

    /// Nanoseconds of an iteration: until its last rank has ended.
    fn elapsed(&mut self, contender: usize) -> Result<f64> {
        let start = nanoseconds(self.network.now());
        let workload = self.experiment.workload_of(contender);
        let beside = self.neighbours.as_deref_mut();
        let job = Job {
            network: self.network,
            nodes: &self.allocation.job,
            domain: DOMAIN,
            costs: Costs {
                eager: usize::MAX,
                ..Costs::default()
            },
            policies: &mut self.policies[contender],
            beside: beside.map(|beside| beside as &mut dyn ranks::Beside),
        };
        let ended = ranks::run(job, move |rank| {
            workload.run(rank)?;
            Ok(rank.now())
        })?;
        let ended: Result<Vec<Nanos>> = ended.into_iter().collect();
        let last = ended?.into_iter().max().unwrap_or_default();
        Ok(last as f64 - start)
    }

    /// Counters of the job, over all nodes and modes.
    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for node in &self.allocation.job {
            for mode in Mode::ALL {
                sum += self.network.counters(*node, DOMAIN, mode);
            }
        }
        sum
    }

    fn finish(mut self) -> Vec<Iterations> {
        let ends = self.reports();
        for (at, iterations) in self.iterations.iter_mut().enumerate() {
            for (end, start) in ends[at].iter().zip(&self.warm_up[at]) {
                iterations.report.add(&since(end, start));
            }
        }
        self.iterations
    }

    fn reports(&self) -> Vec<Vec<Report>> {
        let of = |policies: &Vec<Recorded<_>>| policies.iter().map(|p| *p.report()).collect();
        self.policies.iter().map(of).collect()
    }
}

/// What a report gained, without the first switch of all.
fn since(report: &Report, earlier: &Report) -> Report {
    let mut gained = *report;
    let repeated = |report: &Report| report.switches.saturating_sub(1);
    gained.decisions -= earlier.decisions;
    gained.switches = repeated(report) - repeated(earlier);
    gained.skipped_bytes -= earlier.skipped_bytes;
    for (bytes, earlier) in gained.bytes.iter_mut().zip(earlier.bytes) {
        *bytes -= earlier;
    }
    gained
}

/// Runs code of a policy: errors have its name, also if it panics.
fn named<T>(contender: &Contender, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = without_panic("the policy", run);
    result.with_context(|| format!("with policy {}", contender.name()))
}

#[cfg(test)]
mod tests {
    use toroid_fabric::routes::policy::{Fixed, Outgoing};

    use super::super::workload::Pattern;
    use super::*;
    use crate::stats::median;

    fn experiment(contenders: Vec<Contender>) -> Experiment {
        Experiment {
            machine: Machine::small(4),
            workload: Workload {
                pattern: Pattern::PingPong,
                bytes: 1 << 10,
            },
            ranks: 2,
            placement: Placement::Groups,
            neighbours: Some((0.05, Traffic::with_pause_ns(30_000))),
            rounds: 5,
            seed: 3,
            contenders,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_times() {
        let times = || {
            let measured = experiment(Contender::of_paper()).run().unwrap();
            let times = measured.iterations.into_iter().map(|of| of.times);
            times.collect::<Vec<_>>()
        };
        assert_eq!(times(), times());
    }

    /// Iterations in blocks would see another state of the neighbours.
    #[test]
    fn equal_policies_in_turns_take_the_same_time() {
        let name = |name: &str| Contender::new(name, || Fixed::new(Mode::Adaptive3));
        let measured = experiment(vec![name("a"), name("b")]).run().unwrap();
        let [a, b] = ["a", "b"].map(|name| median(&measured.of(name).unwrap().times).unwrap());
        assert!((a / b - 1.0).abs() < 0.02, "{a} and {b} ns");
    }

    #[test]
    fn neighbours_reach_no_node_of_the_job() {
        let measured = experiment(vec![Contender::default_mode()]).run().unwrap();
        assert!(measured.neighbours_delivered > 0);
        assert_eq!(measured.neighbours_at_job, 0);
    }

    /// The counters of an iteration are those of its own packets, and policies see all of them.
    #[test]
    fn auto_learns_from_one_iteration_to_the_next() {
        let alone = Experiment {
            neighbours: None,
            workload: Workload {
                pattern: Pattern::PingPong,
                bytes: 8 << 10,
            },
            ..experiment(vec![Contender::default_mode(), Contender::auto()])
        };
        let measured = alone.run().unwrap();
        let report = measured.of(Contender::AUTO).unwrap().report;
        // Without stalls high bias has the lower latency by lambda: all decisions but the first, which
        // is part of the warm-up.
        assert_eq!((report.decisions, report.switches), (10, 0));
        assert_eq!(report.bytes_of(Mode::Adaptive0), 0);
    }

    #[test]
    fn a_policy_that_panics_is_named() {
        struct Panics;
        impl Policy for Panics {
            fn choose(&mut self, _: &Outgoing) -> Mode {
                panic!("no idea")
            }

            fn learn(&mut self, _: Mode, _: &Counters) {}
        }
        let panics = experiment(vec![Contender::new("panics", || Panics)]);
        let error = format!("{:#}", panics.run().unwrap_err());
        assert_eq!(
            error,
            "ping-pong 1 KiB: with policy panics: the policy panicked: no idea"
        );
        let unmade = Contender::new("unmade", || -> Panics { panic!("no file") });
        let error = format!("{:#}", experiment(vec![unmade]).run().unwrap_err());
        assert_eq!(error, "with policy unmade: the policy panicked: no file");
    }
}
