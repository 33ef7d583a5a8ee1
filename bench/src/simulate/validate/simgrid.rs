//! SimGrid (Casanova et al., 2014), which shares bandwidth by max-min fairness.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use toroid_fabric::routes::{Mode, TorusNetwork};

use super::{Bar, Check, Outcome};
use crate::plan::Effort;
use crate::sim::chunks::{ChunkNetwork, DEFAULT_CHUNK};
use crate::sim::profile::NicCosts;
use crate::sim::{Happening, Message, Network, Profile, nanoseconds};

/// A random permutation of messages of 1 MB. Sizes are odd, so that each pair has one shortest path.
pub const PERMUTATION: Check = Check {
    name: "simgrid",
    is_long: false,
    run: permutation,
};

/// The program in SimGrid's module of Python.
const SCRIPT: &str = include_str!("permutation.py");

/// The interpreter of Debian, which has Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

const BYTES: u64 = 1_000_000;

fn permutation(_: Effort) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for size in [5, 7] {
        let targets = targets(size * size * size);
        let expected = simgrid(size, &targets)?;
        let measured = chunks(size, &targets)?;
        let outcome = |figure: &str, share, of: fn(&[f64]) -> f64| Outcome {
            against: "SimGrid",
            what: format!("permutation of 1 MB on {size}x{size}x{size}, {figure} finish, ms"),
            bar: Bar::Within(share),
            expected: of(&expected),
            measured: of(&measured),
        };
        let last = |finishes: &[f64]| finishes.iter().copied().fold(0.0, f64::max);
        let mean = |finishes: &[f64]| finishes.iter().sum::<f64>() / finishes.len() as f64;
        outcomes.push(outcome("last", 0.01, last));
        outcomes.push(outcome("mean", 0.06, mean));
    }
    Ok(outcomes)
}

/// The node to which each node sends: a random cycle, so no node sends to itself.
fn targets(nodes: u32) -> Vec<u32> {
    let mut cycle: Vec<u32> = (0..nodes).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut cycle);
    let mut targets = vec![0; nodes as usize];
    for (n, node) in cycle.iter().enumerate() {
        targets[*node as usize] = cycle[(n + 1) % cycle.len()];
    }
    targets
}

/// Finish of each message in milliseconds, in SimGrid.
fn simgrid(size: u32, targets: &[u32]) -> Result<Vec<f64>> {
    let link = Profile::bgp().torus;
    let figures = [u64::from(size), BYTES, link.rate, link.latency_ns];
    let words = figures
        .into_iter()
        .chain(targets.iter().map(|target| u64::from(*target)));
    let output = Command::new(PYTHON)
        .args(["-c", SCRIPT])
        .args(words.map(|word| word.to_string()))
        .output()
        .with_context(|| {
            format!("cannot start {PYTHON}: install Debian's package python3-simgrid")
        })?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        !errors.contains("No module named"),
        "SimGrid is missing: install Debian's package python3-simgrid"
    );
    ensure!(
        output.status.success(),
        "SimGrid failed: {}",
        errors.trim_end()
    );
    let finishes: Vec<f64> = serde_json::from_slice(&output.stdout).context("SimGrid's output")?;
    Ok(finishes.into_iter().map(|seconds| seconds * 1e3).collect())
}

/// Finish of each message in milliseconds, in chunks. Cards have the rate of a link and no other
/// costs, and packets have no headers.
fn chunks(size: u32, targets: &[u32]) -> Result<Vec<f64>> {
    let bgp = Profile::bgp();
    let nic = NicCosts {
        rate: bgp.torus.rate,
        send_ns: 0,
        receive_ns: 0,
        packet_ns: 0,
        window: u32::MAX,
        ..bgp.nic
    };
    let profile = Profile {
        nic,
        header: 0,
        ..bgp
    };
    let torus = TorusNetwork::new([size; 3])?;
    let mut network = ChunkNetwork::new(torus, profile, DEFAULT_CHUNK, 1, u64::MAX)?;
    for (from, to) in targets.iter().enumerate() {
        network.send(Message::put(from as u32, *to, BYTES, Mode::InOrder));
    }
    let mut finishes = Vec::with_capacity(targets.len());
    while let Some(happening) = network.next() {
        if let Happening::Delivered(_) = happening {
            finishes.push(nanoseconds(network.now()) / 1e6);
        }
    }
    Ok(finishes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_a_permutation_without_loops() {
        let targets = targets(27);
        assert!(
            targets
                .iter()
                .enumerate()
                .all(|(from, to)| from != *to as usize)
        );
        let mut sorted = targets.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..27));
    }
}
