use std::collections::HashMap;

use toroid_fabric::{Partition, Place};
use toroid_model::link::Rate;

use super::*;
use crate::forward::tests::unique;
use crate::forward::{Action, Bridges, NextHop};
use crate::offload::Offload;

/// Domain and member.
type Name = (u16, u8);

const DOMAINS: [u16; 2] = [7, 8];
const MEMBERS: [u8; 4] = [0, 1, 2, 3];

/// Member 3 of each domain is limited.
fn port((domain, x): Name) -> Port {
    Port {
        limited: x == 3,
        kernel: true,
        ..unique(domain, x)
    }
}

fn device((domain, x): Name) -> u32 {
    u32::from(domain) * 100 + u32::from(x)
}

fn names() -> impl Iterator<Item = Name> {
    DOMAINS
        .into_iter()
        .flat_map(|domain| MEMBERS.map(|x| (domain, x)))
}

/// What the kernel has: sets, maps and rules.
struct Kernel {
    sets: HashMap<String, HashMap<Vec<u8>, Option<[u8; 4]>>>,
    rules: [Vec<Expression>; 6],
}

impl Kernel {
    fn new() -> Self {
        let mut sets: HashMap<String, HashMap<_, _>> = HashMap::new();
        let messages = MESSAGES.1.iter().map(|value| (vec![*value], None));
        sets.insert(MESSAGES.0.into(), messages.collect());
        for name in names() {
            let Some(member) = DirectMember::of(&port(name), device(name)) else {
                continue;
            };
            for (map, Element { key, value }) in member.elements() {
                sets.entry(map.into()).or_default().insert(key, value);
            }
        }
        Kernel {
            sets,
            rules: direct(),
        }
    }

    /// Device to which the rules send a frame that comes in by another.
    fn forward(&self, device: u32, frame: &[u8]) -> Option<u32> {
        let rules = self.rules.iter();
        rules
            .filter_map(|rule| self.apply(rule, device, frame))
            .next()
    }

    fn apply(&self, rule: &[Expression], input: u32, frame: &[u8]) -> Option<u32> {
        let mut registers = [0; 64];
        for step in rule {
            match step {
                Expression::Input { to } => registers.put(*to, &input.to_ne_bytes()),
                Expression::Load {
                    base,
                    offset,
                    len,
                    to,
                } => {
                    let start = match base {
                        Base::Link => 0,
                        Base::Network => 14,
                    };
                    let bytes = frame.get(start + usize::from(*offset)..)?;
                    let bytes = bytes.get(..(*len).into())?;
                    let padded = [bytes, &[0; 3]].concat();
                    registers.put(*to, &padded[..bytes.len().next_multiple_of(4)]);
                }
                Expression::Equals { register, value } => {
                    let is_equal = registers.at(*register).starts_with(value);
                    is_equal.then_some(())?;
                }
                Expression::Lookup { set, key, to } => {
                    let set = self.sets.get(set)?;
                    let len = set.keys().next()?.len();
                    let value = set.get(&registers.at(*key)[..len])?;
                    if let Some(to) = to {
                        registers.put(*to, &(*value)?);
                    }
                }
                Expression::Forward { device } => {
                    let device = registers.at(*device).first_chunk()?;
                    return Some(u32::from_ne_bytes(*device));
                }
                Expression::Number { .. } | Expression::Jump { .. } => unreachable!(),
            }
        }
        None
    }
}

trait Registers {
    fn put(&mut self, word: u8, bytes: &[u8]);
    fn at(&self, word: u8) -> &[u8];
}

impl Registers for [u8; 64] {
    fn put(&mut self, word: u8, bytes: &[u8]) {
        self[usize::from(word) * 4..][..bytes.len()].copy_from_slice(bytes);
    }

    fn at(&self, word: u8) -> &[u8] {
        &self[usize::from(word) * 4..]
    }
}

fn bridges() -> Bridges<Name> {
    let mut bridges = Bridges::default();
    for name in names() {
        bridges.attach(port(name), name).unwrap();
    }
    bridges
}

fn decide(bridges: &Bridges<Name>, (domain, x): Name, frame: &[u8]) -> Result<Name, String> {
    let place = Place { x, y: 0, z: 0 };
    let ingress = bridges.ingress(Partition(domain.into()), place).unwrap();
    let packet = [&Offload::NONE, frame].concat();
    match ingress.decide(&packet) {
        Action::Forward(NextHop::Member(_, name)) => Ok(*name),
        other => Err(format!("{other:?}")),
    }
}

/// A frame with IPv4 or IPv6 from one member to another, with a protocol and the first byte behind
/// the header.
fn frame(from: Name, to: Name, is_ipv6: bool, protocol: u8, first: u8) -> Vec<u8> {
    let [from, to] = [from, to].map(port);
    let ethernet = [&to.mac[..], &from.mac].concat();
    let payload = [&[first], &[0; 39][..]].concat();
    let ip = if is_ipv6 {
        let header = [0x60, 0, 0, 0, 0, 40, protocol, 64];
        let addresses = [from.ipv6.octets(), to.ipv6.octets()].concat();
        [&[0x86, 0xdd], &header[..], &addresses].concat()
    } else {
        let header = [0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0];
        let addresses = [from.ipv4.octets(), to.ipv4.octets()].concat();
        [&[8, 0], &header[..], &addresses].concat()
    };
    [ethernet, ip, payload].concat()
}

#[test]
fn frames_between_full_members_of_a_domain_pass_directly() {
    let (kernel, bridges) = (Kernel::new(), bridges());
    let kinds = [
        (false, 1, 8),
        (false, 6, 0),
        (false, 17, 0),
        (true, 6, 0),
        (true, 17, 0),
        (true, 58, 128),
        (true, 58, 3),
    ];
    let mut direct = 0;
    for from in names() {
        for to in names().filter(|to| *to != from) {
            for (is_ipv6, protocol, first) in kinds {
                let frame = frame(from, to, is_ipv6, protocol, first);
                let passes = kernel.forward(device(from), &frame);
                let is_free = from.0 == to.0 && from.1 != 3 && to.1 != 3;
                assert_eq!(passes, is_free.then_some(device(to)), "{from:?} to {to:?}");
                if is_free {
                    assert_eq!(decide(&bridges, from, &frame), Ok(to));
                    direct += 1;
                }
                // With a tag of a VLAN.
                let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
                assert_eq!(kernel.forward(device(from), &tagged), None);
            }
            // Neighbour advertisements and router advertisements.
            for first in [133, 134, 135, 136, 137, 143] {
                let frame = frame(from, to, true, 58, first);
                assert_eq!(kernel.forward(device(from), &frame), None);
            }
        }
    }
    assert_eq!(direct, 2 * 3 * 2 * kinds.len());
}

#[test]
fn members_whose_frames_need_the_driver_do_not_pass() {
    let plain = Port {
        kernel: true,
        ..unique(7, 0)
    };
    assert!(DirectMember::of(&plain, 9).is_some());
    let others = [
        unique(7, 0),
        Port {
            limited: true,
            ..plain.clone()
        },
        Port {
            rate: Some("1Gbit".parse::<Rate>().unwrap()),
            ..plain
        },
    ];
    for port in others {
        assert_eq!(DirectMember::of(&port, 9), None);
    }
}

/// Frames whose addresses, protocols and other bytes are drawn from those that matter.
#[test]
fn what_passes_directly_is_what_the_driver_would_forward() {
    let (kernel, bridges) = (Kernel::new(), bridges());
    let mut random = fastrand::Rng::with_seed(1);
    let all: Vec<Name> = names().collect();
    let mut direct = 0;
    for _ in 0..200_000 {
        let pick = |random: &mut fastrand::Rng| all[random.usize(..all.len())];
        let [from, to] = [pick(&mut random), pick(&mut random)];
        let is_ipv6 = random.bool();
        let protocol = [1, 6, 17, 58, 0, 44, random.u8(..)][random.usize(..7)];
        let first = [8, 128, 134, 136, random.u8(..)][random.usize(..5)];
        let mut frame = frame(from, to, is_ipv6, protocol, first);
        // Parts of a frame between two others.
        let other = super::tests::frame(pick(&mut random), pick(&mut random), is_ipv6, 6, 0);
        for part in [0..6, 6..12, 12..14, 22..38, 26..30, 30..34, 38..54] {
            if random.u8(..4) == 0 {
                frame[part.clone()].copy_from_slice(&other[part]);
            }
        }
        if random.u8(..4) == 0 {
            let at = random.usize(..frame.len());
            frame[at] = random.u8(..);
        }
        if random.u8(..8) == 0 {
            frame.truncate(random.usize(14..frame.len()));
        }
        let sender = if random.u8(..4) == 0 {
            pick(&mut random)
        } else {
            from
        };
        let Some(to) = kernel.forward(device(sender), &frame) else {
            continue;
        };
        direct += 1;
        let to = all.iter().find(|name| device(**name) == to).unwrap();
        // The driver drops a frame to its sender. In the kernel it comes back.
        if *to != sender {
            assert_eq!(decide(&bridges, sender, &frame), Ok(*to), "{frame:02x?}");
        }
    }
    assert!(direct > 2_000, "{direct}");
}
