//! Ethernet frames: a checked view of bytes that a node sent.
//!
//! The header is read by smoltcp. VLAN tags, which smoltcp does not know, are read here: 4 bytes each, in
//! front of the ethertype. Nodes may use VLANs among themselves, and one tag does not count towards the
//! MTU.

pub use smoltcp::wire::ETHERNET_HEADER_LEN as HEADER_LEN;
use smoltcp::wire::{EthernetFrame, EthernetProtocol};

use crate::headers::mac::Mac;

/// Bytes of a VLAN tag.
pub(crate) const TAG_LEN: usize = 4;

/// Bits of a tag that hold the VLAN number; the others are a priority.
const VLAN_NUMBER: u16 = 0xfff;

/// A frame with a complete Ethernet header. The payload is unchecked.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a>(&'a [u8]);

impl<'a> Frame<'a> {
    /// The frame in these bytes; `None` if they end within the header.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= HEADER_LEN).then_some(Frame(bytes))
    }

    /// Destination address.
    pub(crate) fn destination(&self) -> Mac {
        Mac(self.header().dst_addr().0)
    }

    /// Source address, as the sender claims it.
    pub(crate) fn source(&self) -> Mac {
        Mac(self.header().src_addr().0)
    }

    /// Protocol of the payload, which may be a VLAN tag.
    pub(crate) fn ethertype(&self) -> EthernetProtocol {
        self.header().ethertype()
    }

    /// Bytes behind the header.
    pub(crate) fn payload(&self) -> &'a [u8] {
        self.header().payload()
    }

    /// Protocol and payload behind all tags. Kernels read a tag of VLAN 0 as no tag.
    pub(crate) fn untagged(&self) -> (EthernetProtocol, &'a [u8]) {
        let (_, ethertype, payload) = self.strip();
        (ethertype, payload)
    }

    /// Whether a tag names a VLAN.
    pub(crate) fn is_in_vlan(&self) -> bool {
        self.strip().0
    }

    /// Whether a tag names a VLAN, and protocol and payload behind all tags.
    fn strip(&self) -> (bool, EthernetProtocol, &'a [u8]) {
        let (mut vlan, mut ethertype, mut payload) = (false, self.ethertype(), self.payload());
        while is_tag(ethertype)
            && let Some((tag, behind)) = payload.split_first_chunk::<TAG_LEN>()
        {
            vlan |= u16::from_be_bytes([tag[0], tag[1]]) & VLAN_NUMBER != 0;
            ethertype = u16::from_be_bytes([tag[2], tag[3]]).into();
            payload = behind;
        }
        (vlan, ethertype, payload)
    }

    /// Length limit of this frame, in bytes, for an MTU in bytes.
    pub(crate) fn max_len(&self, mtu: u32) -> usize {
        let tag = if is_tag(self.ethertype()) { TAG_LEN } else { 0 };
        HEADER_LEN + tag + mtu as usize
    }

    fn header(&self) -> EthernetFrame<&'a [u8]> {
        EthernetFrame::new_unchecked(self.0)
    }
}

/// Whether the ethertype announces a VLAN tag (IEEE 802.1Q) or a provider's VLAN tag (802.1ad).
pub(crate) fn is_tag(ethertype: EthernetProtocol) -> bool {
    matches!(ethertype, EthernetProtocol::Unknown(0x8100 | 0x88a8))
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
        assert_eq!(frame.ethertype(), EthernetProtocol::Ipv6);
        assert_eq!(frame.payload(), [0xaa; 3]);
    }

    #[test]
    fn a_truncated_header_is_no_frame() {
        for len in 0..HEADER_LEN {
            assert!(Frame::new(&vec![0; len]).is_none());
        }
    }

    #[test]
    fn a_tag_of_vlan_0_is_only_a_priority() {
        let tagged = |tags: &[u8]| {
            let bytes = [&bytes([0x81, 0], 0), tags, &[0x86, 0xdd, 7]].concat();
            let frame = Frame::new(&bytes).unwrap();
            assert_eq!(frame.untagged(), (EthernetProtocol::Ipv6, &[7][..]));
            frame.is_in_vlan()
        };
        assert!(!tagged(&[0xe0, 0]));
        assert!(tagged(&[0xe0, 1]));
        assert!(tagged(&[0, 0, 0x81, 0, 0x0f, 0]));
        assert!(!Frame::new(&bytes([8, 0], 40)).unwrap().is_in_vlan());
    }

    #[test]
    fn only_a_tag_may_exceed_the_mtu() {
        let max_len = |ethertype| Frame::new(&bytes(ethertype, 100)).unwrap().max_len(1500);
        assert_eq!(max_len([8, 0]), 1514);
        assert_eq!(max_len([0x81, 0]), 1518);
        assert_eq!(max_len([0x88, 0xa8]), 1518);
    }
}
