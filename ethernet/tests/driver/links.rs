//! Links with a model. Nothing here depends on how fast the machine is: frames may be late.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use toroid_fabric::NodeId;
use toroid_fabric::model::{ClockId, Path, SharedClocks, record_of};

use super::*;

const LATENCY: Duration = Duration::from_millis(5);

#[test]
fn a_round_trip_takes_both_latencies() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    let clocks = SharedClocks::create().unwrap();
    agent.set_links(BLUE, &clocks, "latency=5ms", &[]);
    assert_eq!(agent.sync(), []);
    for to in [ipv4(BLUE, 1), ipv6(BLUE, 1)] {
        let [receiver, sender] = udp(&nodes[1], &nodes[0], to);
        for _ in 0..20 {
            let began = Instant::now();
            sender.send_to(b"ping", receiver.local_addr().unwrap());
            let (_, from) = receiver.0.recv_from(&mut [0; 9]).unwrap();
            assert!(began.elapsed() >= LATENCY);
            receiver.send_to(b"pong", from);
            assert_eq!(sender.receive(), b"pong");
            assert!(began.elapsed() >= 2 * LATENCY);
        }
    }
    let clocks = SharedClocks::map(&clocks).unwrap();
    for [from, to] in [[0, 1], [1, 0]] {
        assert!(transfers(&clocks, from, to) >= 40);
        assert_eq!(transfers_by(&clocks, Path::Rdma, from, to), 0);
    }
    agent.stop();
}

#[test]
fn no_stream_is_faster_than_its_rate() {
    if !is_root() {
        return;
    }
    const BYTES: usize = 2 << 20;
    /// 100 Mbit/s, in nanoseconds for each byte.
    const BYTE: u32 = 80;
    let mut agent = Agent::start();
    let nodes = [0, 1, 2].map(Node::new);
    for node in &nodes {
        agent.add_changed(node, BLUE, |port| port.offload = node.x != 2);
    }
    let clocks = SharedClocks::create().unwrap();
    agent.set_links(BLUE, &clocks, "rate=100Mbit", &[]);
    assert_eq!(agent.sync(), []);
    for [from, to] in [[0, 1], [0, 2], [2, 0]].map(|pair| pair.map(|x: usize| &nodes[x])) {
        for address in [ipv4(BLUE, to.x), ipv6(BLUE, to.x)] {
            let began = Instant::now();
            stream(from, to, address, BYTES);
            assert!(began.elapsed() >= Duration::from_nanos(1) * BYTE * BYTES as u32);
            // Several datagrams in one call, and perhaps in one GSO packet.
            let [receiver, sender] = udp(to, from, address);
            setsockopt(&sender.0, UdpGsoSegment, &1000).unwrap();
            let row: Vec<u8> = (0..20_500).map(|n| (n / 1000) as u8).collect();
            let began = Instant::now();
            sender.send_to(&row, receiver.local_addr().unwrap());
            for (n, datagram) in (1..).zip(row.chunks(1000)) {
                assert_eq!(receiver.receive(), datagram);
                let least = n.min(20) * 1000;
                assert!(began.elapsed() >= Duration::from_nanos(1) * BYTE * least);
            }
        }
    }
    agent.stop();
}

/// Datagrams from one node to another, numbered; at most so many are under way that the socket
/// holds them.
struct Numbered {
    receiver: Udp,
    sender: Udp,
}

impl Numbered {
    const WINDOW: u32 = 32;

    fn between(from: &Node, to: &Node) -> Self {
        let [receiver, sender] = udp(to, from, ipv4(BLUE, to.x));
        Numbered { receiver, sender }
    }

    fn send(&self, numbers: Range<u32>) {
        let to = self.receiver.local_addr().unwrap();
        for number in numbers {
            self.sender.send_to(&number.to_ne_bytes(), to);
        }
    }

    fn receive(&self) -> u32 {
        u32::from_ne_bytes(self.receiver.receive().try_into().unwrap())
    }
}

#[test]
fn changes_under_traffic_lose_and_reorder_nothing() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    let done = AtomicBool::new(false);
    let numbered = Numbered::between(&nodes[0], &nodes[1]);
    // The kernel lets a datagram overtake those that wait for an address.
    numbered.send(0..1);
    assert_eq!(numbered.receive(), 0);
    let (memory, other) = (
        SharedClocks::create().unwrap(),
        SharedClocks::create().unwrap(),
    );
    let sent = thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut next = 0;
            while !done.load(Ordering::Relaxed) {
                let end = next + Numbered::WINDOW;
                numbered.send(next..end);
                let mut heard: Vec<u32> = (next..end).map(|_| numbered.receive()).collect();
                // Frames that pass without the driver overtake those under way there.
                if has_kernel_path() {
                    heard.sort();
                }
                assert!(heard.iter().copied().eq(next..end), "{heard:?}");
                next = end;
            }
            next
        });
        // Bulk traffic in the other direction.
        let stream = scope.spawn(|| stream(&nodes[1], &nodes[0], ipv4(BLUE, 0), 8 << 20));
        for n in 0..1000 {
            let clocks = if n % 3 == 0 { &memory } else { &other };
            match n % 5 {
                0 => agent.set_links(BLUE, clocks, "latency=200us", &[]),
                1 => agent.set_links(BLUE, clocks, "rate=1Gbit", &[("1>0", "latency=1us")]),
                2 => agent.set_links(BLUE, clocks, "latency=1ms jitter=1ms", &[]),
                3 => agent.set_links(BLUE, clocks, "latency=1us", &[("0>1", "rate=200Mbit")]),
                _ => agent.remove_links(BLUE),
            }
            assert_eq!(agent.sync(), []);
        }
        agent.remove_links(BLUE);
        stream.join().unwrap();
        done.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    assert!(sent > 0);
    let dropped = agent.drops(BLUE).0;
    for (node, reasons) in &dropped {
        for reason in [DropReason::Lost, DropReason::QueueFull, DropReason::Down] {
            assert!(!reasons.contains_key(&reason), "{node}: {reasons:?}");
        }
    }
    agent.stop();
}

#[test]
fn lost_frames_are_counted() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    const WINDOWS: u32 = 30;
    let clocks = SharedClocks::create().unwrap();
    let numbered = Numbered::between(&nodes[0], &nodes[1]);
    for (link, reason) in [
        ("loss=50%", DropReason::Lost),
        ("rate=1Mbit limit=500", DropReason::QueueFull),
    ] {
        agent.set_links(BLUE, &clocks, "", &[("0>1", link)]);
        assert_eq!(agent.sync(), []);
        let (mut sent, mut received) = (0, 0);
        for _ in 0..WINDOWS {
            numbered.send(sent..sent + Numbered::WINDOW);
            sent += Numbered::WINDOW;
            // A few other frames of the kernel may be lost, too.
            eventually(|| {
                received += numbered.receiver.discard();
                let dropped = agent.drops(BLUE).0;
                let dropped = dropped[&0].get(&reason).copied().unwrap_or_default();
                received + dropped as u32 >= sent
            });
        }
        assert!((1..sent).contains(&received), "{received} with {link}");
    }
    agent.stop();
}

/// The driver itself answers queries of addresses, and datagrams are sent after that.
#[test]
fn addresses_are_resolved_over_a_link_that_loses_everything() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    let clocks = SharedClocks::create().unwrap();
    agent.set_links(BLUE, &clocks, "loss=100%", &[]);
    assert_eq!(agent.sync(), []);
    let numbered = Numbered::between(&nodes[0], &nodes[1]);
    for end in (1..=30).map(|window| window * Numbered::WINDOW) {
        numbered.send(end - Numbered::WINDOW..end);
        eventually(|| agent.drops(BLUE).0[&0].get(&DropReason::Lost) >= Some(&end.into()));
    }
    agent.stop();
}

#[test]
fn frames_under_way_are_dropped_with_the_membership() {
    let Some((mut agent, nodes)) = blue::<4>() else {
        return;
    };
    let memory = SharedClocks::create().unwrap();
    let pairs = ["1>0", "2>0", "2>1"].map(|pair| (pair, "latency=100ms"));
    agent.set_links(BLUE, &memory, "", &pairs);
    assert_eq!(agent.sync(), []);
    let [receiver, leaver, other, witness] = [0, 1, 2, 3].map(|x: usize| {
        let address = SocketAddr::new(ipv4(BLUE, x as u8), 4000);
        nodes[x].inside(|| Udp::bind(address))
    });
    let [to_receiver, to_leaver, to_witness] =
        [&receiver, &leaver, &witness].map(|udp| udp.local_addr().unwrap());
    for _ in 0..50 {
        leaver.send_to(b"from the leaver", to_receiver);
        other.send_to(b"to the leaver", to_leaver);
    }
    other.send_to(b"stays", to_receiver);
    // The driver has read all frames before these.
    leaver.send_to(b"witness", to_witness);
    other.send_to(b"witness", to_witness);
    assert_eq!([witness.receive(), witness.receive()], [b"witness"; 2]);

    agent.remove(BLUE, 1);
    agent.raise_epoch(BLUE, 2);
    assert_eq!(agent.sync(), []);
    agent.add_changed(&nodes[1], BLUE, |port| port.epoch = 2);
    assert_eq!(agent.sync(), []);
    // A link keeps the order of its frames.
    leaver.send_to(b"back", to_receiver);
    other.send_to(b"welcome", to_leaver);
    assert_eq!(leaver.receive(), b"welcome");
    assert_eq!(receiver.receive(), b"stays");
    assert_eq!(receiver.receive(), b"back");
    agent.stop();
}

/// Both directions hold as many frames as they may; the agent makes new clocks for those who remain.
#[test]
fn full_delay_lines_deliver_nothing_after_a_return() {
    let Some((mut agent, nodes)) = blue::<3>() else {
        return;
    };
    let [receiver, leaver, other] = [0, 1, 2].map(|x: usize| {
        let address = SocketAddr::new(ipv4(BLUE, x as u8), 4000);
        nodes[x].inside(|| Udp::bind(address))
    });
    let [to_receiver, to_leaver] = [&receiver, &leaver].map(|udp| udp.local_addr().unwrap());
    let full = |agent: &mut Agent, node| {
        let dropped = &agent.drops(BLUE).0[&node];
        dropped.get(&DropReason::QueueFull).copied().unwrap_or(0)
    };
    for epoch in (2..).take(repeats(20)) {
        let clocks = SharedClocks::create().unwrap();
        agent.set_links(BLUE, &clocks, "rate=1Mbit", &[]);
        assert_eq!(agent.sync(), []);
        let before = full(&mut agent, 2);
        eventually(|| {
            for _ in 0..50 {
                leaver.send_to(&[0; 8000], to_receiver);
                other.send_to(&[0; 8000], to_leaver);
            }
            full(&mut agent, 1) > 0 && full(&mut agent, 2) > before
        });
        agent.remove(BLUE, 1);
        agent.raise_epoch(BLUE, epoch);
        assert_eq!(agent.sync(), []);
        // Frames that the leaver received before.
        leaver.discard();
        receiver.discard();
        let clocks = SharedClocks::create().unwrap();
        agent.set_links(BLUE, &clocks, "latency=1us", &[]);
        agent.add_changed(&nodes[1], BLUE, |port| port.epoch = epoch);
        assert_eq!(agent.sync(), []);
        leaver.send_to(b"back", to_receiver);
        other.send_to(b"welcome", to_leaver);
        assert!(receiver.receive() == b"back", "an old frame at {epoch}");
        assert!(leaver.receive() == b"welcome", "an old frame at {epoch}");
    }
    agent.stop();
}

#[test]
fn a_copy_of_a_group_frame_takes_the_link_of_its_receiver() {
    let Some((mut agent, nodes)) = blue::<4>() else {
        return;
    };
    let memory = SharedClocks::create().unwrap();
    let pairs = [("0>1", "latency=30ms"), ("0>2", "latency=1us")];
    agent.set_links(BLUE, &memory, "", &pairs);
    assert_eq!(agent.sync(), []);
    let receivers =
        [1, 2, 3].map(|x: usize| nodes[x].inside(|| Udp::bind(SocketAddr::from(([0; 4], 4000)))));
    let sender = nodes[0].inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
    sender.0.set_broadcast(true).unwrap();
    let began = Instant::now();
    sender.send_to(b"all", SocketAddr::from(([10, 64, 0, 255], 4000)));
    for receiver in receivers.iter().rev() {
        assert_eq!(receiver.receive(), b"all");
    }
    assert!(began.elapsed() >= Duration::from_millis(30));
    let clocks = SharedClocks::map(&memory).unwrap();
    let counts = [1, 2, 3].map(|to| transfers(&clocks, 0, to) > 0);
    assert_eq!(counts, [true, true, false]);
    agent.stop();
}

#[test]
fn the_driver_of_the_sender_delays_frames_to_other_hosts() {
    if !is_root() {
        return;
    }
    let mut agents = [Agent::start(), Agent::start()];
    let nodes = [0, 1, 2].map(Node::new);
    let clocks = [(); 2].map(|()| SharedClocks::create().unwrap());
    let ends = tcp_pair();
    let members = [&nodes[..1], &nodes[1..]];
    for (n, (agent, end)) in agents.iter_mut().zip(ends).enumerate() {
        assert_eq!(agent.retain(&[], &["other"]), [""; 0]);
        agent.join(BLUE, members[n]);
        for node in members[1 - n] {
            agent.add_remote("other", node.port(BLUE));
        }
        let pairs = [("0>1", "latency=20ms"), ("0>2", "latency=40ms")];
        agent.set_links(BLUE, &clocks[n], "", &pairs);
        assert_eq!(agent.sync(), []);
        assert_eq!(agent.connect("other", end), ["other"]);
    }
    let receivers =
        [1, 2].map(|x: usize| nodes[x].inside(|| Udp::bind(SocketAddr::from(([0; 4], 4000)))));
    let sender = nodes[0].inside(|| Udp::bind(SocketAddr::from(([0; 4], 0))));
    sender.0.set_broadcast(true).unwrap();
    let began = Instant::now();
    sender.send_to(b"one", SocketAddr::new(ipv4(BLUE, 1), 4000));
    assert_eq!(receivers[0].receive(), b"one");
    assert!(began.elapsed() >= Duration::from_millis(20));
    // One copy for both, which waits for the last.
    let began = Instant::now();
    sender.send_to(b"all", SocketAddr::from(([10, 64, 0, 255], 4000)));
    for receiver in &receivers {
        assert_eq!(receiver.receive(), b"all");
        assert!(began.elapsed() >= Duration::from_millis(40));
    }
    let clocks = clocks.map(|memory| SharedClocks::map(&memory).unwrap());
    let counted = clocks.map(|clocks| transfers(&clocks, 0, 1) > 0);
    assert_eq!(counted, [true, false]);
    agents.into_iter().for_each(Agent::stop);
}

#[test]
fn clocks_that_are_none_are_an_error() {
    let Some((mut agent, nodes)) = blue::<2>() else {
        return;
    };
    agent.set_links(BLUE, &File::open("/dev/null").unwrap(), "latency=5ms", &[]);
    let errors = agent.sync();
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].message.contains("clocks"),
        "{}",
        errors[0].message
    );
    assert!(reaches(&nodes[0], &nodes[1], BLUE));
    agent.stop();
}

/// Frames that have left a link.
fn transfers(clocks: &SharedClocks, from: u32, to: u32) -> u64 {
    transfers_by(clocks, Path::Ethernet, from, to)
}

fn transfers_by(clocks: &SharedClocks, path: Path, from: u32, to: u32) -> u64 {
    let clock = ClockId::pair(NodeId(from), NodeId(to));
    record_of(clocks, path, [clock]).transfers
}
