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
use toroid_fabric::NodeId;
use toroid_fabric::routes::{Mode, Operation, Topology};

use crate::memory;
use crate::sim::packets::PacketNetwork;
use crate::sim::{Happening, Message, Network, Profile, Ticks};

const CLOSED_FORM: &str = "closed form";

/// A fabric that may use the memory of this machine.
fn network<T: Topology>(topology: T, profile: Profile, seed: u64) -> Result<PacketNetwork<T>> {
    let memory = memory::available().unwrap_or(u64::MAX);
    Ok(PacketNetwork::new(topology, profile, seed, memory)?)
}

fn put(from: u32, to: u32, bytes: u64, mode: Mode) -> Message {
    Message {
        from: NodeId(from),
        to: NodeId(to),
        bytes,
        operation: Operation::Put,
        mode,
        domain: 0,
        token: 0,
    }
}

/// Time at which the last message is delivered, when nothing else is sent.
fn last_delivery(network: &mut impl Network) -> Ticks {
    let mut last = 0;
    while let Some(happening) = network.next() {
        if let Happening::Delivered(_) = happening {
            last = network.now();
        }
    }
    last
}
