//! Noise of a host, and of the network between two hosts that know nothing of domains.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::cluster::program;
use tests::process::{Running, eventually, run};

fn noise(words: &str) -> Command {
    let mut command = Command::new(program("toroid-bench"));
    command.arg("noise").args(words.split_whitespace());
    command
}

/// The row of a test, by its label.
fn row<'a>(report: &'a Value, test: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows are a list");
    let found = rows.iter().find(|row| row["test"] == test);
    found.unwrap_or_else(|| panic!("no row {test} in {report}"))
}

fn number(row: &Value, name: &str) -> f64 {
    let value = row[name].as_f64();
    value.unwrap_or_else(|| panic!("{name} is no number in {row}"))
}

/// Whether a process handles a signal itself (`SigCgt` of proc(5)).
fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}

#[test]
fn a_spinning_neighbour_raises_the_detours_of_a_processor() {
    let mut command = Command::new("taskset");
    command
        .args(["--cpu-list", "0"])
        .arg(program("toroid-bench"));
    let words = "noise os --quick --json --busy --seconds 2";
    let report = run(command.args(words.split(' '))).ok().json();
    for test in ["detours", "fixed work", "fixed time"] {
        let row = row(&report, test);
        assert_eq!(row["cpu"], 0, "{row}");
        assert_eq!(row["rounds"].as_array().map(Vec::len), Some(10), "{row}");
        // The scheduler gives the neighbour half of the processor.
        let share = number(row, "time_share");
        assert!(share > 0.25 && share < 1.0, "{row}");
    }
    let detours = row(&report, "detours");
    let shortest = number(detours, "t_min_ns");
    assert!(shortest > 0.0 && number(detours, "threshold_ns") == 9.0 * shortest);
    assert!(number(detours, "count_share") < number(detours, "time_share"));
    // A slice of the scheduler.
    assert!(number(detours, "max_ns") > 500e3, "{detours}");
}

#[test]
fn detours_end_by_number_and_by_a_signal() {
    let directory = tempfile::tempdir().expect("a directory");
    let raw = directory.path().join("raw");
    let words = format!("os --quick --json --detours 3 --raw {}", raw.display());
    let report = run(&mut noise(&words)).ok().json();
    assert_eq!(row(&report, "detours")["count"], 3);
    let samples = fs::read_to_string(&raw).expect("samples were kept");
    assert!(samples.contains("starts of detours"), "{samples}");
    run(&mut noise("os --cpu 9999")).fails(1, &["processor 9999", "--cpu"]);
    let words = format!(
        "os --detours 10000000 --seconds 3600 --raw {}",
        raw.display()
    );
    fs::remove_file(&raw).expect("it was there");
    let running = Running::start(&mut noise(&words));
    eventually("it has begun", || catches(running.pid(), Signal::SIGINT));
    running.signal(Signal::SIGINT);
    let end = running.wait();
    assert_eq!(end.status, 130, "{end}");
    let left = fs::read_dir(directory.path()).expect("it is there").count();
    assert_eq!(left, 0, "{end}");
}
