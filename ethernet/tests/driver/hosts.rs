//! Members on other hosts.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr};

use super::*;

#[test]
fn members_of_two_hosts_share_one_ethernet() {
    if !is_root() {
        return;
    }
    let mut agents = [Agent::start(), Agent::start()];
    let nodes = [0, 1, 2, 3].map(Node::new);
    let (left, right) = nodes.split_at(2);
    for (agent, [local, remote]) in agents.iter_mut().zip([[left, right], [right, left]]) {
        assert_eq!(agent.retain(&[], &["other"]), [""; 0]);
        agent.join(BLUE, local);
        for node in remote {
            agent.add_remote("other", node.port(BLUE));
        }
        assert_eq!(agent.sync(), []);
    }
    assert!(is_cut(&nodes[0], &nodes[2], BLUE), "without a tunnel");
    for (agent, end) in agents.iter_mut().zip(tcp_pair()) {
        assert_eq!(agent.connect("other", end), ["other"]);
    }
    for (from, to) in [(0, 2), (3, 1), (2, 3)] {
        assert!(reaches(&nodes[from], &nodes[to], BLUE));
    }
    stream(&nodes[0], &nodes[3], ipv4(BLUE, 3), 64 << 20);

    // The next agent may keep the tunnel, or end it.
    agents[0].restart();
    assert_eq!(agents[0].retain(&[], &["other"]), ["other"]);
    agents[0].restart();
    assert_eq!(agents[0].retain(&[], &[]), [""; 0]);
    assert_eq!(agents[1].tunnels(), [""; 0], "the tunnel was cut");
    agents.into_iter().for_each(Agent::stop);
}

#[test]
fn forged_packets_of_a_host_are_dropped() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    assert_eq!(agent.retain(&[], &["b", "c"]), [""; 0]);
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    agent.join(RED, &nodes);
    let remote = [2, 3].map(Node::new);
    for (host, node) in ["b", "c"].into_iter().zip(&remote) {
        agent.add_remote(host, node.port(BLUE));
    }
    agent.add_remote("c", remote[1].port(RED));
    assert_eq!(agent.sync(), []);
    let [ours, mut b] = tcp_pair();
    assert_eq!(agent.connect("b", ours), ["b"]);
    let listen = |address| nodes[0].inside(|| Udp::bind(SocketAddr::new(address, 4000)));
    let receivers = [listen(ipv4(BLUE, 0)), listen(ipv4(RED, 0))];

    let mut send = |tag: TunnelHeader, packet: &[u8]| {
        b.write_all(&tag.to_bytes(packet.len())).unwrap();
        b.write_all(packet).unwrap();
    };
    let tag = |domain, epoch, x| TunnelHeader {
        partition: Partition(domain),
        epoch: Epoch(epoch),
        place: place(x),
    };
    let good = datagram(BLUE, 2, b"good");
    send(tag(BLUE, 1, 2), &good);
    assert_eq!(receivers[0].receive(), b"good");
    for (kind, (domain, epoch, x), (source_domain, source)) in [
        ("of another host's member", (BLUE, 1, 3), (BLUE, 3)),
        ("of a member here", (BLUE, 1, 1), (BLUE, 1)),
        ("of no member", (BLUE, 1, 9), (BLUE, 9)),
        ("with another's address", (BLUE, 1, 2), (BLUE, 3)),
        ("in an old epoch", (BLUE, 0, 2), (BLUE, 2)),
        ("in a later epoch", (BLUE, 2, 2), (BLUE, 2)),
        ("in another domain", (RED, 1, 2), (RED, 2)),
        ("from one domain into another", (BLUE, 1, 2), (RED, 2)),
        ("in a domain that is not here", (9, 1, 2), (9, 2)),
    ] {
        eprintln!("{kind}");
        let packet = datagram(source_domain, source, b"forged");
        send(tag(domain, epoch, x), &packet);
    }
    eprintln!("too long");
    send(tag(BLUE, 1, 2), &datagram(BLUE, 2, &[0; 9100]));
    // Packets of one connection arrive in order.
    send(tag(BLUE, 1, 2), &datagram(BLUE, 2, b"the end"));
    assert_eq!(receivers[0].receive(), b"the end");
    let forged = [
        (DropReason::WrongSource, 5),
        (DropReason::TooLong, 1),
        (DropReason::OtherEpoch, 2),
    ];
    assert_eq!(agent.drops(BLUE).1["b"], forged.into());
    let forged = [(DropReason::WrongSource, 1)];
    assert_eq!(agent.drops(RED).1["b"], forged.into());
    receivers[1].0.set_nonblocking(true).unwrap();
    assert!(receivers[1].0.recv(&mut [0; 9]).is_err());

    // A former member does not reach others in any epoch.
    agent.remove(BLUE, 2);
    agent.raise_epoch(BLUE, 2);
    assert_eq!(agent.sync(), []);
    for epoch in 0..4 {
        send(tag(BLUE, epoch, 2), &good);
    }
    eventually(|| agent.drops(BLUE).1["b"][&DropReason::WrongSource] == 5 + 4);
    receivers[0].0.set_nonblocking(true).unwrap();
    assert!(receivers[0].0.recv(&mut [0; 9]).is_err());

    // A protocol violation ends the tunnel, and nothing else.
    send(tag(BLUE, 2, 2), &[0; 9]);
    assert_eq!(agent.tunnels(), [""; 0]);
    let [ours, mut b] = tcp_pair();
    assert_eq!(agent.connect("b", ours), ["b"]);
    b.write_all(&[0xff; 1 << 20]).ok();
    assert_eq!(agent.tunnels(), [""; 0]);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

/// In the past such a host could delay all others.
#[test]
fn a_host_that_does_not_read_delays_no_other() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    assert_eq!(agent.retain(&[], &["b"]), [""; 0]);
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    agent.add_remote("b", Node::new(2).port(BLUE));
    assert_eq!(agent.sync(), []);
    let [ours, idle] = tcp_pair();
    assert_eq!(agent.connect("b", ours), ["b"]);
    let sender = nodes[0].inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
    let remote = SocketAddr::new(ipv4(BLUE, 2), 4000);
    eventually(|| {
        for _ in 0..1000 {
            sender.send_to(&[0; 8000], remote);
        }
        agent.drops(BLUE).0[&0].contains_key(&DropReason::Full)
    });
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    drop(idle);
    agent.stop();
}

/// A UDP packet of member `x` of a domain to port 4000 of member 0.
fn datagram(domain: u32, x: u8, payload: &[u8]) -> Vec<u8> {
    let macs = [0, x].map(|x| addressing::mac(domain as u16, place(x)));
    let [IpAddr::V4(from), IpAddr::V4(to)] = [x, 0].map(|x| ipv4(domain, x)) else {
        unreachable!();
    };
    let udp = UdpRepr {
        src_port: 4001,
        dst_port: 4000,
    };
    let ip = Ipv4Repr {
        src_addr: from,
        dst_addr: to,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + payload.len(),
        hop_limit: 64,
    };
    let checksums = ChecksumCapabilities::default();
    let mut packet = vec![0; ip.buffer_len() + ip.payload_len];
    let mut ip_packet = Ipv4Packet::new_unchecked(&mut packet[..]);
    ip.emit(&mut ip_packet, &checksums);
    udp.emit(
        &mut UdpPacket::new_unchecked(ip_packet.payload_mut()),
        &from.into(),
        &to.into(),
        payload.len(),
        |data| data.copy_from_slice(payload),
        &checksums,
    );
    [&Offload::NONE[..], &macs.concat(), &[8, 0], &packet].concat()
}

/// A connection over the loopback of this machine.
pub(crate) fn tcp_pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [ours, listener.accept().unwrap().0]
}
