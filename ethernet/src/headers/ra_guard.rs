//! Router advertisements (RFC 4861), for an RA guard (RFC 6105).
//!
//! The sender of a router advertisement receives the packets that others send off the link, and assigns
//! addresses to them. Kernels believe every advertisement, so advertisements pass in domains with routers
//! only. The guard reads the messages behind all [extension headers](crate::headers::ipv6) (RFC 7113).

use smoltcp::wire::{EthernetProtocol, Icmpv6Message, IpProtocol};

use crate::headers::frame::Frame;
use crate::headers::ipv6;

/// Whether `frame` is a router advertisement.
pub(crate) fn is_router_advertisement(frame: Frame<'_>) -> bool {
    let (ethertype, packet) = frame.untagged();
    let is_advertisement = |message: &[u8]| {
        let message_type = message.first().copied().map(Icmpv6Message::from);
        message_type == Some(Icmpv6Message::RouterAdvert)
    };
    ethertype == EthernetProtocol::Ipv6
        && matches!(ipv6::upper_layer(packet), Some((IpProtocol::Icmpv6, message)) if is_advertisement(message))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ICMPV6: u8 = 58;
    const NEXT_HEADER: usize = 6;
    const HOP_BY_HOP: u8 = 0;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;

    /// A packet with these headers before an ICMPv6 message of this type, behind tags.
    fn frame(tags: &[u8], headers: &[(u8, &[u8])], kind: u8) -> Vec<u8> {
        let mut bytes = vec![0x33, 0x33, 0, 0, 0, 1, 6, 0, 1, 0, 1, 0];
        bytes.extend(tags);
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 16]);
        bytes.push(headers.first().map_or(ICMPV6, |header| header.0));
        bytes.push(255);
        bytes.extend([0; 32]);
        for (n, (_, body)) in headers.iter().enumerate() {
            bytes.push(headers.get(n + 1).map_or(ICMPV6, |header| header.0));
            bytes.extend(*body);
        }
        bytes.extend([kind, 0, 0, 0, 64, 0, 7, 8]);
        bytes
    }

    fn is_advertisement(bytes: &[u8]) -> bool {
        Frame::new(bytes).is_some_and(is_router_advertisement)
    }

    const TAG: [u8; 4] = [0x81, 0, 0, 0];

    #[test]
    fn advertisements_are_found_behind_all_extension_headers() {
        let options: (u8, &[u8]) = (DESTINATION, &[0, 1, 4, 0, 0, 0, 0]);
        let longer: (u8, &[u8]) = (HOP_BY_HOP, &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let authentication: (u8, &[u8]) = (AUTHENTICATION, &[1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
        let fragment: (u8, &[u8]) = (FRAGMENT, &[0, 0, 0, 0, 0, 0, 1]);
        for headers in [
            &[][..],
            &[options],
            &[longer, options, options],
            &[authentication, options],
            &[fragment],
        ] {
            for tags in [&[][..], &TAG, &[TAG, TAG].concat()] {
                assert!(
                    is_advertisement(&frame(tags, headers, 134)),
                    "{headers:?} {tags:?}"
                );
                assert!(
                    !is_advertisement(&frame(tags, headers, 135)),
                    "{headers:?} {tags:?}"
                );
            }
        }
    }

    #[test]
    fn a_truncated_packet_is_no_advertisement() {
        let whole = frame(&TAG, &[(DESTINATION, &[0, 1, 4, 0, 0, 0, 0])], 134);
        let message = whole.len() - 8;
        for len in 0..=message {
            assert!(!is_advertisement(&whole[..len]), "cut at {len}");
        }
        let mut tcp = frame(&[], &[], 134);
        tcp[14 + NEXT_HEADER] = 6;
        assert!(!is_advertisement(&tcp));
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0..8_u8) {
            is_advertisement(&bytes);
            let headers = [(at, &bytes[..])];
            is_advertisement(&frame(&[], &headers, 134));
        }
    }
}
