//! The Ethernet beside its limits: all of it is measured, and nothing is left of it.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::cluster::{Cluster, leaves_nothing};
use tests::process::Running;
use tests::user::User;

use crate::compare::{leaves_no_files, start, stop, temporary};

const KEYS: [&str; 19] = [
    "test",
    "path",
    "mtu",
    "offload",
    "write_bytes",
    "bits_per_s",
    "p50_ns",
    "pps",
    "lost",
    "rounds",
    "streams",
    "idle_members",
    "delivery",
    "receivers",
    "copies_sent",
    "cpu_ns_per_byte",
    "errors",
    "id",
    "rounds_of",
];

const PATHS: [&str; 5] = ["toroid", "toroid-kernel", "relay", "bridge", "veth"];

/// MTU and offload of every link on which a stream is measured.
const LINKS: [(u32, bool); 5] = [
    (65_521, true),
    (9000, true),
    (1500, true),
    (9000, false),
    (1500, false),
];

fn ether(cluster: &Cluster, temporary: &Path) -> Running {
    let mut command = cluster.command("toroid-bench");
    start(command.args(["ether", "--quick", "--json"]), temporary)
}

/// Fields that a row must have measured, by its test.
fn figure(row: &Value) -> &'static str {
    match row["test"].as_str() {
        Some("tcp_rr") => "p50_ns",
        Some("udp_pps") => "pps",
        _ => "bits_per_s",
    }
}

fn check_row(row: &Value) {
    let fields = row.as_object().expect("a row is an object");
    for key in KEYS {
        assert!(fields.contains_key(key), "no {key} in {row}");
    }
    assert_eq!(fields.len(), KEYS.len(), "a key too many in {row}");
    assert_eq!(row["errors"], 0, "{row}");
    assert!(row["rounds"].as_array().map(Vec::len) >= Some(7), "{row}");
    let found = row[figure(row)].as_f64();
    assert!(found.is_some_and(|found| found > 0.0), "{row}");
}

#[test]
fn every_path_is_measured_beside_its_limits() {
    leaves_no_files(|cluster, temporary| {
        let report = ether(cluster, temporary).wait().ok().json();
        let rows = report["rows"].as_array().expect("rows are a list");
        rows.iter().for_each(check_row);
        let count = |wanted: &dyn Fn(&Value) -> bool| rows.iter().filter(|row| wanted(row)).count();
        let is_of_pair = |row: &Value| row["idle_members"].is_null() && row["delivery"].is_null();
        let between_two = |row: &Value| is_of_pair(row) && row["streams"] != 4;
        for path in PATHS {
            for (mtu, offload) in LINKS {
                let stream = |row: &Value| {
                    let link = row["mtu"] == mtu && row["offload"] == offload;
                    between_two(row) && link && row["test"] == "tcp_stream" && row["path"] == path
                };
                // Members without offload need the driver.
                let wanted = usize::from(offload || path != "toroid-kernel");
                assert_eq!(
                    count(&stream),
                    wanted,
                    "{path}, MTU {mtu}, offload {offload}"
                );
            }
            for test in ["tcp_rr", "udp_pps"] {
                let row = |row: &Value| row["test"] == test && row["path"] == path;
                assert_eq!(count(&row), 1, "{path}, {test}");
            }
            for mtu in [1500, 9000] {
                let flood = |row: &Value| {
                    row["test"] == "udp_flood" && row["path"] == path && row["mtu"] == mtu
                };
                assert_eq!(count(&flood), 1, "{path}, udp_flood, MTU {mtu}");
            }
        }
        for (test, mtu) in [
            ("tcp_stream", 9000),
            ("tcp_stream", 65_521),
            ("tcp_rr", 9000),
            ("udp_pps", 9000),
        ] {
            let row =
                |row: &Value| row["path"] == "smoltcp" && row["test"] == test && row["mtu"] == mtu;
            assert_eq!(count(&row), 1, "smoltcp, {test}, MTU {mtu}");
        }
        for path in ["toroid-kernel", "veth"] {
            let row = |row: &Value| row["streams"] == 4 && row["path"] == path;
            assert_eq!(count(&row), 3, "4 streams by {path}");
        }
        for (delivery, path) in [
            ("multicast", "toroid"),
            ("multicast", "toroid-kernel"),
            ("unicast", "toroid"),
        ] {
            let row = |row: &Value| row["delivery"] == delivery && row["path"] == path;
            assert_eq!(count(&row), 1, "{delivery} by {path}");
        }
        for members in [0, 2, 16, 64] {
            let row = |row: &Value| row["idle_members"] == members;
            assert_eq!(count(&row), 1, "{members} idle members");
        }
        let ratios = report["ratios"].as_array().expect("ratios are a list");
        assert!(!ratios.is_empty());
        for ratio in ratios {
            assert!(ratio["name"].is_string(), "{ratio}");
            assert!(ratio["ratio"].as_f64() > Some(0.0), "{ratio}");
            assert!(ratio["target"].as_f64() > Some(0.0), "{ratio}");
            assert!(ratio["met"].is_boolean(), "{ratio}");
        }
    });
}

#[test]
fn nothing_is_left_when_it_is_stopped() {
    for (signal, moment) in [
        (Signal::SIGINT, 500),
        (Signal::SIGTERM, 4000),
        (Signal::SIGKILL, 4000),
    ] {
        leaves_nothing(|| {
            let cluster = Cluster::down_yet();
            let temporary = temporary(&cluster);
            let running = ether(&cluster, &temporary);
            stop(running, Duration::from_millis(moment), signal, &temporary);
        });
    }
}

#[test]
fn an_ordinary_user_is_told_that_it_needs_root() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        let temporary = temporary(&cluster);
        let outcome = ether(&cluster, &temporary).wait();
        assert!(outcome.stdout.is_empty(), "{outcome}");
        outcome.fails(1, &["only root", "sudo"]);
    });
}
