//! Storms: frames of every kind for many receivers, and forged ones.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::raw::RawSocket;
use super::{Result, watch_input};

/// Pause between rounds: all members share one driver.
const PAUSE: Duration = Duration::from_micros(500);

/// Rounds after the end of the input.
const SOME_MORE: u32 = 50;

type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
const ALL_NODES_IPV4: Mac = [0x01, 0, 0x5e, 0, 0, 1];
const GROUP_IPV4: Mac = [0x01, 0, 0x5e, 1, 2, 3];
const ALL_NODES_IPV6: Mac = [0x33, 0x33, 0, 0, 0, 1];
const SOLICITED_IPV6: Mac = [0x33, 0x33, 0xff, 0, 0, 1];
const BRIDGES: Mac = [0x01, 0x80, 0xc2, 0, 0, 0];

const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const VLAN: [u8; 2] = [0x81, 0x00];
/// The EtherType for local experiments (IEEE 802).
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// Sends to all and to groups, from the interface's own address or another one.
pub fn storm(interface: &str, mark: &str, name: Option<&str>) -> Result<()> {
    let socket = RawSocket::sender(interface)?;
    let from = match name {
        Some(name) => parse_mac(name)?,
        None => socket.mac()?,
    };
    send_rounds(&socket, &to_many(from, mark))
}

/// Sends to one address, from the address of another node.
pub fn aim(interface: &str, mark: &str, from: &str, to: &str) -> Result<()> {
    let socket = RawSocket::sender(interface)?;
    let (from, to) = (parse_mac(from)?, parse_mac(to)?);
    let ethertypes = [ARP, IPV4, IPV6, VLAN, EXPERIMENT];
    let frames = ethertypes.map(|ethertype| frame(to, from, ethertype, &[], mark));
    send_rounds(&socket, &frames)
}

fn parse_mac(text: &str) -> Result<Mac> {
    let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16));
    let octets: Vec<u8> = octets.collect::<std::result::Result<_, _>>()?;
    Mac::try_from(octets).map_err(|_| format!("{text} is no address").into())
}

fn send_rounds(socket: &RawSocket, frames: &[Vec<u8>]) -> Result<()> {
    let ended = watch_input();
    let mut rounds_left = SOME_MORE;
    while rounds_left > 0 {
        for frame in frames {
            socket.send(frame)?;
        }
        if ended.load(Ordering::Acquire) {
            rounds_left -= 1;
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn to_many(from: Mac, mark: &str) -> Vec<Vec<u8>> {
    let to = |to, ethertype, body: &[u8]| frame(to, from, ethertype, body, mark);
    let nobody = [10, 255, 255, 254];
    vec![
        to(BROADCAST, ARP, &arp(ARP_REQUEST, from, nobody)),
        to(BROADCAST, ARP, &arp(ARP_REPLY, from, nobody)),
        to(BROADCAST, IPV4, &udp_ipv4([255; 4], 68, 67)),
        to(GROUP_IPV4, IPV4, &udp_ipv4([239, 1, 2, 3], 5001, 5001)),
        to(ALL_NODES_IPV4, IPV4, &udp_ipv4([224, 0, 0, 1], 5353, 5353)),
        to(
            ALL_NODES_IPV6,
            IPV6,
            &icmpv6(ALL_NODES, ROUTER_ADVERTISEMENT),
        ),
        to(
            ALL_NODES_IPV6,
            IPV6,
            &icmpv6(ALL_NODES, NEIGHBOUR_ADVERTISEMENT),
        ),
        to(
            SOLICITED_IPV6,
            IPV6,
            &icmpv6(SOLICITED, NEIGHBOUR_SOLICITATION),
        ),
        to(BRIDGES, [0, 38], &[0x42, 0x42, 3]),
        to(BROADCAST, VLAN, &[0, 42, EXPERIMENT[0], EXPERIMENT[1]]),
        to(BROADCAST, EXPERIMENT, &[]),
    ]
}

fn frame(to: Mac, from: Mac, ethertype: [u8; 2], body: &[u8], mark: &str) -> Vec<u8> {
    [&to, &from, &ethertype[..], body, mark.as_bytes()].concat()
}

const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;

fn arp(operation: u8, from: Mac, target: [u8; 4]) -> Vec<u8> {
    let ethernet_and_ipv4 = [0, 1, 8, 0, 6, 4, 0];
    let none = [0; 4];
    [
        &ethernet_and_ipv4[..],
        &[operation],
        &from,
        &none,
        &[0; 6],
        &target,
    ]
    .concat()
}

/// A datagram without a payload; the mark behind it is no part of the packet.
fn udp_ipv4(to: [u8; 4], source_port: u16, port: u16) -> Vec<u8> {
    const TTL: u8 = 1;
    const UDP: u8 = 17;
    let mut header = [
        0x45, 0, 0, 28, 0, 0, 0, 0, TTL, UDP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    header[16..].copy_from_slice(&to);
    let sum: u32 = header
        .chunks(2)
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from(folded).expect("ten words carry less");
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    let (source_port, port) = (source_port.to_be_bytes(), port.to_be_bytes());
    [&header[..], &source_port, &port, &[0, 8, 0, 0]].concat()
}

const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const SOLICITED: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1];
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// A message with a wrong checksum, which is carried and then ignored by its receivers.
fn icmpv6(to: [u8; 16], kind: u8) -> Vec<u8> {
    const ICMPV6: u8 = 58;
    const HOP_LIMIT: u8 = 255;
    let header = [0x60, 0, 0, 0, 0, 24, ICMPV6, HOP_LIMIT];
    let from = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    [&header[..], &from, &to, &[kind], &[0; 23]].concat()
}
