//! Hit rates of the store and of Debian's memcached with equal memory, on the same
//! [traces](crate::worker::traces).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use serde_json::json;
use toroid_fabric::Torus;

use super::bed::{self, DOMAIN, PORT};
use super::plan::SERVERS;
use crate::cluster::{Cluster, ClusterError};
use crate::machine;
use crate::plan::{Effort, Path};
use crate::progress::Progress;
use crate::report::{self, Fields, Report, Row, SHARE, Show, TEXT, name, number};
use crate::samples::{Samples, Series};
use crate::stats::quotient;
use crate::target::Bound::AtLeast;
use crate::target::{self, Target};
use crate::worker::sampler::Pace;
use crate::worker::stores::Target as Server;
use crate::worker::traces::{ROOM, Trace};
use crate::worker::{Job, Order};

/// Memory of each server, the default of both.
const MEMORY: u64 = 64 << 20;

/// Bytes of the largest item, the default of both.
const ITEM: u32 = 1 << 20;

/// Gets of an order, few enough to be answered in time.
const GETS: u64 = 50_000;

/// Carries out all traces, each by two freshly started servers.
pub fn measure(effort: Effort, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let orders = (effort.quick_or(8, 20) * ROOM).div_ceil(GETS);
    progress.expect(orders as usize * Trace::ALL.len() * SERVERS.len());
    progress.say("starting the nodes");
    // A node for each trace, because servers of all traces have the same ports.
    let mut cluster = Cluster::start(Torus::new(Trace::ALL.len() as u16, 1, 1)?, None)?;
    cluster.create_domain(DOMAIN)?;
    let mut rows = Vec::new();
    for (number, trace) in Trace::ALL.into_iter().enumerate() {
        let node = format!("{number},0,0");
        for (path, series) in carry_out(&mut cluster, &node, trace, orders, progress)? {
            rows.push(row(trace, path, &series));
        }
    }
    drop(cluster);
    let mut found = Report::flat(effort, start, Fields::default().with("memory", MEMORY));
    let targets = targets(&rows);
    found.rows("rows", &rows);
    found.targets(&targets);
    let columns: [(&str, &str, Show); 4] = [
        ("trace", "trace", TEXT),
        ("path", "path", TEXT),
        ("gets", "gets", TEXT),
        ("hits", "hit_ratio", SHARE),
    ];
    let table = report::table(&rows, 2, &columns);
    found.text = format!(
        "{}\nHit rates with {} MiB each, {:.0} s\n\n{table}\n{}",
        machine::describe(),
        MEMORY >> 20,
        start.elapsed().as_secs_f64(),
        target::render(&targets),
    );
    Ok(found)
}

fn row(trace: Trace, path: Path, series: &Series) -> Row {
    let gets: u64 = series.rounds().iter().map(|round| round.ops).sum();
    let hits = series.sum("hits");
    Row::of(series)
        .label("trace", trace)
        .label("path", path)
        .figure("gets", gets)
        .figure("hits", hits as u64)
        .figure("wrong", series.errors())
        .figure("hit_ratio", hits / gets.max(1) as f64)
}

fn carry_out(
    cluster: &mut Cluster,
    node: &str,
    trace: Trace,
    orders: u64,
    progress: &Progress,
) -> Result<[(Path, Series); 2], ClusterError> {
    let config = bed::store_config(MEMORY, ITEM);
    let (store, port) = cluster.start_store(node, &config, "")?;
    let limits = bed::Limits {
        memory: MEMORY,
        item: ITEM,
    };
    let by_tcp = ["-l", "127.0.0.1", "-p", &PORT.to_string()];
    let memcached = bed::start_memcached(cluster, node, Path::MemcachedTcp, limits, &by_tcp)?;
    let mut client = cluster.worker(node)?;
    let mut found = SERVERS.map(|path| (path, Series::default()));
    for ((path, series), port) in found.iter_mut().zip([port, PORT]) {
        let server = Server::Tcp(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        cluster.ask::<()>(&mut client, &Order::Connect(*path, server))?;
        for order in 0..orders {
            progress.step(format!("{} by {}", name(trace), name(*path)));
            let gets = order * GETS..(order + 1) * GETS;
            let job = Job::Trace(*path, trace, gets);
            // A trace ends with its gets, not after a time.
            let order = job.order(0, Pace::of(Duration::ZERO));
            series.add(cluster.ask::<Samples>(&mut client, &order)?);
        }
    }
    drop([store, memcached, client]);
    Ok(found)
}

/// Targets of each trace: at least memcached's hits.
fn targets(rows: &[Row]) -> Vec<Target> {
    let of = |trace, path| number(rows, &json!({"trace": trace, "path": path}), "hit_ratio");
    let target = |trace: Trace| {
        let [ours, theirs] = SERVERS.map(|path| of(trace, path));
        let what = format!("hits of {} over memcached's", name(trace));
        Target::new(AtLeast(1.0), what, quotient(ours, theirs))
    };
    Trace::ALL.map(target).into()
}
