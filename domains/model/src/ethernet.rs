//! Paths of frames, offloads of an interface, and the reasons for which the driver drops a frame.

use serde::{Deserialize, Serialize};

/// Path of frames between members of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EthernetPath {
    /// Through the kernel alone where it keeps every promise of the domain, and the driver otherwise.
    #[default]
    Auto,
    /// The same, if it does so for the domain when this is set.
    Kernel,
    /// All through the driver.
    Driver,
}

crate::as_text::display_serde_name!(EthernetPath);

impl EthernetPath {
    /// Whether it is the default.
    pub fn is_auto(&self) -> bool {
        *self == EthernetPath::Auto
    }
}

impl std::str::FromStr for EthernetPath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::as_text::variant(text).ok_or("use auto, kernel or driver")
    }
}

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

crate::as_text::display_serde_name!(OffloadKind);

/// Why a frame did not reach an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// It ends within its headers, or they contradict it.
    Malformed,
    /// The source address is not that of the sender, or the sending host does not carry its node.
    WrongSource,
    /// The packet in it is from an address of another node or domain, or for the address that its
    /// receiver has in another domain.
    ForeignAddress,
    /// A member announces itself as a router (IPv6) in a domain without routers.
    RouterAdvertisement,
    /// Longer than the domain's MTU allows.
    TooLong,
    /// The destination address is one of another domain.
    OtherDomain,
    /// No member has its destination address, or the sender itself does.
    NoSuchMember,
    /// From one limited member to another.
    Limited,
    /// A report of multicast groups (IGMP, MLD) in a domain without a router that needs it.
    LinkReport,
    /// Sent by another host in another epoch of the domain.
    OtherEpoch,
    /// The receiver took no more at that moment.
    Full,
    /// The receiver's interface was down or gone, or there was no connection to its host.
    Down,
    /// The kernel refused it for another reason.
    Refused,
    /// Lost on its link, which has a model with losses.
    Lost,
    /// More bytes waited before its link than the model of the link or the driver's memory permits.
    QueueFull,
    /// The domain has a fence, and this host has heard nothing for its time.
    Fenced,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [DropReason; 16] = [
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
        DropReason::Lost,
        DropReason::QueueFull,
        DropReason::Fenced,
    ];
}
