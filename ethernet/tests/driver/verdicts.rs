//! The same frames through the rules of [`Bridges`], through a driver and through the kernel: each
//! has the same receivers, or the same reason of its drop.
//!
//! The kernels of the nodes hear nothing, so all frames are those of the test.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::slice;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
    socket,
};
use toroid_ethernet::forward::{Action, Bridges, NextHop};
use toroid_netlink::nftables::{Batch, Expression, Nftables};

use super::*;

/// Domain and node.
type Name = (u32, u8);

/// A frame at a member.
type Arrival = (Name, Vec<u8>);

const DOMAINS: [u32; 2] = [BLUE, RED];
const NODES: u8 = 5;

/// The first of the limited members, in both domains.
const LIMITED: u8 = 3;

/// Frames of one sender at once. The last of them goes to all, after all others.
const BURST: usize = 32;

/// `PACKET_OUTGOING` of packet(7).
const OUTGOING: u8 = 4;

/// Time in which frames would arrive that should not.
const QUIET: Duration = Duration::from_millis(200);

fn names() -> impl Iterator<Item = Name> {
    DOMAINS
        .into_iter()
        .flat_map(|domain| (0..NODES).map(move |x| (domain, x)))
}

/// Nodes under one agent, and sockets that send and receive whole frames of their interfaces.
struct Bed {
    path: &'static str,
    agent: Agent,
    nodes: Vec<Node>,
    sockets: BTreeMap<Name, OwnedFd>,
}

impl Bed {
    /// Members whose frames may pass without the driver, or may not.
    fn new(path: &'static str) -> Self {
        let may_pass = path == "kernel";
        let mut agent = Agent::start();
        agent.offer_kernel_path();
        let nodes: Vec<Node> = (0..NODES).map(Node::new).collect();
        for node in &nodes {
            node.inside(without_ipv6);
            for domain in DOMAINS {
                agent.add(node, port(node, domain, may_pass));
            }
        }
        assert_eq!(agent.sync(), []);
        let open = |(domain, x): Name| {
            let node = &nodes[usize::from(x)];
            let name = format!("d{domain}");
            deafen(node, &name);
            ((domain, x), node.inside(|| packet_socket(&name)))
        };
        let sockets = names().map(open).collect();
        Bed {
            path,
            agent,
            nodes,
            sockets,
        }
    }

    /// Sends frames, and waits for those that are expected, in any order.
    fn carry(&self, from: Name, frames: &[Vec<u8>], expected: &[Arrival]) {
        for frame in frames {
            let sent = send(self.sockets[&from].as_raw_fd(), frame, MsgFlags::empty());
            assert_eq!(sent, Ok(frame.len()), "{frame:02x?}");
        }
        let mut missing: HashMap<&Arrival, i32> = HashMap::new();
        for arrival in expected {
            *missing.entry(arrival).or_default() += 1;
        }
        let mut rest = expected.len();
        let deadline = Instant::now() + WATCHDOG;
        while rest > 0 {
            assert!(
                Instant::now() < deadline,
                "by the {}, from {from:?} never came {:02x?}",
                self.path,
                missing
                    .iter()
                    .filter(|(_, count)| **count > 0)
                    .collect::<Vec<_>>()
            );
            for arrival in self.arrivals() {
                let count = missing.get_mut(&arrival);
                let count = count.filter(|count| **count > 0);
                *count.unwrap_or_else(|| {
                    panic!("by the {}, from {from:?} came {arrival:02x?}", self.path)
                }) -= 1;
                rest -= 1;
            }
        }
    }

    /// Frames that have arrived at any member.
    fn arrivals(&self) -> Vec<Arrival> {
        let mut all = Vec::new();
        for (name, socket) in &self.sockets {
            let mut buffer = [0; 2048];
            loop {
                match recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer) {
                    Ok((len, Some(from))) if from.pkttype() != OUTGOING => {
                        all.push((*name, buffer[..len].to_vec()));
                    }
                    Ok(_) => {}
                    Err(Errno::EAGAIN) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        all
    }

    /// Number of frames that the kernel has sent to the driver, by the devices behind interfaces.
    fn frames_to_driver(&self) -> usize {
        let list = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let list = namespace::inside(&self.agent.kernel, list).unwrap();
        let devices = list.lines().filter_map(|line| line.trim().split_once(':'));
        let behind = devices.filter(|(name, _)| name.starts_with('t'));
        let sent =
            |(_, counts): (&str, &str)| counts.split_whitespace().nth(9)?.parse::<usize>().ok();
        behind.filter_map(sent).sum()
    }

    /// Checks that nothing else arrives; returns the dropped frames by sender and reason.
    fn end(mut self) -> BTreeMap<Name, BTreeMap<DropReason, u64>> {
        thread::sleep(QUIET);
        assert_eq!(self.arrivals(), []);
        let mut all = BTreeMap::new();
        for domain in DOMAINS {
            for (node, dropped) in self.agent.drops(domain).0 {
                all.insert((domain, node as u8), dropped);
            }
        }
        drop(self.sockets);
        drop(self.nodes);
        self.agent.stop();
        all
    }
}

fn port(node: &Node, domain: u32, may_pass: bool) -> Port {
    Port {
        mtu: 1500,
        kernel: may_pass,
        limited: node.x >= LIMITED,
        ..node.port(domain)
    }
}

/// Keeps the kernel of the calling thread's namespace from sending anything of IPv6.
fn without_ipv6() {
    for of in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6");
        std::fs::write(path, "1").unwrap();
    }
}

/// Keeps the kernel of a node from receiving frames of an interface, and so from answering: all leave
/// by a device that is down.
fn deafen(node: &Node, interface: &str) {
    let mut netlink = Netlink::open_in(node.namespace.as_fd()).unwrap();
    let nowhere = netlink.index("nowhere").or_else(|_| {
        netlink.create_veth("nowhere", "beyond", node.namespace.as_fd())?;
        netlink.index("nowhere")
    });
    let mut batch = Batch::new("deaf");
    batch.chain(interface, Some(interface));
    let number = Expression::Number {
        value: nowhere.unwrap(),
        to: 0,
    };
    batch.rule(interface, &[number, Expression::Forward { device: 0 }]);
    let mut tables = Nftables::open_in(node.namespace.as_fd()).unwrap();
    tables.commit(&batch).unwrap();
}

/// A socket for all frames of an interface.
fn packet_socket(name: &str) -> OwnedFd {
    let (flags, all) = (SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll);
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, all).unwrap();
    let mut interfaces = getifaddrs().unwrap();
    let link = interfaces.find_map(|one| {
        let address = one.address.filter(|_| one.interface_name == name)?;
        address.as_link_addr().copied()
    });
    bind(socket.as_raw_fd(), &link.unwrap()).unwrap();
    socket
}

/// The rules' decisions about frames: arrivals, and drops by sender and reason.
struct Reference {
    bridges: Bridges<Name>,
    drops: BTreeMap<Name, BTreeMap<DropReason, u64>>,
}

impl Reference {
    fn new(nodes: &[Node]) -> Self {
        let mut bridges = Bridges::default();
        for (domain, x) in names() {
            let port = port(&nodes[usize::from(x)], domain, true);
            bridges.attach(port, (domain, x)).unwrap();
        }
        let drops = names().map(|name| (name, BTreeMap::new())).collect();
        Reference { bridges, drops }
    }

    fn decide(&mut self, from: Name, frame: &[u8]) -> Vec<Arrival> {
        let ingress = self.bridges.ingress(Partition(from.0), place(from.1));
        let packet = [&Offload::NONE, frame].concat();
        let dropped = self.drops.get_mut(&from).unwrap();
        let mut count = |reason| *dropped.entry(reason).or_default() += 1;
        let receiver = |next_hop: NextHop<'_, Name>| (*next_hop.egress().unwrap(), untagged(frame));
        match ingress.unwrap().decide(&packet) {
            Action::Forward(next_hop) => vec![receiver(next_hop)],
            Action::Reply(reply) => vec![(from, reply)],
            Action::Drop(reason) => {
                count(reason);
                Vec::new()
            }
            Action::Flood(flood) => {
                let some = flood.map(|next_hop| next_hop.map_err(&mut count));
                some.flatten().map(receiver).collect()
            }
        }
    }
}

/// A frame as a kernel delivers it, which takes the first tag of a VLAN out.
fn untagged(frame: &[u8]) -> Vec<u8> {
    if is_tagged(frame) {
        [&frame[..12], &frame[16..]].concat()
    } else {
        frame.to_vec()
    }
}

fn is_tagged(frame: &[u8]) -> bool {
    matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8])
}

/// Draws frames from addresses and other bytes that matter to the rules.
struct Generator {
    random: fastrand::Rng,
    ports: BTreeMap<Name, Port>,
    count: u64,
}

impl Generator {
    fn new(nodes: &[Node]) -> Self {
        let port = |(domain, x)| ((domain, x), port(&nodes[usize::from(x)], domain, true));
        Generator {
            random: fastrand::Rng::with_seed(1),
            ports: names().map(port).collect(),
            count: 0,
        }
    }

    fn member(&mut self) -> Name {
        let at = self.random.usize(..self.ports.len());
        *self.ports.keys().nth(at).unwrap()
    }

    /// A frame from a member, most often a regular one.
    fn frame(&mut self, from: Name) -> Vec<u8> {
        let random = &mut self.random;
        let to = (from.0, random.u8(..NODES));
        let other = self.member();
        let [sender, receiver, other] = [from, to, other].map(|name| self.ports[&name].clone());
        let random = &mut self.random;
        let [mut from_mac, mut to_mac] = [sender.mac, receiver.mac];
        match random.u8(..32) {
            0 => to_mac = other.mac,
            1 => to_mac = [0xff; 6],
            2 => to_mac = [1, 0, 0x5e, 0, 0, random.u8(..3)],
            3 => to_mac = [0x33, 0x33, 0, 0, 0, random.u8(..3)],
            4 => to_mac = std::array::from_fn(|_| random.u8(..)),
            5 => to_mac = addressing::mac(from.0 as u16, place(random.u8(..8))),
            6 => from_mac = other.mac,
            _ => {}
        }
        let kind = random.u8(..16);
        let packet = match kind {
            0 => arp(random, &sender, &receiver, &other),
            1 => vec![random.u8(..); random.usize(..64)],
            2..=8 => self.ipv4(&sender, &receiver, &other),
            _ => self.ipv6(&sender, &receiver, &other),
        };
        let ethertype = match kind {
            0 => [8, 6],
            1 => [self.random.u8(8..), self.random.u8(..)],
            2..=8 => [8, 0],
            _ => [0x86, 0xdd],
        };
        let random = &mut self.random;
        let tag: &[u8] = match random.u8(..16) {
            0 => &[0x81, 0, 0, 7],
            1 => &[0x88, 0xa8, 0, 7],
            _ => &[],
        };
        let mut frame = [&to_mac[..], &from_mac, tag, &ethertype, &packet].concat();
        if random.u8(..8) == 0 {
            let at = random.usize(..frame.len());
            frame[at] = random.u8(..);
        }
        if random.u8(..16) == 0 {
            frame.truncate(random.usize(14..=frame.len()));
        }
        if is_tagged(&frame) {
            // A kernel drops a shorter one.
            frame.resize(frame.len().max(20), 0);
        }
        frame
    }

    /// A number that no other frame has, in the place of a payload.
    fn payload(&mut self) -> Vec<u8> {
        self.count += 1;
        let mut payload = vec![self.random.u8(..)];
        payload.extend(vec![0; self.random.usize(7..64)]);
        payload.extend(self.count.to_be_bytes());
        payload
    }

    fn ipv4(&mut self, sender: &Port, receiver: &Port, other: &Port) -> Vec<u8> {
        let mut payload = self.payload();
        let random = &mut self.random;
        let protocol = [1, 6, 17, 17, 2, 47, random.u8(..)][random.usize(..7)];
        let [mut from, mut to] = [sender.ipv4, receiver.ipv4];
        match random.u8(..24) {
            0 => from = other.ipv4,
            1 => to = other.ipv4,
            2 => from = [0; 4].into(),
            3 => to = [224, 0, 0, random.u8(..3)].into(),
            4 => to = [255; 4].into(),
            5 => from = [192, 0, 2, random.u8(..)].into(),
            6 => from = [10, 64, random.u8(..3), random.u8(..)].into(),
            _ => {}
        }
        if protocol == 2 {
            // IGMP: queries and reports of both versions.
            payload[0] = [0x11, 0x16, 0x17, 0x22][random.usize(..4)];
        }
        let is_fragment = random.u8(..16) == 0;
        let mut packet = ipv4_packet(from, to, protocol, &payload);
        if is_fragment {
            packet[6..8].copy_from_slice(&[0x20, 1]);
        }
        packet
    }

    fn ipv6(&mut self, sender: &Port, receiver: &Port, other: &Port) -> Vec<u8> {
        let mut payload = self.payload();
        let random = &mut self.random;
        let next = [58, 58, 6, 17, 0, 44, random.u8(..)][random.usize(..7)];
        let [mut from, mut to] = [sender.ipv6, receiver.ipv6];
        match random.u8(..24) {
            0 => from = other.ipv6,
            1 => to = other.ipv6,
            2 => from = [0; 16].into(),
            3 => to = [0xff02, 0, 0, 0, 0, 0, 0, random.u16(..3)].into(),
            4 => from = [0xfe80, 0, 0, 0, 0, 0, 0, random.u16(1..)].into(),
            5 => from = [0x2001, 0xdb8, 0, 0, 0, 0, 0, random.u16(..)].into(),
            6 => to = [0xff02, 0, 0, 0, 0, 1, 0xff00, random.u16(..)].into(),
            _ => {}
        }
        if next == 58 {
            payload[0] =
                [1, 3, 128, 129, 130, 131, 133, 134, 135, 136, 137, 143][random.usize(..12)];
            if random.bool() {
                // The target of a query or an advertisement, with the address of the link.
                let target = [sender, receiver, other][random.usize(..3)].ipv6.octets();
                let number = payload.split_off(payload.len() - 8);
                let option = [&[1 + random.u8(..2), 1][..], &sender.mac].concat();
                payload = [&[payload[0]; 1][..], &[0; 7], &target, &option, &number].concat();
            }
        }
        let mut packet = ipv6_packet(from, to, next, &payload);
        packet[7] = [64, 255][random.usize(..2)];
        packet
    }
}

fn ipv4_packet(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len()) as u8;
    let header = [0x45, 0, 0, len, 0, 0, 0, 0, 64, protocol, 0, 0];
    [&header[..], &from.octets(), &to.octets(), payload].concat()
}

fn ipv6_packet(from: Ipv6Addr, to: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let header = [0x60, 0, 0, 0, 0, payload.len() as u8, next, 64];
    [&header[..], &from.octets(), &to.octets(), payload].concat()
}

fn arp(random: &mut fastrand::Rng, sender: &Port, receiver: &Port, other: &Port) -> Vec<u8> {
    let ports = [sender, receiver, other];
    let mut pick = || ports[random.usize(..3)];
    let (from, to) = (pick(), pick());
    let header = [0, 1, 8, 0, 6, 4, 0, 1 + random.u8(..2)];
    let senders = [&from.mac[..], &from.ipv4.octets()].concat();
    [&header[..], &senders, &[0; 6], &to.ipv4.octets()].concat()
}

/// A regular frame of each kind between two full members, with the first byte behind the IP header.
fn regular_frames(from: &Port, to: &Port) -> [Vec<u8>; 6] {
    let ethernet = [&to.mac[..], &from.mac].concat();
    let payload = |first| [first, 0, 0, 0, 0, 0, 0, 0];
    let ipv4 = |protocol, first| {
        let packet = ipv4_packet(from.ipv4, to.ipv4, protocol, &payload(first));
        [&ethernet[..], &[8, 0], &packet].concat()
    };
    let ipv6 = |next, first| {
        let packet = ipv6_packet(from.ipv6, to.ipv6, next, &payload(first));
        [&ethernet[..], &[0x86, 0xdd], &packet].concat()
    };
    [
        ipv4(1, 8),
        ipv4(6, 0),
        ipv4(17, 0),
        ipv6(6, 0),
        ipv6(17, 0),
        ipv6(58, 128),
    ]
}

#[test]
fn regular_frames_do_not_reach_the_driver() {
    if !is_root() {
        return;
    }
    let bed = Bed::new("kernel");
    let [from, to] = [0, 1].map(|x| port(&bed.nodes[x], BLUE, true));
    let before = bed.frames_to_driver();
    for frame in regular_frames(&from, &to) {
        bed.carry(
            (BLUE, 0),
            slice::from_ref(&frame),
            &[((BLUE, 1), frame.clone())],
        );
    }
    assert_eq!(bed.frames_to_driver(), before);
    bed.end();
}

/// The number of frames is 1,000,000 at night.
#[test]
fn rules_driver_and_kernel_agree_about_each_frame() {
    if !is_root() {
        return;
    }
    let beds = ["driver", "kernel"].map(Bed::new);
    let mut reference = Reference::new(&beds[0].nodes);
    let mut generator = Generator::new(&beds[0].nodes);
    let rounds = repeats(100) * 1000 / BURST;
    for _ in 0..rounds {
        let from = generator.member();
        let own = generator.ports[&from].mac;
        let mut frames = Vec::new();
        while frames.len() < BURST - 1 {
            let frame = generator.frame(from);
            // The kernel returns such a frame to its sender (docs/ethernet.md).
            if frame[..6] != own {
                frames.push(frame);
            }
        }
        let number = generator.payload();
        frames.push([&[0xff; 6], &own[..], &[0x88, 0xb5], &number].concat());
        let expected: Vec<Arrival> = frames
            .iter()
            .flat_map(|frame| reference.decide(from, frame))
            .collect();
        for bed in &beds {
            bed.carry(from, &frames, &expected);
        }
    }
    let sent = rounds * BURST;
    let direct = sent.saturating_sub(beds[1].frames_to_driver());
    assert!(
        direct * 20 > sent,
        "{direct} of {sent} have passed without the driver"
    );
    for bed in beds {
        let path = bed.path;
        assert_eq!(bed.end(), reference.drops, "by the {path}");
    }
}
