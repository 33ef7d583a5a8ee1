//! IGMP and MLD: messages of hosts and routers about multicast groups.
//!
//! IGMP belongs to IPv4 (RFC 1112, 2236, 3376), MLD to IPv6 (RFC 2710, 3810).
//!
//! ```text
//!  0      1         4                 8                  24
//!  +------+---------+-----------------+------------------+
//!  | type | ...     | group           |                  |  IGMPv1, IGMPv2
//!  | type | ...                       | group            |  MLDv1
//!  | type | ...     | - | count       | record ...       |  IGMPv3, MLDv2
//!  +------+---------+-----------------+------------------+
//!
//!  0      1               2         4       4 or 16
//!  +------+---------------+---------+-------+------------+---------------+
//!  | type | auxiliary len | sources | group | source ... | auxiliary ... |  a record
//!  +------+---------------+---------+-------+------------+---------------+
//! ```
//!
//! The auxiliary length counts words of 4 bytes. Checksums are not verified: a message that a kernel
//! would reject affects the groups of its own sender only.
//!
//! smoltcp reads neither IGMPv3 nor MLDv1. Records of IGMPv3 and MLDv2 differ in the length of an address
//! only, so one parser reads both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{EthernetProtocol, IpProtocol, Ipv4Packet};

use crate::headers::frame::Frame;
use crate::headers::mac::Mac;
use crate::headers::{ip_addresses, ipv6};

/// IP protocol number of PIM (protocol independent multicast), spoken among routers.
const PIM: IpProtocol = IpProtocol::Unknown(103);

const IGMP_QUERY: u8 = 0x11;
const IGMPV1_REPORT: u8 = 0x12;
const IGMPV2_REPORT: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
const IGMPV3_REPORT: u8 = 0x22;

const MLD_QUERY: u8 = 130;
const MLDV1_REPORT: u8 = 131;
const MLDV1_DONE: u8 = 132;
const MLDV2_REPORT: u8 = 143;

/// Bytes of a report before its first record.
const REPORT_HEADER: usize = 8;

/// Record types that name the wanted sources. Without a source the host leaves the group.
const MODE_IS_INCLUDE: u8 = 1;
const CHANGE_TO_INCLUDE: u8 = 3;
/// Record type that removes sources and leaves the membership unchanged.
const BLOCK_OLD_SOURCES: u8 = 6;

/// The widest scope of IPv6 multicast (RFC 4291) that is not routed.
const LINK_LOCAL_SCOPE: u8 = 2;

/// Content of a frame that concerns multicast groups.
#[derive(Clone, Debug)]
pub enum GroupMessage<'a> {
    /// A query or a PIM message. Its sender is a multicast router.
    Router,
    /// A membership report of a host.
    Report(MembershipReport<'a>),
}

/// A membership report: the groups that one host joins or leaves.
#[derive(Clone, Debug)]
pub struct MembershipReport<'a> {
    /// Source address of the report. Several hosts may be behind one interface.
    pub reporter: IpAddr,
    records: Records<'a>,
}

#[derive(Clone, Debug)]
enum Records<'a> {
    /// IGMPv1, IGMPv2 and MLDv1.
    One(GroupRecord),
    /// IGMPv3 and MLDv2.
    Many {
        /// Number of records in `bytes`, as the report states it.
        count: u16,
        bytes: &'a [u8],
        /// Bytes of an address.
        width: usize,
    },
}

/// Statement of a host about one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRecord {
    /// Address of the group.
    pub group: IpAddr,
    /// Whether the host joins or leaves the group; `None` for a record that only blocks sources.
    pub joins: Option<bool>,
}

/// Reads the IGMP, MLD or PIM message in `frame`; `None` for other or malformed frames.
pub fn read(frame: Frame<'_>) -> Option<GroupMessage<'_>> {
    let (ethertype, packet) = untagged(frame)?;
    let (from, protocol, message) = match ethertype {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(packet).ok()?;
            (ip.src_addr().into(), ip.next_header(), ip.payload())
        }
        EthernetProtocol::Ipv6 => {
            let (protocol, message) = ipv6::upper_layer(packet)?;
            let from = ip_addresses::ipv6(packet)?.src_addr();
            (from.into(), protocol, message)
        }
        _ => return None,
    };
    match (protocol, from) {
        (IpProtocol::Igmp, IpAddr::V4(_)) => igmp(from, message),
        (IpProtocol::Icmpv6, IpAddr::V6(_)) => mld(from, message),
        (PIM, _) => router(from),
        _ => None,
    }
}

/// The group to whose subscribers `frame` may be limited; `None` if other members may need it, too.
///
/// Both destination addresses must name the group.
pub(crate) fn group(frame: Frame<'_>) -> Option<IpAddr> {
    untagged(frame)?;
    let group = ip_addresses::destination(frame)?;
    (frame.destination() == mac(group) && !is_flooded(group)).then_some(group)
}

/// Whether frames of a group go to every member. Routers and neighbours are found by such groups, and
/// not every host reports them (RFC 4541).
fn is_flooded(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => group.octets()[1] & 0xf <= LINK_LOCAL_SCOPE,
    }
}

/// The packet in a frame; `None` in a VLAN, which is another network.
fn untagged(frame: Frame<'_>) -> Option<(EthernetProtocol, &[u8])> {
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

fn igmp(from: IpAddr, message: &[u8]) -> Option<GroupMessage<'_>> {
    let single = |joins| single(from, message.get(4..8)?, joins);
    match *message.first()? {
        IGMP_QUERY => router(from),
        IGMPV1_REPORT | IGMPV2_REPORT => single(true),
        IGMP_LEAVE => single(false),
        IGMPV3_REPORT => records(from, message, 4),
        _ => None,
    }
}

fn mld(from: IpAddr, message: &[u8]) -> Option<GroupMessage<'_>> {
    let single = |joins| single(from, message.get(8..24)?, joins);
    match *message.first()? {
        MLD_QUERY => router(from),
        MLDV1_REPORT => single(true),
        MLDV1_DONE => single(false),
        MLDV2_REPORT => records(from, message, 16),
        _ => None,
    }
}

/// A message of a router. Switches query from the unspecified address (RFC 4541) and are no routers.
fn router(from: IpAddr) -> Option<GroupMessage<'static>> {
    (!from.is_unspecified()).then_some(GroupMessage::Router)
}

fn single(reporter: IpAddr, group: &[u8], joins: bool) -> Option<GroupMessage<'static>> {
    let (group, joins) = (address(group)?, Some(joins));
    let records = Records::One(GroupRecord { group, joins });
    Some(GroupMessage::Report(MembershipReport { reporter, records }))
}

fn records(reporter: IpAddr, message: &[u8], width: usize) -> Option<GroupMessage<'_>> {
    let (header, bytes) = message.split_at_checked(REPORT_HEADER)?;
    let count = u16::from_be_bytes([header[6], header[7]]);
    let records = Records::Many {
        count,
        bytes,
        width,
    };
    Some(GroupMessage::Report(MembershipReport { reporter, records }))
}

/// Reads an address of 4 or 16 bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = || Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into());
    let ipv6 = || Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into());
    ipv4().or_else(ipv6)
}

impl<'a> MembershipReport<'a> {
    /// Number of records that the report states; it may hold fewer.
    pub fn stated_len(&self) -> usize {
        match self.records {
            Records::One(_) => 1,
            Records::Many { count, .. } => count.into(),
        }
    }

    /// Records about groups whose frames are not flooded, up to the first malformed record.
    pub fn records(&self) -> impl Iterator<Item = GroupRecord> + use<'a> {
        let mut rest = Some(self.records.clone());
        let all = std::iter::from_fn(move || {
            let record;
            (record, rest) = rest.take()?.split_first()?;
            Some(record)
        });
        all.filter(|record| record.group.is_multicast() && !is_flooded(record.group))
    }
}

impl Records<'_> {
    /// The first record, and the others.
    fn split_first(self) -> Option<(GroupRecord, Option<Self>)> {
        let (count, bytes, width) = match self {
            Records::One(record) => return Some((record, None)),
            Records::Many {
                count,
                bytes,
                width,
            } => (count.checked_sub(1)?, bytes, width),
        };
        let (header, bytes) = bytes.split_first_chunk::<4>()?;
        let (group, bytes) = bytes.split_at_checked(width)?;
        let sources = u16::from_be_bytes([header[2], header[3]]);
        let bytes = bytes.get(usize::from(sources) * width + 4 * usize::from(header[1])..)?;
        let record = GroupRecord {
            group: address(group)?,
            joins: match header[0] {
                BLOCK_OLD_SOURCES => None,
                MODE_IS_INCLUDE | CHANGE_TO_INCLUDE => Some(sources > 0),
                _ => Some(true),
            },
        };
        let rest = Records::Many {
            count,
            bytes,
            width,
        };
        Some((record, Some(rest)))
    }
}

#[cfg(test)]
mod tests;
