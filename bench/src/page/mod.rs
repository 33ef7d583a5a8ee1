//! The command `report`: runs as one HTML file, with the papers' numbers beside.
//!
//! [`rows`] reads the lists of a run, [`charts`] decides what is drawn, [`draw`] draws it,
//! [`papers`] has the papers' numbers and verdicts, [`found`] finds ours, [`html`] puts the page
//! together. The page needs neither scripts nor other files. All text from runs is escaped.

mod charts;
mod draw;
mod format;
mod found;
mod html;
mod papers;
mod rows;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use self::papers::{Beside, Paper, Verdict};
use crate::comparison::run::Run;
use crate::report::Report;
use crate::results::Output;

/// Bytes of a page, at most.
const LARGEST: usize = 2_000_000;

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Runs: files written with --json or --save, of any commands.
    #[arg(required = true, value_name = "RUN.json")]
    runs: Vec<PathBuf>,

    /// The page. An older one of that name is replaced once the new one is whole.
    #[arg(short, long, value_name = "FILE.html")]
    output: PathBuf,
}

/// Reads the runs and writes the page.
pub fn write(options: &Options) -> Result<Report> {
    let mut runs = Vec::new();
    for path in &options.runs {
        if is_same(path, &options.output) {
            let path = path.display();
            bail!("{path} is a run, which the page would replace; choose another name with -o");
        }
        runs.extend(Run::read_each(path)?);
    }
    let papers: Vec<(Paper, Vec<Beside>)> = Paper::all()
        .into_iter()
        .map(|paper| {
            let beside = paper.beside(&runs);
            (paper, beside)
        })
        .collect();
    let page = html::page(&runs, &papers)?;
    if page.len() > LARGEST {
        bail!(
            "the page of these runs has {} bytes, more than {LARGEST}; report fewer runs at once",
            page.len()
        );
    }
    Output::create(&options.output)?.write(|to| to.write_all(page.as_bytes()))?;
    let mut report = Report::default();
    report.text = summary(options, &runs, &papers);
    Ok(report)
}

/// Whether both paths name one existing file.
fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| fs::canonicalize(path).ok();
    of(one).is_some_and(|one| Some(one) == of(other))
}

fn summary(options: &Options, runs: &[Run], papers: &[(Paper, Vec<Beside>)]) -> String {
    let rows: usize = runs.iter().map(|run| run.rows.len()).sum();
    let counts = Verdict::ALL.map(|verdict| {
        let count = papers::count(papers, verdict);
        format!("{count} {verdict}")
    });
    format!(
        "{}: runs {}, rows {rows}. Numbers of papers: {}.\n",
        options.output.display(),
        runs.len(),
        counts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn run() -> Value {
        let row = |path: &str, bytes: u64, ns: f64| {
            json!({
                "path": path, "bytes": bytes, "note": null, "errors": 0,
                "id": format!("{path} bytes={bytes}"), "rounds_of": "p50_ns",
                "rounds": [ns, ns * 1.5, ns * 1.25, ns, ns, ns * 2.0],
            })
        };
        json!({
            "manifest": {"host": "<script>alert(1)</script>", "configuration": ["kv", "--quick"]},
            "config": {"effort": "quick", "nested": {"a": [1, "<b>"]}},
            "rows": [
                row("<script>x", 64, 100.0), row("<script>x", 4096, 900.0),
                row("b&\"'", 64, 1e6), row("b&\"'", 4096, 2e6),
            ],
            "targets": [{"what": "<img src=x>", "found": null, "wanted": 2.5, "met": false}],
        })
    }

    fn page_of(runs: &[Value]) -> String {
        let parse = |run: &Value| Run::parse("<i>f".into(), run.to_string().as_bytes()).unwrap();
        let runs: Vec<Run> = runs.iter().map(parse).collect();
        html::page(&runs, &[]).unwrap()
    }

    #[test]
    fn text_of_runs_is_escaped_everywhere() {
        let page = page_of(&[run()]);
        for raw in ["<script", "<img", "<i>f", "<b>", "b&\"'"] {
            assert!(!page.contains(raw), "{raw}");
        }
        let shown = "&lt;script&gt;x";
        assert!(page.matches(shown).count() >= 2, "in a legend and a table");
        assert!(page.contains("<svg") && page.contains("4 KiB"));
        for outside in ["http", "src=", "href=\"//", "url("] {
            let found = page.replace("&lt;img src=x&gt;", "");
            assert!(!found.contains(outside), "{outside}");
        }
    }

    #[test]
    fn rows_without_a_place_in_charts_are_counted() {
        let mut run = run();
        let note =
            |run: &Value| page_of(std::slice::from_ref(run)).contains("1 of 4 rows not drawn");
        assert!(!note(&run));
        run["rows"][3]["rounds"] = json!([1e-40, 1e-40, 3.0]);
        assert!(note(&run));
    }

    #[test]
    fn every_run_of_a_file_is_on_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let (runs, output) = (dir.path().join("runs"), dir.path().join("page.html"));
        fs::write(&runs, format!("{}\n{}", run(), run())).unwrap();
        let runs = vec![runs.clone(), runs];
        let options = Options { runs, output };
        let report = write(&options).unwrap();
        assert!(report.text.contains("runs 4, rows 16."), "{}", report.text);
        let page = fs::read_to_string(&options.output).unwrap();
        assert_eq!(page.matches("<section id=\"run-").count(), 4);
        assert!(page.len() < LARGEST);
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 2, "only runs and page");
    }

    #[test]
    fn a_run_is_never_replaced_by_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        fs::write(&path, run().to_string()).unwrap();
        let options = Options {
            runs: vec![path.clone()],
            output: dir.path().join("./run"),
        };
        let refused = write(&options).unwrap_err().to_string();
        assert!(refused.contains("choose another name with -o"), "{refused}");
        let kept = fs::read_to_string(&path).unwrap();
        assert_eq!(kept, run().to_string());
    }

    #[test]
    fn an_older_page_stays_if_a_run_is_bad() {
        let dir = tempfile::tempdir().unwrap();
        let [good, cut, output] = ["good", "cut", "page"].map(|name| dir.path().join(name));
        let text = run().to_string();
        fs::write(&good, &text).unwrap();
        fs::write(&cut, &text[..text.len() / 2]).unwrap();
        fs::write(&output, "older").unwrap();
        let runs = vec![good, cut];
        let refused = write(&Options {
            runs,
            output: output.clone(),
        })
        .unwrap_err();
        assert!(refused.to_string().contains("cut ends in the middle"));
        assert_eq!(fs::read_to_string(output).unwrap(), "older");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn runs_too_long_for_a_page_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, output) = (dir.path().join("run"), dir.path().join("page"));
        let mut long = run();
        let values = (0..90_000).map(|at| (format!("value {at}"), json!(at)));
        long["config"] = values.collect();
        fs::write(&path, long.to_string()).unwrap();
        let runs = vec![path];
        let refused = write(&Options {
            runs,
            output: output.clone(),
        })
        .unwrap_err();
        assert!(
            refused.to_string().contains("report fewer runs"),
            "{refused}"
        );
        assert!(!output.exists());
    }

    /// Values at the ends of what JSON can hold, and changed bytes: a page or an error, no panic.
    #[test]
    fn any_run_has_a_page() {
        let mut extreme = run();
        for (row, value) in [(0, 5e-324), (1, 1.7e308), (2, 1e-30), (3, 1e30)] {
            extreme["rows"][row]["rounds"] = json!([value, value]);
        }
        extreme["rows"][0]["bytes"] = json!(u64::MAX);
        extreme["rows"][1]["bytes"] = json!(-1e300);
        page_of(&[extreme]);
        let text = run().to_string().into_bytes();
        let mut random = fastrand::Rng::with_seed(24);
        let mut pages = 0;
        while pages < 200 {
            let mut changed = text.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..changed.len());
                changed[at] = *random.choice(b"{}[]\",:-.e019ntf\\").unwrap();
            }
            if let Ok(run) = Run::parse("f".into(), &changed) {
                html::page(&[run], &[]).unwrap();
                pages += 1;
            }
        }
    }
}
