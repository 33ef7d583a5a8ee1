//! Rules by which the kernel forwards frames between two members without the driver.
//!
//! They only select frames that [`crate::forward`] would forward to one member of this host: from a
//! full member to a full member, both with their assigned addresses, of TCP, UDP and harmless ICMP.
//! All other frames go to the driver, which decides as ever. So there is one set of rules for ARP,
//! neighbour discovery, groups, other hosts and drops, and a frame that these rules do not know is
//! slower and not wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use toroid_netlink::nftables::{Base, Batch, Element, Expression};
use toroid_protocol::driver::Port;

use super::tap_behind;

/// Table with everything.
pub(super) const TABLE: &str = "toroid";

/// Chain of the rules that all members share.
const DIRECT: &str = "direct";

/// Maps from device, MAC and IP address of a sender to its domain.
const FROM: [&str; 2] = ["from4", "from6"];

/// Maps from domain, MAC and IP address of a receiver to its device.
const TO: [&str; 2] = ["to4", "to6"];

/// Messages of ICMPv6 that claim no address: errors, echo requests and replies (RFC 4443).
const MESSAGES: (&str, &[u8]) = ("messages6", &[1, 2, 3, 4, 128, 129]);

/// Protocols (IANA).
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP_V6: u8 = 58;

/// A member between whose assigned addresses, and those of others, frames pass directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectMember {
    /// Number of the domain.
    domain_id: u32,
    /// Index of the device that is the other end of the member's interface.
    device: u32,
    mac: [u8; 6],
    ipv4: Ipv4Addr,
    ipv6: Ipv6Addr,
}

impl DirectMember {
    /// The member of a port whose interface has its other end at `device`, unless each of its frames
    /// needs the driver.
    pub(crate) fn of(port: &Port, device: u32) -> Option<Self> {
        let is_free = port.kernel && !port.limited && port.rate.is_none();
        is_free.then_some(DirectMember {
            domain_id: port.domain_id,
            device,
            mac: port.mac,
            ipv4: port.ipv4,
            ipv6: port.ipv6,
        })
    }

    /// The elements of this member, each with the map that it belongs in.
    fn elements(&self) -> [(&'static str, Element); 4] {
        let [domain, device] = [self.domain_id, self.device].map(u32::to_ne_bytes);
        let element = |first: [u8; 4], address: IpAddr, value| {
            let address: &[u8] = match &address {
                IpAddr::V4(address) => &address.octets(),
                IpAddr::V6(address) => &address.octets(),
            };
            let key = [&first, &self.mac[..], &[0, 0], address].concat();
            let value = Some(value);
            Element { key, value }
        };
        let [ipv4, ipv6] = [self.ipv4.into(), self.ipv6.into()];
        [
            (FROM[0], element(device, ipv4, domain)),
            (FROM[1], element(device, ipv6, domain)),
            (TO[0], element(domain, ipv4, device)),
            (TO[1], element(domain, ipv6, device)),
        ]
    }
}

/// Adds a member.
pub(super) fn admit(batch: &mut Batch, member: &DirectMember) {
    for (map, element) in member.elements() {
        batch.add(map, &[element]);
    }
}

/// Removes a member that was added.
pub(super) fn expel(batch: &mut Batch, member: &DirectMember) {
    for (map, element) in member.elements() {
        batch.remove(map, &[element]);
    }
}

/// Replaces all members.
pub(super) fn admit_only<'a>(batch: &mut Batch, members: impl Iterator<Item = &'a DirectMember>) {
    let elements: Vec<_> = members.flat_map(DirectMember::elements).collect();
    for map in FROM.into_iter().chain(TO) {
        batch.clear(map);
        let its = elements.iter().filter(|(of, _)| *of == map);
        let its: Vec<_> = its.map(|(_, element)| element.clone()).collect();
        batch.add(map, &its);
    }
}

/// Makes sets, maps and rules that all members share. Present members stay.
pub(super) fn install(batch: &mut Batch) {
    for map in FROM.into_iter().chain(TO) {
        let address = if map.ends_with('4') { 4 } else { 16 };
        batch.set(map, 12 + address, true);
    }
    let (set, values) = MESSAGES;
    batch.set(set, 1, false);
    let element = |value: &u8| Element {
        key: vec![*value],
        value: None,
    };
    let elements: Vec<_> = values.iter().map(element).collect();
    batch.add(set, &elements);
    batch.chain(DIRECT, None);
    for rule in direct() {
        batch.rule(DIRECT, &rule);
    }
}

/// Sends what comes in by `device` to another device, unless it passes directly.
pub(super) fn patch(batch: &mut Batch, device: &str, other: u32, may_pass_directly: bool) {
    batch.chain(device, Some(device));
    if may_pass_directly {
        let chain = DIRECT.into();
        batch.rule(device, &[Expression::Jump { chain }]);
    }
    let number = Expression::Number {
        value: other,
        to: 0,
    };
    batch.rule(device, &[number, Expression::Forward { device: 0 }]);
}

/// Removes the rules of the other end of an interface and of the TAP behind. With some kernels they
/// end with the devices, with others not.
pub(super) fn unpatch(batch: &mut Batch, outer: &str, device: u32) {
    for chain in [outer, &tap_behind(device)] {
        // A chain that is not there cannot be removed.
        batch.chain(chain, None);
        batch.remove_chain(chain);
    }
}

/// The rules that all members share: for TCP, UDP and ICMP, which follow directly on the first header
/// of IPv6. A rule for each takes less time than a set of them.
fn direct() -> [Vec<Expression>; 6] {
    let message = [network(40, 1, 0), lookup(MESSAGES.0, None)];
    [
        between(0, TCP, &[]),
        between(0, UDP, &[]),
        between(1, TCP, &[]),
        between(1, UDP, &[]),
        between(0, ICMP, &[]),
        between(1, ICMP_V6, &message),
    ]
}

/// A rule for frames between assigned addresses of IPv4 (0) or IPv6 (1), of a protocol and with a
/// condition. A frame with a VLAN tag has another type in the place of that of IP.
fn between(family: usize, protocol: u8, condition: &[Expression]) -> Vec<Expression> {
    let (ethertype, at, len, source) = [([8, 0], 9, 4, 12), ([0x86, 0xdd], 6, 16, 8)][family];
    let is_of = [
        link(12, 2, 0),
        equals(&ethertype),
        network(at, 1, 0),
        equals(&[protocol]),
    ];
    // A key: device or domain, MAC address in two registers, IP address.
    let addresses = [
        Expression::Input { to: 0 },
        link(6, 6, 1),
        network(source, len, 3),
        lookup(FROM[family], Some(0)),
        link(0, 6, 1),
        network(source + len, len, 3),
        lookup(TO[family], Some(0)),
        Expression::Forward { device: 0 },
    ];
    [&is_of[..], condition, &addresses].concat()
}

/// Compares register 0.
fn equals(value: &[u8]) -> Expression {
    Expression::Equals {
        register: 0,
        value: value.into(),
    }
}

fn link(offset: u8, len: u8, to: u8) -> Expression {
    load(Base::Link, offset, len, to)
}

fn network(offset: u8, len: u8, to: u8) -> Expression {
    load(Base::Network, offset, len, to)
}

fn load(base: Base, offset: u8, len: u8, to: u8) -> Expression {
    Expression::Load {
        base,
        offset,
        len,
        to,
    }
}

/// Looks up the key from register 0 on.
fn lookup(set: &str, to: Option<u8>) -> Expression {
    Expression::Lookup {
        set: set.into(),
        key: 0,
        to,
    }
}

#[cfg(test)]
mod tests;
