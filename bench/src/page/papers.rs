//! Numbers of the papers, with ours beside them.
//!
//! A file of `src/papers` is a paper: tables of numbers, each with its place, and with the row and
//! figure of a run where ours is found, or the reason why ours cannot be.

use std::fmt;

use serde::Deserialize;

use super::format;
use super::found::{Found, Labels, Ours};
use crate::comparison::run::Run;

const TEXTS: [&str; 5] = [
    include_str!("../papers/kittyhawk.toml"),
    include_str!("../papers/intersense.toml"),
    include_str!("../papers/micro-benchmarks.toml"),
    include_str!("../papers/noise.toml"),
    include_str!("../papers/routing.toml"),
];

/// A paper with its numbers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    pub title: String,
    pub authors: String,
    pub year: u16,
    #[serde(rename = "table")]
    pub tables: Vec<Table>,
}

/// Numbers of one place, unit and kind. Their order is the table's shape.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub name: String,
    /// Figure, table or section of the paper.
    pub place: String,
    pub unit: String,
    #[serde(default)]
    pub basis: Basis,
    #[serde(default)]
    relation: Relation,
    /// Largest deviation of a reproduced number, as a share of it.
    #[serde(default = "tenth")]
    within: f64,
    note: Option<String>,
    /// Reason why there can be no number of ours.
    cannot: Option<String>,
    found: Option<Found>,
    numbers: Vec<Number>,
}

/// Origin of a number.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The paper's text or table has the number.
    #[default]
    Stated,
    /// The number follows from others of the paper.
    Derived,
}

/// The paper's claim.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Relation {
    #[default]
    About,
    AtMost,
    AtLeast,
}

/// A number. Its labels are added to those of the table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Number {
    what: String,
    value: f64,
    #[serde(default)]
    row: Labels,
    note: Option<String>,
    cannot: Option<String>,
}

/// The verdict on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ours is within the deviation, or on the right side of a bound.
    Reproduced,
    /// All numbers of the table have the paper's order; a ratio is on the paper's side of 1.
    ShapeOnly,
    Not,
    /// No run has it.
    NotMeasured,
    CannotBe,
}

/// A number with ours beside it.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The table's place in the paper.
    pub table: usize,
    pub what: String,
    /// The paper's number, with its relation.
    pub paper: String,
    pub ours: Option<Ours>,
    /// Ours over the paper's.
    pub ratio: Option<f64>,
    pub verdict: Verdict,
    /// The reason of the verdict.
    pub why: String,
}

fn tenth() -> f64 {
    0.1
}

impl Verdict {
    pub const ALL: [Verdict; 5] = [
        Verdict::Reproduced,
        Verdict::ShapeOnly,
        Verdict::Not,
        Verdict::NotMeasured,
        Verdict::CannotBe,
    ];

    /// The verdict's name as a class of HTML.
    pub fn class(self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::ShapeOnly => "shape",
            Verdict::Not => "not",
            Verdict::NotMeasured => "unmeasured",
            Verdict::CannotBe => "cannot",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Reproduced => "reproduced",
            Verdict::ShapeOnly => "shape only",
            Verdict::Not => "not reproduced",
            Verdict::NotMeasured => "not measured",
            Verdict::CannotBe => "cannot be here",
        })
    }
}

/// Numbers of this verdict.
pub fn count(papers: &[(Paper, Vec<Beside>)], verdict: Verdict) -> usize {
    let all = papers.iter().flat_map(|(_, beside)| beside);
    all.filter(|beside| beside.verdict == verdict).count()
}

impl Paper {
    /// All papers.
    pub fn all() -> Vec<Self> {
        let parse = |text: &str| toml::from_str(text).expect("tests read all papers");
        TEXTS.into_iter().map(parse).collect()
    }

    /// The numbers with those of the runs. Of several runs the last one with the number counts.
    pub fn beside(&self, runs: &[Run]) -> Vec<Beside> {
        let tables = self.tables.iter().enumerate();
        tables
            .flat_map(|(at, table)| table.beside(at, runs))
            .collect()
    }
}

impl Table {
    fn beside(&self, at: usize, runs: &[Run]) -> Vec<Beside> {
        let ours: Vec<Option<Ours>> = self.numbers.iter().map(|n| self.ours(n, runs)).collect();
        let shape = self.shape(&ours);
        let numbers = self.numbers.iter().zip(ours);
        numbers
            .map(|(number, ours)| {
                let verdict = self.verdict(number, ours.as_ref(), shape);
                let ratio = ours.as_ref().map(|ours| ours.value / number.value);
                Beside {
                    table: at,
                    what: number.what.clone(),
                    paper: self.paper(number),
                    ratio: ratio.filter(|_| self.relation == Relation::About),
                    why: self.why(number, ours.as_ref(), verdict),
                    verdict,
                    ours,
                }
            })
            .collect()
    }

    fn ours(&self, number: &Number, runs: &[Run]) -> Option<Ours> {
        let found = self
            .found
            .as_ref()
            .filter(|_| self.cannot(number).is_none())?;
        let mut runs = runs.iter().enumerate().rev();
        runs.find_map(|(run, measured)| {
            let mut ours = found.ours(measured, &number.row)?;
            ours.run = run;
            Some(ours)
        })
    }

    fn cannot<'a>(&'a self, number: &'a Number) -> Option<&'a str> {
        number.cannot.as_deref().or(self.cannot.as_deref())
    }

    fn paper(&self, number: &Number) -> String {
        let value = format::number(number.value);
        match self.relation {
            Relation::About => format!("{value} {}", self.unit),
            Relation::AtMost => format!("at most {value} {}", self.unit),
            Relation::AtLeast => format!("at least {value} {}", self.unit),
        }
    }

    fn verdict(&self, number: &Number, ours: Option<&Ours>, shape: bool) -> Verdict {
        let Some(Ours { value: ours, .. }) = ours else {
            return match self.cannot(number) {
                Some(_) => Verdict::CannotBe,
                None => Verdict::NotMeasured,
            };
        };
        let paper = number.value;
        let is_met = match self.relation {
            Relation::About => (ours - paper).abs() <= self.within * paper.abs(),
            Relation::AtMost => ours.abs() <= paper,
            Relation::AtLeast => *ours >= paper,
        };
        let is_shape = if self.unit == "x" {
            (*ours > 1.0) == (paper > 1.0)
        } else {
            shape
        };
        if is_met {
            Verdict::Reproduced
        } else if self.relation == Relation::About && is_shape {
            Verdict::ShapeOnly
        } else {
            Verdict::Not
        }
    }

    /// Whether ours are in the paper's order: all of them, except numbers that cannot be here.
    /// Numbers that the paper has within the deviation of each other may come in any order; without
    /// others there is no order.
    fn shape(&self, ours: &[Option<Ours>]) -> bool {
        let numbers = self.numbers.iter().zip(ours);
        let possible = numbers.filter(|(number, _)| self.cannot(number).is_none());
        let known = possible.map(|(number, ours)| Some((number.value, ours.as_ref()?.value)));
        let Some(known) = known.collect::<Option<Vec<(f64, f64)>>>() else {
            return false;
        };
        let mut ordered = 0;
        for (paper, ours) in &known {
            for (above, ours_above) in &known {
                if *above > paper * (1.0 + self.within) {
                    if ours_above <= ours {
                        return false;
                    }
                    ordered += 1;
                }
            }
        }
        ordered > 0
    }

    fn why(&self, number: &Number, ours: Option<&Ours>, verdict: Verdict) -> String {
        let reason = match (verdict, &self.found) {
            (Verdict::CannotBe, _) => self.cannot(number).map(String::from),
            (Verdict::NotMeasured, Some(found)) => {
                Some(format!("run toroid-bench {} --json", found.command))
            }
            (Verdict::Reproduced, _) if self.relation == Relation::About => {
                let share = format::number(100.0 * self.within);
                Some(format!("within {share} %"))
            }
            (Verdict::ShapeOnly, _) if self.unit == "x" => Some("on the same side of 1".into()),
            (Verdict::ShapeOnly, _) => Some("the numbers have the paper's order".into()),
            _ => None,
        };
        // Notes are on ours.
        let notes = [&self.note, &number.note].map(|note| note.as_deref());
        let notes = notes.map(|note| note.filter(|_| verdict != Verdict::CannotBe));
        let parts = [reason.as_deref(), notes[0], notes[1]];
        let origin = ours.map(Ours::origin).into_iter().flatten();
        let parts = parts.into_iter().flatten().chain(origin);
        parts.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::compare::paper;
    use crate::plan::Path;
    use crate::report;

    fn run(configuration: &[&str], rows: Value) -> Run {
        let run = json!({"manifest": {"configuration": configuration}, "rows": rows});
        Run::parse("f".into(), run.to_string().as_bytes()).unwrap()
    }

    fn paper(table: &str) -> Paper {
        let head = "title = 't'\nauthors = 'a'\nyear = 2000\n[[table]]\nname = 'n'\nplace = 'p'\n";
        toml::from_str(&format!("{head}{table}")).unwrap()
    }

    const LATENCIES: &str = "unit = 'us'
        found = { command = 'micro --preset', key = 'p50_ns', scale = 1e-3, row = { op = 'a' } }
        numbers = [
            { what = 'one', value = 10.0, row = { bytes = 1 } },
            { what = 'two', value = 20.0, row = { bytes = 2 }, note = 'noted' },
            { what = 'three', value = 40.0, row = { bytes = [3, 4] } },
            { what = 'four', value = 80.0, cannot = 'no hardware' },
        ]";

    fn verdicts(paper: &Paper, rows: Value) -> Vec<Verdict> {
        let run = run(&["micro", "--quick", "--preset=gm"], rows);
        let beside = paper.beside(&[run]);
        beside.iter().map(|beside| beside.verdict).collect()
    }

    fn rows(us: &[f64]) -> Value {
        let row = |(at, us): (usize, &f64)| json!({"op": "a", "bytes": at + 1, "p50_ns": us * 1e3});
        us.iter().enumerate().map(row).collect()
    }

    #[test]
    fn a_number_is_reproduced_or_has_the_shape_or_neither() {
        use Verdict::*;
        let paper = paper(LATENCIES);
        let all = verdicts(&paper, rows(&[10.9, 19.0, 1.0, 41.0]));
        assert_eq!(all, [Reproduced, Reproduced, Reproduced, CannotBe]);
        let all = verdicts(&paper, rows(&[1.0, 2.0, 3.0, 2.5]));
        assert_eq!(all, [ShapeOnly, ShapeOnly, ShapeOnly, CannotBe]);
        let all = verdicts(&paper, rows(&[1.0, 5.0, 3.0, 2.5]));
        assert_eq!(all, [Not, Not, Not, CannotBe]);
        let all = verdicts(&paper, rows(&[1.0]));
        assert_eq!(all, [Not, NotMeasured, NotMeasured, CannotBe]);
        let all = verdicts(&paper, rows(&[1.0, 2.0]));
        assert_eq!(all, [Not, Not, NotMeasured, CannotBe]);
    }

    #[test]
    fn only_runs_of_the_command_have_its_numbers() {
        let paper = paper(LATENCIES);
        let of = |words: &[&str], us| run(words, rows(&[us]));
        let ours = |runs: &[Run]| paper.beside(runs)[0].ours.clone();
        assert_eq!(ours(&[of(&["micro", "--quick"], 10.0)]), None);
        assert_eq!(ours(&[of(&["link", "micro", "--preset"], 10.0)]), None);
        let words = ["micro", "--preset", "gm"];
        let last = ours(&[of(&words, 9.0), of(&words, 12.0), of(&["kv"], 3.0)]);
        let last = last.unwrap();
        assert_eq!((last.value, last.run, last.how()), (12.0, 1, String::new()));
        let reasons: Vec<String> = paper
            .beside(&[])
            .into_iter()
            .map(|beside| beside.why)
            .collect();
        assert_eq!(reasons[1], "run toroid-bench micro --preset --json; noted");
        assert_eq!(reasons[3], "no hardware");
    }

    #[test]
    fn bounds_ratios_and_rates_are_found() {
        use Verdict::*;
        let found = "found = { command = 'micro', key = 'error', row = { op = 'a' } }";
        let bound = |relation: &str, value: f64| {
            let numbers = format!("numbers = [{{ what = 'x', value = {value:?} }}]");
            let paper = paper(&format!(
                "unit = ''\nrelation = '{relation}'\n{found}\n{numbers}"
            ));
            let rows = json!([{"op": "a", "error": 0.01}, {"op": "a", "error": -0.03}]);
            verdicts(&paper, rows)[0]
        };
        assert_eq!(bound("at_most", 0.03), Reproduced);
        assert_eq!(bound("at_most", 0.02), Not);
        assert_eq!(bound("at_least", 0.02), Not);
        let ratio = paper(
            "unit = 'x'
            found = { command = 'micro', key = 'p50_ns', row = { op = 'a' }, over = { op = 'b' } }
            numbers = [{ what = 'x', value = 9.7, row = { bytes = 1 } }]",
        );
        let of = |over: f64| {
            json!([
                {"op": "a", "bytes": 1, "p50_ns": 30.0}, {"op": "a", "bytes": 2, "p50_ns": 99.0},
                {"op": "b", "bytes": 1, "p50_ns": over},
            ])
        };
        assert_eq!(verdicts(&ratio, of(3.0)), [Reproduced]);
        assert_eq!(verdicts(&ratio, of(20.0)), [ShapeOnly]);
        assert_eq!(verdicts(&ratio, of(60.0)), [Not]);
        assert_eq!(verdicts(&ratio, of(0.0)), [NotMeasured]);
        let rate = paper(
            "unit = 'Mbit/s'
            found = { command = 'micro', key = 'p50_ns', is_rate = true }
            numbers = [{ what = 'x', value = 800.0 }]",
        );
        let rows = json!([{"bytes": 1000, "p50_ns": 1e4}, {"bytes": 100, "p50_ns": 1e4}]);
        assert_eq!(verdicts(&rate, rows), [Reproduced]);
    }

    /// The order of a table says nothing about its ratios.
    #[test]
    fn ratios_below_1_have_no_shape_of_those_above() {
        use Verdict::*;
        let paper = paper(
            "unit = 'x'
            found = { command = 'micro', key = 'ours' }
            numbers = [
                { what = 'one', value = 9.7, row = { bytes = 1 } },
                { what = 'two', value = 2.2, row = { bytes = 2 } },
            ]",
        );
        let of = |one: f64, two: f64| {
            verdicts(
                &paper,
                json!([{"bytes": 1, "ours": one}, {"bytes": 2, "ours": two}]),
            )
        };
        assert_eq!(of(0.9, 0.5), [Not, Not]);
        assert_eq!(of(1.1, 0.5), [ShapeOnly, Not]);
        assert_eq!(of(1.1, 1.5), [ShapeOnly, ShapeOnly]);
    }

    /// A run from outside may be one of the fitted model.
    #[test]
    fn fits_and_virtual_clocks_are_named() {
        let kittyhawk = &Paper::all()[0];
        let why = |words: &[&str], how: &str, basis: &str| {
            let rows = json!([{
                "unit": "us", "op": "pingpong", "path": "bridge", "bytes": 200,
                "ours": 53.0, "how": how, "basis": basis,
            }]);
            let beside = kittyhawk.beside(&[run(words, rows)]).into_iter();
            let mut found = beside.filter(|beside| beside.ours.is_some());
            let why = found.next().unwrap().why;
            assert!(found.next().is_none());
            why
        };
        let external = ["compare", "--external"];
        assert_eq!(why(&external, "live", "machine"), "within 10 %");
        let bgp = ["compare", "--external", "--fabric", "bgp"];
        assert_eq!(why(&bgp, "live", "prediction"), "within 10 %");
        let fit = "within 10 %; fitted to the paper";
        assert_eq!(why(&bgp, "live", "fit"), fit);
        let modelled = format!("{fit}; on a virtual clock");
        assert_eq!(why(&bgp, "virtual clock", "fit"), modelled);
    }

    /// Every number has a place and either a way to ours or a reason.
    #[test]
    fn all_papers_are_read_and_whole() {
        let papers = Paper::all();
        assert_eq!(papers.len(), TEXTS.len());
        for paper in &papers {
            assert!(!paper.title.is_empty() && !paper.authors.is_empty() && paper.year > 1990);
            for table in &paper.tables {
                assert!(
                    !table.place.is_empty() && !table.numbers.is_empty(),
                    "{table:?}"
                );
                for number in &table.numbers {
                    let is_found = table.found.is_some();
                    let cannot = table.cannot(number);
                    assert!(is_found || cannot.is_some(), "{}: {number:?}", table.name);
                    assert!(
                        number.value.is_finite() && number.value != 0.0,
                        "{number:?}"
                    );
                    assert!(cannot.is_none_or(|why| why.len() > 10), "{number:?}");
                }
            }
        }
    }

    /// Figure 4 is there a second time, with each of its numbers, for the tables of `compare`.
    #[test]
    fn figure_4_is_that_of_compare() {
        let kittyhawk = &Paper::all()[0];
        let has = |unit: &str, path: Path, bytes: usize, proto: Option<&str>, value: f64| {
            let tables = kittyhawk.tables.iter().filter(|table| table.unit == unit);
            let is_of = |table: &Table, number: &Number| {
                let label = |name: &str| {
                    let own = number.row.get(name);
                    own.or_else(|| table.found.as_ref()?.row.get(name)).cloned()
                };
                let path = Value::from(report::name(path));
                let proto_is = proto.is_none_or(|proto| label("proto") == Some(proto.into()));
                label("path") == Some(path) && label("bytes") == Some(bytes.into()) && proto_is
            };
            tables.into_iter().any(|table| {
                let mut numbers = table.numbers.iter();
                numbers.any(|number| is_of(table, number) && number.value == value)
            })
        };
        for line in paper::FIGURE_4 {
            let (path, bytes) = (line.path, line.bytes);
            assert!(
                has("us", path, bytes, None, line.latency),
                "{path:?} {bytes}"
            );
            for (proto, rate) in [("tcp", line.tcp), ("udp", line.udp)] {
                let is_there = |rate| has("Mbit/s", path, bytes, Some(proto), rate);
                assert!(rate.is_none_or(is_there), "{path:?} {bytes} {proto}");
            }
        }
        let (bytes, rate) = paper::GET_RATE;
        assert!(has("MB/s", Path::Rdma, bytes, None, rate));
        for (bytes, ratio) in paper::GET_RATIOS {
            assert!(has("x", Path::Rdma, bytes, None, ratio));
        }
    }
}
