//! The command `compare --concurrent`: a stream over the domain's Ethernet and one-sided reads
//! between the same two nodes, each alone and then both at once, and what each loses.

use std::fmt::Write;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use serde::Serialize;
use toroid_fabric::Torus;
use toroid_model::refusal::Refusal;

use crate::cluster::{Cluster, ClusterError, Process};
use crate::machine::Machine;
use crate::one_sided::{Direction, ExportedKeys};
use crate::plan::{Effort, LONG_WRITE, PIPELINE, Path, Test};
use crate::progress::Progress;
use crate::roles;
use crate::sampler::Pace;
use crate::stats::{Slice, median};
use crate::table;
use crate::worker::Order;

const TORUS: [u16; 3] = [2, 1, 1];
const DOMAIN: &str = "bench";
const SERVER: &str = "0,0,0";
const CLIENT: &str = "1,0,0";

/// Bytes and depth of the reads: small ones one after another, and large ones as fast as they go.
const READS: [(usize, u32); 2] = [(200, 1), (8000, PIPELINE)];

/// What one path does alone and beside the other.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub path: Path,
    /// What it does: `stream` or `read`.
    pub op: &'static str,
    /// Bytes of a write or a read.
    pub bytes: usize,
    /// Operations in flight; of reads.
    pub depth: Option<u32>,
    /// Bytes and depth of the reads that the other path did meanwhile, or that were its own.
    pub reads: (usize, u32),
    /// The median over rounds.
    pub alone_bytes_per_s: Option<f64>,
    /// The median over rounds.
    pub together_bytes_per_s: Option<f64>,
    /// The median over rounds of what it lost in a round, as a fraction of what it had alone.
    pub lost: Option<f64>,
    /// How many.
    pub rounds: usize,
    /// Operations that failed or gave wrong bytes.
    pub errors: u64,
}

/// The circumstances of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// What moves the bytes of one-sided operations: `shm`, which stands in for RDMA.
    pub provider: &'static str,
    /// Which budget was asked for.
    pub effort: Effort,
    /// Of the domain, in bytes.
    pub mtu: u32,
    /// Where there are no interfaces, so that the stream is between stacks: why, and what to do.
    pub no_taps: Option<Refusal>,
    /// Where it was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// Wall time of the whole in seconds.
    pub elapsed_s: f64,
}

/// A report, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured.
    pub config: Config,
    /// What was measured.
    pub concurrent: Vec<Row>,
}

/// Rates of one path in each round.
#[derive(Default)]
struct Rates {
    alone: Vec<f64>,
    together: Vec<f64>,
    errors: u64,
}

impl Rates {
    fn add(&mut self, alone: &Slice, together: &Slice) {
        self.alone.push(rate(alone));
        self.together.push(rate(together));
        self.errors += alone.errors + together.errors;
    }

    fn row(&self, path: Path, reads: (usize, u32)) -> Row {
        let rounds = self.alone.iter().zip(&self.together);
        let lost: Vec<f64> = rounds
            .map(|(alone, together)| 1.0 - together / alone)
            .collect();
        let (op, bytes, depth) = match path {
            Path::Rdma => ("read", reads.0, Some(reads.1)),
            _ => ("stream", LONG_WRITE, None),
        };
        Row {
            path,
            op,
            bytes,
            depth,
            reads,
            alone_bytes_per_s: median(&self.alone),
            together_bytes_per_s: median(&self.together),
            lost: median(&lost),
            rounds: self.alone.len(),
            errors: self.errors,
        }
    }
}

fn rate(slice: &Slice) -> f64 {
    slice.bytes as f64 * 1e9 / slice.elapsed_ns.max(1) as f64
}

/// Measures everything.
///
/// # Errors
/// [`ClusterError`]; nothing is left behind.
pub fn measure(effort: Effort, progress: &mut Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let (rounds, slice) = plan(effort);
    progress.say("starting two nodes");
    let mut pair = Pair::prepare()?;
    progress.expect(rounds * READS.len() as u32);
    let mut rates: [(Rates, Rates); READS.len()] = Default::default();
    for _ in 0..rounds {
        for (reads, (ethernet, rdma)) in READS.into_iter().zip(&mut rates) {
            progress.step(&format!("a stream beside reads of {} B", reads.0));
            let stream = pair.stream(slice);
            let read = pair.read(reads, slice);
            let Pair {
                cluster,
                streamer,
                reader,
                ..
            } = &mut pair;
            let streamed: Slice = cluster.ask(streamer, &stream)?;
            let was_read: Slice = cluster.ask(reader, &read)?;
            let both = cluster.ask_both([(streamer, &stream), (reader, &read)])?;
            let [streamed_beside, was_read_beside]: [Slice; 2] = both;
            ethernet.add(&streamed, &streamed_beside);
            rdma.add(&was_read, &was_read_beside);
        }
    }
    progress.say("cleaning up");
    let (mtu, no_taps) = (pair.mtu, pair.no_taps.take());
    drop(pair);
    let rows = READS.into_iter().zip(&rates);
    let rows = rows.flat_map(|(reads, (ethernet, rdma))| {
        [
            ethernet.row(Path::Ethernet, reads),
            rdma.row(Path::Rdma, reads),
        ]
    });
    Ok(Report {
        concurrent: rows.collect(),
        config: Config {
            provider: "shm",
            effort,
            mtu,
            no_taps,
            machine: Machine::this(),
            elapsed_s: start.elapsed().as_secs_f64(),
        },
    })
}

fn plan(effort: Effort) -> (u32, Duration) {
    let (rounds, slice_ms) = match effort {
        Effort::Quick => (7, 100),
        Effort::Default => (9, 250),
        Effort::Full => (15, 600),
    };
    (rounds, Duration::from_millis(slice_ms))
}

/// Two nodes: one serves and exports, two processes of the other are the active sides.
struct Pair {
    // Processes end before the cluster.
    _passive: Process,
    streamer: Process,
    reader: Process,
    cluster: Cluster,
    server: SocketAddrV4,
    no_taps: Option<Refusal>,
    mtu: u32,
    salt: u64,
}

impl Pair {
    fn prepare() -> Result<Self, ClusterError> {
        let [x, y, z] = TORUS;
        let mut cluster = Cluster::start(Torus::new(x, y, z)?, Some(roles::DRIVER))?;
        let domain = cluster.create_domain(DOMAIN)?;
        let mut members = domain.members.iter();
        let server = members.find(|member| member.node.to_string() == SERVER);
        let server = server.ok_or(ClusterError::NoServer)?;
        let mut passive = cluster.spawn(SERVER, &[roles::WORKER])?;
        let mut streamer = cluster.spawn(CLIENT, &[roles::WORKER])?;
        let mut reader = cluster.spawn(CLIENT, &[roles::WORKER])?;
        let name = || DOMAIN.to_owned();
        let no_taps = cluster.no_taps()?;
        if no_taps.is_some() {
            for process in [&mut passive, &mut streamer] {
                let () = cluster.ask(process, &Order::UseStack { domain: name() })?;
            }
        }
        let port = cluster.ask(&mut passive, &Order::Serve)?;
        let keys: ExportedKeys = cluster.ask(&mut passive, &Order::Export { domain: name() })?;
        let memory = Order::UseMemory {
            domain: name(),
            keys,
        };
        let () = cluster.ask(&mut reader, &memory)?;
        Ok(Pair {
            _passive: passive,
            streamer,
            reader,
            cluster,
            server: SocketAddrV4::new(server.ipv4, port),
            no_taps,
            mtu: domain.mtu,
            salt: 0,
        })
    }

    fn stream(&self, time: Duration) -> Order {
        Order::Stream {
            server: self.server,
            bytes: LONG_WRITE,
            time_us: time.as_micros() as u64,
        }
    }

    fn read(&mut self, (bytes, depth): (usize, u32), time: Duration) -> Order {
        self.salt += 1;
        Order::Measure {
            test: Test::OneSided {
                direction: Direction::Read,
                depth,
                bytes,
            },
            working_set: 0,
            salt: self.salt,
            pace: Pace {
                time_us: time.as_micros() as u64,
                batch: None,
            },
        }
    }
}

impl Report {
    /// Operations that failed or gave wrong bytes.
    pub fn errors(&self) -> u64 {
        self.concurrent.iter().map(|row| row.errors).sum()
    }

    /// The report for people.
    pub fn render(&self) -> String {
        table::text(|to| self.write(to))
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        let config = &self.config;
        writeln!(
            to,
            "Both paths between two nodes of one domain, each alone and both at once ({}).\n\
             Shared memory stands in for RDMA. Medians of {} rounds.\n",
            config.machine,
            self.concurrent.first().map_or(0, |row| row.rounds),
        )?;
        if let Some(no_taps) = &config.no_taps {
            writeln!(
                to,
                "No interfaces; the stream is between stacks in the processes (smoltcp).\n\
                 No TAPs: {no_taps}.\n"
            )?;
        }
        writeln!(
            to,
            "{:<44}{:>12}{:>12}{:>8}",
            "", "alone", "together", "lost"
        )?;
        for row in &self.concurrent {
            let label = match row.depth {
                None => format!("TCP stream, {} KiB writes", row.bytes / 1024),
                Some(1) => format!("  beside RDMA reads of {} B, one at a time", row.bytes),
                Some(depth) => format!("  beside RDMA reads of {} B, {depth} at once", row.bytes),
            };
            let lost = row
                .lost
                .map_or_else(|| "-".into(), |lost| format!("{:.0} %", lost * 100.0));
            let (alone, together) = (
                table::rate(row.alone_bytes_per_s),
                table::rate(row.together_bytes_per_s),
            );
            writeln!(to, "{label:<44}{alone:>12}{together:>12}{lost:>8}")?;
        }
        writeln!(to, "\n{:.0} s in all.", config.elapsed_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_that_of_the_rounds() {
        let slice = |bytes| Slice {
            bytes,
            elapsed_ns: 1_000_000_000,
            ..Slice::default()
        };
        let mut rates = Rates::default();
        for (alone, together) in [(100, 50), (1000, 500), (10, 9)] {
            rates.add(&slice(alone), &slice(together));
        }
        let row = rates.row(Path::Rdma, READS[0]);
        assert_eq!(row.lost, Some(0.5));
        assert_eq!(row.alone_bytes_per_s, Some(100.0));
        assert_eq!(row.together_bytes_per_s, Some(50.0));
        assert_eq!((row.op, row.depth), ("read", Some(1)));
    }
}
