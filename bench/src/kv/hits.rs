//! Hit rates of the store and of Debian's memcached with the same memory, on the same [`traces`](super::traces).

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use serde::Serialize;
use toroid_fabric::Torus;

use super::bed::{self, DOMAIN, PORT};
use super::client::{Order, Target as Server};
use super::plan::Path;
use super::targets::{self, Target};
use super::traces::{Hits, ROOM, Trace};
use crate::cluster::{Cluster, ClusterError};
use crate::machine::Machine;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::roles::{self, StoreConfig};
use crate::table;

/// Memory of each server, as by default.
const MEMORY: u64 = 64 << 20;

/// The largest item, as by default.
const ITEM: u32 = 1 << 20;

/// Gets of an order: what takes less time than an answer may.
const GETS: u64 = 50_000;

/// The two that are compared.
const PATHS: [Path; 2] = [Path::ToroidTcp, Path::MemcachedTcp];

/// What a server found of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The trace.
    pub trace: Trace,
    /// The server.
    pub path: Path,
    /// All gets.
    #[serde(flatten)]
    pub hits: Hits,
    /// The share that found something.
    pub hit_ratio: f64,
}

/// A report, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which budget was asked for.
    pub effort: Effort,
    /// Where it was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// Bytes for items of each server.
    pub memory: u64,
    /// Wall time of the whole in seconds.
    pub elapsed_s: f64,
    /// What was found.
    pub rows: Vec<Row>,
    /// What is wanted of it.
    pub targets: Vec<Target>,
}

/// Carries out all traces, each by two servers that have just been started.
///
/// # Errors
/// [`ClusterError`]; nothing is left behind.
pub fn measure(effort: Effort, progress: &mut Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let turns = match effort {
        Effort::Quick => 8,
        Effort::Default | Effort::Full => 20,
    };
    let orders = (turns * ROOM).div_ceil(GETS);
    progress.expect((orders as usize * Trace::ALL.len() * PATHS.len()) as u32);
    progress.say("starting the nodes");
    // A node for each trace, whose servers have the same ports.
    let mut cluster = Cluster::start(Torus::new(Trace::ALL.len() as u16, 1, 1)?, None)?;
    cluster.create_domain(DOMAIN)?;
    let mut rows = Vec::new();
    for (number, trace) in Trace::ALL.into_iter().enumerate() {
        let node = format!("{number},0,0");
        for (path, hits) in carry_out(&mut cluster, &node, trace, orders, progress)? {
            rows.push(Row {
                trace,
                path,
                hits,
                hit_ratio: hits.ratio(),
            });
        }
    }
    Ok(Report {
        effort,
        machine: Machine::this(),
        memory: MEMORY,
        elapsed_s: start.elapsed().as_secs_f64(),
        targets: targets(&rows),
        rows,
    })
}

fn carry_out(
    cluster: &mut Cluster,
    node: &str,
    trace: Trace,
    orders: u64,
    progress: &mut Progress,
) -> Result<[(Path, Hits); 2], ClusterError> {
    let config = StoreConfig {
        domain: DOMAIN.into(),
        memory: MEMORY,
        item: ITEM,
        stack: false,
    };
    let config = serde_json::to_string(&config).unwrap_or_default();
    let store = cluster.spawn(node, &[roles::STORE, &config])?;
    let port: u16 = cluster.answer(&store)?;
    let limits = bed::Limits {
        memory: MEMORY,
        item: ITEM,
    };
    let by_tcp = ["-l", "127.0.0.1", "-p", &PORT.to_string()];
    let memcached = bed::start_memcached(cluster, node, Path::MemcachedTcp, limits, &by_tcp)?;
    let mut client = cluster.spawn(node, &[roles::KV_CLIENT])?;
    let mut found = PATHS.map(|path| (path, Hits::default()));
    for ((path, hits), port) in found.iter_mut().zip([port, PORT]) {
        let server = Server::Tcp(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        cluster.ask::<()>(&mut client, &Order::Connect(*path, server))?;
        for order in 0..orders {
            progress.step(&format!("{trace} by {}", path.name()));
            let gets = order * GETS..(order + 1) * GETS;
            let order = Order::Trace {
                path: *path,
                trace,
                gets,
            };
            hits.add(cluster.ask(&mut client, &order)?);
        }
    }
    drop([store, memcached, client]);
    Ok(found)
}

/// At least memcached's hits of each trace.
fn targets(rows: &[Row]) -> Vec<Target> {
    let of = |trace, path| {
        let row = rows
            .iter()
            .find(|row| (row.trace, row.path) == (trace, path));
        row.map(|row| row.hit_ratio)
    };
    let target = |trace: Trace| {
        let [ours, theirs] = PATHS.map(|path| of(trace, path));
        Target::at_least(
            1.0,
            format!("hits of {trace} over memcached's"),
            targets::quotient(ours, theirs),
        )
    };
    Trace::ALL.map(target).into()
}

impl Report {
    /// Values that were wrong.
    pub fn errors(&self) -> u64 {
        self.rows.iter().map(|row| row.hits.wrong).sum()
    }

    /// The tables.
    pub fn render(&self) -> String {
        table::text(|to| self.write(to))
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "{}", self.machine)?;
        writeln!(
            to,
            "Hit rates with {} MiB each, {:.0} s\n",
            self.memory >> 20,
            self.elapsed_s
        )?;
        writeln!(
            to,
            "{:<14}{:<16}{:>10}{:>9}",
            "trace", "path", "gets", "hits"
        )?;
        for row in &self.rows {
            writeln!(
                to,
                "{:<14}{:<16}{:>10}{:>9.4}",
                row.trace.to_string(),
                row.path.name(),
                row.hits.gets,
                row.hit_ratio
            )?;
        }
        writeln!(to)?;
        self.targets
            .iter()
            .try_for_each(|target| writeln!(to, "{target}"))
    }
}
