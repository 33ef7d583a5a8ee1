//! The lists of a run: rows with labels and figures.

use serde_json::{Map, Value};

use super::format;
use crate::comparison::run::Run;
use crate::stats::Summary;

/// Fields that the summary of the rounds replaces.
const COMPARED: [&str; 3] = ["id", "rounds_of", "rounds"];

/// A list of objects.
#[derive(Clone, Debug)]
pub struct List {
    /// The name of the list.
    pub name: String,
    /// Names of labels, in the order of the rows' names.
    pub labels: Vec<String>,
    /// Names of all other fields.
    pub figures: Vec<String>,
    /// The rows in the order of the run.
    pub rows: Vec<Row>,
}

/// An object of a list.
#[derive(Clone, Debug)]
pub struct Row {
    fields: Map<String, Value>,
    /// The row's name, made of its labels; empty if rows have none.
    pub id: String,
    /// The name of the figure of the rounds.
    pub of: String,
    /// The rounds; `None` without one.
    pub summary: Option<Summary>,
}

impl List {
    /// The lists of a run: those with rounds first.
    pub fn all(run: &Run) -> Vec<Self> {
        let lists = run.report.iter().filter_map(|(name, value)| {
            let rows: Vec<Row> = value.as_array()?.iter().filter_map(Row::of).collect();
            let list = Self::of(name.clone(), rows);
            (!list.rows.is_empty()).then_some(list)
        });
        let mut lists: Vec<Self> = lists.collect();
        lists.sort_by_key(|list| !list.has_rounds());
        lists
    }

    fn of(name: String, rows: Vec<Row>) -> Self {
        let mut labels: Vec<String> = Vec::new();
        for row in &rows {
            let mut after = 0;
            for label in row.labels() {
                let known = labels.iter().position(|known| *known == label);
                let at = known.unwrap_or_else(|| {
                    labels.insert(after.min(labels.len()), label);
                    after
                });
                after = at.max(after) + 1;
            }
        }
        let mut figures: Vec<String> = Vec::new();
        for name in rows.iter().flat_map(|row| row.fields.keys()) {
            let is_other = !labels.contains(name) && !COMPARED.contains(&name.as_str());
            if is_other && !figures.contains(name) {
                figures.push(name.clone());
            }
        }
        // Texts, which describe, before numbers, which do not.
        let is_text = |name: &String| rows.iter().any(|row| row.get(name).is_string());
        figures.sort_by_key(|name| !is_text(name));
        List {
            name,
            labels,
            figures,
            rows,
        }
    }

    /// Whether rows have rounds.
    pub fn has_rounds(&self) -> bool {
        self.rows.iter().any(|row| row.summary.is_some())
    }

    /// The text of a field that all rows share, if there are several rows.
    pub fn common(&self, name: &str) -> Option<String> {
        let (first, others) = self.rows.split_first()?;
        let value = first.get(name);
        let is_common = !others.is_empty() && others.iter().all(|row| row.get(name) == value);
        is_common.then(|| first.text(name))
    }
}

impl Row {
    fn of(value: &Value) -> Option<Self> {
        let fields = value.as_object()?;
        let text = |name| fields.get(name).and_then(Value::as_str);
        // A row that is drawn, but not compared with other runs, has the figure alone.
        let rounds = match fields.get("rounds") {
            Some(rounds) => rounds.as_array().map_or(&[][..], Vec::as_slice),
            None => {
                let figure = text("rounds_of").and_then(|of| fields.get(of));
                figure.map_or(&[][..], std::slice::from_ref)
            }
        };
        let rounds: Vec<f64> = rounds.iter().filter_map(Value::as_f64).collect();
        Some(Row {
            id: text("id").unwrap_or_default().into(),
            of: text("rounds_of").unwrap_or_default().into(),
            summary: Summary::of(&rounds),
            fields: fields.clone(),
        })
    }

    /// A field; null if absent.
    pub fn get(&self, name: &str) -> &Value {
        self.fields.get(name).unwrap_or(&Value::Null)
    }

    /// A field as text.
    pub fn text(&self, name: &str) -> String {
        format::value(name, &self.of, self.get(name))
    }

    /// Names of the fields of which the row's name is made, in its order: a text is there as it is,
    /// another value after the field's name.
    fn labels(&self) -> Vec<String> {
        let id = format!(" {} ", self.id);
        let place = |(name, value): (&String, &Value)| {
            let word = match value {
                Value::Null => return None,
                Value::String(text) => format!(" {text} "),
                other => format!(" {name}={other} "),
            };
            let is_other = COMPARED.contains(&name.as_str());
            let at = id.find(&word).filter(|_| !is_other)?;
            Some((at, name.clone()))
        };
        let mut labels: Vec<_> = self.fields.iter().filter_map(place).collect();
        labels.sort();
        labels.into_iter().map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lists(report: Value) -> Vec<List> {
        Run::parse("f".into(), report.to_string().as_bytes())
            .map(|run| List::all(&run))
            .unwrap()
    }

    #[test]
    fn a_row_without_rounds_has_its_figure() {
        let power = |value: Value| {
            let row = json!({"id": "hz=2.5", "hz": 2.5, "rounds_of": "power", "power": value});
            lists(json!({"manifest": {}, "spectrum": [row]})).remove(0)
        };
        let list = power(json!(7.0));
        assert_eq!(list.labels, ["hz"]);
        assert_eq!(list.rows[0].summary.as_ref().unwrap().median, 7.0);
        assert!(power(json!(null)).rows[0].summary.is_none());
    }

    #[test]
    fn labels_are_the_fields_in_the_name_of_a_row() {
        let lists = lists(json!({
            "manifest": {},
            "a": [{"what": "x", "found": 2.0}],
            "rows": [
                {"id": "store get bytes=64 idle=true", "path": null, "op": "get", "bytes": 64,
                 "idle": true, "errors": 0, "section": "store", "how": "live",
                 "rounds_of": "p50_ns", "rounds": [1.0, 3.0]},
                {"id": "store rdma get bytes=64", "path": "rdma", "op": "get", "bytes": 64,
                 "idle": null, "errors": 64, "section": "store", "rounds_of": "p50_ns", "rounds": []},
            ],
        }));
        let names: Vec<_> = lists.iter().map(|list| list.name.as_str()).collect();
        assert_eq!(names, ["rows", "a"]);
        let rows = &lists[0];
        assert_eq!(rows.labels, ["section", "path", "op", "bytes", "idle"]);
        assert_eq!(rows.figures, ["how", "errors"]);
        assert_eq!(rows.common("section").as_deref(), Some("store"));
        assert_eq!(rows.common("idle"), None);
        assert_eq!(rows.rows[0].summary.as_ref().unwrap().median, 2.0);
        assert!(rows.rows[1].summary.is_none());
        assert_eq!(lists[1].figures, ["what", "found"]);
        assert_eq!(lists[1].common("what"), None, "one row shares nothing");
    }
}
