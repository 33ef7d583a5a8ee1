//! A run that was measured before, read from its `--json` or `--save`; or several in one file, one
//! appended to another.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::error::Category;
use serde_json::{Map, Value};

use crate::manifest::ALIKE;
use crate::stats::median;

/// Reason why a run cannot be read or compared.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot read {name}: {source}")]
    Read { name: String, source: io::Error },
    #[error("{name} ends in the middle (line {line}); write it again with toroid-bench ... --json")]
    Truncated { name: String, line: usize },
    #[error("{name} is no JSON; write it again with toroid-bench ... --json: {source}")]
    NotJson {
        name: String,
        source: serde_json::Error,
    },
    #[error("{name} is no run of toroid-bench: it has no {lacks}; write it with --json or --save")]
    Foreign { name: String, lacks: &'static str },
    #[error("{name} is of an older toroid-bench: it has no {lacks}; measure again with this one")]
    Older { name: String, lacks: &'static str },
    #[error("{name}, row {row:?}: {problem}; the file was changed or damaged: measure again")]
    Row {
        name: String,
        row: String,
        problem: &'static str,
    },
    #[error(
        "{name}, row {row:?}: one round has no spread; measure with more rounds, or leave such rows \
         out with --force"
    )]
    OneRound { name: String, row: String },
    #[error("{name} holds runs that were not measured alike: {unlike}; use a file for each kind")]
    Mixed { name: String, unlike: String },
    #[error(
        "{old} and {new} have no row in common with rounds above 0; compare runs of the same \
         command"
    )]
    NothingInCommon { old: String, new: String },
    #[error(
        "{old} and {new} were not measured alike: {unlike}; measure both alike, or compare them all \
         the same with --force"
    )]
    Unlike {
        old: String,
        new: String,
        unlike: String,
    },
}

/// A row of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The row's name, with the name of its list unless that is `rows`.
    pub id: String,
    /// The name of the figure.
    pub of: String,
    /// The figure in each round, or its median in each of several runs.
    pub rounds: Vec<f64>,
}

/// A run with its rows, in their order, or several runs of one command.
#[derive(Clone, Debug)]
pub struct Run {
    /// The file or program.
    pub name: String,
    /// The manifest of the first run.
    pub manifest: Map<String, Value>,
    pub runs: usize,
    pub rows: Vec<Measured>,
    /// The report of the first run, with all its lists and objects.
    pub report: Map<String, Value>,
}

impl Run {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        Run::merge(Run::read_each(path)?)
    }

    /// Reads the runs of a file, each for itself.
    pub fn read_each(path: &Path) -> Result<Vec<Self>, RunError> {
        let name = path.display().to_string();
        match fs::read(path) {
            Ok(text) => Run::parse_each(name, &text),
            Err(source) => Err(RunError::Read { name, source }),
        }
    }

    /// The run or runs in `text`, which is called `name` in errors.
    pub fn parse(name: String, text: &[u8]) -> Result<Self, RunError> {
        Run::merge(Run::parse_each(name, text)?)
    }

    /// The runs in `text`, at least one.
    fn parse_each(name: String, text: &[u8]) -> Result<Vec<Self>, RunError> {
        let mut runs = Vec::new();
        for json in serde_json::Deserializer::from_slice(text).into_iter() {
            let name = name.clone();
            match json {
                Ok(json) => runs.push(Run::of(name, json)?),
                Err(source) if source.classify() == Category::Eof => {
                    let line = source.line();
                    return Err(RunError::Truncated { name, line });
                }
                Err(source) => return Err(RunError::NotJson { name, source }),
            }
        }
        if runs.is_empty() {
            return Err(RunError::Truncated { name, line: 1 });
        }
        Ok(runs)
    }

    /// One run as it is; or several, of which the medians are the rounds: the spread between runs is
    /// then that of programs started anew.
    fn merge(mut runs: Vec<Run>) -> Result<Self, RunError> {
        let mut all = runs.remove(0);
        if runs.is_empty() {
            return Ok(all);
        }
        all.runs += runs.len();
        let mut medians: HashMap<_, Vec<f64>> = HashMap::new();
        for run in &runs {
            let unlike = all.unlike(run).join("; ");
            if !unlike.is_empty() {
                let name = all.name;
                return Err(RunError::Mixed { name, unlike });
            }
            for row in &run.rows {
                let known = medians.entry((&row.id, &row.of)).or_default();
                known.extend(median(&row.rounds));
            }
        }
        for row in &mut all.rows {
            let others = medians.remove(&(&row.id, &row.of));
            let first = median(&row.rounds);
            row.rounds = first
                .into_iter()
                .chain(others.unwrap_or_default())
                .collect();
        }
        Ok(all)
    }

    /// Differences between the manifests of two runs that are not to be compared.
    pub fn unlike(&self, other: &Run) -> Vec<String> {
        let differs = |name: &&str| {
            let [ours, theirs] = [self, other].map(|run| run.manifest.get(*name));
            let [ours, theirs] = [ours, theirs].map(|value| value.unwrap_or(&Value::Null));
            (ours != theirs).then(|| format!("{name} is {ours} and {theirs}"))
        };
        ALIKE.iter().filter_map(differs).collect()
    }

    fn of(name: String, json: Value) -> Result<Self, RunError> {
        let Value::Object(mut top) = json else {
            let lacks = "rows";
            return Err(RunError::Foreign { name, lacks });
        };
        // `--save` wraps the report.
        if let Some(Value::Object(report)) = top.remove("report") {
            top = report;
        }
        let lists = || {
            top.iter()
                .filter_map(|(list, rows)| Some((list, rows.as_array()?)))
        };
        if lists().next().is_none() {
            let lacks = "rows";
            return Err(RunError::Foreign { name, lacks });
        }
        let Some(Value::Object(manifest)) = top.get("manifest") else {
            let lacks = "manifest";
            let is_ours = top.contains_key("config") || top.contains_key("effort");
            return Err(if is_ours {
                RunError::Older { name, lacks }
            } else {
                RunError::Foreign { name, lacks }
            });
        };
        let mut rows = Vec::new();
        for (list, values) in lists() {
            for value in values {
                rows.extend(row(&name, list, value)?);
            }
        }
        let mut known = HashMap::new();
        for row in &rows {
            if known.insert(&row.id, ()).is_some() {
                let (row, problem) = (row.id.clone(), "it is there twice");
                return Err(RunError::Row { name, row, problem });
            }
        }
        let manifest = manifest.clone();
        Ok(Run {
            name,
            manifest,
            runs: 1,
            rows,
            report: top,
        })
    }
}

/// A row in a list; `None` if the object is no row.
fn row(name: &str, list: &str, value: &Value) -> Result<Option<Measured>, RunError> {
    let Some(rounds) = value.get("rounds") else {
        return Ok(None);
    };
    let Some(id) = value.get("id").and_then(Value::as_str) else {
        let (name, lacks) = (name.into(), "id in its rows");
        return Err(RunError::Older { name, lacks });
    };
    let id = match list {
        "rows" => id.to_owned(),
        list => format!("{list}: {id}"),
    };
    let wrong = |problem| RunError::Row {
        name: name.into(),
        row: id.clone(),
        problem,
    };
    let of = value.get("rounds_of").and_then(Value::as_str);
    let of = of.ok_or_else(|| wrong("it has no rounds_of"))?;
    let rounds = rounds.as_array();
    let rounds = rounds.ok_or_else(|| wrong("its rounds are no list"))?;
    let number = |value: &Value| value.as_f64().ok_or_else(|| wrong("a round is no number"));
    let rounds: Vec<f64> = rounds.iter().map(number).collect::<Result<_, _>>()?;
    if !rounds.is_empty() && rounds.iter().all(|round| *round == 0.0) {
        return Err(wrong("all its rounds are 0"));
    }
    let of = of.to_owned();
    Ok(Some(Measured { id, of, rounds }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Value {
        json!({
            "manifest": {"host": "a"},
            "config": {"effort": "quick"},
            "rows": [
                {"op": "get", "id": "get", "rounds_of": "p50_ns", "rounds": [1.0, 2.0, 3.5]},
                {"op": "set", "id": "set", "rounds_of": "ops_per_s", "rounds": []},
            ],
            "targets": [{"what": "x", "found": null}],
            "grow": [{"id": "get", "rounds_of": "p50_ns", "rounds": [4]}],
        })
    }

    fn error(text: &str) -> String {
        Run::parse("f".into(), text.as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn rows_of_all_lists_are_read_also_from_a_saved_run() {
        for json in [run(), json!({"command": [], "report": run()})] {
            let run = Run::parse("f".into(), json.to_string().as_bytes()).unwrap();
            let ids: Vec<&str> = run.rows.iter().map(|row| row.id.as_str()).collect();
            assert_eq!(ids, ["grow: get", "get", "set"]);
            assert_eq!(run.rows[1].rounds, [1.0, 2.0, 3.5]);
            assert_eq!(run.manifest["host"], "a");
        }
    }

    #[test]
    fn runs_in_one_file_count_as_rounds() {
        let mut later = run();
        later["rows"][0]["rounds"] = json!([7.0, 9.0]);
        let text = format!("{}\n{later:#}\n{}", run(), run());
        let runs = Run::parse("f".into(), text.as_bytes()).unwrap();
        assert_eq!(
            (runs.runs, &runs.rows[1].rounds[..]),
            (3, &[2.0, 8.0, 2.0][..])
        );
        assert_eq!(runs.rows[2].rounds, [0.0; 0]);
        later["manifest"]["host"] = json!("b");
        let mixed = error(&format!("{}{later}", run()));
        assert!(
            mixed.contains("f holds runs that were not measured alike: host is"),
            "{mixed}"
        );
    }

    #[test]
    fn bad_input_is_named_with_the_remedy() {
        let edited = |pointer: &str, value: Value| {
            let mut json = run();
            *json.pointer_mut(pointer).unwrap() = value;
            error(&json.to_string())
        };
        let whole = run().to_string();
        let cases = [
            (
                error(&whole[..whole.len() / 2]),
                "f ends in the middle (line 1); write it again",
            ),
            (error(""), "f ends in the middle"),
            (
                error("{\"rows\": [NaN]}"),
                "f is no JSON; write it again with toroid-bench ... --json: expected value",
            ),
            (error("[1]"), "f is no run of toroid-bench: it has no rows"),
            (error("{\"name\": \"x\"}"), "it has no rows"),
            (
                error("{\"packages\": [{\"rounds\": 1}]}"),
                "no run of toroid-bench: it has no manifest",
            ),
            (
                edited("/manifest", json!(null)),
                "f is of an older toroid-bench: it has no manifest",
            ),
            (
                edited("/rows/0/id", json!(null)),
                "older toroid-bench: it has no id",
            ),
            (
                edited("/rows/0/rounds", json!(7)),
                "f, row \"get\": its rounds are no list",
            ),
            (
                edited("/rows/0/rounds", json!([0, 0.0])),
                "row \"get\": all its rounds are 0",
            ),
            (
                edited("/rows/0/rounds/1", json!(null)),
                "row \"get\": a round is no number",
            ),
            (edited("/rows/0/rounds_of", json!(1)), "it has no rounds_of"),
            (
                edited("/rows/1/id", json!("get")),
                "row \"get\": it is there twice",
            ),
        ];
        for (found, expected) in cases {
            assert!(found.contains(expected), "{found}");
        }
        let missing = Run::read("/no/such".as_ref()).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read /no/such: "), "{missing}");
    }

    /// Every cut of a run and many changed bytes: an error or a run, never a panic.
    #[test]
    fn any_bytes_are_a_run_or_an_error() {
        let text = run().to_string().into_bytes();
        for end in 0..text.len() {
            Run::parse("f".into(), &text[..end]).unwrap_err();
        }
        let mut random = fastrand::Rng::with_seed(24);
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut changed = text.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..changed.len());
                match random.u8(..3) {
                    0 => changed[at] = random.u8(..),
                    1 => _ = changed.remove(at),
                    _ => changed.insert(at, *random.choice(b"{}[]\",:-.e019ntf\\").unwrap()),
                }
            }
            match Run::parse("f".into(), &changed) {
                Ok(run) => {
                    let mut rounds = run.rows.iter().flat_map(|row| &row.rounds);
                    assert!(rounds.all(|round| round.is_finite()));
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains('f'));
                }
            }
        }
        assert!(refused > 10_000, "{refused}");
        Run::parse("f".into(), "[".repeat(1 << 20).as_bytes()).unwrap_err();
    }
}
