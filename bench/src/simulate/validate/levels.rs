//! The two levels of the simulator against each other.
//!
//! Chunks leave out two things. Buffers are endless, so no link waits for another: under load, packets
//! are slower by this back-pressure. And links serve chunks in order of arrival, where packets take
//! turns by the age of their requests: the last message ends at the same time, others end earlier.

use anyhow::Result;
use toroid_fabric::routes::{Mode, TorusNetwork};

use super::{Bar, Check, Outcome, last_delivery};
use crate::sim::chunks::{ChunkNetwork, DEFAULT_CHUNK};
use crate::sim::packets::PacketNetwork;
use crate::sim::{Message, Network, Profile, nanoseconds};
use crate::simulate::scale::Placement;
use crate::simulate::scale::run::{Case, profile};

/// Errors of the chunk's size, and of the level where neither buffers nor turns matter.
pub const CHUNKS: Check = Check {
    name: "chunks",
    is_long: false,
    run: |_| {
        let sizes = TORI.into_iter().map(against_small_chunks);
        sizes.chain(TORI.into_iter().map(against_packets)).collect()
    },
};

/// By how much chunks are faster than packets under full load, with endless buffers and with those of a
/// round trip. The same seeds give the same figures: a change of either level, not chance,
/// misses a bar.
pub const BACK_PRESSURE: Check = Check {
    name: "back-pressure",
    is_long: false,
    run: |_| {
        let endless = TORI.into_iter().zip(FASTER_ENDLESS);
        let endless = endless.map(|(torus, most)| under_load(torus, ENDLESS, most));
        let short = TORI.into_iter().zip(FASTER);
        let short = short.map(|(torus, most)| under_load(torus, 0, most));
        endless.chain(short).collect()
    },
};

/// Packets of a buffer that no load here fills.
const ENDLESS: u32 = 4096;

/// Nodes, and simulations of which a figure is the mean.
const TORI: [(u32, u64); 3] = [(8, 16), (64, 4), (512, 1)];

/// Largest shares by which chunks may be faster on each torus: measured ones (3.5, 2.8 and 3.8 % with
/// endless buffers, 3.7, 8.5 and 22.0 % with those of a round trip) and about a quarter of them.
const FASTER_ENDLESS: [f64; 3] = [0.045, 0.035, 0.05];
const FASTER: [f64; 3] = [0.045, 0.11, 0.275];

/// Gets of 64 KiB of each client from random servers.
const GETS: u32 = 10;

const BYTES: u64 = 65_536;

/// A case, with the seed of its places.
fn case(nodes: u32, chunk: u64, seed: u64) -> Case {
    Case {
        nodes,
        bytes: BYTES,
        placement: Placement::Random,
        gets: GETS,
        chunk,
        seed,
    }
}

/// Both figures of a torus, each the mean of simulations with other seeds.
fn outcome(
    against: &'static str,
    what: String,
    bar: Bar,
    rounds: u64,
    both: impl Fn(u64) -> Result<[f64; 2]>,
) -> Result<Outcome> {
    let (mut expected, mut measured) = (0.0, 0.0);
    for seed in 1..=rounds {
        let both = both(seed)?;
        expected += both[0] / rounds as f64;
        measured += both[1] / rounds as f64;
    }
    Ok(Outcome {
        against,
        what,
        bar,
        expected,
        measured,
    })
}

fn against_small_chunks((nodes, rounds): (u32, u64)) -> Result<Outcome> {
    let what = format!("mean finish of {GETS} gets of 64 KiB, {nodes} nodes, us");
    let bar = Bar::Within(0.03);
    outcome("chunks of a packet", what, bar, rounds, |seed| {
        let by_packet = chunks(&case(nodes, profile().payload.into(), seed))?;
        Ok([by_packet, chunks(&case(nodes, DEFAULT_CHUNK, seed))?])
    })
}

fn against_packets((nodes, rounds): (u32, u64)) -> Result<Outcome> {
    let what = format!("last finish of a permutation of gets of 64 KiB, {nodes} nodes, us");
    outcome("packets", what, Bar::Within(0.03), rounds, |seed| {
        let torus = TorusNetwork::new(case(nodes, DEFAULT_CHUNK, seed).shape())?;
        let endless = with_buffers(ENDLESS);
        let mut packets = PacketNetwork::new(torus, endless.clone(), seed, u64::MAX)?;
        let mut chunks = ChunkNetwork::new(torus, endless, DEFAULT_CHUNK, seed, u64::MAX)?;
        Ok([
            permutation(&mut packets, nodes, seed),
            permutation(&mut chunks, nodes, seed),
        ])
    })
}

fn under_load((nodes, rounds): (u32, u64), link_buffer: u32, most: f64) -> Result<Outcome> {
    let buffers = match link_buffer {
        0 => "of 3 packets",
        _ => "endless",
    };
    let what = format!("mean finish of {GETS} gets, {nodes} nodes, buffers {buffers}, us");
    outcome("packets", what, Bar::Below(most), rounds, |seed| {
        let case = case(nodes, DEFAULT_CHUNK, seed);
        let torus = TorusNetwork::new(case.shape())?;
        let profile = with_buffers(link_buffer);
        let mut packets = PacketNetwork::new(torus, profile, seed, u64::MAX)?;
        Ok([finish(&case, &mut packets)?, chunks(&case)?])
    })
}

fn with_buffers(link_buffer: u32) -> Profile {
    Profile {
        link_buffer,
        ..profile()
    }
}

/// Mean finish in microseconds by chunks.
fn chunks(case: &Case) -> Result<f64> {
    let torus = TorusNetwork::new(case.shape())?;
    let mut network = ChunkNetwork::new(torus, profile(), case.chunk, case.seed, u64::MAX)?;
    finish(case, &mut network)
}

/// Mean finish in microseconds.
fn finish(case: &Case, network: &mut impl Network) -> Result<f64> {
    let torus = TorusNetwork::new(case.shape())?;
    let mut random = fastrand::Rng::with_seed(case.seed);
    let places = case.placement.nodes(&torus, &mut random);
    Ok(case.mean_finish(network, places, case.seed) / 1e3)
}

/// Microseconds until each node has 64 KiB of another node.
fn permutation(network: &mut impl Network, nodes: u32, seed: u64) -> f64 {
    let mut cycle: Vec<u32> = (0..nodes).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut cycle);
    for (n, node) in cycle.iter().enumerate() {
        let from = cycle[(n + 1) % cycle.len()];
        network.send(Message::get(*node, from, BYTES, Mode::InOrder));
    }
    nanoseconds(last_delivery(network)) / 1e3
}
