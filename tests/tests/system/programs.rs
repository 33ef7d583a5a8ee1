//! `toroid-bench programs`: every program gives its known result on every path, with fewer and with
//! more ranks than processors.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{is_nightly, leaves_nothing, program};
use tests::leftovers::descendants_with;
use tests::process::{eventually, run, send};

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

fn check(report: &Value, programs: &[&str], ranks: u64, paths: &[&str]) {
    let rows = report["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), programs.len() * paths.len(), "{report}");
    for (path, program) in paths
        .iter()
        .flat_map(|path| programs.iter().map(move |program| (path, program)))
    {
        let is_wanted = |row: &&Value| row["path"] == **path && row["program"] == **program;
        let row = rows.iter().find(is_wanted).expect("a row");
        assert_eq!(row["checked"], true, "{row}");
        assert_eq!(row["ranks"], ranks, "{row}");
        assert_eq!(row["rounds_of"], "p50_ns", "{row}");
        assert!(
            row["rounds"]
                .as_array()
                .is_some_and(|rounds| rounds.len() >= 3)
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
        check(&report, &PROGRAMS, 2, &["shm"]);
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
        check(&report.ok().json(), &PROGRAMS, 4, &["tcp", "ethernet"]);
    });
}

#[test]
fn an_odd_number_of_ranks_is_right_and_a_path_that_is_named_twice_is_measured_once() {
    const ABLE: [&str; 6] = ["is", "lu", "gups", "alltoall", "allreduce", "broadcast"];
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let command = command.args(["programs", "--quick", "--json", "--path", "shm,tcp,shm"]);
        let report = start(command.args(["--ranks", "3"]).args(ABLE), temporary).wait();
        check(&report.ok().json(), &ABLE, 3, &["shm", "tcp"]);
    });
}

#[test]
fn the_larger_classes_are_right_at_night() {
    if !is_nightly() {
        return;
    }
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let command = command.args(["programs", "--json", "--path", "shm", "--ranks", "2"]);
        let report = start(command, temporary).wait();
        check(&report.ok().json(), &PROGRAMS, 2, &["shm"]);
    });
}

#[test]
fn a_killed_rank_is_named_and_ends_all_others() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let command = command.args(["programs", "lu", "--path", "shm", "--ranks", "3"]);
        let benchmark = start(command, temporary);
        let mut ranks = Vec::new();
        eventually("all ranks run", || {
            ranks = descendants_with(&["__bench-worker"]);
            ranks.len() == 3
        });
        send(ranks[1], Signal::SIGKILL);
        // Its peers fail, too, but they are not the cause.
        let end = benchmark.wait().fails(FAILED, &["rank ", "has ended"]);
        assert!(!end.stderr.contains("peer"), "{end}");
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
fn wrong_numbers_of_ranks_and_devices_are_refused_with_what_is_possible() {
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
        let unused = programs(&["--path", "shm", "--device", "rxe0"]);
        unused.fails(FAILED, &["--device is for the path verbs", "--path"]);
        let devices = ["--path", "verbs", "--device", "rxe0,rxe1,rxe0"];
        let many = programs(&[&["ep", "--ranks", "2"], &devices[..]].concat());
        many.fails(FAILED, &["--device has 3 names for 2 ranks"]);
    });
}
