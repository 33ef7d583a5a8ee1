//! Decisions of the modes.

use std::collections::BTreeSet;

use super::*;

fn networks() -> [Network; 3] {
    ["torus:4x4x4", "dragonfly:4x2x8x2:6", "dragonfly:1x3x4x2"].map(|text| text.parse().unwrap())
}

/// Paths of random pairs under random queues of up to `most` packets at each link.
fn paths(network: &Network, mode: Mode, most: u32) -> Vec<Path> {
    let mut random = fastrand::Rng::with_seed(11);
    let queues: Vec<u32> = (0..network.links()).map(|_| random.u32(..=most)).collect();
    let load = |link: LinkId, _| Load {
        queue: queues[link.0 as usize],
        credits: queues[link.0 as usize] / 2,
    };
    let mut paths = Vec::new();
    while paths.len() < 2_000 {
        let mut router = || RouterId(random.u32(..network.routers()));
        let ends = (router(), router());
        if ends.0 != ends.1 {
            let random = || random.u64(..);
            paths.push(choose(
                network,
                mode,
                ends,
                &Biases::default(),
                random,
                load,
            ));
        }
    }
    paths
}

fn share(paths: &[Path]) -> f64 {
    let long = paths.iter().filter(|path| !path.is_minimal()).count();
    long as f64 / paths.len() as f64
}

/// Loads that end at the limit, or go on to an end beyond it, leave the choice as it is.
#[test]
fn a_load_beyond_the_limit_has_no_effect() {
    let mut loads = fastrand::Rng::with_seed(12);
    for network in networks() {
        let ends = (RouterId(0), RouterId(network.routers() - 1));
        let (mut cut, mut long) = (0, 0);
        for (seed, mode) in (0..3_000).zip(Mode::ALL.into_iter().cycle()) {
            let (salt, most) = (loads.u64(..), loads.u64(1..3_000));
            let load = |path: &Path| (u64::from(path.choice ^ path.via.0) ^ salt) % most;
            let choose = |load: &mut dyn FnMut(&Path, u64) -> u64| {
                let mut random = fastrand::Rng::with_seed(seed);
                let biases = Biases::default();
                choose_by(&network, mode, ends, &biases, || random.u64(..), load)
            };
            let whole = choose(&mut |path, _| load(path));
            let at_limit = choose(&mut |path, limit| load(path).min(limit));
            let beyond = choose(&mut |path, limit| match load(path) {
                load if load >= limit => {
                    cut += 1;
                    limit + salt % 1_000
                }
                load => load,
            });
            assert_eq!((at_limit, beyond), (whole, whole), "{mode}");
            long += u32::from(mode == Mode::Adaptive3 && !whole.is_minimal());
        }
        assert!(cut > 1_000 && long > 0, "{cut} {long}");
    }
}

#[test]
fn minimal_modes_are_never_long_and_nmin_hash_always() {
    for network in networks() {
        for mode in [Mode::MinHash, Mode::InOrder] {
            assert_eq!(share(&paths(&network, mode, 900)), 0.0);
        }
        assert_eq!(share(&paths(&network, Mode::NminHash, 900)), 1.0);
    }
}

#[test]
fn fixed_modes_have_one_path_for_each_pair() {
    for network in networks() {
        for mode in [Mode::MinHash, Mode::NminHash, Mode::InOrder] {
            let ends = (RouterId(0), RouterId(network.routers() - 1));
            let mut random = fastrand::Rng::with_seed(1);
            let mut path = || {
                let load = |_, _| Load::default();
                choose(
                    &network,
                    mode,
                    ends,
                    &Biases::default(),
                    || random.u64(..),
                    load,
                )
            };
            assert_eq!(path(), path());
        }
    }
}

#[test]
fn the_bias_orders_the_share_of_long_paths() {
    for network in networks() {
        for most in [100, 300, 900, 3_000] {
            let share = |mode| share(&paths(&network, mode, most));
            let [none, low, high] = [Mode::Adaptive0, Mode::Adaptive2, Mode::Adaptive3].map(share);
            assert!(
                none > low && (low > high || low == 0.0),
                "{none} {low} {high}"
            );
            assert!(none > 0.3);
        }
    }
}

#[test]
fn without_load_all_adaptive_modes_are_minimal() {
    for network in networks() {
        for mode in [
            Mode::Adaptive0,
            Mode::Adaptive1,
            Mode::Adaptive2,
            Mode::Adaptive3,
        ] {
            assert_eq!(share(&paths(&network, mode, 0)), 0.0);
        }
    }
}

#[test]
fn adaptive_1_becomes_more_minimal_with_each_hop() {
    let biases = Biases::default();
    let of = |hops| biases.of(Mode::Adaptive1, hops);
    assert_eq!(of(0), Bias::default());
    for hops in 0..4 {
        assert!(of(hops + 1).add > of(hops).add && of(hops + 1).shift > of(hops).shift);
    }
    assert_eq!(of(255), of(4));
}

#[test]
fn a_second_decision_leaves_a_congested_path_and_still_arrives() {
    for network in networks() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut changed = 0;
        for _ in 0..500 {
            let (from, to) = (RouterId(0), RouterId(network.routers() - 1));
            let mut path = network.non_minimal(from, to, random.u64(..));
            let mut links = BTreeSet::new();
            loop {
                let congested = network.first(&path).map(|step| step.link);
                let load = |link: LinkId, _| Load {
                    queue: if Some(link) == congested { 1_000 } else { 1 },
                    credits: 0,
                };
                let again =
                    choose_again(&network, &path, &Biases::default(), || random.u64(..), load);
                changed += usize::from(again != path);
                path = again;
                let Some(step) = network.step(&mut path) else {
                    break;
                };
                links.insert(step);
            }
            assert!(path.is_at_end() && path.at() == to);
            assert!(links.len() <= 30);
        }
        assert!(changed > 500, "{changed}");
    }
}
