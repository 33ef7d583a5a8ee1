//! Published figures of machines.

use anyhow::Result;
use toroid_fabric::model::{ClockId, Costs, LocalClocks, Route, Stage, carry};
use toroid_model::link::FabricProfile;

use super::{Bar, Check, Outcome};
use crate::plan::Effort;
use crate::sim::chunks::DEFAULT_CHUNK;
use crate::simulate::scale::Placement;
use crate::simulate::scale::run::Case;

/// Blue Gene/P: less than 5 us between any two of 64 Ki nodes (Appavoo et al., 2010, section 2).
pub const FARTHEST: Check = Check {
    name: "bgp-farthest",
    is_long: false,
    run: farthest,
};

/// Hops between the farthest nodes of a torus of 64 x 32 x 32.
const FARTHEST_HOPS: u32 = 32 + 16 + 16;

/// Bytes of the smallest packet of the torus, with its header.
const SMALLEST_PACKET: u64 = 32;

/// The time is that of the network: packets of one chunk of 32 B, without costs of hosts.
fn farthest(_: Effort) -> Result<Vec<Outcome>> {
    let bgp = FabricProfile::bgp();
    let costs = Costs {
        rate: bgp.rate.0,
        latency: bgp.hop.0,
        ..Costs::default()
    };
    let stage = |n| Stage {
        clock: ClockId::number(n),
        costs,
        whole: false,
    };
    let route = Route {
        stages: (0..FARTHEST_HOPS).map(stage).collect(),
        ..Route::default()
    };
    let arrival = carry(&route, &LocalClocks::default(), 0, SMALLEST_PACKET, 0).arrival;
    Ok(vec![Outcome {
        against: "published: BG/P",
        what: format!("smallest packet over {FARTHEST_HOPS} hops, us"),
        bar: Bar::AtMost,
        expected: 5.0,
        measured: arrival as f64 / 1e3,
    }])
}

/// Kittyhawk: throughput of random placements declines with the size, and "explicit placement" keeps
/// it (Figure 6; the text has no values).
pub const FIGURE_6: Check = Check {
    name: "figure-6",
    is_long: false,
    run: figure_6,
};

fn figure_6(_: Effort) -> Result<Vec<Outcome>> {
    let normalised = |nodes, placement| -> Result<f64> {
        let case = Case {
            nodes,
            bytes: 1024,
            placement,
            gets: 20,
            chunk: DEFAULT_CHUNK,
            seed: 1,
        };
        Ok(case.run(u64::MAX)?.normalised)
    };
    let outcome = |what: &str, bar, expected, measured| Outcome {
        against: "published: Kittyhawk",
        what: what.into(),
        bar,
        expected,
        measured,
    };
    let small = normalised(64, Placement::Random)?;
    let large = normalised(512, Placement::Random)?;
    let near = normalised(512, Placement::Nearest)?;
    Ok(vec![
        outcome(
            "1 KiB gets at random, 64 nodes of 2 nodes",
            Bar::AtMost,
            1.0,
            small,
        ),
        outcome(
            "1 KiB gets at random, 512 nodes of 64 nodes",
            Bar::AtMost,
            small,
            large,
        ),
        outcome(
            "1 KiB gets from the nearest server, 512 nodes of 2",
            Bar::AtLeast,
            0.95,
            near,
        ),
    ])
}
