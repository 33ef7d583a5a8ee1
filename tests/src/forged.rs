//! Two domains beside each other on one host, without interfaces: the receivers of packets from a member
//! of one of them, and from another host.

use toroid_ethernet::forward::{Action, Bridges, NextHop};
use toroid_ethernet::headers::frame::HEADER_LEN;
use toroid_ethernet::offload::Offload;
use toroid_ethernet::offload::segmentation::Segmenter;

use toroid_ethernet::tunnel::{
    HostId, Message, ProtocolViolation, ReceiveBuffer, Signal, TunnelHeader,
};
use toroid_fabric::{Epoch, Partition, Place};
use toroid_model::addressing;
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::Port;

/// The sender's domain, and the other one.
const DOMAINS: [u32; 2] = [7, 8];

/// The sender's place. The other members of its domain are at 0 and 2; the sender and the latter are
/// limited.
const SENDER: u8 = 1;

/// A group that members may join.
const GROUP: [u8; 4] = [239, 1, 2, 3];

const MTU: u32 = 1500;

/// Bytes of a frame with an Ethernet header and a tag, at most.
const LONGEST: usize = HEADER_LEN + 4 + MTU as usize;

/// Frames of one packet, at most, with any MTU.
const MOST: usize = 745;

/// Both domains. A member is identified by the number of its domain and its place.
#[derive(Debug)]
pub struct Neighbours {
    bridges: Bridges<(u32, u8)>,
    segmenter: Segmenter,
}

impl Default for Neighbours {
    fn default() -> Self {
        let mut bridges = Bridges::default();
        for domain in DOMAINS {
            for x in [0, SENDER, 2] {
                let joined = bridges.attach(port(domain, x), (domain, x));
                joined.expect("a member");
            }
        }
        Neighbours {
            bridges,
            segmenter: Segmenter::default(),
        }
    }
}

impl Neighbours {
    /// Sends a packet, with the header before its frame, to receivers without offload. Returns whether any
    /// receiver was reached.
    ///
    /// # Panics
    /// When it reaches a forbidden receiver, or becomes too many or too long frames.
    pub fn send(&mut self, packet: &[u8]) -> bool {
        let sender = Place {
            x: SENDER,
            y: 0,
            z: 0,
        };
        let ingress = self.bridges.ingress(Partition(DOMAINS[0]), sender);
        let reached: Vec<(u32, u8)> = match ingress.expect("a member").decide(packet) {
            Action::Forward(next_hop) => vec![egress(next_hop)],
            Action::Flood(others) => others.flatten().map(egress).collect(),
            Action::Reply(frame) => {
                let asker = packet[Offload::LEN + 6..].first_chunk::<6>();
                assert_eq!(frame.first_chunk(), asker);
                return true;
            }
            Action::Drop(_) => return false,
        };
        // Some groups have no listener but the sender.
        if reached.is_empty() {
            return false;
        }
        assert_eq!(
            reached,
            [(DOMAINS[0], 0)],
            "it may reach the full member only"
        );
        let (offload, frame) = Offload::split(packet).expect("it was admitted");
        let mut frames = self.segmenter.frames(&offload, frame);
        let mut count = 0;
        while let Some(bridge) = frames.next() {
            count += 1;
            let beginning = bridge.0[0].first_chunk::<12>();
            assert_eq!(beginning, frame.first_chunk(), "whom it is from and for");
            assert!(bridge.len() <= LONGEST, "{} bytes", bridge.len());
        }
        assert!((1..=MOST).contains(&count), "{count} frames");
        true
    }

    /// Lets the member that the sender may reach join a group, by a report as of its kernel.
    ///
    /// # Panics
    /// When the report reaches a member: none is a router.
    pub fn listen(&mut self) {
        let place = Place { x: 0, y: 0, z: 0 };
        let ingress = self.bridges.ingress(Partition(DOMAINS[0]), place);
        let report = for_group(0, 2, &[&[0x16, 0, 0, 0], &GROUP[..]].concat());
        let told = ingress.expect("a member").decide(&report);
        assert!(matches!(told, Action::Drop(DropReason::LinkReport)));
    }

    /// Whether a packet to that group reaches the member that has joined it.
    ///
    /// # Panics
    /// As [`Neighbours::send`].
    pub fn is_heard(&mut self) -> bool {
        let udp = 17;
        self.send(&for_group(SENDER, udp, &[0; 64]))
    }

    /// Sets the source of a packet to the sender's, so that this is not always the reason of a denial.
    pub fn sign(packet: &mut [u8]) {
        let place = Place {
            x: SENDER,
            y: 0,
            z: 0,
        };
        let source = addressing::mac(DOMAINS[0] as u16, place);
        if let Some(bytes) = packet.get_mut(Offload::LEN + 6..Offload::LEN + 12) {
            bytes.copy_from_slice(&source);
        }
    }
}

/// Another host, which carries member 2 of each domain; a third one carries members 3.
#[derive(Debug)]
pub struct FarHost {
    bridges: Bridges<(u32, u8)>,
}

const FAR: HostId = HostId(0);

impl Default for FarHost {
    fn default() -> Self {
        let mut bridges = Bridges::default();
        for domain in DOMAINS {
            for x in [0, SENDER] {
                let joined = bridges.attach(port(domain, x), (domain, x));
                joined.expect("a member");
            }
            for (x, host) in [(2, FAR), (3, HostId(1))] {
                let joined = bridges.attach_remote(port(domain, x), host);
                joined.expect("a member");
            }
        }
        FarHost { bridges }
    }
}

impl FarHost {
    /// Sends all messages of a connection. Returns whether all were understood and each packet reached a
    /// receiver; notices about RDMA streams have no receiver.
    ///
    /// # Panics
    /// When any reaches a forbidden receiver.
    pub fn send(&mut self, mut bytes: &[u8]) -> bool {
        let (mut received, mut count, mut rest) = (ReceiveBuffer::default(), 0, bytes.len());
        while !bytes.is_empty() {
            received.fill(&mut bytes).expect("there are some");
            loop {
                match received.next_message() {
                    Ok(Some(Message::Signal(_))) => {
                        count += 1;
                        rest -= TunnelHeader::LEN + Signal::LEN;
                    }
                    Ok(Some(Message::Packet(tag, packet))) => {
                        if !self.let_in(tag, packet) {
                            return false;
                        }
                        count += 1;
                        rest -= TunnelHeader::LEN + packet.len();
                    }
                    Ok(None) => break,
                    Err(ProtocolViolation) => return false,
                }
            }
        }
        count > 0 && rest == 0
    }

    fn let_in(&self, tag: TunnelHeader, packet: &[u8]) -> bool {
        let Ok(Some(ingress)) = self.bridges.remote_ingress(FAR, &tag) else {
            return false;
        };
        assert_eq!(
            (tag.place.x, tag.epoch),
            (2, Epoch(1)),
            "it speaks for another"
        );
        let reached: Vec<(u32, u8)> = match ingress.decide(packet) {
            Action::Forward(next_hop) => vec![egress(next_hop)],
            Action::Flood(others) => others.flatten().map(egress).collect(),
            Action::Reply(_) => panic!("what is asked was answered there"),
            Action::Drop(_) => return false,
        };
        let source = addressing::mac(tag.partition.0 as u16, tag.place);
        assert_eq!(packet[Offload::LEN + 6..][..6], source);
        // Member 1 and the sender are limited.
        assert!(
            reached.iter().all(|to| *to == (tag.partition.0, 0)),
            "{reached:?}"
        );
        !reached.is_empty()
    }
}

/// All members are on one host.
fn egress(next_hop: NextHop<'_, (u32, u8)>) -> (u32, u8) {
    *next_hop.egress().expect("a member of this host")
}

/// A packet from a member for its group.
fn for_group(x: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let from = port(DOMAINS[0], x);
    let [_, b, c, d] = GROUP;
    let mut packet = [&Offload::NONE[..], &[0x01, 0, 0x5e, b, c, d], &from.mac].concat();
    let len = 20 + payload.len() as u8;
    packet.extend([8, 0, 0x45, 0, 0, len, 0, 0, 0, 0, 1, protocol, 0, 0]);
    packet.extend(from.ipv4.octets());
    packet.extend(GROUP);
    packet.extend(payload);
    packet
}

fn port(domain: u32, x: u8) -> Port {
    let place = Place { x, y: 0, z: 0 };
    let number = domain as u16;
    Port {
        node: x.into(),
        place,
        domain_id: domain,
        epoch: 1,
        ifname: "blue".into(),
        mac: addressing::mac(number, place),
        ipv4: [10, 64, number as u8 - DOMAINS[0] as u8, x + 1].into(),
        prefix: 24,
        nodes: 8,
        ipv6: addressing::ipv6(number, place),
        ipv6_prefix: addressing::IPV6_PREFIX,
        mtu: MTU,
        limited: x > 0,
        offload: false,
        gateway: None,
        forward: false,
        stack: false,
        rate: None,
        kernel: false,
    }
}
