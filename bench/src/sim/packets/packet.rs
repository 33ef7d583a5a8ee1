//! Packets and messages that are under way.

use toroid_fabric::routes::{Mode, Operation, Path};

use crate::sim::slab::Slab;
use crate::sim::{Message, Profile, Ticks};

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

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub message: Message,
    /// Requests, each of which has a response.
    pub packets: u32,
    pub sent: u32,
    /// Requests at the other node.
    pub arrived: u32,
    /// Responses at the sender.
    pub answered: u32,
    /// Place of the counters of the sender and domain.
    pub flow: u32,
    /// Next message of the same sender and domain.
    pub next: u32,
}

impl Transfer {
    /// Bytes of a message in its packet of a number.
    pub fn payload(&self, number: u32, profile: &Profile) -> u64 {
        let size = u64::from(profile.payload);
        (self.message.bytes - u64::from(number) * size).min(size)
    }

    /// Flits of a request.
    pub fn request(&self, number: u32, profile: &Profile) -> u8 {
        let payload = match self.message.operation {
            Operation::Put => profile.payload_flits(self.payload(number, profile)),
            Operation::Get => 0,
        };
        (profile.header_flits() + payload) as u8
    }

    /// Flits of the response to a request. Requests of a get are told apart by their number only.
    pub fn response(&self, number: u32, profile: &Profile) -> u8 {
        let payload = match self.message.operation {
            Operation::Put => 0,
            Operation::Get => profile.payload_flits(self.payload(number, profile)),
        };
        (profile.header_flits() + payload) as u8
    }

    /// Whether requests or, otherwise, responses carry the bytes.
    pub fn is_put(&self) -> bool {
        self.message.operation == Operation::Put
    }
}
