//! Micro-benchmarks and parallel programs of two devices.

use serde_json::Value;
use tests::process::{Outcome, run};

use crate::{Host, MANY, down_yet};

/// Tests by layer that this run measures, over up to 16 channels, beside that of queues.
const TESTS: [(&str, &str); 3] = [
    ("fabric", "blocking/block"),
    ("fabric", "blocking/spin"),
    ("msg", "any_source"),
];

fn bench(host: &Host, words: &str) -> Outcome {
    let mut command = host.agent.command("toroid-bench");
    run(command.args(words.split_whitespace()))
}

/// Runs a command in which each of two devices sends many packets.
fn bench_by_both(words: &str) -> Outcome {
    let hosts = down_yet(false);
    let before = hosts.each_ref().map(Host::sent);
    let outcome = bench(&hosts[0], words).ok();
    for (host, before) in hosts.iter().zip(before) {
        assert!(host.sent() > before + MANY, "{}", host.device);
    }
    outcome
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn micro_measures_messages_and_completions_by_two_devices() {
    let report = bench_by_both(
        "micro --quick --json --path verbs --device rxe0,rxe1 --test blocking,any-source,queues",
    );
    let report = report.json();
    let rows = report["rows"].as_array().expect("rows are a list");
    for row in rows {
        assert_eq!(row["path"], "verbs", "{row}");
        let [base, changed, cost] = ["base_ns", "p50_ns", "cost_ns"].map(|name| number(&row[name]));
        assert!(base > 0.0 && changed > 0.0, "{row}");
        assert!((cost - (changed - base)).abs() < 0.1, "{row}");
        let [low, high] = [0, 1].map(|end| number(&row["ci"][end]));
        assert!(low <= cost && cost <= high, "{row}");
        assert!(!row["rounds"].as_array().expect("a list").is_empty());
    }
    for (layer, test) in TESTS {
        let is_wanted = |row: &Value| row["layer"] == layer && row["test"] == test;
        assert!(rows.iter().any(is_wanted), "{layer}, {test}");
    }
    let is_queues = |row: &&Value| row["test"] == "queues";
    let pairs = rows.iter().filter(is_queues).map(|row| row["x"].as_u64());
    assert_eq!(pairs.flatten().collect::<Vec<_>>(), [1, 4, 16, 64]);
}

/// The second rank both connects and accepts, by one protection domain.
#[test]
fn three_ranks_of_two_devices_compute_the_known_result() {
    let report =
        bench_by_both("programs is --quick --json --path verbs --device rxe0,rxe1 --ranks 3");
    let rows = report.json()["rows"].clone();
    assert_eq!(rows.as_array().expect("a list").len(), 1, "{rows}");
    let row = &rows[0];
    assert_eq!(
        (&row["program"], &row["path"]),
        (&"is".into(), &"verbs".into())
    );
    assert_eq!((&row["ranks"], &row["checked"]), (&3.into(), &true.into()));
}

#[test]
fn a_missing_device_is_named_beside_those_that_exist() {
    let [host, _] = down_yet(false);
    for command in ["micro", "programs"] {
        let missing = bench(
            &host,
            &format!("{command} --quick --path verbs --device rxe9"),
        );
        missing.fails(
            1,
            &["no RDMA device named rxe9: there is rxe0, rxe1", "--device"],
        );
    }
}
