//! Emulated links on `shm` and on `tcp`. Times have a lower bound only: a busy machine delays
//! everything.

mod operations;
mod packets;
mod rigs;
mod spin;

use super::*;
use crate::core::endpoint::{Completion, Endpoint, Operation};
use crate::error::OpError;
use crate::key::Partition;
use crate::model::{ClockId, Clocks, Costs, Jitter, Path, Route, SharedClocks, Stage, record_of};
use crate::provider::RemoteRegion;
use crate::topology::NodeId;
use rigs::{Ends, Rig, channels, pairs};
use std::fs::File;
use std::sync::Arc;

const HERE: NodeId = NodeId(0);
const THERE: NodeId = NodeId(1);
const PARTITION: Partition = Partition(7);

/// Limit of all waiting.
const FOR_EVER: Duration = Duration::from_secs(20);

const MILLISECOND: Nanos = 1_000_000;

/// A route of one stage.
fn route(from: NodeId, to: NodeId, costs: Costs) -> Route {
    let stage = Stage {
        clock: ClockId::pair(from, to),
        costs,
        whole: false,
    };
    Route {
        stages: vec![stage],
        ..Route::default()
    }
}

/// The same costs there and back.
fn way(costs: Costs) -> Way {
    way_on(&SharedClocks::create().unwrap(), costs)
}

/// The same costs there and back, with clocks in `memory`.
fn way_on(memory: &File, costs: Costs) -> Way {
    Way {
        out: route(HERE, THERE, costs),
        back: route(THERE, HERE, costs),
        spin: None,
        clocks: Arc::new(SharedClocks::map(memory).unwrap()),
        routers: None,
    }
}

/// Senders spin for the costs of the way out, which is then free as the way back.
fn spun(costs: Costs) -> Way {
    let mut way = way(costs);
    way.back = Route::default();
    way.spin = Some(std::mem::take(&mut way.out));
    way
}

/// A way that has another stage behind the first one in both directions.
fn way_of_two_stages(costs: Costs) -> Way {
    let mut way = way(costs);
    for (route, node) in [(&mut way.out, THERE), (&mut way.back, HERE)] {
        route.stages.push(Stage {
            clock: ClockId::endpoint(node, 0),
            costs,
            whole: true,
        });
    }
    way
}

/// Whether no message has reserved a stage for a time to come.
fn is_free(way: &Way, clock: ClockId) -> bool {
    let now = monotonic() * 64;
    way.clocks.reserve(clock, now, 0, u64::MAX) == Some(now)
}

fn after(latency: Nanos) -> Costs {
    Costs {
        latency,
        ..Costs::default()
    }
}

fn link(way: Way) -> Arc<PeerLink> {
    let link = Arc::<PeerLink>::default();
    link.set(Some(Arc::new(way)));
    link
}

/// Number of recorded transfers from us.
fn recorded(link: &PeerLink) -> u64 {
    let way = link.way().unwrap();
    record_of(&way.clocks, Path::Rdma, [ClockId::pair(HERE, THERE)]).transfers
}
