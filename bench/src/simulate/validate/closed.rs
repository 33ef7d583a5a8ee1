//! Closed forms.

use anyhow::Result;
use toroid_fabric::NodeId;
use toroid_fabric::model::{self, ClockId, Costs, Reach, Stage, VectorClocks};
use toroid_fabric::routes::{Mode, RouterId, Topology, TorusNetwork};

use super::load::busiest_ns;
use super::{Bar, Check, Outcome, last_delivery};
use crate::plan::Effort;
use crate::sim::chunks::{ChunkNetwork, DEFAULT_CHUNK};
use crate::sim::profile::{LinkCosts, NicCosts};
use crate::sim::{Happening, Message, Network, Profile, TICKS, Ticks, nanoseconds};

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
fn profile(card_rate: u64) -> Profile {
    let torus = LinkCosts {
        rate: LINK_RATE,
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
    Profile {
        torus,
        nic,
        header: 0,
        ..Profile::bgp()
    }
}

fn network(sizes: [u32; 3], profile: Profile) -> Result<ChunkNetwork<TorusNetwork>> {
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
    Message::put(from, to, bytes, Mode::InOrder)
}

/// Nanoseconds until the last message is delivered.
fn last_ns(network: &mut impl Network) -> f64 {
    nanoseconds(last_delivery(network))
}

/// Rates in bytes per second, of links and of cards that limit nothing.
const LINK_RATE: u64 = 1_000_000_000;
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
        reach.tail as f64 / model::TICKS as f64
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
            let mut network = network([8, 8, 8], profile(CARD_RATE))?;
            let hops = network.topology().distance(RouterId(0), RouterId(to));
            network.send(put(0, to, bytes));
            let expected = 700.0 + 100.0 * f64::from(hops) + bytes as f64;
            let measured = last_ns(&mut network);
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
    Ok(vec![makespan_of(400, Mode::InOrder)?])
}

/// The end of random traffic, which should take the paths of [`busiest_ns`].
fn makespan_of(messages: u32, mode: Mode) -> Result<Outcome> {
    let profile = profile(CARD_RATE);
    let mut network = network([4, 4, 4], profile.clone())?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut put = |n| Message::put(n % 64, random.u32(..64), 16_384, mode);
    let puts: Vec<Message> = (0..messages * 64).map(&mut put).collect();
    puts.iter().for_each(|put| network.send(*put));
    let expected = busiest_ns(network.topology(), &profile, &puts);
    let what = format!("{messages} random puts of 16 KiB of each of 64 nodes, us");
    let measured = last_ns(&mut network);
    Ok(outcome(what, expected / 1e3, measured / 1e3))
}

fn incast(_: Effort) -> Result<Vec<Outcome>> {
    const BYTES: u64 = 1 << 20;
    let mut network = network([4, 4, 4], profile(LINK_RATE))?;
    for from in 1..64 {
        network.send(put(from, 0, BYTES));
    }
    let measured = last_ns(&mut network) / 1e3;
    let what = "puts of 1 MiB of 63 nodes to one, us".into();
    Ok(vec![outcome(what, (63 * BYTES) as f64 / 1e3, measured)])
}

fn tornado(_: Effort) -> Result<Vec<Outcome>> {
    const BYTES: u64 = 1 << 20;
    const HALF: u32 = 8;
    const NODES: u32 = 2 * HALF + 1;
    let mut network = network([NODES, 1, 1], profile(LINK_RATE))?;
    for from in 0..NODES {
        network.send(put(from, (from + HALF) % NODES, BYTES));
    }
    let measured = last_ns(&mut network) / 1e3;
    let expected = u64::from(HALF) * BYTES;
    let what = format!("puts of 1 MiB over {HALF} hops of a ring of {NODES}, us");
    Ok(vec![outcome(what, expected as f64 / 1e3, measured)])
}

/// Load of the link.
const LOAD: f64 = 0.7;

/// Bytes of a message, and nanoseconds on the link.
const SERVICE: f64 = 1000.0;

/// Mean wait in a queue M/D/1: Pollaczek and Khinchine's formula.
const WAIT: f64 = LOAD * SERVICE / (2.0 * (1.0 - LOAD));

/// Latencies of the cards and the link, which a message and its response have.
const LATENCY: f64 = 800.0;

fn queue(_: Effort) -> Result<Vec<Outcome>> {
    queue_of(1_000_000, LINK_RATE)
}

/// The queue at a link that should have [`LINK_RATE`]. Expected figures are those of the closed form;
/// messages under way are counted at times that do not depend on them.
fn queue_of(messages: u64, rate: u64) -> Result<Vec<Outcome>> {
    const SEND: u64 = u64::MAX;
    const COUNT: u64 = u64::MAX - 1;
    const PERIOD: Ticks = 997 * TICKS;
    let gap = SERVICE / LOAD;
    let mut profile = profile(1_000_000 * CARD_RATE);
    profile.torus.rate = rate;
    let packets = SERVICE / f64::from(profile.payload);
    let mut network = network([2, 1, 1], profile)?;
    let mut random = fastrand::Rng::with_seed(1);
    let (mut due, mut times) = (0.0, 0.0);
    let mut begun = Vec::new();
    let (mut counts, mut counted) = (0_u64, 0_u64);
    network.timer(0, SEND);
    network.timer(PERIOD, COUNT);
    while let Some(happening) = network.next() {
        let now = nanoseconds(network.now());
        let is_sending = (begun.len() as u64) < messages;
        match happening {
            Happening::Timer(SEND) if is_sending => {
                let token = begun.len() as u64;
                let message = put(0, 1, SERVICE as u64);
                network.send(Message { token, ..message });
                begun.push(now);
                due -= gap * (1.0 - random.f64()).ln();
                network.timer((due * TICKS as f64) as Ticks, SEND);
            }
            Happening::Timer(COUNT) if is_sending => {
                counts += 1;
                counted += network.outstanding();
                network.timer(network.now() + PERIOD, COUNT);
            }
            Happening::Delivered(token) => times += now - begun[token as usize],
            _ => {}
        }
    }
    let wait = times / messages as f64 - LATENCY - SERVICE;
    let round_trip = WAIT + SERVICE + 2.0 * LATENCY;
    let counters = network.counters(NodeId(0), 0, Mode::InOrder);
    Ok(vec![
        outcome(
            format!("M/D/1, {LOAD} of a link, mean wait, ns"),
            WAIT,
            wait,
        ),
        outcome(
            "M/D/1, mean latency by the card's counters, ns".into(),
            round_trip,
            counters.latency_ns as f64 / counters.packets as f64,
        ),
        outcome(
            "Little's law and M/D/1, mean packets under way".into(),
            packets.ceil() * round_trip / gap,
            counted as f64 / counts as f64,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detours_miss_the_makespan() {
        assert!(makespan_of(100, Mode::InOrder).unwrap().holds());
        assert!(!makespan_of(100, Mode::NminHash).unwrap().holds());
    }

    #[test]
    fn a_link_of_another_rate_misses_each_figure_of_the_queue() {
        let slow = queue_of(100_000, LINK_RATE * 95 / 100).unwrap();
        assert!(slow.iter().all(|outcome| !outcome.holds()), "{slow:?}");
    }
}
