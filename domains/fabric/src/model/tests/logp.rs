//! Parameters of LogGP, measured on a virtual clock as benchmarks measure them: each cost moves one.

use proptest::prelude::*;

use super::*;

/// Bytes of a long message: rounding to nanoseconds is far below the time of a byte.
const LONG: u64 = 1 << 40;

/// Parameters as a benchmark sees them, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    latency: u64,
    /// Time from one short message to the next.
    overhead: u64,
    /// Time of a long message beyond that of a short one.
    long: u64,
}

fn measure(costs: Costs) -> Measured {
    let route = link(costs);
    let ping = |bytes| carry(&route, &LocalClocks::default(), 0, bytes, 0).arrival;
    let clocks = LocalClocks::default();
    let starts = [0; 101].map(|now| carry(&route, &clocks, now, 0, 0).start);
    let overhead = (starts[100] - starts[0]) / 100;
    Measured {
        latency: ping(0) - overhead,
        overhead,
        long: ping(LONG) - ping(0),
    }
}

proptest! {
    #[test]
    fn latency_overhead_and_rate_each_move_one_parameter(
        message in 0..100_000_u64,
        rate in 1_000_000..20 * GIGABYTE,
        latency in 0..1_000_000_u64,
        more in 1..1_000_000_u64,
    ) {
        let costs = Costs { message, ..costs(rate, latency) };
        let before = measure(costs);
        prop_assert_eq!((before.latency, before.overhead), (latency, message));
        let later = measure(Costs { latency: latency + more, ..costs });
        prop_assert_eq!(later, Measured { latency: latency + more, ..before });
        let busier = measure(Costs { message: message + more, ..costs });
        prop_assert_eq!(busier, Measured { overhead: message + more, ..before });
        let slower = measure(Costs { rate: rate / 2, ..costs });
        prop_assert_eq!(slower, Measured { long: slower.long, ..before });
        let ratio = slower.long as f64 / before.long as f64;
        prop_assert!((ratio * (rate / 2) as f64 / rate as f64 - 1.0).abs() < 1e-6, "{}", ratio);
    }
}
