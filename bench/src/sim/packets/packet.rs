//! Packets that are under way.

use toroid_fabric::routes::{Mode, Path};

use crate::sim::Ticks;
use crate::sim::slab::Slab;

/// All packets.
pub type Packets = Slab<Packet>;

/// A request, or the response that it becomes at its end.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Time at which the request left the sender's card.
    pub sent: Ticks,
    /// Route from the router where the packet is.
    pub path: Path,
    /// Next packet of the same queue.
    pub next: u32,
    pub message: u32,
    /// Domain of the message.
    pub domain: u16,
    /// Node where the packet ends.
    pub node: u32,
    /// Channel in whose buffer the packet is.
    pub held: u32,
    pub flits: u8,
    /// Links between groups that the packet has passed; counted for `adaptive1` only.
    pub global_hops: u8,
    pub is_response: bool,
    pub mode: Mode,
}
