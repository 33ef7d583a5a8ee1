//! `toroid-bench hosts`: changes among many hosts in figures, and no leftovers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, leaves_nothing, program};
use tests::process::{Running, run};

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
    });
}

#[test]
fn nothing_is_left_when_it_is_stopped_in_the_middle() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        leaves_nothing(|| {
            let cluster = Cluster::down_yet();
            let temporary = temporary(&cluster);
            let running = hosts(&mut cluster.command("toroid-bench"), &temporary);
            stop(running, Duration::from_millis(1500), signal, &temporary);
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
