//! Flows on a virtual clock.

use super::*;

const MILLISECOND: Nanos = 1_000_000;

/// 1 byte a nanosecond, so that every time below is a whole number.
const RULE: FlowRule = FlowRule {
    above: GIGABYTE,
    idle: MILLISECOND,
};

/// Paths of messages of `bytes`, one each `period`.
fn send(flow: &mut Flow, from: Nanos, period: Nanos, bytes: u64, count: u64) -> Vec<FlowPath> {
    let times = (0..count).map(|n| from + n * period);
    times.map(|now| flow.send(&RULE, now, bytes)).collect()
}

#[test]
fn a_flow_at_the_rate_stays_at_the_gateway() {
    let mut flow = Flow::default();
    let paths = send(&mut flow, 0, 1_000, 1_000, 100_000);
    assert!(paths.iter().all(|path| *path == FlowPath::Gateway));
}

#[test]
fn a_flow_above_the_rate_goes_direct_after_the_message_that_exceeds_it() {
    let mut flow = Flow::default();
    // Twice the rate: each message adds a backlog of 1 us, and the first one of 2 us.
    let paths = send(&mut flow, 0, 1_000, 2_000, 1_002);
    let through = paths.iter().position(|path| *path == FlowPath::Direct);
    assert_eq!(through, Some(1_000));
    assert_eq!(paths[1_000..], [FlowPath::Direct; 2]);
}

#[test]
fn a_burst_of_a_window_is_not_busy_and_one_of_more_is() {
    for (bytes, path) in [
        (MILLISECOND, FlowPath::Gateway),
        (MILLISECOND + 1, FlowPath::Direct),
    ] {
        let mut flow = Flow::default();
        assert_eq!(flow.send(&RULE, 7, bytes), FlowPath::Gateway);
        assert_eq!(flow.path(), path, "{bytes}");
    }
}

#[test]
fn a_direct_flow_falls_back_when_idle_and_begins_anew() {
    let mut flow = Flow::default();
    let mut now = 5;
    flow.send(&RULE, now, 2 * MILLISECOND);
    // However slow, a flow that is not idle stays.
    for _ in 0..100 {
        now += RULE.idle - 1;
        assert_eq!(flow.send(&RULE, now, 1), FlowPath::Direct);
    }
    now += RULE.idle;
    assert_eq!(flow.send(&RULE, now, MILLISECOND), FlowPath::Gateway);
    assert_eq!(flow.send(&RULE, now, 1), FlowPath::Gateway);
    assert_eq!(flow.send(&RULE, now, 1), FlowPath::Direct);
}

/// The oracle of the header: some interval brought more than the rate allows in it and an idle time.
fn is_busy(messages: &[(Nanos, u64)]) -> bool {
    let Some((end, _)) = messages.last() else {
        return false;
    };
    let mut bytes = 0;
    messages.iter().rev().any(|(begin, more)| {
        bytes += more;
        bytes > end - begin + RULE.idle
    })
}

proptest! {
    #[test]
    fn flows_take_the_paths_of_their_definition(
        messages in prop::collection::vec((prop_oneof![
            20 => 0..200_000_u64,
            1 => MILLISECOND - 1..3 * MILLISECOND,
        ], 1..400_000_u64), 1..200),
    ) {
        let (mut flow, mut now, mut last) = (Flow::default(), 0, 0);
        let (mut since, mut expected) = (Vec::new(), FlowPath::Gateway);
        for (pause, bytes) in messages {
            now += pause;
            if now - last >= RULE.idle {
                (since, expected) = (Vec::new(), FlowPath::Gateway);
            }
            last = now;
            prop_assert_eq!(flow.send(&RULE, now, bytes), expected);
            since.push((now, bytes));
            if is_busy(&since) {
                expected = FlowPath::Direct;
            }
        }
    }

    /// No number overflows.
    #[test]
    fn any_flow_has_a_path(
        messages in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
        above in 0..=u64::MAX,
        idle: u64,
    ) {
        let (mut flow, rule) = (Flow::default(), FlowRule { above, idle });
        for (now, bytes) in messages {
            flow.send(&rule, now, bytes);
        }
    }
}
