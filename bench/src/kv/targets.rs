//! The targets of `kv`.

use serde_json::{Value, json};

use super::plan::{self, Op};
use crate::plan::{Path, WorkingSet};
use crate::report::{Row, find, number};
use crate::samples::Samples;
use crate::stats::quotient;
use crate::target::Bound::{AtLeast, AtMost};
use crate::target::Target;
use crate::worker::crowd::Load;

/// All targets.
pub fn all(rows: &[Row], mixes: &[Row], memory: &[Row]) -> Vec<Target> {
    let rows = Rows(rows);
    let mut targets = gets(rows);
    targets.extend(sets(rows));
    targets.extend(text(rows));
    targets.extend(mixed(mixes));
    let of = |path| number(memory, &json!({"path": path}), "bytes_per_item");
    let memory = quotient(of(Path::ToroidTcp), of(Path::MemcachedTcp));
    let what = "memory of an item of 100 bytes over memcached's";
    targets.push(Target::new(AtMost(1.1), what, memory));
    targets
}

fn gets(rows: Rows<'_>) -> Vec<Target> {
    let hot = |path, op, bytes| rows.p50(path, op, bytes, WorkingSet::Hot);
    let cold = |path, op, bytes| rows.p50(path, op, bytes, WorkingSet::Cold);
    let by_rdma = |op, bytes| hot(Path::Rdma, op, bytes);
    let mut targets = Vec::new();
    for (bytes, wanted) in [(1024, 15.0), (4096, 10.0), (64 << 10, 3.5), (1 << 20, 1.7)] {
        let what = format!("get of {bytes} bytes, hot, times faster than memcached over loopback");
        let times = quotient(
            hot(Path::MemcachedTcp, Op::Get, bytes),
            by_rdma(Op::Get, bytes),
        );
        targets.push(Target::new(AtLeast(wanted), what, times));
    }
    let what = "get of 1024 bytes, hot, p50 in ns";
    targets.push(Target::new(AtMost(350.0), what, by_rdma(Op::Get, 1024)));
    for (bytes, wanted) in [(1024, 3.0), (64 << 10, 1.3), (1 << 20, 1.3)] {
        let what = format!("get of {bytes} bytes, cold, over memcpy");
        let copy = cold(Path::Memcpy, Op::Copy, bytes);
        let times = quotient(cold(Path::Rdma, Op::Get, bytes), copy);
        targets.push(Target::new(AtMost(wanted), what, times));
    }
    let get = labels(Load::ONE, Path::Rdma, Op::Get, 1024, WorkingSet::Hot);
    let server = number(rows.0, &get, "server_cpu_ns_per_op");
    let what = "server's processor time for a one-sided get in ns";
    targets.push(Target::new(AtMost(50.0), what, server));
    let all = plan::HOT_SIZES.map(|bytes| by_rdma(Op::Borrow, bytes));
    let slowest = all.into_iter().reduce(|a, b| Some(f64::max(a?, b?)));
    let what = "borrow of any size, hot, p50 in ns";
    targets.push(Target::new(AtMost(300.0), what, slowest.flatten()));
    let [got, borrowed] = [Op::GetSum, Op::BorrowSum].map(|op| by_rdma(op, plan::SUM_BYTES));
    let what = "borrow and sum of 1 MiB, hot, times faster than get and sum";
    targets.push(Target::new(AtLeast(1.5), what, quotient(got, borrowed)));
    targets
}

fn sets(rows: Rows<'_>) -> Vec<Target> {
    let p50 = |path, bytes, set| rows.p50(path, Op::Set, bytes, set);
    let hot = |path, bytes| p50(path, bytes, WorkingSet::Hot);
    let mut targets = Vec::new();
    for bytes in [64, 1024, 4096, 16 << 10] {
        let what = format!("set of {bytes} bytes, times faster than memcached over loopback");
        let times = quotient(hot(Path::MemcachedTcp, bytes), hot(Path::Rdma, bytes));
        targets.push(Target::new(AtLeast(1.0), what, times));
    }
    let bytes = 64 << 10;
    let what = format!("set of {bytes} bytes, times faster than memcached over a unix socket");
    let times = quotient(hot(Path::MemcachedUnix, bytes), hot(Path::Rdma, bytes));
    targets.push(Target::new(AtLeast(2.0), what, times));
    let what = format!("set of {} bytes, cold, p50 in ns", plan::COLD_SET);
    let cold = p50(Path::Rdma, plan::COLD_SET, WorkingSet::Cold);
    targets.push(Target::new(AtMost(30_000.0), what, cold));
    targets
}

/// Targets of memcached's protocol, the store over memcached: medians of the rounds' ratios. Rates
/// over sockets jump with the processors of both ends, so rates of different rounds do not compare.
fn text(rows: Rows<'_>) -> Vec<Target> {
    let mut targets = Vec::new();
    for op in [Op::Get, Op::Set] {
        for load in [vec![Load::ONE], plan::loads(op)].concat() {
            let both = plan::SERVERS.map(|path| {
                let labels = labels(load, path, op, plan::CROWD_BYTES, WorkingSet::Hot);
                find(rows.0, &labels).map(Row::series)
            });
            let over = |of: fn(&Samples) -> Option<f64>| both[0]?.ratio(both[1]?, of);
            let (rate, p99) = (
                over(Samples::ops_per_s),
                over(|round| round.quantile_ns(0.99)),
            );
            let (clients, pipeline, keys) = (load.clients, load.pipeline, load.keys);
            let load = format!("{clients} x {pipeline} requests of {keys}");
            let what = format!("{op:?} by memcached's protocol, {load}");
            let (rate_of, p99_of) = (
                format!("{what}: rate over memcached's"),
                format!("{what}: p99 over memcached's"),
            );
            targets.push(Target::new(AtLeast(1.0), rate_of, rate));
            targets.push(Target::new(AtMost(1.1), p99_of, p99));
        }
    }
    targets
}

fn mixed(mixes: &[Row]) -> [Target; 2] {
    let most = |figure: &str| {
        let rows = mixes
            .iter()
            .filter(|row| row.has(&json!({"path": Path::Rdma})));
        rows.filter_map(|row| row.number(figure)).reduce(f64::max)
    };
    let (reads, asked) = (most("reads_per_get"), most("asked_ratio"));
    let share = "share of gets of a mix that the server had to answer, at most";
    [
        Target::new(AtMost(3.0), "reads for a get of a mix, at most", reads),
        Target::new(AtMost(0.05), share, asked),
    ]
}

#[derive(Clone, Copy)]
struct Rows<'a>(&'a [Row]);

impl Rows<'_> {
    fn p50(self, path: Path, op: Op, bytes: usize, set: WorkingSet) -> Option<f64> {
        number(self.0, &labels(Load::ONE, path, op, bytes, set), "p50_ns")
    }
}

fn labels(load: Load, path: Path, op: Op, bytes: usize, set: WorkingSet) -> Value {
    json!({
        "path": path, "op": op, "bytes": bytes, "set": set,
        "clients": load.clients, "pipeline": load.pipeline, "keys_per_request": load.keys,
    })
}
