//! Against trying out all sets, on tori where that can be done.

use std::time::Instant;

use proptest::prelude::*;

use super::*;

fn torus(text: &str) -> Torus {
    text.parse().unwrap()
}

fn all(torus: Torus) -> BTreeSet<NodeId> {
    (0..torus.nodes()).map(NodeId).collect()
}

fn take(torus: Torus, free: &BTreeSet<NodeId>, count: usize, policy: Policy) -> BTreeSet<NodeId> {
    let wish = Wish {
        count,
        policy,
        ..Wish::default()
    };
    choose(torus, free, &wish).unwrap()
}

fn places(torus: Torus, nodes: &BTreeSet<NodeId>) -> Vec<Place> {
    nodes.iter().filter_map(|n| torus.place(*n)).collect()
}

/// The sides of the smallest box that holds `nodes`, which may wrap around.
fn sides(torus: Torus, nodes: &BTreeSet<NodeId>) -> Vec<usize> {
    let places = places(torus, nodes);
    let along = |coordinate: fn(&Place) -> u8| {
        let distinct: BTreeSet<u8> = places.iter().map(coordinate).collect();
        distinct.len()
    };
    let mut sides = vec![along(|p| p.x), along(|p| p.y), along(|p| p.z)];
    sides.sort_unstable();
    sides
}

/// Sum of distances to `near`, then of those between the nodes and to `fellows`.
fn cost(torus: Torus, nodes: &BTreeSet<NodeId>, wish: &Wish) -> (u32, u32) {
    let (nodes, fellows) = (places(torus, nodes), places(torus, &wish.fellows));
    let near = wish.near.and_then(|node| torus.place(node));
    let to_near = |place: &Place| near.map_or(0, |near| torus.distance(*place, near));
    let mut hops = 0;
    for (n, a) in nodes.iter().enumerate() {
        let others = nodes[n + 1..].iter().chain(&fellows);
        hops += others.map(|b| torus.distance(*a, *b)).sum::<u32>();
    }
    (nodes.iter().map(to_near).sum(), hops)
}

fn subsets(of: &[NodeId], count: usize) -> Vec<BTreeSet<NodeId>> {
    if count == 0 {
        return vec![BTreeSet::new()];
    }
    let mut all = Vec::new();
    for (n, first) in of.iter().enumerate() {
        for mut rest in subsets(&of[n + 1..], count - 1) {
            rest.insert(*first);
            all.push(rest);
        }
    }
    all
}

#[test]
fn eight_of_an_empty_torus_are_a_cube() {
    let torus = torus("4x4x4");
    let nodes = take(torus, &all(torus), 8, Policy::Compact);
    assert_eq!(sides(torus, &nodes), [2, 2, 2]);
    let figures = Figures::of(torus, &nodes);
    assert_eq!((figures.size, figures.diameter), (8, 3));
    assert!((figures.mean_hops - 12.0 / 7.0).abs() < 1e-12);
}

#[test]
fn a_cube_that_wraps_around_is_found() {
    let torus = torus("4x4x4");
    let corners = [0, 3].map(|n: u8| n);
    let mut free = BTreeSet::new();
    for (x, y, z) in corners
        .iter()
        .flat_map(|x| corners.map(|y| corners.map(|z| (*x, y, z))).concat())
    {
        free.extend(torus.node(Place { x, y, z }));
    }
    let cube = free.clone();
    // And some that lie about.
    free.extend([21, 25, 37, 42, 38].map(NodeId));
    assert_eq!(take(torus, &free, 8, Policy::Compact), cube);
}

#[test]
fn all_and_none_and_too_many() {
    let torus = torus("3x2x1");
    let free = all(torus);
    for policy in [Policy::Compact, Policy::Spread, Policy::Random] {
        assert_eq!(take(torus, &free, 6, policy), free);
        assert!(take(torus, &free, 0, policy).is_empty());
        let wish = Wish {
            count: 7,
            policy,
            ..Wish::default()
        };
        assert_eq!(choose(torus, &free, &wish), None);
    }
}

#[test]
fn spread_takes_opposite_corners() {
    let torus = torus("4x4x4");
    let nodes = take(torus, &all(torus), 2, Policy::Spread);
    assert_eq!(Figures::of(torus, &nodes).diameter, 6);
}

#[test]
fn random_takes_each_node_about_as_often() {
    let torus = torus("4x2x1");
    let mut taken = [0u32; 8];
    for seed in 0..8000 {
        let wish = Wish {
            count: 2,
            policy: Policy::Random,
            seed,
            ..Wish::default()
        };
        for node in choose(torus, &all(torus), &wish).unwrap() {
            taken[node.0 as usize] += 1;
        }
    }
    assert!(taken.iter().all(|n| (1800..2200).contains(n)), "{taken:?}");
}

#[test]
fn near_takes_the_neighbours() {
    let torus = torus("5x5x5");
    let near = torus.node(Place { x: 0, y: 4, z: 2 }).unwrap();
    let mut free = all(torus);
    free.remove(&near);
    let wish = Wish {
        count: 6,
        near: Some(near),
        ..Wish::default()
    };
    let nodes = choose(torus, &free, &wish).unwrap();
    assert_eq!(cost(torus, &nodes, &wish).0, 6, "one hop each");
}

#[test]
fn figures_of_small_sets() {
    let torus = torus("8x4x2");
    let figures = |nodes: &[u32]| Figures::of(torus, &nodes.iter().copied().map(NodeId).collect());
    assert_eq!(figures(&[]), Figures::default());
    assert_eq!(figures(&[5]).mean_hops, 0.0);
    assert_eq!(figures(&[0, 7]).mean_hops, 1.0);
    let line = figures(&[0, 1, 2]);
    assert_eq!((line.size, line.diameter), (3, 2));
    assert!((line.mean_hops - 4.0 / 3.0).abs() < 1e-12);
}

/// Not a bound on time, which depends on the machine: shows the duration for the largest torus.
#[test]
fn the_largest_torus_is_not_searched_for_ever() {
    let largest = "151x31x14";
    let cases = [
        ("16x8x8", 8),
        ("16x8x8", 100),
        ("16x8x8", 512),
        (largest, 64),
        (largest, 4000),
    ];
    for (shape, count) in cases {
        for policy in [Policy::Compact, Policy::Spread] {
            let torus = torus(shape);
            let free = all(torus);
            let free = free.into_iter().filter(|node| node.0 % 7 != 3).collect();
            let start = Instant::now();
            let nodes = take(torus, &free, count, policy);
            let hops = Figures::of(torus, &nodes).mean_hops;
            println!("{count} {policy}: {hops:.3} hops, {:?}", start.elapsed());
            assert!(nodes.is_subset(&free) && nodes.len() == count);
        }
    }
}

fn cases() -> impl Strategy<Value = (Torus, BTreeSet<NodeId>, Wish)> {
    let shapes = prop::sample::select(vec![
        "2x2x2", "3x2x2", "4x3x1", "5x2x1", "12x1x1", "3x3x1", "4x2x2", "4x4x1",
    ]);
    let parts = (
        shapes,
        any::<u16>(),
        any::<u16>(),
        0..7usize,
        any::<bool>(),
        0..24u32,
    );
    parts.prop_map(|(shape, free, fellows, count, apart, near)| {
        let torus = torus(shape);
        let among = |bits: u16| {
            let inside = (0..torus.nodes()).filter(move |n| bits >> n & 1 == 1);
            inside.map(NodeId).collect::<BTreeSet<_>>()
        };
        let free = among(free);
        let fellows = &among(fellows & fellows << 3) - &free;
        let wish = Wish {
            count: count.min(free.len()),
            policy: if apart {
                Policy::Spread
            } else {
                Policy::Compact
            },
            near: (near < torus.nodes() && !apart).then_some(NodeId(near)),
            fellows,
            seed: 0,
        };
        (torus, free, wish)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_set_is_better((torus, free, wish) in cases()) {
        let nodes = choose(torus, &free, &wish).unwrap();
        prop_assert!(nodes.is_subset(&free));
        prop_assert_eq!(nodes.len(), wish.count);
        let free: Vec<_> = free.into_iter().collect();
        let costs = subsets(&free, wish.count).into_iter().map(|set| cost(torus, &set, &wish));
        let best = match wish.policy {
            Policy::Spread => costs.max(),
            _ => costs.min(),
        };
        prop_assert_eq!(Some(cost(torus, &nodes, &wish)), best);
    }

    #[test]
    fn figures_are_those_of_all_pairs((torus, free, _) in cases()) {
        let figures = Figures::of(torus, &free);
        let places = places(torus, &free);
        let pairs = places.iter().flat_map(|a| places.iter().map(|b| torus.distance(*a, *b)));
        prop_assert_eq!(Some(figures.diameter), pairs.clone().max().or(Some(0)));
        prop_assert_eq!(diameter_by_axes(torus, &places), figures.diameter);
        let hops: u32 = pairs.sum();
        let count = places.len() * places.len().saturating_sub(1);
        let mean = f64::from(hops) / count.max(1) as f64;
        prop_assert!((figures.mean_hops - mean).abs() < 1e-12);
    }
}
