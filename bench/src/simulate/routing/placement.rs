//! Allocations: the nodes of a job and of its neighbours on a dragonfly.

use std::fmt;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use toroid_fabric::NodeId;
use toroid_fabric::routes::Dragonfly;

/// Where the nodes of a job are, as in Figure 3 of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// At one router.
    Blade,
    /// At routers of one chassis.
    Blades,
    /// In all chassis of one group.
    Chassis,
    /// In all groups.
    Groups,
}

impl Placement {
    pub const ALL: [Placement; 4] = [
        Placement::Blade,
        Placement::Blades,
        Placement::Chassis,
        Placement::Groups,
    ];
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::report::name(self))
    }
}

/// Nodes of a job and of its neighbours, which have none in common. Results of two allocations are
/// not comparable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The node of each rank.
    pub job: Vec<NodeId>,
    pub neighbours: Vec<NodeId>,
}

impl Allocation {
    /// `ranks` nodes, and a share of the others as neighbours. The seed picks the parts of the
    /// machine and the neighbours.
    ///
    /// # Errors
    /// The placement has too few nodes.
    pub fn new(
        machine: &Dragonfly,
        placement: Placement,
        ranks: usize,
        share: f64,
        seed: u64,
    ) -> Result<Self> {
        let mut random = fastrand::Rng::with_seed(seed);
        let nodes = candidates(machine, placement, ranks, &mut random);
        ensure!(
            ranks >= 2 && nodes.len() >= ranks,
            "{ranks} ranks do not fit the placement {placement}, which has {} nodes: use 2 to {0} \
             ranks, or a larger machine",
            nodes.len()
        );
        // Neighbouring ranks are neighbouring nodes, as schedulers place them.
        let mut job: Vec<u32> = (0..ranks)
            .map(|rank| nodes[rank * nodes.len() / ranks])
            .collect();
        job.sort_unstable();
        let [groups, chassis, routers, each] = machine.sizes();
        let all = groups * chassis * routers * each;
        let mut others: Vec<u32> = (0..all).filter(|node| !job.contains(node)).collect();
        random.shuffle(&mut others);
        others.truncate((f64::from(all) * share) as usize);
        let nodes = |numbers: Vec<u32>| numbers.into_iter().map(NodeId).collect();
        Ok(Allocation {
            job: nodes(job),
            neighbours: nodes(others),
        })
    }
}

/// The nodes from which a job takes its own, spread evenly.
fn candidates(
    machine: &Dragonfly,
    placement: Placement,
    ranks: usize,
    random: &mut fastrand::Rng,
) -> Vec<u32> {
    let [groups, chassis, routers, nodes] = machine.sizes();
    let (blade, row, group) = (nodes, routers * nodes, chassis * routers * nodes);
    let (at_group, at_row, at_blade) = (
        random.u32(..groups) * group,
        random.u32(..chassis) * row,
        random.u32(..routers) * blade,
    );
    let of = |first: u32, len: u32| (first..first + len).collect();
    match placement {
        Placement::Blade => of(at_group + at_row + at_blade, blade),
        Placement::Blades => of(at_group + at_row, row),
        // A pair has its nodes in two chassis or groups; the places within are random, too.
        Placement::Chassis if ranks == 2 => {
            let other = (at_row + random.u32(1..chassis.max(2)) * row) % group;
            let within = random.u32(..row);
            vec![at_group + at_row + at_blade, at_group + other + within]
        }
        Placement::Groups if ranks == 2 => {
            let other = (at_group + random.u32(1..groups.max(2)) * group) % (groups * group);
            vec![at_group + at_row + at_blade, other + random.u32(..group)]
        }
        Placement::Chassis => of(at_group, group),
        Placement::Groups => of(0, groups * group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(placement: Placement, ranks: usize, seed: u64) -> Result<Allocation> {
        let machine = Dragonfly::new([4, 2, 8, 4], Some(4)).unwrap();
        Allocation::new(&machine, placement, ranks, 0.25, seed)
    }

    /// The numbers of groups, chassis and routers with nodes of the job.
    fn parts(allocation: &Allocation) -> [usize; 3] {
        [64, 32, 4].map(|size| {
            let mut parts: Vec<u32> = allocation.job.iter().map(|node| node.0 / size).collect();
            parts.dedup();
            parts.len()
        })
    }

    #[test]
    fn pairs_are_as_far_apart_as_their_placement_says() {
        for seed in 0..50 {
            let expected = [[1, 1, 1], [1, 1, 2], [1, 2, 2], [2, 2, 2]];
            for (placement, expected) in Placement::ALL.into_iter().zip(expected) {
                let allocation = place(placement, 2, seed).unwrap();
                assert_eq!(parts(&allocation), expected, "{placement}, seed {seed}");
            }
        }
    }

    #[test]
    fn jobs_spread_over_their_placement_and_share_no_node_with_neighbours() {
        for (placement, expected) in [
            (Placement::Blades, [1, 1, 8]),
            (Placement::Chassis, [1, 2, 16]),
            (Placement::Groups, [4, 8, 16]),
        ] {
            let allocation = place(placement, 16, 7).unwrap();
            assert_eq!(parts(&allocation), expected, "{placement}");
            assert_eq!(allocation.neighbours.len(), 64);
            let shared = |node| allocation.neighbours.contains(node);
            assert!(!allocation.job.iter().any(shared));
        }
    }

    #[test]
    fn a_job_that_does_not_fit_is_refused() {
        let error = place(Placement::Blade, 5, 0).unwrap_err().to_string();
        assert!(
            error.contains("5 ranks do not fit the placement blade"),
            "{error}"
        );
    }
}
