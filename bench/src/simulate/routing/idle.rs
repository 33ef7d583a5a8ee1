//! Counters around a job that does nothing: Table 1 of the paper.
//!
//! Raw counts grow with the length of the interval whatever the job does, so that they correlate
//! with its run time. Counts per time do not.

use anyhow::Result;
use toroid_fabric::routes::{Counters, LinkId, Mode, Topology};

use super::experiment::Machine;
use super::findings::Finding;
use super::neighbours::{DOMAIN, Neighbours, Traffic};
use super::placement::{Allocation, Placement};
use super::plan::MANY_LINKS;
use crate::sim::packets::PacketNetwork;
use crate::sim::{Network, TICKS, Ticks};

/// Length of the short interval; the long one has twice of it.
const INTERVAL: Ticks = 200_000 * TICKS;

/// Steady traffic: many independent short messages.
const TRAFFIC: Traffic = Traffic {
    bytes: 4 << 10,
    burst: 1,
    pause: 4_000 * TICKS,
};

/// Nodes of the idle job.
const RANKS: usize = 16;

/// Range of the ratio of raw and of normalised counts, from the long interval to the short one.
const RAW: std::ops::RangeInclusive<f64> = 1.9..=2.1;
const NORMALISED: std::ops::RangeInclusive<f64> = 0.95..=1.05;

/// Counts of an interval: flits into routers of the job, and stalled cycles of the neighbours.
#[derive(Clone, Copy)]
struct Counts {
    flits: f64,
    stalls: f64,
}

/// Counts intervals of 0.2 and 0.4 ms around an idle job.
///
/// # Errors
/// The machine is not possible.
pub fn finding(seed: u64) -> Result<Finding> {
    let machine = Machine::small(MANY_LINKS);
    let dragonfly = machine.dragonfly()?;
    let allocation = Allocation::new(&dragonfly, Placement::Groups, RANKS, 0.25, seed)?;
    let routers: Vec<_> = allocation
        .job
        .iter()
        .map(|node| dragonfly.router(*node))
        .collect();
    let is_of_job = |link: &LinkId| routers.contains(&dragonfly.ends(*link).to);
    let links: Vec<LinkId> = (0..dragonfly.links())
        .map(LinkId)
        .filter(is_of_job)
        .collect();
    let mut network = machine.network(seed)?;
    let mut neighbours = Neighbours::start(&mut network, &allocation.neighbours, TRAFFIC, seed);
    let mut count = |length: Ticks| {
        let before = read(&network, &links, &allocation);
        neighbours.run(&mut network, length);
        let after = read(&network, &links, &allocation);
        Counts {
            flits: after.flits - before.flits,
            stalls: after.stalls - before.stalls,
        }
    };
    count(INTERVAL / 4);
    let [short, long] = [count(INTERVAL), count(2 * INTERVAL)];
    Ok(verdict(short, long))
}

fn read(
    network: &PacketNetwork<impl Topology>,
    links: &[LinkId],
    allocation: &Allocation,
) -> Counts {
    let bytes: u64 = links.iter().map(|link| network.link_bytes(*link)).sum();
    let mut counters = Counters::default();
    for node in &allocation.neighbours {
        for mode in Mode::ALL {
            counters += network.counters(*node, DOMAIN, mode);
        }
    }
    Counts {
        flits: bytes as f64 / 16.0,
        stalls: counters.stalled_cycles as f64,
    }
}

fn verdict(short: Counts, long: Counts) -> Finding {
    let ratio = long.flits / short.flits;
    let holds = RAW.contains(&ratio) && NORMALISED.contains(&(ratio / 2.0));
    Finding {
        name: "idle-counters",
        claim: "around an idle job raw counters double with the interval, normalised ones do not \
                (Table 1)",
        is_found: Some(holds),
        figure: Some(ratio),
        evidence: format!(
            "{:.2} M flits in 0.2 ms, {:.2} M in 0.4 ms: {ratio:.3} raw, {:.3} per time; {:.2} and {:.2} \
             M stalled cycles",
            short.flits / 1e6,
            long.flits / 1e6,
            ratio / 2.0,
            short.stalls / 1e6,
            long.stalls / 1e6
        ),
    }
}
