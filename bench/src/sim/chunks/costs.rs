//! Stages of chunks: what each part of a fabric costs in the terms of the link model.

use toroid_fabric::model::{ClockId, Costs, Stage};
use toroid_fabric::routes::{LinkId, LinkKind, Topology};

use crate::sim::Profile;

/// Costs of all stages. Links between routers have the first clocks, then the cards' senders, then
/// their receivers.
#[derive(Debug)]
pub struct Stages {
    links: [Costs; KINDS.len()],
    /// Of a card that sends packets with and without payload.
    senders: [Costs; 2],
    receiver: Costs,
    routers_links: u32,
    nodes: u32,
}

/// All kinds, at their places `kind as usize`.
const KINDS: [LinkKind; 4] = [
    LinkKind::Row,
    LinkKind::Column,
    LinkKind::Global,
    LinkKind::Torus,
];

impl Stages {
    pub fn new(topology: &impl Topology, profile: &Profile) -> Self {
        let links = KINDS.map(|kind| {
            let link = profile.link(kind);
            Costs {
                rate: link.rate,
                latency: link.latency_ns,
                ..Costs::default()
            }
        });
        let nic = &profile.nic;
        let sender = Costs {
            rate: nic.rate,
            latency: nic.send_ns,
            ..Costs::default()
        };
        Stages {
            links,
            senders: [sender, with_payload(profile, sender)],
            receiver: Costs {
                latency: nic.receive_ns,
                ..sender
            },
            routers_links: topology.links(),
            nodes: topology.nodes(),
        }
    }

    /// The number of clocks.
    pub fn clocks(&self) -> usize {
        self.routers_links as usize + 2 * self.nodes as usize
    }

    #[inline]
    pub fn link(&self, link: LinkId, kind: LinkKind) -> Stage {
        stage(link.0, self.links[kind as usize])
    }

    #[inline]
    pub fn sender(&self, node: u32, has_payload: bool) -> Stage {
        stage(
            self.sender_clock(node),
            self.senders[usize::from(has_payload)],
        )
    }

    /// Number of the clock of a card's sender.
    #[inline]
    pub fn sender_clock(&self, node: u32) -> u32 {
        self.routers_links + node
    }

    #[inline]
    pub fn receiver(&self, node: u32) -> Stage {
        stage(self.routers_links + self.nodes + node, self.receiver)
    }
}

/// Costs of a card that sends full packets: by its rate or by its time per packet, whichever is
/// longer.
fn with_payload(profile: &Profile, by_rate: Costs) -> Costs {
    let wire = profile.payload + profile.header;
    let rate_ns = u64::from(wire) * 1_000_000_000 / by_rate.rate.max(1);
    if profile.nic.packet_ns <= rate_ns {
        return by_rate;
    }
    Costs {
        packet: profile.nic.packet_ns,
        payload: wire,
        rate: 0,
        ..by_rate
    }
}

#[inline]
fn stage(clock: u32, costs: Costs) -> Stage {
    Stage {
        clock: ClockId::number(clock),
        costs,
        whole: false,
    }
}
