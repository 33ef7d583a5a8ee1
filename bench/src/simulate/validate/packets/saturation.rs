//! Saturated links: the time of a pattern is that of the bytes on its busiest link.

use anyhow::Result;
use toroid_fabric::routes::{Dragonfly, Mode, Topology, TorusNetwork};

use super::super::load::busiest_ns;
use super::super::{Bar, Check, Outcome, last_delivery};
use super::{CLOSED_FORM, network};
use crate::plan::Effort;
use crate::sim::{Message, Network, Profile, nanoseconds};

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
    let puts = flows.iter();
    let puts = puts.map(|(from, to)| Message::put(*from, *to, BYTES, Mode::InOrder));
    let puts: Vec<Message> = puts.collect();
    let expected = busiest_ns(topology, &profile, &puts);
    let mut network = network(topology.clone(), profile, 1)?;
    puts.iter().for_each(|put| network.send(*put));
    Ok(Outcome {
        against: CLOSED_FORM,
        what: format!("{name}: {} puts of {BYTES} B, us", puts.len()),
        bar: Bar::Within(0.02),
        expected: expected / 1e3,
        measured: nanoseconds(last_delivery(&mut network)) / 1e3,
    })
}
