//! Frames between members.

use super::*;

#[test]
fn members_with_and_without_offload_reach_each_other() {
    if !is_root() {
        return;
    }
    const DATAGRAM: usize = 1000;
    let mut agent = Agent::start();
    let nodes = [0, 1, 2].map(Node::new);
    for node in &nodes {
        agent.add_changed(node, BLUE, |port| port.offload = node.x != 1);
    }
    assert_eq!(agent.sync(), []);
    for [from, to] in [[0, 1], [1, 0], [0, 2]].map(|pair| pair.map(|x: usize| &nodes[x])) {
        for address in [ipv4(BLUE, to.x), ipv6(BLUE, to.x)] {
            let [receiver, sender] = udp(to, from, address);
            // Several datagrams in one call, and perhaps in one GSO packet.
            setsockopt(&sender.0, UdpGsoSegment, &(DATAGRAM as i32)).unwrap();
            let row: Vec<u8> = (0..20_500).map(|n| (n / DATAGRAM) as u8).collect();
            sender.send_to(&row, receiver.local_addr().unwrap());
            for datagram in row.chunks(DATAGRAM) {
                assert_eq!(receiver.receive(), datagram);
            }
            stream(from, to, address, 16 << 20);
        }
    }
    agent.stop();
}

#[test]
fn members_reach_each_other_by_udp_and_tcp() {
    let Some((agent, nodes)) = blue::<2>() else {
        return;
    };
    for to in [ipv4(BLUE, 1), ipv6(BLUE, 1)] {
        // The kernel fragments datagrams beyond the MTU.
        for len in [0, 1, 1000, 8900, 20_000] {
            let [receiver, sender] = udp(&nodes[1], &nodes[0], to);
            sender.send_to(&vec![7; len], receiver.local_addr().unwrap());
            assert_eq!(receiver.receive(), vec![7; len]);
        }
        stream(&nodes[0], &nodes[1], to, 16 << 20);
    }
    agent.stop();
}

#[test]
fn broadcast_reaches_every_member_and_no_other_domain() {
    let Some((mut agent, blue)) = blue::<3>() else {
        return;
    };
    let red = [Node::new(0), Node::new(1)];
    // Equal addresses in both domains, so that only the driver separates them.
    for node in &red {
        agent.add_changed(node, RED, |port| port.ipv4 = node.port(BLUE).ipv4);
    }
    assert_eq!(agent.sync(), []);

    let port = 4000;
    let listen = |node: &Node| node.inside(move || Udp::bind(SocketAddr::from(([0; 4], port))));
    let blue_receivers = [listen(&blue[1]), listen(&blue[2])];
    let red_receiver = listen(&red[1]);
    let everyone = SocketAddr::from(([10, 64, 0, 255], port));
    let broadcast = |node: &Node, text: &[u8]| {
        let sender = node.inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
        sender.0.set_broadcast(true).unwrap();
        sender.send_to(text, everyone);
    };
    broadcast(&blue[0], b"blue");
    for receiver in blue_receivers {
        assert_eq!(receiver.receive(), b"blue");
    }
    broadcast(&red[0], b"red");
    // The first datagram, so none of the other domain has arrived.
    assert_eq!(red_receiver.receive(), b"red");
    agent.stop();
}

#[test]
fn limited_members_talk_to_full_ones_only_and_may_become_full() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1), Node::new(2)];
    for (node, limited) in nodes.iter().zip([false, true, true]) {
        agent.add_changed(node, BLUE, |port| port.limited = limited);
    }
    assert_eq!(agent.sync(), []);
    assert!(reaches(&nodes[1], &nodes[0], BLUE));
    assert!(reaches(&nodes[0], &nodes[2], BLUE));
    assert!(is_cut(&nodes[1], &nodes[2], BLUE));

    let interface = nodes[2].link("d7");
    agent.add(&nodes[2], nodes[2].port(BLUE));
    assert_eq!(agent.sync(), []);
    assert_eq!(nodes[2].link("d7"), interface);
    assert!(reaches(&nodes[1], &nodes[2], BLUE));
    agent.stop();
}

#[test]
fn changes_of_an_interface_affect_its_node_only() {
    let Some((mut agent, nodes)) = blue::<3>() else {
        return;
    };
    let meddle = |change: fn(&mut Netlink, u32)| {
        nodes[1].inside(move || {
            let mut netlink = Netlink::open().unwrap();
            let index = netlink.index("d7").unwrap();
            change(&mut netlink, index);
        });
    };
    let mac = addressing::mac(BLUE as u16, place(1));
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    assert_eq!(mac, [6, 0, 7, 1, 0, 0]);
    meddle(|netlink, index| netlink.set_mac(index, [6, 0, 7, 2, 0, 0]).unwrap());
    assert!(is_cut(&nodes[1], &nodes[0], BLUE), "another node's address");
    meddle(|netlink, index| netlink.set_mac(index, [6, 0, 7, 1, 0, 0]).unwrap());
    assert!(reaches(&nodes[1], &nodes[0], BLUE));
    meddle(|netlink, index| netlink.set_down(index).unwrap());
    assert!(is_cut(&nodes[0], &nodes[1], BLUE), "the interface is down");
    meddle(|netlink, index| netlink.delete(index).unwrap());
    assert!(is_cut(&nodes[0], &nodes[1], BLUE), "the interface is gone");
    assert!(reaches(&nodes[0], &nodes[2], BLUE));
    agent.remove(BLUE, 1);
    assert_eq!(agent.sync(), []);
    agent.stop();
}
