//! Ethernet frames: a checked view of bytes that a node sent.
//!
//! ```text
//!  0             6        12          14
//!  +-------------+--------+-----------+------------------+
//!  | destination | source | ethertype | payload          |
//!  +-------------+--------+-----------+------------------+
//! ```
//!
//! A frame may carry VLAN tags of 4 bytes before its type; nodes may use them among themselves,
//! so one tag is allowed for where lengths are checked.

use std::ops::Range;

use crate::headers::mac::Mac;

/// Bytes before the payload.
pub const HEADER_LEN: usize = 14;

/// Bytes of a VLAN tag.
pub(crate) const TAG_LEN: usize = 4;

/// The bits of a tag that say which VLAN; the others are a priority.
const VLAN_NUMBER: u16 = 0xfff;

const DESTINATION: Range<usize> = 0..6;
const SOURCE: Range<usize> = 6..12;
const ETHERTYPE: Range<usize> = 12..14;

/// The protocol of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtherType(pub u16);

impl EtherType {
    /// Address resolution for IPv4.
    pub const ARP: EtherType = EtherType(0x0806);
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
    /// A VLAN tag.
    const VLAN: EtherType = EtherType(0x8100);
    /// A provider's VLAN tag.
    const PROVIDER_VLAN: EtherType = EtherType(0x88a8);

    pub(crate) fn is_tag(self) -> bool {
        matches!(self, EtherType::VLAN | EtherType::PROVIDER_VLAN)
    }
}

/// A frame with a whole header. Nothing is said of its payload.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The frame in these bytes, or `None` if they end within the header.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk()?;
        Some(Frame { header, payload })
    }

    /// Whom it is for.
    pub fn destination(&self) -> Mac {
        self.mac(DESTINATION)
    }

    /// Who claims to have sent it.
    pub fn source(&self) -> Mac {
        self.mac(SOURCE)
    }

    /// What the payload is.
    pub fn ethertype(&self) -> EtherType {
        let bytes = &self.header[ETHERTYPE];
        EtherType(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Everything behind the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// What the payload is behind all tags, as kernels read it: a tag of VLAN 0 is as good as none.
    pub fn untagged(&self) -> (EtherType, &'a [u8]) {
        let (_, ethertype, payload) = self.strip();
        (ethertype, payload)
    }

    /// Whether it is in a VLAN, which members may have among themselves.
    pub fn is_in_vlan(&self) -> bool {
        self.strip().0
    }

    /// Whether any tag is of a VLAN, and what is behind all of them.
    fn strip(&self) -> (bool, EtherType, &'a [u8]) {
        let (mut vlan, mut ethertype, mut payload) = (false, self.ethertype(), self.payload);
        while ethertype.is_tag()
            && let Some((tag, behind)) = payload.split_first_chunk::<TAG_LEN>()
        {
            vlan |= u16::from_be_bytes([tag[0], tag[1]]) & VLAN_NUMBER != 0;
            ethertype = EtherType(u16::from_be_bytes([tag[2], tag[3]]));
            payload = behind;
        }
        (vlan, ethertype, payload)
    }

    /// The most bytes that a frame like this may have where the MTU, in bytes, is this.
    pub fn longest(&self, mtu: u32) -> usize {
        let tag = if self.ethertype().is_tag() {
            TAG_LEN
        } else {
            0
        };
        HEADER_LEN + tag + mtu as usize
    }

    fn mac(&self, range: Range<usize>) -> Mac {
        let mut octets = [0; 6];
        octets.copy_from_slice(&self.header[range]);
        Mac(octets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(ethertype: [u8; 2], payload: usize) -> Vec<u8> {
        let mut bytes = vec![1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16];
        bytes.extend(ethertype);
        bytes.resize(HEADER_LEN + payload, 0xaa);
        bytes
    }

    #[test]
    fn the_header_is_read() {
        let bytes = bytes([0x86, 0xdd], 3);
        let frame = Frame::new(&bytes).unwrap();
        assert_eq!(frame.destination(), Mac([1, 2, 3, 4, 5, 6]));
        assert_eq!(frame.source(), Mac([11, 12, 13, 14, 15, 16]));
        assert_eq!(frame.ethertype(), EtherType::IPV6);
        assert_eq!(frame.payload(), [0xaa; 3]);
    }

    #[test]
    fn a_broken_header_is_no_frame() {
        for len in 0..HEADER_LEN {
            assert!(Frame::new(&vec![0; len]).is_none());
        }
    }

    #[test]
    fn a_tag_that_is_only_a_priority_is_of_no_vlan() {
        let tagged = |tags: &[u8]| {
            let bytes = [&bytes([0x81, 0], 0), tags, &[0x86, 0xdd, 7]].concat();
            let frame = Frame::new(&bytes).unwrap();
            assert_eq!(frame.untagged(), (EtherType::IPV6, &[7][..]));
            frame.is_in_vlan()
        };
        assert!(!tagged(&[0xe0, 0]));
        assert!(tagged(&[0xe0, 1]));
        assert!(tagged(&[0, 0, 0x81, 0, 0x0f, 0]));
        assert!(!Frame::new(&bytes([8, 0], 40)).unwrap().is_in_vlan());
    }

    #[test]
    fn only_a_tag_may_exceed_the_mtu() {
        let longest = |ethertype| Frame::new(&bytes(ethertype, 100)).unwrap().longest(1500);
        assert_eq!(longest([8, 0]), 1514);
        assert_eq!(longest([0x81, 0]), 1518);
        assert_eq!(longest([0x88, 0xa8]), 1518);
    }
}
