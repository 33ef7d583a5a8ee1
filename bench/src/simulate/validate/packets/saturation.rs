//! Saturated links: the time of a pattern is that of the bytes on its busiest link.

use anyhow::Result;
use toroid_fabric::NodeId;
use toroid_fabric::routes::{Dragonfly, Mode, Topology, TorusNetwork};

use super::super::{Bar, Check, Outcome};
use super::{CLOSED_FORM, last_delivery, network, put};
use crate::plan::Effort;
use crate::sim::{Network, Profile, nanoseconds};

/// Tornado, incast and a permutation by fixed routes.
pub const SATURATION: Check = Check {
    name: "packets-saturation",
    is_long: false,
    run: saturation,
};

const BYTES: u64 = 512 << 10;

/// Messages of [`BYTES`] from one node to another.
type Flows = Vec<(u32, u32)>;

fn saturation(_: Effort) -> Result<Vec<Outcome>> {
    // Each node sends to the farthest one in its direction of x: 4 flows on each link upwards.
    let ring = TorusNetwork::new([9, 3, 3])?;
    let tornado = (0..81).map(|from| (from, from / 9 * 9 + (from % 9 + 4) % 9));
    // The upper half in z reaches node 0 by the same last link.
    let torus = TorusNetwork::new([4, 4, 4])?;
    let incast = (32..64).map(|from| (from, 0));
    let group = Dragonfly::new([1, 4, 8, 2], None)?;
    let to_one = (2..64).map(|from| (from, 0));
    Ok(vec![
        outcome("tornado on a torus", &ring, tornado.collect())?,
        outcome("incast on a torus", &torus, incast.collect())?,
        outcome("incast in a group", &group, to_one.collect())?,
    ])
}

fn outcome<T: Topology + Clone>(name: &str, topology: &T, flows: Flows) -> Result<Outcome> {
    let profile = Profile::aries();
    let expected = busiest_ns(topology, &profile, &flows);
    let mut network = network(topology.clone(), profile, 1)?;
    for (from, to) in &flows {
        network.send(put(*from, *to, BYTES, Mode::InOrder));
    }
    Ok(Outcome {
        against: CLOSED_FORM,
        what: format!("{name}: {} puts of {BYTES} B, us", flows.len()),
        bar: Bar::Within(0.02),
        expected: expected / 1e3,
        measured: nanoseconds(last_delivery(&mut network)) / 1e3,
    })
}

/// Nanoseconds that the busiest link or card needs for its bytes, those of responses included.
fn busiest_ns<T: Topology>(topology: &T, profile: &Profile, flows: &Flows) -> f64 {
    let packets = BYTES / u64::from(profile.payload);
    let request = (packets * u64::from(profile.payload + profile.header)) as f64;
    let response = (packets * u64::from(profile.header)) as f64;
    let mut links = vec![0.0; topology.links() as usize];
    let nodes = topology.nodes() as usize;
    let (mut sent, mut received) = (vec![0.0; nodes], vec![0.0; nodes]);
    let mut add = |from: u32, to: u32, bytes: f64| {
        sent[from as usize] += bytes;
        received[to as usize] += bytes;
        let ends = (topology.router(NodeId(from)), topology.router(NodeId(to)));
        let path = topology.minimal(ends.0, ends.1, 0);
        for step in topology.steps(&path) {
            let rate = profile.link(topology.kind(step.link)).rate;
            links[step.link.0 as usize] += bytes * 1e9 / rate as f64;
        }
    };
    for (from, to) in flows {
        add(*from, *to, request);
        add(*to, *from, response);
    }
    let cards = sent.into_iter().chain(received);
    let cards = cards.map(|bytes| bytes * 1e9 / profile.nic.rate as f64);
    links.into_iter().chain(cards).fold(0.0, f64::max)
}
