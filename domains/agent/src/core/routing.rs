//! Report of the choice of routes through an emulated torus.

use std::fs::File;
use std::io;

use toroid_fabric::model::Path;
use toroid_fabric::routes::Mode;
use toroid_fabric::routing::{Leg, RouteRecord, RouteRecords};
use toroid_model::info::{ModeCounters, RouteCounters, RoutingInfo};
use toroid_model::link::{LinkSpec, Pair};

/// Records of the routes of a domain.
pub(super) struct Routes(RouteRecords);

impl Routes {
    pub(super) fn map(memory: &File) -> io::Result<Self> {
        Ok(Routes(RouteRecords::map(memory)?))
    }

    /// The choice of routes over these links, which have one property.
    pub(super) fn info(&self, link: &LinkSpec, of: &[Pair]) -> RoutingInfo {
        let [rdma, ethernet] = [Path::Rdma, Path::Ethernet].map(|path| {
            let legs = of.iter().map(|Pair { from, to }| Leg {
                from: *from,
                to: *to,
                path,
            });
            counters(&self.0.of(legs))
        });
        RoutingInfo {
            mode: link.routing.unwrap_or_default(),
            rdma,
            ethernet,
        }
    }
}

fn counters(record: &RouteRecord) -> RouteCounters {
    let used = Mode::ALL
        .into_iter()
        .filter(|mode| record.counters[*mode as usize].packets > 0);
    let modes = used.map(|mode| {
        let counted = &record.counters[mode as usize];
        let counters = ModeCounters {
            bytes: record.bytes[mode as usize],
            request_flits: counted.request_flits,
            stalled_cycles: counted.stalled_cycles,
            packets: counted.packets,
            latency_ns: counted.latency_ns,
        };
        (mode.name().to_owned(), counters)
    });
    RouteCounters {
        decisions: record.decisions,
        switches: record.switches,
        skipped_bytes: record.skipped_bytes,
        messages: record.messages,
        share_non_minimal: record.share_non_minimal(),
        modes: modes.collect(),
    }
}
