//! Features of interfaces, as `ethtool -K` sets them: generic netlink, family `ethtool`.
//!
//! ```text
//! request:     netlink header | family header | features header {name} | wanted {bits {bit {name}}}
//! attribute:   length (2) | kind (2) | value, padded to 4 bytes
//! ```
//!
//! A bit without a value is switched off, unless the kernel has fixed the feature.

use std::fs::File;
use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};
use toroid_netlink::namespace::inside;

/// Features by which a sender leaves checksums and segmentation to its interface. Without them the
/// kernel still builds long packets and segments them just before the interface, as it does for a
/// TAP without offloads.
pub const OFFLOADS: [&str; 5] = [
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "tx-checksum-ip-generic",
];

/// Message type of the controller, which resolves names of families (`GENL_ID_CTRL`).
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const SET_FEATURES: u8 = 12;

const REQUEST_WITH_ACK: u16 = 1 | 4;
const ERROR: u16 = 2;

const HEADER: u16 = 1;
const HEADER_NAME: u16 = 2;
const WANTED: u16 = 3;
const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const NESTED: u16 = 1 << 15;

const MALFORMED: io::ErrorKind = io::ErrorKind::InvalidData;

/// Bytes of netlink's header and the family's.
const HEADERS: usize = 16 + 4;

/// Switches off features of the interface `name` in a network namespace.
pub fn switch_off(network: &File, name: &str, features: &[&str]) -> io::Result<()> {
    inside(network, || -> io::Result<()> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let family = family(&socket)?;
        let bits: Vec<u8> = features
            .iter()
            .flat_map(|feature| attribute(BIT | NESTED, &text(BIT_NAME, feature)))
            .collect();
        let wanted = attribute(BITS | NESTED, &bits);
        let mut body = attribute(HEADER | NESTED, &text(HEADER_NAME, name));
        body.extend(attribute(WANTED | NESTED, &wanted));
        ask(&socket, family, SET_FEATURES, &body).map(drop)
    })?
}

fn family(socket: &Socket) -> io::Result<u16> {
    let answer = ask(socket, CONTROL, GET_FAMILY, &text(FAMILY_NAME, "ethtool"))?;
    let mut rest = answer.get(HEADERS..).unwrap_or_default();
    while let [a, b, c, d, value @ ..] = rest {
        let (len, kind) = (u16::from_ne_bytes([*a, *b]), u16::from_ne_bytes([*c, *d]));
        match value {
            [low, high, ..] if kind == FAMILY_ID => return Ok(u16::from_ne_bytes([*low, *high])),
            _ => {}
        }
        let next = usize::from(len).max(4).next_multiple_of(4);
        rest = rest.get(next..).unwrap_or_default();
    }
    Err(MALFORMED.into())
}

/// Sends a request. Returns the kernel's answer, empty if only an acknowledgement comes.
fn ask(socket: &Socket, family: u16, command: u8, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    request.extend(((HEADERS + body.len()) as u32).to_ne_bytes());
    request.extend(family.to_ne_bytes());
    request.extend(REQUEST_WITH_ACK.to_ne_bytes());
    // Sequence number and port, then command and version.
    request.extend([0; 8]);
    request.extend([command, 1, 0, 0]);
    request.extend(body);
    socket.send(&request, 0)?;
    let mut answer = Vec::new();
    loop {
        let (message, _) = socket.recv_from_full()?;
        let (_, rest) = message.split_first_chunk::<4>().ok_or(MALFORMED)?;
        let (kind, _) = rest.split_first_chunk::<2>().ok_or(MALFORMED)?;
        if u16::from_ne_bytes(*kind) != ERROR {
            answer = message;
            continue;
        }
        let (_, rest) = message.split_first_chunk::<16>().ok_or(MALFORMED)?;
        let (code, _) = rest.split_first_chunk::<4>().ok_or(MALFORMED)?;
        return match i32::from_ne_bytes(*code) {
            0 => Ok(answer),
            code => Err(io::Error::from_raw_os_error(-code)),
        };
    }
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    let mut value = text.as_bytes().to_vec();
    value.push(0);
    attribute(kind, &value)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_their_length_is_not() {
        let bytes = text(BIT_NAME, "abcd");
        assert_eq!(bytes, b"\x09\0\x02\0abcd\0\0\0\0");
    }

    #[test]
    fn an_interface_that_is_not_there_is_the_systems_error() {
        let here = File::open("/proc/thread-self/ns/net").unwrap();
        // Without the right to enter the namespace, that is the error.
        assert!(switch_off(&here, "no-such", &OFFLOADS).is_err());
    }
}
