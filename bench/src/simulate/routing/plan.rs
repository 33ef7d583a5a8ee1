//! The experiments of the command.

use anyhow::{Result, ensure};

use super::contender::Contender;
use super::experiment::{Experiment, Machine};
use super::neighbours::Traffic;
use super::placement::Placement;
use super::workload::{Pattern, Workload};
use crate::plan::Effort;

/// Global links of a pair of groups: enough for all traffic, and too few.
pub const MANY_LINKS: u32 = 12;
pub const FEW_LINKS: u32 = 4;

/// Share of the nodes that are noisy neighbours.
const NEIGHBOURS: f64 = 0.25;

/// Mean pause of a neighbour between bursts.
const PAUSE_NS: u64 = 30_000;

/// Bytes of ping-pongs on all placements: so few that bandwidth does not matter, and those of the
/// paper's Figure 3.
pub const TINY: usize = 1 << 10;
pub const SMALL: usize = 16 << 10;

/// Messages of an alltoall below and above which the paper has other winners.
pub const SMALL_EXCHANGE: usize = 256;
pub const LARGE_EXCHANGE: usize = 16 << 10;

/// Part of the plan that is wanted; nothing chosen is everything.
pub struct Chosen<'a> {
    pub workloads: &'a [String],
    pub placements: &'a [Placement],
}

impl Chosen<'_> {
    fn has(&self, experiment: &Experiment) -> bool {
        let pattern = experiment.workload.pattern.to_string();
        let is_workload = self
            .workloads
            .iter()
            .any(|word| pattern.contains(word.as_str()));
        let is_placement = self.placements.contains(&experiment.placement);
        (self.workloads.is_empty() || is_workload) && (self.placements.is_empty() || is_placement)
    }
}

/// The experiments of a run.
///
/// # Errors
/// None is chosen.
pub fn experiments(
    effort: Effort,
    seed: u64,
    contenders: &[Contender],
    chosen: &Chosen<'_>,
) -> Result<Vec<Experiment>> {
    let plan = Plan {
        effort,
        seed,
        contenders,
    };
    let mut experiments = plan.ping_pongs();
    experiments.extend(plan.programs());
    experiments.retain(|experiment| chosen.has(experiment));
    ensure!(
        !experiments.is_empty(),
        "no experiment has this workload and placement: workloads are ping-pong, allreduce, alltoall, \
         barrier, broadcast, halo3d and sweep3d, all but ping-pong without placement blade"
    );
    // Long ones first, so that all processors end together.
    experiments.sort_by_key(|experiment| std::cmp::Reverse(cost(experiment)));
    Ok(experiments)
}

/// The cases of a duel between policies.
pub fn of_duel(seed: u64, contenders: &[Contender]) -> Vec<Experiment> {
    let plan = Plan {
        effort: Effort::Quick,
        seed,
        contenders,
    };
    let of =
        |bytes, ranks, pattern, placement| plan.experiment([bytes, ranks, 12], pattern, placement);
    vec![
        of(LARGE_EXCHANGE, 16, Pattern::Alltoall, Placement::Groups),
        of(SMALL_EXCHANGE, 16, Pattern::Alltoall, Placement::Groups),
        of(16 << 10, 16, Pattern::Halo3d, Placement::Groups),
        of(16 << 10, 16, Pattern::Sweep3d, Placement::Groups),
        of(128 << 10, 2, Pattern::PingPong, Placement::Blades),
        of(128 << 10, 2, Pattern::PingPong, Placement::Groups),
    ]
}

/// A rough measure of the work of an experiment.
fn cost(experiment: &Experiment) -> usize {
    let messages = match experiment.workload.pattern {
        Pattern::PingPong => 8,
        Pattern::Alltoall => experiment.ranks * experiment.ranks,
        _ => 16 * experiment.ranks,
    };
    messages * experiment.workload.bytes.max(1 << 12) * experiment.rounds
}

struct Plan<'a> {
    effort: Effort,
    seed: u64,
    contenders: &'a [Contender],
}

impl Plan<'_> {
    /// An experiment beside neighbours.
    fn experiment(
        &self,
        [pattern_bytes, ranks, rounds]: [usize; 3],
        pattern: Pattern,
        placement: Placement,
    ) -> Experiment {
        Experiment {
            machine: Machine::small(MANY_LINKS),
            workload: Workload {
                pattern,
                bytes: pattern_bytes,
            },
            ranks,
            placement,
            neighbours: Some((NEIGHBOURS, Traffic::with_pause_ns(PAUSE_NS))),
            rounds,
            seed: self.seed,
            contenders: self.contenders.to_vec(),
        }
    }

    fn ping_pongs(&self) -> Vec<Experiment> {
        let of = |bytes, rounds, placement| {
            self.experiment([bytes, 2, rounds], Pattern::PingPong, placement)
        };
        let rounds = self.effort.quick_or(8, 100);
        let sizes = [TINY, SMALL].into_iter();
        let mut experiments: Vec<Experiment> = sizes
            .flat_map(|bytes| Placement::ALL.map(|place| of(bytes, rounds, place)))
            .collect();
        experiments.push(Experiment {
            neighbours: None,
            ..of(SMALL, rounds, Placement::Groups)
        });
        let [bytes, rounds] = self.effort.quick_or([128 << 10, 7], [1 << 20, 20]);
        let large = |placement| of(bytes, rounds, placement);
        let far = Experiment {
            rounds: 2 * rounds,
            ..large(Placement::Groups)
        };
        let few = Machine::small(FEW_LINKS);
        let fresh = Machine {
            snapshot_age_ns: 0,
            ..far.machine
        };
        experiments.extend([large(Placement::Blades), far.clone()]);
        experiments.extend([few, fresh].map(|machine| Experiment {
            machine,
            rounds,
            ..far.clone()
        }));
        experiments
    }

    /// All other workloads, on several nodes of a group and on all groups.
    fn programs(&self) -> Vec<Experiment> {
        let quick = [
            (Pattern::Barrier, 1, 16),
            (Pattern::Allreduce, 8 << 10, 16),
            (Pattern::Alltoall, SMALL_EXCHANGE, 16),
            (Pattern::Alltoall, LARGE_EXCHANGE, 16),
            (Pattern::Broadcast, 64 << 10, 16),
            (Pattern::Halo3d, 16 << 10, 16),
            (Pattern::Sweep3d, 16 << 10, 16),
        ];
        let rounds = self.effort.quick_or(6, 30);
        let placements = self.effort.quick_or(
            vec![Placement::Groups],
            vec![Placement::Blades, Placement::Chassis, Placement::Groups],
        );
        let of = |(pattern, bytes, ranks)| {
            let at = |place: &Placement| self.experiment([bytes, ranks, rounds], pattern, *place);
            placements.iter().map(at).collect::<Vec<_>>()
        };
        quick.into_iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_experiments_fit_their_placements() {
        for effort in [Effort::Quick, Effort::Default] {
            let chosen = Chosen {
                workloads: &[],
                placements: &[],
            };
            for experiment in experiments(effort, 1, &[], &chosen).unwrap() {
                let machine = experiment.machine.dragonfly().unwrap();
                let Experiment {
                    placement, ranks, ..
                } = experiment;
                super::super::placement::Allocation::new(&machine, placement, ranks, 0.25, 1)
                    .unwrap();
            }
        }
    }

    #[test]
    fn unknown_workloads_are_refused() {
        let words = ["sort".to_owned()];
        let chosen = Chosen {
            workloads: &words,
            placements: &[],
        };
        let error = experiments(Effort::Quick, 1, &[], &chosen).unwrap_err();
        assert!(
            error.to_string().contains("workloads are ping-pong"),
            "{error}"
        );
    }
}
