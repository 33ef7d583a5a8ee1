//! What listeners and routers say about groups: IGMP of IPv4 (RFC 1112, 2236, 3376) and MLD of IPv6
//! (RFC 2710, 3810).
//!
//! ```text
//!  0      1         4                 8                  24
//!  +------+---------+-----------------+------------------+
//!  | kind | ...     | group           |                  |  IGMPv1, IGMPv2
//!  | kind | ...                       | group            |  MLDv1
//!  | kind | ...     | - | records     | record ...       |  IGMPv3, MLDv2
//!  +------+---------+-----------------+------------------+
//!
//!  0      1            2         4       4 or 16
//!  +------+------------+---------+-------+-------------+-----------+
//!  | kind | more words | sources | group | source ...  | words ... |  a record; a word has 4 bytes
//!  +------+------------+---------+-------+-------------+-----------+
//! ```
//!
//! Checksums are not looked at: whom a kernel would not believe speaks of itself only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{IpProtocol, Ipv4Packet};

use crate::headers::frame::{EtherType, Frame};
use crate::headers::ipv6::{self, ICMPV6};
use crate::headers::mac::Mac;

/// Protocol independent multicast, which routers speak with each other.
const PIM: u8 = 103;

const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORTS: [u8; 2] = [0x12, 0x16];
const IGMP_LEAVE: u8 = 0x17;
const IGMP_RECORDS: u8 = 0x22;

const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_RECORDS: u8 = 143;

/// Bytes of a report before its first record.
const RECORDS: usize = 8;

/// Kinds of records that name the sources which are listened to: with none, there is no listener.
const IS_INCLUDE: u8 = 1;
const TO_INCLUDE: u8 = 3;
/// And one that only takes some away.
const BLOCK: u8 = 6;

/// The widest scope of IPv6 (RFC 4291) that is not routed.
const LINK: u8 = 2;

/// What a frame says about groups.
#[derive(Clone, Debug)]
pub enum Message<'a> {
    /// Its sender is a router, which wants to know who listens.
    Router,
    /// Its sender begins or ends to listen.
    Report(Report<'a>),
}

/// Of one host.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Whose report it is: several may be behind one interface.
    pub reporter: IpAddr,
    said: Said<'a>,
}

#[derive(Clone, Debug)]
enum Said<'a> {
    Once(Claim),
    Records {
        count: u16,
        bytes: &'a [u8],
        /// Of an address, in bytes.
        width: usize,
    },
}

/// That a host listens to a group, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// An address of a group.
    pub group: IpAddr,
    /// Whether it listens, or `None` if it takes only sources away.
    pub listens: Option<bool>,
}

/// What `frame` says about groups, or `None` if it is anything else, or broken.
pub fn read(frame: Frame<'_>) -> Option<Message<'_>> {
    match packet(frame)? {
        (EtherType::IPV4, packet) => {
            let packet = Ipv4Packet::new_checked(packet).ok()?;
            let from = packet.src_addr().into();
            match packet.next_header() {
                IpProtocol::Igmp => igmp(from, packet.payload()),
                IpProtocol::Unknown(PIM) => router(from),
                _ => None,
            }
        }
        (EtherType::IPV6, packet) => {
            let (protocol, payload) = ipv6::payload(packet)?;
            let from = address(packet.get(8..24)?)?;
            match protocol {
                ICMPV6 => mld(from, payload),
                PIM => router(from),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The group to whose listeners alone `frame` is of use, or `None` if it may be for others, too.
pub fn group(frame: Frame<'_>) -> Option<IpAddr> {
    let group = match packet(frame)? {
        (EtherType::IPV4, packet) => address(packet.get(16..20)?)?,
        (EtherType::IPV6, packet) => address(packet.get(24..40)?)?,
        _ => return None,
    };
    (frame.destination() == mac(group) && !is_for_all(group)).then_some(group)
}

/// Whether a group is everybody's: routers and neighbours are found by such groups, and not all who
/// listen to them say so (RFC 4541).
fn is_for_all(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => group.octets()[1] & 0xf <= LINK,
    }
}

/// The packet in a frame. What is in a VLAN is another network.
fn packet(frame: Frame<'_>) -> Option<(EtherType, &[u8])> {
    (!frame.is_in_vlan()).then(|| frame.untagged())
}

fn mac(group: IpAddr) -> Mac {
    Mac(match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    })
}

fn igmp(from: IpAddr, message: &[u8]) -> Option<Message<'_>> {
    let once = |listens| once(from, message.get(4..8)?, listens);
    match *message.first()? {
        IGMP_QUERY => router(from),
        kind if IGMP_REPORTS.contains(&kind) => once(true),
        IGMP_LEAVE => once(false),
        IGMP_RECORDS => records(from, message, 4),
        _ => None,
    }
}

fn mld(from: IpAddr, message: &[u8]) -> Option<Message<'_>> {
    let once = |listens| once(from, message.get(8..24)?, listens);
    match *message.first()? {
        MLD_QUERY => router(from),
        MLD_REPORT => once(true),
        MLD_DONE => once(false),
        MLD_RECORDS => records(from, message, 16),
        _ => None,
    }
}

/// Switches ask in nobody's name (RFC 4541).
fn router(from: IpAddr) -> Option<Message<'static>> {
    (!from.is_unspecified()).then_some(Message::Router)
}

fn once(reporter: IpAddr, group: &[u8], listens: bool) -> Option<Message<'static>> {
    let group = address(group)?;
    let listens = Some(listens);
    let said = Said::Once(Claim { group, listens });
    Some(Message::Report(Report { reporter, said }))
}

fn records(reporter: IpAddr, message: &[u8], width: usize) -> Option<Message<'_>> {
    let (header, bytes) = message.split_at_checked(RECORDS)?;
    let said = Said::Records {
        count: u16::from_be_bytes([header[6], header[7]]),
        bytes,
        width,
    };
    Some(Message::Report(Report { reporter, said }))
}

/// An address of 4 or 16 bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = || Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into());
    let ipv6 = || Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into());
    ipv4().or_else(ipv6)
}

impl<'a> Report<'a> {
    /// How many claims it says that it has.
    pub fn len(&self) -> usize {
        match self.said {
            Said::Once(_) => 1,
            Said::Records { count, .. } => count.into(),
        }
    }

    /// Whether it says that it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that are about groups of listeners, up to where it is broken.
    pub fn claims(&self) -> impl Iterator<Item = Claim> + use<'a> {
        let mut said = Some(self.said.clone());
        let all = std::iter::from_fn(move || {
            let claim;
            (claim, said) = said.take()?.split_first()?;
            Some(claim)
        });
        all.filter(|claim| claim.group.is_multicast() && !is_for_all(claim.group))
    }
}

impl<'a> Said<'a> {
    /// What the first part claims, and the rest.
    fn split_first(self) -> Option<(Claim, Option<Self>)> {
        let (count, bytes, width) = match self {
            Said::Once(claim) => return Some((claim, None)),
            Said::Records {
                count,
                bytes,
                width,
            } => (count.checked_sub(1)?, bytes, width),
        };
        let (header, bytes) = bytes.split_first_chunk::<4>()?;
        let (group, bytes) = bytes.split_at_checked(width)?;
        let sources = u16::from_be_bytes([header[2], header[3]]);
        let bytes = bytes.get(usize::from(sources) * width + 4 * usize::from(header[1])..)?;
        let claim = Claim {
            group: address(group)?,
            listens: match header[0] {
                BLOCK => None,
                IS_INCLUDE | TO_INCLUDE => Some(sources > 0),
                _ => Some(true),
            },
        };
        let rest = Said::Records {
            count,
            bytes,
            width,
        };
        Some((claim, Some(rest)))
    }
}

#[cfg(test)]
mod tests;
