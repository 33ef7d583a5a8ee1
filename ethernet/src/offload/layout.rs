//! Where the headers of a GSO packet are: all that is needed to cut it.
//!
//! ```text
//!  0          14 or more      network           transport      payload
//!  +----------+---------------+-----------------+--------------+---------
//!  | Ethernet | VLAN tags     | IPv4 or IPv6    | TCP or UDP   | ...
//!  |          | 0 to 2 x 4    | + options or    | + options    |
//!  |          |               | extensions      |              |
//!  +----------+---------------+-----------------+--------------+---------
//! ```
//!
//! A node can have its kernel send any bytes as a GSO packet. Nothing is cut, and no other kernel
//! gets to see it, unless all of its headers are there, are what the virtio header says, and
//! their lengths are exactly those of the frame.

use std::ops::Range;

use crate::headers::frame::{EtherType, HEADER_LEN, TAG_LEN};

/// The longest headers of a GSO packet: more than IPv4 can have with all options (142 bytes), and
/// enough for IPv6 with extensions of some hundred bytes. They are written anew for every piece.
pub const MAX_HEADERS: usize = 512;

/// The most VLAN tags.
const MAX_TAGS: usize = 2;

/// The most extension headers of IPv6, with which a frame could otherwise keep us busy.
const MAX_EXTENSIONS: usize = 8;

/// The type, the last field of an Ethernet header and of a tag.
const ETHERTYPE: Range<usize> = HEADER_LEN - 2..HEADER_LEN;

/// Fields of IPv4.
pub(crate) mod ipv4 {
    use std::ops::Range;

    pub(crate) const LEN: usize = 20;
    pub(crate) const VERSION_AND_WORDS: usize = 0;
    pub(crate) const TOTAL_LEN: Range<usize> = 2..4;
    pub(crate) const ID: Range<usize> = 4..6;
    pub(crate) const FRAGMENT: Range<usize> = 6..8;
    pub(crate) const PROTOCOL: usize = 9;
    pub(crate) const CHECKSUM: Range<usize> = 10..12;
    /// In the first byte of the field: not to be cut on its way.
    pub(crate) const DONT_FRAGMENT: u8 = 0x40;
    /// More fragments, or not the first.
    pub(crate) const IS_FRAGMENT: u16 = 0x3fff;
}

/// Fields of IPv6.
pub(crate) mod ipv6 {
    use std::ops::Range;

    pub(crate) const LEN: usize = 40;
    pub(crate) const VERSION: usize = 0;
    pub(crate) const PAYLOAD_LEN: Range<usize> = 4..6;
    pub(crate) const NEXT_HEADER: usize = 6;
    /// Extensions: the next header, and their bytes in units of 8, without the first.
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const DESTINATION_OPTIONS: u8 = 60;
}

/// Fields of TCP.
pub(crate) mod tcp {
    use std::ops::Range;

    pub(crate) const PROTOCOL: u8 = 6;
    pub(crate) const LEN: usize = 20;
    pub(crate) const SEQUENCE: Range<usize> = 4..8;
    pub(crate) const WORDS: usize = 12;
    pub(crate) const FLAGS: usize = 13;
    pub(crate) const CHECKSUM: usize = 16;
    pub(crate) const FIN: u8 = 1;
    pub(crate) const PSH: u8 = 1 << 3;
    pub(crate) const CWR: u8 = 1 << 7;
}

/// Fields of UDP.
pub(crate) mod udp {
    use std::ops::Range;

    pub(crate) const PROTOCOL: u8 = 17;
    pub(crate) const LEN: usize = 8;
    pub(crate) const DATAGRAM_LEN: Range<usize> = 4..6;
    pub(crate) const CHECKSUM: usize = 6;
}

/// What is below the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// What is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A stream's segment, into smaller ones.
    Tcp,
    /// Datagrams one behind the other, with one header for all.
    Udp,
}

/// Where the headers are; all of them are within the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What begins at `network_at`.
    pub network: Network,
    /// Where the IP header begins.
    pub network_at: usize,
    /// What begins at `transport_at`.
    pub transport: Transport,
    /// Where the header of TCP or UDP begins.
    pub transport_at: usize,
    /// Where the payload begins; at most [`MAX_HEADERS`].
    pub payload_at: usize,
}

impl Layout {
    /// Reads the headers of a GSO packet; `None` if they are not there, say that the frame has
    /// another length, or say that it is a fragment.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let (network, network_at) = network(frame)?;
        let packet = frame.get(network_at..)?;
        let (protocol, len) = match network {
            Network::Ipv4 => above_ipv4(packet)?,
            Network::Ipv6 => above_ipv6(packet)?,
        };
        let transport_at = network_at + len;
        let segment = frame.get(transport_at..)?;
        let (transport, len) = match protocol {
            tcp::PROTOCOL => (Transport::Tcp, tcp_len(segment)?),
            udp::PROTOCOL => (Transport::Udp, udp_len(segment)?),
            _ => return None,
        };
        let payload_at = transport_at + len;
        let is_good = payload_at <= frame.len() && payload_at <= MAX_HEADERS;
        is_good.then_some(Layout {
            network,
            network_at,
            transport,
            transport_at,
            payload_at,
        })
    }
}

fn network(frame: &[u8]) -> Option<(Network, usize)> {
    let mut at = HEADER_LEN;
    for _ in 0..=MAX_TAGS {
        let ethertype = frame.get(at - HEADER_LEN..)?.get(ETHERTYPE)?;
        match EtherType(number(ethertype, 0..2)?) {
            EtherType::IPV4 => return Some((Network::Ipv4, at)),
            EtherType::IPV6 => return Some((Network::Ipv6, at)),
            other if other.is_tag() => at += TAG_LEN,
            _ => return None,
        }
    }
    None
}

/// The protocol above, and where it begins.
fn above_ipv4(packet: &[u8]) -> Option<(u8, usize)> {
    let first = *packet.get(ipv4::VERSION_AND_WORDS)?;
    let len = usize::from(first & 0xf) * 4;
    let is_good = first >> 4 == 4
        && len >= ipv4::LEN
        && usize::from(number(packet, ipv4::TOTAL_LEN)?) == packet.len()
        && number(packet, ipv4::FRAGMENT)? & ipv4::IS_FRAGMENT == 0;
    let protocol = *packet.get(ipv4::PROTOCOL)?;
    is_good.then_some((protocol, len))
}

/// The protocol above, and where it begins.
fn above_ipv6(packet: &[u8]) -> Option<(u8, usize)> {
    let payload = packet.get(ipv6::LEN..)?;
    let is_good = packet.get(ipv6::VERSION)? >> 4 == 6
        && usize::from(number(packet, ipv6::PAYLOAD_LEN)?) == payload.len();
    let (mut next, mut at) = (packet[ipv6::NEXT_HEADER], ipv6::LEN);
    for _ in 0..MAX_EXTENSIONS {
        // A fragment's header is none of these.
        match next {
            ipv6::HOP_BY_HOP | ipv6::ROUTING | ipv6::DESTINATION_OPTIONS => {
                let extension = packet.get(at..)?.first_chunk::<2>()?;
                next = extension[0];
                at += 8 * (1 + usize::from(extension[1]));
            }
            protocol => return is_good.then_some((protocol, at)),
        }
    }
    None
}

fn tcp_len(segment: &[u8]) -> Option<usize> {
    let len = usize::from(segment.get(tcp::WORDS)? >> 4) * 4;
    (len >= tcp::LEN).then_some(len)
}

fn udp_len(segment: &[u8]) -> Option<usize> {
    let len = number(segment, udp::DATAGRAM_LEN)?;
    (usize::from(len) == segment.len() && segment.len() >= udp::LEN).then_some(udp::LEN)
}

/// A number in network byte order.
pub(crate) fn number(bytes: &[u8], range: Range<usize>) -> Option<u16> {
    let bytes = bytes.get(range)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}
