//! Published figures of machines.

use anyhow::Result;
use toroid_fabric::model::{ClockId, Costs, LocalClocks, Route, Stage, carry};
use toroid_model::link::FabricProfile;

use super::{Bar, Check, Outcome};
use crate::plan::Effort;

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
