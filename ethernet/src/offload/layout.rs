//! Positions of the headers of a GSO packet: all that segmentation needs.
//!
//! ```text
//!  0          14 or more      ip                transport      payload
//!  +----------+---------------+-----------------+--------------+---------
//!  | Ethernet | VLAN tags     | IPv4 or IPv6    | TCP or UDP   | ...
//!  |          | 0 to 2 x 4    | + options or    | + options    |
//!  |          |               | extensions      |              |
//!  +----------+---------------+-----------------+--------------+---------
//! ```
//!
//! A node can make its kernel send any bytes as a GSO packet. Neither the segmenter nor another kernel
//! sees a packet unless all of its headers are complete, agree with the virtio header, and state exactly
//! the length of the frame.

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IPV6_HEADER_LEN, IpProtocol, IpVersion, Ipv4Packet,
    Ipv6ExtHeader, Ipv6Packet, TcpPacket, UDP_HEADER_LEN, UdpPacket,
};

use crate::headers::frame::{HEADER_LEN, TAG_LEN, is_tag};

/// Limit of the headers of a GSO packet, in bytes: more than IPv4 can have with all options (142), and
/// enough for IPv6 with some hundred bytes of extensions. Headers are rewritten for every frame.
pub(crate) const MAX_HEADERS: usize = 512;

/// Limit of the number of VLAN tags.
const MAX_TAGS: usize = 2;

/// Limit of the number of IPv6 extension headers, which bounds the time that a frame can cost.
const MAX_EXTENSIONS: usize = 8;

/// Protocol of the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One TCP segment, to be cut into smaller ones.
    Tcp,
    /// Payloads of UDP datagrams with one header for all.
    Udp,
}

impl Transport {
    /// Position of the checksum in the transport header.
    pub(crate) const fn checksum_at(self) -> usize {
        match self {
            Transport::Tcp => 16,
            Transport::Udp => 6,
        }
    }
}

/// Positions of the headers, all of them within the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Version of the IP header.
    pub(crate) ip_version: IpVersion,
    /// Begin of the IP header.
    pub(crate) ip_at: usize,
    /// Protocol of the transport header.
    pub(crate) transport: Transport,
    /// Begin of the transport header.
    pub(crate) transport_at: usize,
    /// Begin of the payload; at most [`MAX_HEADERS`].
    pub(crate) payload_at: usize,
}

impl Layout {
    /// Reads the headers of a GSO packet; `None` if they are incomplete, state another length than that
    /// of the frame, or belong to a fragment.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let (ip_version, ip_at) = ip_header(frame)?;
        let packet = frame.get(ip_at..)?;
        let (protocol, ip_len) = match ip_version {
            IpVersion::Ipv4 => above_ipv4(packet)?,
            IpVersion::Ipv6 => above_ipv6(packet)?,
        };
        let segment = packet.get(ip_len..)?;
        let (transport, transport_len) = match protocol {
            IpProtocol::Tcp => {
                let tcp = TcpPacket::new_checked(segment).ok()?;
                (Transport::Tcp, tcp.header_len().into())
            }
            IpProtocol::Udp => {
                let udp = UdpPacket::new_checked(segment).ok()?;
                let is_whole = usize::from(udp.len()) == segment.len();
                (Transport::Udp, is_whole.then_some(UDP_HEADER_LEN)?)
            }
            _ => return None,
        };
        let transport_at = ip_at + ip_len;
        let payload_at = transport_at + transport_len;
        (payload_at <= MAX_HEADERS).then_some(Layout {
            ip_version,
            ip_at,
            transport,
            transport_at,
            payload_at,
        })
    }
}

/// Version and begin of the IP header.
fn ip_header(frame: &[u8]) -> Option<(IpVersion, usize)> {
    for tags in 0..=MAX_TAGS {
        // The ethertype behind a tag is where that of an Ethernet header would be.
        let header = EthernetFrame::new_checked(frame.get(tags * TAG_LEN..)?).ok()?;
        let at = HEADER_LEN + tags * TAG_LEN;
        match header.ethertype() {
            EthernetProtocol::Ipv4 => return Some((IpVersion::Ipv4, at)),
            EthernetProtocol::Ipv6 => return Some((IpVersion::Ipv6, at)),
            other if is_tag(other) => {}
            _ => return None,
        }
    }
    None
}

/// Protocol and begin of the payload of an IPv4 packet.
fn above_ipv4(packet: &[u8]) -> Option<(IpProtocol, usize)> {
    let ip = Ipv4Packet::new_checked(packet).ok()?;
    let is_good = ip.version() == 4
        && usize::from(ip.total_len()) == packet.len()
        && !ip.more_frags()
        && ip.frag_offset() == 0;
    is_good.then_some((ip.next_header(), ip.header_len().into()))
}

/// Protocol and begin of the payload of an IPv6 packet, behind all extension headers.
fn above_ipv6(packet: &[u8]) -> Option<(IpProtocol, usize)> {
    let ip = Ipv6Packet::new_checked(packet).ok()?;
    let is_good = ip.version() == 6 && ip.total_len() == packet.len();
    let (mut protocol, mut at) = (ip.next_header(), IPV6_HEADER_LEN);
    for _ in 0..MAX_EXTENSIONS {
        match protocol {
            IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                let extension = Ipv6ExtHeader::new_checked(packet.get(at..)?).ok()?;
                protocol = extension.next_header();
                at += 8 * (1 + usize::from(extension.header_len()));
            }
            // A fragment header is no transport header, and refused by the caller.
            _ => return is_good.then_some((protocol, at)),
        }
    }
    None
}
