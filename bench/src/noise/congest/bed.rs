//! Nodes of both domains, and one measurement.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::Torus;
use toroid_model::info::DomainInfo;
use toroid_model::link::FabricProfile;

use super::plan::{
    CONGESTORS, DATAGRAM, DEPTH, Key, OPERATION, Path, Pattern, TORUS, Test, VICTIMS,
    datagrams_per_s, pause,
};
use super::report::{FEWEST, figure};
use crate::cluster::{Cluster, ClusterError, Process, member};
use crate::plan::Effort;
use crate::programs::bed::join;
use crate::roles;
use crate::samples::{Samples, Series, entry};
use crate::stats::{mean, quantile};
use crate::worker::congestor::{Congestion, Operations, Sending};
use crate::worker::micro::Carrier;
use crate::worker::micro::script::Wait;
use crate::worker::network::Transport;
use crate::worker::network::flood::Flood;
use crate::worker::one_sided::{Direction, ExportedKeys, HOT};
use crate::worker::programs::rank::Usage;
use crate::worker::programs::task::Task;
use crate::worker::sampler::{Pace, WARM_UP};
use crate::worker::{Job, Order};

const VICTIM: &str = "victim";
const CONGESTOR: &str = "congestor";

/// Bytes of a write to a TCP stream.
const WRITE: usize = 8000;

/// The group of a broadcast.
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 1, 2, 4), 7000);

/// Longer than any measurement.
const ENDLESS: Duration = Duration::from_secs(3600);

/// Time in which queues fill, after the begin of all traffic.
const RAMP: Duration = Duration::from_millis(20);

/// Both domains.
pub struct Bed {
    // Processes end before the cluster.
    _peer: Process,
    victim: Process,
    /// Ranks of all victims, for each path.
    ranks: Vec<(Path, Vec<Process>)>,
    congestors: Vec<Congestor>,
    cluster: Cluster,
    /// The peer's sessions.
    server: Option<SocketAddrV4>,
    /// Whether links have a model.
    is_emulated: bool,
    /// Datagrams of a broadcast per second.
    datagrams_per_s: f64,
    /// Time of the victim in a measurement, and the most time for slow operations.
    slice: Duration,
    longest: Duration,
    /// The mean time of a sample in the last measurement.
    known: Vec<(Key, f64)>,
    /// The samples of the isolated victim, of which rounds have figures only.
    pub isolated: Vec<(Key, Series)>,
    count: u64,
}

/// A member of the congestor's domain.
struct Congestor {
    process: Process,
    address: Ipv4Addr,
    /// Session server.
    server: SocketAddrV4,
    memory: ExportedKeys,
}

/// The victim's operations in one measurement.
struct Measured {
    samples: Samples,
    /// Share of its transfers that left links late; `None` without a model.
    late_share: Option<f64>,
}

impl Bed {
    /// Starts nodes, domains and processes.
    pub fn prepare(
        fabric: Option<&FabricProfile>,
        paths: &[Path],
        effort: Effort,
    ) -> Result<Self, ClusterError> {
        let [x, y, z] = TORUS;
        let has_ethernet = paths.contains(&Path::Ethernet);
        let driver = has_ethernet.then_some(roles::DRIVER);
        let torus = Torus::new(x, y, z)?;
        let mut cluster = Cluster::start_emulating(fabric.cloned(), torus, driver)?;
        if has_ethernet && let Some(mut reason) = cluster.no_taps()? {
            reason.remedy += ", or measure --path rdma alone";
            return Err(ClusterError::ours(reason));
        }
        let domain = create(&mut cluster, VICTIM, &VICTIMS)?;
        let mut victim = cluster.worker(VICTIMS[0])?;
        let mut peer = cluster.worker(VICTIMS[1])?;
        cluster.connect_memory(VICTIM, HOT, &mut peer, &mut victim)?;
        let server = match has_ethernet {
            true => Some(serve(&mut cluster, &mut peer, &domain, VICTIMS[1])?),
            false => None,
        };
        let nodes = VICTIMS.map(String::from);
        let mut ranks = Vec::new();
        for path in paths {
            let carrier = |_| match path {
                Path::Rdma => Carrier::Fabric,
                Path::Ethernet => Carrier::Ethernet,
            };
            let joined = join(&mut cluster, carrier, &domain, &nodes, Wait::Block)?;
            ranks.push((*path, joined));
        }
        let domain = create(&mut cluster, CONGESTOR, &CONGESTORS)?;
        let mut congestors = Vec::new();
        for node in CONGESTORS {
            let mut process = cluster.worker(node)?;
            let export = Order::Export(CONGESTOR.into(), HOT);
            congestors.push(Congestor {
                memory: cluster.ask(&mut process, &export)?,
                address: member(&domain, node)?.ipv4,
                server: serve(&mut cluster, &mut process, &domain, node)?,
                process,
            });
        }
        Ok(Bed {
            _peer: peer,
            victim,
            ranks,
            congestors,
            cluster,
            server,
            is_emulated: fabric.is_some(),
            datagrams_per_s: datagrams_per_s(fabric),
            slice: Duration::from_millis(effort.quick_or(60, 250)),
            longest: Duration::from_millis(effort.quick_or(150, 1000)),
            known: Vec::new(),
            isolated: Vec::new(),
            count: 0,
        })
    }

    /// Measures the victim isolated and beside the pattern. Neither always follows the other.
    pub fn measure(&mut self, key: &Key) -> Result<Samples, ClusterError> {
        self.count += 1;
        let control = Key {
            pattern: None,
            ..*key
        };
        let first = match self.count.is_multiple_of(2) {
            true => Some(self.victim(&control)?),
            false => None,
        };
        let (beside, rate) = match key.pattern {
            None => (self.victim(&control)?, None),
            Some(pattern) => self.beside(key, pattern)?,
        };
        let isolated = match first {
            Some(isolated) => isolated,
            None => self.victim(&control)?,
        };
        let late_shares = [isolated.late_share, beside.late_share];
        let late_share = late_shares.into_iter().flatten().reduce(f64::max);
        let mean = |of: &Samples| mean(&of.samples_ns);
        let p99 = |of: &Samples| {
            let p99 = quantile(&of.samples_ns, 0.99);
            p99.filter(|_| of.samples_ns.len() >= FEWEST)
        };
        let (alone, samples) = (isolated.samples, beside.samples);
        let samples = Samples {
            errors: samples.errors + alone.errors,
            ..samples
        };
        let samples = samples
            .clone()
            .with(figure::ISOLATED_MEAN, mean(&alone))
            .with(figure::ISOLATED_P99, p99(&alone))
            .with(figure::MEAN, mean(&samples))
            .with(figure::P99, p99(&samples))
            .with(figure::CONGESTOR, rate)
            .with(figure::LATE_SHARE, late_share);
        entry(&mut self.isolated, *key).add(alone);
        Ok(samples)
    }

    /// Measures the victim beside a pattern. Returns also the rate of the congestors in bytes per
    /// second, which is not zero.
    fn beside(
        &mut self,
        key: &Key,
        pattern: Pattern,
    ) -> Result<(Measured, Option<f64>), ClusterError> {
        let mut active = Vec::new();
        for at in 0..self.congestors.len() {
            let flows = self.flows(key.path, pattern, at);
            if flows.is_empty() {
                continue;
            }
            let congest = Order::Congest(Congestion {
                domain: CONGESTOR.into(),
                flows,
            });
            let process = &mut self.congestors[at].process;
            let () = self.cluster.ask(process, &congest)?;
            active.push(at);
        }
        thread::sleep(RAMP);
        let mut measured = self.victim(key)?;
        let mut rate = 0.0;
        for at in active {
            let process = &mut self.congestors[at].process;
            let moved: Samples = self.cluster.ask(process, &Order::EndCongestion)?;
            measured.samples.errors += moved.errors;
            rate += moved.bytes_per_s().unwrap_or_default();
        }
        Ok((measured, Some(rate)))
    }

    /// What a congestor sends.
    fn flows(&self, path: Path, pattern: Pattern, at: usize) -> Vec<Sending> {
        let all = self.congestors.iter().enumerate();
        let others: Vec<&Congestor> = all
            .filter(|(other, _)| *other != at)
            .map(|(_, other)| other)
            .collect();
        let (own, root, is_root) = (&self.congestors[at], &self.congestors[0], at == 0);
        let operations = |direction| {
            move |of: &Congestor| {
                Sending::Operations(Operations {
                    keys: of.memory.clone(),
                    direction,
                    bytes: OPERATION,
                    depth: DEPTH,
                    pause: pause(self.is_emulated),
                })
            }
        };
        let to = |of: &Congestor| match path {
            Path::Rdma => operations(Direction::Write)(of),
            Path::Ethernet => Sending::Stream(of.server, WRITE),
        };
        match (pattern, path) {
            (Pattern::AllToAll, _) => others.into_iter().map(to).collect(),
            (Pattern::Incast, _) if !is_root => vec![to(root)],
            (Pattern::Broadcast, Path::Rdma) if !is_root => {
                vec![operations(Direction::Read)(root)]
            }
            (Pattern::Broadcast, Path::Ethernet) if is_root => {
                vec![Sending::Datagrams(Flood {
                    servers: others.iter().map(|other| other.server).collect(),
                    group: Some(GROUP),
                    interface: own.address,
                    bytes: DATAGRAM,
                    per_s: self.datagrams_per_s,
                    time: ENDLESS,
                })]
            }
            _ => Vec::new(),
        }
    }

    /// Measures the victim beside what a key says, which is there at the moment.
    fn victim(&mut self, key: &Key) -> Result<Measured, ClusterError> {
        let before = self.late(key.path)?;
        let samples = match key.test {
            Test::Latency | Test::Bandwidth => self.operate(key)?,
            Test::Allreduce => self.sum(key)?,
        };
        let after = self.late(key.path)?;
        if let Some(mean) = mean(&samples.samples_ns) {
            *entry(&mut self.known, *key) = mean;
        }
        let late_share = before.zip(after).map(|(before, after)| {
            let [late, all] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
            late as f64 / all.max(1) as f64
        });
        Ok(Measured {
            samples,
            late_share,
        })
    }

    fn operate(&mut self, key: &Key) -> Result<Samples, ClusterError> {
        let bytes = key.test.bytes();
        let job = match key.path {
            Path::Rdma => Job::OneSided(Direction::Read, 1, bytes),
            Path::Ethernet => {
                let server = self.server.ok_or(ClusterError::NoServer)?;
                Job::RoundTrips(server, Transport::Tcp, bytes)
            }
        };
        // A percentile of means would hide the tail.
        let pace = Pace {
            time: self.time(key),
            batch: Some(1),
        };
        let order = job.order(self.count, pace);
        self.cluster.ask(&mut self.victim, &order)
    }

    /// Sums over all victims, one at a time; a sample is the time of the slowest rank.
    fn sum(&mut self, key: &Key) -> Result<Samples, ClusterError> {
        let (time, bytes) = (self.time(key), key.test.bytes());
        let mut ranks = self.ranks.iter_mut();
        let ranks = ranks.find(|(path, _)| *path == key.path);
        let (_, ranks) = ranks.ok_or(ClusterError::NoServer)?;
        let order = Order::RunProgram(Task::allreduce(bytes, 1));
        let (mut samples, start) = (Samples::default(), Instant::now());
        while samples.ops == 0 || start.elapsed() < time {
            let usages: Vec<Usage> = self.cluster.ask_all(ranks, &order)?;
            let slowest = usages.iter().map(|usage| usage.elapsed_ns).max();
            let took = Duration::from_nanos(slowest.unwrap_or_default());
            samples.record(took, bytes, true);
        }
        Ok(samples)
    }

    /// Time of a measurement: enough for a 99th percentile after the warm-up, if operations are as
    /// slow as the last time.
    fn time(&self, key: &Key) -> Duration {
        let known = self.known.iter().find(|(of, _)| of == key);
        let each = known.map_or(0.0, |(_, mean)| *mean);
        let of = |count: f64| Duration::from_nanos((count * each) as u64);
        let operations = f64::from(2 * WARM_UP);
        let (for_each, warm_up) = match (key.test, key.path) {
            // The ranks meet before and check the result afterwards.
            (Test::Allreduce, _) => (4.0, 0.0),
            (_, Path::Rdma) => (1.5, operations),
            // A sample is half a round trip.
            (_, Path::Ethernet) => (3.0, 2.0 * operations),
        };
        let samples = of(for_each * FEWEST as f64).clamp(self.slice, self.longest);
        samples + of(warm_up).min(self.longest)
    }

    /// Transfers of the victim's nodes so far: those that left links late, and all. `None` without a
    /// model.
    fn late(&mut self, path: Path) -> Result<Option<[u64; 2]>, ClusterError> {
        if !self.is_emulated {
            return Ok(None);
        }
        let report = self.cluster.control()?.links(VICTIM, &[])?;
        let of_path = report.links.iter().map(|link| match path {
            Path::Rdma => link.rdma,
            Path::Ethernet => link.ethernet,
        });
        let sum = of_path.fold([0; 2], |[late, all], path| {
            [late + path.late, all + path.transfers]
        });
        Ok(Some(sum))
    }
}

fn create(cluster: &mut Cluster, name: &str, nodes: &[&str]) -> Result<DomainInfo, ClusterError> {
    let nodes: Vec<String> = nodes.iter().map(|node| node.to_string()).collect();
    Ok(cluster.control()?.create(name, &nodes, None, None)?)
}

/// Serves network sessions. Returns the address in the domain.
fn serve(
    cluster: &mut Cluster,
    process: &mut Process,
    domain: &DomainInfo,
    node: &str,
) -> Result<SocketAddrV4, ClusterError> {
    let port = cluster.ask(process, &Order::Serve)?;
    Ok(SocketAddrV4::new(member(domain, node)?.ipv4, port))
}
