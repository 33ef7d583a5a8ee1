//! Work of links and cards, by the routes of messages alone.

use toroid_fabric::routes::Topology;

use crate::sim::{Message, Profile};

/// Nanoseconds that the busiest link or card needs for the bytes of puts by their minimal paths,
/// responses included. No simulation is asked.
pub fn busiest_ns<T: Topology>(topology: &T, profile: &Profile, puts: &[Message]) -> f64 {
    let mut links = vec![0.0; topology.links() as usize];
    let nodes = topology.nodes() as usize;
    let (mut sent, mut received) = (vec![0.0; nodes], vec![0.0; nodes]);
    let mut add = |from, to, bytes: u64| {
        let ns = |rate: u64| bytes as f64 * 1e9 / rate as f64;
        let ends = (topology.router(from), topology.router(to));
        for step in topology.steps(&topology.minimal(ends.0, ends.1, 0)) {
            let rate = profile.link(topology.kind(step.link)).rate;
            links[step.link.0 as usize] += ns(rate);
        }
        sent[from.0 as usize] += ns(profile.nic.rate);
        received[to.0 as usize] += ns(profile.nic.rate);
    };
    for put in puts {
        let headers = put.bytes.div_ceil(profile.payload.into()) * u64::from(profile.header);
        add(put.from, put.to, put.bytes + headers);
        add(put.to, put.from, headers);
    }
    let all = links.into_iter().chain(sent).chain(received);
    all.fold(0.0, f64::max)
}
