//! How fast it should be, judged within one run. Printed, never asserted.

use std::borrow::Cow;

use crate::network::Transport;
use crate::plan::{LONG_WRITE, Path, VALUES, WorkingSet};
use crate::report::{Report, Wanted};
use crate::rows::{Op, Row};
use crate::table::{time, times};

/// A goal and how it was met.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// What is judged.
    pub what: &'static str,
    /// What was measured.
    pub found: String,
    /// What was wanted.
    pub wanted: Cow<'static, str>,
    /// Whether it was met; `None` when it was not measured.
    pub met: Option<bool>,
}

/// All targets.
pub fn all(report: &Report) -> Vec<Target> {
    vec![
        cold_get_latency(report),
        cold_get_rate(report),
        short_read(report),
        stream(report),
        store_over_ethernet(report),
        both_paths(report),
    ]
}

fn cold_get_latency(report: &Report) -> Target {
    let get = value(report, Path::Rdma, Op::Get, 1024, WorkingSet::Cold);
    let copy = value(report, Path::Memcpy, Op::Copy, 1024, WorkingSet::Cold);
    let found = quotient(p50(get), p50(copy));
    Target {
        what: "RDMA get of 1 KiB, cold, over memcpy",
        found: times(found),
        wanted: "at most 4x".into(),
        met: found.map(|found| found <= 4.0),
    }
}

fn cold_get_rate(report: &Report) -> Target {
    let get = value(report, Path::Rdma, Op::Get, 65_536, WorkingSet::Cold);
    let copy = value(report, Path::Memcpy, Op::Copy, 65_536, WorkingSet::Cold);
    let found = quotient(rate(get), rate(copy));
    Target {
        what: "RDMA get of 64 KiB, cold, bytes/s over memcpy's",
        found: times(found),
        wanted: "at least 0.7x".into(),
        met: found.map(|found| found >= 0.7),
    }
}

fn short_read(report: &Report) -> Target {
    let read = report.row(&Wanted {
        depth: Some(1),
        ..wanted(Path::Rdma, Op::Read, 200, Some(WorkingSet::Hot))
    });
    let found = p50(read);
    Target {
        what: "RDMA read of 200 B, hot",
        found: time(found),
        wanted: "at most 150 ns".into(),
        met: found.map(|found| found <= 150.0),
    }
}

fn stream(report: &Report) -> Target {
    let stream = |path| {
        report.row(&Wanted {
            proto: Some(Transport::Tcp),
            ..wanted(path, Op::Stream, LONG_WRITE, None)
        })
    };
    let found = quotient(rate(stream(Path::Ethernet)), rate(stream(Path::Veth)));
    Target {
        what: "TCP stream of 128 KiB writes over the domain's Ethernet, over veth's",
        found: times(found),
        wanted: "at least 0.4x".into(),
        met: found.map(|found| found >= 0.4),
    }
}

/// The worst of all sizes, working sets and operations.
fn store_over_ethernet(report: &Report) -> Target {
    let mut worst = None;
    for set in [WorkingSet::Hot, WorkingSet::Cold] {
        for op in [Op::Get, Op::Set] {
            for bytes in VALUES {
                let p50 = |path| p50(value(report, path, op, bytes, set));
                let found = quotient(p50(Path::Ethernet), p50(Path::Veth));
                worst = found.into_iter().chain(worst).reduce(f64::max);
            }
        }
    }
    Target {
        what: "Store over the domain's Ethernet, over veth, worst p50",
        found: times(worst),
        wanted: "at most 1.5x".into(),
        met: worst.map(|worst| worst <= 1.5),
    }
}

fn both_paths(report: &Report) -> Target {
    let get = |path| p50(value(report, path, Op::Get, 1024, WorkingSet::Cold));
    let found = quotient(get(Path::Ethernet), get(Path::Rdma));
    Target {
        what: "Get of 1 KiB, cold, Ethernet over RDMA",
        found: times(found),
        wanted: "over 50x expected".into(),
        met: found.map(|found| found > 50.0),
    }
}

fn wanted(path: Path, op: Op, bytes: usize, set: Option<WorkingSet>) -> Wanted {
    Wanted {
        path,
        op,
        proto: None,
        bytes,
        depth: None,
        set,
    }
}

fn value(report: &Report, path: Path, op: Op, bytes: usize, set: WorkingSet) -> Option<&Row> {
    report.row(&wanted(path, op, bytes, Some(set)))
}

fn p50(row: Option<&Row>) -> Option<f64> {
    row?.p50_ns
}

fn rate(row: Option<&Row>) -> Option<f64> {
    row?.bytes_per_s
}

fn quotient(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    let (over, under) = over.zip(under)?;
    (under > 0.0).then(|| over / under)
}
