//! Queues: the mean wait at one link, and Little's law.

use anyhow::{Context, Result};
use toroid_fabric::NodeId;
use toroid_fabric::routes::{Counters, Mode, TorusNetwork};

use super::super::{Bar, Check, Outcome};
use super::{CLOSED_FORM, network};
use crate::plan::Effort;
use crate::sim::profile::{LinkCosts, NicCosts};
use crate::sim::{Happening, Message, Network, Profile, TICKS, Ticks};

/// Packets that arrive at a link at random: M/D/1.
pub const POISSON: Check = Check {
    name: "packets-poisson",
    is_long: false,
    run: poisson,
};

/// Packets under way are arrivals per time by latency.
pub const LITTLE: Check = Check {
    name: "packets-little",
    is_long: false,
    run: little,
};

const ARRIVAL: u64 = u64::MAX;

/// Random intervals of an exponential distribution.
fn interval(random: &mut fastrand::Rng, mean: f64) -> f64 {
    -mean * (1.0 - random.f64()).ln()
}

fn poisson(_: Effort) -> Result<Vec<Outcome>> {
    [0.5, 0.7].into_iter().map(wait).collect()
}

/// Mean wait of packets of 80 B at a link of 5.25 GB/s that they use to a share. Cards are so fast
/// that all of the wait is at the link.
fn wait(load: f64) -> Result<Outcome> {
    const PACKETS: u64 = 400_000;
    let aries = Profile::aries();
    let nic = NicCosts {
        rate: 128_000_000_000,
        ..aries.nic
    };
    let profile = Profile { nic, ..aries };
    let LinkCosts { latency_ns, .. } = profile.torus;
    let service = profile.torus.service(80);
    let idle = (nic.send_ns + latency_ns + nic.receive_ns) * TICKS + service;
    let mut network = network(TorusNetwork::new([3, 1, 1])?, profile, 1)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut sent: Vec<Ticks> = Vec::new();
    let (mut at, mut waited) = (0.0, 0);
    network.timer(0, ARRIVAL);
    while let Some(happening) = network.next() {
        let now = network.now();
        match happening {
            Happening::Timer(_) if (sent.len() as u64) < PACKETS => {
                let token = sent.len() as u64;
                sent.push(now);
                network.send(Message {
                    token,
                    ..Message::put(0, 1, 64, Mode::InOrder)
                });
                at += interval(&mut random, service as f64 / load);
                network.timer(at as Ticks, ARRIVAL);
            }
            Happening::Delivered(token) => waited += now - sent[token as usize] - idle,
            _ => {}
        }
    }
    Ok(Outcome {
        against: "closed form: M/D/1",
        what: format!("wait at a link of load {load}, in services"),
        bar: Bar::Within(0.02),
        expected: load / (2.0 * (1.0 - load)),
        measured: waited as f64 / PACKETS as f64 / service as f64,
    })
}

/// All nodes of a torus send at random times; the requests without response are counted at set times.
fn little(_: Effort) -> Result<Vec<Outcome>> {
    const SAMPLE: u64 = u64::MAX - 1;
    const PERIOD: Ticks = 37 * TICKS;
    let (warm, end) = (20_000 * TICKS, 220_000 * TICKS);
    let torus = TorusNetwork::new([4, 4, 4])?;
    let mut network = network(torus, Profile::aries(), 1)?;
    let mut random = fastrand::Rng::with_seed(2);
    let nodes = 64;
    let mut next = vec![0.0; nodes as usize];
    for node in 0..nodes {
        network.timer(0, node);
    }
    network.timer(warm, SAMPLE);
    let (mut before, mut samples, mut under_way) = (None, 0_u64, 0_u64);
    while let Some(happening) = network.next() {
        let now = network.now();
        match happening {
            _ if now >= end => break,
            Happening::Timer(SAMPLE) => {
                before.get_or_insert_with(|| total(&network));
                samples += 1;
                under_way += network.outstanding();
                network.timer(now + PERIOD, SAMPLE);
            }
            Happening::Timer(node) => {
                let (from, to) = (node as u32, random.u32(0..nodes as u32));
                network.send(Message::put(from, to, 256, Mode::Adaptive0));
                let next = &mut next[node as usize];
                *next += interval(&mut random, 120.0 * TICKS as f64);
                network.timer(*next as Ticks, node);
            }
            _ => {}
        }
    }
    let counted = total(&network).since(&before.context("no sample was taken")?);
    let rate = counted.packets as f64 / ((end - warm) / TICKS) as f64;
    let latency = counted.latency_ns as f64 / counted.packets as f64;
    Ok(vec![Outcome {
        against: CLOSED_FORM,
        what: format!("Little's law: requests under way in 64 nodes, {rate:.2} a ns"),
        bar: Bar::Within(0.02),
        expected: rate * latency,
        measured: under_way as f64 / samples as f64,
    }])
}

fn total(network: &impl Network) -> Counters {
    let nodes = (0..64).map(|node| network.counters(NodeId(node), 0, Mode::Adaptive0));
    nodes.fold(Counters::default(), |sum, counters| sum + counters)
}
