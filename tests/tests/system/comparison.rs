//! `toroid-bench diff` and `ab`: a slower program is found, an equal one is not, and what cannot be
//! compared is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, leaves_nothing, program};
use tests::process::{Outcome, run};

use crate::compare::{INPUT, leaves_no_files, start, stop, temporary};

const FAILED: i32 = 1;
const BAD_INPUT: i32 = 2;

/// A measurement of a second.
const SHORT: [&str; 6] = [
    "kv",
    "--quick",
    "--rows",
    "memcpy/copy/64/hot",
    "--rounds",
    "12",
];

/// A real run as JSON.
fn measured(cluster: &Cluster, temporary: &Path) -> Value {
    let mut command = cluster.command("toroid-bench");
    start(command.args(SHORT).arg("--json"), temporary)
        .wait()
        .ok()
        .json()
}

fn diff(old: &Path, new: &Path, options: &[&str]) -> Outcome {
    let mut command = Command::new(program("toroid-bench"));
    run(command.arg("diff").args([old, new]).args(options))
}

/// Two files in a directory.
struct Files(tempfile::TempDir);

impl Files {
    fn write(&self, name: &str, text: impl ToString) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text.to_string()).expect("it is ours");
        path
    }

    fn program(&self, name: &str, script: impl ToString) -> PathBuf {
        let path = self.write(name, script);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }
}

/// The run with all rounds of its rows changed.
fn changed(run: &Value, of: impl Fn(f64) -> f64) -> Value {
    let mut run = run.clone();
    for row in run["rows"].as_array_mut().expect("rows are a list") {
        for round in row["rounds"].as_array_mut().expect("rounds are a list") {
            *round = json!(of(round.as_f64().expect("a number")));
        }
    }
    run
}

#[test]
fn two_runs_are_compared_or_refused_by_name() {
    leaves_no_files(|cluster, temporary| {
        let run = measured(cluster, temporary);
        let files = Files(tempfile::tempdir().expect("a temporary directory"));
        let old = files.write("old", &run);
        // Rounds of a real run may spread too far for a verdict: these have little noise.
        let calm = files.write("calm", changed(&run, |round| 10.0 + round.fract() / 100.0));
        let slow = files.write("slow", changed(&run, |round| 12.0 + round.fract() / 100.0));

        let same = diff(&calm, &calm, &["--json"]).ok().json();
        assert_eq!(same["rows"][0]["verdict"], "same", "{same}");
        assert_eq!(same["rows"][0]["ratio"], 1.0, "{same}");
        diff(&old, &old, &[]).ok();

        let outcome = diff(&calm, &slow, &["--json"]);
        let found = outcome.json();
        assert_eq!(found["rows"][0]["verdict"], "slower", "{found}");
        assert_eq!(found["verdicts"]["slower"], 1, "{found}");
        outcome.fails(FAILED, &["1 rows are slower by more than 5"]);
        diff(&calm, &slow, &["--threshold", "30%"]).ok();
        let faster = diff(&slow, &calm, &[]).ok();
        assert!(faster.text().contains("faster"), "{faster}");

        let mut elsewhere = run.clone();
        elsewhere["manifest"]["kernel"] = json!("6.0");
        let elsewhere = files.write("elsewhere", &elsewhere);
        diff(&old, &elsewhere, &[]).fails(BAD_INPUT, &["kernel is", "6.0", "--force"]);
        let forced = diff(&old, &elsewhere, &["--force"]).ok();
        assert!(forced.text().contains("kernel is"), "{forced}");

        let text = run.to_string();
        let cut = files.write("cut", &text[..text.len() / 2]);
        diff(&old, &cut, &[]).fails(BAD_INPUT, &["cut ends in the middle", "--json"]);
        let foreign = files.write("foreign", "{\"a\": [1]}");
        diff(&foreign, &old, &[]).fails(BAD_INPUT, &["foreign is no run of toroid-bench"]);
        diff(&old, Path::new("/no/such"), &[]).fails(BAD_INPUT, &["cannot read /no/such"]);
        let id = run["rows"][0]["id"].as_str().expect("rows have names");
        let other = files.write("other", text.replace(id, "another"));
        diff(&old, &other, &[]).fails(BAD_INPUT, &["no row in common"]);
        let mut once = run.clone();
        once["rows"][0]["rounds"] = json!([1.0]);
        let once = files.write("once", &once);
        diff(&old, &once, &[]).fails(BAD_INPUT, &["once, row", id, "more rounds"]);
        let mut nan = run.clone();
        nan["rows"][0]["rounds"][3] = Value::Null;
        let nan = files.write("nan", &nan);
        diff(&old, &nan, &[]).fails(BAD_INPUT, &["nan, row", "no number", "measure again"]);
    });
}

/// A program that measures as toroid-bench does, and tells three times the time.
fn three_times_slower(files: &Files) -> PathBuf {
    let script = format!(
        "#!/bin/sh\n{} \"$@\" | perl -pe '{}'\n",
        program("toroid-bench").display(),
        r#"s/("rounds":\[)([^\]]+)/$1.join(",", map { 3 * $_ } split(",", $2))/ge"#
    );
    files.program("slow", script)
}

fn ab(cluster: &Cluster, old: &Path, new: &Path, rounds: &str, command: &[&str]) -> Command {
    let mut ab = cluster.command("toroid-bench");
    ab.args(["ab", "--json", "--rounds", rounds])
        .args([old, new])
        .arg("--")
        .args(command);
    ab
}

#[test]
fn two_programs_are_compared_in_turns() {
    leaves_no_files(|cluster, temporary| {
        let files = Files(tempfile::tempdir().expect("a temporary directory"));
        let (old, slow) = (program("toroid-bench"), three_times_slower(&files));
        let mut in_turns = ab(cluster, &old, &slow, "6", &SHORT);
        let outcome = start(&mut in_turns, temporary).wait();
        let found = outcome.json();
        let row = &found["rows"][0];
        assert_eq!(row["verdict"], "slower", "{found}");
        assert_eq!(row["old"]["rounds"].as_array().map(Vec::len), Some(6));
        assert_eq!(found["manifest"]["configuration"][0], "ab", "{found}");
        outcome.fails(FAILED, &["slower by more than 1"]);

        let foreign = files.program("foreign", "#!/bin/sh\necho '{}'\n");
        start(&mut ab(cluster, &old, &foreign, "2", &SHORT), temporary)
            .wait()
            .fails(BAD_INPUT, &["foreign in round 1 is no run of toroid-bench"]);
        let unknown = ["fabrik"];
        start(&mut ab(cluster, &old, &old, "2", &unknown), temporary)
            .wait()
            .fails(FAILED, &["fabrik --json", "exit status: 2", "unrecognized"]);
    });
}

#[test]
fn nothing_is_left_when_turns_are_stopped() {
    for (signal, moment) in [(Signal::SIGINT, 300), (Signal::SIGTERM, 1500)] {
        leaves_nothing(|| {
            let cluster = Cluster::down_yet();
            let (temporary, both) = (temporary(&cluster), program("toroid-bench"));
            let command = ["compare", "--quick", "--dir", INPUT];
            let in_turns = start(&mut ab(&cluster, &both, &both, "9", &command), &temporary);
            stop(in_turns, Duration::from_millis(moment), signal, &temporary);
        });
    }
}
