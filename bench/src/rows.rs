//! The report: one row per measurement, always with every key.

use serde::{Serialize, Serializer};

use crate::network::Transport;
use crate::one_sided::Direction;
use crate::plan::{Path, Test, WorkingSet};
use crate::stats::Series;
use crate::store::StoreOp;

/// What a row is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Messages and one-sided operations (the paper's Figure 4).
    Network,
    /// The key-value store (Figure 5).
    Store,
    /// Real input through the store.
    Files,
    /// What is there without Toroid.
    Baseline,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Half a round trip.
    Pingpong,
    /// Messages in one direction.
    Stream,
    /// A value from the store.
    Get,
    /// A value to the store.
    Set,
    /// One-sided, from the peer's memory.
    Read,
    /// One-sided, to the peer's memory.
    Write,
    /// `memcpy`.
    Copy,
}

/// A row. What does not apply is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it is part of.
    pub section: Section,
    /// Between whom and through what.
    pub path: Path,
    /// What was done.
    pub op: Op,
    /// The transport of sockets.
    pub proto: Option<Transport>,
    /// Bytes of a message, operation or value; of a file's block, the most.
    pub bytes: u64,
    /// Operations in flight.
    pub depth: Option<u32>,
    /// Whether the working set fits the caches.
    pub set: Option<WorkingSet>,
    /// Of the interface, in bytes.
    pub mtu: Option<u32>,
    /// Operations whose mean is one sample.
    pub batch: Option<u32>,
    /// Operations per second: round trips, messages received, operations done. The median over
    /// rounds or turns, each with its own time.
    #[serde(serialize_with = "tenths")]
    pub ops_per_s: Option<f64>,
    /// Payload bytes per second in one direction, likewise; null for round trips.
    #[serde(serialize_with = "tenths")]
    pub bytes_per_s: Option<f64>,
    /// Median time of an operation in nanoseconds; null for streams.
    #[serde(serialize_with = "tenths")]
    pub p50_ns: Option<f64>,
    /// 99th percentile, likewise.
    #[serde(serialize_with = "tenths")]
    pub p99_ns: Option<f64>,
    /// Samples of time; for streams, rounds.
    pub samples: u64,
    /// Operations that failed, and those that gave wrong bytes, of those whose bytes were
    /// looked at: every round trip, set and block of real input; the first messages of a
    /// stream; the last of up to 64 reads, gets or copies in a row; of writes, what the peer's
    /// memory holds in the end.
    pub errors: u64,
}

/// Interfaces' MTUs in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mtus {
    /// Of the domain.
    pub ethernet: u32,
    /// Of a node's loopback.
    pub loopback: u32,
    /// Of the kernel's pair.
    pub veth: u32,
}

impl Mtus {
    fn of(self, path: Path) -> Option<u32> {
        match path {
            Path::Ethernet => Some(self.ethernet),
            Path::Loopback => Some(self.loopback),
            Path::Veth => Some(self.veth),
            Path::Rdma | Path::Memcpy => None,
        }
    }
}

impl Row {
    /// The row of `test`.
    pub fn of_test(test: &Test, series: &Series, mtus: Mtus) -> Self {
        let row = |section, path, op, bytes| Self::new(section, path, op, bytes, series, mtus);
        match *test {
            Test::RoundTrip {
                path,
                transport,
                bytes,
            } => Row {
                proto: Some(transport),
                depth: Some(1),
                bytes_per_s: None,
                ..row(
                    section_of(path, Section::Network),
                    path,
                    Op::Pingpong,
                    bytes,
                )
            },
            Test::Stream {
                path,
                transport,
                bytes,
            } => Row {
                proto: Some(transport),
                batch: None,
                ..row(section_of(path, Section::Network), path, Op::Stream, bytes)
            },
            Test::OneSided {
                direction,
                depth,
                bytes,
            } => {
                let op = match direction {
                    Direction::Read => Op::Read,
                    Direction::Write => Op::Write,
                };
                Row {
                    depth: Some(depth),
                    set: Some(WorkingSet::Hot),
                    ..row(Section::Network, Path::Rdma, op, bytes)
                }
            }
            Test::Store {
                path,
                op,
                bytes,
                set,
            } => Row {
                proto: (path != Path::Rdma).then_some(Transport::Tcp),
                depth: Some(1),
                set: Some(set),
                ..row(section_of(path, Section::Store), path, op.into(), bytes)
            },
            Test::Copy { bytes, set } => Row {
                set: Some(set),
                ..row(Section::Baseline, Path::Memcpy, Op::Copy, bytes)
            },
        }
    }

    /// The row of real input in blocks of at most `bytes` bytes.
    pub fn of_files(path: Path, op: StoreOp, bytes: usize, series: &Series, mtus: Mtus) -> Self {
        Row {
            proto: (path != Path::Rdma).then_some(Transport::Tcp),
            depth: Some(1),
            ..Self::new(Section::Files, path, op.into(), bytes, series, mtus)
        }
    }

    fn new(
        section: Section,
        path: Path,
        op: Op,
        bytes: usize,
        series: &Series,
        mtus: Mtus,
    ) -> Self {
        Row {
            section,
            path,
            op,
            proto: None,
            bytes: bytes as u64,
            depth: None,
            set: None,
            mtu: mtus.of(path),
            batch: series.batch(),
            ops_per_s: series.ops_per_s(),
            bytes_per_s: series.bytes_per_s(),
            p50_ns: series.quantile_ns(0.5),
            p99_ns: series.quantile_ns(0.99),
            samples: series.samples(),
            errors: series.errors(),
        }
    }
}

impl From<StoreOp> for Op {
    fn from(op: StoreOp) -> Op {
        match op {
            StoreOp::Get => Op::Get,
            StoreOp::Set => Op::Set,
        }
    }
}

/// The kernel's own pair is a baseline whatever goes over it.
fn section_of(path: Path, otherwise: Section) -> Section {
    match path {
        Path::Veth => Section::Baseline,
        _ => otherwise,
    }
}

fn tenths<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    value
        .map(|value| (value * 10.0).round() / 10.0)
        .serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::stats::Slice;

    const KEYS: [&str; 15] = [
        "section",
        "path",
        "op",
        "proto",
        "bytes",
        "depth",
        "set",
        "mtu",
        "batch",
        "ops_per_s",
        "bytes_per_s",
        "p50_ns",
        "p99_ns",
        "samples",
        "errors",
    ];

    fn series() -> Series {
        let mut series = Series::default();
        series.add(&Slice {
            batch: 1,
            samples_ns: vec![1.25],
            ops: 1,
            bytes: 8,
            elapsed_ns: 10,
            errors: 0,
        });
        series
    }

    #[test]
    fn every_row_has_every_key() {
        for test in plan::hot().iter().chain(&plan::cold(1024)) {
            let row = Row::of_test(test, &series(), Mtus::default());
            let json = serde_json::to_value(&row).unwrap();
            let mut keys: Vec<&String> = json.as_object().unwrap().keys().collect();
            keys.sort_unstable();
            let mut expected = KEYS.to_vec();
            expected.sort_unstable();
            assert_eq!(keys, expected, "{test:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_format() {
        let test = Test::Store {
            path: Path::Veth,
            op: StoreOp::Get,
            bytes: 1024,
            set: WorkingSet::Cold,
        };
        let row = Row::of_test(&test, &series(), Mtus::default());
        let json = serde_json::to_value(&row).unwrap();
        let expected = [
            ("section", "baseline"),
            ("path", "veth"),
            ("op", "get"),
            ("proto", "tcp"),
            ("set", "cold"),
        ];
        for (key, value) in expected {
            assert_eq!(json[key], value);
        }
        assert_eq!(json["p50_ns"], 1.3);
    }

    #[test]
    fn no_two_tests_have_one_row() {
        let tests: Vec<Test> = plan::hot().into_iter().chain(plan::cold(1024)).collect();
        let identity = |test: &Test| {
            let row = Row::of_test(test, &Series::default(), Mtus::default());
            serde_json::to_string(&row).unwrap()
        };
        let mut rows: Vec<String> = tests.iter().map(identity).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), tests.len());
    }
}
