//! Latency of an idle fabric.

use anyhow::{Result, ensure};
use toroid_fabric::NodeId;
use toroid_fabric::routes::{Dragonfly, Mode, Topology, TorusNetwork};

use super::super::{Bar, Check, Outcome, last_delivery};
use super::{CLOSED_FORM, network};
use crate::plan::Effort;
use crate::sim::{Message, Network, Profile, nanoseconds};

/// Latencies of the path, and the bytes on its slowest link.
pub const IDLE: Check = Check {
    name: "packets-idle",
    is_long: false,
    run: idle,
};

/// Cray's figures for Aries.
pub const PUBLISHED: Check = Check {
    name: "packets-aries",
    is_long: false,
    run: published,
};

/// Put between two nodes of an idle fabric.
struct Idle {
    hops: usize,
    expected_ns: f64,
    measured_ns: f64,
}

impl Idle {
    fn measure<T: Topology + Clone>(
        topology: &T,
        profile: &Profile,
        (from, to): (u32, u32),
        bytes: u64,
    ) -> Result<Self> {
        let (start, end) = (topology.router(NodeId(from)), topology.router(NodeId(to)));
        let path = topology.minimal(start, end, 0);
        let links = topology
            .steps(&path)
            .map(|step| profile.link(topology.kind(step.link)));
        let mut idle = Idle {
            hops: 0,
            expected_ns: (profile.nic.send_ns + profile.nic.receive_ns) as f64,
            measured_ns: 0.0,
        };
        let mut slowest = profile.nic.rate;
        for link in links {
            idle.hops += 1;
            idle.expected_ns += link.latency_ns as f64;
            slowest = slowest.min(link.rate);
        }
        let wire = bytes.div_ceil(16) * 16 + u64::from(profile.header);
        idle.expected_ns += wire as f64 * 1e9 / slowest as f64;
        let mut network = network(topology.clone(), profile.clone(), 1)?;
        network.send(Message::put(from, to, bytes, Mode::InOrder));
        idle.measured_ns = nanoseconds(last_delivery(&mut network));
        Ok(idle)
    }

    fn error(&self) -> f64 {
        (self.measured_ns / self.expected_ns - 1.0).abs()
    }
}

/// The node behind each number of hops whose latency is farthest from the closed form.
fn worst<T: Topology + Clone>(name: &str, topology: &T, bytes: u64) -> Result<Outcome> {
    let profile = Profile::aries();
    let mut worst: Option<Idle> = None;
    let mut hops = 0;
    for to in (0..topology.nodes()).step_by(7) {
        let idle = Idle::measure(topology, &profile, (0, to), bytes)?;
        hops = hops.max(idle.hops);
        if worst
            .as_ref()
            .is_none_or(|worst| idle.error() > worst.error())
        {
            worst = Some(idle);
        }
    }
    let Some(Idle {
        hops: at,
        expected_ns,
        measured_ns,
    }) = worst
    else {
        anyhow::bail!("{name} has no nodes");
    };
    Ok(Outcome {
        against: CLOSED_FORM,
        what: format!("put of {bytes} B, {name}, 0 to {hops} hops, the worst ({at}), ns"),
        bar: Bar::Within(0.02),
        expected: expected_ns,
        measured: measured_ns,
    })
}

fn idle(_: Effort) -> Result<Vec<Outcome>> {
    let dragonfly = Dragonfly::new([4, 6, 8, 2], None)?;
    let torus = TorusNetwork::new([8, 8, 8])?;
    Ok(vec![
        worst("dragonfly", &dragonfly, 8)?,
        worst("dragonfly", &dragonfly, 64)?,
        worst("torus", &torus, 64)?,
        bgp(1)?,
        bgp(5)?,
    ])
}

/// Put of whole packets to a neighbour: 0.8 us, and 0.9 us a packet.
fn bgp(packets: u32) -> Result<Outcome> {
    let profile = Profile::bgp();
    let bytes = u64::from(packets * profile.payload);
    let mut network = network(TorusNetwork::new([4, 4, 4])?, profile, 1)?;
    network.send(Message::put(0, 1, bytes, Mode::InOrder));
    Ok(Outcome {
        against: CLOSED_FORM,
        what: format!("put of {packets} x 240 B to a neighbour, bgp, us"),
        bar: Bar::Within(0.02),
        expected: 0.8 + 0.9 * f64::from(packets),
        measured: nanoseconds(last_delivery(&mut network)) / 1e3,
    })
}

fn published(_: Effort) -> Result<Vec<Outcome>> {
    let (topology, profile) = (Dragonfly::aries(8)?, Profile::aries());
    let near = Idle::measure(&topology, &profile, (0, 1), 8)?;
    // Within a group: the farthest router is in another row and column.
    let nodes = topology.nodes() / topology.groups();
    let group = Idle::measure(&topology, &profile, (0, nodes - 1), 8)?;
    ensure!(
        near.hops == 0 && group.hops == 2,
        "routes within a group have other lengths"
    );
    let mut across = near.measured_ns;
    for to in (0..topology.nodes()).step_by(37) {
        across = across.max(Idle::measure(&topology, &profile, (0, to), 8)?.measured_ns);
    }
    let outcome = |what: &str, bar, expected, measured| Outcome {
        against: "published: Aries",
        what: what.into(),
        bar,
        expected,
        measured,
    };
    let hop = (group.measured_ns - near.measured_ns) / group.hops as f64;
    Ok(vec![
        outcome(
            "put of 8 B without a hop, us",
            Bar::Within(0.1),
            0.8,
            near.measured_ns / 1e3,
        ),
        outcome("a hop more, ns", Bar::Within(0.1), 100.0, hop),
        outcome(
            "put of 8 B across 8 groups, us",
            Bar::AtMost,
            2.0,
            across / 1e3,
        ),
    ])
}
