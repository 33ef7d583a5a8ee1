//! Emulated links on `loopback`. Times have a lower bound only: a busy machine delays everything.

mod operations;
mod packets;

use super::*;
use crate::core::endpoint::{Completion, Endpoint, Operation};
use crate::core::region::Region;
use crate::error::OpError;
use crate::key::{Access, Partition};
use crate::loopback::Network;
use crate::model::{ClockId, Costs, Jitter, Path, Route, SharedClocks, Stage, record_of};
use crate::provider::{self, Provider, RemoteRegion};
use crate::shm;
use crate::topology::NodeId;
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
    let clocks = SharedClocks::map(&SharedClocks::create().unwrap()).unwrap();
    Way {
        out: route(HERE, THERE, costs),
        back: route(THERE, HERE, costs),
        clocks: Arc::new(clocks),
    }
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
