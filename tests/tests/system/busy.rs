//! `toroid-bench --busy`: a process spins beside the run, the report says so, and the process ends with
//! the run.

use nix::sys::signal::Signal;
use tests::cluster::{Cluster, leaves_nothing};
use tests::leftovers::processes_with;
use tests::process::{Running, eventually, send};

use crate::compare::{await_agent_of_killed, leaves_no_files, start, temporary};

/// A run of so many rounds, ten of which take about a second.
fn busy(cluster: &Cluster, rounds: &str, form: &[&str]) -> Running {
    let temporary = temporary(cluster);
    let mut command = cluster.command("toroid-bench");
    command
        .args(["kv", "--busy", "--quick", "--rows", "memcpy/copy/64/hot"])
        .args(["--rounds", rounds])
        .args(form);
    start(&mut command, &temporary)
}

/// The process that spins beside a run.
fn spinner(run: &Running) -> u32 {
    let (mut spinner, run) = (None, run.pid().to_string());
    eventually("a process spins", || {
        spinner = processes_with(&["__bench-busy", &run]).next();
        spinner.is_some()
    });
    spinner.expect("it was seen")
}

#[test]
fn a_run_with_a_process_spinning_beside_says_so() {
    leaves_no_files(|cluster, _| {
        let report = busy(cluster, "10", &["--json"]).wait().ok().json();
        assert_eq!(report["config"]["busy"], true, "{report}");
        let table = busy(cluster, "10", &[]).wait().ok();
        assert!(
            table.text().contains("one process spinning beside"),
            "{table}"
        );
    });
}

#[test]
fn the_process_that_spins_ends_with_its_run() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        leaves_nothing(|| {
            let cluster = Cluster::down_yet();
            // So long that it does not end by itself.
            let run = busy(&cluster, "1000", &[]);
            spinner(&run);
            run.signal(signal);
            let end = run.wait();
            assert_eq!(end.status, 128 + signal as i32, "{end}");
            if signal == Signal::SIGKILL {
                await_agent_of_killed(&temporary(&cluster));
            }
        });
    }
}

#[test]
fn figures_of_a_run_that_lost_its_spinning_process_are_void() {
    leaves_nothing(|| {
        let cluster = Cluster::down_yet();
        let run = busy(&cluster, "50", &[]);
        send(spinner(&run), Signal::SIGKILL);
        run.wait().fails(1, &["has ended early", "run it again"]);
    });
}
