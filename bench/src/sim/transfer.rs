//! Messages that are under way.

use toroid_fabric::routes::Operation;

use super::slab::NONE;
use super::{Message, Profile};

/// A message under way, as packets. A request and its response have the same number.
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
    /// A message of a flow, of which nothing is sent.
    pub fn new(message: Message, flow: u32, profile: &Profile) -> Self {
        let packets = message.bytes.div_ceil(profile.payload.into()).max(1);
        Transfer {
            message,
            packets: u32::try_from(packets).unwrap_or(u32::MAX),
            sent: 0,
            arrived: 0,
            answered: 0,
            flow,
            next: NONE,
        }
    }

    /// Bytes of the message in `packets` of its packets, from a number on.
    #[inline]
    pub fn payload(&self, first: u32, packets: u32, profile: &Profile) -> u64 {
        let size = u64::from(profile.payload);
        (self.message.bytes - u64::from(first) * size).min(u64::from(packets) * size)
    }

    /// Flits of requests.
    #[inline]
    pub fn request(&self, first: u32, packets: u32, profile: &Profile) -> u32 {
        self.flits(first, packets, profile, self.is_put())
    }

    /// Flits of the responses to requests. Requests of a get are told apart by their number only.
    #[inline]
    pub fn response(&self, first: u32, packets: u32, profile: &Profile) -> u32 {
        self.flits(first, packets, profile, !self.is_put())
    }

    fn flits(&self, first: u32, packets: u32, profile: &Profile, has_payload: bool) -> u32 {
        let payload = match has_payload {
            true => profile.payload_flits(self.payload(first, packets, profile)),
            false => 0,
        };
        packets * profile.header_flits() + payload
    }

    /// Whether requests or, otherwise, responses carry the bytes.
    #[inline]
    pub fn is_put(&self) -> bool {
        self.message.operation == Operation::Put
    }
}
