//! Channels depend on each other without a cycle: a packet that waits behind one link for the next
//! can always be waited for.

use std::collections::BTreeSet;

use super::*;

/// Channels that packets wait for while they hold another, by many random paths of all kinds.
fn dependencies(network: &Network, paths: usize) -> BTreeSet<(Step, Step)> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut found = BTreeSet::new();
    for from in (0..network.routers()).map(RouterId) {
        for to in (0..network.routers()).map(RouterId) {
            for n in 0..paths {
                let path = match n % 3 {
                    0 => network.non_minimal(from, to, random.u64(..)),
                    _ => network.minimal(from, to, random.u64(..)),
                };
                let is_diverted = n % 2 == 0;
                add_path(network, path, is_diverted, &mut random, &mut found);
            }
        }
    }
    found
}

/// Walks a path that changes at some routers.
fn add_path(
    network: &Network,
    mut path: Path,
    is_diverted: bool,
    random: &mut fastrand::Rng,
    found: &mut BTreeSet<(Step, Step)>,
) {
    let mut last: Option<Step> = None;
    let mut hops = 0;
    loop {
        if is_diverted && random.u8(..2) == 0 {
            let other = network.divert(&path, random.bool(), random.u64(..));
            path = other.unwrap_or(path);
        }
        let Some(step) = network.step(&mut path) else {
            break;
        };
        assert!(step.channel < network.channels());
        if let Some(last) = last.replace(step) {
            found.insert((last, step));
        }
        hops += 1;
        assert!(hops < 100, "{path:?}");
    }
    assert!(path.is_at_end());
}

/// Whether a graph has a cycle: what remains when edges from nodes without a predecessor are gone.
fn has_cycle(mut edges: BTreeSet<(Step, Step)>) -> bool {
    loop {
        let targets: BTreeSet<Step> = edges.iter().map(|(_, to)| *to).collect();
        let before = edges.len();
        edges.retain(|(from, _)| targets.contains(from));
        if edges.len() == before {
            return before > 0;
        }
    }
}

#[test]
fn channels_form_no_cycle() {
    for text in [
        "torus:4x1x1",
        "torus:5x3x1",
        "torus:2x2x2",
        "torus:3x4x2",
        "dragonfly:1x3x3x1",
        "dragonfly:3x2x2x1:2",
        "dragonfly:4x1x3x1",
    ] {
        let edges = dependencies(&text.parse().unwrap(), 60);
        assert!(!edges.is_empty() && !has_cycle(edges), "{text}");
    }
}

#[test]
fn without_datelines_a_ring_has_a_cycle() {
    let edges = dependencies(&"torus:5x1x1".parse().unwrap(), 30);
    let one = |step: Step| Step { channel: 0, ..step };
    let edges = edges.into_iter().map(|(a, b)| (one(a), one(b)));
    assert!(has_cycle(edges.collect()));
}
