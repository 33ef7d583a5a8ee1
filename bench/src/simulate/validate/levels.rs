//! The two levels of the simulator against each other.

use anyhow::Result;
use toroid_fabric::routes::TorusNetwork;

use super::{Bar, Check, Outcome};
use crate::plan::Effort;
use crate::sim::Profile;
use crate::sim::chunks::{ChunkNetwork, DEFAULT_CHUNK};
use crate::sim::packets::PacketNetwork;
use crate::simulate::scale::Placement;
use crate::simulate::scale::run::{Case, profile};

/// Gets of 64 KiB at random places by chunks of the default size, against packets.
///
/// * Packets with buffers of [`DEEP`] packets: the error of the chunk's size.
/// * Packets with buffers of a round trip, 3 packets on Blue Gene/P: chunks leave out back-pressure, and
///   are faster by that.
pub const CHUNKS: Check = Check {
    name: "chunks",
    is_long: false,
    run: chunks,
};

/// Packets of a buffer that no load of this comparison fills.
const DEEP: u32 = 4096;

const GETS: u32 = 10;

fn chunks(_: Effort) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for nodes in [8, 64, 512] {
        outcomes.push(compare(nodes, DEEP)?);
    }
    for nodes in [8, 64, 512] {
        outcomes.push(compare(nodes, 0)?);
    }
    Ok(outcomes)
}

fn compare(nodes: u32, link_buffer: u32) -> Result<Outcome> {
    let case = Case {
        nodes,
        bytes: 65_536,
        placement: Placement::Random,
        gets: GETS,
        chunk: DEFAULT_CHUNK,
        seed: 1,
    };
    let torus = TorusNetwork::new(case.shape())?;
    let random = || fastrand::Rng::with_seed(1);
    let places = || case.placement.nodes(&torus, &mut random());
    let profile = Profile {
        link_buffer,
        ..profile()
    };
    let mut packets = PacketNetwork::new(torus, profile.clone(), 1, u64::MAX)?;
    let mut chunks = ChunkNetwork::new(torus, profile, case.chunk, 1, u64::MAX)?;
    let (bar, buffers) = match link_buffer {
        0 => (Bar::AtMost, "3 packets"),
        _ => (Bar::Within(0.03), "4,096 packets"),
    };
    Ok(Outcome {
        against: "packets",
        what: format!("{GETS} gets of 64 KiB on {nodes} nodes, buffers of {buffers}, us"),
        bar,
        expected: case.mean_finish(&mut packets, places(), random()) / 1e3,
        measured: case.mean_finish(&mut chunks, places(), random()) / 1e3,
    })
}
