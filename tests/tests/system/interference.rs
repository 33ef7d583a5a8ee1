//! What disturbs a host or a domain on purpose is found in its figures. Nothing else may run meanwhile.

use std::fs;
use std::process::Command;

use tests::cluster::{is_nightly, program};
use tests::process::run;

use crate::compare::{leaves_no_files, start};
use crate::noise::{number, row};

#[test]
fn a_spinning_neighbour_raises_the_detours_of_a_processor() {
    let mut command = Command::new("taskset");
    command
        .args(["--cpu-list", "0"])
        .arg(program("toroid-bench"));
    let words = "noise os --quick --json --busy --seconds 2";
    let report = run(command.args(words.split(' '))).ok().json();
    for test in ["detours", "fixed work", "fixed time"] {
        let row = row(&report, test);
        assert_eq!(row["cpu"], 0, "{row}");
        assert_eq!(row["rounds"].as_array().map(Vec::len), Some(10), "{row}");
        // The scheduler gives the neighbour half of the processor.
        let share = number(row, "time_share");
        assert!(share > 0.25 && share < 1.0, "{row}");
    }
    let detours = row(&report, "detours");
    let shortest = number(detours, "t_min_ns");
    assert!(shortest > 0.0 && number(detours, "threshold_ns") == 9.0 * shortest);
    assert!(number(detours, "count_share") < number(detours, "time_share"));
    // A slice of the scheduler.
    assert!(number(detours, "max_ns") > 500e3, "{detours}");
    let spectrum = report["spectrum"].as_array().expect("a list");
    let hz: Vec<f64> = spectrum.iter().map(|point| number(point, "hz")).collect();
    // Of 2,000 quanta of 1 ms.
    assert!(hz.is_sorted() && hz[0] >= 0.5 && hz[hz.len() - 1] <= 500.0);
    for peak in report["peaks"].as_array().expect("a list") {
        assert!(
            number(peak, "power") > 1.0 && hz.contains(&number(peak, "hz")),
            "{peak}"
        );
    }
}

/// Links that a message of 64 KiB takes for 0.7 ms, and a word for 2 us. Hosts cost nothing, so one
/// sender fills a link.
const SLOW: &str = "name = \"slow\"\nrate = \"100MB/s\"\nhop = \"1us\"\n";

#[test]
fn traffic_of_another_domain_slows_a_victim_on_shared_links() {
    leaves_no_files(|cluster, temporary| {
        let bench = |words: &str| {
            let mut command = cluster.command("toroid-bench");
            command
                .args(["noise", "congest"])
                .args(words.split_whitespace());
            command
        };
        let profile = cluster.files().join("slow.toml");
        fs::write(&profile, SLOW).expect("it is ours");
        let words = "--quick --json --path rdma --pattern incast --fabric";
        let mut command = bench(&format!("{words} {}", profile.display()));
        let report = start(&mut command, temporary).wait().ok().json();
        let fabric = &report["config"]["fabric"];
        assert_eq!(
            (&fabric["name"], &fabric["hop"]),
            (&"slow".into(), &"1us".into())
        );
        let rows = report["rows"].as_array().expect("rows are a list");
        let names: Vec<_> = rows
            .iter()
            .map(|row| (&row["test"], &row["pattern"]))
            .collect();
        assert_eq!(rows.len(), 6, "{names:?}");
        for pair in rows.chunks(2) {
            let [control, incast] = pair else {
                panic!("a control for each: {names:?}");
            };
            assert_eq!(
                (&control["pattern"], &incast["pattern"]),
                (&"isolated".into(), &"incast".into())
            );
            assert!(control["congestor_bytes_per_s"].is_null(), "{control}");
            // Both members that send fill a link each.
            let rate = number(incast, "congestor_bytes_per_s");
            assert!(rate > 0.0 && rate < 2.1e8, "{incast}");
            let [alone, beside] = [control, incast].map(|row| number(row, "mean_impact"));
            assert!(alone > 0.0 && beside > 0.0, "{control} {incast}");
            // Ranks sleep until a message comes, so that sums take the machine's time as well.
            assert!(
                beside > alone || incast["test"] == "allreduce",
                "{control} {incast}"
            );
            assert!(incast["late_share"].is_f64(), "{incast}");
            if incast["test"] == "latency" {
                // A word waits for messages of 0.7 ms on both ways.
                assert!(
                    beside > 1.5 && number(incast, "p99_impact") > 1.5,
                    "{incast}"
                );
            }
        }
        let bad = bench("--fabric /no/such");
        run(&mut { bad }).fails(2, &["/no/such", "neither bgp nor a file"]);
        if is_nightly() {
            let report = start(&mut bench("--quick --json"), temporary)
                .wait()
                .ok()
                .json();
            let rows = report["rows"].as_array().expect("rows are a list");
            assert_eq!(rows.len(), 24);
            for row in rows {
                assert!(
                    number(row, "mean_impact") > 0.0 && number(row, "p99_impact") > 0.0,
                    "{row}"
                );
                let is_control = row["pattern"] == "isolated";
                assert_eq!(row["congestor_bytes_per_s"].is_null(), is_control, "{row}");
                assert!(row["late_share"].is_null(), "no model is late: {row}");
            }
        }
    });
}
