use toroid_fabric::routes::{Dragonfly, TorusNetwork};

use super::*;
use crate::sim::nanoseconds;
use crate::sim::profile::{LinkCosts, NicCosts};
use crate::sim::tests::run;

const MEMORY: u64 = 1 << 30;

/// 1 byte a nanosecond, so that every time below is a whole number.
fn profile() -> Profile {
    Profile {
        name: "test",
        torus: LinkCosts {
            rate: 1_000_000_000,
            latency_ns: 100,
        },
        nic: NicCosts {
            rate: 1_000_000_000,
            send_ns: 300,
            receive_ns: 50,
            packet_ns: 0,
            ..Profile::bgp().nic
        },
        header: 0,
        payload: 256,
        ..Profile::bgp()
    }
}

fn torus(profile: Profile, chunk: u64) -> ChunkNetwork<TorusNetwork> {
    let topology = TorusNetwork::new([4, 4, 4]).unwrap();
    ChunkNetwork::new(topology, profile, chunk, 1, MEMORY).unwrap()
}

fn put(from: u32, to: u32, bytes: u64) -> Message {
    Message::put(from, to, bytes, Mode::InOrder)
}

fn get(from: u32, to: u32, bytes: u64) -> Message {
    Message::get(from, to, bytes, Mode::InOrder)
}

/// All happenings with their nanoseconds.
fn run_ns(network: &mut impl Network) -> Vec<(f64, Happening)> {
    let happenings = run(network).into_iter();
    happenings
        .map(|(at, what)| (nanoseconds(at), what))
        .collect()
}

#[test]
fn an_idle_message_takes_latencies_and_bytes_and_its_answer_latencies() {
    // Node 5 is at (1, 1, 0).
    let latencies = 300.0 + 2.0 * 100.0 + 50.0;
    for bytes in [0, 256, 4096, 40_000] {
        let mut network = torus(profile(), DEFAULT_CHUNK);
        network.send(put(0, 5, bytes));
        let happenings = run_ns(&mut network);
        let arrival = latencies + bytes as f64;
        let expected = [
            (arrival, Happening::Delivered(0)),
            (arrival + latencies, Happening::Completed(0)),
        ];
        assert_eq!(happenings, expected, "{bytes}");
        assert!(network.is_idle());

        let mut network = torus(profile(), DEFAULT_CHUNK);
        network.send(get(0, 5, bytes));
        let times: Vec<f64> = run_ns(&mut network).iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [2.0 * latencies + bytes as f64; 2], "{bytes}");
    }
}

#[test]
fn messages_of_a_card_leave_in_order_and_those_of_several_share_a_link() {
    let mut network = torus(profile(), 256);
    network.send(put(0, 1, 25_600));
    network.send(Message {
        token: 9,
        ..put(0, 1, 256)
    });
    let first: Vec<Happening> = run_ns(&mut network)
        .iter()
        .map(|(_, happening)| *happening)
        .collect();
    assert_eq!(first[0], Happening::Delivered(0));

    // Both take the link from node 1 to node 2, in turns: each takes twice as long.
    let mut network = torus(profile(), 256);
    network.send(put(0, 2, 25_600));
    network.send(put(1, 2, 25_600));
    for (at, happening) in run_ns(&mut network) {
        if let Happening::Delivered(_) = happening {
            assert!((51_000.0..52_000.0).contains(&at), "{happening:?} at {at}");
        }
    }
}

#[test]
fn the_window_limits_what_is_under_way() {
    let narrow = Profile {
        nic: NicCosts {
            window: 1,
            ..profile().nic
        },
        ..profile()
    };
    let mut network = torus(narrow, 256);
    network.send(put(0, 1, 10 * 256));
    let (end, _) = run_ns(&mut network)[1];
    // 10 round trips of 2 x 450 ns and 256 B.
    assert_eq!(end, 10.0 * (900.0 + 256.0));
    let counters = network.counters(NodeId(0), 0, Mode::InOrder);
    assert_eq!((counters.packets, counters.request_flits), (10, 160));
    assert_eq!(counters.latency_ns, 10 * 1_156);
    // Back-pressure did not hold the requests.
    assert_eq!(counters.stalled_cycles, 0);
}

#[test]
fn links_carry_the_bytes_of_all_messages_and_the_busiest_is_named() {
    let mut network = torus(profile(), DEFAULT_CHUNK);
    network.send(put(0, 2, 10_000));
    network.send(put(1, 2, 10_000));
    run_ns(&mut network);
    let links = network.topology().links();
    let all: u64 = (0..links)
        .map(|link| network.link_bytes(LinkId(link)))
        .sum();
    assert_eq!(all, 30_000);
    let busiest = network.busiest().unwrap();
    assert_eq!(busiest.bytes, 20_000);
    assert!(busiest.busy > 0.9 && busiest.busy <= 1.0, "{busiest:?}");
}

#[test]
fn random_traffic_of_all_modes_loses_nothing_and_repeats() {
    let trace = |mode| {
        let topology = Dragonfly::new([4, 2, 4, 2], Some(2)).unwrap();
        let network = ChunkNetwork::new(topology, Profile::aries(), 4096, 3, MEMORY);
        let mut network = network.unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        for from in 0..64 {
            for message in [Message::put, Message::get] {
                let (to, bytes) = (random.u32(0..64), random.u64(0..20_000));
                network.send(message(from, to, bytes, mode));
            }
        }
        let happenings = run_ns(&mut network);
        assert_eq!(happenings.len(), 2 * 2 * 64, "{mode}");
        assert!(network.is_idle(), "{mode}");
        (happenings, network.routed())
    };
    for mode in Mode::ALL {
        let (happenings, routed) = trace(mode);
        assert_eq!((happenings, routed), trace(mode), "{mode}");
        if matches!(mode, Mode::MinHash | Mode::InOrder) {
            assert_eq!(routed.non_minimal, 0);
        }
    }
}

#[test]
fn timers_happen_in_order_with_messages() {
    let mut network = torus(profile(), DEFAULT_CHUNK);
    network.timer(16_000, 7);
    network.timer(8, 8);
    network.send(put(0, 1, 100));
    let happenings: Vec<Happening> = run_ns(&mut network)
        .iter()
        .map(|(_, happening)| *happening)
        .collect();
    let expected = [
        Happening::Timer(8),
        Happening::Delivered(0),
        Happening::Completed(0),
        Happening::Timer(7),
    ];
    assert_eq!(happenings, expected);
}

#[test]
fn chunks_and_memory_that_do_not_fit_are_named() {
    let error = |chunk, memory| {
        let topology = TorusNetwork::new([64, 32, 32]).unwrap();
        let network = ChunkNetwork::new(topology, Profile::bgp(), chunk, 1, memory);
        network.map(|_| ()).unwrap_err().to_string()
    };
    let wrong = "profile \"bgp\": a chunk has from 1 to 65536 bytes, not";
    assert_eq!(error(0, MEMORY), format!("{wrong} 0"));
    assert_eq!(error(65_537, MEMORY), format!("{wrong} 65537"));
    let memory = error(DEFAULT_CHUNK, 1 << 20);
    assert!(
        memory.starts_with("a simulation of 65536 nodes at the level of chunks"),
        "{memory}"
    );
}
