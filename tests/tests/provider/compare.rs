//! What operations cost beside the programs that measure devices everywhere (perftest), on the
//! same two devices. The devices are emulated, so this says nothing about any other, and nothing
//! is demanded.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use toroid_fabric::{Access, Completion, Endpoint, Operation, Region};

use crate::rig::Verbs;
use tests::conformance::Rig;

const ROUNDS: usize = 500;
const BULK: u64 = 64 * 1024;

/// The median of what one operation takes, in microseconds.
fn latency_us(rig: &Verbs, operation: &Operation<toroid_fabric::verbs::RemoteRegion>) -> f64 {
    let mut pair = rig.endpoint(1);
    let mut round = || {
        let start = Instant::now();
        pair.post(0, operation.clone()).unwrap();
        pair.flush();
        let mut done = [Completion::default()];
        while pair.poll(&mut done) == 0 {}
        assert!(done[0].result.is_ok());
        start.elapsed()
    };
    let mut took: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    took.sort();
    took[ROUNDS / 2].as_secs_f64() * 1e6
}

/// Megabytes in a second of long writes, 16 at a time.
fn bandwidth(rig: &Verbs, operation: &Operation<toroid_fabric::verbs::RemoteRegion>) -> f64 {
    let mut pair = rig.endpoint(16);
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < ROUNDS {
        while posted < ROUNDS && pair.post(0, operation.clone()).is_ok() {
            posted += 1;
        }
        pair.flush();
        let mut some = [Completion::default(); 16];
        let count = pair.poll(&mut some);
        assert!(some[..count].iter().all(|one| one.result.is_ok()));
        done += count;
    }
    (ROUNDS as u64 * BULK) as f64 / 1e6 / start.elapsed().as_secs_f64()
}

/// The line of figures that a program of perftest prints.
fn perftest(program: &str, bytes: u64, gid: &str) -> Vec<f64> {
    let command = |device: &str| {
        let mut command = Command::new(program);
        let (bytes, rounds) = (bytes.to_string(), ROUNDS.to_string());
        command.args(["-F", "-d", device, "-x", gid, "-n", &rounds]);
        if program != "ib_atomic_lat" {
            command.args(["-s", &bytes]);
        }
        command
    };
    let quiet = Stdio::null;
    let mut server = command("rxe1")
        .stdout(quiet())
        .stderr(quiet())
        .spawn()
        .unwrap();
    let figures = (0..100).find_map(|_| {
        // Until the server listens.
        std::thread::sleep(Duration::from_millis(100));
        let client = command("rxe0").arg("10.9.0.2").output().unwrap();
        let text = String::from_utf8_lossy(&client.stdout).into_owned();
        let line = |line: &str| -> Option<Vec<f64>> {
            line.split_whitespace()
                .map(|word| word.parse().ok())
                .collect()
        };
        text.lines().filter_map(line).find(|line| line.len() > 4)
    });
    let _ = server.kill();
    server.wait().unwrap();
    figures.unwrap_or_else(|| panic!("{program} prints no figures"))
}

#[test]
fn what_it_costs_beside_perftest() {
    let rig = Verbs::new();
    let local = Region::local(BULK as usize).unwrap();
    let (_owner, remote) = rig.export(BULK, Access::all());
    let gid = rig.here.domain.device().gid_index().to_string();
    // Columns: bytes, rounds, then least, most and typical latency, or peak and mean bandwidth.
    let rows = [
        (
            "read, 8 B, p50, us",
            latency_us(&rig, &Operation::read(&remote, 0, &local, 0..8)),
            perftest("ib_read_lat", 8, &gid)[4],
        ),
        (
            "fetch-and-add, p50, us",
            latency_us(&rig, &Operation::fetch_add(&remote, 0, 1)),
            perftest("ib_atomic_lat", 8, &gid)[4],
        ),
        (
            "write, 64 KiB, MB/s",
            bandwidth(&rig, &Operation::write(&remote, 0, &local, 0..BULK)),
            // It counts in MiB.
            perftest("ib_write_bw", BULK, &gid)[3] * 1.048_576,
        ),
    ];
    println!("emulated devices (soft-RoCE)    toroid  perftest");
    for (what, ours, theirs) in rows {
        println!("{what:<30} {ours:>8.1} {theirs:>9.1}");
    }
}
