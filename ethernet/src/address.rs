//! Interface addresses: what a MAC says about who it belongs to.
//!
//! The address of a member is `06:dd:dd:xx:yy:zz`, domain and place
//! ([`domains::addressing::mac`]). Because a destination is computed from its address, nothing
//! is learned and nothing is flooded.

use std::fmt;

use domains::addressing;
use fabric::Place;

/// The bit of the first octet that marks broadcast and multicast.
const GROUP: u8 = 0x01;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

/// Where a frame is bound for, as its destination address alone tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Broadcast or multicast: every other member.
    Group,
    /// One place in one domain.
    Member {
        /// The domain's number.
        domain: u16,
        /// The place; nothing says that a member is there.
        place: Place,
    },
    /// An address that no member can have.
    Elsewhere,
}

impl Mac {
    /// What this address means as a frame's destination.
    pub fn destination(self) -> Destination {
        match addressing::parse_mac(self.0) {
            Some((domain, place)) => Destination::Member { domain, place },
            None if self.0[0] & GROUP != 0 => Destination::Group,
            None => Destination::Elsewhere,
        }
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
    fn a_member_is_found_in_its_address() {
        let place = Place { x: 1, y: 2, z: 255 };
        let domain = 0x0304;
        let mac = Mac(addressing::mac(domain, place));
        assert_eq!(mac.to_string(), "06:03:04:01:02:ff");
        assert_eq!(mac.destination(), Destination::Member { domain, place });
    }

    #[test]
    fn groups_and_strangers_are_told_apart() {
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
