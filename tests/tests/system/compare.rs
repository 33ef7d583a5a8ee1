//! The main job: both paths on one machine, and nothing left of it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::cluster::{Cluster, is_nightly, leaves_nothing};
use tests::leftovers::processes_with;
use tests::process::{Outcome, Running, eventually, holds_within, run, send};
use tests::user::{Tun, User};

const KEYS: [&str; 17] = [
    "section",
    "path",
    "op",
    "proto",
    "bytes",
    "depth",
    "set",
    "mtu",
    "batch",
    "ops_per_s",
    "bytes_per_s",
    "p50_ns",
    "p99_ns",
    "samples",
    "id",
    "rounds_of",
    "rounds",
];

/// Rows that must have been measured: section, path and operation.
const MEASURED: [(&str, &str, &str); 19] = [
    ("network", "ethernet", "stream"),
    ("network", "ethernet", "pingpong"),
    ("network", "loopback", "stream"),
    ("network", "loopback", "pingpong"),
    ("network", "rdma", "read"),
    ("network", "rdma", "write"),
    ("store", "ethernet", "get"),
    ("store", "ethernet", "set"),
    ("store", "rdma", "get"),
    ("store", "rdma", "set"),
    ("files", "ethernet", "get"),
    ("files", "ethernet", "set"),
    ("files", "rdma", "get"),
    ("files", "rdma", "set"),
    ("baseline", "veth", "stream"),
    ("baseline", "veth", "pingpong"),
    ("baseline", "veth", "get"),
    ("baseline", "veth", "set"),
    ("baseline", "memcpy", "copy"),
];

/// Some real input; the sources of these tests.
pub const INPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Starts a benchmark whose files are all in `temporary`.
pub fn start(command: &mut Command, temporary: &Path) -> Running {
    command
        .env("TMPDIR", temporary)
        .env("XDG_RUNTIME_DIR", temporary)
        .stdin(Stdio::null());
    Running::start(command)
}

/// Tells a story of a benchmark's agent, of which nothing is left, not even a temporary file.
pub fn leaves_no_files(story: impl FnOnce(&Cluster, &Path)) {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let temporary = temporary(&cluster);
        story(&cluster, &temporary);
        assert!(is_empty(&temporary), "files were left");
    });
}

fn compare(command: &mut Command, temporary: &Path, input: &Path) -> Running {
    command.args(["compare", "--quick", "--json", "--dir"]);
    start(command.arg(input), temporary)
}

fn check(outcome: Outcome, ethernet: &str) {
    let report = outcome.ok().json();
    assert_eq!(report["config"]["provider"], "shm");
    assert_eq!(report["manifest"]["configuration"][0], "compare");
    assert_eq!(report["config"]["ethernet"], ethernet);
    assert_eq!(report["config"]["no_taps"].is_null(), ethernet == "tap");
    let rows = report["rows"].as_array().expect("rows are a list");
    for row in rows {
        check_row(row);
    }
    for (section, path, op) in MEASURED {
        let found = rows
            .iter()
            .any(|row| row["section"] == section && row["path"] == path && row["op"] == op);
        assert!(found, "no row for {section} {path} {op}");
    }
    for bytes in [200, 1000, 8000] {
        for (path, op, proto) in [
            ("ethernet", "pingpong", "tcp"),
            ("ethernet", "stream", "udp"),
            ("loopback", "stream", "tcp"),
        ] {
            let same = |row: &&Value| {
                row["path"] == path
                    && row["op"] == op
                    && row["proto"] == proto
                    && row["bytes"] == bytes
            };
            assert!(
                rows.iter().any(|row| same(&row)),
                "no row for {path} {op} {proto} {bytes}"
            );
        }
    }
    for bytes in [1 << 10, 16 << 10, 64 << 10] {
        let same = |row: &Value| {
            row["section"] == "store" && row["path"] == "rdma" && row["bytes"] == bytes
        };
        assert!(
            rows.iter().any(same),
            "no row for values of {bytes} bytes by RDMA"
        );
    }
}

fn check_row(row: &Value) {
    let fields = row.as_object().expect("a row is an object");
    for key in KEYS.iter().chain(&["errors"]) {
        assert!(fields.contains_key(*key), "no {key} in {row}");
    }
    assert_eq!(fields.len(), KEYS.len() + 1, "a key too many in {row}");
    assert_eq!(row["errors"], 0, "{row}");
    let measured = row["ops_per_s"].as_f64().or(row["bytes_per_s"].as_f64());
    assert!(measured.is_some_and(|rate| rate > 0.0), "{row}");
    let rounds = row["rounds"].as_array().map(Vec::len);
    assert!(rounds >= Some(1), "{row}");
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

pub fn temporary(cluster: &Cluster) -> std::path::PathBuf {
    let temporary = cluster.files().join("tmp");
    std::fs::create_dir_all(&temporary).expect("it is ours");
    std::fs::set_permissions(
        &temporary,
        std::os::unix::fs::PermissionsExt::from_mode(0o1777),
    )
    .expect("it is ours");
    temporary
}

#[test]
fn every_section_is_measured_without_an_error() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command("toroid-bench");
        let outcome = compare(&mut command, temporary, Path::new(INPUT)).wait();
        check(outcome, "tap");
    });
}

#[test]
fn an_ordinary_user_measures_the_same() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        let temporary = temporary(&cluster);
        let input = cluster.files().join("input");
        run(Command::new("cp").arg("-r").arg(INPUT).arg(&input)).ok();
        let outcome = compare(&mut cluster.command("toroid-bench"), &temporary, &input).wait();
        check(outcome, "tap");
        assert!(is_empty(&temporary), "files were left");
    });
}

#[test]
fn nothing_is_left_when_it_is_stopped() {
    let rounds = if is_nightly() { 30 } else { 2 };
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL];
    for round in 0..rounds {
        for (n, signal) in (0u64..).zip(signals) {
            leaves_nothing(|| {
                let cluster = Cluster::down_yet();
                let temporary = temporary(&cluster);
                let mut command = cluster.command("toroid-bench");
                let running = compare(&mut command, &temporary, Path::new(INPUT));
                // Some while it starts, some in the middle.
                let moment = Duration::from_millis(
                    [40, 300, 900, 1700, 3100, 5300][(3 * round + n as usize) % 6],
                );
                stop(running, moment, signal, &temporary);
            });
        }
    }
}

/// Ends a benchmark by a signal after a while; it takes its temporary files along if it can.
pub fn stop(mut benchmark: Running, moment: Duration, signal: Signal, temporary: &Path) {
    let ended = holds_within(moment, || benchmark.has_ended());
    assert!(!ended, "it ended by itself: {}", benchmark.wait());
    benchmark.signal(signal);
    let end = benchmark.wait();
    assert_eq!(end.status, 128 + signal as i32, "{end}");
    if signal == Signal::SIGKILL {
        await_agent_of_killed(temporary);
    } else {
        assert!(is_empty(temporary), "files were left");
    }
}

/// Waits for the end of the agent of a killed benchmark. Until then its files must stay: they name
/// what it removes.
pub fn await_agent_of_killed(temporary: &Path) {
    let place = temporary.to_str().expect("UTF-8");
    eventually("its agent ends", || {
        processes_with(&[place]).next().is_none()
    });
}

#[test]
fn nothing_is_left_when_its_agent_is_killed() {
    for victims in [&["__agent"][..], &["__agent", "__fd-store"]] {
        leaves_no_files(|cluster, temporary| {
            let mut command = cluster.command("toroid-bench");
            let running = compare(&mut command, temporary, Path::new(INPUT));
            let place = temporary.to_str().expect("UTF-8");
            let mut found = Vec::new();
            eventually("they run", || {
                let pids = victims
                    .iter()
                    .filter_map(|v| processes_with(&[v, place]).next());
                found = pids.collect();
                found.len() == victims.len()
            });
            found.into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
            running.wait().fails_somehow();
        });
    }
}

#[test]
fn without_the_tun_device_stacks_stand_in_for_interfaces() {
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command_with(Tun::Missing, "toroid-bench");
        let outcome = compare(&mut command, temporary, Path::new(INPUT)).wait();
        assert!(outcome.text().contains("modprobe tun"), "{outcome}");
        check(outcome, "stack");
    });
}

#[test]
fn an_input_that_is_not_there_is_named() {
    let cluster = Cluster::down_yet();
    let temporary = temporary(&cluster);
    let nowhere = Path::new("/nowhere/at/all");
    let outcome = compare(&mut cluster.command("toroid-bench"), &temporary, nowhere).wait();
    outcome.fails(1, &["/nowhere/at/all"]);
}

/// Starts sockets to a host outside, with these further options.
fn external(command: &mut Command, temporary: &Path, options: &[&str]) -> Running {
    command.args(["compare", "--external", "--quick", "--json"]);
    start(command.args(options), temporary)
}

/// The external rows of a report: each has its figure of the paper's bridge.
fn check_external(report: &Value, basis: [&str; 2]) {
    let rows = report["rows"].as_array().expect("rows are a list");
    for (path, basis) in ["nat", "bridge"].into_iter().zip(basis) {
        let of_path: Vec<&Value> = rows.iter().filter(|row| row["path"] == path).collect();
        for (op, proto, unit) in [
            ("stream", "tcp", "Mbit/s"),
            ("stream", "udp", "Mbit/s"),
            ("pingpong", "udp", "us"),
        ] {
            for bytes in [200, 1000, 8000] {
                let labels = [("op", op), ("proto", proto), ("unit", unit)];
                let is_same = |row: &&&Value| {
                    row["bytes"] == bytes && labels.iter().all(|(key, value)| row[key] == *value)
                };
                let row = of_path.iter().find(is_same);
                let row = row.unwrap_or_else(|| panic!("no {path} {op} {proto} {bytes}"));
                assert_eq!(row["errors"], 0, "{row}");
                assert!(row["ours"].as_f64() > Some(0.0), "{row}");
                assert!(row["paper"].as_f64() > Some(0.0), "{row}");
                let basis = if proto == "tcp" && basis == "fit" {
                    "prediction"
                } else {
                    basis
                };
                assert_eq!(row["basis"], basis, "{row}");
            }
        }
        assert_eq!(of_path.len(), 9, "{path}");
    }
}

#[test]
fn a_host_outside_is_reached_by_both_gateways() {
    leaves_no_files(|cluster, temporary| {
        let outcome = external(&mut cluster.command("toroid-bench"), temporary, &[]).wait();
        let report = outcome.ok().json();
        check_external(&report, ["machine"; 2]);
        let rows = report["rows"].as_array().expect("rows are a list");
        assert!(rows.iter().all(|row| row["modelled"].is_null()), "{report}");
        assert!(report["manifest"]["processors_awake"].is_null());
    });
    leaves_no_files(|cluster, temporary| {
        let options = ["--fabric", "bgp"];
        let outcome = external(&mut cluster.command("toroid-bench"), temporary, &options).wait();
        let report = outcome.ok().json();
        check_external(&report, ["prediction", "fit"]);
        assert!(report["manifest"]["processors_awake"].is_boolean());
    });
}

#[test]
fn external_networks_need_root_and_taps() {
    leaves_nothing(|| {
        let cluster = Cluster::of_user(User::create());
        let temporary = temporary(&cluster);
        let outcome = external(&mut cluster.command("toroid-bench"), &temporary, &[]).wait();
        outcome.fails(
            1,
            &["only root can connect nodes to an external network", "sudo"],
        );
        assert!(is_empty(&temporary), "files were left");
    });
    leaves_no_files(|cluster, temporary| {
        let mut command = cluster.command_with(Tun::Missing, "toroid-bench");
        let outcome = external(&mut command, temporary, &[]).wait();
        outcome.fails(1, &["cannot open /dev/net/tun", "modprobe tun"]);
    });
}

#[test]
fn nothing_is_left_of_an_external_network() {
    for (moment, signal) in [
        (300, Signal::SIGINT),
        (1500, Signal::SIGINT),
        (900, Signal::SIGKILL),
        (1500, Signal::SIGKILL),
    ] {
        leaves_nothing(|| {
            let cluster = Cluster::down_yet();
            let temporary = temporary(&cluster);
            let running = external(&mut cluster.command("toroid-bench"), &temporary, &[]);
            stop(running, Duration::from_millis(moment), signal, &temporary);
        });
    }
}
