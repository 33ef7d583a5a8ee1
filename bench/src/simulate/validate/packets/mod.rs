//! Comparisons of the packet level.

mod latency;
mod queueing;
mod routing;
mod safety;
mod saturation;

pub use latency::{IDLE, PUBLISHED};
pub use queueing::{LITTLE, POISSON};
pub use routing::{MODES, PHANTOM};
pub use safety::{SAFETY, WINDOW};
pub use saturation::SATURATION;

use anyhow::Result;
use toroid_fabric::routes::Topology;

use crate::memory;
use crate::sim::Profile;
use crate::sim::packets::PacketNetwork;

const CLOSED_FORM: &str = "closed form";

/// A fabric that may use the memory of this machine.
fn network<T: Topology>(topology: T, profile: Profile, seed: u64) -> Result<PacketNetwork<T>> {
    let memory = memory::available().unwrap_or(u64::MAX);
    Ok(PacketNetwork::new(topology, profile, seed, memory)?)
}
