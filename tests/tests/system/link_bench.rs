//! Benchmarks of links: a user's program under links that are afterwards as before.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::cluster::{Cluster, is_nightly, program};
use tests::process::{Running, eventually, run};

use crate::compare::{leaves_no_files, start};

const BEFORE: &str = "link set -d blue --latency 50us --limit 64KiB --rate 1Gbit";

fn bench(cluster: &Cluster, words: &str) -> Command {
    let mut command = cluster.command("toroid-bench");
    command.args(words.split_whitespace());
    command
}

fn links(cluster: &Cluster) -> Value {
    cluster.existing("blue").show()["links"].clone()
}

/// A program that takes a round trip in the domain.
fn ping() -> String {
    format!(
        "{} exec 0,0,0 -- ping -c 1 1-0-0.blue",
        program("toroid").display()
    )
}

#[test]
fn a_sweep_runs_a_program_under_every_link() {
    let cluster = Cluster::up("2x1x1");
    cluster.domain("blue", &["0,0,0", "1,0,0"]);
    cluster.toroid(BEFORE).ok();
    let before = links(&cluster);
    let words = "sweep -d blue --rate 1Gbit,10Mbit --latency 0,+1ms --rounds 2 --json --";
    let swept = run(&mut bench(&cluster, &format!("{words} {}", ping())));
    let report = swept.ok().json();
    let rows = report["rows"].as_array().expect("rows are a list");
    let settings: Vec<_> = rows
        .iter()
        .map(|row| (&row["rate"], &row["latency"]))
        .collect();
    let [fast, slow] = ["1Gbit", "10Mbit"].map(|rate| json!(rate));
    let (none, late) = (Value::Null, json!("+1ms"));
    assert_eq!(
        settings,
        [
            (&none, &none),
            (&fast, &none),
            (&slow, &none),
            (&fast, &late),
            (&slow, &late)
        ]
    );
    for row in rows {
        assert!(row["seconds"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["ci"].as_array().map(Vec::len), Some(2), "{row}");
        assert_eq!(row["late_share"].is_null(), row["rate"].is_null(), "{row}");
    }
    assert_eq!(links(&cluster), before);
}

#[test]
fn links_are_as_before_after_failures_and_signals() {
    let cluster = Cluster::up("2x1x1");
    cluster.domain("blue", &["0,0,0", "1,0,0"]);
    cluster.toroid(BEFORE).ok();
    let before = links(&cluster);
    for (words, status, wanted) in [
        ("need -d blue --within 5% -- false", 1, "must succeed alone"),
        ("need -d green --within 5% -- true", 1, "green"),
        ("sweep -d blue --latency 1ns -- true", 1, "set at least"),
    ] {
        run(&mut bench(&cluster, words)).fails(status, &[wanted]);
        assert_eq!(links(&cluster), before, "{words}");
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let words = "sweep -d blue --rate 10Mbit --rounds 1000 -- sleep 0.1";
        let running = Running::start(&mut bench(&cluster, words));
        let swept = json!({"default": {"rate": "10Mbit"}});
        eventually("the sweep sets a link", || links(&cluster) == swept);
        running.signal(signal);
        let end = running.wait();
        assert_eq!(end.status, 128 + signal as i32, "{end}");
        assert_eq!(links(&cluster), before);
    }
}

#[test]
fn no_need_is_found_for_a_program_without_traffic() {
    let cluster = Cluster::up("2x1x1");
    cluster.domain("blue", &["0,0,0", "1,0,0"]);
    // No limit slows a sleep: noise of the machine may leave it undecided.
    let need = run(&mut bench(
        &cluster,
        "need -d blue --within 50% --json -- sleep 0.02",
    ));
    let report = need.ok().json();
    assert!(
        report["verdict"] == "any" || report["verdict"] == "undecided",
        "{report}"
    );
    assert!(report["compared"][0]["late_share"].is_null(), "{report}");
    assert_eq!(links(&cluster), Value::Null);
    if is_nightly() {
        let server = cluster.spawn("1,0,0", "iperf3 -s --forceflush");
        server.says("listening");
        let answers: Vec<_> = (0..20).map(|_| planted_need(&cluster)).collect();
        let is_near =
            |need: &&Option<f64>| need.is_some_and(|rate| (180e6..=220e6).contains(&rate));
        let near = answers.iter().filter(is_near).count();
        assert!(near >= 19, "{near} of 20: {answers:?}");
        assert_eq!(links(&cluster), Value::Null);
    }
}

/// The need of a stream of 200 Mbit/s that a run waits for; `None` if undecided. Headers add 5 %,
/// and 5 % are allowed.
fn planted_need(cluster: &Cluster) -> Option<f64> {
    let toroid = program("toroid");
    let stream = "exec 0,0,0 -- iperf3 -c 1-0-0.blue -b 200M -n 10M";
    let words = format!(
        "need -d blue --within 5% --json -- {} {stream}",
        toroid.display()
    );
    let report = run(&mut bench(cluster, &words)).ok().json();
    report["answer"].as_f64()
}

/// Path and knob of the rows that must have been measured.
const MEASURED: [(&str, &str, usize); 14] = [
    ("rdma", "latency", 4),
    ("rdma", "spin", 2),
    ("rdma", "rate", 4),
    ("rdma", "both", 2),
    ("rdma", "off", 1),
    ("rdma", "routing_off", 1),
    ("channel", "latency", 2),
    ("channel", "spin", 1),
    ("channel", "off", 1),
    ("channel", "routing_off", 1),
    ("ethernet", "latency", 3),
    ("ethernet", "rate", 6),
    ("tbf", "rate", 3),
    ("router", "routing", 11),
];

#[test]
fn every_property_of_links_is_measured() {
    leaves_no_files(|cluster, temporary| {
        let mut command = bench(cluster, "link --quick --json");
        let report = start(&mut command, temporary).wait().ok().json();
        let rows = report["rows"].as_array().expect("rows are a list");
        for (path, knob, count) in MEASURED {
            let is_wanted = |row: &&Value| row["path"] == path && row["knob"] == knob;
            let found: Vec<_> = rows.iter().filter(is_wanted).collect();
            assert_eq!(found.len(), count, "{path}, {knob}");
            for row in found {
                assert!(row["measured"].as_f64() > Some(0.0), "{row}");
                assert!(row["ci"][0].as_f64() <= row["measured"].as_f64(), "{row}");
                // A choice of routes has a bound, and no value from which it could deviate.
                assert_eq!(row["error"].is_f64(), knob != "routing", "{row}");
            }
        }
        let counts: usize = MEASURED.iter().map(|(.., count)| count).sum();
        assert_eq!(rows.len(), counts);
    });
}
