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

/// The protocol in a packet, and its bytes; `None` if it ends before. Those of a fragment may be any part.
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
            FRAGMENT => FRAGMENT_HEADER,
            _ => return Some((kind, rest)),
        };
        kind = *rest.first()?;
        rest = rest.get(len..)?;
    }
}
