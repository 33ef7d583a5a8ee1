//! The report of a run: rows of labels and figures, as JSON for programs and tables for people.

use std::time::Instant;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::causes::with_causes;
use crate::machine;
use crate::plan::Effort;
use crate::samples::{Samples, Series};
use crate::table::{self, Table};
use crate::target::Target;

/// Ordered named values, a JSON object.
#[derive(Clone, Debug, Default)]
pub struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    /// Adds a field.
    pub fn with(mut self, name: &'static str, value: impl Serialize) -> Self {
        self.0.push((name, json!(value)));
        self
    }

    /// Adds all fields of another object.
    pub fn and(mut self, other: Fields) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Adds the fields by which runs are compared: the name of the row, made of its labels and the
    /// same in every run, and the figure `of` in each round.
    pub fn compared(self, labels: &Fields, of: &str, rounds: Vec<f64>) -> Self {
        let word = |(name, value): &(&str, Value)| match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(format!("{name}={other}")),
        };
        let words: Vec<String> = labels.0.iter().filter_map(word).collect();
        self.with("id", words.join(" "))
            .with("rounds_of", of)
            .with("rounds", rounds)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        let mut fields = self.0.iter();
        fields.find_map(|(known, value)| (*known == name).then_some(value))
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// A measurement over all rounds. A figure is null if it does not apply.
#[derive(Clone, Debug, Default)]
pub struct Row {
    labels: Fields,
    figures: Fields,
    series: Series,
    /// Set where the figure of the rounds is not that of the series.
    rounds: Option<(&'static str, Vec<f64>)>,
}

impl Row {
    /// A row of these rounds without labels and figures.
    pub fn of(series: &Series) -> Self {
        Row {
            series: series.clone(),
            ..Row::default()
        }
    }

    /// Adds a label, a part of the measurement's name.
    pub fn label(mut self, name: &'static str, value: impl Serialize) -> Self {
        self.labels = self.labels.with(name, value);
        self
    }

    /// Adds a figure, a result.
    pub fn figure(mut self, name: &'static str, value: impl Serialize) -> Self {
        self.figures = self.figures.with(name, value);
        self
    }

    /// Adds figures.
    pub fn and(mut self, figures: Fields) -> Self {
        self.figures = self.figures.and(figures);
        self
    }

    /// Sets the figure by which runs are compared, and its value in each round.
    pub fn rounds(mut self, of: &'static str, values: Vec<f64>) -> Self {
        self.rounds = Some((of, values));
        self
    }

    /// A label or figure.
    pub fn get(&self, name: &str) -> &Value {
        let found = self.labels.get(name).or_else(|| self.figures.get(name));
        debug_assert!(found.is_some(), "rows have no {name}");
        found.unwrap_or(&Value::Null)
    }

    /// A label or figure; `None` if not a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name).as_f64()
    }

    /// A label or figure that rows may lack; `None` if absent or not a number.
    pub fn known(&self, name: &str) -> Option<f64> {
        self.labels
            .get(name)
            .or_else(|| self.figures.get(name))?
            .as_f64()
    }

    /// A label or figure as text in tables: no quotes, `-` for null.
    pub fn text(&self, name: &str) -> String {
        match self.get(name) {
            Value::Null => "-".into(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// Whether the row has all `labels`, a JSON object.
    pub fn has(&self, labels: &Value) -> bool {
        let mut wanted = labels.as_object().into_iter().flatten();
        wanted.all(|(name, value)| self.get(name) == value)
    }

    /// All labels.
    pub fn labels(&self) -> Fields {
        self.labels.clone()
    }

    /// All rounds.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// All labels and figures.
    pub fn fields(&self) -> Fields {
        self.labels.clone().and(self.figures.clone())
    }

    /// All labels and figures, and the medians of the rounds.
    fn compared(&self) -> Fields {
        let rounds = self.rounds.clone();
        let (of, values) = rounds.unwrap_or_else(|| self.series.medians());
        self.fields().compared(&self.labels, of, values)
    }
}

/// Formats a label or figure of a row.
pub type Show = fn(&Row, &str) -> String;

pub const TEXT: Show = |row, name| row.text(name);
pub const TIME: Show = |row, name| table::time(row.known(name));
pub const RATE: Show = |row, name| table::rate(row.known(name));
pub const COUNT: Show = |row, name| table::decimals(row.known(name), 0);
pub const RATIO: Show = |row, name| table::decimals(row.known(name), 2);
pub const SHARE: Show = |row, name| table::decimals(row.known(name), 4);
pub const PERCENT: Show = |row, name| table::percent(row.known(name));
pub const MEBIBYTES: Show = |row, name| table::mebibytes(row.known(name));

/// A table of rows with columns of head, label or figure, and format. The first `texts` columns are
/// left-aligned.
pub fn table(rows: &[Row], texts: usize, columns: &[(&str, &str, Show)]) -> Table {
    let heads: Vec<&str> = columns.iter().map(|(head, ..)| *head).collect();
    let mut table = Table::new(texts, &heads);
    for row in rows {
        table.row(columns.iter().map(|(_, name, show)| show(row, name)));
    }
    table
}

/// The rows of all measurements of a run.
pub fn rows_of<M>(measured: &[(M, Series)], row: impl Fn(&M, &Series) -> Row) -> Vec<Row> {
    let rows = measured.iter().map(|(key, series)| row(key, series));
    rows.collect()
}

/// The first row with all `labels`.
pub fn find<'a>(rows: &'a [Row], labels: &Value) -> Option<&'a Row> {
    rows.iter().find(|row| row.has(labels))
}

/// A figure of the first row with all `labels`, if a number.
pub fn number(rows: &[Row], labels: &Value, figure: &str) -> Option<f64> {
    find(rows, labels)?.number(figure)
}

/// The JSON name of an enum value.
pub fn name(value: impl Serialize) -> String {
    json!(value).as_str().unwrap_or_default().into()
}

/// `value` rounded to a tenth.
pub fn tenths(value: Option<f64>) -> Option<f64> {
    value.map(|value| (value * 10.0).round() / 10.0)
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Part {
    Value(Value),
    Fields(Fields),
    List(Vec<Fields>),
}

/// All rounds of one row.
#[derive(Clone, Debug)]
struct Raw {
    list: &'static str,
    labels: Fields,
    rounds: Series,
}

/// One round of one row: a line of `--raw`.
#[derive(Serialize)]
struct RawRound<'a> {
    list: &'static str,
    #[serde(flatten)]
    labels: &'a Fields,
    round: usize,
    measured: &'a Samples,
}

/// The result of a command, serialized as `--json` prints it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    parts: Vec<(&'static str, Part)>,
    raw: Vec<Raw>,
    /// Remarks about the whole run.
    notes: Vec<String>,
    /// Number of failed or wrong operations.
    pub errors: u64,
    /// Another reason why the command fails.
    pub failure: Option<String>,
    /// The tables for people.
    pub text: String,
}

impl Report {
    /// A report of a run that began at `start`, with the run's conditions in the object `config`.
    pub fn new(effort: Effort, start: Instant, config: Fields) -> Self {
        let config = circumstances(effort, start).and(config);
        let mut report = Report::default();
        report.parts.push(("config", Part::Fields(config)));
        report
    }

    /// A report with the run's conditions at the top level.
    pub fn flat(effort: Effort, start: Instant, config: Fields) -> Self {
        let mut report = Report::default();
        report.fields(circumstances(effort, start).and(config));
        report
    }

    /// Sets the manifest of the run.
    pub fn manifest(&mut self, manifest: &Fields) {
        let manifest = Part::Fields(manifest.clone());
        self.parts.insert(0, ("manifest", manifest));
    }

    /// Adds fields at the top level.
    pub fn fields(&mut self, fields: Fields) {
        let parts = fields.0.into_iter();
        self.parts
            .extend(parts.map(|(name, value)| (name, Part::Value(value))));
    }

    /// Adds one object.
    pub fn object(&mut self, name: &'static str, fields: Fields) {
        self.parts.push((name, Part::Fields(fields)));
    }

    /// Adds a list of rows with their errors and samples.
    pub fn rows(&mut self, name: &'static str, rows: &[Row]) {
        self.errors += rows.iter().map(|row| row.series.errors()).sum::<u64>();
        for row in rows {
            self.samples(name, row.labels.clone(), row.series.clone());
        }
        self.list(name, rows.iter().map(Row::compared).collect());
    }

    /// Adds a list of objects.
    pub fn list(&mut self, name: &'static str, list: Vec<Fields>) {
        self.parts.push((name, Part::List(list)));
    }

    /// Adds the reason for missing rows to text and JSON, with all its causes.
    pub fn note(&mut self, reason: &anyhow::Error) {
        let note = with_causes(reason);
        self.text += &format!("\n{note}\n");
        self.notes.push(note);
    }

    /// Adds the targets.
    pub fn targets(&mut self, targets: &[Target]) {
        self.fields(Fields::default().with("targets", targets));
    }

    /// Adds samples of a row in the list `list`.
    pub fn samples(&mut self, list: &'static str, labels: Fields, rounds: Series) {
        self.raw.push(Raw {
            list,
            labels,
            rounds,
        });
    }

    /// All samples, one object for each round of each row.
    pub fn raw(&self) -> impl Iterator<Item = impl Serialize> {
        self.raw.iter().flat_map(|row| {
            let rounds = row.rounds.rounds().iter().enumerate();
            rounds.map(|(round, measured)| RawRound {
                list: row.list,
                labels: &row.labels,
                round,
                measured,
            })
        })
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let notes = Part::Value(json!(self.notes));
        let notes = (!self.notes.is_empty()).then_some(("notes", &notes));
        let parts = self.parts.iter().map(|(name, part)| (*name, part));
        to.collect_map(parts.chain(notes))
    }
}

fn circumstances(effort: Effort, start: Instant) -> Fields {
    Fields::default()
        .with("effort", effort)
        .and(machine::fields())
        .with("elapsed_s", start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_flat_objects_found_by_labels() {
        let row = |bytes: u64| {
            Row::of(&Samples::errors(1).into())
                .label("path", "rdma")
                .label("set", None::<&str>)
                .label("bytes", bytes)
                .figure("p50_ns", 2.5 * bytes as f64)
        };
        let rows = [row(64), row(1024)];
        let wanted = json!({"bytes": 1024});
        assert_eq!(number(&rows, &wanted, "p50_ns"), Some(2560.0));
        assert!(find(&rows, &json!({"bytes": 1})).is_none());
        let mut report = Report::new(Effort::Quick, Instant::now(), Fields::default());
        report.rows("rows", &rows);
        assert_eq!(report.errors, 2);
        let json = json!(report);
        let row = json!({
            "path": "rdma", "set": null, "bytes": 64, "p50_ns": 160.0,
            "id": "rdma bytes=64", "rounds_of": "ops_per_s", "rounds": [],
        });
        assert_eq!(json["rows"][0], row);
        assert_eq!(json["config"]["effort"], "quick");
        let raw: Vec<Value> = report.raw().map(|round| json!(round)).collect();
        assert_eq!(raw.len(), 2);
        assert_eq!(
            (&raw[1]["list"], &raw[1]["round"]),
            (&json!("rows"), &json!(0))
        );
        assert_eq!(
            (&raw[1]["bytes"], &raw[1]["measured"]["errors"]),
            (&json!(1024), &json!(1))
        );
    }

    #[test]
    fn a_reason_for_missing_rows_is_in_text_and_json_with_its_causes() {
        let mut report = Report::new(Effort::Quick, Instant::now(), Fields::default());
        assert!(json!(report).get("notes").is_none());
        report.note(&anyhow::anyhow!("no such device").context("verbs is left out"));
        let note = "verbs is left out: no such device";
        assert_eq!(report.text, format!("\n{note}\n"));
        assert_eq!(json!(report)["notes"], json!([note]));
    }
}
