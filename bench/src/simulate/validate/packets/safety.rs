//! What no traffic may do: lose packets, block for ever, pass a link's rate or the window.

use anyhow::Result;
use toroid_fabric::NodeId;
use toroid_fabric::routes::{Dragonfly, LinkId, Mode, Operation, Topology, TorusNetwork};

use super::super::{Bar, Check, Outcome};
use super::{CLOSED_FORM, network};
use crate::plan::Effort;
use crate::sim::packets::PacketNetwork;
use crate::sim::profile::NicCosts;
use crate::sim::{Happening, Message, Network, Profile, TICKS, Ticks, nanoseconds};

/// Token of the timer at the end of a period; messages have the numbers of nodes.
const PERIOD_ENDS: u64 = u64::MAX;

/// Random traffic of all modes.
pub const SAFETY: Check = Check {
    name: "packets-safety",
    is_long: false,
    run: safety,
};

/// Latencies just below and above those that the window hides.
pub const WINDOW: Check = Check {
    name: "packets-window",
    is_long: false,
    run: window,
};

fn safety(effort: Effort) -> Result<Vec<Outcome>> {
    let packets = match effort {
        Effort::Full => 10_000_000,
        _ => 1_000_000,
    };
    let dragonfly = Dragonfly::new([5, 2, 4, 2], Some(2))?;
    let torus = TorusNetwork::new([4, 4, 5])?;
    let mut outcomes = random_traffic("dragonfly", dragonfly, packets / 2)?;
    outcomes.extend(random_traffic("torus", torus, packets / 2)?);
    Ok(outcomes)
}

/// Each node has 32 messages under way, and a new one for each that is complete. The targets are half
/// random, half one of a few, so that buffers are full.
fn random_traffic(name: &str, topology: impl Topology, packets: u64) -> Result<Vec<Outcome>> {
    let nodes = topology.nodes();
    let mut network = network(topology, Profile::aries(), 1)?;
    let mut random = fastrand::Rng::with_seed(3);
    let (mut sent, mut sent_bytes) = (0, 0);
    let mut send = |network: &mut PacketNetwork<_>, from: u32| {
        let to = match random.bool() {
            true => random.u32(0..nodes),
            false => random.u32(0..nodes / 16),
        };
        let bytes = random.u64(1..4096);
        sent += bytes.div_ceil(64);
        sent_bytes += bytes;
        let operation = match random.u8(0..4) {
            0 => Operation::Get,
            _ => Operation::Put,
        };
        network.send(Message {
            operation,
            token: from.into(),
            ..Message::put(from, to, bytes, Mode::ALL[random.usize(..7)])
        });
        sent < packets
    };
    for from in 0..32 * nodes {
        send(&mut network, from % nodes);
    }
    let mut is_sending = true;
    let mut rates = Rates::new(&network);
    network.timer(Rates::PERIOD, PERIOD_ENDS);
    while let Some(happening) = network.next() {
        match happening {
            // A period in which nothing moved is the last one.
            Happening::Timer(_) if rates.measure(&network) => {
                network.timer(network.now() + Rates::PERIOD, PERIOD_ENDS);
            }
            Happening::Completed(from) if is_sending => {
                is_sending = send(&mut network, from as u32);
            }
            _ => {}
        }
    }
    let delivered: u64 = (0..nodes)
        .map(|node| network.delivered(NodeId(node), 0))
        .sum();
    let outcome = |what: &str, bar, expected, measured| Outcome {
        against: CLOSED_FORM,
        what: format!("{name}, {sent} packets of all modes: {what}"),
        bar,
        expected,
        measured,
    };
    let is_stuck = f64::from(u8::from(!network.is_idle()));
    Ok(vec![
        outcome(
            "bytes delivered",
            Bar::Within(0.0),
            sent_bytes as f64,
            delivered as f64,
        ),
        outcome("packets or credits left behind", Bar::AtMost, 0.0, is_stuck),
        outcome(
            "use of the busiest link in 5 us",
            Bar::AtMost,
            1.0,
            rates.highest,
        ),
        outcome(
            "window",
            Bar::AtMost,
            1024.0,
            network.most_outstanding().into(),
        ),
    ])
}

/// Use of links in periods, so that no pause makes up for a link that is too fast.
struct Rates {
    /// Bytes of each link up to this period.
    bytes: Vec<u64>,
    /// Largest share of a link's rate. A packet may begin at the end of a period.
    highest: f64,
}

impl Rates {
    const PERIOD: Ticks = 5_000 * TICKS;

    fn new<T: Topology>(network: &PacketNetwork<T>) -> Self {
        Rates {
            bytes: vec![0; network.topology().links() as usize],
            highest: 0.0,
        }
    }

    /// Ends a period. Returns whether any link was used in it.
    fn measure<T: Topology>(&mut self, network: &PacketNetwork<T>) -> bool {
        let profile = Profile::aries();
        let packet = u64::from(profile.payload + profile.header);
        let mut is_used = false;
        for (number, before) in self.bytes.iter_mut().enumerate() {
            let link = LinkId(number as u32);
            let now = network.link_bytes(link);
            let passed = now - std::mem::replace(before, now);
            is_used |= passed > 0;
            let rate = profile.link(network.topology().kind(link)).rate as f64 / 1e9;
            let limit = rate * nanoseconds(Self::PERIOD);
            self.highest = self
                .highest
                .max(passed.saturating_sub(packet) as f64 / limit);
        }
        is_used
    }
}

/// With 5 flits a packet, a window of 1024 packets lasts 5120 cycles without stalls.
fn window(_: Effort) -> Result<Vec<Outcome>> {
    let (below, above) = (4_900, 5_640);
    let outcome = |cycles: u64, expected| -> Result<Outcome> {
        Ok(Outcome {
            against: CLOSED_FORM,
            what: format!("cycles a flit at a latency of {cycles} cycles"),
            bar: Bar::Within(0.02),
            expected,
            measured: cycles_per_flit(cycles)?,
        })
    };
    Ok(vec![
        outcome(below, 1.0)?,
        outcome(above, above as f64 / 5120.0)?,
    ])
}

/// Cycles per flit of a long put between two nodes of a router.
fn cycles_per_flit(cycles: u64) -> Result<f64> {
    const PACKETS: u64 = 32 << 10;
    let quarter = cycles * 5 / 4 / 4;
    let aries = Profile::aries();
    let nic = NicCosts {
        send_ns: quarter,
        receive_ns: quarter,
        buffer: 4096,
        ..aries.nic
    };
    let topology = Dragonfly::new([1, 1, 1, 2], None)?;
    let mut network = network(topology, Profile { nic, ..aries }, 1)?;
    network.send(Message::put(0, 1, PACKETS * 64, Mode::InOrder));
    let mut end = 0;
    while let Some(happening) = network.next() {
        if let Happening::Completed(_) = happening {
            end = network.now();
        }
    }
    let sending = end - 4 * quarter * TICKS;
    let flits = network.counters(NodeId(0), 0, Mode::InOrder).request_flits;
    Ok(nanoseconds(sending) / 1.25 / flits as f64)
}
