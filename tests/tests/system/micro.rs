//! Micro-benchmarks: every test on every path, and the adapters that test the tests.

use serde_json::Value;
use tests::cluster::{Cluster, leaves_nothing};
use tests::user::User;

use crate::compare::{leaves_no_files, start, temporary};

const KEYS: [&str; 13] = [
    "layer",
    "test",
    "path",
    "preset",
    "bytes",
    "x",
    "base_ns",
    "p50_ns",
    "cost_ns",
    "ci",
    "id",
    "rounds_of",
    "rounds",
];

/// Tests and variants on each path.
const FABRIC: [&str; 14] = [
    "latency",
    "bandwidth",
    "logp/os",
    "logp/or_delay",
    "logp/or_count",
    "logp/l",
    "logp/g",
    "logp/burst",
    "logp/os_size",
    "buffers",
    "connections",
    "blocking/block",
    "segments/gather",
    "segments/pack",
];

/// Tests at the message layer.
const MESSAGES: [&str; 9] = [
    "latency",
    "bandwidth",
    "bandwidth/switch",
    "buffers",
    "connections",
    "segments/strided",
    "any_source",
    "layers/latency",
    "layers/bandwidth",
];

/// Checks a row; returns its cost in nanoseconds.
fn check_row(row: &Value) -> f64 {
    let fields = row.as_object().expect("a row is an object");
    for key in KEYS {
        assert!(fields.contains_key(key), "no {key} in {row}");
    }
    assert_eq!(fields.len(), KEYS.len(), "a key too many in {row}");
    assert!(row["layer"] == "fabric" || row["layer"] == "msg", "{row}");
    let number = |value: &Value| value.as_f64().expect("a number");
    let cost = number(&row["cost_ns"]);
    let difference = number(&row["p50_ns"]) - number(&row["base_ns"]);
    assert!((cost - difference).abs() < 0.1, "{row}");
    assert!(
        number(&row["ci"][0]) <= cost && cost <= number(&row["ci"][1]),
        "{row}"
    );
    assert!(
        !row["rounds"].as_array().expect("a list").is_empty(),
        "{row}"
    );
    cost
}

fn rows(report: &Value) -> &Vec<Value> {
    let parts: Vec<&String> = report.as_object().expect("an object").keys().collect();
    assert_eq!(parts, ["manifest", "rows"]);
    assert!(report["manifest"]["kernel"].is_string(), "{report}");
    report["rows"].as_array().expect("rows are a list")
}

fn check(report: &Value, paths: &[&str]) {
    let rows = rows(report);
    for row in rows {
        check_row(row);
    }
    for path in paths {
        for (layer, tests) in [("fabric", &FABRIC[..]), ("msg", &MESSAGES)] {
            for test in tests {
                let is_wanted = |row: &Value| {
                    row["layer"] == layer && row["path"] == *path && row["test"] == *test
                };
                assert!(rows.iter().any(is_wanted), "{layer}, {path}, {test}");
            }
        }
    }
    assert!(rows.iter().all(|row| row["preset"].is_null()));
    // Sockets have no completions.
    for path in paths {
        let is_of = |row: &&Value| row["test"] == "queues" && row["path"] == *path;
        let pairs = rows.iter().filter(is_of).map(|row| row["x"].as_u64());
        let wanted: &[u64] = match *path {
            "ethernet" => &[],
            _ => &[1, 4, 16, 64],
        };
        let found: Vec<u64> = pairs.flatten().collect();
        assert_eq!(found, wanted, "{path}");
    }
}

#[test]
fn all_tests_are_measured_on_all_paths() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let report = start(command.args(["micro", "--quick", "--json"]), temporary).wait();
        let report = report.ok().json();
        check(&report, &["shm", "tcp", "ethernet"]);
        // Ethernet beside shared memory, from two paths.
        let is_added = |row: &&Value| {
            let is_packet = row["layer"] == "fabric" && row["path"] == "ethernet";
            is_packet && row["test"] == "layers/latency"
        };
        assert_eq!(rows(&report).iter().filter(is_added).count(), 4);
    });
}

#[test]
fn an_ordinary_user_measures_the_same() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        let temporary = temporary(&cluster);
        let mut command = cluster.command("toroid-bench");
        let command = command.args(["micro", "--quick", "--json", "--path", "shm,tcp"]);
        let report = start(command, &temporary).wait();
        check(&report.ok().json(), &["shm", "tcp"]);
    });
}

#[test]
fn a_path_that_this_build_has_not_is_refused_before_a_run() {
    leaves_no_files(|cluster, temporary| {
        let micro = |words: &str| {
            let mut command = cluster.command("toroid-bench");
            let command = command.arg("micro").args(words.split(' '));
            start(command, temporary).wait()
        };
        let remedy = "cargo build --release --features bench/verbs";
        let missing = micro("--path shm,verbs");
        missing.fails(1, &["this build has no provider verbs", remedy, "--path"]);
        let unused = micro("--path shm --device rxe0");
        unused.fails(1, &["--device is for the path verbs", "--path"]);
        let many = micro("--path verbs --device rxe0,rxe1,rxe2");
        many.fails(1, &["--device has 3 names", "two hosts"]);
    });
}

#[test]
fn presets_hold_the_parameters_of_the_thesis_the_same_in_every_run() {
    leaves_no_files(|cluster, temporary| {
        let measure = || {
            let mut command = cluster.command("toroid-bench");
            let command = command.args(["micro", "--quick", "--json", "--preset", "gm"]);
            start(command, temporary).wait().ok().json()
        };
        let (first, second) = (measure(), measure());
        assert_eq!(rows(&first), rows(&second));
        let us = [("logp/os", 0.9), ("logp/or_delay", 2.0), ("logp/l", 20.6)];
        for (test, us) in us {
            let mut rows = rows(&first).iter();
            let row = rows.find(|row| row["test"] == test).expect("a row");
            assert_eq!(row["preset"], "gm");
            assert!((check_row(row) - us * 1e3).abs() < 10.0, "{row}");
        }
    });
}
