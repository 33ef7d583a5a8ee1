mod addresses;
mod groups;
mod remote;
mod uplink;

use std::net::Ipv6Addr;

use proptest::prelude::*;
use toroid_fabric::deadlines;

use super::*;
use crate::offload::Offload;

/// Name of an egress port: domain and place.
type Name = (u32, u8);

const BROADCAST: [u8; 6] = [0xff; 6];

const EXTERNAL: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

/// Positions in a frame.
const SOURCE: usize = 6;
const IPV4_SOURCE: usize = 14 + 12;
const IPV4_DESTINATION: usize = 14 + 16;
const ARP_SENDER: usize = 14 + 14;

fn place(x: u8) -> Place {
    Place { x, y: 0, z: 0 }
}

fn mac(domain: u16, x: u8) -> [u8; 6] {
    addressing::mac(domain, place(x))
}

fn port(domain: u16, x: u8) -> Port {
    Port {
        node: x.into(),
        place: place(x),
        domain_id: domain.into(),
        epoch: 1,
        ifname: "blue".into(),
        mac: mac(domain, x),
        // Equal in all domains, so that frames in the wrong domain are delivered.
        ipv4: [10, 64, 0, x + 1].into(),
        prefix: 24,
        nodes: 8,
        ipv6: addressing::ipv6(0, place(x)),
        ipv6_prefix: 64,
        offload: true,
        mtu: 1500,
        limited: false,
        gateway: None,
        forward: false,
        stack: false,
        rate: None,
        kernel: false,
    }
}

/// A port with addresses of its domain: 10.64.`domain`.`x + 1` is the one of IPv4.
pub(crate) fn unique(domain: u16, x: u8) -> Port {
    Port {
        ipv4: [10, 64, domain as u8, x + 1].into(),
        ipv6: addressing::ipv6(domain, place(x)),
        ..port(domain, x)
    }
}

/// Two domains, 7 and 8, each with members 0, 1 and 2.
fn bridges() -> Bridges<Name> {
    bridges_with(port)
}

fn bridges_with(port: fn(u16, u8) -> Port) -> Bridges<Name> {
    let mut bridges = Bridges::default();
    for domain in [7, 8] {
        for x in 0..3 {
            let name = (domain.into(), x);
            bridges.attach(port(domain, x), name).unwrap();
        }
    }
    bridges
}

/// A frame without offloads.
fn frame(to: [u8; 6], from: [u8; 6], ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&Offload::NONE[..], &to, &from, &ethertype, payload].concat()
}

fn packet(to: [u8; 6], from: [u8; 6], payload: usize) -> Vec<u8> {
    frame(to, from, [8, 0], &vec![0; payload])
}

fn arp(source: [u8; 6], target: [u8; 4]) -> Vec<u8> {
    let request = [&[0, 1, 8, 0, 6, 4, 0, 1], &source[..], &[0; 4 + 6], &target].concat();
    frame(BROADCAST, source, [8, 6], &request)
}

/// An IPv4 packet from an address, in a frame from member `x` of domain 7 to member 2.
fn ipv4_from(x: u8, address: [u8; 4]) -> Vec<u8> {
    let packet = with(packet(mac(7, 2), mac(7, x), 40), 14, &[0x45]);
    with(packet, IPV4_SOURCE, &address)
}

/// An IPv6 packet between two addresses, in a frame from member `x` of domain 7.
fn ipv6(x: u8, to: [u8; 6], addresses: [Ipv6Addr; 2], next: u8, payload: &[u8]) -> Vec<u8> {
    let header = [0x60, 0, 0, 0, 0, payload.len() as u8, next, 255];
    let addresses = addresses.map(|address| address.octets()).concat();
    let packet = [&header, &addresses[..], payload].concat();
    frame(to, mac(7, x), [0x86, 0xdd], &packet)
}

/// Next header of an IPv6 packet without payload.
const NO_NEXT_HEADER: u8 = 59;

/// A packet with other bytes at a position in its frame.
fn with(mut packet: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    packet[Offload::LEN + at..][..bytes.len()].copy_from_slice(bytes);
    packet
}

/// Place in the name of the uplink of domain 7.
const OUTSIDE: u8 = 99;

fn uplink(limited: bool) -> Uplink {
    Uplink {
        domain_id: 7,
        node: 0,
        ifname: "eth1".into(),
        index: 2,
        mtu: 1500,
        limited,
    }
}

fn connected(limited: bool) -> Bridges<Name> {
    let mut bridges = bridges();
    assert_eq!(bridges.connect(&uplink(limited), (7, OUTSIDE)), None);
    bridges
}

impl Bridges<Name> {
    /// Recipients of a packet from member `x` of domain 7, or the reason of its drop.
    fn send(&self, x: u8, packet: &[u8]) -> Result<Vec<Name>, DropReason> {
        recipients(&self.ingress(Partition(7), place(x)).unwrap(), packet)
    }

    /// Recipients of a packet from the external network of domain 7, or the reason of its drop.
    fn send_external(&self, packet: &[u8]) -> Result<Vec<Name>, DropReason> {
        recipients(&self.outside(Partition(7)).unwrap(), packet)
    }

    /// Changes the port of a member.
    fn change(&mut self, domain: u32, x: u8, change: impl FnOnce(&mut Port)) {
        let member = &self.bridges[&Partition(domain)].members[&place(x)];
        let mut port = member.port.clone();
        change(&mut port);
        self.renew(port);
    }

    fn set_limited(&mut self, x: u8, limited: bool) {
        self.change(7, x, |port| port.limited = limited);
    }
}

fn recipients(ingress: &Ingress<'_, Name>, packet: &[u8]) -> Result<Vec<Name>, DropReason> {
    match ingress.decide(packet) {
        Action::Forward(next_hop) => Ok(vec![name(&next_hop)]),
        Action::Flood(others) => {
            let mut all: Vec<Name> = others.flatten().map(|next_hop| name(&next_hop)).collect();
            all.sort();
            Ok(all)
        }
        Action::Reply(_) => Ok(ingress.egress().copied().into_iter().collect()),
        Action::Drop(reason) => Err(reason),
    }
}

/// Domain in the names of the drivers of other hosts.
const HOSTS: u32 = u32::MAX;

fn name(next_hop: &NextHop<'_, Name>) -> Name {
    match next_hop {
        NextHop::Member(_, name) | NextHop::Outside(_, name) => **name,
        NextHop::Host(host, _) => (HOSTS, host.0 as u8),
    }
}

#[test]
fn unicast_reaches_its_member_and_broadcast_all_others() {
    let bridges = bridges();
    let unicast = packet(mac(7, 2), mac(7, 1), 100);
    assert_eq!(bridges.send(1, &unicast), Ok(vec![(7, 2)]));
    for group in [BROADCAST, [0x33, 0x33, 0, 0, 0, 1]] {
        let others = Ok(vec![(7, 0), (7, 2)]);
        assert_eq!(bridges.send(1, &packet(group, mac(7, 1), 100)), others);
    }
}

#[test]
fn each_reason_to_drop_is_named() {
    let bridges = bridges();
    let to = |destination| packet(destination, mac(7, 1), 100);
    let forged = packet(mac(7, 0), mac(7, 2), 100);
    let long = packet(mac(7, 0), mac(7, 1), 1501);
    for (packet, reason) in [
        (vec![0; 9], DropReason::Malformed),
        (vec![0; 23], DropReason::Malformed),
        (vec![0xff; 100], DropReason::Malformed),
        (forged, DropReason::WrongSource),
        (long, DropReason::TooLong),
        (to(mac(8, 0)), DropReason::OtherDomain),
        (to(mac(7, 9)), DropReason::NoSuchMember),
        (to(mac(7, 1)), DropReason::NoSuchMember),
        (to([0; 6]), DropReason::NoSuchMember),
        (to([2, 0, 0, 0, 0, 1]), DropReason::NoSuchMember),
    ] {
        assert_eq!(bridges.send(1, &packet), Err(reason), "{packet:x?}");
    }
}

#[test]
fn a_former_member_neither_reaches_nor_is_reached() {
    let mut bridges = bridges();
    assert_eq!(bridges.detach(Partition(7), NodeId(2)), Some((7, 2)));
    assert_eq!(bridges.detach(Partition(7), NodeId(2)), None);
    assert!(bridges.ingress(Partition(7), place(2)).is_none());
    let unicast = packet(mac(7, 2), mac(7, 1), 100);
    assert_eq!(bridges.send(1, &unicast), Err(DropReason::NoSuchMember));
    let broadcast = packet(BROADCAST, mac(7, 1), 100);
    assert_eq!(bridges.send(1, &broadcast), Ok(vec![(7, 0)]));
    let query = arp(mac(7, 1), [10, 64, 0, 3]);
    assert_eq!(bridges.send(1, &query), Ok(vec![(7, 0)]));
}

/// Members 1 and 2 are limited, so each can reach member 0 only.
#[test]
fn no_frame_passes_in_a_fenced_domain_after_its_deadline() {
    let mut bridges = connected(false);
    let memory = Deadlines::create().unwrap();
    let agent = Deadlines::map(&memory, true).unwrap();
    bridges.set_deadlines(Deadlines::map(&memory, false).unwrap());
    let unicast = |domain| packet(mac(domain, 2), mac(domain, 1), 100);
    let stopped = |bridges: &Bridges<Name>| {
        let other = bridges.ingress(Partition(8), place(1)).unwrap();
        [
            bridges.send(1, &unicast(7)),
            bridges.send(1, &arp(mac(7, 1), [10, 64, 0, 1])),
            bridges.send_external(&packet(mac(7, 2), EXTERNAL, 100)),
            recipients(&other, &unicast(8)),
        ]
        .map(|result| result == Err(DropReason::Fenced))
    };
    assert_eq!(stopped(&bridges), [false; 4]);
    agent.set_domain(Partition(7), deadlines::PAST);
    agent.set_first(deadlines::PAST);
    assert_eq!(stopped(&bridges), [true, true, true, false]);
}

#[test]
fn limited_members_reach_full_ones_only_and_refusals_are_counted() {
    let mut bridges = bridges();
    for x in [1, 2] {
        bridges.set_limited(x, true);
    }
    let unicast = |to, from| packet(mac(7, to), mac(7, from), 100);
    let refused = Err(DropReason::Limited);
    assert_eq!(bridges.send(1, &unicast(2, 1)), refused);
    assert_eq!(bridges.send(2, &unicast(1, 2)), refused);
    assert_eq!(bridges.send(1, &unicast(0, 1)), Ok(vec![(7, 0)]));
    assert_eq!(bridges.send(0, &unicast(2, 0)), Ok(vec![(7, 2)]));

    for group in [BROADCAST, [0x33, 0x33, 0, 0, 0, 1]] {
        let from = |x| packet(group, mac(7, x), 9);
        assert_eq!(bridges.send(1, &from(1)), Ok(vec![(7, 0)]));
        assert_eq!(bridges.send(0, &from(0)), Ok(vec![(7, 1), (7, 2)]));
    }
    let ingress = bridges.ingress(Partition(7), place(1)).unwrap();
    let Action::Flood(others) = ingress.decide(&packet(BROADCAST, mac(7, 1), 9)) else {
        panic!("not flooded");
    };
    assert_eq!(others.filter(|other| other.is_err()).count(), 1);

    bridges.set_limited(2, false);
    let reached = bridges.send(1, &unicast(2, 1));
    assert_eq!(reached, Ok(vec![(7, 2)]), "one full member suffices");
}

#[test]
fn limited_members_get_no_reply_about_each_other() {
    let mut bridges = bridges();
    for x in [1, 2] {
        bridges.set_limited(x, true);
    }
    let query = |from, target: u8| arp(mac(7, from), [10, 64, 0, target + 1]);
    assert_eq!(bridges.send(1, &query(1, 2)), Err(DropReason::Limited));
    assert_eq!(bridges.send(1, &query(1, 0)), Ok(vec![(7, 1)]), "a reply");
    assert_eq!(bridges.send(0, &query(0, 2)), Ok(vec![(7, 0)]), "a reply");
    // Announcements and queries for unassigned addresses go to permitted recipients.
    assert_eq!(bridges.send(1, &query(1, 1)), Ok(vec![(7, 0)]));
}

#[test]
fn wrong_ports_are_refused() {
    let mut bridges = bridges();
    let mut refuse = |change: fn(&mut Port)| {
        let mut port = port(7, 3);
        change(&mut port);
        bridges.attach(port, (7, 3)).unwrap_err()
    };
    let wrong_mac = |error| matches!(error, AttachError::WrongMac { .. });
    assert!(wrong_mac(refuse(|port| port.mac[0] = 2)));
    assert!(wrong_mac(refuse(|port| port.domain_id += 1 << 16)));
    let old = AttachError::OldEpoch {
        offered: 0,
        current: 1,
    };
    assert_eq!(refuse(|port| port.epoch = 0), old);
    let same_ipv4 = refuse(|port| port.ipv4 = [10, 64, 0, 1].into());
    assert_eq!(same_ipv4, AttachError::Taken(place(3)));
    let again = bridges.attach(port(7, 1), (7, 1));
    assert_eq!(again, Err(AttachError::Taken(place(1))));
    bridges.raise_epoch(Partition(7), Epoch(5));
    bridges.raise_epoch(Partition(7), Epoch(4));
    assert!(bridges.attach(port(7, 3), (7, 3)).is_err());
}

/// Bytes with or without the headers of a packet.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let offload = prop_oneof![
        Just(Offload::NONE.to_vec()),
        proptest::collection::vec(0_u8..6, 0..12),
    ];
    let addresses = proptest::option::of((any_mac(), any_mac()));
    let rest = proptest::collection::vec(any::<u8>(), 0..1600);
    (offload, addresses, rest).prop_map(|(mut bytes, addresses, rest)| {
        if let Some((destination, source)) = addresses {
            bytes.extend([destination, source].concat());
        }
        bytes.extend(rest);
        bytes
    })
}

/// Addresses that hit, miss and nearly hit.
fn any_mac() -> impl Strategy<Value = [u8; 6]> {
    prop_oneof![
        (7_u16..9, 0_u8..4).prop_map(|(domain, x)| mac(domain, x)),
        Just(BROADCAST),
        any::<[u8; 6]>(),
    ]
}

proptest! {
    #[test]
    fn no_bytes_reach_another_domain_or_their_sender(
        x in 0_u8..3,
        bytes in any_bytes(),
    ) {
        let bridges = bridges();
        let ingress = bridges.ingress(Partition(7), place(x)).unwrap();
        let reached: Vec<Name> = match ingress.decide(&bytes) {
            Action::Forward(next_hop) => vec![name(&next_hop)],
            Action::Flood(others) => others.flatten().map(|next_hop| name(&next_hop)).collect(),
            Action::Reply(_) | Action::Drop(_) => vec![],
        };
        for (domain, receiver) in reached {
            prop_assert_eq!(domain, 7);
            prop_assert_ne!(receiver, x);
            prop_assert_eq!(&bytes[16..22], mac(7, x));
        }
    }
}
