//! `toroid-bench programs`: every program gives its known result on every path, with fewer and with
//! more ranks than processors.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{leaves_nothing, program};
use tests::process::run;

use crate::compare::{leaves_no_files, start, stop};

const FAILED: i32 = 1;
const BAD_INPUT: i32 = 2;

const PROGRAMS: [&str; 14] = [
    "ep",
    "is",
    "cg",
    "ft",
    "lu",
    "mg",
    "gups",
    "ping-pong",
    "alltoall",
    "allreduce",
    "barrier",
    "broadcast",
    "halo3d",
    "sweep3d",
];

fn check(report: &Value, ranks: u64, paths: &[&str]) {
    let rows = report["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), PROGRAMS.len() * paths.len(), "{report}");
    for (path, program) in paths
        .iter()
        .flat_map(|path| PROGRAMS.map(|program| (path, program)))
    {
        let is_wanted = |row: &&Value| row["path"] == **path && row["program"] == program;
        let row = rows.iter().find(is_wanted).expect("a row");
        assert_eq!(row["checked"], true, "{row}");
        assert_eq!(row["ranks"], ranks, "{row}");
        assert_eq!(row["rounds_of"], "p50_ns", "{row}");
        assert!(
            row["rounds"]
                .as_array()
                .is_some_and(|rounds| rounds.len() > 1)
        );
        let number = |name: &str| row[name].as_f64().expect("a number");
        assert!(number("messages") > 0.0 && number("bytes") > 0.0, "{row}");
        assert!(number("most_messages") <= number("messages"), "{row}");
        let share = number("communication");
        assert!(0.0 < share && share <= 1.0, "{row}");
    }
}

#[test]
fn all_programs_are_right_with_two_ranks_and_their_runs_are_compared() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let command = command.args(["programs", "--quick", "--json", "--path", "shm"]);
        let report = start(command.args(["--ranks", "2"]), temporary).wait();
        let report = report.ok().json();
        check(&report, 2, &["shm"]);
        // A pair of ranks exchanges the same messages in each round.
        let row = &report["rows"].as_array().expect("rows are a list")[7];
        assert_eq!(row["program"], "ping-pong");
        assert_eq!(
            (&row["messages"], &row["bytes"]),
            (&json!(1000.0), &json!(1_024_000.0))
        );

        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("run.json");
        fs::write(&file, report.to_string()).expect("it is ours");
        let mut diff = Command::new(program("toroid-bench"));
        let same = run(diff.args(["diff", "--json"]).args([&file, &file])).ok();
        let rows = same.json();
        let rows = rows["rows"].as_array().expect("rows are a list");
        assert_eq!(rows.len(), PROGRAMS.len());
        // The machine decides how sure the verdict is.
        assert!(rows.iter().all(|row| row["ratio"] == 1.0), "{same}");
        assert_eq!(same.json()["verdicts"]["slower"], 0, "{same}");
    });
}

#[test]
fn more_ranks_than_processors_are_right_over_tcp_and_ethernet() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let command = command.args(["programs", "--quick", "--json", "--path", "tcp,ethernet"]);
        let report = start(command.args(["--ranks", "4"]), temporary).wait();
        check(&report.ok().json(), 4, &["tcp", "ethernet"]);
    });
}

#[test]
fn a_signal_ends_all_ranks() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let command = command.args(["programs", "lu", "--path", "shm", "--json"]);
        let benchmark = start(command, temporary);
        stop(
            benchmark,
            Duration::from_secs(1),
            Signal::SIGTERM,
            temporary,
        );
    });
}

#[test]
fn wrong_numbers_of_ranks_are_refused_with_what_is_possible() {
    leaves_nothing(|| {
        let programs = |words: &[&str]| {
            let mut command = Command::new(program("toroid-bench"));
            run(command.arg("programs").args(words))
        };
        let mg = ["mg", "ep", "--ranks", "6"];
        let message = "mg does not run on 6 ranks; choose --ranks of 1, 2, 4, 8, or name programs \
                       that do: ep is lu";
        programs(&mg).fails(FAILED, &[message]);
        programs(&["--ranks", "17"]).fails(BAD_INPUT, &["17 is not in 1..=16"]);
    });
}
