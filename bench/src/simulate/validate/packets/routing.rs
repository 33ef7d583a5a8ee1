//! Routing: the share of non-minimal paths by mode, and phantom congestion.

use anyhow::Result;
use toroid_fabric::routes::{Dragonfly, LinkId, LinkKind, Mode, Topology, TorusNetwork};

use super::super::{Bar, Check, Outcome};
use super::network;
use crate::plan::Effort;
use crate::sim::profile::NicCosts;
use crate::sim::{Happening, Message, Network, Profile, TICKS};
use crate::table;

/// Non-minimal shares of the modes under load.
pub const MODES: Check = Check {
    name: "packets-modes",
    is_long: false,
    run: modes,
};

/// Non-minimal paths that nothing but old information explains.
pub const PHANTOM: Check = Check {
    name: "packets-phantom",
    is_long: false,
    run: phantom,
};

const PAPER: &str = "paper: routing";

/// Least difference of shares that count as different.
const APART: f64 = 0.05;

/// Bytes of a message of the comparison of modes.
const MESSAGE: u64 = 64 << 10;

/// Four groups of 16 nodes, two global links a pair.
fn dragonfly() -> Result<Dragonfly> {
    Ok(Dragonfly::new([4, 2, 4, 2], Some(2))?)
}

fn modes(_: Effort) -> Result<Vec<Outcome>> {
    let outcome = |what: &str, bar, expected, measured| Outcome {
        against: PAPER,
        what: format!("under load: {what}"),
        bar,
        expected,
        measured,
    };
    let global_links = |mode| hops(dragonfly()?, mode, 16, |kind| kind == LinkKind::Global);
    // A path between groups has one global link, and a second one if it is not minimal.
    let share = |mode| -> Result<f64> { Ok(global_links(mode)? - 1.0) };
    let adaptive = [
        share(Mode::Adaptive0)?,
        share(Mode::Adaptive2)?,
        share(Mode::Adaptive3)?,
    ];
    // Nodes whose numbers differ by these bits are a hop apart in each dimension.
    let torus = |mode| hops(TorusNetwork::new([4, 4, 4])?, mode, 0b01_01_01, |_| true);
    let exactly = Bar::Within(1e-9);
    let (least, most) = (Bar::AtLeast, Bar::AtMost);
    Ok(vec![
        outcome(
            "global links, min-hash",
            exactly,
            1.0,
            global_links(Mode::MinHash)?,
        ),
        outcome(
            "global links, in-order",
            exactly,
            1.0,
            global_links(Mode::InOrder)?,
        ),
        outcome(
            "global links, nmin-hash",
            exactly,
            2.0,
            global_links(Mode::NminHash)?,
        ),
        outcome("hops, min-hash", exactly, 3.0, torus(Mode::MinHash)?),
        outcome("hops, in-order", exactly, 3.0, torus(Mode::InOrder)?),
        outcome("hops, nmin-hash", least, 4.5, torus(Mode::NminHash)?),
        outcome(
            "share non-minimal, adaptive0 over adaptive2",
            least,
            adaptive[1] + APART,
            adaptive[0],
        ),
        outcome(
            "share non-minimal, adaptive2 over adaptive3",
            least,
            adaptive[2] + APART,
            adaptive[1],
        ),
        outcome("share non-minimal, adaptive3", most, 0.5, adaptive[2]),
    ])
}

/// Links of a kind that a packet passes on average, weighted by its bytes: as links count them, not
/// routers. Each node sends to the one whose number differs by `bits`.
fn hops<T: Topology>(
    topology: T,
    mode: Mode,
    bits: u32,
    is_counted: impl Fn(LinkKind) -> bool,
) -> Result<f64> {
    let nodes = topology.nodes();
    let profile = Profile::aries();
    let packets = u64::from(nodes) * MESSAGE / u64::from(profile.payload);
    let bytes = packets * u64::from(profile.payload + 2 * profile.header);
    let mut network = network(topology, profile, 1)?;
    for from in 0..nodes {
        network.send(Message::put(from, from ^ bits, MESSAGE, mode));
    }
    while network.next().is_some() {}
    let links = (0..network.topology().links()).map(LinkId);
    let counted = links.filter(|link| is_counted(network.topology().kind(*link)));
    let passed: u64 = counted.map(|link| network.link_bytes(link)).sum();
    Ok(passed as f64 / bytes as f64)
}

fn phantom(_: Effort) -> Result<Vec<Outcome>> {
    let current = share_after_burst(0)?;
    let outcome = |what: &str, bar, expected, measured| Outcome {
        against: PAPER,
        what: format!("needless non-minimal share after a burst, {what}"),
        bar,
        expected,
        measured,
    };
    let old = |age_ns, rise: f64| -> Result<Outcome> {
        let what = format!(
            "credits {age_ns} ns old: {} more",
            table::percent(Some(rise))
        );
        let share = share_after_burst(age_ns)?;
        Ok(outcome(&what, Bar::AtLeast, current + rise, share))
    };
    Ok(vec![
        outcome("current credits", Bar::AtMost, 0.01, current),
        old(500, 0.0)?,
        old(1_000, 0.01)?,
        old(2_000, 0.01)?,
    ])
}

/// A burst between groups ends. Then nodes send single packets that nothing delays: each on a
/// non-minimal path is there because of credits that are back by now.
///
/// Cards have no latency, so that the burst ends for senders when it ends in the fabric.
fn share_after_burst(age_ns: u64) -> Result<f64> {
    const PACKETS: u32 = 10;
    let aries = Profile::aries();
    let profile = Profile {
        snapshot_age_ns: age_ns,
        nic: NicCosts {
            send_ns: 0,
            receive_ns: 0,
            ..aries.nic
        },
        ..aries
    };
    let (mut needless, mut all) = (0, 0);
    for seed in 0..40 {
        let mut network = network(dragonfly()?, profile.clone(), seed)?;
        for from in 0..64 {
            network.send(Message {
                domain: 1,
                ..Message::put(from, (from + 16) % 64, 8 << 10, Mode::Adaptive3)
            });
        }
        let mut left = 64;
        while left > 0
            && let Some(happening) = network.next()
        {
            left -= i32::from(matches!(happening, Happening::Delivered(_)));
        }
        let start = network.now();
        for n in 0..PACKETS {
            network.timer(start + u64::from(n) * 350 * TICKS, n.into());
        }
        while let Some(happening) = network.next() {
            if let Happening::Timer(n) = happening {
                let from = (n as u32 * 13 + seed as u32) % 64;
                network.send(Message::put(from, (from + 16) % 64, 64, Mode::Adaptive0));
            }
        }
        let routed = network.routed_in(0);
        needless += routed.non_minimal;
        all += routed.non_minimal + routed.minimal;
    }
    Ok(needless as f64 / all as f64)
}
