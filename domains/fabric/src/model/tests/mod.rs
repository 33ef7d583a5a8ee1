//! Properties of the model on a virtual clock.

mod flow;
mod logp;
mod network;
mod shared;

use proptest::prelude::*;

use super::*;
use crate::topology::NodeId;

const GIGABYTE: u64 = 1_000_000_000;

/// A route over one link.
fn link(costs: Costs) -> Route {
    between(0, 1, costs)
}

fn between(from: u32, to: u32, costs: Costs) -> Route {
    Route {
        stages: vec![Stage {
            clock: ClockId::pair(NodeId(from), NodeId(to)),
            costs,
            whole: false,
        }],
        ..Route::default()
    }
}

fn costs(rate: u64, latency: Nanos) -> Costs {
    Costs {
        rate,
        latency,
        ..Costs::default()
    }
}

fn any_costs() -> impl Strategy<Value = Costs> {
    let fixed = (0..2_000_u64, 0..1_000_u64, 0..20_000_u64);
    let bytes = (0..1_500_u32, 0..64_u32);
    let rate = prop_oneof![Just(0), 1_000_000..20 * GIGABYTE];
    (fixed, bytes, rate).prop_map(
        |((message, packet, latency), (payload, header), rate)| Costs {
            message,
            packet,
            payload,
            header,
            rate,
            latency,
        },
    )
}

/// A route over up to five stages.
fn any_route() -> impl Strategy<Value = Route> {
    let stage = (any_costs(), any::<bool>());
    prop::collection::vec(stage, 1..6).prop_map(|stages| {
        let stage = |(n, (costs, whole))| Stage {
            clock: ClockId::endpoint(NodeId(n as u32), 0),
            costs,
            whole,
        };
        Route {
            stages: stages.into_iter().enumerate().map(stage).collect(),
            ..Route::default()
        }
    })
}

/// Messages as times from one to the next, and bytes.
fn any_messages() -> impl Strategy<Value = Vec<(Nanos, u64)>> {
    prop::collection::vec((prop_oneof![Just(0), 0..20_000_u64], 0..10_000_u64), 1..60)
}

/// Messages with the times at which they are ready.
fn ready(messages: &[(Nanos, u64)]) -> Vec<(Nanos, u64)> {
    let mut now = 0;
    let at = |&(gap, bytes): &(Nanos, u64)| {
        now += gap;
        (now, bytes)
    };
    messages.iter().map(at).collect()
}

proptest! {
    /// A message takes all latencies and as long as the slowest stage, and no less in a queue.
    #[test]
    fn no_message_is_early_and_all_keep_their_order(
        route in any_route(),
        messages in any_messages(),
    ) {
        let clocks = LocalClocks::default();
        let mut last = 0;
        for (now, bytes) in ready(&messages) {
            let latency: Nanos = route.stages.iter().map(|stage| stage.costs.latency).sum();
            let slowest = route.stages.iter().map(|stage| stage.costs.service(bytes)).max();
            let times = carry(&route, &clocks, now, bytes, 0);
            prop_assert!(times.start >= now);
            prop_assert!(times.arrival * TICKS >= (now + latency) * TICKS + slowest.unwrap_or(0));
            let alone = carry(&route, &LocalClocks::default(), now, bytes, 0);
            prop_assert!(times.arrival >= alone.arrival);
            prop_assert!(times.arrival >= last);
            last = times.arrival;
        }
    }

    /// Over any time, a link passes at most its rate and one message.
    #[test]
    fn no_link_is_faster_than_its_rate(
        rate in 1_000_000..20 * GIGABYTE,
        header in 0..64_u32,
        messages in any_messages(),
    ) {
        let costs = Costs { header, payload: 240, ..costs(rate, 5_000) };
        let (route, clocks) = (link(costs), LocalClocks::default());
        let carry = |(now, bytes)| {
            let arrival = carry(&route, &clocks, now, bytes, 0).arrival;
            (arrival, costs.wire_bytes(bytes))
        };
        let arrivals: Vec<_> = ready(&messages).into_iter().map(carry).collect();
        for (n, (from, _)) in arrivals.iter().enumerate() {
            let mut passed = 0;
            for (to, bytes) in &arrivals[n + 1..] {
                passed += u128::from(*bytes);
                // Arrivals are whole nanoseconds.
                let time = u128::from(to - from + 1);
                prop_assert!(passed * 1_000_000_000 <= time * u128::from(rate));
            }
        }
    }

    /// Lindley (1952): the end of a message in a queue that never idles while a message waits is
    /// the latest end of any run of messages without a pause.
    #[test]
    fn no_link_idles_while_a_message_waits(costs in any_costs(), messages in any_messages()) {
        let (route, clocks) = (link(costs), LocalClocks::default());
        let messages = ready(&messages);
        for n in 0..messages.len() {
            let (now, bytes) = messages[n];
            let mut service = 0;
            let runs = messages[..=n].iter().rev().map(|(ready, bytes)| {
                service += costs.service(*bytes);
                ready * TICKS + service
            });
            let end = runs.max().unwrap_or(0) + costs.latency * TICKS;
            prop_assert_eq!(carry(&route, &clocks, now, bytes, 0).arrival, end.div_ceil(TICKS));
        }
    }

    /// Traffic from A to B leaves that from B to A, from A to C and from C to B alone.
    #[test]
    fn links_do_not_disturb_each_other(costs in any_costs(), messages in any_messages()) {
        let clocks = LocalClocks::default();
        for (now, bytes) in ready(&messages) {
            carry(&between(0, 1, costs), &clocks, now, bytes, 0);
        }
        for (from, to) in [(1, 0), (0, 2), (2, 1)] {
            let route = between(from, to, costs);
            let alone = carry(&route, &LocalClocks::default(), 0, 1_000, 0);
            prop_assert_eq!(carry(&route, &clocks, 0, 1_000, 0), alone);
        }
    }

    /// A limit counts the bytes that wait at the link, not those of the message.
    #[test]
    fn a_queue_takes_as_many_bytes_as_its_limit(limit in 0..5_000_u64, messages in any_messages()) {
        let route = Route { limit: Some(limit), ..link(costs(GIGABYTE, 5_000)) };
        let clocks = LocalClocks::default();
        let mut free_at = 0;
        for (now, bytes) in ready(&messages) {
            // At 1 GB/s, a byte waits for each nanosecond.
            let waiting = u64::saturating_sub(free_at, now);
            let expected = (waiting <= limit).then_some(free_at.max(now) + bytes);
            free_at = expected.unwrap_or(free_at);
            let times = carry_or_drop(&route, &clocks, now, bytes, 0);
            prop_assert_eq!(times.map(|times| times.arrival - 5_000).ok(), expected);
        }
    }

    /// The machine's own time shortens a route at most to nothing.
    #[test]
    fn a_base_is_taken_off_the_arrival(base in 0..20_000_u64, now in 0..10_000_u64) {
        let route = Route { base, ..link(costs(0, 5_000)) };
        let arrival = carry(&route, &LocalClocks::default(), now, 100, 0).arrival;
        prop_assert_eq!(arrival, now + 5_000_u64.saturating_sub(base));
    }

    #[test]
    fn no_value_overflows(
        fixed in (any::<u64>(), any::<u64>(), any::<u64>()),
        cut in (any::<u32>(), any::<u32>()),
        rate: u64,
        message in (any::<u64>(), any::<u64>(), any::<u64>()),
        limit: Option<u64>,
        base: u64,
        whole: bool,
    ) {
        let costs = Costs {
            message: fixed.0,
            packet: fixed.1,
            payload: cut.0,
            header: cut.1,
            rate,
            latency: fixed.2,
        };
        let stage = Stage { whole, ..link(costs).stages[0] };
        let route = Route { stages: vec![stage; 3], limit, base, ..Route::default() };
        let (now, bytes, delay) = message;
        let clocks = LocalClocks::default();
        for _ in 0..3 {
            prop_assert!(carry(&route, &clocks, now, bytes, delay).arrival >= now);
            let _ = carry_or_drop(&route, &clocks, now, bytes, delay);
        }
    }

    #[test]
    fn jitter_stays_within_its_reach(spread in 1..100_000_u64, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let uniform = Jitter::Uniform { spread };
        let normal = Jitter::Normal { deviation: spread };
        let pareto = Jitter::Pareto { mean: spread };
        for _ in 0..100 {
            prop_assert!(uniform.draw(&mut random) <= 2 * uniform.reach());
            prop_assert!(normal.draw(&mut random) <= 2 * normal.reach());
            prop_assert!(pareto.draw(&mut random) <= 100 * spread);
        }
    }
}

/// Mean and standard deviation of many draws with a fixed seed.
fn moments(jitter: Jitter) -> (f64, f64) {
    const DRAWS: u32 = 200_000;
    let mut random = fastrand::Rng::with_seed(23);
    let draws = (0..DRAWS).map(|_| jitter.draw(&mut random) as f64);
    let draws: Vec<_> = draws.collect();
    let mean = draws.iter().sum::<f64>() / f64::from(DRAWS);
    let squares = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>();
    (mean, (squares / f64::from(DRAWS)).sqrt())
}

#[test]
fn jitter_has_the_moments_of_its_distribution() {
    let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.02;
    let (mean, deviation) = moments(Jitter::Uniform { spread: 10_000 });
    assert!(near(mean, 10_000.0) && near(deviation, 10_000.0 / 3_f64.sqrt()));
    // The cut at 3 deviations takes 1.3 % of the deviation.
    let (mean, deviation) = moments(Jitter::Normal { deviation: 10_000 });
    assert!(near(mean, 30_000.0) && near(deviation, 9_870.0));
    let (mean, _) = moments(Jitter::Pareto { mean: 10_000 });
    assert!(near(mean, 10_000.0), "{mean}");
    assert_eq!(moments(Jitter::None), (0.0, 0.0));
}

/// 64 B on 10 GB/s take 6.4 ns: rounding to nanoseconds would be 6 % off.
#[test]
fn short_messages_have_the_rate_of_their_link() {
    for rate in [GIGABYTE, 10 * GIGABYTE, 50 * GIGABYTE] {
        let (route, clocks) = (link(costs(rate, 0)), LocalClocks::default());
        let arrivals = (0..100_000).map(|_| carry(&route, &clocks, 0, 64, 0).arrival);
        let measured = 64.0 * 100_000.0 * 1e9 / arrivals.last().unwrap_or(1) as f64;
        let error = measured / rate as f64 - 1.0;
        assert!((-0.01..=0.0).contains(&error), "{rate}: {error}");
    }
}

#[test]
fn messages_queue_for_the_rate_and_overlap_in_the_latency() {
    let (route, clocks) = (link(costs(GIGABYTE, 5_000)), LocalClocks::default());
    let arrivals = [0, 0, 10_000].map(|now| carry(&route, &clocks, now, 1_000, 0).arrival);
    assert_eq!(arrivals, [6_000, 7_000, 16_000]);
}

/// A request and an answer take two latencies. The bytes take the rate of their own direction.
#[test]
fn a_read_takes_both_ways_and_a_write_is_seen_after_one() {
    let (out, back) = (costs(GIGABYTE, 5_000), costs(GIGABYTE / 2, 7_000));
    let (out, back) = (between(0, 1, out), between(1, 0, back));
    let clocks = LocalClocks::default();
    let looked = carry(&out, &clocks, 0, 0, 0).arrival;
    let read = carry(&back, &clocks, looked, 1_000, 0).arrival;
    assert_eq!((looked, read), (5_000, 14_000));
    let seen = carry(&out, &clocks, 20_000, 1_000, 0).arrival;
    let complete = carry(&back, &clocks, seen, 0, 0).arrival;
    assert_eq!((seen, complete), (26_000, 33_000));
}

/// A message pays each stage in full, but the next one follows behind.
#[test]
fn stages_that_take_whole_messages_overlap_between_messages() {
    let stage = |n, message| Stage {
        clock: ClockId::endpoint(NodeId(n), 0),
        costs: Costs {
            message,
            ..Costs::default()
        },
        whole: true,
    };
    let route = Route {
        stages: vec![stage(0, 3_000), stage(1, 5_000)],
        ..Route::default()
    };
    let clocks = LocalClocks::default();
    let arrivals = [0; 3].map(|now| carry(&route, &clocks, now, 8_000, 0).arrival);
    assert_eq!(arrivals, [8_000, 13_000, 18_000]);
}
