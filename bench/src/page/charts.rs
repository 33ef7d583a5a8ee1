//! The charts of a list: lines over a numeric label where it varies, else bars.
//!
//! Rows of one figure and the same texts are a chart, except for the texts in [`SERIES`], which are
//! what a reader compares: they are its lines.

use std::collections::BTreeSet;

use serde_json::Value;

use super::rows::{List, Row};
use crate::samples::entry;

/// Labels that are compared within a chart.
const SERIES: [&str; 6] = ["layer", "path", "provider", "preset", "proto", "method"];

/// Labels that only arrange rows.
const ARRANGED: [&str; 1] = ["section"];

/// Lines of a chart, at most: as many as there are colours.
pub const LINES: usize = 8;

/// Bars of a chart, at most.
const BARS: usize = 32;

/// Sizes of values that are drawn.
const DRAWN: std::ops::RangeInclusive<f64> = 1e-30..=1e30;

/// Rows as points.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: String,
    /// The name of the figure, which tells its unit.
    pub of: String,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Lines over the values of a label.
    Lines { axis: String, lines: Vec<Line> },
    /// A bar for each row, with its name.
    Bars(Vec<(String, Point)>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub name: String,
    pub points: Vec<Point>,
}

/// A median with its interval, or with its quartiles where the rounds are too few for one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

/// A row that can be drawn.
#[derive(Clone, Copy)]
struct Drawn<'a> {
    row: &'a Row,
    point: Point,
}

/// All charts of a list.
pub fn charts(list: &List) -> Vec<Chart> {
    let mut groups: Vec<((String, String), Vec<Drawn>)> = Vec::new();
    for drawn in list.rows.iter().filter_map(Drawn::of) {
        let key = (drawn.row.of.clone(), title(list, drawn.row));
        entry(&mut groups, key).push(drawn);
    }
    let mut charts = Vec::new();
    let mut left: Vec<(String, Vec<Drawn>)> = Vec::new();
    for ((of, title), rows) in groups {
        match axis(list, &rows) {
            Some(axis) => charts.extend(line_charts(list, &title, &of, axis, &rows)),
            None => entry(&mut left, of).extend(rows),
        }
    }
    charts.extend(
        left.into_iter()
            .flat_map(|(of, rows)| bars(list, &of, &rows)),
    );
    charts
}

/// Rows with rounds that are no point of the charts.
pub fn undrawn(list: &List, charts: &[Chart]) -> usize {
    let measured = list.rows.iter().filter(|row| row.summary.is_some());
    let drawn: usize = charts.iter().map(Chart::points).sum();
    measured.count() - drawn
}

impl Chart {
    /// Number of rows drawn.
    fn points(&self) -> usize {
        match &self.kind {
            Kind::Lines { lines, .. } => lines.iter().map(|line| line.points.len()).sum(),
            Kind::Bars(bars) => bars.len(),
        }
    }
}

impl<'a> Drawn<'a> {
    fn of(row: &'a Row) -> Option<Self> {
        let summary = row.summary.as_ref()?;
        let interval = summary.ci.unwrap_or(summary.quartiles);
        let point = Point {
            x: 0.0,
            y: summary.median,
            low: interval.low,
            high: interval.high,
        };
        let all = [point.y, point.low, point.high];
        let is_drawn = all.iter().all(|value| DRAWN.contains(value));
        is_drawn.then_some(Drawn { row, point })
    }

    fn at(self, axis: &str) -> Option<Point> {
        let x = number(self.row, axis)?;
        Some(Point { x, ..self.point })
    }
}

/// A numeric label.
fn number(row: &Row, label: &str) -> Option<f64> {
    let value = row.get(label).as_f64()?;
    let is_drawn = value == 0.0 || DRAWN.contains(&value.abs());
    is_drawn.then_some(value)
}

fn is_number(row: &Row, label: &str) -> bool {
    row.get(label).is_number()
}

/// The texts that all lines of a chart share.
fn title(list: &List, row: &Row) -> String {
    let is_text = |label: &&String| {
        let is_other = SERIES.contains(&label.as_str()) || ARRANGED.contains(&label.as_str());
        !is_other && !is_number(row, label) && !row.get(label).is_null()
    };
    let texts = list
        .labels
        .iter()
        .filter(is_text)
        .map(|label| match row.get(label) {
            Value::String(text) => text.clone(),
            other => format!("{label} {other}"),
        });
    texts.collect::<Vec<_>>().join(", ")
}

/// The label with the most values within a line. Of equal ones, bytes come first.
fn axis<'a>(list: &'a List, rows: &[Drawn]) -> Option<&'a str> {
    let values = |label: &str| {
        let mut lines: Vec<(Vec<&Value>, BTreeSet<u64>)> = Vec::new();
        for drawn in rows {
            if let Some(value) = number(drawn.row, label) {
                entry(&mut lines, texts(drawn.row)).insert(value.to_bits());
            }
        }
        lines.iter().map(|(_, values)| values.len()).max()
    };
    let mut best: Option<(usize, bool, &str)> = None;
    for label in list.labels.iter().map(String::as_str) {
        let rank = (values(label).unwrap_or(0), label == "bytes", label);
        let is_better = best.is_none_or(|best| (rank.0, rank.1) > (best.0, best.1));
        if rank.0 > 1 && is_better {
            best = Some(rank);
        }
    }
    best.map(|(.., label)| label)
}

fn texts(row: &Row) -> Vec<&Value> {
    SERIES.iter().map(|label| row.get(label)).collect()
}

fn line_charts(list: &List, title: &str, of: &str, axis: &str, rows: &[Drawn]) -> Vec<Chart> {
    let names = varied(list, axis, rows);
    let mut lines: Vec<(String, Vec<Point>)> = Vec::new();
    for drawn in rows {
        let name = line_name(drawn.row, &names);
        entry(&mut lines, name).extend(drawn.at(axis));
    }
    let mut lines: Vec<Line> = lines
        .into_iter()
        .map(|(name, points)| Line { name, points })
        .collect();
    for line in &mut lines {
        line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let chart = |lines: &[Line]| Chart {
        title: titled(list, title),
        of: of.into(),
        kind: Kind::Lines {
            axis: axis.into(),
            lines: lines.into(),
        },
    };
    lines.chunks(LINES).map(chart).collect()
}

/// Other numeric labels in which rows differ that would else be one point of a line.
fn varied<'a>(list: &'a List, axis: &str, rows: &[Drawn]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let others = list.labels.iter().map(String::as_str);
    for label in others.filter(|label| *label != axis) {
        if !rows.iter().any(|drawn| is_number(drawn.row, label)) {
            continue;
        }
        let mut points: Vec<(_, Vec<&Value>)> = Vec::new();
        for Drawn { row, .. } in rows {
            let place = (line_name(row, &names), row.get(axis));
            let known = entry(&mut points, place);
            if !known.contains(&row.get(label)) {
                known.push(row.get(label));
            }
        }
        if points.iter().any(|(_, values)| values.len() > 1) {
            names.push(label);
        }
    }
    names
}

/// The texts of a line, and its values of these labels.
fn line_name(row: &Row, numbers: &[&str]) -> String {
    let texts = texts(row).into_iter().filter_map(Value::as_str);
    let numbers = numbers.iter().filter(|label| is_number(row, label));
    let numbers = numbers.map(|label| format!("{label} {}", row.text(label)));
    let words: Vec<String> = texts.map(String::from).chain(numbers).collect();
    words.join(" ")
}

/// Bars of the rows that are on no line; a single one says no more than the table.
fn bars(list: &List, of: &str, rows: &[Drawn]) -> Vec<Chart> {
    if rows.len() < 2 {
        return Vec::new();
    }
    let bar = |drawn: &Drawn| (drawn.row.id.clone(), drawn.point);
    let chart = |rows: &[Drawn]| Chart {
        title: titled(list, of),
        of: of.into(),
        kind: Kind::Bars(rows.iter().map(bar).collect()),
    };
    rows.chunks(BARS).map(chart).collect()
}

fn titled(list: &List, title: &str) -> String {
    match (list.name.as_str(), title) {
        ("rows", title) if !title.is_empty() => title.into(),
        (name, "") => name.into(),
        (name, title) => format!("{name}: {title}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::comparison::run::Run;

    fn of(rows: &[(&[(&str, Value)], f64)]) -> Vec<Chart> {
        lists(rows).iter().flat_map(charts).collect()
    }

    fn lists(rows: &[(&[(&str, Value)], f64)]) -> Vec<List> {
        let row = |(labels, ns): &(&[(&str, Value)], f64)| {
            let word = |(name, value): &(&str, Value)| match value {
                Value::String(text) => text.clone(),
                other => format!("{name}={other}"),
            };
            let words: Vec<String> = labels.iter().map(word).collect();
            let mut row = json!({"id": words.join(" "), "rounds_of": "p50_ns", "rounds": [ns]});
            for (name, value) in *labels {
                row[*name] = value.clone();
            }
            row
        };
        let rows: Vec<Value> = rows.iter().map(row).collect();
        let run = json!({"manifest": {}, "rows": rows}).to_string();
        let run = Run::parse("f".into(), run.as_bytes()).unwrap();
        List::all(&run)
    }

    fn lines(chart: &Chart) -> Vec<(&str, Vec<f64>)> {
        let Kind::Lines { lines, .. } = &chart.kind else {
            panic!("{chart:?} has no lines");
        };
        let xs = |line: &Line| line.points.iter().map(|point| point.x).collect();
        lines
            .iter()
            .map(|line| (line.name.as_str(), xs(line)))
            .collect()
    }

    #[test]
    fn paths_are_lines_over_bytes_and_operations_are_charts() {
        let row = |op: &str, path: &str, bytes: u64, mtu: u64| {
            [
                ("op", json!(op)),
                ("path", json!(path)),
                ("bytes", json!(bytes)),
                ("mtu", json!(mtu)),
            ]
        };
        let rows = [
            row("get", "rdma", 4096, 9000),
            row("get", "rdma", 64, 9000),
            row("get", "veth", 64, 1500),
            row("set", "rdma", 64, 9000),
            row("set", "rdma", 128, 9000),
            row("copy", "memcpy", 64, 0),
            row("move", "memcpy", 64, 0),
        ];
        let rows: Vec<_> = rows.iter().map(|labels| (&labels[..], 5.0)).collect();
        let charts = of(&rows);
        let titles: Vec<_> = charts.iter().map(|chart| chart.title.as_str()).collect();
        assert_eq!(titles, ["get", "set", "p50_ns"]);
        let get = [("rdma", vec![64.0, 4096.0]), ("veth", vec![64.0])];
        assert_eq!(lines(&charts[0]), get);
        let Kind::Bars(bars) = &charts[2].kind else {
            panic!("rows without an axis are bars");
        };
        assert_eq!(bars[0].0, "copy memcpy bytes=64 mtu=0");
        assert_eq!(bars.len(), 2);
    }

    /// A chart has logarithmic axes: values next to 0 have no place there.
    #[test]
    fn rows_that_no_chart_has_are_counted() {
        let labels = |bytes: u64| [("op", json!("get")), ("bytes", json!(bytes))];
        let undrawn = |values: &[f64]| {
            let labels: Vec<_> = (1..).take(values.len()).map(labels).collect();
            let rows = labels.iter().zip(values);
            let rows: Vec<_> = rows.map(|(labels, ns)| (&labels[..], *ns)).collect();
            let list = &lists(&rows)[0];
            super::undrawn(list, &charts(list))
        };
        assert_eq!(undrawn(&[5.0, 6.0, 7.0]), 0);
        assert_eq!(undrawn(&[5.0, 1e-40, 7.0, 1e40]), 2);
        assert_eq!(undrawn(&[1e-40, 1e-40]), 2);
        assert_eq!(undrawn(&[5.0]), 1, "a single row has no chart");
    }

    #[test]
    fn a_label_that_splits_points_splits_lines() {
        let row = |bytes: u64, x: u64| [("bytes", json!(bytes)), ("x", json!(x))];
        let rows = [
            row(512, 0),
            row(512, 25),
            row(512, 50),
            row(512, 100),
            row(4, 0),
            row(4096, 0),
        ];
        let rows: Vec<_> = rows.iter().map(|labels| (&labels[..], 5.0)).collect();
        let charts = of(&rows);
        let expected = [
            ("bytes 512 B", vec![0.0, 25.0, 50.0, 100.0]),
            ("bytes 4 B", vec![0.0]),
            ("bytes 4 KiB", vec![0.0]),
        ];
        assert_eq!(lines(&charts[0]), expected);
        // Here both labels are one: bytes are the axis, and the other splits nothing.
        let rows = [row(4, 4), row(64, 64)];
        let rows: Vec<_> = rows.iter().map(|labels| (&labels[..], 5.0)).collect();
        let charts = of(&rows);
        assert_eq!(lines(&charts[0]), [("", vec![4.0, 64.0])]);
        assert!(matches!(&charts[0].kind, Kind::Lines { axis, .. } if axis == "bytes"));
    }
}
