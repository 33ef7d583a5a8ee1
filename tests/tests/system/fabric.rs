//! Messages beside libfabric's, and one-sided operations: all is measured, and nothing is left of it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::cluster::{Cluster, leaves_nothing};
use tests::process::Running;
use tests::user::User;

use crate::compare::{leaves_no_files, start, stop, temporary};

const KEYS: [&str; 11] = [
    "provider",
    "op",
    "bytes",
    "depth",
    "p50_ns",
    "bytes_per_s",
    "ops_per_s",
    "errors",
    "id",
    "rounds_of",
    "rounds",
];

/// Provider, operation and bytes of the rows that must have been measured, each once per depth.
const MEASURED: [(&str, &str, &[u64], u64); 7] = [
    ("shm", "pingpong", &[64, 4096, 65_536, 1 << 20], 1),
    ("libfabric-shm", "pingpong", &[64, 4096, 65_536, 1 << 20], 1),
    ("shm", "stream", &[64, 4096, 65_536, 1 << 20], 1),
    ("libfabric-shm", "stream", &[64, 4096, 65_536, 1 << 20], 1),
    ("shm", "read", &[64, 4096, 1 << 20], 2),
    ("shm", "write", &[64, 4096, 1 << 20], 2),
    ("shm", "atomic", &[8], 2),
];

fn fabric(command: &mut Command, temporary: &Path) -> Running {
    start(command.args(["fabric", "--quick", "--json"]), temporary)
}

fn check_row(row: &Value) {
    let fields = row.as_object().expect("a row is an object");
    for key in KEYS {
        assert!(fields.contains_key(key), "no {key} in {row}");
    }
    assert_eq!(fields.len(), KEYS.len(), "a key too many in {row}");
    assert_eq!(row["errors"], 0, "{row}");
    for figure in ["p50_ns", "bytes_per_s", "ops_per_s"] {
        assert!(row[figure].as_f64() > Some(0.0), "{row}");
    }
}

fn check(report: &Value) {
    let rows = report["rows"].as_array().expect("rows are a list");
    rows.iter().for_each(check_row);
    let mut expected = 0;
    for (provider, op, sizes, depths) in MEASURED {
        for &bytes in sizes {
            let is_wanted = |row: &&Value| {
                row["provider"] == provider && row["op"] == op && row["bytes"] == bytes
            };
            let found: Vec<_> = rows.iter().filter(is_wanted).collect();
            let mut found: Vec<_> = found.iter().map(|row| row["depth"].as_u64()).collect();
            found.dedup();
            assert_eq!(found.len() as u64, depths, "{provider}, {op}, {bytes}");
            expected += depths;
        }
    }
    assert_eq!(rows.len() as u64, expected);
    let targets = report["targets"].as_array().expect("targets are a list");
    assert_eq!(targets.len(), 8, "ping-pongs and streams of four sizes");
    for target in targets {
        assert!(target["found"].as_f64() > Some(0.0), "{target}");
    }
    assert!(report["config"]["libfabric"].is_string(), "{report}");
}

#[test]
fn messages_and_operations_are_measured_beside_libfabric() {
    leaves_no_files(|cluster, temporary| {
        let report = fabric(&mut cluster.command("toroid-bench"), temporary).wait();
        check(&report.ok().json());
    });
}

#[test]
fn nothing_is_left_when_it_is_stopped() {
    for (signal, moment) in [(Signal::SIGINT, 500), (Signal::SIGKILL, 4000)] {
        leaves_nothing(|| {
            let cluster = Cluster::down_yet();
            let temporary = temporary(&cluster);
            let running = fabric(&mut cluster.command("toroid-bench"), &temporary);
            stop(running, Duration::from_millis(moment), signal, &temporary);
        });
    }
}

#[test]
fn who_lacks_libfabric_is_told_its_package() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let outcome = fabric(command.env("PATH", "/nowhere"), temporary).wait();
        assert!(outcome.stdout.is_empty(), "{outcome}");
        outcome.fails(1, &["fi_info", "libfabric-bin"]);
    });
}

#[test]
fn an_ordinary_user_measures_the_same() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        let temporary = temporary(&cluster);
        let report = fabric(&mut cluster.command("toroid-bench"), &temporary).wait();
        check(&report.ok().json());
    });
}
