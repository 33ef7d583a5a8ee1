mod addresses;
mod groups;
mod remote;
mod uplink;

use proptest::prelude::*;

use super::*;
use crate::offload::Offload;

/// Name of an egress port: domain and place.
type Name = (u32, u8);

const BROADCAST: [u8; 6] = [0xff; 6];

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
        // The same in every domain, so that a mistake would show.
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
    }
}

/// Two domains, 7 and 8, each with members 0, 1 and 2.
fn bridges() -> Bridges<Name> {
    let mut bridges = Bridges::default();
    for domain in [7, 8] {
        for x in 0..3 {
            let name = (domain.into(), x);
            bridges.attach(port(domain, x), name).unwrap();
        }
    }
    bridges
}

/// A frame and that it needs no offload.
fn packet(destination: [u8; 6], source: [u8; 6], payload: usize) -> Vec<u8> {
    let mut bytes = [&Offload::NONE[..], &destination, &source].concat();
    bytes.extend([8, 0]);
    bytes.resize(bytes.len() + payload, 0);
    bytes
}

fn arp(source: [u8; 6], target: [u8; 4]) -> Vec<u8> {
    let mut bytes = [&Offload::NONE[..], &BROADCAST, &source].concat();
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    bytes.extend(source);
    bytes.extend([0; 4 + 6]);
    bytes.extend(target);
    bytes
}

/// Domain 7 is connected to the outside, which is called 99.
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

/// Recipients of a frame from the external network of domain 7.
fn let_in(bridges: &Bridges<Name>, bytes: &[u8]) -> Result<Vec<Name>, DropReason> {
    whom(&bridges.outside(Partition(7)).unwrap(), bytes)
}

/// Recipients of a frame from member `x` of domain 7, or the reason of its drop.
fn reached(bridges: &Bridges<Name>, x: u8, bytes: &[u8]) -> Result<Vec<Name>, DropReason> {
    whom(&bridges.ingress(Partition(7), place(x)).unwrap(), bytes)
}

fn whom(ingress: &Ingress<'_, Name>, bytes: &[u8]) -> Result<Vec<Name>, DropReason> {
    match ingress.decide(bytes) {
        Action::Forward(next_hop) => Ok(vec![name(&next_hop)]),
        Action::Flood(others) => {
            let mut all: Vec<Name> = others
                .filter_map(|next_hop| Some(name(&next_hop.ok()?)))
                .collect();
            all.sort();
            Ok(all)
        }
        Action::Reply(_) => Ok(ingress.egress().copied().into_iter().collect()),
        Action::Drop(reason) => Err(reason),
    }
}

/// Drivers of other hosts are ports of this domain, which there is not.
const HOSTS: u32 = u32::MAX;

fn name(next_hop: &NextHop<'_, Name>) -> Name {
    match next_hop {
        NextHop::Port(name) => **name,
        NextHop::Host(host) => (HOSTS, host.0 as u8),
    }
}

const STRANGER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

/// An IPv4 packet from an address, in a frame from member `x` of domain 7 for another.
fn packet_from(x: u8, address: [u8; 4]) -> Vec<u8> {
    let mut bytes = packet(mac(7, 2), mac(7, x), 40);
    let ip = Offload::LEN + 14;
    bytes[ip] = 0x45;
    bytes[ip + 12..ip + 16].copy_from_slice(&address);
    bytes
}

#[test]
fn unicast_reaches_its_member_and_broadcast_all_others() {
    let bridges = bridges();
    let unicast = packet(mac(7, 2), mac(7, 1), 100);
    assert_eq!(reached(&bridges, 1, &unicast), Ok(vec![(7, 2)]));
    let broadcast = packet(BROADCAST, mac(7, 1), 100);
    let others = Ok(vec![(7, 0), (7, 2)]);
    assert_eq!(reached(&bridges, 1, &broadcast), others);
    let multicast = packet([0x33, 0x33, 0, 0, 0, 1], mac(7, 1), 100);
    assert_eq!(reached(&bridges, 1, &multicast), others);
}

#[test]
fn each_reason_to_drop_is_named() {
    let bridges = bridges();
    let dropped = |bytes: &[u8]| reached(&bridges, 1, bytes).unwrap_err();
    let unicast = |destination, source| packet(destination, source, 100);
    assert_eq!(dropped(&[0; 9]), DropReason::Malformed);
    assert_eq!(dropped(&[0; 23]), DropReason::Malformed);
    assert_eq!(dropped(&[0xff; 100]), DropReason::Malformed);
    assert_eq!(
        dropped(&unicast(mac(7, 0), mac(7, 2))),
        DropReason::WrongSource
    );
    assert_eq!(
        dropped(&packet(mac(7, 0), mac(7, 1), 1501)),
        DropReason::TooLong
    );
    assert_eq!(
        dropped(&unicast(mac(8, 0), mac(7, 1))),
        DropReason::OtherDomain
    );
    for nobody in [mac(7, 9), mac(7, 1), [0; 6], [2, 0, 0, 0, 0, 1]] {
        assert_eq!(
            dropped(&unicast(nobody, mac(7, 1))),
            DropReason::NoSuchMember
        );
    }
}

#[test]
fn a_former_member_neither_reaches_nor_is_reached() {
    let mut bridges = bridges();
    assert_eq!(bridges.detach(Partition(7), NodeId(2)), Some((7, 2)));
    assert_eq!(bridges.detach(Partition(7), NodeId(2)), None);
    assert!(bridges.ingress(Partition(7), place(2)).is_none());
    let unicast = packet(mac(7, 2), mac(7, 1), 100);
    assert_eq!(
        reached(&bridges, 1, &unicast),
        Err(DropReason::NoSuchMember)
    );
    let broadcast = packet(BROADCAST, mac(7, 1), 100);
    assert_eq!(reached(&bridges, 1, &broadcast), Ok(vec![(7, 0)]));
    let query = arp(mac(7, 1), [10, 64, 0, 3]);
    assert_eq!(reached(&bridges, 1, &query), Ok(vec![(7, 0)]));
}

/// Members 1 and 2 are limited, so each has member 0 to talk to.
#[test]
fn limited_members_reach_full_ones_only_and_what_they_may_not_is_counted() {
    let mut bridges = bridges();
    for x in [1, 2] {
        bridges.set_limited(Partition(7), place(x), true);
    }
    let unicast = |to, from| packet(mac(7, to), mac(7, from), 100);
    let refused = Err(DropReason::Limited);
    assert_eq!(reached(&bridges, 1, &unicast(2, 1)), refused);
    assert_eq!(reached(&bridges, 2, &unicast(1, 2)), refused);
    assert_eq!(reached(&bridges, 1, &unicast(0, 1)), Ok(vec![(7, 0)]));
    assert_eq!(reached(&bridges, 0, &unicast(2, 0)), Ok(vec![(7, 2)]));

    let full = Ok(vec![(7, 0)]);
    for group in [BROADCAST, [0x33, 0x33, 0, 0, 0, 1]] {
        assert_eq!(reached(&bridges, 1, &packet(group, mac(7, 1), 9)), full);
        let all = Ok(vec![(7, 1), (7, 2)]);
        assert_eq!(reached(&bridges, 0, &packet(group, mac(7, 0), 9)), all);
    }
    let ingress = bridges.ingress(Partition(7), place(1)).unwrap();
    let Action::Flood(others) = ingress.decide(&packet(BROADCAST, mac(7, 1), 9)) else {
        panic!("not for all");
    };
    assert_eq!(others.filter(|other| other.is_err()).count(), 1);

    bridges.set_limited(Partition(7), place(2), false);
    assert_eq!(
        reached(&bridges, 1, &unicast(2, 1)),
        Ok(vec![(7, 2)]),
        "one of two suffices"
    );
}

#[test]
fn limited_members_are_not_told_where_others_of_them_are() {
    let mut bridges = bridges();
    for x in [1, 2] {
        bridges.set_limited(Partition(7), place(x), true);
    }
    let query = |from, target: u8| arp(mac(7, from), [10, 64, 0, target + 1]);
    let refused = Err(DropReason::Limited);
    assert_eq!(reached(&bridges, 1, &query(1, 2)), refused);
    let answered = Ok(vec![(7, 1)]);
    assert_eq!(reached(&bridges, 1, &query(1, 0)), answered);
    let answered = Ok(vec![(7, 0)]);
    assert_eq!(reached(&bridges, 0, &query(0, 2)), answered);
    // Announcements and queries for unassigned addresses go to permitted recipients.
    let announcement = query(1, 1);
    assert_eq!(reached(&bridges, 1, &announcement), Ok(vec![(7, 0)]));
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
            Action::Flood(others) => others.filter_map(|o| Some(name(&o.ok()?))).collect(),
            Action::Reply(_) | Action::Drop(_) => vec![],
        };
        for (domain, receiver) in reached {
            prop_assert_eq!(domain, 7);
            prop_assert_ne!(receiver, x);
            prop_assert_eq!(&bytes[16..22], mac(7, x));
        }
    }
}
