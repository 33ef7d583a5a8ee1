//! The live fabric under a model of a torus, and simulated ranks with the same costs.
//!
//! Links are so slow that the time of this machine's own processes is small beside theirs: a hop
//! takes 4 ms, a wake-up of a busy machine some 0.1 to 0.5 ms. The machine only adds to a live time,
//! so the shortest round counts. Pieces of the message layer pass links whole, as in the model of
//! live links. A difference is left: a live packet reserves all links of its way when it is sent, a
//! simulated one reserves each link on arrival.
//!
//! Needs neither root nor TAPs; where user namespaces are not allowed, the comparison does not run.

use anyhow::{Context, Result};
use toroid_fabric::NodeId;
use toroid_fabric::routes::policy::{Fixed, Policy, Recorded};
use toroid_fabric::routes::{Mode, TorusNetwork};
use toroid_model::link::{EthernetCosts, FabricProfile, Rate, RdmaCosts, Time};

use super::{Bar, Check, Outcome};
use crate::plan::Effort;
use crate::programs::bed::Bed;
use crate::sim::chunks::{ChunkNetwork, MAX_CHUNK};
use crate::sim::profile::{LinkCosts, NicCosts};
use crate::sim::{Profile, TICKS};
use crate::simulate::ranks::{self, Costs, Job};
use crate::worker::programs::grid::factors;
use crate::worker::programs::rank::Meter;
use crate::worker::programs::task::Task;
use crate::worker::programs::{halo3d, messages};

pub const LIVE: Check = Check {
    name: "live",
    is_long: false,
    run,
};

/// Bytes per second and nanoseconds of each link.
const RATE: u64 = 1_000_000;
const HOP_NS: u64 = 4_000_000;

/// Longest piece of the message layer's live packets.
const PIECE: usize = 32 << 10;

/// Rounds of each program.
const ROUNDS: usize = 3;

/// Bytes per second of network cards, which the model of live links does not have.
const FAST: u64 = 1_000_000_000_000;

/// Programs by their number of nodes.
fn cases() -> [(usize, Vec<Task>); 2] {
    let size = |bytes, count| messages::Size { bytes, count };
    let halo = halo3d::Size {
        points: 8,
        iterations: 10,
    };
    let pair = vec![
        Task::PingPong(size(1 << 10, 20)),
        Task::PingPong(size(64 << 10, 4)),
    ];
    let cube = vec![
        Task::PingPong(size(1 << 10, 20)),
        Task::Alltoall(size(1 << 10, 4)),
        Task::Alltoall(size(16 << 10, 1)),
        Task::Allreduce(size(8 << 10, 5)),
        Task::Broadcast(size(64 << 10, 2)),
        Task::Halo3d(halo),
    ];
    [(2, pair), (8, cube)]
}

fn run(_: Effort) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (nodes, tasks) in cases() {
        let bed = Bed::emulate(fabric(), nodes);
        let mut bed = bed.context("no live fabric on this machine")?;
        for task in tasks {
            let live = live_ms(&mut bed, &task)?;
            outcomes.push(Outcome {
                against: "live fabric",
                what: format!("{task} on {nodes} nodes, ms"),
                bar: Bar::Within(0.1),
                expected: live,
                measured: simulated_ms(nodes, task)?,
            });
        }
    }
    Ok(outcomes)
}

/// The shortest round.
fn live_ms(bed: &mut Bed, task: &Task) -> Result<f64> {
    let mut shortest = f64::INFINITY;
    for _ in 0..ROUNDS {
        let samples = bed.measure(task)?;
        shortest = shortest.min(samples.elapsed_ns as f64 / 1e6);
    }
    Ok(shortest)
}

fn simulated_ms(nodes: usize, task: Task) -> Result<f64> {
    let torus = TorusNetwork::new(factors(nodes).map(|size: usize| size as u32))?;
    let mut network = ChunkNetwork::new(torus, profile(), MAX_CHUNK, 1, u64::MAX)?;
    let policy =
        |_| -> Recorded<Box<dyn Policy>> { Recorded::new(Box::new(Fixed::new(Mode::InOrder))) };
    let job = Job {
        network: &mut network,
        nodes: &(0..nodes as u32).map(NodeId).collect::<Vec<_>>(),
        domain: 0,
        costs: Costs {
            operation: TICKS as f64,
            piece: PIECE,
            ..Costs::default()
        },
        policies: &mut (0..nodes).map(policy).collect::<Vec<_>>(),
        beside: None,
    };
    let usages = ranks::run(job, move |rank| task.run(&mut Meter::new(rank), &mut None))?;
    let usages = usages.into_iter().collect::<Result<Vec<_>>>()?;
    let elapsed = usages.iter().map(|usage| usage.elapsed_ns).max();
    Ok(elapsed.unwrap_or_default() as f64 / 1e6)
}

/// The costs of live links.
fn fabric() -> FabricProfile {
    FabricProfile {
        name: "slow".into(),
        rate: Rate(RATE),
        hop: Time(HOP_NS),
        payload: 0,
        header: 0,
        rdma: RdmaCosts::default(),
        ethernet: EthernetCosts::default(),
        gateway: None,
    }
}

/// The same costs of simulated links.
fn profile() -> Profile {
    let link = LinkCosts {
        rate: RATE,
        latency_ns: HOP_NS,
    };
    Profile {
        name: "slow",
        row: link,
        column: link,
        global: link,
        torus: link,
        nic: NicCosts {
            rate: FAST,
            send_ns: 0,
            receive_ns: 0,
            packet_ns: 0,
            buffer: u32::MAX,
            window: u32::MAX,
        },
        header: 0,
        ..Profile::bgp()
    }
}
