//! `toroid-bench domains`: the cost of membership changes in figures, and no leftovers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::cluster::{Cluster, is_nightly, leaves_nothing};
use tests::process::Running;

use crate::compare::{leaves_no_files, stop, temporary};

/// The keys of a change.
const ROW: [&str; 6] = [
    "members",
    "registered_bytes",
    "export",
    "p50_ns",
    "p99_ns",
    "pause_p99_ns",
];

/// The keys of the whole that are numbers.
const WHOLE: [&str; 7] = [
    "inflight_failed_p99_ns",
    "leaked_bytes",
    "leaked_frames",
    "cycles",
    "read_p50_before_ns",
    "read_p50_after_ns",
    "fdatasync_p50_ns",
];

fn domains(command: &mut Command, temporary: &Path) -> Running {
    command.args(["domains", "--quick", "--json"]);
    command.env("TMPDIR", temporary).stdin(Stdio::null());
    Running::start(command)
}

#[test]
fn the_cost_of_changes_is_measured() {
    leaves_no_files(|cluster, temporary| {
        let end = domains(&mut cluster.command("toroid-bench"), temporary).wait();
        assert_eq!(end.status, 0, "{end}");
        let report = end.json();
        for key in WHOLE {
            assert!(report[key].is_number(), "no {key} in {report}");
        }
        assert_eq!(report["leaked_bytes"], 0);
        assert_eq!(report["leaked_frames"], 0);
        assert_eq!(report["stayers_failed"], 0);
        for change in ["shrink", "grow"] {
            let rows = report[change].as_array().expect("rows are a list");
            let of = |members: u32, export: &str| {
                let is_it = |row: &&Value| row["members"] == members && row["export"] == export;
                rows.iter().filter(is_it).count()
            };
            let counts = [of(2, "none"), of(8, "none"), of(512, "none")];
            assert_eq!(counts, [1; 3], "{change}");
            assert_eq!([of(8, "ro"), of(8, "rw")], [2; 2], "{change}");
            let complete = |row: &Value| ROW.iter().all(|key| !row[key].is_null());
            assert!(rows.iter().all(complete), "{rows:?}");
        }
    });
}

#[test]
fn nothing_is_left_when_it_is_stopped_in_the_middle() {
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL];
    let moments: &[u64] = if is_nightly() {
        &[50, 700, 2000, 4000, 6000, 9000, 13_000]
    } else {
        &[1500]
    };
    for moment in moments {
        for signal in signals {
            leaves_nothing(|| {
                let cluster = Cluster::down_yet();
                let temporary = temporary(&cluster);
                let running = domains(&mut cluster.command("toroid-bench"), &temporary);
                stop(running, Duration::from_millis(*moment), signal, &temporary);
            });
        }
    }
}
