//! What is in a packet of IPv6 behind all the headers that may come first.

/// Bytes of the first header.
const HEADER: usize = 40;

/// Where the kind of the next header is in the first.
pub(crate) const NEXT_HEADER: usize = 6;

pub(crate) const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const AUTHENTICATION: u8 = 51;
/// The protocol of neighbour discovery and of listeners.
pub const ICMPV6: u8 = 58;
pub(crate) const DESTINATION: u8 = 60;

const FRAGMENT_HEADER: usize = 8;
/// Bits of its third and fourth byte: where in the packet the fragment belongs.
const FRAGMENT_OFFSET: u16 = 0xfff8;

/// The protocol in a packet, and its first bytes; `None` if it ends before, or is a later fragment, which
/// has others.
pub fn payload(packet: &[u8]) -> Option<(u8, &[u8])> {
    let (header, mut rest) = packet.split_at_checked(HEADER)?;
    let mut kind = header[NEXT_HEADER];
    loop {
        let len = |unit: usize, least: usize| {
            let [_, len, ..] = *rest else {
                return None;
            };
            Some(unit * (usize::from(len) + least))
        };
        let len = match kind {
            HOP_BY_HOP | ROUTING | DESTINATION => len(8, 1)?,
            AUTHENTICATION => len(4, 2)?,
            FRAGMENT => {
                let place = rest.get(2..)?.first_chunk()?;
                if u16::from_be_bytes(*place) & FRAGMENT_OFFSET != 0 {
                    return None;
                }
                FRAGMENT_HEADER
            }
            _ => return Some((kind, rest)),
        };
        kind = *rest.first()?;
        rest = rest.get(len..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_fragment_begins_with_a_message() {
        // Advertisement of a router and of a neighbour, and reports about groups.
        for kind in [134, 136, 143] {
            let fragment = |place: u16| {
                let mut packet = vec![0; HEADER];
                packet[NEXT_HEADER] = FRAGMENT;
                packet.extend([ICMPV6, 0]);
                packet.extend(place.to_be_bytes());
                packet.extend([0, 0, 0, 1, kind, 0]);
                packet
            };
            // The lowest bit says that more follow.
            for place in [0, 1] {
                assert_eq!(payload(&fragment(place)), Some((ICMPV6, &[kind, 0][..])));
            }
            for place in [8, 9, 0xfff8] {
                assert_eq!(payload(&fragment(place)), None);
            }
        }
    }
}
