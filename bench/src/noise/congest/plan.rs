//! The measurements: a victim's operations beside a pattern of traffic, or beside none.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use toroid_fabric::model::{self, LocalClocks, carry};
use toroid_fabric::{NodeId, Torus};
use toroid_model::link::{FabricProfile, LinkModel, Time, TorusLinks};

use crate::report::name;

/// A ring of which both domains have every other node: traffic of each takes two links, and shares
/// both with the other domain.
pub const TORUS: [u16; 3] = [6, 1, 1];

/// Nodes of the victim: of the measuring process, of its peer, and of a third rank.
pub const VICTIMS: [&str; 3] = ["0,0,0", "2,0,0", "4,0,0"];

/// Nodes of the congestors. The first one, between both victims, is the root of a pattern.
pub const CONGESTORS: [&str; 3] = ["1,0,0", "3,0,0", "5,0,0"];

/// Bytes of a short operation of the victim, and of a long one.
const BYTES: [usize; 2] = [8, 64 << 10];

/// Bytes of an operation of a congestor, and operations under way to each member. Longer operations
/// would hold a link for longer than a network of packets does.
pub const OPERATION: usize = 64 << 10;
pub const DEPTH: u32 = 4;

/// Sleep of a flow without a model of links.
const PAUSE: Duration = Duration::from_micros(500);

/// Bytes of a datagram to a group. A frame carries it on any interface.
pub const DATAGRAM: usize = 1400;

/// Bytes of headers of a datagram: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Datagrams to a group per second: most of them, and the share of the rate of an emulated torus.
/// More would only be lost, or take the processors of the victim.
const MOST: f64 = 20_000.0;
const SHARE: f64 = 0.9;

/// Datagrams on the virtual clock.
const DATAGRAMS: u64 = 1000;

/// Path of all traffic of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// One-sided operations.
    Rdma,
    /// Sockets over the interfaces of the domains.
    Ethernet,
}

/// Traffic of the congestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Every member sends to all others.
    AllToAll,
    /// All other members send to one.
    Incast,
    /// All other members read from one, which over Ethernet sends to their group.
    Broadcast,
}

/// What the victim does, one operation after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Short operations.
    Latency,
    /// Long operations.
    Bandwidth,
    /// Sums over all nodes of the victim.
    Allreduce,
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub path: Path,
    pub test: Test,
    /// `None` for the control: the victim is isolated both times.
    pub pattern: Option<Pattern>,
}

impl Test {
    /// Bytes of an operation.
    pub fn bytes(self) -> usize {
        match self {
            Test::Latency | Test::Allreduce => BYTES[0],
            Test::Bandwidth => BYTES[1],
        }
    }
}

impl Key {
    /// The name of the pattern.
    pub fn beside(&self) -> String {
        self.pattern.map_or("isolated".into(), name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (test, path) = (name(self.test), name(self.path));
        write!(f, "{test} over {path}, {}", self.beside())
    }
}

/// All measurements on these paths beside these patterns. An empty list has all.
pub fn keys(paths: &[Path], patterns: &[Pattern]) -> Vec<Key> {
    let mut keys = Vec::new();
    for path in wanted(paths) {
        for test in [Test::Latency, Test::Bandwidth, Test::Allreduce] {
            let patterns = wanted(patterns).into_iter().map(Some);
            let patterns = [None].into_iter().chain(patterns);
            keys.extend(patterns.map(|pattern| Key {
                path,
                test,
                pattern,
            }));
        }
    }
    keys
}

/// The values of a list in their usual order and once, or all.
pub fn wanted<T: ValueEnum + PartialEq>(given: &[T]) -> Vec<T> {
    let all = T::value_variants().iter();
    let wanted = all.filter(|value| given.is_empty() || given.contains(value));
    wanted.cloned().collect()
}

/// Sleep of a congestor's flow after each [`DEPTH`] operations.
pub fn pause(is_emulated: bool) -> Duration {
    if is_emulated { Duration::ZERO } else { PAUSE }
}

/// Datagrams to a group per second.
pub fn datagrams_per_s(profile: Option<&FabricProfile>) -> f64 {
    let modelled = profile.and_then(modelled_per_s);
    modelled.map_or(MOST, |rate| MOST.min(SHARE * rate))
}

/// Datagrams per second that the root can send to both other congestors, by the model alone.
fn modelled_per_s(profile: &FabricProfile) -> Option<f64> {
    let [x, y, z] = TORUS;
    let torus = Torus::new(x, y, z).ok()?;
    let links = LinkModel::Torus(TorusLinks {
        profile: profile.clone(),
        torus,
        base: Time(0),
        links: Box::default(),
    });
    let node = |place: &str| torus.node(place.parse().ok()?);
    let nodes: Vec<NodeId> = CONGESTORS.iter().filter_map(|place| node(place)).collect();
    let (root, others) = nodes.split_first()?;
    let route = |other: &NodeId| links.route(*root, *other, model::Path::Ethernet);
    let routes: Vec<_> = others.iter().filter_map(route).collect();
    let (clocks, bytes) = (LocalClocks::default(), (DATAGRAM + HEADERS) as u64);
    let mut last = 0;
    for _ in 0..DATAGRAMS {
        for route in &routes {
            last = last.max(carry(route, &clocks, 0, bytes, 0).arrival);
        }
    }
    (last > 0).then(|| DATAGRAMS as f64 * 1e9 / last as f64)
}

#[cfg(test)]
mod tests {
    use toroid_fabric::Place;

    use super::*;

    #[test]
    fn every_path_and_test_has_a_control_and_its_patterns() {
        let all = keys(&[], &[]);
        assert_eq!(all.len(), 2 * 3 * 4);
        assert_eq!(all.iter().filter(|key| key.pattern.is_none()).count(), 6);
        let few = keys(
            &[Path::Rdma],
            &[Pattern::Broadcast, Pattern::Incast, Pattern::Incast],
        );
        let names: Vec<String> = few.iter().map(Key::to_string).collect();
        assert_eq!(names.len(), 9);
        assert_eq!(names[0], "latency over rdma, isolated");
        assert_eq!(names[5], "bandwidth over rdma, broadcast");
    }

    /// Both ways of the victim share a link with a flow of each pattern.
    #[test]
    fn the_victim_shares_links_with_every_pattern() {
        let torus = Torus::new(TORUS[0], TORUS[1], TORUS[2]).unwrap();
        let hops = |from: &str, to: &str| {
            let node = |place: &str| torus.node(place.parse::<Place>().unwrap()).unwrap();
            torus.route(node(from), node(to)).unwrap()
        };
        let [victim, peer, _] = VICTIMS;
        let [root, others @ ..] = CONGESTORS;
        let inward: Vec<_> = others.iter().flat_map(|other| hops(other, root)).collect();
        let outward: Vec<_> = others.iter().flat_map(|other| hops(root, other)).collect();
        for flows in [inward, outward] {
            for way in [hops(victim, peer), hops(peer, victim)] {
                assert_eq!(way.len(), 2);
                let shared = way.iter().filter(|hop| flows.contains(hop));
                assert_eq!(shared.count(), 1, "{way:?}, {flows:?}");
            }
        }
    }

    /// Of Blue Gene/P the sender's host is the slowest: 13.499 us and 2.4 ns a byte, for each copy.
    #[test]
    fn a_group_gets_what_the_slowest_stage_carries() {
        let copies = 2.0 * (13_499.0 + 1442.0 * 2.4);
        let rate = modelled_per_s(&FabricProfile::bgp()).unwrap();
        assert!((rate * copies / 1e9 - 1.0).abs() < 0.01, "{rate}");
        assert_eq!(datagrams_per_s(Some(&FabricProfile::bgp())), MOST);
        assert_eq!(datagrams_per_s(None), MOST);
        let slow = "name = \"slow\"\nrate = \"1MB/s\"\nhop = \"1us\"";
        let slow = datagrams_per_s(Some(&FabricProfile::parse(slow).unwrap()));
        // The links to both others are different.
        assert!((slow * 1442.0 / (SHARE * 1e6) - 1.0).abs() < 0.01, "{slow}");
    }
}
