//! `toroid-bench hosts`: changes among many hosts, failover, fences and encryption in figures, and no
//! leftovers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, leaves_nothing, program};
use tests::process::{Running, run};
use tests::user::Tun;

use crate::compare::{leaves_no_files, stop, temporary};

fn hosts(command: &mut Command, temporary: &Path) -> Running {
    command.args(["hosts", "--quick", "--json"]);
    command.env("TMPDIR", temporary).stdin(Stdio::null());
    Running::start(command)
}

#[test]
fn changes_are_measured_among_real_and_hollow_hosts() {
    leaves_no_files(|cluster, temporary| {
        let end = hosts(&mut cluster.command("toroid-bench"), temporary).wait();
        assert_eq!(end.status, 0, "{end}");
        let report = end.json();
        assert_eq!(report["hosts"], 1000);
        for key in ["domains", "follower_cpu_ns", "coordinator_rss_bytes"] {
            assert!(report[key].is_number(), "no {key} in {report}");
        }
        let rows = report["change"].as_array().expect("rows are a list");
        let kinds: Vec<Value> = rows
            .iter()
            .map(|row| json!([row["hosts"], row["real"], row["slow"]]))
            .collect();
        let wanted = json!([
            [8, true, false],
            [8, false, false],
            [64, false, false],
            [256, false, false],
            [1000, false, false],
            [16, false, true]
        ]);
        assert_eq!(json!(kinds), wanted);
        let is_timed = |row: &Value| row["p50_ns"].as_f64() <= row["p99_ns"].as_f64();
        assert!(rows.iter().all(is_timed), "{rows:?}");
        check_failover(&report["failover"]);
        check_fence(&report);
        check_paths(&report);
        assert_eq!(report.get("notes"), None, "everything can be measured");
    });
}

/// Times of the next change after a fault, without bounds: the machine may be busy.
fn check_failover(failover: &Value) {
    for fault in ["coordinator_kill", "handover", "etcd_leader"] {
        let time = failover[format!("{fault}_p99_ns")].as_f64();
        assert!(time > Some(0.0), "{fault} in {failover}");
    }
    assert_eq!(failover.get("why"), None);
}

/// A leak would be counted: without a fence there are some.
fn check_fence(report: &Value) {
    let fence_ns = 2e9;
    let time = report["fenced_shrink_p99_ns"].as_f64();
    // Half a second before the lease ends, the members stop.
    assert!(time > Some(fence_ns / 2.0), "{report}");
    for leaked in ["leaked_bytes", "leaked_frames"] {
        assert_eq!(report[leaked], 0, "{leaked}");
        assert!(
            report["without_fence"][leaked].as_u64() > Some(0),
            "{leaked}"
        );
    }
}

fn check_paths(report: &Value) {
    for ratio in [
        "stream",
        "one_sided",
        "fence_stream",
        "fence_one_sided",
        "relay",
        "libfabric",
        "memcached",
    ] {
        let found = report[format!("{ratio}_ratio")].as_f64();
        assert!(
            found > Some(0.0) && found < Some(100.0),
            "{ratio}: {found:?}"
        );
    }
    let rows = report["paths"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), 15);
    assert!(
        rows.iter()
            .all(|row| row["errors"] == 0 || row.get("errors").is_none())
    );
}

/// Without interfaces only changes are measured, and the report says why.
#[test]
fn failover_is_null_with_a_reason_where_there_are_no_interfaces() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command_with(Tun::Missing, "toroid-bench");
        let report = hosts(&mut command, temporary).wait().ok().json();
        assert_eq!(report["failover"]["coordinator_kill_p99_ns"], Value::Null);
        let why = report["failover"]["why"].as_str().expect("a reason");
        assert!(why.contains("/dev/net/tun"), "{why}");
        assert_eq!(report["leaked_bytes"], Value::Null);
        assert_eq!(report["notes"].as_array().map(Vec::len), Some(3));
    });
}

#[test]
fn nothing_is_left_when_it_is_stopped_in_the_middle() {
    // While etcd starts, in failovers, and among hollow hosts.
    let moments = [
        (Tun::Open, 300, Signal::SIGKILL),
        (Tun::Open, 2500, Signal::SIGINT),
        (Tun::Open, 5000, Signal::SIGKILL),
        (Tun::Missing, 1500, Signal::SIGTERM),
        (Tun::Missing, 1500, Signal::SIGKILL),
    ];
    for (tun, moment, signal) in moments {
        leaves_nothing(|| {
            let cluster = Cluster::down_yet();
            let temporary = temporary(&cluster);
            let running = hosts(&mut cluster.command_with(tun, "toroid-bench"), &temporary);
            stop(running, Duration::from_millis(moment), signal, &temporary);
        });
    }
}

#[test]
fn a_seed_of_the_control_of_changes_can_be_replayed() {
    let simulate = |words: &str| {
        let mut command = Command::new(program("toroid-bench"));
        command.arg("simulate-control");
        run(command.args(words.split_whitespace()))
    };
    let told = [(); 2].map(|()| simulate("--seed 7 --hosts 5 --json").ok().json());
    assert_eq!(told[0]["story"], told[1]["story"]);
    assert!(told[0]["replies"].as_u64() > Some(0), "{}", told[0]);
    assert_eq!(told[0]["broken"], Value::Null);
    let story = simulate("--seed 7 --hosts 5").ok();
    let lines = told[0]["story"].as_str().expect("text");
    assert!(story.text().contains(lines.trim()), "{story}");
    // The first seed that finds a broken rule tells its story.
    let broken = simulate("--seeds 1000 --mutant no-wait --json");
    let report = broken.json();
    assert!(report["story"].as_str().is_some(), "{report}");
    broken.fails(1, &["seed ", "is not in effect on host"]);
    simulate("--hosts 1").fails(2, &["--hosts"]);
    simulate("--seeds 0").fails(2, &["--seeds"]);
    simulate("--mutant none").fails(2, &["no-wait"]);
}
