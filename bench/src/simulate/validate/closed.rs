//! Closed forms.

use std::collections::HashMap;

use anyhow::Result;
use toroid_fabric::NodeId;
use toroid_fabric::model::{ClockId, Costs, Reach, Stage, TICKS, VectorClocks};
use toroid_fabric::routes::{Mode, Operation, RouterId, Topology, TorusNetwork};

use super::{Bar, Check, Outcome};
use crate::plan::Effort;
use crate::sim::chunks::{ChunkNetwork, DEFAULT_CHUNK};
use crate::sim::profile::{LinkCosts, NicCosts};
use crate::sim::{self, Happening, Message, Network, Profile, nanoseconds};

/// The link model alone, without events.
pub const LINK_MODEL: Check = Check {
    name: "link-model",
    is_long: false,
    run: link_model,
};

/// Messages on an idle torus, by their hops.
pub const IDLE: Check = Check {
    name: "idle",
    is_long: false,
    run: idle,
};

/// Random traffic ends when the busiest link has carried its bytes.
pub const MAKESPAN: Check = Check {
    name: "makespan",
    is_long: false,
    run: makespan,
};

/// Messages of all nodes to one end when its card has received their bytes.
pub const INCAST: Check = Check {
    name: "incast",
    is_long: false,
    run: incast,
};

/// Each node of a ring of 2h + 1 sends h hops upwards: each link carries the messages of h nodes
/// (Dally and Towles, 2004).
pub const TORNADO: Check = Check {
    name: "tornado",
    is_long: false,
    run: tornado,
};

/// Messages at random times over one link: a queue M/D/1, and Little's law.
pub const QUEUE: Check = Check {
    name: "queue",
    is_long: false,
    run: queue,
};

fn outcome(what: String, expected: f64, measured: f64) -> Outcome {
    Outcome {
        against: "closed form",
        what,
        bar: Bar::Within(0.02),
        expected,
        measured,
    }
}

/// Links of 1 GB/s and 100 ns, so that bytes are nanoseconds; cards of another rate.
fn network(sizes: [u32; 3], card_rate: u64) -> Result<ChunkNetwork<TorusNetwork>> {
    let torus = LinkCosts {
        rate: 1_000_000_000,
        latency_ns: 100,
    };
    let nic = NicCosts {
        rate: card_rate,
        send_ns: 400,
        receive_ns: 300,
        packet_ns: 0,
        window: u32::MAX,
        ..Profile::bgp().nic
    };
    let profile = Profile {
        torus,
        nic,
        header: 0,
        ..Profile::bgp()
    };
    let topology = TorusNetwork::new(sizes)?;
    Ok(ChunkNetwork::new(
        topology,
        profile,
        DEFAULT_CHUNK,
        1,
        u64::MAX,
    )?)
}

fn put(from: u32, to: u32, bytes: u64) -> Message {
    Message {
        from: NodeId(from),
        to: NodeId(to),
        bytes,
        operation: Operation::Put,
        mode: Mode::InOrder,
        domain: 0,
        token: u64::from(from),
    }
}

/// Nanoseconds until the last message is delivered.
fn last_delivery(network: &mut impl Network) -> f64 {
    let mut last = 0.0;
    while let Some(happening) = network.next() {
        if let Happening::Delivered(_) = happening {
            last = nanoseconds(network.now());
        }
    }
    last
}

const CARD_RATE: u64 = 10_000_000_000;

fn link_model(_: Effort) -> Result<Vec<Outcome>> {
    const HOPS: u32 = 10;
    const BYTES: u64 = 4096;
    const MESSAGES: u64 = 100;
    let costs = Costs {
        rate: 1_000_000_000,
        latency: 100,
        ..Costs::default()
    };
    let link = |number| Stage {
        clock: ClockId::number(number),
        costs,
        whole: false,
    };
    let clocks = VectorClocks::new(HOPS as usize);
    let send = || {
        let mut reach = Reach::at(0);
        for number in 0..HOPS {
            reach.cross(&link(number), &clocks, BYTES, u64::MAX);
        }
        reach.tail as f64 / TICKS as f64
    };
    let first = send();
    let last = (1..MESSAGES).fold(first, |_, _| send());
    let latency = f64::from(HOPS) * 100.0;
    Ok(vec![
        outcome(
            format!("{BYTES} B over {HOPS} idle links, ns"),
            BYTES as f64 + latency,
            first,
        ),
        outcome(
            format!("{MESSAGES} messages of {BYTES} B over {HOPS} links, ns"),
            (MESSAGES * BYTES) as f64 + latency,
            last,
        ),
    ])
}

/// The hops with the largest error are those that the row names.
fn idle(_: Effort) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for bytes in [8, 65_536] {
        let mut worst: Option<(f64, Outcome)> = None;
        for to in 1..512 {
            let mut network = network([8, 8, 8], CARD_RATE)?;
            let hops = network.topology().distance(RouterId(0), RouterId(to));
            network.send(put(0, to, bytes));
            let expected = 700.0 + 100.0 * f64::from(hops) + bytes as f64;
            let measured = last_delivery(&mut network);
            let error = (measured / expected - 1.0).abs();
            if worst.as_ref().is_none_or(|(known, _)| error > *known) {
                let what = format!("idle put of {bytes} B, worst of 1 to 12 hops ({hops}), ns");
                worst = Some((error, outcome(what, expected, measured)));
            }
        }
        outcomes.extend(worst.map(|(_, outcome)| outcome));
    }
    Ok(outcomes)
}

fn makespan(_: Effort) -> Result<Vec<Outcome>> {
    const MESSAGES: u32 = 400;
    let mut network = network([4, 4, 4], CARD_RATE)?;
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..MESSAGES {
        for from in 0..64 {
            network.send(put(from, random.u32(..64), 16_384));
        }
    }
    let measured = last_delivery(&mut network) / 1e3;
    let busiest = network.busiest().map_or(0, |link| link.bytes);
    let what = format!("{MESSAGES} random puts of 16 KiB of each of 64 nodes, us");
    Ok(vec![outcome(what, busiest as f64 / 1e3, measured)])
}

fn incast(_: Effort) -> Result<Vec<Outcome>> {
    const BYTES: u64 = 1 << 20;
    let mut network = network([4, 4, 4], 1_000_000_000)?;
    for from in 1..64 {
        network.send(put(from, 0, BYTES));
    }
    let measured = last_delivery(&mut network) / 1e3;
    let what = "puts of 1 MiB of 63 nodes to one, us".into();
    Ok(vec![outcome(what, (63 * BYTES) as f64 / 1e3, measured)])
}

fn tornado(_: Effort) -> Result<Vec<Outcome>> {
    const BYTES: u64 = 1 << 20;
    const HALF: u32 = 8;
    const NODES: u32 = 2 * HALF + 1;
    let mut network = network([NODES, 1, 1], 1_000_000_000)?;
    for from in 0..NODES {
        network.send(put(from, (from + HALF) % NODES, BYTES));
    }
    let measured = last_delivery(&mut network) / 1e3;
    let expected = u64::from(HALF) * BYTES;
    let what = format!("puts of 1 MiB over {HALF} hops of a ring of {NODES}, us");
    Ok(vec![outcome(what, expected as f64 / 1e3, measured)])
}

/// Load of the link.
const LOAD: f64 = 0.7;

/// Bytes of a message, and nanoseconds on the link.
const SERVICE: f64 = 1000.0;

fn queue(_: Effort) -> Result<Vec<Outcome>> {
    const MESSAGES: u64 = 1_000_000;
    const SEND: u64 = u64::MAX;
    let mut network = network([2, 1, 1], 1_000_000 * CARD_RATE)?;
    let mut random = fastrand::Rng::with_seed(1);
    let gap = SERVICE / LOAD;
    let mut due = 0.0;
    let mut begun = HashMap::new();
    let (mut sent, mut times, mut area, mut before) = (0, 0.0, 0.0, 0.0);
    network.timer(0, SEND);
    while let Some(happening) = network.next() {
        let now = nanoseconds(network.now());
        area += begun.len() as f64 * (now - before);
        before = now;
        match happening {
            Happening::Timer(_) if sent < MESSAGES => {
                let message = put(0, 1, SERVICE as u64);
                network.send(Message {
                    token: sent,
                    ..message
                });
                begun.insert(sent, now);
                sent += 1;
                due -= gap * (1.0 - random.f64()).ln();
                network.timer((due * sim::TICKS as f64) as u64, SEND);
            }
            Happening::Delivered(token) => times += now - begun.remove(&token).unwrap_or(now),
            _ => {}
        }
    }
    let mean = times / MESSAGES as f64;
    // Latencies of the cards and the link.
    let wait = mean - 800.0 - SERVICE;
    Ok(vec![
        outcome(
            format!("M/D/1, {LOAD} of a link, mean wait, ns"),
            LOAD * SERVICE / (2.0 * (1.0 - LOAD)),
            wait,
        ),
        outcome(
            "Little's law, mean messages under way".into(),
            mean / gap,
            area / due,
        ),
    ])
}
