//! Properties of paths, and of the modes that choose among them.

mod choice;
mod deadlock;

use proptest::prelude::*;

use super::*;

fn torus(x: u32, y: u32, z: u32) -> TorusNetwork {
    TorusNetwork::new([x, y, z]).unwrap()
}

fn dragonfly(sizes: [u32; 4], global: u32) -> Dragonfly {
    Dragonfly::new(sizes, Some(global)).unwrap()
}

/// Walks a path; returns its hops, which are connected and end where the path says.
fn walk<T: Topology>(topology: &T, path: Path) -> Vec<Step> {
    let (mut at, steps) = (path.at(), topology.steps(&path).collect::<Vec<_>>());
    for step in &steps {
        let ends = topology.ends(step.link);
        assert_eq!(ends.from, at, "{path:?} {steps:?}");
        assert!(step.link.0 < topology.links());
        assert!(step.channel < topology.channels());
        at = ends.to;
    }
    assert_eq!(at, path.to(), "{path:?} {steps:?}");
    assert_eq!(topology.hops(&path), steps.len() as u32);
    steps
}

/// Distances from a router by breadth-first search over the links.
fn search(topology: &impl Topology, from: RouterId) -> Vec<u32> {
    let mut distances = vec![u32::MAX; topology.routers() as usize];
    distances[from.0 as usize] = 0;
    for distance in 0..topology.routers() {
        for link in 0..topology.links() {
            let ends = topology.ends(LinkId(link));
            if distances[ends.from.0 as usize] == distance {
                let to = &mut distances[ends.to.0 as usize];
                *to = (*to).min(distance + 1);
            }
        }
    }
    distances
}

/// Every link is the hop of some path, and is numbered once.
fn links_are_distinct(topology: &impl Topology) {
    let mut seen = std::collections::BTreeMap::new();
    for link in 0..topology.links() {
        let ends = topology.ends(LinkId(link));
        assert!(ends.from.0 < topology.routers() && ends.to.0 < topology.routers());
        *seen.entry(ends).or_insert(0) += 1;
    }
    for (ends, n) in &seen {
        let back = Ends {
            from: ends.to,
            to: ends.from,
        };
        assert_eq!(seen.get(&back), Some(n), "{ends:?}");
    }
}

fn shapes() -> impl Strategy<Value = Network> {
    let torus = (1..8_u32, 1..8_u32, 1..8_u32)
        .prop_map(|(x, y, z)| Network::Torus(TorusNetwork::new([x, y, z]).unwrap()));
    let dragonfly = (1..7_u32, 1..5_u32, 1..6_u32, 1..4_u32, any::<u32>()).prop_filter_map(
        "ports",
        |(groups, chassis, routers, nodes, links)| {
            let sizes = [groups, chassis, routers, nodes];
            let all = Dragonfly::new(sizes, None).ok()?;
            let links = links % all.global_links().max(1) + 1;
            Some(Network::Dragonfly(Dragonfly::new(sizes, Some(links)).ok()?))
        },
    );
    prop_oneof![torus, dragonfly]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn paths_are_connected_and_minimal_ones_shortest(
        network in shapes(),
        ends in (any::<u32>(), any::<u32>()),
        choices in prop::collection::vec(any::<u64>(), 8),
    ) {
        let (from, to) = (ends.0 % network.routers(), ends.1 % network.routers());
        let (from, to) = (RouterId(from), RouterId(to));
        let distance = network.distance(from, to);
        for choice in choices.into_iter().chain([0]) {
            let minimal = walk(&network, network.minimal(from, to, choice));
            let long = network.non_minimal(from, to, choice);
            let steps = walk(&network, long);
            match &network {
                Network::Torus(_) => prop_assert_eq!(minimal.len() as u32, distance),
                Network::Dragonfly(its) => {
                    let global = |steps: &[Step]| {
                        let is_global = |step: &&Step| network.kind(step.link) == LinkKind::Global;
                        steps.iter().filter(is_global).count()
                    };
                    let between = usize::from(its.group(from) != its.group(to));
                    prop_assert!((distance as usize..=2 + 3 * between).contains(&minimal.len()));
                    prop_assert_eq!(global(&minimal), between);
                    if !long.is_minimal() {
                        prop_assert_eq!(global(&steps), 2 * between);
                        prop_assert!(steps.len() <= 4 + 6 * between);
                    }
                }
            }
            let has_other = match &network {
                Network::Torus(_) => network.routers() > 2,
                Network::Dragonfly(its) if its.group(from) == its.group(to) => {
                    network.routers() / its.groups() > 2
                }
                Network::Dragonfly(its) => its.groups() > 2,
            };
            prop_assert_eq!(long.is_minimal(), !has_other || from == to);
        }
    }

    #[test]
    fn distances_are_those_of_a_search(network in shapes(), from in any::<u32>()) {
        let from = RouterId(from % network.routers());
        for (to, distance) in search(&network, from).into_iter().enumerate() {
            let of = network.distance(from, RouterId(to as u32));
            // A way through a third group may be shorter than any with one global link.
            let is_same = match &network {
                Network::Torus(_) => of == distance,
                Network::Dragonfly(_) => distance <= of,
            };
            prop_assert!(is_same, "{from:?} {to} {of} {distance}");
        }
    }

    #[test]
    fn networks_are_read_as_written(network in shapes()) {
        prop_assert_eq!(network.to_string().parse::<Network>(), Ok(network.clone()));
        links_are_distinct(&network);
    }
}

#[test]
fn an_aries_group_has_96_routers_and_384_nodes() {
    let one = Dragonfly::aries(1).unwrap();
    assert_eq!((one.routers(), one.nodes()), (96, 384));
    // 15 links in the chassis, 3 to each of 5 routers of the column.
    assert_eq!(one.links(), 96 * (15 + 15));
    let six = Dragonfly::aries(6).unwrap();
    assert_eq!((six.routers(), six.nodes()), (576, 2304));
    assert_eq!(six.global_links(), 192);
    links_are_distinct(&six);
}

#[test]
fn global_links_are_spread_evenly() {
    for network in [Dragonfly::aries(6).unwrap(), dragonfly([5, 6, 16, 4], 12)] {
        let mut ports = vec![0; network.routers() as usize];
        for link in (0..network.links()).map(LinkId) {
            if network.kind(link) == LinkKind::Global {
                ports[network.ends(link).from.0 as usize] += 1;
            }
        }
        let (least, most) = (ports.iter().min(), ports.iter().max());
        assert!(*most.unwrap() <= 10 && most.unwrap() - least.unwrap() <= 1);
    }
}

#[test]
fn the_longest_paths_have_5_and_10_hops() {
    let network = dragonfly([5, 6, 16, 4], 12);
    let mut random = fastrand::Rng::with_seed(3);
    let (mut minimal, mut long) = (0, 0);
    for _ in 0..20_000 {
        let mut router = || RouterId(random.u32(..network.routers()));
        let (from, to) = (router(), router());
        minimal = minimal.max(network.hops(&network.minimal(from, to, random.u64(..))));
        long = long.max(network.hops(&network.non_minimal(from, to, random.u64(..))));
    }
    assert_eq!((minimal, long), (5, 10));
}

#[test]
fn choices_reach_all_global_links_of_a_pair() {
    let network = dragonfly([3, 2, 8, 4], 12);
    let mut random = fastrand::Rng::with_seed(5);
    let mut used = std::collections::BTreeSet::new();
    for _ in 0..500 {
        let path = network.minimal(RouterId(1), RouterId(20), random.u64(..));
        let steps = network.steps(&path);
        used.extend(steps.filter(|step| network.kind(step.link) == LinkKind::Global));
    }
    let links: std::collections::BTreeSet<_> = used.iter().map(|step| step.link).collect();
    assert_eq!(links.len(), 12);
}

#[test]
fn a_large_torus_has_the_wrapped_manhattan_distance() {
    let network = torus(64, 32, 32);
    assert_eq!(network.nodes(), 65_536);
    let (a, b) = (network.at([0, 0, 0]), network.at([63, 16, 31]));
    assert_eq!(network.distance(a, b), 1 + 16 + 1);
    assert_eq!(walk(&network, network.minimal(a, b, u64::MAX)).len(), 18);
    assert!(TorusNetwork::new([256, 256, 256]).is_ok());
}

#[test]
fn choice_0_is_the_route_of_a_live_torus() {
    for text in ["2x2x2", "5x4x2", "3x3x3", "1x1x7"] {
        let live: crate::Torus = text.parse().unwrap();
        let [x, y, z] = live.sizes().map(u32::from);
        let network = torus(x, y, z);
        for (from, to) in (0..live.nodes()).flat_map(|a| (0..live.nodes()).map(move |b| (a, b))) {
            let route = live.route(NodeId(from), NodeId(to)).unwrap();
            let links: Vec<_> = route.into_iter().map(TorusNetwork::link).collect();
            let path = network.minimal(RouterId(from), RouterId(to), 0);
            let steps = network.steps(&path).map(|step| step.link);
            assert_eq!(steps.collect::<Vec<_>>(), links);
        }
    }
}

#[test]
fn bad_networks_are_named() {
    let parse = |text: &str| text.parse::<Network>().unwrap_err();
    for text in [
        "",
        "torus",
        "torus:2x2",
        "torus:axbxc",
        "mesh:2x2x2",
        "torus:2x2x2:3",
    ] {
        assert_eq!(parse(text), NetworkError::Unknown(text.into()));
    }
    for text in [
        "dragonfly:",
        "dragonfly:2x2",
        "dragonfly:2:x",
        "dragonfly:-1",
    ] {
        assert_eq!(parse(text), NetworkError::Unknown(text.into()));
    }
    for text in [
        "torus:0x1x1",
        "dragonfly:0",
        "dragonfly:2:0",
        "dragonfly:2x0x1x1",
    ] {
        assert_eq!(parse(text), NetworkError::Zero);
    }
    assert_eq!(parse("torus:4096x4096x2"), NetworkError::TooLarge(1 << 24));
    assert_eq!(
        parse("torus:4294967295x4294967295x4294967295"),
        NetworkError::TooLarge(1 << 24)
    );
    let too_many = |groups, most| NetworkError::TooManyGlobalLinks { groups, most };
    assert_eq!(parse("dragonfly:3:481"), too_many(3, 480));
    assert_eq!(parse("dragonfly:962"), too_many(962, 0));
    assert_eq!(
        parse("dragonfly:60000"),
        NetworkError::TooManyRouters(1 << 20)
    );
}
