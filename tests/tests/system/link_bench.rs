//! Benchmarks of links.

use std::process::Command;

use serde_json::Value;
use tests::cluster::Cluster;

use crate::compare::{leaves_no_files, start};

fn bench(cluster: &Cluster, words: &str) -> Command {
    let mut command = cluster.command("toroid-bench");
    command.args(words.split_whitespace());
    command
}

/// Path and knob of the rows that must have been measured.
const MEASURED: [(&str, &str, usize); 9] = [
    ("rdma", "latency", 4),
    ("rdma", "rate", 4),
    ("rdma", "both", 2),
    ("rdma", "off", 1),
    ("channel", "latency", 2),
    ("channel", "off", 1),
    ("ethernet", "latency", 3),
    ("ethernet", "rate", 6),
    ("tbf", "rate", 3),
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
                assert!(row["error"].is_f64(), "{row}");
            }
        }
        let counts: usize = MEASURED.iter().map(|(.., count)| count).sum();
        assert_eq!(rows.len(), counts);
    });
}
