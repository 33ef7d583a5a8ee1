//! Addresses of members. MAC and IPv6 addresses follow from the domain's number and the node's
//! place, and so does the IPv4 address if the subnet has one for each node of the torus: these need
//! no storing. A smaller subnet has addresses by index ([`crate::directory::Domain::address`]). All
//! stay as they are when the domain grows and shrinks.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::str::FromStr;

use toroid_fabric::{Place, Torus};

/// The range from which subnets of domains are carved: 10.64.0.0/10.
pub const RANGE: Subnet = Subnet {
    base: Ipv4Addr::new(10, 64, 0, 0),
    prefix: 10,
};

/// Prefix length of every IPv6 address.
pub const IPV6_PREFIX: u8 = 64;

/// The first 48 bits of every IPv6 address: a unique local prefix whose "random" bits spell
/// `toroi`.
const ULA: [u16; 3] = [0xfd74, 0x6f72, 0x6f69];

/// The longest prefix that a domain gets: even a small one has a /24, which people can read.
const LONGEST_PREFIX: u8 = 24;

/// Members for which a domain has addresses, unless more are wanted: those of the smallest subnet.
pub const DEFAULT_CAPACITY: u32 = (1 << (32 - LONGEST_PREFIX)) - 2;

/// Members for which a new domain has addresses: the `wanted` ones, by default
/// [`DEFAULT_CAPACITY`] or as many as it begins with, and at most all nodes.
pub fn capacity(torus: Torus, members: usize, wanted: Option<u32>) -> u32 {
    let members = u32::try_from(members).unwrap_or(u32::MAX);
    let capacity = wanted.unwrap_or(members.max(DEFAULT_CAPACITY));
    capacity.clamp(1, torus.nodes())
}

/// The name of a node as a host, `x-y-z`, which is also the first label of its name in a domain.
pub fn host_name(place: Place) -> String {
    format!("{}-{}-{}", place.x, place.y, place.z)
}

/// An IPv4 subnet, written `a.b.c.d/len`; the bits after the prefix are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subnet {
    base: Ipv4Addr,
    prefix: u8,
}

/// Why a subnet cannot be a domain's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// Not `a.b.c.d/len`.
    #[error("\"{0}\" is not a subnet, which is written a.b.c.d/len, for example 10.64.7.0/24")]
    Malformed(String),
    /// Bits after the prefix are set.
    #[error("{given} has bits set after its prefix: write {meant}")]
    HostBits {
        /// As given.
        given: String,
        /// The subnet that contains it.
        meant: Subnet,
    },
    /// Too few addresses.
    #[error("{subnet} is too small for {nodes} nodes, which need a /{prefix} or larger")]
    TooSmall {
        /// The subnet.
        subnet: Subnet,
        /// Nodes that may become members.
        nodes: u32,
        /// Longest sufficient prefix.
        prefix: u8,
    },
    /// Multicast, loopback and the like.
    #[error("{0} holds addresses that no interface may have")]
    Reserved(Subnet),
}

impl Subnet {
    /// The subnet of `prefix` bits (at most 32) that contains `address`.
    fn containing(address: Ipv4Addr, prefix: u8) -> Self {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(prefix))
            .unwrap_or_default();
        Subnet {
            base: Ipv4Addr::from_bits(address.to_bits() & mask),
            prefix,
        }
    }

    /// First address, which belongs to no node.
    pub fn base(&self) -> Ipv4Addr {
        self.base
    }

    /// Prefix length.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Number of addresses, with the first and the last.
    pub fn addresses(&self) -> u64 {
        1 << (32 - self.prefix)
    }

    /// Number of nodes that it has addresses for: not the first and the last.
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.addresses().saturating_sub(2)).unwrap_or(u32::MAX)
    }

    /// Whether the two share an address.
    pub fn overlaps(&self, other: &Subnet) -> bool {
        let shorter = self.prefix.min(other.prefix);
        Self::containing(self.base, shorter) == Self::containing(other.base, shorter)
    }

    /// Numbers of the smallest [`Subnet::candidates`] that have an address of it.
    pub fn blocks(&self) -> Range<u32> {
        let [ours, all] = [*self, RANGE].map(|subnet| {
            let first = u64::from(subnet.base.to_bits());
            first..first + subnet.addresses()
        });
        let block = |address: u64| ((address - all.start) >> (32 - LONGEST_PREFIX)) as u32;
        let shared = ours.start.max(all.start)..ours.end.min(all.end);
        if shared.is_empty() {
            0..0
        } else {
            block(shared.start)..block(shared.end - 1) + 1
        }
    }

    /// Checks that so many nodes find an address in it.
    ///
    /// # Errors
    /// [`SubnetError::TooSmall`] and [`SubnetError::Reserved`].
    pub fn check_for(&self, nodes: u32) -> Result<(), SubnetError> {
        if self.capacity() < nodes {
            return Err(SubnetError::TooSmall {
                subnet: *self,
                nodes,
                prefix: longest_prefix(nodes),
            });
        }
        let reserved = ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"];
        let reserved = reserved.iter().flat_map(|text| text.parse());
        if reserved
            .into_iter()
            .any(|range: Subnet| range.overlaps(self))
        {
            Err(SubnetError::Reserved(*self))
        } else {
            Ok(())
        }
    }

    /// The address with this index, from 0, below [`Subnet::capacity`].
    pub fn address(&self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base.to_bits().wrapping_add(index).wrapping_add(1))
    }

    /// Number of subnets in [`RANGE`] that have addresses for so many nodes, and no more than they
    /// need.
    pub fn candidates(nodes: u32) -> u32 {
        1 << (candidate_prefix(nodes) - RANGE.prefix)
    }

    /// Subnet number `n` of [`Subnet::candidates`], in order.
    pub fn candidate(nodes: u32, n: u32) -> Subnet {
        let prefix = candidate_prefix(nodes);
        let offset = n.wrapping_shl(32 - u32::from(prefix));
        Subnet::containing(
            Ipv4Addr::from_bits(RANGE.base.to_bits().wrapping_add(offset)),
            prefix,
        )
    }
}

fn candidate_prefix(nodes: u32) -> u8 {
    longest_prefix(nodes).clamp(RANGE.prefix, LONGEST_PREFIX)
}

/// The longest prefix with room for `nodes` addresses besides the first and the last.
fn longest_prefix(nodes: u32) -> u8 {
    let addresses = nodes.saturating_add(2).next_power_of_two();
    32 - addresses.trailing_zeros() as u8
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || SubnetError::Malformed(text.into());
        let (base, prefix) = text.split_once('/').ok_or_else(malformed)?;
        let base: Ipv4Addr = base.parse().map_err(|_| malformed())?;
        let prefix: u8 = prefix.parse().map_err(|_| malformed())?;
        if prefix > 32 {
            return Err(malformed());
        }
        let meant = Subnet::containing(base, prefix);
        if meant.base == base {
            Ok(meant)
        } else {
            Err(SubnetError::HostBits {
                given: text.into(),
                meant,
            })
        }
    }
}

/// The MAC address `06:dd:dd:xx:yy:zz` of the member at `place` in domain number `domain`.
pub fn mac(domain: u16, place: Place) -> [u8; 6] {
    let [high, low] = domain.to_be_bytes();
    [0x06, high, low, place.x, place.y, place.z]
}

/// Domain number and place in a MAC address made by [`mac`], or `None` for any other.
pub fn parse_mac(mac: [u8; 6]) -> Option<(u16, Place)> {
    let [0x06, high, low, x, y, z] = mac else {
        return None;
    };
    Some((u16::from_be_bytes([high, low]), Place { x, y, z }))
}

/// A MAC address as text.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The IPv6 address of the member at `place` in domain number `domain`:
/// `fd74:6f72:6f69:domain:1:x:y:z`, on a network of [`IPV6_PREFIX`] bits.
///
/// The 1 keeps place `0,0,0` off the subnet-router anycast address.
pub fn ipv6(domain: u16, place: Place) -> Ipv6Addr {
    let [x, y, z] = [place.x, place.y, place.z].map(u16::from);
    Ipv6Addr::new(ULA[0], ULA[1], ULA[2], domain, 1, x, y, z)
}

/// Domain number and place in an IPv6 address made by [`ipv6`], or `None` for any other.
pub fn parse_ipv6(address: Ipv6Addr) -> Option<(u16, Place)> {
    let [a, b, c, domain, 1, x, y, z] = address.segments() else {
        return None;
    };
    let [x, y, z] = [x, y, z].map(|n| u8::try_from(n).ok());
    let place = Place {
        x: x?,
        y: y?,
        z: z?,
    };
    ([a, b, c] == ULA).then_some((domain, place))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use toroid_fabric::NodeId;

    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_follow_from_number_and_place() {
        let place = Place { x: 1, y: 2, z: 255 };
        assert_eq!(mac(0x1234, place), [0x06, 0x12, 0x34, 1, 2, 255]);
        assert_eq!(parse_mac(mac(0x1234, place)), Some((0x1234, place)));
        assert_eq!(parse_mac([0x02; 6]), None);
        assert_eq!(mac_text(mac(0x1234, place)), "06:12:34:01:02:ff");
        assert_eq!(
            ipv6(0x1234, place).to_string(),
            "fd74:6f72:6f69:1234:1:1:2:ff"
        );
        assert_eq!(parse_ipv6(ipv6(0x1234, place)), Some((0x1234, place)));
        for other in [
            "fd74:6f72:6f69:1234:1:1:2:100",
            "fd74:6f72:6f69:1234:2:1:2:ff",
            "fd74:6f72:6f68:1234:1:1:2:ff",
        ] {
            assert_eq!(parse_ipv6(other.parse().unwrap()), None, "{other}");
        }
        assert_eq!(subnet("10.64.7.0/24").address(0).to_string(), "10.64.7.1");
    }

    #[test]
    fn the_largest_torus_still_fits() {
        let torus: Torus = "151x31x14".parse().unwrap();
        let largest = torus.nodes();
        assert_eq!(u64::from(largest), Torus::MAX_NODES);
        let first = Subnet::candidate(largest, 0);
        assert_eq!(first.to_string(), "10.64.0.0/16");
        assert_eq!(
            (Subnet::candidates(largest), first.capacity()),
            (64, largest)
        );
        assert_eq!(first.address(largest - 1).to_string(), "10.64.255.254");
        assert_eq!(first.check_for(largest), Ok(()));
        assert!(first.check_for(largest + 1).is_err());
        // Each node has addresses of its own, from which its place can be read.
        let mut all = HashSet::new();
        for place in (0..largest).map(|n| torus.place(NodeId(n)).unwrap()) {
            assert_eq!(parse_mac(mac(65_535, place)), Some((65_535, place)));
            assert_eq!(parse_ipv6(ipv6(65_535, place)), Some((65_535, place)));
            all.insert((mac(65_535, place), ipv6(65_535, place)));
        }
        assert_eq!(all.len(), largest as usize);
    }

    #[test]
    fn candidates_are_as_large_as_needed() {
        for (nodes, prefix) in [(1, 24), (254, 24), (255, 23), (1022, 22), (1023, 21)] {
            assert_eq!(Subnet::candidate(nodes, 0).prefix(), prefix, "{nodes}");
        }
        let sizes = ["10.0.0.0/30", "10.0.0.0/31", "10.0.0.0/32", "0.0.0.0/0"];
        let capacities = sizes.map(|text| subnet(text).capacity());
        assert_eq!(capacities, [2, 0, 0, u32::MAX - 1]);
    }

    #[test]
    fn candidates_are_disjoint_and_in_range() {
        let all = 0..Subnet::candidates(8);
        let all: Vec<Subnet> = all.map(|n| Subnet::candidate(8, n)).collect();
        assert_eq!(all.len(), 1 << 14);
        assert_eq!(all[0].to_string(), "10.64.0.0/24");
        for pair in all.windows(2) {
            assert!(!pair[0].overlaps(&pair[1]));
        }
        assert!(all.iter().all(|subnet| RANGE.overlaps(subnet)));
        assert_eq!(all[all.len() - 1].to_string(), "10.127.255.0/24");
    }

    #[test]
    fn overlap_is_containment_of_the_longer_prefix() {
        assert!(subnet("10.64.0.0/16").overlaps(&subnet("10.64.9.0/24")));
        assert!(subnet("10.64.9.0/24").overlaps(&subnet("10.64.0.0/16")));
        assert!(!subnet("10.64.9.0/24").overlaps(&subnet("10.64.8.0/24")));
        assert!(subnet("0.0.0.0/0").overlaps(&subnet("255.255.255.255/32")));
    }

    #[test]
    fn bad_subnets_are_named() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "a/8",
            "10.0.0.0/-1",
        ] {
            assert_eq!(
                text.parse::<Subnet>(),
                Err(SubnetError::Malformed(text.into()))
            );
        }
        assert_eq!(
            "10.0.0.1/24".parse::<Subnet>(),
            Err(SubnetError::HostBits {
                given: "10.0.0.1/24".into(),
                meant: subnet("10.0.0.0/24"),
            })
        );
        let (small, eight) = (subnet("10.0.0.0/29"), 8);
        assert_eq!(
            small.check_for(eight),
            Err(SubnetError::TooSmall {
                subnet: small,
                nodes: 8,
                prefix: 28
            })
        );
        assert_eq!(subnet("10.0.0.0/28").check_for(eight), Ok(()));
        for text in ["127.1.0.0/16", "239.0.0.0/8", "0.0.0.0/0"] {
            let reserved = subnet(text);
            assert_eq!(
                reserved.check_for(eight),
                Err(SubnetError::Reserved(reserved))
            );
        }
    }
}
