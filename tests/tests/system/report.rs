//! `toroid-bench report`: real runs become one page that needs nothing else, and bad input leaves no
//! page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::cluster::program;
use tests::process::{Outcome, run};

use crate::compare::{INPUT, leaves_no_files, start};

const FAILED: i32 = 1;
const BAD_INPUT: i32 = 2;

/// Runs of four commands, each with a number of a paper.
const RUNS: [&[&str]; 4] = [
    &["compare", "--quick", "--dir", INPUT],
    &["compare", "--quick", "--fabric", "bgp"],
    &["link", "--quick"],
    &["micro", "--quick", "--preset", "clan,gm,bvia,mvia"],
];

/// Bytes of a page, at most.
const LARGEST: usize = 2_000_000;

fn report(runs: &[&Path], page: &Path) -> Outcome {
    let mut command = Command::new(program("toroid-bench"));
    run(command.arg("report").args(runs).arg("-o").arg(page))
}

fn files(dir: &Path) -> usize {
    fs::read_dir(dir).expect("it is ours").count()
}

#[test]
fn runs_of_several_commands_are_one_page_without_network_and_scripts() {
    leaves_no_files(|cluster, temporary| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let measure = |(at, words): (usize, &&[&str])| {
            let mut command = cluster.command("toroid-bench");
            let outcome = start(command.args(*words).arg("--json"), temporary).wait();
            let path = dir.path().join(format!("{at}.json"));
            fs::write(&path, outcome.ok().text()).expect("it is ours");
            path
        };
        let runs: Vec<PathBuf> = RUNS.iter().enumerate().map(measure).collect();
        let runs: Vec<&Path> = runs.iter().map(PathBuf::as_path).collect();
        let path = dir.path().join("page.html");
        let summary = report(&runs, &path).ok();
        assert!(summary.text().contains("runs 4"), "{summary}");
        let page = fs::read_to_string(&path).expect("the page is UTF-8");
        assert!(page.len() < LARGEST, "{} bytes", page.len());
        for outside in ["http", "src=", "<script", "@import", "<link", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
        assert_eq!(page.matches("<section id=\"run-").count(), RUNS.len());
        assert!(page.matches("<svg").count() >= 20);
        // The presets hold the table by construction, so do not depend on this machine.
        let gap = "Gap of 4 B: GM";
        let row = page.split("<tr").find(|row| row.contains(gap));
        let row = row.expect("the page has Table 3.1");
        for cell in ["Table 3.1", "stated", "8.6 us", "reproduced", "#run-4"] {
            assert!(row.contains(cell), "no {cell} in {row}");
        }
        assert!(page.contains("an anomaly of the table, not reproduced"));
        assert_eq!(files(dir.path()), RUNS.len() + 1);
    });
}

#[test]
fn bad_input_is_named_and_leaves_no_page() {
    leaves_no_files(|cluster, temporary| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (good, page) = (dir.path().join("good"), dir.path().join("page.html"));
        let mut command = cluster.command("toroid-bench");
        let command = command.args(["micro", "--quick", "--preset", "clan", "--json"]);
        let text = start(command, temporary).wait().ok().text().to_owned();
        fs::write(&good, &text).expect("it is ours");
        let mut older: Value = serde_json::from_str(&text).expect("a run is JSON");
        older["config"] = older["manifest"].take();
        let nan = text.replacen("\"rounds\":[", "\"rounds\":[NaN,", 1);
        let null = text.replacen("\"rounds\":[", "\"rounds\":[null,", 1);
        let bad = dir.path().join("bad");
        for (text, wanted) in [
            (&text[..text.len() / 2], "bad ends in the middle"),
            ("", "bad ends in the middle"),
            ("{\"packages\": [1]}", "bad is no run of toroid-bench"),
            (&older.to_string(), "bad is of an older toroid-bench"),
            (&nan, "bad is no JSON"),
            (&null, "a round is no number"),
        ] {
            fs::write(&bad, text).expect("it is ours");
            report(&[&good, &bad], &page).fails(BAD_INPUT, &[wanted]);
            assert_eq!(files(dir.path()), 2, "only the runs: {wanted}");
        }
        fs::remove_file(&bad).expect("it is ours");
        report(&[&good, &bad], &page).fails(BAD_INPUT, &["cannot read", "bad"]);
        report(&[&good], Path::new("/dev/full")).fails(FAILED, &["/dev/full: No space"]);
        let nowhere = dir.path().join("no/page.html");
        report(&[&good], &nowhere).fails(FAILED, &["cannot write", "no/page.html"]);
        report(&[&good], &good).fails(FAILED, &["choose another name with -o"]);
        assert_eq!(fs::read_to_string(&good).expect("it is ours"), text);
        assert_eq!(files(dir.path()), 1);
    });
}
