use super::*;
use crate::routes::model::Operation;
use crate::routes::policy::Recorded;
use crate::topology::NodeId;

use Mode::{Adaptive0 as AD, Adaptive1, Adaptive3 as HB};

/// Decides on every message.
const ALL: Parameters = Parameters {
    lambda: 1.0 / 1.2,
    sigma: 5.0,
    life: 5,
    cutoff: 0,
    hysteresis: 0.0,
};

fn put(bytes: u64) -> Outgoing {
    Outgoing {
        to: NodeId(1),
        bytes,
        operation: Operation::Put,
        is_alltoall: false,
    }
}

/// 1000 flits and packets with `latency` in cycles and `stalls` per flit.
fn counted(latency: f64, stalls: f64) -> Counters {
    Counters {
        request_flits: 1000,
        stalled_cycles: (stalls * 1000.0).round() as u64,
        packets: 1000,
        latency_ns: (latency * 1250.0).round() as u64,
    }
}

fn policy(parameters: Parameters) -> SelectRouting {
    SelectRouting::new(parameters).unwrap()
}

/// A policy whose current mode is high bias, with a sample of the default mode.
fn in_high_bias(parameters: Parameters) -> SelectRouting {
    let mut policy = policy(parameters);
    policy.learn(AD, &counted(4000.0, 0.01));
    assert_eq!(policy.choose(&put(1024)), HB);
    policy
}

/// Decisions at 1, 4, 16, 64 KiB, 1 and 4 MiB from the default mode, by Equation 3.
#[test]
fn decisions_are_those_of_equation_3() {
    let sizes = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20];
    let table = [
        (500.0, 0.01, [HB, HB, HB, AD, AD, AD]),
        (1000.0, 0.05, [HB, HB, AD, AD, AD, AD]),
        (1000.0, 0.5, [AD, AD, AD, AD, AD, AD]),
        (2000.0, 0.01, [HB, HB, HB, HB, HB, HB]),
        (2000.0, 0.1, [HB, HB, AD, AD, AD, AD]),
        (4000.0, 0.05, [HB, HB, HB, AD, AD, AD]),
        (4000.0, 1.0, [HB, AD, AD, AD, AD, AD]),
    ];
    for (latency, stalls, modes) in table {
        for (bytes, mode) in sizes.into_iter().zip(modes) {
            let mut policy = policy(ALL);
            policy.learn(AD, &counted(latency, stalls));
            assert_eq!(
                policy.choose(&put(bytes)),
                mode,
                "L {latency}, s {stalls}, {bytes} B"
            );
        }
    }
}

/// Equation 4 fails for the second and the third case.
#[test]
fn stalls_of_high_bias_may_be_above_equal_or_below() {
    // (latency of high bias, stalls of high bias, mode); the default mode has 2000 and 0.5.
    let cases = [
        (1000.0, 1.0, AD),
        (1999.0, 0.5, HB),
        (4000.0, 0.05, HB),
        (2001.0, 0.5, AD),
        (2000.0, 0.5, AD),
        (2000.0, 0.0, HB),
    ];
    for (latency, stalls, mode) in cases {
        let mut policy = in_high_bias(ALL);
        policy.known[Bias::Default as usize] = Some(Known {
            sample: counted(2000.0, 0.5).sample().unwrap(),
            life: 3,
        });
        policy.learn(HB, &counted(latency, stalls));
        assert_eq!(
            policy.choose(&put(1 << 20)),
            mode,
            "L {latency}, s {stalls}"
        );
    }
}

#[test]
fn both_modes_reach_the_same_decision_with_exact_reciprocals() {
    let exact = Parameters {
        lambda: 0.5,
        sigma: 4.0,
        ..ALL
    };
    for latency in [500.0, 2000.0, 8000.0, 32000.0] {
        for stalls in [0.0, 0.03, 0.25, 2.0] {
            for bytes in [64, 4096, 65536, 1 << 22] {
                let mut from_default = policy(exact);
                from_default.learn(AD, &counted(latency, stalls));
                let mut from_high = in_high_bias(exact);
                from_high.known = [None, None];
                from_high.learn(HB, &counted(latency * 0.5, stalls * 4.0));
                let decisions = [&mut from_default, &mut from_high].map(|p| p.choose(&put(bytes)));
                assert_eq!(
                    decisions[0], decisions[1],
                    "L {latency}, s {stalls}, {bytes} B"
                );
            }
        }
    }
}

#[test]
fn small_messages_use_high_bias_until_4_kib_have_gathered() {
    let mut policy = Recorded::new(SelectRouting::default());
    for _ in 0..64 {
        assert_eq!(policy.choose(&put(64)), HB);
    }
    assert_eq!(
        (policy.report().decisions, policy.report().skipped_bytes),
        (0, 4096)
    );
    assert_eq!(policy.choose(&put(64)), AD);
    assert_eq!(policy.report().decisions, 1);
    assert_eq!(policy.choose(&put(64)), HB);
    let report = policy.report();
    assert_eq!(
        (report.decisions, report.switches, report.skipped_bytes),
        (1, 0, 4160)
    );
    assert_eq!((report.bytes_of(HB), report.bytes_of(AD)), (4160, 64));
    assert_eq!(report.total_bytes(), 66 * 64);
}

#[test]
fn small_messages_do_not_count_as_samples_of_high_bias() {
    let mut policy = policy(ALL);
    policy.learn(HB, &counted(100.0, 0.0));
    policy.learn(AD, &counted(1000.0, 0.5));
    assert_eq!(policy.choose(&put(4096)), AD);
    assert!(policy.known[Bias::High as usize].is_none());
}

#[test]
fn a_sample_serves_four_decisions_and_the_fifth_estimates() {
    let mut policy = in_high_bias(ALL);
    for decision in 1..=5 {
        policy.learn(HB, &counted(100.0, 0.0));
        assert_eq!(policy.choose(&put(1024)), HB);
        let serves = policy.known[Bias::Default as usize].is_some();
        assert_eq!(serves, decision <= 4, "decision {decision}");
    }
}

#[test]
fn exchanges_between_all_use_adaptive_1_as_the_default_mode() {
    let exchange = Outgoing {
        is_alltoall: true,
        ..put(1 << 20)
    };
    let mut policy = policy(ALL);
    assert_eq!(policy.choose(&exchange), Adaptive1);
    policy.learn(Adaptive1, &counted(4000.0, 0.01));
    assert_eq!(
        policy.choose(&Outgoing {
            bytes: 1024,
            ..exchange
        }),
        HB
    );
}

#[test]
fn without_counters_the_mode_stays() {
    let mut policy = policy(ALL);
    policy.learn(AD, &Counters::default());
    policy.learn(
        AD,
        &Counters {
            packets: 3,
            ..Counters::default()
        },
    );
    assert_eq!(policy.choose(&put(1 << 20)), AD);
    let mut policy = in_high_bias(ALL);
    policy.known = [None, None];
    assert_eq!(policy.choose(&put(1 << 20)), HB);
}

#[test]
fn counters_beyond_all_bounds_are_survived() {
    let largest = Counters {
        request_flits: 1,
        stalled_cycles: u64::MAX,
        packets: 1,
        latency_ns: u64::MAX,
    };
    let mut policy = policy(ALL);
    for mode in Mode::ALL {
        policy.learn(mode, &largest);
        policy.learn(mode, &largest);
        policy.choose(&put(u64::MAX));
    }
    policy.mode = Bias::Default;
    let sample = Sample {
        latency: f64::NAN,
        stalls: f64::NAN,
    };
    policy.known = [Some(Known { sample, life: 5 }); 2];
    assert_eq!(policy.choose(&put(1 << 20)), AD);
}

/// Both modes swap places at each decision, by 2 % of the time.
#[test]
fn hysteresis_stops_switches_for_a_small_gain() {
    let switches = |hysteresis| {
        let mut policy = Recorded::new(policy(Parameters {
            hysteresis,
            lambda: 1.0,
            sigma: 0.9,
            ..ALL
        }));
        let mut mode = policy.choose(&put(1 << 20));
        for _ in 0..20 {
            policy.learn(mode, &counted(1000.0, 0.2));
            mode = policy.choose(&put(1 << 20));
            let slower = counted(1000.0, 0.22);
            policy.learn(mode, &slower);
        }
        policy.report().switches
    };
    assert!(switches(0.0) > 0);
    assert_eq!(switches(0.1), 0);
}

#[test]
fn parameters_out_of_range_are_refused() {
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let lambda = SelectRouting::new(Parameters {
            lambda: value,
            ..ALL
        });
        assert!(matches!(
            lambda.unwrap_err(),
            ParameterError::Ratio { name: "lambda", .. }
        ));
        let sigma = SelectRouting::new(Parameters {
            sigma: value,
            ..ALL
        });
        assert!(matches!(
            sigma.unwrap_err(),
            ParameterError::Ratio { name: "sigma", .. }
        ));
    }
    let life = SelectRouting::new(Parameters { life: 0, ..ALL });
    assert_eq!(life.unwrap_err(), ParameterError::Life);
    for hysteresis in [-0.1, 1.0, f64::NAN] {
        let error = SelectRouting::new(Parameters { hysteresis, ..ALL }).unwrap_err();
        assert!(
            error.to_string().ends_with("use a share from 0 to below 1"),
            "{error}"
        );
    }
}
