//! Live ranks: processes in the nodes of a domain, or in one node.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use toroid_fabric::{NodeId, Torus};
use toroid_model::info::DomainInfo;
use toroid_model::link::FabricProfile;

use crate::busy;
use crate::cluster::{Cluster, ClusterError, PATIENCE, Process, member};
use crate::machine;
use crate::micro::bed::Path;
use crate::samples::Samples;
use crate::worker::Order;
use crate::worker::micro::Carrier;
use crate::worker::micro::script::Wait;
use crate::worker::programs::grid::factors;
use crate::worker::programs::rank::Usage;
use crate::worker::programs::task::Task;
use crate::worker::ranks::{Join, Peer};

const DOMAIN: &str = "programs";

/// Time of an operation on a slow machine, ten times that of a fast one.
const SLOW_NS: u64 = 10;

/// All ranks of a path.
pub struct Bed {
    // Processes end before the cluster.
    ranks: Vec<Process>,
    cluster: Cluster,
}

/// How ranks wait for messages: polling takes a processor for each, and the driver of an interface
/// needs one, too.
pub fn wait(path: Path, ranks: usize) -> Wait {
    match path.wait() {
        Wait::Poll if have_processors(ranks) => Wait::Poll,
        _ => Wait::Block,
    }
}

/// Whether there is a processor for each rank, and for the process that spins beside, if any.
pub fn have_processors(ranks: usize) -> bool {
    ranks + usize::from(busy::spins()) <= machine::cpus()
}

impl Bed {
    /// Starts nodes and ranks, and connects each rank with each. Ranks use `devices` in turns; without
    /// any all use the first of this host.
    pub fn prepare(path: Path, devices: &[String], ranks: usize) -> Result<Self, ClusterError> {
        // The ranks of this provider talk over the loopback interface of one node.
        let nodes = if path.has_one_node() { 1 } else { ranks };
        let torus = torus(nodes)?;
        let (mut cluster, domain) = path.start(torus, DOMAIN)?;
        let places = places(torus, nodes, ranks)?;
        let device = |rank| devices.iter().cycle().nth(rank);
        let carrier = |rank| path.carrier(device(rank));
        let wait = wait(path, ranks);
        let processes = join(&mut cluster, carrier, &domain, &places, wait)?;
        Ok(Bed {
            ranks: processes,
            cluster,
        })
    }

    /// As [`Bed::prepare`], over a model of a torus with a node for each rank. Ranks sleep while they
    /// wait.
    pub fn emulate(fabric: FabricProfile, ranks: usize) -> Result<Self, ClusterError> {
        let torus = torus(ranks)?;
        let mut cluster = Cluster::start_emulating(Some(fabric), torus, None)?;
        let domain = cluster.create_domain(DOMAIN)?;
        let places = places(torus, ranks, ranks)?;
        let carrier = |_| Carrier::Fabric;
        let processes = join(&mut cluster, carrier, &domain, &places, Wait::Block)?;
        Ok(Bed {
            ranks: processes,
            cluster,
        })
    }

    /// Runs a program once.
    pub fn measure(&mut self, task: &Task) -> Result<Samples, ClusterError> {
        let order = Order::RunProgram(*task);
        let patience = patience(task, self.ranks.len());
        let usages = self
            .cluster
            .ask_all_within(&mut self.ranks, &order, patience)?;
        Ok(samples(&usages))
    }
}

/// The torus of so many nodes, as equal as possible along all axes.
pub fn torus(nodes: usize) -> Result<Torus, ClusterError> {
    let [x, y, z] = factors(nodes).map(|size: usize| size as u16);
    Ok(Torus::new(x, y, z)?)
}

/// The node of each rank; ranks use the nodes in turns.
fn places(torus: Torus, nodes: usize, ranks: usize) -> Result<Vec<String>, ClusterError> {
    let node = |rank| {
        let place = torus.place(NodeId((rank % nodes) as u32));
        place.map(|place| place.to_string())
    };
    let places: Option<Vec<String>> = (0..ranks).map(node).collect();
    places.ok_or(ClusterError::NoServer)
}

/// Longest time of a round. On a slow machine, perhaps with one processor, a serial run takes long,
/// and all ranks together take as long.
fn patience(task: &Task, ranks: usize) -> Duration {
    let operations = 2 * task.serial_operations(ranks) as u64;
    PATIENCE + Duration::from_nanos(SLOW_NS * operations)
}

/// Starts a rank with its carrier in each of these nodes of a domain, and connects each with each.
pub fn join(
    cluster: &mut Cluster,
    carrier: impl Fn(usize) -> Carrier,
    domain: &DomainInfo,
    nodes: &[String],
    wait: Wait,
) -> Result<Vec<Process>, ClusterError> {
    let (mut processes, mut peers) = (Vec::new(), Vec::new());
    for (rank, node) in nodes.iter().enumerate() {
        let carrier = carrier(rank);
        let address = match carrier {
            Carrier::Ethernet => member(domain, node)?.ipv4,
            Carrier::Fabric | Carrier::Tcp | Carrier::Verbs(_) => Ipv4Addr::LOCALHOST,
        };
        let mut process = cluster.worker(node)?;
        process.call(format!("rank {rank} in node {node}"));
        let listen = Order::ListenToRanks(carrier, domain.name.clone(), rank);
        let port = cluster.ask(&mut process, &listen)?;
        let (place, at) = (node.clone(), SocketAddrV4::new(address, port));
        peers.push(Peer { place, at });
        processes.push(process);
    }
    let join = Order::JoinRanks(Join { peers, wait });
    cluster.ask_all::<()>(&mut processes, &join)?;
    Ok(processes)
}

/// The time of the slowest rank, and the messages of all.
fn samples(usages: &[Usage]) -> Samples {
    let sum = |of: fn(&Usage) -> u64| usages.iter().map(of).sum::<u64>();
    let most = |of: fn(&Usage) -> u64| usages.iter().map(of).max().unwrap_or_default();
    let elapsed_ns = most(|usage| usage.elapsed_ns);
    let share = sum(|usage| usage.communication_ns) as f64 / sum(|usage| usage.elapsed_ns) as f64;
    let samples = Samples {
        batch: 1,
        samples_ns: vec![elapsed_ns as f64],
        ops: 1,
        bytes: sum(|usage| usage.bytes),
        elapsed_ns,
        ..Samples::default()
    };
    samples
        .with("communication", share)
        .with("messages", sum(|usage| usage.messages) as f64)
        .with("most_messages", most(|usage| usage.messages) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Effort;
    use crate::worker::programs::task::Name;

    #[test]
    fn a_program_takes_as_long_as_its_slowest_rank() {
        let usage = |elapsed_ns, communication_ns, messages| Usage {
            elapsed_ns,
            communication_ns,
            messages,
            bytes: 8 * messages,
        };
        let samples = samples(&[usage(100, 20, 1), usage(300, 180, 4)]);
        assert_eq!((samples.samples_ns, samples.bytes), (vec![300.0], 40));
        let figures = ["communication", "messages", "most_messages"];
        let figures = figures.map(|name| samples.figures[name]);
        assert_eq!(figures, [0.5, 5.0, 4.0]);
    }

    #[test]
    fn a_round_with_a_serial_run_has_time_for_it_on_a_slow_machine() {
        let of = |name, effort| patience(&Task::new(name, effort), 4);
        assert_eq!(of(Name::Alltoall, Effort::Default), PATIENCE);
        // 62^3 points, 250 iterations of 130 operations, twice.
        let lu = of(Name::Lu, Effort::Default) - PATIENCE;
        assert_eq!(lu.as_secs(), 154);
        assert!(of(Name::Lu, Effort::Quick) < PATIENCE + Duration::from_secs(1));
    }

    #[test]
    fn only_ranks_with_a_processor_each_poll() {
        let all = machine::cpus();
        assert_eq!(wait(Path::Shm, all), Wait::Poll);
        assert_eq!(wait(Path::Tcp, all + 1), Wait::Block);
        assert_eq!(wait(Path::Ethernet, 1), Wait::Block);
    }
}
