//! Addresses that members claim, and queries about them.

use super::*;

const FOREIGN: Result<Vec<Name>, DropReason> = Err(DropReason::ForeignAddress);

#[test]
fn a_packet_with_the_address_of_another_is_dropped() {
    let mut bridges = bridges_with(unique);
    let delivered = Ok(vec![(7, 2)]);
    let sent = |bridges: &Bridges<Name>, address| bridges.send(0, &ipv4_from(0, address));
    // The own address, none yet (DHCP), one of the member's choice, and one of no domain.
    for own in [[10, 64, 7, 1], [0; 4], [10, 64, 7, 77], [192, 0, 2, 1]] {
        assert_eq!(sent(&bridges, own), delivered, "{own:?}");
    }
    for others in [[10, 64, 7, 2], [10, 64, 8, 1], [10, 64, 8, 200]] {
        assert_eq!(sent(&bridges, others), FOREIGN, "{others:?}");
    }
    // The torus has 8 nodes, of which the last five may become members.
    assert_eq!(sent(&bridges, [10, 64, 7, 8]), FOREIGN);
    assert_eq!(sent(&bridges, [10, 64, 7, 9]), delivered);
    let query = arp(mac(7, 0), [10, 64, 7, 3]);
    let announced = with(query, ARP_SENDER, &[10, 64, 7, 2]);
    assert_eq!(bridges.send(0, &announced), FOREIGN);

    // Forwarding needs routers in both domains and the node in both.
    let mut forward = |domain, x, forward| {
        bridges.change(domain, x, |port| port.forward = forward);
        sent(&bridges, [10, 64, 8, 200])
    };
    assert_eq!(forward(7, 0, true), FOREIGN);
    assert_eq!(forward(8, 1, true), FOREIGN);
    assert_eq!(forward(8, 0, true), delivered);
    assert_eq!(forward(7, 0, false), FOREIGN);
    assert_eq!(forward(7, 0, true), delivered);
    assert_eq!(sent(&bridges, [10, 64, 7, 2]), FOREIGN);
    bridges.detach(Partition(8), NodeId(0));
    assert_eq!(sent(&bridges, [10, 64, 8, 200]), FOREIGN);

    bridges.connect(&uplink(false), (7, OUTSIDE));
    assert_eq!(sent(&bridges, [10, 64, 8, 1]), delivered);
    assert_eq!(sent(&bridges, [10, 64, 7, 2]), FOREIGN);
    for of_node in [2, 8] {
        let external = with(ipv4_from(0, [10, 64, 7, of_node]), SOURCE, &EXTERNAL);
        assert_eq!(bridges.send_external(&external), FOREIGN);
    }
    bridges.disconnect(Partition(7));
    bridges.detach(Partition(7), NodeId(0));
    let gateway = Port {
        gateway: Some([10, 64, 7, 1].into()),
        ..unique(7, 0)
    };
    bridges.attach(gateway, (7, 0)).unwrap();
    assert_eq!(sent(&bridges, [10, 64, 8, 1]), delivered);
}

/// In the past a node in two domains received in each domain packets for its address in the other.
#[test]
fn a_packet_for_an_address_in_another_domain_is_dropped() {
    let mut bridges = bridges_with(unique);
    bridges.detach(Partition(8), NodeId(0));
    let ipv4 = |to: [u8; 6], address: [u8; 4]| {
        let packet = with(ipv4_from(0, [10, 64, 7, 1]), 0, &to);
        with(packet, IPV4_DESTINATION, &address)
    };
    let of_receiver = |to| {
        let addresses = [addressing::ipv6(7, place(0)), addressing::ipv6(8, place(2))];
        [
            ipv4(to, [10, 64, 8, 3]),
            ipv6(0, to, addresses, NO_NEXT_HEADER, &[]),
        ]
    };
    let check = |bridges: &Bridges<Name>, to, expected: Result<Vec<Name>, DropReason>| {
        for packet in of_receiver(to) {
            assert_eq!(bridges.send(0, &packet), expected);
        }
    };
    check(&bridges, mac(7, 2), FOREIGN);
    check(&bridges, BROADCAST, FOREIGN);
    // The receiver's kernel rejects addresses of others. The rest: its own one, and unassigned ones.
    let delivered = || Ok(vec![(7, 2)]);
    for address in [
        [10, 64, 8, 2],
        [10, 64, 7, 3],
        [10, 64, 8, 99],
        [192, 0, 2, 1],
    ] {
        let packet = ipv4(mac(7, 2), address);
        assert_eq!(bridges.send(0, &packet), delivered(), "{address:?}");
    }
    // In two domains with routers the receiver may be one.
    bridges.change(7, 2, |port| port.forward = true);
    check(&bridges, mac(7, 2), FOREIGN);
    bridges.change(8, 2, |port| port.forward = true);
    check(&bridges, mac(7, 2), delivered());
    bridges.change(8, 2, |port| port.forward = false);
    bridges.detach(Partition(8), NodeId(2));
    check(&bridges, mac(7, 2), delivered());
}

/// Kernels learn the address of a neighbour from its advertisement, regardless of the packet's source.
#[test]
fn no_member_advertises_an_address_of_another() {
    let bridges = bridges_with(unique);
    let link_local = |mac: [u8; 6]| {
        let [a, b, c, d, e, f] = mac;
        let [a, b, c, d] = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
        Ipv6Addr::new(0xfe80, 0, 0, 0, a, b, c, d)
    };
    let advertised = |from: Ipv6Addr, target: Ipv6Addr| {
        let advertisement = [&[136, 0, 0, 0, 0x20, 0, 0, 0], &target.octets()[..]].concat();
        let addresses = [from, addressing::ipv6(7, place(2))];
        bridges.send(0, &ipv6(0, mac(7, 2), addresses, 58, &advertisement))
    };
    let own = [addressing::ipv6(7, place(0)), link_local(mac(7, 0))];
    let chosen = "2001:db8::7".parse().unwrap();
    for target in [own[0], own[1], chosen] {
        assert_eq!(advertised(own[1], target), Ok(vec![(7, 2)]), "{target}");
    }
    for other in [
        addressing::ipv6(7, place(1)),
        addressing::ipv6(7, place(9)),
        link_local(mac(7, 1)),
        link_local(mac(7, 9)),
    ] {
        assert_eq!(advertised(own[0], other), FOREIGN, "{other}");
        assert_eq!(advertised(other, own[0]), FOREIGN, "{other}");
    }
}

#[test]
fn queries_are_answered_for_assigned_addresses_only() {
    let bridges = bridges();
    let ingress = bridges.ingress(Partition(7), place(1)).unwrap();
    let Action::Reply(answer) = ingress.decide(&arp(mac(7, 1), [10, 64, 0, 3])) else {
        panic!("no answer");
    };
    assert_eq!(answer[..6], mac(7, 1));
    assert_eq!(answer[22..28], mac(7, 2));
    // An unassigned address, and an announcement.
    for address in [[10, 64, 0, 77], [10, 64, 0, 2]] {
        let reached = bridges.send(1, &arp(mac(7, 1), address));
        assert_eq!(reached, Ok(vec![(7, 0), (7, 2)]), "{address:?}");
    }
}

/// A kernel repeats an unanswered query after a second, and reports the address as unreachable after
/// three. In the past a node that became a member meanwhile was not reached.
#[test]
fn pending_queries_are_answered_when_a_node_becomes_a_member() {
    let mut bridges = bridges();
    let replies = |bridges: &Bridges<Name>, x| {
        let replies = bridges.pending_replies(Partition(7), place(x)).into_iter();
        let mut replies: Vec<_> = replies.map(|(to, frame)| (*to, frame)).collect();
        replies.sort();
        replies
    };
    for (x, target) in [(0, 4), (0, 4), (0, 5), (1, 4), (2, 4), (0, 77), (0, 1)] {
        let query = arp(mac(7, x), [10, 64, 0, target]);
        let query = with(query, ARP_SENDER, &[10, 64, 0, x + 1]);
        bridges.send(x, &query).unwrap();
    }
    // An ARP probe is not remembered.
    bridges.send(1, &arp(mac(7, 1), [10, 64, 0, 5])).unwrap();
    bridges.set_limited(2, true);
    let limited = Port {
        limited: true,
        ..port(7, 3)
    };
    bridges.attach(limited, (7, 3)).unwrap();
    let answers = replies(&bridges, 3);
    let requesters: Vec<Name> = answers.iter().map(|(to, _)| *to).collect();
    assert_eq!(requesters, [(7, 0), (7, 1)]);
    let (_, answer) = &answers[0];
    assert_eq!(answer[..6], mac(7, 0));
    assert_eq!(answer[22..32], [&mac(7, 3)[..], &[10, 64, 0, 4]].concat());
    assert!(replies(&bridges, 3).is_empty());
    bridges.attach(port(7, 4), (7, 4)).unwrap();
    assert_eq!(replies(&bridges, 4).len(), 1);
}

/// A domain may have fewer addresses than the torus has nodes. A kernel keeps the MAC address of an
/// idle neighbour for long, so that a new owner of the IPv4 address would not be reached for seconds.
#[test]
fn members_hear_of_the_new_owner_of_an_address() {
    let mut bridges = bridges();
    let limited = |x, reused: u8| Port {
        limited: true,
        ipv4: [10, 64, 0, reused].into(),
        ..port(7, x)
    };
    bridges.set_limited(0, true);
    bridges.detach(Partition(7), NodeId(2)).unwrap();
    bridges.attach(limited(5, 3), (7, 5)).unwrap();
    let replies = bridges.corrections(Partition(7), place(5));
    let [((7, 1), frame)] = &replies[..] else {
        panic!("to the full member only: {replies:?}")
    };
    assert_eq!(frame[..6], mac(7, 1));
    let owner = [&mac(7, 5)[..], &[10, 64, 0, 3]].concat();
    assert_eq!(frame[22..42], [&owner[..], &owner].concat(), "gratuitous");
    // The same owner again is known, and a new address had no owner.
    for port in [limited(5, 3), limited(6, 7)] {
        let place = port.place;
        bridges.detach(Partition(7), NodeId(port.node));
        bridges.attach(port, (7, place.x)).unwrap();
        assert_eq!(bridges.corrections(Partition(7), place), []);
    }
    assert_eq!(bridges.place_of(Partition(7), NodeId(5)), Some(place(5)));
    assert_eq!(bridges.place_of(Partition(7), NodeId(2)), None);
}

/// The addresses that can be assigned are those of the subnet, wherever a member is in the torus.
#[test]
fn an_address_by_index_reserves_the_subnet() {
    let mut bridges = Bridges::default();
    for (x, node, index) in [(1, 60_000, 1), (2, 9, 2)] {
        let port = Port {
            node,
            ipv4: [10, 64, 0, index].into(),
            nodes: 6,
            ..port(7, x)
        };
        bridges.attach(port, (7, x)).unwrap();
    }
    let claims = |address| bridges.send(1, &ipv4_from(1, address));
    assert!(claims([10, 64, 0, 1]).is_ok());
    assert_eq!(claims([10, 64, 0, 6]), FOREIGN);
    assert!(claims([10, 64, 0, 8]).is_ok(), "no member ever has it");
}
