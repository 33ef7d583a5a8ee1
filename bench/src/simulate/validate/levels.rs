//! The two levels of the simulator against each other.

use anyhow::Result;
use toroid_fabric::routes::TorusNetwork;

use super::{Bar, Check, Outcome};
use crate::sim::Profile;
use crate::sim::chunks::{ChunkNetwork, DEFAULT_CHUNK};
use crate::sim::packets::PacketNetwork;
use crate::simulate::scale::Placement;
use crate::simulate::scale::run::{Case, profile};

/// Chunks of the default size against packets whose buffers are never full: the error of the chunk.
pub const CHUNKS: Check = Check {
    name: "chunks",
    is_long: false,
    run: |_| compare(Bar::Within(0.03), DEEP),
};

/// Chunks against packets with buffers of a round trip, which are 3 packets on Blue Gene/P. Chunks leave
/// out back-pressure: the row says by how much they are faster.
pub const BACK_PRESSURE: Check = Check {
    name: "back-pressure",
    is_long: false,
    run: |_| compare(Bar::AtMost, 0),
};

/// Packets of a buffer that no load of this comparison fills.
const DEEP: u32 = 4096;

/// Nodes, and simulations of which the figure is a mean.
const TORI: [(u32, u64); 3] = [(8, 16), (64, 4), (512, 1)];

/// Gets of 64 KiB of each client from random servers.
const GETS: u32 = 10;

fn compare(bar: Bar, link_buffer: u32) -> Result<Vec<Outcome>> {
    let buffers = if link_buffer == 0 {
        "3 packets"
    } else {
        "no limit"
    };
    let outcome = |(nodes, rounds): (u32, u64)| {
        let (mut packets, mut chunks) = (0.0, 0.0);
        for seed in 1..=rounds {
            let finish = finish(nodes, seed, link_buffer)?;
            packets += finish.packets_us / rounds as f64;
            chunks += finish.chunks_us / rounds as f64;
        }
        Ok(Outcome {
            against: "packets",
            what: format!("{GETS} gets of 64 KiB, {nodes} nodes, buffers: {buffers}, us"),
            bar,
            expected: packets,
            measured: chunks,
        })
    };
    TORI.into_iter().map(outcome).collect()
}

/// Mean time of a client at both levels.
struct Finish {
    packets_us: f64,
    chunks_us: f64,
}

fn finish(nodes: u32, seed: u64, link_buffer: u32) -> Result<Finish> {
    let case = Case {
        nodes,
        bytes: 65_536,
        placement: Placement::Random,
        gets: GETS,
        chunk: DEFAULT_CHUNK,
        seed,
    };
    let torus = TorusNetwork::new(case.shape())?;
    let places = || {
        let mut random = fastrand::Rng::with_seed(seed);
        case.placement.nodes(&torus, &mut random)
    };
    let profile = Profile {
        link_buffer,
        ..profile()
    };
    let mut packets = PacketNetwork::new(torus, profile.clone(), seed, u64::MAX)?;
    let mut chunks = ChunkNetwork::new(torus, profile, case.chunk, seed, u64::MAX)?;
    Ok(Finish {
        packets_us: case.mean_finish(&mut packets, places(), seed) / 1e3,
        chunks_us: case.mean_finish(&mut chunks, places(), seed) / 1e3,
    })
}
