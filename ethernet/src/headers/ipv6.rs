//! The upper-layer protocol of an IPv6 packet, behind all extension headers.

use smoltcp::wire::{IPV6_HEADER_LEN, IpProtocol, Ipv6ExtHeader, Ipv6FragmentHeader, Ipv6Packet};

/// The upper-layer protocol of a packet, and the bytes that the packet has of it; `None` if the packet
/// ends before them, or is not the first fragment.
///
/// The payload length of the packet is not used: kernels accept packets with payload length 0 and a
/// hop-by-hop header, and read beyond that length.
pub(crate) fn upper_layer(packet: &[u8]) -> Option<(IpProtocol, &[u8])> {
    let (header, mut rest) = packet.split_at_checked(IPV6_HEADER_LEN)?;
    let mut protocol = Ipv6Packet::new_unchecked(header).next_header();
    loop {
        let len = match protocol {
            IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                let header = Ipv6ExtHeader::new_checked(rest).ok()?;
                8 * (usize::from(header.header_len()) + 1)
            }
            // RFC 4302 counts other units than all other headers; smoltcp reads it with IPsec only.
            IpProtocol::IpSecAh => 4 * (usize::from(*rest.get(1)?) + 2),
            IpProtocol::Ipv6Frag => {
                let fragment = Ipv6FragmentHeader::new_checked(rest.get(2..)?).ok()?;
                if fragment.frag_offset() != 0 {
                    return None;
                }
                8
            }
            _ => return Some((protocol, rest)),
        };
        protocol = IpProtocol::from(*rest.first()?);
        rest = rest.get(len..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_fragment_begins_with_a_message() {
        // Router advertisement, neighbour advertisement, MLDv2 report.
        for kind in [134, 136, 143] {
            let fragment = |offset: u16| {
                let mut packet = vec![0; IPV6_HEADER_LEN];
                packet[6] = IpProtocol::Ipv6Frag.into();
                packet.extend([IpProtocol::Icmpv6.into(), 0]);
                packet.extend(offset.to_be_bytes());
                packet.extend([0, 0, 0, 1, kind, 0]);
                packet
            };
            // The lowest bit is the more-fragments flag.
            for offset in [0, 1] {
                let message = Some((IpProtocol::Icmpv6, &[kind, 0][..]));
                assert_eq!(upper_layer(&fragment(offset)), message);
            }
            for offset in [8, 9, 0xfff8] {
                assert_eq!(upper_layer(&fragment(offset)), None);
            }
        }
    }
}
