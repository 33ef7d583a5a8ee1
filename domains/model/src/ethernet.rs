//! Offloads of an interface, and the reasons for which the driver drops a frame.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that a kernel may leave undone in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OffloadKind {
    /// Checksums of TCP and UDP.
    Checksum,
    /// Cutting TCP over IPv4 to the MTU.
    Tso4,
    /// Cutting TCP over IPv6 to the MTU.
    Tso6,
    /// Cutting rows of UDP datagrams to the MTU.
    Uso,
}

impl fmt::Display for OffloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OffloadKind::Checksum => "checksum",
            OffloadKind::Tso4 => "tso4",
            OffloadKind::Tso6 => "tso6",
            OffloadKind::Uso => "uso",
        })
    }
}

/// Why a frame did not reach an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// It ends within its headers, or they contradict it.
    Malformed,
    /// Its source address is not its sender's, or the host that has sent it does not carry that.
    WrongSource,
    /// The packet in it is from an address of another node or domain, or for the address that its
    /// receiver has in another domain.
    ForeignAddress,
    /// A member says by it that it is a router (IPv6), and its domain has none.
    RouterAdvertisement,
    /// Longer than the domain's MTU allows.
    TooLong,
    /// Its destination has an address of another domain.
    OtherDomain,
    /// No member has its destination address, or the sender itself does.
    NoSuchMember,
    /// It is from one limited member for another.
    Limited,
    /// It tells to which groups its sender listens (IGMP, MLD), and no router is there who needs it.
    LinkReport,
    /// Another host has sent it in another epoch of its domain than the present one.
    OtherEpoch,
    /// The receiver took no more at that moment.
    Full,
    /// The receiver's interface was down or gone, or there was no connection to its host.
    Down,
    /// The kernel refused it for another reason.
    Refused,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [DropReason; 13] = [
        DropReason::Malformed,
        DropReason::WrongSource,
        DropReason::ForeignAddress,
        DropReason::RouterAdvertisement,
        DropReason::TooLong,
        DropReason::OtherDomain,
        DropReason::NoSuchMember,
        DropReason::Limited,
        DropReason::LinkReport,
        DropReason::OtherEpoch,
        DropReason::Full,
        DropReason::Down,
        DropReason::Refused,
    ];
}
