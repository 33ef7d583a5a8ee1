//! MAC addresses of members.
//!
//! The address of a member is `06:dd:dd:xx:yy:zz`: domain and place ([`toroid_model::addressing::mac`]). A
//! destination therefore names its member, and the switch neither learns addresses nor floods unicast.

use std::fmt;
use std::net::IpAddr;

use toroid_fabric::Place;
use toroid_model::addressing;

/// Bit of the first octet that marks a group address (broadcast or multicast).
const GROUP: u8 = 0x01;

/// Bit of the first octet that a link-local address has inverted.
const ADMINISTERED: u8 = 0x02;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

/// Meaning of a destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Broadcast or multicast.
    Group,
    /// A place in a domain, at which a member may be.
    Member {
        /// Number of the domain.
        domain: u16,
        /// Place of the node.
        place: Place,
    },
    /// An address that no member can have.
    Elsewhere,
}

impl Mac {
    /// Meaning of this address as a destination.
    pub(crate) fn destination(self) -> Destination {
        match addressing::parse_mac(self.0) {
            Some((domain, place)) => Destination::Member { domain, place },
            None if self.0[0] & GROUP != 0 => Destination::Group,
            None => Destination::Elsewhere,
        }
    }
}

/// The MAC address from which an interface derives this link-local address (RFC 4291); `None` for other
/// addresses.
pub(crate) fn from_link_local(address: IpAddr) -> Option<Mac> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    match address.octets() {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
            Some(Mac([a ^ ADMINISTERED, b, c, d, e, f]))
        }
        _ => None,
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&addressing::mac_text(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_names_domain_and_place() {
        let place = Place { x: 1, y: 2, z: 255 };
        let domain = 0x0304;
        let mac = Mac(addressing::mac(domain, place));
        assert_eq!(mac.to_string(), "06:03:04:01:02:ff");
        assert_eq!(mac.destination(), Destination::Member { domain, place });
    }

    #[test]
    fn a_link_local_address_is_derived_from_a_mac() {
        let mac = |address: &str| from_link_local(address.parse().unwrap());
        let member = Mac([6, 0, 1, 2, 3, 4]);
        assert_eq!(mac("fe80::400:1ff:fe02:304"), Some(member));
        for other in [
            "fe80::1",
            "fe80:1::400:1ff:fe02:304",
            "fd80::400:1ff:fe02:304",
            "10.0.0.1",
        ] {
            assert_eq!(mac(other), None, "{other}");
        }
    }

    #[test]
    fn group_and_foreign_addresses_name_no_member() {
        assert_eq!(Mac([0xff; 6]).destination(), Destination::Group);
        let all_nodes = Mac([0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(all_nodes.destination(), Destination::Group);
        assert_eq!(Mac([0; 6]).destination(), Destination::Elsewhere);
        assert_eq!(
            Mac([2, 0, 0, 0, 0, 0]).destination(),
            Destination::Elsewhere
        );
    }
}
