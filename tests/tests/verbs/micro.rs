//! Micro-benchmarks of two devices.

use serde_json::Value;
use tests::process::{Outcome, run};

use crate::{Host, MANY, down_yet};

/// Tests by layer that this run measures, over up to 16 channels.
const TESTS: [(&str, &str); 3] = [
    ("fabric", "blocking/block"),
    ("fabric", "blocking/spin"),
    ("msg", "any_source"),
];

fn micro(host: &Host, words: &str) -> Outcome {
    let mut command = host.agent.command("toroid-bench");
    run(command.arg("micro").args(words.split_whitespace()))
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn micro_measures_messages_by_two_devices() {
    let hosts = down_yet(false);
    let before = hosts.each_ref().map(Host::sent);
    let words = "--quick --json --path verbs --device rxe0,rxe1 --test blocking,any-source";
    let report = micro(&hosts[0], words).ok().json();
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
    for (host, before) in hosts.iter().zip(before) {
        assert!(host.sent() > before + MANY, "{}", host.device);
    }
    let missing = micro(&hosts[0], "--quick --path verbs --device rxe9");
    missing.fails(
        1,
        &["no RDMA device named rxe9: there is rxe0, rxe1", "--device"],
    );
}
