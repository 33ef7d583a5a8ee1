use toroid_fabric::routes::{Dragonfly, LinkKind, Operation, TorusNetwork};

use super::*;
use crate::sim::profile::NicCosts;
use crate::sim::tests::run;
use crate::sim::{TICKS, nanoseconds};

const MEMORY: u64 = 1 << 30;

fn network<T: Topology>(topology: T, profile: Profile) -> PacketNetwork<T> {
    PacketNetwork::new(topology, profile, 1, MEMORY).unwrap()
}

fn torus() -> PacketNetwork<TorusNetwork> {
    network(TorusNetwork::new([4, 4, 4]).unwrap(), Profile::aries())
}

/// Two nodes of each router, 64 nodes in 4 groups.
fn dragonfly(profile: Profile) -> PacketNetwork<Dragonfly> {
    network(Dragonfly::new([4, 2, 4, 2], Some(2)).unwrap(), profile)
}

/// Random messages of all nodes of a domain, both ends of which have the same remainder.
fn send_random(network: &mut PacketNetwork<impl Topology>, domains: u16, seed: u64, mode: Mode) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (nodes, domains) = (network.topology().nodes(), u32::from(domains));
    for from in 0..nodes {
        for _ in 0..2 {
            let to = random.u32(0..nodes / domains) * domains + from % domains;
            let message = Message {
                domain: (from % domains) as u16,
                operation: if random.bool() {
                    Operation::Put
                } else {
                    Operation::Get
                },
                ..Message::put(from, to, random.u64(0..1_000), mode)
            };
            network.send(message);
        }
    }
}

#[test]
fn an_idle_put_takes_the_latencies_and_the_slowest_link() {
    // Node 3 is a neighbour of node 0, node 5 is at (1, 1, 0), node 42 at (2, 2, 2).
    for (to, latencies) in [
        (0, 800.0),
        (1, 900.0),
        (3, 900.0),
        (5, 1_000.0),
        (42, 1_400.0),
    ] {
        let mut network = torus();
        network.send(Message::put(0, to, 8, Mode::InOrder));
        let happenings = run(&mut network);
        let rate = if to == 0 { 12.8 } else { 5.25 };
        let expected = latencies + 32.0 / rate;
        let measured = nanoseconds(happenings[0].0);
        assert_eq!(happenings[0].1, Happening::Delivered(0));
        assert!(
            (measured - expected).abs() < 1.0,
            "to {to}: {measured} ns, not {expected}"
        );
        // The response has a flit less.
        let completed = nanoseconds(happenings[1].0);
        assert!(
            (completed - 2.0 * expected + 16.0 / rate).abs() < 1.0,
            "{completed}"
        );
    }
}

#[test]
fn counters_have_the_packets_and_flits_of_the_operations() {
    let mut network = dragonfly(Profile::aries());
    network.send(Message::put(0, 40, 100, Mode::Adaptive0));
    network.send(Message::get(0, 41, 100, Mode::Adaptive3));
    let happenings: Vec<_> = run(&mut network)
        .into_iter()
        .map(|(_, happening)| happening)
        .collect();
    assert_eq!(happenings.len(), 4);
    let puts = network.counters(NodeId(0), 0, Mode::Adaptive0);
    assert_eq!(
        (puts.packets, puts.request_flits, puts.stalled_cycles),
        (2, 9, 0)
    );
    let gets = network.counters(NodeId(0), 0, Mode::Adaptive3);
    assert_eq!(
        (gets.packets, gets.request_flits, gets.stalled_cycles),
        (2, 2, 0)
    );
    assert_eq!(
        network.counters(NodeId(0), 1, Mode::Adaptive0),
        Counters::default()
    );
    assert_eq!(
        network.counters(NodeId(40), 0, Mode::Adaptive0),
        Counters::default()
    );
    assert_eq!(network.delivered(NodeId(40), 0), 100);
    assert_eq!(network.delivered(NodeId(0), 0), 100);
    assert!(network.is_idle());
}

#[test]
fn random_traffic_of_all_modes_loses_nothing() {
    for mode in Mode::ALL {
        let mut network = dragonfly(Profile::aries());
        send_random(&mut network, 1, 7, mode);
        let happenings = run(&mut network);
        assert_eq!(happenings.len(), 2 * 2 * 64, "{mode}");
        assert!(network.is_idle(), "{mode}");
        let mut network = torus();
        send_random(&mut network, 1, 7, mode);
        assert_eq!(run(&mut network).len(), 2 * 2 * 64, "{mode}");
        assert!(network.is_idle(), "{mode}");
    }
}

#[test]
fn fixed_modes_keep_to_their_paths() {
    let cases = [
        (Mode::MinHash, 0.0),
        (Mode::InOrder, 0.0),
        (Mode::NminHash, 1.0),
    ];
    for (mode, share) in cases {
        let mut network = dragonfly(Profile::aries());
        for from in 0..32 {
            network.send(Message::put(from, from + 32, 4096, mode));
        }
        run(&mut network);
        assert_eq!(network.routed().share_non_minimal(), share, "{mode}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = |seed| {
        let topology = Dragonfly::new([4, 2, 4, 2], Some(2)).unwrap();
        let mut network = PacketNetwork::new(topology, Profile::aries(), seed, MEMORY).unwrap();
        send_random(&mut network, 2, 7, Mode::Adaptive0);
        (run(&mut network), network.events(), network.routed())
    };
    let first = trace(3);
    assert_eq!(first, trace(3));
    assert_ne!(first, trace(4));
}

#[test]
fn domains_share_links_and_deliver_nothing_to_each_other() {
    let mut network = dragonfly(Profile::aries());
    send_random(&mut network, 2, 9, Mode::Adaptive0);
    run(&mut network);
    for node in 0..64 {
        let other = 1 - (node % 2) as u16;
        assert_eq!(network.delivered(NodeId(node), other), 0);
        for mode in Mode::ALL {
            assert_eq!(
                network.counters(NodeId(node), other, mode),
                Counters::default()
            );
        }
    }
}

#[test]
fn two_domains_of_a_card_take_turns() {
    let mut network = torus();
    network.send(Message::put(0, 1, 64_000, Mode::InOrder));
    let other = Message {
        domain: 1,
        token: 77,
        ..Message::put(0, 1, 64, Mode::InOrder)
    };
    network.send(other);
    assert_eq!(run(&mut network)[0].1, Happening::Delivered(77));
}

/// Cycles that a long put takes per flit, with a round trip of `cycles` at an idle fabric.
fn cycles_per_flit(cycles: u64) -> (f64, u32) {
    let quarter = cycles * 5 / 4 / 4;
    let profile = Profile {
        nic: NicCosts {
            send_ns: quarter,
            receive_ns: quarter,
            buffer: 4096,
            ..Profile::aries().nic
        },
        ..Profile::aries()
    };
    let mut network = dragonfly(profile);
    let packets = 4 * 1024;
    network.send(Message::put(0, 1, packets * 64, Mode::InOrder));
    let (end, _) = run(&mut network)[1];
    let flits = network.counters(NodeId(0), 0, Mode::InOrder).request_flits;
    let sending = end - 4 * quarter * TICKS;
    (
        sending as f64 / 10.0 / flits as f64,
        network.most_outstanding(),
    )
}

#[test]
fn the_window_blocks_only_latencies_over_5120_cycles() {
    let (below, most) = cycles_per_flit(4_900);
    assert!(below < 1.01, "{below}");
    assert!(most < 1024, "{most}");
    let (above, most) = cycles_per_flit(5_640);
    assert!((1.03..1.11).contains(&above), "{above}");
    assert_eq!(most, 1024);
}

#[test]
fn a_simulation_without_memory_does_not_start() {
    let topology = TorusNetwork::new([40, 40, 40]).unwrap();
    let error = PacketNetwork::new(topology, Profile::aries(), 1, 1 << 30).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("a simulation of 64000 nodes at the level of packets may need "),
        "{text}"
    );
    assert!(
        text.ends_with("1.0 GiB are available: use fewer nodes, or the level of chunks"),
        "{text}"
    );
}

#[test]
fn a_packet_over_the_limit_is_named() {
    let profile = Profile {
        payload: 512,
        ..Profile::bgp()
    };
    let topology = TorusNetwork::new([2, 2, 2]).unwrap();
    let error = PacketNetwork::new(topology, profile, 1, MEMORY).unwrap_err();
    assert_eq!(
        error.to_string(),
        "profile \"bgp\": a packet of 528 bytes is too large: at most 496 are possible"
    );
}

#[test]
fn diversions_count_as_the_hops_that_they_make() {
    let mut network = dragonfly(Profile::aries());
    // Requests and responses of a flit, all of them between groups.
    let messages = 64 * 200;
    for message in 0..messages {
        let from = message % 64;
        network.send(Message::put(from, (from + 16) % 64, 0, Mode::Adaptive1));
    }
    run(&mut network);
    let routed = network.routed();
    let packets = 2 * u64::from(messages);
    assert_eq!(routed.minimal + routed.non_minimal, packets);
    let topology = network.topology();
    let links = (0..topology.links()).map(LinkId);
    let global = links.filter(|link| topology.kind(*link) == LinkKind::Global);
    let passed: u64 = global.map(|link| network.link_bytes(link) / FLIT).sum();
    assert!(routed.non_minimal > packets / 100, "{routed:?}");
    assert_eq!(routed.non_minimal, passed - packets, "{routed:?}");
}

#[test]
fn a_card_that_sends_responses_is_not_stalled() {
    // Each node sends to the farthest one of its ring, and answers another.
    let mut network = network(TorusNetwork::new([9, 1, 1]).unwrap(), Profile::aries());
    for from in 0..9 {
        network.send(Message::put(from, (from + 4) % 9, 128 << 10, Mode::InOrder));
    }
    let (warm, end) = (20_000 * TICKS, 100_000 * TICKS);
    network.timer(warm, 100);
    network.timer(end, 101);
    let mut used = [0; 2];
    while let Some(happening) = network.next() {
        if let Happening::Timer(token) = happening {
            let stalled = network.counters(NodeId(0), 0, Mode::InOrder).stalled_cycles * 10;
            let link = network.links.link(network.links.card_to_router(0, false));
            used[token as usize - 100] = stalled + network.links.busy(link);
        }
    }
    let share = (used[1] - used[0]) as f64 / (end - warm) as f64;
    assert!((0.99..1.005).contains(&share), "{share}");
}
