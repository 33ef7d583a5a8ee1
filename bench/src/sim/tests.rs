//! Both levels of detail side by side.

use toroid_fabric::routes::Dragonfly;

use super::chunks::{ChunkNetwork, DEFAULT_CHUNK, MAX_CHUNK};
use super::packets::PacketNetwork;
use super::profile::NicCosts;
use super::*;

const MEMORY: u64 = 1 << 30;

/// All happenings with their times.
pub fn run(network: &mut impl Network) -> Vec<(Ticks, Happening)> {
    let mut happenings = Vec::new();
    while let Some(happening) = network.next() {
        happenings.push((network.now(), happening));
    }
    happenings
}

/// Two nodes of each router, 64 nodes in 4 groups.
fn dragonfly() -> Dragonfly {
    Dragonfly::new([4, 2, 4, 2], Some(2)).unwrap()
}

fn packets(profile: &Profile) -> PacketNetwork<Dragonfly> {
    PacketNetwork::new(dragonfly(), profile.clone(), 1, MEMORY).unwrap()
}

fn chunks(profile: &Profile, chunk: u64) -> ChunkNetwork<Dragonfly> {
    ChunkNetwork::new(dragonfly(), profile.clone(), chunk, 1, MEMORY).unwrap()
}

/// Counters of all nodes after all messages, and the time of the last happening.
fn after(mut network: impl Network, messages: &[Message]) -> (Counters, Ticks) {
    messages.iter().for_each(|message| network.send(*message));
    let end = run(&mut network).last().map_or(0, |(at, _)| *at);
    let counters = (0..64).map(|node| network.counters(NodeId(node), 0, Mode::InOrder));
    (counters.fold(Counters::default(), |a, b| a + b), end)
}

fn off(measured: f64, expected: f64) -> f64 {
    (measured / expected - 1.0).abs()
}

/// Both nodes of each router put to and get from each other: all waits are at their cards.
fn exchanges() -> Vec<Message> {
    let message = |of: fn(u32, u32, u64, Mode) -> Message, from: u32, bytes| {
        of(from, from ^ 1, bytes, Mode::InOrder)
    };
    let puts = (0..64).map(|from| message(Message::put, from, 64 << 10));
    let gets = (0..64).map(|from| message(Message::get, from, 64 << 10));
    puts.chain(gets).collect()
}

/// A few short messages of each node to others.
fn random_puts() -> Vec<Message> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut put = |from| Message::put(from, random.u32(..64), 2048, Mode::InOrder);
    (0..64 * 4).map(|n| put(n % 64)).collect()
}

/// Chunks of a packet count what packets do. The latency of a longer one ends with its last
/// response, and that of a packet with its own.
#[test]
fn counters_of_chunks_are_those_of_packets() {
    let profile = Profile::aries();
    for (messages, bounds) in [(exchanges(), [0.01, 0.2]), (random_puts(), [0.15, 0.25])] {
        let (expected, _) = after(packets(&profile), &messages);
        for (chunk, bound) in [64, DEFAULT_CHUNK].into_iter().zip(bounds) {
            let (found, _) = after(chunks(&profile, chunk), &messages);
            let counts = |of: &Counters| (of.packets, of.request_flits, of.stalled_cycles);
            assert_eq!(counts(&found), counts(&expected), "{chunk}");
            let [found, expected] = [found, expected].map(|of| of.latency().unwrap());
            let error = off(found, expected);
            assert!(error < bound, "{chunk}: {found}, not {expected}");
        }
    }
}

/// Round trips of a fourth of the window's packets, of about as many, and of twice as many.
#[test]
fn the_window_lets_as_many_chunks_go_as_packets() {
    for quarter_ns in [400, 1_500, 3_200] {
        let aries = Profile::aries();
        let nic = NicCosts {
            send_ns: quarter_ns,
            receive_ns: quarter_ns,
            buffer: 4096,
            ..aries.nic
        };
        let profile = Profile { nic, ..aries };
        let put = [Message::put(0, 1, 1 << 20, Mode::InOrder)];
        let (_, expected) = after(packets(&profile), &put);
        // The longest chunk has as many packets as the window.
        for (chunk, bound) in [(64, 1e-9), (DEFAULT_CHUNK, 0.01), (MAX_CHUNK, 0.2)] {
            let (_, found) = after(chunks(&profile, chunk), &put);
            let error = off(found as f64, expected as f64);
            assert!(
                error < bound,
                "{quarter_ns} ns, {chunk} B: {found}, not {expected}"
            );
        }
    }
}
