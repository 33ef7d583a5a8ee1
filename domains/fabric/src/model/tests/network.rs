//! The model beside simulations that share no code with it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::topology::Torus;

/// A message on a route.
#[derive(Clone, Debug)]
struct Sent {
    at: Nanos,
    bytes: u64,
    route: Route,
}

/// Arrivals of messages that reserve each stage when they reach it.
fn by_passages(messages: &[Sent]) -> Vec<Nanos> {
    let clocks = LocalClocks::default();
    let passage = |sent: &Sent| Passage::new(sent.at, sent.bytes);
    let mut passages: Vec<_> = messages.iter().map(passage).collect();
    let starts = messages.iter().enumerate();
    let mut events: BinaryHeap<_> = starts.map(|(n, sent)| Reverse((sent.at, n))).collect();
    while let Some(Reverse((now, n))) = events.pop() {
        let route = &messages[n].route;
        if passages[n].reaches(route).is_some_and(|at| at <= now) {
            // One stage: another message may reach the next one before.
            let next = Route {
                stages: route.stages[..=passages[n].stages].to_vec(),
                ..Route::default()
            };
            passages[n].advance(&next, &clocks, now);
        }
        if let Some(at) = passages[n].reaches(route) {
            events.push(Reverse((at, n)));
        }
    }
    let all = passages.iter().zip(messages);
    all.map(|(passage, sent)| passage.times(&sent.route, 0).arrival)
        .collect()
}

/// Arrivals of messages that reserve their whole route when they are sent.
fn by_posting(messages: &[Sent]) -> Vec<Nanos> {
    let clocks = LocalClocks::default();
    let carry = |sent: &Sent| carry(&sent.route, &clocks, sent.at, sent.bytes, 0).arrival;
    messages.iter().map(carry).collect()
}

/// A stage of a simulation in steps of 1 ns.
#[derive(Default)]
struct Server {
    waiting: VecDeque<usize>,
    /// The message in service, the number of this stage on its route, and the end of the service.
    serving: Option<(usize, usize, Nanos)>,
}

/// A message in that simulation.
#[derive(Clone, Default)]
struct Moving {
    /// Stages whose queues it has joined.
    joined: usize,
    /// When the first byte reaches the next stage.
    head: Option<Nanos>,
    /// When the last byte reaches each stage, as far as known.
    tails: Vec<Nanos>,
    /// Ends of the services, by the number of the stage: a later stage may be done before.
    ends: BTreeMap<usize, Nanos>,
}

/// Arrivals, found by looking at every stage in every nanosecond. Rates divide 1 GB/s.
fn by_steps(messages: &[Sent]) -> Vec<Nanos> {
    let mut servers = BTreeMap::new();
    let moving = |sent: &Sent| Moving {
        head: Some(sent.at),
        tails: vec![sent.at],
        ..Moving::default()
    };
    let mut moving: Vec<_> = messages.iter().map(moving).collect();
    let is_under_way =
        |(moving, sent): (&Moving, &Sent)| moving.tails.len() <= sent.route.stages.len();
    let mut now = 0;
    while moving.iter().zip(messages).any(is_under_way) {
        while step(now, messages, &mut moving, &mut servers) {}
        now += 1;
    }
    let last = |moving: &Moving| moving.tails.last().copied();
    moving.iter().filter_map(last).collect()
}

/// Makes one change that is due, if there is any.
fn step(
    now: Nanos,
    messages: &[Sent],
    moving: &mut [Moving],
    servers: &mut BTreeMap<ClockId, Server>,
) -> bool {
    for server in servers.values_mut() {
        if let Some((n, stage, end)) = server.serving
            && end <= now
        {
            moving[n].ends.insert(stage, now);
            server.serving = None;
            return true;
        }
        if server.serving.is_none()
            && let Some(n) = server.waiting.pop_front()
        {
            let stage = moving[n].joined - 1;
            let costs = messages[n].route.stages[stage].costs;
            server.serving = Some((n, stage, now + service(&costs, messages[n].bytes)));
            moving[n].head = Some(now + costs.message + costs.latency);
            return true;
        }
    }
    for (n, (moving, sent)) in moving.iter_mut().zip(messages).enumerate() {
        let stages = &sent.route.stages;
        // The last byte leaves a stage when it has come and is served.
        let passed = moving.tails.len() - 1;
        if let Some(end) = moving.ends.get(&passed) {
            let tail = moving.tails[passed].max(*end);
            moving.tails.push(tail + stages[passed].costs.latency);
            return true;
        }
        let Some(stage) = stages.get(moving.joined) else {
            continue;
        };
        let tail = moving.tails.get(moving.joined).copied();
        let reached = if stage.whole { tail } else { moving.head };
        if reached.is_some_and(|at| at <= now) {
            moving.joined += 1;
            moving.head = None;
            servers.entry(stage.clock).or_default().waiting.push_back(n);
            return true;
        }
    }
    false
}

/// Nanoseconds of a message at a stage.
fn service(costs: &Costs, bytes: u64) -> Nanos {
    let packets = match costs.payload {
        0 => 1,
        payload => bytes.div_ceil(payload.into()).max(1),
    };
    let wire = bytes + packets * u64::from(costs.header);
    let transfer = match costs.rate {
        0 => 0,
        rate => wire * (GIGABYTE / rate),
    };
    costs.message + packets * costs.packet + transfer
}

/// Three routes over some of four stages.
fn shared_stages() -> impl Strategy<Value = Vec<Route>> {
    let fixed = (0..300_u64, 0..20_u64, 0..300_u64);
    let payload = prop_oneof![Just(0), Just(240_u32)];
    let rate = prop_oneof![Just(0), Just(GIGABYTE), Just(GIGABYTE / 2)];
    let stages = prop::collection::vec((fixed, payload, rate, any::<bool>()), 4);
    let chosen = prop::collection::vec(prop::sample::subsequence(vec![0, 1, 2, 3], 1..4), 3);
    (stages, chosen).prop_map(|(stages, chosen)| {
        let stage = |n: usize| {
            let ((message, packet, latency), payload, rate, whole) = stages[n];
            Stage {
                clock: ClockId::endpoint(NodeId(n as u32), 0),
                costs: Costs {
                    message,
                    packet,
                    payload,
                    header: 16,
                    rate,
                    latency,
                },
                whole,
            }
        };
        let route = |chosen: Vec<usize>| Route {
            stages: chosen.into_iter().map(stage).collect(),
            ..Route::default()
        };
        chosen.into_iter().map(route).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// One reservation of each stage stands for a look at every stage in every nanosecond.
    #[test]
    fn passages_arrive_as_in_a_simulation_by_steps(
        routes in shared_stages(),
        messages in prop::collection::vec((0..1_500_u64, 0..1_000_u64, 0..3_usize), 1..16),
    ) {
        let mut at = 0;
        let sent = |(gap, bytes, route): (Nanos, u64, usize)| {
            at += gap;
            Sent { at, bytes, route: routes[route].clone() }
        };
        let messages: Vec<_> = messages.into_iter().map(sent).collect();
        prop_assert_eq!(by_passages(&messages), by_steps(&messages));
    }
}

/// Nanoseconds of a packet of 256 B on a link of 425 MB/s.
const PACKET: Nanos = 602;
/// Nanoseconds of a packet at its sender, which has six links.
const PACKET_AT_SENDER: Nanos = PACKET / 6;
const HOP: Nanos = 70;

/// A route through a torus.
fn torus_route(torus: Torus, from: NodeId, to: NodeId) -> Route {
    let stage = |clock, packet, latency, whole| Stage {
        clock,
        costs: Costs {
            packet,
            payload: 240,
            latency,
            ..Costs::default()
        },
        whole,
    };
    let sender = stage(ClockId::endpoint(from, 0), PACKET_AT_SENDER, 0, true);
    let hops = torus.route(from, to).unwrap();
    let links = hops
        .into_iter()
        .map(|hop| stage(ClockId::hop(hop), PACKET, HOP, false));
    Route {
        stages: std::iter::once(sender).chain(links).collect(),
        ..Route::default()
    }
}

/// Random messages of up to 4 KiB that load the links of a torus to a share on average. Sizes are
/// odd, so that no direction has more links than another.
fn traffic(load: f64) -> Vec<Sent> {
    let torus = Torus::new(5, 5, 5).unwrap();
    let mut random = fastrand::Rng::with_seed(23);
    let nodes = torus.nodes();
    let links = f64::from(nodes) * 6.0;
    let mut at = 0.0;
    let mut sent = Vec::new();
    while sent.len() < 4_000 {
        let (from, to) = (NodeId(random.u32(..nodes)), NodeId(random.u32(..nodes)));
        let bytes = random.u64(1..=4_096);
        if from == to {
            continue;
        }
        let route = torus_route(torus, from, to);
        let hops = route.stages.len() as u64 - 1;
        let busy = (hops * bytes.div_ceil(240) * PACKET) as f64;
        at += -(1.0 - random.f64()).ln() * busy / links / load;
        sent.push(Sent {
            at: at as Nanos,
            bytes,
            route,
        });
    }
    sent
}

/// Arrivals when every packet waits for every link by itself.
fn by_packets(messages: &[Sent]) -> Vec<Nanos> {
    let mut free: BTreeMap<ClockId, Nanos> = BTreeMap::new();
    let mut arrivals = vec![0; messages.len()];
    let packets = |(n, sent): (usize, &Sent)| {
        let at = sent.at;
        (0..sent.bytes.div_ceil(240)).map(move |packet| Reverse((at, n, packet, 0)))
    };
    let mut events: BinaryHeap<_> = messages.iter().enumerate().flat_map(packets).collect();
    while let Some(Reverse((now, n, packet, stage))) = events.pop() {
        let stages = &messages[n].route.stages;
        let (service, latency) = match stage {
            0 => (PACKET_AT_SENDER, 0),
            _ => (PACKET, HOP),
        };
        let free = free.entry(stages[stage].clock).or_default();
        let start = now.max(*free);
        *free = start + service;
        if stage + 1 == stages.len() {
            arrivals[n] = arrivals[n].max(start + service + latency);
        } else {
            events.push(Reverse((start + latency, n, packet, stage + 1)));
        }
    }
    arrivals
}

/// Mean latency of messages.
fn mean(messages: &[Sent], arrivals: &[Nanos]) -> f64 {
    let all = messages.iter().zip(arrivals);
    let taken: Nanos = all.map(|(sent, arrival)| arrival - sent.at).sum();
    taken as f64 / messages.len() as f64
}

/// One reservation of a message stands for all of its packets.
#[test]
fn messages_up_to_4_kib_take_as_long_as_their_packets() {
    for load in [0.05, 0.2, 0.5, 0.7, 0.9] {
        let messages = traffic(load);
        let (packets, passages) = (by_packets(&messages), by_passages(&messages));
        let ratio = mean(&messages, &passages) / mean(&messages, &packets);
        assert!((0.93..1.02).contains(&ratio), "load {load}: {ratio}");
        let last = |arrivals: Vec<Nanos>| arrivals.into_iter().max().unwrap_or(0) as f64;
        let ratio = last(passages) / last(packets);
        assert!((0.98..1.02).contains(&ratio), "load {load}: {ratio}");
    }
}

/// A reservation of a far link for a later time leaves the link idle until then, which is why
/// passages exist.
#[test]
fn reservations_of_whole_routes_are_right_only_under_little_load() {
    let ratio = |load| {
        let messages = traffic(load);
        mean(&messages, &by_posting(&messages)) / mean(&messages, &by_passages(&messages))
    };
    let (little, much) = (ratio(0.05), ratio(0.7));
    assert!((0.98..1.05).contains(&little), "{little}");
    assert!(much > 1.5, "{much}");
}
