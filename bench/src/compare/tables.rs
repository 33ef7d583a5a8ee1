//! The tables of `compare`: both paths side by side, their ratio, and the paper's ratio.

use serde_json::{Value, json};

use super::paper;
use super::plan::{MESSAGES, Op, VALUES};
use crate::plan::{LONG_WRITE, PIPELINE, Path, WorkingSet};
use crate::report::{Row, name, number};
use crate::stats::quotient;
use crate::table::{Table, decimals, rate, size, time, times};
use crate::worker::network::Transport;

/// Heads of the two paths and their ratio.
const BOTH: [&str; 3] = ["Ethernet", "RDMA", "RDMA/Eth."];

/// Heads of the baselines.
const BASELINES: [&str; 3] = ["loopback", "veth", "memcpy"];

/// Labels of rows of socket tests.
pub fn socket(path: Path, op: Op, proto: Transport, bytes: usize) -> Value {
    json!({"path": path, "op": op, "proto": proto, "bytes": bytes})
}

pub fn one_sided(op: Op, bytes: usize, depth: u32) -> Value {
    json!({"path": Path::Rdma, "op": op, "bytes": bytes, "depth": depth})
}

pub fn value(path: Path, op: Op, bytes: usize, set: WorkingSet) -> Value {
    json!({"path": path, "op": op, "bytes": bytes, "set": set})
}

pub fn copy(bytes: usize, set: WorkingSet) -> Value {
    value(Path::Memcpy, Op::Copy, bytes, set)
}

/// Labels of rows of real input, which has no working set, unlike rows of [`value`].
pub fn file(path: Path, op: Op) -> Value {
    json!({"section": "files", "path": path, "op": op})
}

#[derive(Clone, Copy)]
pub struct Rows<'a>(pub &'a [Row]);

impl Rows<'_> {
    pub fn p50(self, labels: &Value) -> Option<f64> {
        number(self.0, labels, "p50_ns")
    }

    pub fn rate(self, labels: &Value) -> Option<f64> {
        number(self.0, labels, "bytes_per_s")
    }

    pub fn latencies(self) -> Table {
        let heads = [&["Latency (p50)"][..], &BOTH, &["paper"], &BASELINES].concat();
        let mut table = Table::new(1, &heads);
        for proto in [Transport::Tcp, Transport::Udp] {
            for bytes in MESSAGES {
                let by = |labels: &Value| self.p50(labels);
                let [ethernet, rdma, baselines @ ..] = messages(by, Op::Pingpong, proto, bytes);
                let paper = paper::latency_ratio(bytes).filter(|_| proto == Transport::Tcp);
                let ratio = quotient(ethernet, rdma);
                let both = [time(ethernet), time(rdma), times(ratio), times(paper)];
                let cells = both.into_iter().chain(baselines.map(time));
                table.row([label(proto, bytes)].into_iter().chain(cells));
            }
        }
        table
    }

    pub fn streams(self) -> Table {
        let mut table = Table::new(1, &[&["Stream"][..], &BOTH, &BASELINES].concat());
        let tcp = MESSAGES.into_iter().chain([LONG_WRITE]);
        let tcp = tcp.map(|bytes| (Transport::Tcp, bytes));
        let udp = MESSAGES.map(|bytes| (Transport::Udp, bytes));
        for (proto, bytes) in tcp.chain(udp) {
            let by = |labels: &Value| self.rate(labels);
            let [ethernet, rdma, baselines @ ..] = messages(by, Op::Stream, proto, bytes);
            let both = [rate(ethernet), rate(rdma), times(quotient(rdma, ethernet))];
            let cells = both.into_iter().chain(baselines.map(rate));
            table.row([label(proto, bytes)].into_iter().chain(cells));
        }
        table
    }

    pub fn one_sided(self) -> Table {
        let of = |p50| [p50, "p99", "pipelined"];
        let heads = [&["One-sided"][..], &of("read p50"), &of("write p50")].concat();
        let mut table = Table::new(1, &heads);
        for bytes in MESSAGES.into_iter().chain([LONG_WRITE]) {
            let cells = [Op::Read, Op::Write].map(|op| {
                let single = one_sided(op, bytes, 1);
                [
                    time(self.p50(&single)),
                    time(number(self.0, &single, "p99_ns")),
                    rate(self.rate(&one_sided(op, bytes, PIPELINE))),
                ]
            });
            table.row([size(bytes)].into_iter().chain(cells.concat()));
        }
        table
    }

    pub fn store(self, set: WorkingSet) -> Table {
        let title = format!("Store, {} (p50)", name(set));
        let others = ["paper", "veth", "memcpy", "RDMA p99"];
        let mut table = Table::new(1, &[&[title.as_str()][..], &BOTH, &others].concat());
        for op in [Op::Get, Op::Set] {
            for bytes in VALUES {
                let by = |path| self.p50(&value(path, op, bytes, set));
                let (ethernet, rdma) = (by(Path::Ethernet), by(Path::Rdma));
                let paper = paper::get_ratio(bytes).filter(|_| op == Op::Get);
                table.row([
                    format!("{} {}", name(op), size(bytes)),
                    time(ethernet),
                    time(rdma),
                    times(quotient(ethernet, rdma)),
                    times(paper),
                    time(by(Path::Veth)),
                    time(self.p50(&copy(bytes, set))),
                    time(number(self.0, &value(Path::Rdma, op, bytes, set), "p99_ns")),
                ]);
            }
        }
        table
    }

    pub fn files(self) -> Table {
        let mut table = Table::new(1, &["Files", "Ethernet", "", "RDMA", "", "RDMA/Eth."]);
        for (what, op) in [("store", Op::Set), ("read back", Op::Get)] {
            let [ethernet, rdma] = [Path::Ethernet, Path::Rdma].map(|path| file(path, op));
            let ops = |labels: &Value| {
                let ops = number(self.0, labels, "ops_per_s");
                ops.map_or("-".into(), |_| format!("{} /s", decimals(ops, 0)))
            };
            let rates = [&ethernet, &rdma].map(|labels| self.rate(labels));
            table.row([
                what.into(),
                ops(&ethernet),
                rate(rates[0]),
                ops(&rdma),
                rate(rates[1]),
                times(quotient(rates[1], rates[0])),
            ]);
        }
        table
    }
}

/// A figure of messages over Ethernet, of one-sided reads, and of the baselines.
fn messages(
    figure: impl Fn(&Value) -> Option<f64>,
    op: Op,
    proto: Transport,
    bytes: usize,
) -> [Option<f64>; 5] {
    let by = |path| figure(&socket(path, op, proto, bytes));
    let depth = if op == Op::Stream { PIPELINE } else { 1 };
    [
        by(Path::Ethernet),
        figure(&one_sided(Op::Read, bytes, depth)),
        by(Path::Loopback),
        by(Path::Veth),
        figure(&copy(bytes, WorkingSet::Hot)),
    ]
}

fn label(proto: Transport, bytes: usize) -> String {
    format!("{} {}", name(proto).to_uppercase(), size(bytes))
}
