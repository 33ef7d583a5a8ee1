//! Figures of the paper, and measurements beside them.

use std::collections::HashMap;

use serde::Serialize;
use toroid_fabric::NodeId;
use toroid_fabric::model::{self, LocalClocks, carry};
use toroid_model::link::{FabricProfile, LinkModel, Time, TorusLinks};

use super::plan::{Op, Test};
use super::{TORUS, paper, report};
use crate::plan::{Path, WorkingSet};
use crate::report::{Row, name};
use crate::samples::Series;
use crate::stats::quotient;
use crate::table::{Table, decimals, digits, size};
use crate::worker::network::Transport;

/// Bytes of a frame besides a datagram's payload: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Frames of a stream on the virtual clock.
const FRAMES: u64 = 1000;

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// One way.
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "Mbit/s")]
    MegabitsPerSecond,
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
    /// Latency over Ethernet divided by that over RDMA.
    #[serde(rename = "x")]
    Times,
}

/// What a figure says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Basis {
    /// The profile was fitted to the paper's value.
    Fit,
    /// The profile was not.
    Prediction,
    /// The machine's own speed, without a model.
    Machine,
}

/// Origin of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum How {
    #[serde(rename = "live")]
    Live,
    /// Computed by the model.
    #[serde(rename = "virtual clock")]
    VirtualClock,
}

/// A figure of the paper with the measurement beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    test: Test,
    unit: Unit,
    paper: f64,
    /// Largest wanted deviation of a fit.
    goal: Option<f64>,
}

/// The figures of the paper for these paths. Beside a gateway with address translation stand those
/// of the paper's bridge.
pub fn figures(paths: &[Path]) -> Vec<Figure> {
    let lines = paths.iter().flat_map(|&path| {
        let of = if path == Path::Nat {
            Path::Bridge
        } else {
            path
        };
        let lines = paper::FIGURE_4.iter().filter(move |line| line.path == of);
        lines.map(move |line| paper::Line { path, ..*line })
    });
    let mut figures: Vec<Figure> = lines.flat_map(figures_of).collect();
    if paths.contains(&Path::Rdma) {
        let get = |path, bytes, unit, paper| Figure {
            test: Test::store(path, Op::Get, bytes, WorkingSet::Hot),
            unit,
            paper,
            goal: None,
        };
        let (bytes, rate) = paper::GET_RATE;
        figures.push(get(Path::Rdma, bytes, Unit::MegabytesPerSecond, rate));
        let ratios = paper::GET_RATIOS.into_iter();
        figures.extend(ratios.map(|(bytes, ratio)| get(Path::Rdma, bytes, Unit::Times, ratio)));
    }
    figures
}

fn figures_of(line: paper::Line) -> impl Iterator<Item = Figure> {
    let paper::Line {
        path,
        bytes,
        tcp,
        udp,
        latency,
    } = line;
    let stream = |proto, goal| {
        move |paper| Figure {
            test: Test::socket(Op::Stream, path, proto, bytes),
            unit: Unit::MegabitsPerSecond,
            paper,
            goal,
        }
    };
    let is_fitted = !matches!(path, Path::Loopback | Path::Nat);
    let goal = |of| is_fitted.then_some(of);
    let latency = Figure {
        test: match path {
            Path::Rdma => Test::messages(bytes),
            _ => Test::socket(Op::Pingpong, path, Transport::Udp, bytes),
        },
        unit: Unit::Microseconds,
        paper: latency,
        goal: goal(if path == Path::Rdma { 0.05 } else { 0.15 }),
    };
    let tcp = tcp.map(stream(Transport::Tcp, None));
    let udp = udp.map(stream(Transport::Udp, goal(0.05)));
    [tcp, udp, Some(latency)].into_iter().flatten()
}

/// The measurements of these figures.
pub fn tests(figures: &[Figure]) -> Vec<Test> {
    let mut tests = Vec::new();
    for figure in figures {
        if figure.unit == Unit::Times {
            let Test { op, bytes, .. } = figure.test;
            tests.push(Test::store(Path::Ethernet, op, bytes, WorkingSet::Hot));
        }
        tests.push(figure.test);
    }
    let mut known = Vec::new();
    tests.retain(|test| {
        let is_new = !known.contains(test);
        known.push(*test);
        is_new
    });
    tests
}

/// What measurements beside the paper's figures depend on.
pub struct Beside {
    /// Costs of the emulated torus; `None` if the machine's own speed is measured.
    pub profile: Option<FabricProfile>,
    /// Latency of the machine's own Ethernet.
    pub base_ns: Option<u64>,
    /// MTUs of the interfaces in bytes.
    pub mtus: HashMap<Path, u32>,
}

impl Beside {
    /// The rows of these figures.
    pub fn rows(&self, figures: &[Figure], measured: &[(Test, Series)]) -> Vec<Row> {
        let rows = figures.iter().map(|figure| self.row(figure, measured));
        rows.collect()
    }

    fn row(&self, figure: &Figure, measured: &[(Test, Series)]) -> Row {
        let of = |test: &Test| {
            let mut measured = measured.iter();
            measured.find_map(|(known, series)| (known == test).then_some(series))
        };
        let none = Series::default();
        let series = of(&figure.test).unwrap_or(&none);
        let live = figure.live(series, of);
        let profile = self.profile.as_ref();
        let modelled = profile.and_then(|profile| figure.modelled(profile));
        let how = match modelled {
            Some(_) if figure.is_below(self.base_ns) => How::VirtualClock,
            _ => How::Live,
        };
        let ours = if how == How::Live { live } else { modelled };
        let ratio = quotient(ours, Some(figure.paper));
        let goal = figure.goal.filter(|_| profile.is_some());
        let met = goal.zip(ratio);
        let met = met.map(|(goal, ratio)| (ratio - 1.0).abs() <= goal);
        let mtu = self.mtus.get(&figure.test.path).copied();
        report::row(report::section(&figure.test), &figure.test, series, mtu)
            .label("unit", figure.unit)
            .figure("paper", figure.paper)
            .figure("ours", ours)
            .figure("ratio", ratio)
            .figure("how", how)
            .figure("basis", profile.map_or(Basis::Machine, |_| figure.basis()))
            .figure("modelled", modelled)
            .figure("goal", goal)
            .figure("met", met)
    }
}

/// The table of rows.
pub fn table(rows: &[Row]) -> Table {
    let heads = ["", "", "paper", "ours", "ours/paper", "how", "goal"];
    let mut table = Table::new(2, &heads);
    for row in rows {
        let [paper, ours] = ["paper", "ours"].map(|name| with_unit(row, name));
        let ratio = decimals(row.number("ratio"), 2);
        let (how, goal) = (row.text("how"), goal(row));
        table.row([link(row), what(row), paper, ours, ratio, how, goal]);
    }
    table
}

impl Figure {
    /// The measured figure in the paper's unit.
    fn live<'a>(&self, series: &Series, of: impl Fn(&Test) -> Option<&'a Series>) -> Option<f64> {
        let p50 = |series: &Series| series.quantile_ns(0.5);
        match self.unit {
            Unit::Microseconds => Some(p50(series)? / 1e3),
            Unit::MegabitsPerSecond => Some(series.bytes_per_s()? * 8.0 / 1e6),
            Unit::MegabytesPerSecond => Some(series.bytes_per_s()? / 1e6),
            Unit::Times => {
                let Test { op, bytes, .. } = self.test;
                let ethernet = of(&Test::store(Path::Ethernet, op, bytes, WorkingSet::Hot));
                quotient(ethernet.and_then(p50), p50(series))
            }
        }
    }

    /// The figure that the model computes for datagrams over Ethernet and messages by RDMA, without
    /// the machine's own time.
    fn modelled(&self, profile: &FabricProfile) -> Option<f64> {
        let Test {
            path, proto, bytes, ..
        } = self.test;
        let links = LinkModel::Torus(TorusLinks {
            profile: profile.clone(),
            torus: TORUS.parse().ok()?,
            base: Time(0),
            links: Box::default(),
        });
        let ends = (NodeId(1), NodeId(0));
        let (route, bytes) = match (path, proto, self.unit) {
            (Path::Ethernet, Some(Transport::Udp), _) => {
                let route = links.route(ends.0, ends.1, model::Path::Ethernet)?;
                (route, bytes + HEADERS)
            }
            (Path::Bridge, Some(Transport::Udp), _) => {
                (links.external_route(ends.0, ends.1)?, bytes + HEADERS)
            }
            (Path::Rdma, None, Unit::Microseconds) => {
                (links.route(ends.0, ends.1, model::Path::Rdma)?, bytes)
            }
            _ => return None,
        };
        let clocks = LocalClocks::default();
        let send = || carry(&route, &clocks, 0, bytes as u64, 0).arrival;
        let first = send();
        if self.unit == Unit::Microseconds {
            return Some(first as f64 / 1e3);
        }
        let last = (0..FRAMES).fold(first, |_, _| send());
        let each = (last - first) as f64 / FRAMES as f64;
        Some(self.test.bytes as f64 * 8e3 / each)
    }

    /// Whether the machine's own Ethernet takes longer than the paper's.
    fn is_below(&self, base_ns: Option<u64>) -> bool {
        let is_ethernet = matches!(self.test.path, Path::Ethernet | Path::Bridge);
        let is_latency = is_ethernet && self.unit == Unit::Microseconds;
        is_latency && base_ns.is_some_and(|ns| ns as f64 > self.paper * 1e3)
    }

    fn basis(&self) -> Basis {
        match self.goal {
            Some(_) => Basis::Fit,
            None if self.test.path == Path::Loopback => Basis::Machine,
            None => Basis::Prediction,
        }
    }
}

fn link(row: &Row) -> String {
    match row.text("path").as_str() {
        "ethernet" if row.text("basis") == "machine" => "Ethernet".into(),
        "ethernet" => "torus, Ethernet".into(),
        "rdma" => "torus, RDMA".into(),
        "nat" => "external, NAT".into(),
        "bridge" => "external, bridge".into(),
        other => other.into(),
    }
}

fn what(row: &Row) -> String {
    let bytes = size(row.number("bytes").unwrap_or_default() as usize);
    let unit = row.text("unit");
    match row.text("op").as_str() {
        "pingpong" => format!("latency, {bytes}"),
        "get" if unit == name(Unit::Times) => format!("get over TCP, {bytes}"),
        "get" => format!("get, {bytes}"),
        _ => format!("{}, {bytes}", row.text("proto").to_uppercase()),
    }
}

fn with_unit(row: &Row, name: &str) -> String {
    let number = row.number(name).map(digits);
    number.map_or("-".into(), |number| {
        format!("{number} {}", row.text("unit"))
    })
}

fn goal(row: &Row) -> String {
    let goal = row.number("goal").unwrap_or_default() * 100.0;
    match (row.text("basis").as_str(), row.get("met").as_bool()) {
        ("fit", Some(true)) => format!("within {goal:.0} %: met"),
        ("fit", Some(false)) => format!("within {goal:.0} %: MISSED"),
        ("fit", None) => format!("within {goal:.0} %: not measured"),
        ("machine", _) => "no model".into(),
        _ => "prediction".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::report;
    use crate::samples::Samples;

    const KEYS: &str = "section path op proto bytes depth set mtu unit batch ops_per_s bytes_per_s \
                        p50_ns p99_ns samples errors paper ours ratio how basis modelled goal met";

    const PATHS: [Path; 5] = [
        Path::Nat,
        Path::Bridge,
        Path::Ethernet,
        Path::Rdma,
        Path::Loopback,
    ];

    fn rows(base_ns: u64) -> Vec<Row> {
        rows_on(Some(FabricProfile::bgp()), base_ns)
    }

    fn rows_on(profile: Option<FabricProfile>, base_ns: u64) -> Vec<Row> {
        let beside = Beside {
            profile,
            base_ns: Some(base_ns),
            mtus: HashMap::new(),
        };
        let figures = figures(&PATHS);
        // Operations of 40 us and 40,000 bits.
        let samples = Samples {
            batch: 1,
            samples_ns: vec![40_000.0],
            ops: 1,
            bytes: 5000,
            elapsed_ns: 40_000,
            ..Samples::default()
        };
        let measured = tests(&figures).into_iter();
        let measured: Vec<_> = measured
            .map(|test| (test, samples.clone().into()))
            .collect();
        beside.rows(&figures, &measured)
    }

    fn find(rows: &[Row], labels: &Value) -> Value {
        json!(report::find(rows, labels).unwrap().fields())
    }

    #[test]
    fn every_figure_of_the_paper_has_a_row_with_every_key() {
        let rows = rows(0);
        assert_eq!(rows.len(), 2 * 3 * 3 + 3 * 3 + 2 + 3 * 3 + 3);
        let mut labels = Vec::new();
        for row in &rows {
            let keys: Vec<&str> = KEYS.split_whitespace().collect();
            let Value::Object(mut row) = json!(row.fields()) else {
                panic!("{row:?}");
            };
            assert!(keys.iter().all(|key| row.contains_key(*key)) && row.len() == keys.len());
            row.retain(|key, _| keys[..9].contains(&key.as_str()));
            labels.push(json!(row).to_string());
        }
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), rows.len());
    }

    #[test]
    fn latencies_below_the_machine_are_those_of_the_model() {
        let latency = json!({"path": "ethernet", "op": "pingpong", "proto": "udp", "bytes": 200, "unit": "us"});
        let fast = rows(33_000);
        let row = find(&fast, &latency);
        assert_eq!((&row["how"], &row["ours"]), (&json!("live"), &json!(40.0)));
        assert_eq!(row["met"], json!(false));
        let slow = rows(34_000);
        let row = find(&slow, &latency);
        assert_eq!(row["how"], "virtual clock");
        assert_eq!(row["ours"], row["modelled"]);
        assert_eq!(row["met"], json!(true));
        let rate = json!({"path": "ethernet", "op": "stream", "proto": "udp", "bytes": 1000});
        assert_eq!(find(&slow, &rate)["how"], "live");
    }

    #[test]
    fn figures_have_the_paper_s_units_and_goals() {
        let rows = rows(0);
        let row = |labels: Value| {
            let row = find(&rows, &labels);
            [&row["paper"], &row["ours"], &row["goal"], &row["basis"]].map(Value::clone)
        };
        let udp = json!({"path": "ethernet", "op": "stream", "proto": "udp", "bytes": 8000});
        assert_eq!(
            row(udp),
            [json!(1099.02), json!(1000.0), json!(0.05), json!("fit")]
        );
        let tcp = json!({"path": "ethernet", "op": "stream", "proto": "tcp", "bytes": 8000});
        assert_eq!(row(tcp)[2..], [Value::Null, json!("prediction")]);
        let get = json!({"path": "rdma", "op": "get", "unit": "MB/s"});
        assert_eq!(
            row(get),
            [json!(340.0), json!(125.0), Value::Null, json!("prediction")]
        );
        let ratio = json!({"path": "rdma", "op": "get", "unit": "x", "bytes": 1024});
        assert_eq!(row(ratio)[..2], [json!(9.7), json!(1.0)]);
        let rdma = json!({"path": "rdma", "op": "pingpong", "bytes": 1000});
        assert_eq!(row(rdma)[0], json!(5.3));
        let text = table(&rows).to_string();
        assert!(
            text.contains("within 5 %: MISSED") && text.contains("prediction"),
            "{text}"
        );
    }

    #[test]
    fn external_rows_have_the_figures_of_the_paper_s_bridge() {
        let of = |path: &str, rows: &[Row]| {
            let udp = json!({"path": path, "op": "stream", "proto": "udp", "bytes": 8000});
            let row = find(rows, &udp);
            ["paper", "ours", "goal", "basis", "how"].map(|key| row[key].clone())
        };
        let (paper, ours, live) = (json!(1832.11), json!(1000.0), json!("live"));
        let fit = [&paper, &ours, &json!(0.05), &json!("fit"), &live].map(Value::clone);
        let expected = |basis: &str| {
            let basis = json!(basis);
            [&paper, &ours, &Value::Null, &basis, &live].map(Value::clone)
        };
        let emulated = rows(0);
        assert_eq!(of("bridge", &emulated), fit);
        assert_eq!(of("nat", &emulated), expected("prediction"));
        let machine = rows_on(None, 60_000);
        for path in ["bridge", "nat", "ethernet"] {
            let basis = of(path, &machine)[3..].to_vec();
            assert_eq!(basis, [json!("machine"), json!("live")]);
        }
        assert_eq!(of("bridge", &machine), expected("machine"));
    }

    /// On a virtual clock the fits are within their goals.
    #[test]
    fn the_profile_meets_the_goals() {
        for figure in figures(&[Path::Bridge, Path::Ethernet, Path::Rdma]) {
            let modelled = figure.modelled(&FabricProfile::bgp());
            assert_eq!(modelled.is_some(), figure.goal.is_some(), "{figure:?}");
            if let (Some(modelled), Some(goal)) = (modelled, figure.goal) {
                let error = (modelled / figure.paper - 1.0).abs();
                assert!(error <= goal, "{modelled} for {figure:?}");
            }
        }
    }
}
