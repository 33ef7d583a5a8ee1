mod groups;
mod remote;

use std::net::Ipv6Addr;

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

/// Whom a frame from outside of domain 7 reaches.
fn let_in(bridges: &Bridges<Name>, bytes: &[u8]) -> Result<Vec<Name>, DropReason> {
    whom(&bridges.outside(Partition(7)).unwrap(), bytes)
}

/// Whom a frame from member `x` of domain 7 reaches, or why nobody.
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
fn a_packet_has_no_address_that_is_anothers() {
    let mut bridges = Bridges::default();
    for (domain, third) in [(7, 0), (8, 1)] {
        for x in 0..3 {
            let ipv4 = [10, 64, third, x + 1].into();
            let ipv6 = addressing::ipv6(domain, place(x));
            let port = Port {
                ipv4,
                ipv6,
                ..port(domain, x)
            };
            bridges.attach(port, (domain.into(), x)).unwrap();
        }
    }
    let foreign = Err(DropReason::ForeignAddress);
    let delivered = Ok(vec![(7, 2)]);
    let sent = |bridges: &Bridges<Name>, address| reached(bridges, 0, &packet_from(0, address));
    // Its own, none yet (DHCP), one of its choice, and what is nobody's here.
    for own in [[10, 64, 0, 1], [0; 4], [10, 64, 0, 77], [192, 0, 2, 1]] {
        assert_eq!(sent(&bridges, own), delivered, "{own:?}");
    }
    for others in [[10, 64, 0, 2], [10, 64, 1, 1], [10, 64, 1, 200]] {
        assert_eq!(sent(&bridges, others), foreign, "{others:?}");
    }
    // The torus has 8 nodes, of which the last five may become members.
    assert_eq!(sent(&bridges, [10, 64, 0, 8]), foreign);
    assert_eq!(sent(&bridges, [10, 64, 0, 9]), delivered);
    let mut announced = arp(mac(7, 0), [10, 64, 0, 3]);
    let sender = Offload::LEN + 14 + 14;
    announced[sender..sender + 4].copy_from_slice(&[10, 64, 0, 2]);
    assert_eq!(reached(&bridges, 0, &announced), foreign);

    // Both domains must say so, and the node must be in both.
    let mut forward = |domain, x, forward| {
        bridges.set_forward(Partition(domain), place(x), forward);
        sent(&bridges, [10, 64, 1, 200])
    };
    assert_eq!(forward(7, 0, true), foreign);
    assert_eq!(forward(8, 1, true), foreign);
    assert_eq!(forward(8, 0, true), delivered);
    assert_eq!(forward(7, 0, false), foreign);
    assert_eq!(forward(7, 0, true), delivered);
    assert_eq!(sent(&bridges, [10, 64, 0, 2]), foreign);
    bridges.detach(Partition(8), NodeId(0));
    assert_eq!(sent(&bridges, [10, 64, 1, 200]), foreign);

    bridges.connect(&uplink(false), (7, OUTSIDE));
    assert_eq!(sent(&bridges, [10, 64, 1, 1]), delivered);
    assert_eq!(sent(&bridges, [10, 64, 0, 2]), foreign);
    for of_node in [2, 8] {
        let mut from_outside = packet_from(0, [10, 64, 0, of_node]);
        let source = Offload::LEN + 6;
        from_outside[source..source + 6].copy_from_slice(&STRANGER);
        assert_eq!(let_in(&bridges, &from_outside), foreign);
    }
    bridges.disconnect(Partition(7));
    bridges.detach(Partition(7), NodeId(0));
    let gateway = Port {
        gateway: Some([10, 64, 0, 1].into()),
        ipv4: [10, 64, 0, 1].into(),
        ipv6: addressing::ipv6(7, place(0)),
        ..port(7, 0)
    };
    bridges.attach(gateway, (7, 0)).unwrap();
    assert_eq!(sent(&bridges, [10, 64, 1, 1]), delivered);
    bridges.detach(Partition(7), NodeId(0));
}

/// A node in two domains heard in each what was for its address in the other.
#[test]
fn a_packet_is_not_for_an_address_in_another_domain() {
    let mut bridges = Bridges::default();
    for (domain, third) in [(7, 0), (8, 1)] {
        for x in 0..3 {
            let port = Port {
                ipv4: [10, 64, third, x + 1].into(),
                ipv6: addressing::ipv6(domain, place(x)),
                ..port(domain, x)
            };
            bridges.attach(port, (domain.into(), x)).unwrap();
        }
    }
    bridges.detach(Partition(8), NodeId(0));
    let ipv4 = |to: [u8; 6], address: [u8; 4]| {
        let mut bytes = packet_from(0, [10, 64, 0, 1]);
        bytes[Offload::LEN..Offload::LEN + 6].copy_from_slice(&to);
        let destination = Offload::LEN + 14 + 16;
        bytes[destination..destination + 4].copy_from_slice(&address);
        bytes
    };
    let ipv6 = |to: [u8; 6], address: Ipv6Addr| {
        let mut bytes = packet(to, mac(7, 0), 0);
        let ethertype = bytes.len() - 2;
        bytes[ethertype..].copy_from_slice(&[0x86, 0xdd]);
        bytes.extend([0x60, 0, 0, 0, 0, 0, 59, 64]);
        bytes.extend(
            [addressing::ipv6(7, place(0)), address]
                .map(|ip| ip.octets())
                .concat(),
        );
        bytes
    };
    let foreign = Err(DropReason::ForeignAddress);
    let of_receiver = |to| {
        [
            ipv4(to, [10, 64, 1, 3]),
            ipv6(to, addressing::ipv6(8, place(2))),
        ]
    };
    for to in [mac(7, 2), BROADCAST] {
        for bytes in of_receiver(to) {
            assert_eq!(reached(&bridges, 0, &bytes), foreign);
        }
    }
    // Its kernel does not take those of others, its own domain's, and those of nobody.
    let delivered = Ok(vec![(7, 2)]);
    for address in [
        [10, 64, 1, 2],
        [10, 64, 0, 3],
        [10, 64, 1, 99],
        [192, 0, 2, 1],
    ] {
        let bytes = ipv4(mac(7, 2), address);
        assert_eq!(reached(&bridges, 0, &bytes), delivered, "{address:?}");
    }
    // Where both domains have routers, it may be one.
    bridges.set_forward(Partition(7), place(2), true);
    for bytes in of_receiver(mac(7, 2)) {
        assert_eq!(reached(&bridges, 0, &bytes), foreign);
    }
    bridges.set_forward(Partition(8), place(2), true);
    for bytes in of_receiver(mac(7, 2)) {
        assert_eq!(reached(&bridges, 0, &bytes), delivered);
    }
    bridges.set_forward(Partition(8), place(2), false);
    bridges.detach(Partition(8), NodeId(2));
    for bytes in of_receiver(mac(7, 2)) {
        assert_eq!(reached(&bridges, 0, &bytes), delivered);
    }
}

/// Kernels take the address of a neighbour from what it says of itself, whatever the packet is from.
#[test]
fn nobody_advertises_an_address_that_is_anothers() {
    let mut bridges = Bridges::default();
    for x in 0..3 {
        let ipv6 = addressing::ipv6(7, place(x));
        let port = Port { ipv6, ..port(7, x) };
        bridges.attach(port, (7, x)).unwrap();
    }
    let of_link = |mac: [u8; 6]| {
        let [a, b, c, d, e, f] = mac;
        let [a, b, c, d] = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
        Ipv6Addr::new(0xfe80, 0, 0, 0, a, b, c, d)
    };
    let advertised = |from: Ipv6Addr, target: Ipv6Addr| {
        let mut bytes = packet(mac(7, 2), mac(7, 0), 0);
        let ethertype = bytes.len() - 2;
        bytes[ethertype..].copy_from_slice(&[0x86, 0xdd]);
        bytes.extend([0x60, 0, 0, 0, 0, 24, 58, 255]);
        bytes.extend(
            [from, addressing::ipv6(7, place(2))]
                .map(|ip| ip.octets())
                .concat(),
        );
        bytes.extend([136, 0, 0, 0, 0x20, 0, 0, 0]);
        bytes.extend(target.octets());
        reached(&bridges, 0, &bytes)
    };
    let own = [addressing::ipv6(7, place(0)), of_link(mac(7, 0))];
    let chosen = "2001:db8::7".parse().unwrap();
    for target in [own[0], own[1], chosen] {
        assert_eq!(advertised(own[1], target), Ok(vec![(7, 2)]), "{target}");
    }
    let foreign = Err(DropReason::ForeignAddress);
    for other in [
        addressing::ipv6(7, place(1)),
        addressing::ipv6(7, place(9)),
        of_link(mac(7, 1)),
        of_link(mac(7, 9)),
    ] {
        assert_eq!(advertised(own[0], other), foreign, "{other}");
        assert_eq!(advertised(other, own[0]), foreign, "{other}");
    }
}

#[test]
fn what_is_for_strangers_leaves_by_the_uplink() {
    let (inside, connected) = (bridges(), connected(false));
    let to_stranger = packet(STRANGER, mac(7, 0), 46);
    let nobody = Err(DropReason::NoSuchMember);
    assert_eq!(reached(&inside, 0, &to_stranger), nobody);
    assert_eq!(reached(&connected, 0, &to_stranger), Ok(vec![(7, OUTSIDE)]));
    let to_all = packet(BROADCAST, mac(7, 0), 46);
    let everybody = vec![(7, 1), (7, 2), (7, OUTSIDE)];
    assert_eq!(reached(&connected, 0, &to_all), Ok(everybody));
    // What could be a member's is for members only.
    let absent = packet(mac(7, 9), mac(7, 0), 46);
    assert_eq!(reached(&connected, 0, &absent), nobody);
    let elsewhere = packet(mac(8, 1), mac(7, 0), 46);
    let other = Err(DropReason::OtherDomain);
    assert_eq!(reached(&connected, 0, &elsewhere), other);
    assert!(connected.outside(Partition(8)).is_none());
}

#[test]
fn what_comes_from_outside_is_for_members_and_has_no_address_of_a_fabric() {
    let bridges = connected(false);
    let to_member = packet(mac(7, 1), STRANGER, 46);
    assert_eq!(let_in(&bridges, &to_member), Ok(vec![(7, 1)]));
    let to_all = packet(BROADCAST, STRANGER, 46);
    let members = vec![(7, 0), (7, 1), (7, 2)];
    assert_eq!(let_in(&bridges, &to_all), Ok(members));
    let refused = |destination: [u8; 6], source: [u8; 6], payload: usize| {
        let_in(&bridges, &packet(destination, source, payload)).unwrap_err()
    };
    // Over a loop outside, from the bridge of another fabric, and from nobody at all.
    for source in [mac(7, 1), mac(300, 1), BROADCAST] {
        assert_eq!(refused(BROADCAST, source, 46), DropReason::WrongSource);
    }
    assert_eq!(refused(STRANGER, STRANGER, 46), DropReason::NoSuchMember);
    assert_eq!(refused(mac(8, 1), STRANGER, 46), DropReason::OtherDomain);
    assert_eq!(refused(mac(7, 1), STRANGER, 1501), DropReason::TooLong);
    let drops = bridges.drops(Partition(7));
    assert_eq!(drops.iter().filter(|port| port.outside).count(), 1);
}

#[test]
fn questions_from_outside_about_members_are_answered() {
    let bridges = connected(false);
    let about_member = arp(STRANGER, [10, 64, 0, 2]);
    assert_eq!(let_in(&bridges, &about_member), Ok(vec![(7, OUTSIDE)]));
    let about_nobody = arp(STRANGER, [10, 64, 0, 200]);
    assert_eq!(let_in(&bridges, &about_nobody).unwrap().len(), 3);
    // And members ask outside.
    let asked = reached(&bridges, 0, &arp(mac(7, 0), [10, 64, 0, 200]));
    assert_eq!(asked, Ok(vec![(7, 1), (7, 2), (7, OUTSIDE)]));
}

#[test]
fn what_is_behind_a_limited_member_is_limited() {
    let mut bridges = connected(true);
    bridges.set_limited(Partition(7), place(1), true);
    let limited = Err(DropReason::Limited);
    let out = packet(STRANGER, mac(7, 1), 46);
    assert_eq!(reached(&bridges, 1, &out), limited);
    let within = packet(mac(7, 1), STRANGER, 46);
    assert_eq!(let_in(&bridges, &within), limited);
    let to_full = packet(mac(7, 2), STRANGER, 46);
    assert_eq!(let_in(&bridges, &to_full), Ok(vec![(7, 2)]));
}

#[test]
fn a_connection_is_the_segments_as_long_as_it_is_wanted() {
    let mut bridges = connected(false);
    for node in 0..3 {
        bridges.detach(Partition(7), NodeId(node));
    }
    // A node that is made anew leaves for a moment.
    bridges.attach(port(7, 1), (7, 1)).unwrap();
    let to_all = packet(BROADCAST, STRANGER, 46);
    assert_eq!(let_in(&bridges, &to_all), Ok(vec![(7, 1)]));
    assert_eq!(bridges.disconnect(Partition(7)), Some((7, OUTSIDE)));
    assert!(bridges.outside(Partition(7)).is_none());
    assert_eq!(bridges.disconnect(Partition(7)), None);
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
fn questions_are_answered_for_assigned_addresses_only() {
    let bridges = bridges();
    let ingress = bridges.ingress(Partition(7), place(1)).unwrap();
    let Action::Reply(answer) = ingress.decide(&arp(mac(7, 1), [10, 64, 0, 3])) else {
        panic!("no answer");
    };
    assert_eq!(answer[..6], mac(7, 1));
    assert_eq!(answer[22..28], mac(7, 2));
    let others = Ok(vec![(7, 0), (7, 2)]);
    let unassigned = arp(mac(7, 1), [10, 64, 0, 77]);
    assert_eq!(reached(&bridges, 1, &unassigned), others);
    let announcement = arp(mac(7, 1), [10, 64, 0, 2]);
    assert_eq!(reached(&bridges, 1, &announcement), others);
}

/// A kernel that has asked in vain asks again after a second, and tells its programs after three that
/// there is nobody: a node that has become a member meanwhile was not reached.
#[test]
fn what_was_asked_about_a_node_is_answered_when_it_is_a_member() {
    let mut bridges = bridges();
    let late = |bridges: &Bridges<Name>, x| {
        let answers = bridges.pending_replies(Partition(7), place(x));
        let mut told: Vec<_> = answers
            .into_iter()
            .map(|(asker, frame)| (*asker, frame))
            .collect();
        told.sort();
        told
    };
    let from = |x: u8, target: u8| {
        let mut query = arp(mac(7, x), [10, 64, 0, target]);
        let sender = Offload::LEN + 14 + 14;
        query[sender..sender + 4].copy_from_slice(&[10, 64, 0, x + 1]);
        query
    };
    for (x, target) in [(0, 4), (0, 4), (0, 5), (1, 4), (2, 4), (0, 77), (0, 1)] {
        reached(&bridges, x, &from(x, target)).unwrap();
    }
    // Who looks for the owner of an address that it means to take is told of none.
    reached(&bridges, 1, &arp(mac(7, 1), [10, 64, 0, 5])).unwrap();
    bridges.set_limited(Partition(7), place(2), true);
    let limited = Port {
        limited: true,
        ..port(7, 3)
    };
    bridges.attach(limited, (7, 3)).unwrap();
    let answers = late(&bridges, 3);
    let askers: Vec<Name> = answers.iter().map(|(asker, _)| *asker).collect();
    assert_eq!(askers, [(7, 0), (7, 1)]);
    assert_eq!(answers[0].1[..6], mac(7, 0));
    assert_eq!(
        answers[0].1[22..32],
        [&mac(7, 3)[..], &[10, 64, 0, 4]].concat()
    );
    assert!(late(&bridges, 3).is_empty());
    bridges.attach(port(7, 4), (7, 4)).unwrap();
    assert_eq!(late(&bridges, 4).len(), 1);
}

#[test]
fn who_left_reaches_nobody_and_is_reached_by_nobody() {
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
    // Announcements and queries about nobody's address go to those who may hear them.
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

/// What may be a packet: with or without the headers of one.
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
