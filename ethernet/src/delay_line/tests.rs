use std::collections::BTreeMap;

use proptest::prelude::*;
use toroid_fabric::model::{
    Clocks, Costs, Flow, FlowPath, FlowRule, Jitter, LocalClocks, QueueFull, Route, Stage,
    carry_or_drop,
};
use toroid_fabric::{NodeId, Place};

use super::*;
use crate::tunnel::HostId;

fn end(n: u8) -> End {
    match n {
        0 => End::Outside,
        1 => End::Host(HostId(0)),
        x => End::Member(Place { x, y: 0, z: 0 }),
    }
}

fn link(partition: u32, from: u8, to: u8) -> Link {
    Link {
        partition: Partition(partition),
        from: end(from),
        to: end(to),
    }
}

fn frame(number: u32, due: Nanos) -> Frame {
    Frame {
        packet: number.to_ne_bytes().to_vec(),
        sent: 0,
        due,
        ahead: None,
        clock: None,
    }
}

fn number(frame: &Frame) -> u32 {
    u32::from_ne_bytes(frame.packet[..].try_into().unwrap())
}

#[test]
fn frames_leave_when_due_and_in_the_order_of_their_links() {
    let mut line = DelayLine::default();
    let (a, b) = (link(7, 2, 3), link(7, 3, 2));
    for (link, number, due) in [(a, 0, 20), (b, 1, 10), (a, 2, 15), (b, 3, 20)] {
        line.push(link, frame(number, due));
    }
    assert_eq!(line.next_due(), Some(10));
    assert!(line.pop_due(9).is_none());
    let mut popped = std::iter::from_fn(|| line.pop_due(20));
    let left: Vec<_> = popped.by_ref().map(|(_, f)| (number(&f), f.due)).collect();
    assert_eq!(left, [(1, 10), (0, 20), (2, 20), (3, 20)]);
    assert_eq!(line.next_due(), None);
}

#[test]
fn a_flooded_link_leaves_room_for_others() {
    let mut line = DelayLine::default();
    let mut fill = |link| {
        let room = (0..).take_while(|_| {
            let has_room = line.has_room(&link, 1 << 20, 1);
            if has_room {
                let packet = vec![0; 1 << 20];
                line.push(
                    link,
                    Frame {
                        packet,
                        ..frame(0, 0)
                    },
                );
            }
            has_room
        });
        room.count()
    };
    let filled = [2, 3, 4].map(|to| fill(link(7, 1, to)));
    assert_eq!(filled, [32, 16, 8]);
    while line.pop_due(0).is_some() {}
    assert_eq!(line.bytes, 0);
}

/// Sends a frame of `bytes` on a route with several stages.
fn send(
    line: &mut DelayLine,
    clocks: &LocalClocks,
    link: Link,
    route: &Arc<Route>,
    (number, now, bytes): (u32, Nanos, u64),
) {
    let mut passage = Passage::enter(route, clocks, now, bytes).unwrap();
    let course = Course::Fixed(Arc::clone(route));
    passage.advance(&course, clocks, now + AHEAD);
    let reaches = passage.reaches(&course);
    let arrival = passage.times(&course, 0).arrival;
    let ahead = reaches.map(|_| Ahead {
        passage,
        course,
        delay: 0,
    });
    let frame = Frame {
        ahead,
        ..frame(number, reaches.unwrap_or(arrival))
    };
    line.push(link, frame);
}

/// Frames that leave until `end`, in their order.
fn run(line: &mut DelayLine, clocks: &LocalClocks, end: Nanos) -> Vec<(u32, Nanos)> {
    let mut left = Vec::new();
    loop {
        let next = [line.next_due(), line.next_move()]
            .into_iter()
            .flatten()
            .min();
        let Some(now) = next.filter(|now| *now <= end) else {
            return left;
        };
        line.advance(now, |_| Some(clocks));
        left.extend(
            line.pop_due(now)
                .map(|(_, frame)| (number(&frame), frame.due)),
        );
    }
}

/// A stage at which a byte takes 1 ns, or `slow` ns.
fn stage(clock: u8, slow: u64) -> Stage {
    Stage {
        clock: ClockId::endpoint(NodeId(0), clock),
        costs: Costs {
            rate: 1_000_000_000 / slow,
            ..Costs::default()
        },
        whole: true,
    }
}

/// Two senders share the last stage. A sender whose frames wait at its own stage leaves the shared
/// one to the other meanwhile.
#[test]
fn frames_reserve_a_shared_stage_when_they_come_to_it() {
    let (mut line, clocks) = (DelayLine::default(), LocalClocks::default());
    let [slow, fast] = [(1, 100), (2, 1)].map(|(own, slow)| {
        let stages = vec![stage(own, slow), stage(3, 1)];
        Arc::new(Route {
            stages,
            ..Route::default()
        })
    });
    let (busy, idle) = (link(7, 2, 4), link(7, 3, 4));
    for n in 0..100 {
        send(&mut line, &clocks, busy, &slow, (n, 0, 1000));
    }
    assert_eq!(run(&mut line, &clocks, 5_000_000).len(), 49);
    send(&mut line, &clocks, idle, &fast, (1000, 5_000_000, 1000));
    let left = run(&mut line, &clocks, Nanos::MAX);
    // The frame of the idle link meets at most one frame there, and two that came ahead of time.
    let position = left.iter().position(|(number, _)| *number == 1000);
    assert!(position <= Some(2), "{left:?}");
    let times: Vec<_> = left.iter().filter(|(number, _)| *number < 1000).collect();
    let expected = (49..100).map(|n| (n, u64::from(n + 1) * 100_000 + 1000));
    for ((n, due), (number, time)) in expected.zip(times) {
        assert_eq!(n, *number);
        assert!(
            (due..=due + 1000).contains(time),
            "{n}: {time} is not {due}"
        );
    }
    assert_eq!((line.bytes, line.moving.len()), (0, 0));
}

#[test]
fn dropped_frames_move_no_more() {
    let (mut line, clocks) = (DelayLine::default(), LocalClocks::default());
    let stages = vec![stage(1, 1000), stage(2, 1)];
    let route = Arc::new(Route {
        stages,
        ..Route::default()
    });
    for n in 0..10 {
        send(&mut line, &clocks, link(7, 2, 3), &route, (n, 0, 1000));
        send(&mut line, &clocks, link(7, 4, 3), &route, (10 + n, 0, 1000));
    }
    line.drop_of(Partition(7), end(2));
    let left = run(&mut line, &clocks, Nanos::MAX);
    let numbers: Vec<u32> = left.into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, Vec::from_iter(10..20));
    assert_eq!((line.bytes, line.moving.len()), (0, 0));
}

const GATEWAY_LATENCY: Nanos = 500_000;

/// Routes of a flow: through the link and a gateway of 1 ns a byte, and through the link only.
fn flow_routes() -> [Arc<Route>; 2] {
    let mut gateway = stage(2, 1);
    gateway.costs.latency = GATEWAY_LATENCY;
    let stages = [vec![stage(1, 1), gateway], vec![stage(1, 1)]];
    stages.map(|stages| {
        Arc::new(Route {
            stages,
            ..Route::default()
        })
    })
}

/// Sends frames of a flow with pauses before them. Returns path and time of each.
fn send_flow(
    line: &mut DelayLine,
    rule: &FlowRule,
    sends: &[(Nanos, u64)],
) -> Vec<(FlowPath, Nanos)> {
    let (clocks, routes) = (LocalClocks::default(), flow_routes());
    let (mut flow, mut now) = (Flow::default(), 0);
    let mut expected = Vec::new();
    let mut left = Vec::new();
    for (n, (pause, bytes)) in (0..).zip(sends) {
        left.extend(run(line, &clocks, now + pause));
        now += pause;
        let path = flow.send(rule, now, *bytes);
        let route = &routes[path as usize];
        send(line, &clocks, link(7, 2, 3), route, (n, now, *bytes));
        let detour = match path {
            FlowPath::Gateway => GATEWAY_LATENCY + bytes,
            FlowPath::Direct => 0,
        };
        expected.push((path, now + bytes + detour));
    }
    left.extend(run(line, &clocks, Nanos::MAX));
    let numbers: Vec<u32> = left.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, Vec::from_iter(0..sends.len() as u32));
    for ((_, earliest), (number, due)) in expected.iter().zip(&left) {
        assert!(due >= earliest, "{number}: {due} is before {earliest}");
    }
    let paths = expected.into_iter().map(|(path, _)| path);
    paths.zip(left.into_iter().map(|(_, due)| due)).collect()
}

/// Idle, busy, idle: the detour ends with the message that exceeds the rate, and the direct frames
/// behind it wait for it.
#[test]
fn a_busy_flow_leaves_its_gateway_and_comes_back() {
    let rule = FlowRule {
        above: 100_000_000,
        idle: 1_000_000,
    };
    // 100 kB in a window are the most.
    let busy = [(0, 60_000); 4];
    let later = [(900_000, 60_000), (1_000_000, 60_000)];
    let line = &mut DelayLine::default();
    let left = send_flow(line, &rule, &[&busy[..], &later].concat());
    let (gateway, direct) = (FlowPath::Gateway, FlowPath::Direct);
    let second = GATEWAY_LATENCY + 180_000;
    assert_eq!(
        left,
        [
            (gateway, GATEWAY_LATENCY + 120_000),
            (gateway, second),
            (direct, second),
            (direct, second),
            (direct, 960_000),
            (gateway, 1_900_000 + GATEWAY_LATENCY + 120_000),
        ]
    );
}

/// An operation on a delay line at an increasing time.
#[derive(Clone, Debug)]
enum Change {
    Send { link: (u32, u8, u8), latency: u64 },
    Wait { nanos: u64 },
    Drop { partition: u32, end: u8 },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let send = ((7..9u32, 0..5u8, 0..5u8), 0..2000u64);
    let send = send.prop_map(|(link, latency)| Change::Send { link, latency });
    let change = prop_oneof![
        8 => send,
        4 => (0..500u64).prop_map(|nanos| Change::Wait { nanos }),
        1 => (7..9u32, 0..5u8).prop_map(|(partition, end)| Change::Drop { partition, end }),
    ];
    prop::collection::vec(change, 0..200)
}

proptest! {
    /// No frame is early, overtakes another of its link, is lost or comes twice.
    #[test]
    fn each_frame_leaves_once_unless_its_end_is_dropped(changes in changes()) {
        let (mut line, mut now) = (DelayLine::default(), 0);
        let mut expected = BTreeMap::<Link, VecDeque<(u32, Nanos)>>::new();
        let finally = [Change::Wait { nanos: 1 << 30 }];
        for (n, change) in (0..).zip(changes.iter().chain(&finally)) {
            match *change {
                Change::Send { link: (partition, from, to), latency } => {
                    let link = link(partition, from, to);
                    line.push(link, frame(n, now + latency));
                    expected.entry(link).or_default().push_back((n, now + latency));
                }
                Change::Wait { nanos } => {
                    now += nanos;
                    while let Some((link, frame)) = line.pop_due(now) {
                        let first = expected.get_mut(&link).and_then(VecDeque::pop_front);
                        let (n, due) = first.expect("a frame that was sent");
                        prop_assert_eq!(number(&frame), n);
                        prop_assert!(due <= now && due <= frame.due && frame.due <= now);
                    }
                    // None stays behind.
                    prop_assert!(line.next_due().is_none_or(|due| due > now));
                }
                Change::Drop { partition, end: n } => {
                    line.drop_of(Partition(partition), end(n));
                    let is_of = |link: &Link| link.from == end(n) || link.to == end(n);
                    expected.retain(|link, _| link.partition.0 != partition || !is_of(link));
                }
            }
            for (link, frames) in &expected {
                prop_assert_eq!(line.last_due(link).is_some(), !frames.is_empty());
            }
        }
        prop_assert!(expected.values().all(VecDeque::is_empty));
        prop_assert_eq!((line.bytes, line.queues.len(), line.heads.len()), (0, 0, 0));
    }

    /// A flow changes its path at any moment: no frame is early, lost or out of order
    /// ([`send_flow`] checks).
    #[test]
    fn flows_keep_their_order_on_all_paths(
        sends in prop::collection::vec((0..400_000u64, 60..65_000u64), 1..100),
        above in 1_000_000..1_000_000_000u64,
        idle in 10_000..2_000_000u64,
    ) {
        let mut line = DelayLine::default();
        send_flow(&mut line, &FlowRule { above, idle }, &sends);
        prop_assert_eq!((line.bytes, line.moving.len()), (0, 0));
    }

    /// Over every window a link passes at most what its rate allows, and one frame. Frames are lost
    /// only if the queue is full.
    #[test]
    fn a_link_keeps_its_rate_and_its_limit(
        sends in prop::collection::vec((0..20_000u64, 60..9000u64), 1..200),
        spread in 0..5000u64,
    ) {
        const RATE: u64 = 1_000_000_000;
        let route = Route {
            stages: vec![Stage {
                clock: ClockId::pair(NodeId(2), NodeId(3)),
                costs: Costs { rate: RATE, latency: 20_000, ..Costs::default() },
                whole: false,
            }],
            jitter: Jitter::Uniform { spread },
            limit: Some(30_000),
            ..Route::default()
        };
        let (clocks, mut random) = (LocalClocks::default(), fastrand::Rng::with_seed(1));
        let (mut line, mut now, mut dropped) = (DelayLine::default(), 0, 0);
        let mut left = Vec::new();
        for &(pause, bytes) in &sends {
            now += pause;
            left.extend(std::iter::from_fn(|| line.pop_due(now)).map(|(_, frame)| frame));
            let delay = route.jitter.draw(&mut random);
            match carry_or_drop(&route, &clocks, now, bytes, delay) {
                Ok(times) => {
                    prop_assert!(times.arrival >= now + 20_000 + bytes);
                    let frame = Frame {
                        packet: vec![0; bytes as usize],
                        sent: now,
                        due: times.arrival,
                        ahead: None,
                        clock: None,
                    };
                    line.push(link(7, 2, 3), frame);
                }
                Err(QueueFull) => {
                    let free_at = clocks.reserve(route.stages[0].clock, now * 64, 0, u64::MAX);
                    prop_assert!(free_at.unwrap() > (now + 30_000) * 64);
                    dropped += 1;
                }
            }
        }
        left.extend(std::iter::from_fn(|| line.pop_due(Nanos::MAX)).map(|(_, frame)| frame));
        prop_assert_eq!(left.len() + dropped, sends.len());
        prop_assert!(left.is_sorted_by_key(|frame| (frame.sent, frame.due)));
        for (n, first) in left.iter().enumerate() {
            let mut bytes = 0;
            for later in &left[n + 1..] {
                bytes += later.packet.len() as u64;
                prop_assert!(later.due - first.due + 2 * spread + 1 >= bytes);
            }
        }
    }
}
