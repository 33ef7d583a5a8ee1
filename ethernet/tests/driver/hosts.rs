//! Members on other hosts.

use super::*;

#[test]
fn two_drivers_are_one_ethernet() {
    if !allowed() {
        return;
    }
    let mut agents = [Agent::start(), Agent::start()];
    let nodes = [0, 1, 2, 3].map(Node::new);
    for (n, agent) in agents.iter_mut().enumerate() {
        agent.retain(&["other"]);
        assert_eq!(agent.tunnels(), [""; 0]);
        let (local, remote) = nodes.split_at(2);
        let (local, remote) = if n == 0 {
            (local, remote)
        } else {
            (remote, local)
        };
        agent.join(BLUE, local);
        for node in remote {
            agent.add_remote("other", node.port(BLUE));
        }
        assert_eq!(agent.sync(), []);
    }
    assert!(is_cut(&nodes[0], &nodes[2], BLUE), "without a tunnel");
    let ends = tcp_pair();
    for (agent, end) in agents.iter_mut().zip(&ends) {
        agent.connect("other", end);
        assert_eq!(agent.tunnels(), ["other"]);
    }
    for (from, to) in [(0, 2), (3, 1), (2, 3)] {
        assert!(reaches(&nodes[from], &nodes[to], BLUE));
    }
    let [mut client, mut server] = connect(&nodes[0], &nodes[3], ipv4(BLUE, 3));
    let sending = thread::spawn(move || client.write_all(&vec![7; 64 << 20]).map(drop));
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    sending.join().unwrap().unwrap();
    assert!(received == vec![7; 64 << 20]);

    // Another agent may find the tunnel there, or wish for none.
    agents[0].restart();
    agents[0].retain(&["other"]);
    assert_eq!(agents[0].tunnels(), ["other"]);
    drop(ends);
    agents[0].restart();
    agents[0].retain(&[]);
    assert_eq!(agents[0].tunnels(), [""; 0]);
    assert_eq!(agents[1].tunnels(), [""; 0], "it was cut");
    agents.into_iter().for_each(Agent::stop);
}

#[test]
fn forged_packets_of_a_host_are_dropped() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    agent.retain(&["b", "c"]);
    assert_eq!(agent.tunnels(), [""; 0]);
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
    agent.connect("b", &ours);
    drop(ours);
    assert_eq!(agent.tunnels(), ["b"]);
    let listen = |address| nodes[0].inside(|| Udp::bind(SocketAddr::new(address, 4000)));
    let ears = [listen(ipv4(BLUE, 0)), listen(ipv4(RED, 0))];

    let mut say = |tag: TunnelHeader, packet: &[u8]| {
        b.write_all(&tag.to_bytes(packet.len())).unwrap();
        b.write_all(packet).unwrap();
    };
    let tag = |domain, epoch, x| TunnelHeader {
        partition: Partition(domain),
        epoch: Epoch(epoch),
        place: place(x),
    };
    let good = datagram(BLUE, 2, b"good");
    say(tag(BLUE, 1, 2), &good);
    assert_eq!(ears[0].receive(), b"good");
    for (kind, (tag, packet)) in [
        (
            "of another host's member",
            (tag(BLUE, 1, 3), datagram(BLUE, 3, b"lie")),
        ),
        (
            "of a member here",
            (tag(BLUE, 1, 1), datagram(BLUE, 1, b"lie")),
        ),
        ("of nobody", (tag(BLUE, 1, 9), datagram(BLUE, 9, b"lie"))),
        (
            "with another's address",
            (tag(BLUE, 1, 2), datagram(BLUE, 3, b"lie")),
        ),
        ("in an old epoch", (tag(BLUE, 0, 2), good.clone())),
        ("in one to come", (tag(BLUE, 2, 2), good.clone())),
        (
            "in another domain",
            (tag(RED, 1, 2), datagram(RED, 2, b"lie")),
        ),
        (
            "from one domain into another",
            (tag(BLUE, 1, 2), datagram(RED, 2, b"lie")),
        ),
        (
            "in a domain that is not here",
            (tag(9, 1, 2), datagram(9, 2, b"lie")),
        ),
        ("too long", (tag(BLUE, 1, 2), datagram(BLUE, 2, &[0; 9100]))),
    ] {
        eprintln!("{kind}");
        say(tag, &packet);
    }
    // Packets of one connection arrive in order.
    say(tag(BLUE, 1, 2), &datagram(BLUE, 2, b"the end"));
    assert_eq!(ears[0].receive(), b"the end");
    let counts =
        |dropped: &[(DropReason, u64)]| dropped.iter().copied().collect::<BTreeMap<_, _>>();
    let of_blue = agent.drops(BLUE);
    let lies = [
        (DropReason::WrongSource, 5),
        (DropReason::TooLong, 1),
        (DropReason::OtherEpoch, 2),
    ];
    assert_eq!(of_blue["b"], counts(&lies));
    assert_eq!(
        agent.drops(RED)["b"],
        counts(&[(DropReason::WrongSource, 1)])
    );
    ears[1].0.set_nonblocking(true).unwrap();
    assert!(ears[1].0.recv(&mut [0; 9]).is_err(), "nothing came to red");

    // A former member does not reach others in any epoch.
    agent.send(DriverRequest::RemovePort {
        domain_id: BLUE,
        node: 2,
    });
    agent.send(DriverRequest::Epoch {
        domain_id: BLUE,
        epoch: 2,
    });
    assert_eq!(agent.sync(), []);
    for epoch in 0..4 {
        say(tag(BLUE, epoch, 2), &good);
    }
    let count = |agent: &mut Agent| agent.drops(BLUE)["b"][&DropReason::WrongSource];
    eventually_with(&mut agent, |agent| count(agent) == 5 + 4);
    ears[0].0.set_nonblocking(true).unwrap();
    assert!(ears[0].0.recv(&mut [0; 9]).is_err());

    // ProtocolViolation ends it, and nothing else.
    say(tag(BLUE, 2, 2), &[0; 9]);
    assert_eq!(agent.tunnels(), [""; 0]);
    let [ours, mut b] = tcp_pair();
    agent.connect("b", &ours);
    drop(ours);
    assert_eq!(agent.tunnels(), ["b"]);
    b.write_all(&[0xff; 1 << 20]).ok();
    assert_eq!(agent.tunnels(), [""; 0]);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

/// A host that does not read once could delay all others.
#[test]
fn a_host_that_does_not_read_delays_no_other() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    agent.retain(&["b"]);
    assert_eq!(agent.tunnels(), [""; 0]);
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    agent.add_remote("b", Node::new(2).port(BLUE));
    assert_eq!(agent.sync(), []);
    let [ours, deaf] = tcp_pair();
    agent.connect("b", &ours);
    assert_eq!(agent.tunnels(), ["b"]);
    let sender = nodes[0].inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
    let remote = SocketAddr::new(ipv4(BLUE, 2), 4000);
    let is_full = |agent: &mut Agent| {
        for _ in 0..1000 {
            sender.send_to(&[0; 8000], remote);
        }
        let drops = agent.port_drops(BLUE);
        drops[&0].contains_key(&DropReason::Full)
    };
    eventually_with(&mut agent, is_full);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    drop(deaf);
    agent.stop();
}

/// A packet of UDP that member `x` of a domain sends to member 0, to port 4000.
fn datagram(domain: u32, x: u8, payload: &[u8]) -> Vec<u8> {
    let macs = [0, x].map(|x| addressing::mac(domain as u16, place(x)));
    let mut bytes = [&Offload::NONE[..], &macs.concat(), &[8, 0]].concat();
    let len = |more: usize| ((payload.len() + more) as u16).to_be_bytes();
    let [IpAddr::V4(from), IpAddr::V4(to)] = [x, 0].map(|x| ipv4(domain, x)) else {
        unreachable!();
    };
    let mut header = vec![0x45, 0];
    header.extend(len(28));
    header.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    header.extend([from.octets(), to.octets()].concat());
    let words = header
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend(header);
    bytes.extend([0x0f, 0xa1, 0x0f, 0xa0]);
    bytes.extend(len(8));
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

/// A connection over the loopback of this machine.
fn tcp_pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [ours, listener.accept().unwrap().0]
}

fn eventually_with(agent: &mut Agent, mut happens: impl FnMut(&mut Agent) -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !happens(agent) {
        assert!(Instant::now() < deadline, "it never happened");
        thread::sleep(Duration::from_millis(1));
    }
}
