//! Addresses that members claim, and queries about them.

use std::net::Ipv6Addr;

use super::*;

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
    // The own address, none yet (DHCP), one of its choice, and one of no domain.
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

/// A node in two domains received in each domain packets for its address in the other.
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
    // Its kernel does not accept addresses of others; then its address here, and unassigned ones.
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

/// Kernels learn the address of a neighbour from its advertisement, whatever the source of the packet.
#[test]
fn no_member_advertises_an_address_of_another() {
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
fn pending_queries_are_answered_when_a_node_becomes_a_member() {
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
    // An ARP probe is not remembered.
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
