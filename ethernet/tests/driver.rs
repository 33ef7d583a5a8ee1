//! The driver against real interfaces: nodes are network namespaces, each made by a thread and
//! ended with its descriptor, and the agent is the test. Needs root; without it the tests fail
//! when `CI=true` asks for them, and say that they did nothing otherwise.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use toroid_ethernet::driver::{self, DriverError};
use toroid_ethernet::offload::Offload;
use toroid_ethernet::tunnel::TunnelHeader;
use toroid_fabric::{Epoch, Partition, Place};
use toroid_model::addressing;
use toroid_model::ethernet::DropReason;
use toroid_netlink::{Link, Netlink};
use toroid_protocol::driver::{DriverRequest, DriverResponse, Port, PortError};
use toroid_protocol::liveness;
use toroid_protocol::wire::{self, Reader, Writer};

const BLUE: u32 = 7;
const RED: u32 = 0x1234;

/// After this a wait is a hang.
const WATCHDOG: Duration = Duration::from_secs(20);

#[test]
fn members_with_and_without_offload_reach_each_other() {
    if !allowed() {
        return;
    }
    const DATAGRAM: usize = 1000;
    let mut agent = Agent::start();
    let nodes = [0, 1, 2].map(Node::new);
    for node in &nodes {
        let offload = node.x != 1;
        agent.add(
            node,
            Port {
                offload,
                ..node.port(BLUE)
            },
        );
    }
    assert_eq!(agent.sync(), []);
    for (from, to) in [(0, 1), (1, 0), (0, 2)] {
        for address in [ipv4(BLUE, to), ipv6(BLUE, to)] {
            let [receiver, sender] = udp(&nodes[usize::from(to)], &nodes[from], address);
            // A row of datagrams in one call, and perhaps in one GSO packet.
            setsockopt(&sender.0, UdpGsoSegment, &(DATAGRAM as i32)).unwrap();
            let row: Vec<u8> = (0..20_500).map(|n| (n / DATAGRAM) as u8).collect();
            sender.send_to(&row, receiver.local_addr().unwrap());
            for datagram in row.chunks(DATAGRAM) {
                assert_eq!(receiver.receive(), datagram);
            }
            let [mut client, mut server] = connect(&nodes[from], &nodes[usize::from(to)], address);
            let sending = thread::spawn(move || client.write_all(&vec![7; 16 << 20]).map(drop));
            let mut received = Vec::new();
            server.read_to_end(&mut received).unwrap();
            sending.join().unwrap().unwrap();
            assert!(received == vec![7; 16 << 20]);
        }
    }
    agent.stop();
}

#[test]
fn members_reach_each_other_by_udp_and_tcp() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    for to in [ipv4(BLUE, 1), ipv6(BLUE, 1)] {
        // Over the MTU, too: the kernel fragments.
        for len in [0, 1, 1000, 8900, 20_000] {
            let [receiver, sender] = udp(&nodes[1], &nodes[0], to);
            sender.send_to(&vec![7; len], receiver.local_addr().unwrap());
            assert_eq!(receiver.receive(), vec![7; len]);
        }
        let [mut client, mut server] = connect(&nodes[0], &nodes[1], to);
        let sent: Vec<u8> = (0..16 << 20).map(|n: u32| ((n * 31) >> 8) as u8).collect();
        let receiving = thread::spawn(move || {
            let mut received = Vec::new();
            server.read_to_end(&mut received).map(|_| received)
        });
        client.write_all(&sent).unwrap();
        drop(client);
        assert!(receiving.join().unwrap().unwrap() == sent);
    }
    agent.stop();
}

#[test]
fn broadcast_reaches_every_member_and_no_other_domain() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let blue = [Node::new(0), Node::new(1), Node::new(2)];
    let red = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &blue);
    // With the addresses of the other domain, so that only the driver tells them apart.
    for node in &red {
        agent.add(
            node,
            Port {
                ipv4: node.port(BLUE).ipv4,
                ..node.port(RED)
            },
        );
    }
    assert_eq!(agent.sync(), []);

    let port = 4000;
    let listen = |node: &Node| node.inside(move || Udp::bind(SocketAddr::from(([0; 4], port))));
    let blue_ears = [listen(&blue[1]), listen(&blue[2])];
    let red_ear = listen(&red[1]);
    let everyone = SocketAddr::from(([10, 64, 0, 255], port));
    let shout = |node: &Node, text: &[u8]| {
        let sender = node.inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
        sender.0.set_broadcast(true).unwrap();
        sender.send_to(text, everyone);
    };
    shout(&blue[0], b"blue");
    for ear in blue_ears {
        assert_eq!(ear.receive(), b"blue");
    }
    shout(&red[0], b"red");
    assert_eq!(red_ear.receive(), b"red", "and nothing before");
    agent.stop();
}

#[test]
fn a_restarted_driver_resumes_interfaces_and_connections() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    let [mut client, mut server] = connect(&nodes[0], &nodes[1], ipv4(BLUE, 1));
    let mut say = |text: &[u8; 4]| {
        client.write_all(text).unwrap();
        let mut heard = [0; 4];
        server.read_exact(&mut heard).unwrap();
        assert_eq!(heard, *text);
        server.write_all(text).unwrap();
        client.read_exact(&mut heard).unwrap();
        assert_eq!(heard, *text);
    };
    say(b"once");
    let before = nodes[0].link("d7");
    agent.stop();

    let mut agent = Agent::start();
    agent.join(BLUE, &nodes);
    assert_eq!(nodes[0].link("d7"), before);
    say(b"more");
    agent.stop();
}

#[test]
fn the_next_agent_finds_the_ports_and_sets_right_what_differs() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let mut nodes = [Node::new(0), Node::new(1), Node::new(2)];
    agent.join(BLUE, &nodes);
    agent.join(RED, &nodes);
    let interface = nodes[0].link("d7");
    agent.restart();
    assert!(reaches(&nodes[0], &nodes[1], RED), "without an agent");
    // Meanwhile a node was made anew, and one domain was removed.
    nodes[1] = Node::new(1);
    let ports = (0..3).map(|node| (BLUE, node)).collect();
    let hosts = Vec::new();
    agent.send(DriverRequest::Retain {
        ports,
        hosts,
        rdma: None,
    });
    assert_eq!(agent.tunnels(), [""; 0]);
    agent.join(BLUE, &nodes);
    assert_eq!(nodes[0].link("d7"), interface);
    assert_eq!(nodes[0].link("d4660"), None);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

#[test]
fn a_removed_port_is_cut_and_its_interface_gone() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1), Node::new(2)];
    agent.join(BLUE, &nodes);
    agent.send(DriverRequest::RemovePort {
        domain_id: BLUE,
        node: 1,
    });
    agent.send(DriverRequest::RemovePort {
        domain_id: BLUE,
        node: 77,
    });
    agent.send(DriverRequest::Epoch {
        domain_id: BLUE,
        epoch: 2,
    });
    assert_eq!(agent.sync(), []);
    assert_eq!(nodes[1].link("d7"), None);
    assert!(reaches(&nodes[0], &nodes[2], BLUE));

    // Back again, in the new epoch; in the old one it would be refused.
    agent.add(&nodes[1], nodes[1].port(BLUE));
    let errors = agent.sync();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].message.contains("epoch"), "{}", errors[0].message);
    agent.add(
        &nodes[1],
        Port {
            epoch: 2,
            ..nodes[1].port(BLUE)
        },
    );
    assert_eq!(agent.sync(), []);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

#[test]
fn who_comes_and_goes_a_thousand_times_is_a_member_each_time() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    let port = |epoch| Port {
        epoch,
        ..nodes[1].port(BLUE)
    };
    for epoch in 2..=1001 {
        agent.remove(&nodes[1], BLUE);
        assert_eq!(agent.sync(), []);
        // In between it is deleted, and made anew.
        if epoch % 250 == 0 {
            eventually(|| nodes[1].links() == 1);
        }
        agent.add(&nodes[1], port(epoch));
        assert_eq!(agent.sync(), []);
        if epoch % 100 == 0 {
            assert!(reaches(&nodes[0], &nodes[1], BLUE), "epoch {epoch}");
        }
    }
    assert_eq!(nodes[1].links(), 2, "nothing is left of the others");
    agent.stop();
}

#[test]
fn what_was_sent_while_it_was_no_member_arrives_never() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    let bind = |node: &Node| node.inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
    let (receiver, sender) = (bind(&nodes[0]), bind(&nodes[1]));
    let port = receiver.local_addr().unwrap().port();
    let everyone = SocketAddr::from(([10, 64, 0, 255], port));
    sender.0.set_broadcast(true).unwrap();
    agent.remove(&nodes[1], BLUE);
    assert_eq!(agent.sync(), []);
    // Root of the node finds the interface and raises it.
    nodes[1].inside(|| {
        let mut netlink = Netlink::open().unwrap();
        let lowered = (0..9).find_map(|n| netlink.link(&format!("~gone{n}")).ok());
        let lowered = lowered.expect("it is still there");
        assert!(!lowered.up);
        netlink.set_up(lowered.index).unwrap();
    });
    sender.0.send_to(b"secret", everyone).unwrap();
    agent.add(&nodes[1], nodes[1].port(BLUE));
    assert_eq!(agent.sync(), []);
    sender.send_to(b"a member again", everyone);
    assert_eq!(receiver.receive(), b"a member again");
    agent.stop();
}

#[test]
fn another_domain_may_have_the_name_at_once() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    for node in &nodes {
        agent.remove(node, BLUE);
        let ifname = "d7".into();
        agent.add(
            node,
            Port {
                ifname,
                ..node.port(RED)
            },
        );
    }
    assert_eq!(agent.sync(), []);
    assert!(reaches(&nodes[0], &nodes[1], RED));
    eventually(|| nodes[0].links() == 2);
    agent.stop();
}

#[test]
fn limited_members_talk_to_full_ones_only_and_may_become_full() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1), Node::new(2)];
    for (node, limited) in nodes.iter().zip([false, true, true]) {
        let port = node.port(BLUE);
        agent.add(node, Port { limited, ..port });
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
fn what_a_node_does_to_its_interface_harms_nobody_else() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1), Node::new(2)];
    agent.join(BLUE, &nodes);
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
    assert!(is_cut(&nodes[1], &nodes[0], BLUE), "with another's address");
    meddle(|netlink, index| netlink.set_mac(index, [6, 0, 7, 1, 0, 0]).unwrap());
    assert!(reaches(&nodes[1], &nodes[0], BLUE));
    meddle(|netlink, index| netlink.set_down(index).unwrap());
    assert!(is_cut(&nodes[0], &nodes[1], BLUE), "which is down");
    meddle(|netlink, index| netlink.delete(index).unwrap());
    assert!(is_cut(&nodes[0], &nodes[1], BLUE), "which is gone");
    assert!(reaches(&nodes[0], &nodes[2], BLUE));
    agent.send(DriverRequest::RemovePort {
        domain_id: BLUE,
        node: 1,
    });
    assert_eq!(agent.sync(), []);
    agent.stop();
}

#[test]
fn bad_commands_are_errors_of_their_port_only() {
    if !allowed() {
        return;
    }
    let mut agent = Agent::start();
    let nodes = [Node::new(0), Node::new(1)];
    agent.join(BLUE, &nodes);
    let mut refused = |port: Port| {
        agent.add(&nodes[0], port);
        let errors = agent.sync();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].message.clone()
    };
    let port = nodes[0].port(BLUE);
    let message = refused(Port {
        mtu: 1500,
        ..port.clone()
    });
    assert!(message.contains("there already"), "{message}");
    let message = refused(Port {
        ifname: "lo".into(),
        ..nodes[0].port(RED)
    });
    assert!(message.contains("TAP lo"), "{message}");
    let message = refused(Port {
        mac: port.mac,
        ..nodes[0].port(RED)
    });
    assert!(message.contains("is not the address"), "{message}");
    agent.send(DriverRequest::AddPort(nodes[0].port(RED)));
    assert!(agent.sync()[0].message.contains("namespace"));
    // The same again, as an agent that lost its memory might send it.
    agent.join(BLUE, &nodes);
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

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
fn a_host_that_lies_is_believed_nothing() {
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
    // What comes in order comes last.
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

    // Whoever has left says nothing any more, however it is said.
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

/// It once could have been that whoever does not read keeps all others waiting.
#[test]
fn a_host_that_does_not_read_is_in_nobody_elses_way() {
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

/// The agent's end of a driver that runs in a thread.
struct Agent {
    lifeline: Writer,
    answers: Reader,
    commands: Writer,
    driver: JoinHandle<Result<(), DriverError>>,
    synced: u64,
}

impl Agent {
    fn start() -> Self {
        let (ours, drivers) = UnixStream::pair().unwrap();
        let lifeline = wire::split(ours).unwrap().1;
        let (answers, commands) = session(&lifeline);
        Agent {
            lifeline,
            answers,
            commands,
            driver: thread::spawn(|| driver::run(drivers)),
            synced: 0,
        }
    }

    fn send(&self, command: DriverRequest) {
        self.commands.send(&command, &[]).unwrap();
    }

    fn add(&self, node: &Node, port: Port) {
        let namespace = node.namespace.as_fd();
        self.commands
            .send(&DriverRequest::AddPort(port), &[namespace])
            .unwrap();
    }

    /// Makes all nodes members, who can be reached as soon as that is so: once, the kernel was
    /// still busy giving them their IPv6 addresses.
    fn join(&mut self, domain: u32, nodes: &[Node]) {
        nodes
            .iter()
            .for_each(|node| self.add(node, node.port(domain)));
        assert_eq!(self.sync(), []);
        for node in nodes {
            let address = ipv6(domain, node.x);
            let is_local = || Netlink::open().unwrap().is_local(address).unwrap();
            assert!(node.inside(is_local), "{address}");
        }
    }

    fn remove(&self, node: &Node, domain_id: u32) {
        let node = node.x.into();
        self.send(DriverRequest::RemovePort { domain_id, node });
    }

    fn sync(&mut self) -> Vec<PortError> {
        self.synced += 1;
        self.send(DriverRequest::Sync { n: self.synced });
        match self.answers.receive().unwrap() {
            (DriverResponse::Synced { n, errors, .. }, _) if n == self.synced => errors,
            other => panic!("{other:?} was not asked for"),
        }
    }

    /// There are no ports yet, and these other hosts.
    fn retain(&mut self, hosts: &[&str]) {
        let hosts = hosts.iter().map(|host| (*host).into()).collect();
        let ports = Vec::new();
        self.send(DriverRequest::Retain {
            ports,
            hosts,
            rdma: None,
        });
    }

    fn add_remote(&self, host: &str, port: Port) {
        let host = host.into();
        self.send(DriverRequest::AddFar { host, port });
    }

    /// Gives the driver a tunnel.
    fn connect(&self, host: &str, socket: &TcpStream) {
        let host = host.into();
        let command = DriverRequest::Trunk { host, asks: false };
        self.commands.send(&command, &[socket.as_fd()]).unwrap();
    }

    /// What other hosts have sent in vain.
    fn drops(&mut self, domain_id: u32) -> BTreeMap<String, BTreeMap<DropReason, u64>> {
        self.send(DriverRequest::Drops { n: 1, domain_id });
        match self.answers.receive().unwrap() {
            (DriverResponse::Dropped { hosts, .. }, _) => hosts,
            other => panic!("{other:?} was not asked for"),
        }
    }

    /// What members have sent in vain, by their numbers.
    fn port_drops(&mut self, domain_id: u32) -> BTreeMap<u32, BTreeMap<DropReason, u64>> {
        self.send(DriverRequest::Drops { n: 1, domain_id });
        match self.answers.receive().unwrap() {
            (DriverResponse::Dropped { ports, .. }, _) => {
                ports.into_iter().map(|p| (p.node, p.dropped)).collect()
            }
            other => panic!("{other:?} was not asked for"),
        }
    }

    /// Waits to hear to which hosts there are tunnels.
    fn tunnels(&mut self) -> Vec<String> {
        match self.answers.receive().unwrap() {
            (DriverResponse::Trunks { up, .. }, _) => up,
            other => panic!("{other:?} was not asked for"),
        }
    }

    /// The agent is another one, which knows of nothing.
    fn restart(&mut self) {
        self.commands.shut_down();
        (self.answers, self.commands) = session(&self.lifeline);
        self.synced = 0;
    }

    fn stop(self) {
        self.lifeline.shut_down();
        self.commands.shut_down();
        self.driver.join().unwrap().unwrap();
    }
}

fn session(lifeline: &Writer) -> (Reader, Writer) {
    let session = liveness::open_channel(lifeline).unwrap();
    session.set_read_timeout(Some(WATCHDOG)).unwrap();
    wire::split(session).unwrap()
}

/// A network namespace, at place `x,0,0`.
struct Node {
    namespace: File,
    x: u8,
}

impl Node {
    fn new(x: u8) -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let mut netlink = Netlink::open().unwrap();
            let loopback = netlink.index("lo").unwrap();
            netlink.set_up(loopback).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        let namespace = thread::spawn(make).join().unwrap();
        Node { namespace, x }
    }

    /// Runs `work` in this node; sockets made there stay there.
    fn inside<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| {
            let enter = || {
                setns(&self.namespace, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            };
            scope.spawn(enter).join().unwrap()
        })
    }

    fn port(&self, domain: u32) -> Port {
        let place = place(self.x);
        Port {
            node: self.x.into(),
            place,
            domain_id: domain,
            epoch: 1,
            ifname: format!("d{domain}"),
            mac: addressing::mac(domain as u16, place),
            ipv4: match ipv4(domain, self.x) {
                IpAddr::V4(address) => address,
                IpAddr::V6(_) => unreachable!(),
            },
            prefix: 24,
            nodes: 8,
            ipv6: addressing::ipv6(domain as u16, place),
            ipv6_prefix: addressing::IPV6_PREFIX,
            offload: true,
            mtu: 9000,
            limited: false,
            gateway: None,
            forward: false,
            stack: false,
        }
    }

    /// How many interfaces it has, the loopback included.
    fn links(&self) -> usize {
        let list = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        // Two lines of headings.
        self.inside(list).lines().count() - 2
    }

    fn link(&self, name: &str) -> Option<Link> {
        self.inside(|| Netlink::open().unwrap().link(name).ok())
    }
}

/// A UDP socket that does not wait for ever.
struct Udp(UdpSocket);

impl Udp {
    fn bind(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(WATCHDOG)).unwrap();
        Udp(socket)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn send_to(&self, bytes: &[u8], to: SocketAddr) {
        assert_eq!(self.0.send_to(bytes, to).unwrap(), bytes.len());
    }

    fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        let len = self.0.recv(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }
}

fn place(x: u8) -> Place {
    Place { x, y: 0, z: 0 }
}

fn ipv4(domain: u32, x: u8) -> IpAddr {
    let subnet = if domain == BLUE { 0 } else { 1 };
    [10, 64, subnet, x + 1].into()
}

fn ipv6(domain: u32, x: u8) -> IpAddr {
    addressing::ipv6(domain as u16, place(x)).into()
}

/// A receiver at `to` in one node and a sender in another.
fn udp(at: &Node, from: &Node, to: IpAddr) -> [Udp; 2] {
    let any: IpAddr = match to {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    [
        at.inside(|| Udp::bind(SocketAddr::new(to, 0))),
        from.inside(|| Udp::bind(SocketAddr::new(any, 0))),
    ]
}

/// A TCP connection from one node to another: both ends.
fn connect(from: &Node, to: &Node, address: IpAddr) -> [TcpStream; 2] {
    let listener = to.inside(|| TcpListener::bind(SocketAddr::new(address, 0)).unwrap());
    let server = listener.local_addr().unwrap();
    let client = from.inside(|| TcpStream::connect_timeout(&server, WATCHDOG).unwrap());
    let ends = [client, listener.accept().unwrap().0];
    for end in &ends {
        end.set_read_timeout(Some(WATCHDOG)).unwrap();
        end.set_write_timeout(Some(WATCHDOG)).unwrap();
    }
    ends
}

/// Whether a TCP connection can be made, over IPv6. A kernel that was not answered before asks
/// again when it likes, or fails at once what waits for the answer: so there are several tries.
fn reaches(from: &Node, to: &Node, domain: u32) -> bool {
    let deadline = Instant::now() + WATCHDOG;
    while Instant::now() < deadline {
        if connects(from, to, domain, WATCHDOG) {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Whether no TCP connection can be made within a time that is long for one that can be.
fn is_cut(from: &Node, to: &Node, domain: u32) -> bool {
    !connects(from, to, domain, Duration::from_secs(1))
}

fn connects(from: &Node, to: &Node, domain: u32, timeout: Duration) -> bool {
    let Ok(listener) = to.inside(|| TcpListener::bind("[::]:0")) else {
        return false;
    };
    let port = listener.local_addr().unwrap().port();
    let server = SocketAddr::new(ipv6(domain, to.x), port);
    from.inside(|| TcpStream::connect_timeout(&server, timeout).is_ok())
}

fn eventually(happens: impl Fn() -> bool) {
    let deadline = Instant::now() + WATCHDOG;
    while !happens() {
        assert!(Instant::now() < deadline, "it never happened");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether these tests can run.
fn allowed() -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let asked = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(root || !asked, "CI=true asks for tests that need root");
    if !root {
        eprintln!("nothing was tested: this needs root");
    }
    root
}
