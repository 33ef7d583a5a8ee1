//! Queues: the mean wait at one link, and Little's law.

use anyhow::{Context, Result};
use toroid_fabric::NodeId;
use toroid_fabric::routes::{Counters, Mode, TorusNetwork};

use super::super::{Bar, Check, Outcome};
use super::{CLOSED_FORM, network};
use crate::plan::Effort;
use crate::sim::packets::PacketNetwork;
use crate::sim::profile::{LinkCosts, NicCosts};
use crate::sim::{Happening, Message, Network, Profile, TICKS, Ticks, nanoseconds};

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

/// What a network counts.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// Requests without response, at present.
    under_way: u64,
    packets: u64,
    latency_ns: u64,
}

impl Counted {
    fn of(network: &PacketNetwork<TorusNetwork>) -> Self {
        let nodes = (0..NODES).map(|node| network.counters(NodeId(node), 0, Mode::Adaptive0));
        let sum = nodes.fold(Counters::default(), |sum, counters| sum + counters);
        Counted {
            under_way: network.outstanding(),
            packets: sum.packets,
            latency_ns: sum.latency_ns,
        }
    }
}

/// Nodes of the torus, and the mean interval at which each sends.
const NODES: u32 = 64;
const INTERVAL_NS: f64 = 30.0;

fn little(_: Effort) -> Result<Vec<Outcome>> {
    under_way(200_000 * TICKS, Counted::of)
}

/// All nodes of a torus send single packets at random times. Their rate is that of the intervals, and
/// their latency that of a trace of each packet: both are compared with what the network counts in
/// `time`, and their product with the requests that it counts as under way.
fn under_way(
    time: Ticks,
    count: impl Fn(&PacketNetwork<TorusNetwork>) -> Counted,
) -> Result<Vec<Outcome>> {
    const SAMPLE: u64 = u64::MAX - 1;
    const PERIOD: Ticks = 37 * TICKS;
    let warm = 20_000 * TICKS;
    let mut network = network(TorusNetwork::new([4, 4, 4])?, Profile::aries(), 1)?;
    let mut random = fastrand::Rng::with_seed(2);
    let mut next = [0.0; NODES as usize];
    for node in 0..NODES {
        network.timer(0, node.into());
    }
    network.timer(warm, SAMPLE);
    let mut sent: Vec<Ticks> = Vec::new();
    let (mut traced, mut latency) = (0_u64, 0);
    let (mut before, mut samples, mut waiting) = (None, 0_u64, 0);
    while let Some(happening) = network.next() {
        let now = network.now();
        match happening {
            _ if now >= warm + time => break,
            Happening::Timer(SAMPLE) => {
                let counted = count(&network);
                before.get_or_insert(counted);
                samples += 1;
                waiting += counted.under_way;
                network.timer(now + PERIOD, SAMPLE);
            }
            Happening::Timer(node) => {
                let (token, to) = (sent.len() as u64, random.u32(0..NODES));
                sent.push(now);
                network.send(Message {
                    token,
                    ..Message::put(node as u32, to, 64, Mode::Adaptive0)
                });
                let next = &mut next[node as usize];
                *next += interval(&mut random, INTERVAL_NS * TICKS as f64);
                network.timer(*next as Ticks, node);
            }
            Happening::Completed(token) if now >= warm => {
                traced += 1;
                latency += now - sent[token as usize];
            }
            _ => {}
        }
    }
    let (before, after) = (before.context("no sample was taken")?, count(&network));
    let packets = (after.packets - before.packets) as f64;
    let rate = f64::from(NODES) / INTERVAL_NS;
    let latency = nanoseconds(latency) / traced as f64;
    let outcome = |what: &str, expected, measured| Outcome {
        against: CLOSED_FORM,
        what: format!("packets of {NODES} nodes: {what}"),
        bar: Bar::Within(0.02),
        expected,
        measured,
    };
    Ok(vec![
        outcome("counted in a ns", rate, packets / nanoseconds(time)),
        outcome(
            "counted latency against their trace, ns",
            latency,
            (after.latency_ns - before.latency_ns) as f64 / packets,
        ),
        outcome(
            "Little's law, counted under way",
            rate * latency,
            waiting as f64 / samples as f64,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which outcomes hold if the network counts `distort`ed figures.
    fn hold(distort: impl Fn(Counted) -> Counted) -> Vec<bool> {
        let count = |network: &PacketNetwork<_>| distort(Counted::of(network));
        let outcomes = under_way(40_000 * TICKS, count).unwrap();
        outcomes.iter().map(Outcome::holds).collect()
    }

    #[test]
    fn each_counter_is_compared_with_another_source() {
        let more = |count: u64| count + count / 20;
        assert_eq!(hold(|right| right), [true; 3]);
        let under_way = |its: Counted| Counted {
            under_way: more(its.under_way),
            ..its
        };
        assert_eq!(hold(under_way), [true, true, false]);
        let latency = |its: Counted| Counted {
            latency_ns: more(its.latency_ns),
            ..its
        };
        assert_eq!(hold(latency), [true, false, true]);
        // The mean latency is one over the packets.
        let packets = |its: Counted| Counted {
            packets: more(its.packets),
            ..its
        };
        assert_eq!(hold(packets), [false, false, true]);
    }
}
