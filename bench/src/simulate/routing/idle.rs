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
use super::verdict::Found;
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

/// Range of the ratio of flits, and of a packet's latency, from the long interval to the short one.
const RAW: std::ops::RangeInclusive<f64> = 1.9..=2.1;
const NORMALISED: std::ops::RangeInclusive<f64> = 0.9..=1.1;

/// Counts of an interval: flits into routers of the job, and the counters of the neighbours' cards.
#[derive(Clone, Copy)]
struct Counts {
    flits: f64,
    cards: Counters,
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
            cards: after.cards.since(&before.cards),
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
        cards: counters,
    }
}

fn verdict(short: Counts, long: Counts) -> Finding {
    let raw = long.flits / short.flits;
    let latency = |counts: Counts| counts.cards.latency().unwrap_or(f64::NAN);
    let [before, after] = [short, long].map(latency);
    let found = match RAW.contains(&raw) && NORMALISED.contains(&(after / before)) {
        true => Found::Yes,
        false => Found::No,
    };
    Finding {
        name: "idle-counters",
        claim: "around an idle job raw counters double with the interval, normalised ones do not \
                (Table 1)",
        found: Some(found),
        figure: Some(raw),
        evidence: format!(
            "{:.2} M flits in 0.2 ms, {:.2} M in 0.4 ms: {raw:.3}; latencies of {before:.0} and \
             {after:.0} cycles: {:.3}",
            short.flits / 1e6,
            long.flits / 1e6,
            after / before
        ),
    }
}
