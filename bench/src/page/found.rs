//! Where a paper's number is found in runs.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::comparison::run::Run;

/// Labels of a row with their values.
pub type Labels = Map<String, Value>;

/// Where ours is found: a figure of a row, or the quotient of that of two rows. Of several rows, the
/// figure furthest from zero counts, if each has one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// Words that the command line contains, the command first.
    pub command: String,
    /// The list of the rows.
    #[serde(default = "rows")]
    list: String,
    /// The figure.
    key: String,
    /// Factor from the figure to the paper's unit.
    #[serde(default = "one")]
    scale: f64,
    /// The figure is the time of a message in nanoseconds, the paper's number its rate in Mbit/s.
    #[serde(default)]
    is_rate: bool,
    /// Labels of the rows. Of a list, each value has a row.
    #[serde(default)]
    pub row: Labels,
    /// Labels of the row to divide by.
    over: Option<Labels>,
}

/// A number of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Ours {
    pub value: f64,
    /// The run's place in the list of runs.
    pub run: usize,
    /// Labels such as how a figure was found, of all rows that the number is from.
    labels: Vec<String>,
}

impl Ours {
    /// How the number was found.
    pub fn how(&self) -> String {
        self.labels.join(", ")
    }

    /// What the labels say about the number beside the paper's.
    pub fn origin(&self) -> impl Iterator<Item = &str> {
        let origins = [
            ("fit", "fitted to the paper"),
            ("virtual clock", "on a virtual clock"),
        ];
        let is_of = |(label, _): &(&str, _)| self.labels.iter().any(|own| own == label);
        origins.into_iter().filter(is_of).map(|(_, origin)| origin)
    }
}

impl Found {
    /// The number in a run, which is taken as the first one.
    pub fn ours(&self, run: &Run, number: &Labels) -> Option<Ours> {
        if !is_of(run, &self.command) {
            return None;
        }
        let (mut value, row) = self.furthest(run, &self.row, number)?;
        let mut labels = origins(row);
        if let Some(over) = &self.over {
            let (divisor, row) = self.furthest(run, over, number)?;
            value /= divisor;
            let others = origins(row).into_iter();
            labels = others.fold(labels, with);
        }
        let value = value * self.scale;
        let run = 0;
        value.is_finite().then_some(Ours { value, run, labels })
    }

    /// The row with the figure furthest from zero. A row without the figure may be the furthest, and
    /// so may the row that a list names and the run lacks: then there is none.
    fn furthest<'a>(&self, run: &'a Run, of: &Labels, number: &Labels) -> Option<(f64, &'a Value)> {
        let own = of.iter().filter(|(name, _)| !number.contains_key(*name));
        let labels: Vec<_> = own.chain(number).collect();
        let rows = run.report.get(&self.list)?.as_array()?.iter();
        let is_wanted = |row: &&Value| labels.iter().all(|label| has(row, *label));
        let rows: Vec<&Value> = rows.filter(is_wanted).collect();
        if !labels.iter().all(|label| is_whole(&rows, *label)) {
            return None;
        }
        let values = rows.into_iter().map(|row| Some((self.figure(row)?, row)));
        let values = values.collect::<Option<Vec<_>>>()?.into_iter();
        values.max_by(|(a, _), (b, _)| a.abs().total_cmp(&b.abs()))
    }

    fn figure(&self, row: &Value) -> Option<f64> {
        let figure = row.get(&self.key)?.as_f64()?;
        if self.is_rate {
            let bits = 8.0 * row.get("bytes")?.as_f64()?;
            return (figure > 0.0).then(|| bits / figure * 1e3);
        }
        Some(figure)
    }
}

fn one() -> f64 {
    1.0
}

fn rows() -> String {
    "rows".into()
}

/// Labels of a row that are no labels of a number.
fn origins(row: &Value) -> Vec<String> {
    let labels = ["how", "basis"].map(|name| row.get(name).and_then(Value::as_str));
    labels.into_iter().flatten().map(String::from).collect()
}

fn with(mut labels: Vec<String>, label: String) -> Vec<String> {
    if !labels.contains(&label) {
        labels.push(label);
    }
    labels
}

/// Whether the command line of a run contains all words, the command first.
fn is_of(run: &Run, command: &str) -> bool {
    let words = run.manifest.get("configuration").and_then(Value::as_array);
    let words: Vec<&str> = words
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .flat_map(|word| word.split('='))
        .collect();
    let mut wanted = command.split(' ');
    words.first() == wanted.next().as_ref() && wanted.all(|word| words.contains(&word))
}

/// Whether a row has a label, or one of several.
fn has(row: &Value, (name, wanted): (&String, &Value)) -> bool {
    let found = row.get(name).unwrap_or(&Value::Null);
    match wanted {
        Value::Array(any) => any.iter().any(|wanted| is_equal(found, wanted)),
        wanted => is_equal(found, wanted),
    }
}

/// Whether rows have each of several labels.
fn is_whole(rows: &[&Value], (name, wanted): (&String, &Value)) -> bool {
    let all = wanted.as_array().into_iter().flatten();
    let mut all = all.map(|wanted| rows.iter().any(|row| has(row, (name, wanted))));
    all.all(|is_there| is_there)
}

fn is_equal(found: &Value, wanted: &Value) -> bool {
    match wanted.as_f64() {
        Some(number) => found.as_f64() == Some(number),
        None => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(toml: &str, number: Value, rows: Value) -> Option<Ours> {
        let found: Found = toml::from_str(toml).unwrap();
        let run = json!({"manifest": {"configuration": ["link"]}, "rows": rows});
        let run = Run::parse("f".into(), run.to_string().as_bytes()).unwrap();
        found.ours(&run, number.as_object().unwrap())
    }

    fn error(number: Value, rows: Value) -> Option<f64> {
        found("command = 'link'\nkey = 'error'", number, rows).map(|ours| ours.value)
    }

    #[test]
    fn the_largest_of_rows_is_unknown_while_one_has_no_figure() {
        let rows = json!([{"error": 0.01}, {"error": -0.03}, {"error": 0.02}]);
        assert_eq!(error(json!({}), rows.clone()), Some(-0.03));
        for without in [json!({"error": null}), json!({})] {
            let mut rows = rows.clone();
            rows.as_array_mut().unwrap().push(without);
            assert_eq!(error(json!({}), rows), None);
        }
        assert_eq!(error(json!({}), json!([])), None);
    }

    #[test]
    fn the_largest_of_listed_cases_needs_each() {
        let row = |case: &str, error: f64| json!({"case": case, "error": error});
        let (low, high, other) = (row("low", 0.01), row("high", 0.02), row("other", 0.5));
        let listed = json!({"case": ["low", "high"]});
        let all = json!([low, high, other]);
        assert_eq!(error(listed.clone(), all), Some(0.02));
        assert_eq!(error(listed, json!([low, other])), None);
    }

    /// A quotient is fitted if one of its numbers is.
    #[test]
    fn a_quotient_has_the_origins_of_both_rows() {
        let toml = "command = 'link'\nkey = 'ours'\nrow = { path = 'a' }\nover = { path = 'b' }";
        let row = |path: &str, how: &str, basis: &str| json!({"path": path, "how": how, "basis": basis, "ours": 2.0});
        let of = |how, basis| {
            let rows = json!([row("a", "live", "prediction"), row("b", how, basis)]);
            let ours = found(toml, json!({}), rows).unwrap();
            ours.origin().collect::<Vec<_>>().join("; ")
        };
        assert_eq!(of("live", "prediction"), "");
        let both = "fitted to the paper; on a virtual clock";
        assert_eq!(of("virtual clock", "fit"), both);
    }
}
