//! Boxes: the sets that are compact by construction.

use toroid_fabric::{Place, Torus};

use super::Pull;

/// The most compact free box of `count` nodes; among boxes of one shape the one with the lowest
/// `rank`. Boxes may wrap around.
pub(super) fn best(
    torus: Torus,
    count: usize,
    is_free: impl Fn(Place) -> bool,
    rank: impl Fn(&[Place]) -> i64,
) -> Option<Vec<Place>> {
    for sides in shapes(torus, count) {
        let whole = |corner: Place| {
            let places = places(torus, corner, sides);
            places.iter().all(|place| is_free(*place)).then_some(places)
        };
        let [x, y, z] = torus.sizes();
        let corners = places(torus, Place { x: 0, y: 0, z: 0 }, [x, y, z]);
        let candidates = corners.into_iter().filter_map(whole);
        if let Some(best) = candidates.min_by_key(|places| rank(places)) {
            return Some(best);
        }
    }
    None
}

/// The sides of boxes of `count` nodes, the most compact first, then those that are most like a
/// cube.
fn shapes(torus: Torus, count: usize) -> Vec<[u16; 3]> {
    let [x, y, z] = torus.sizes();
    let mut shapes = Vec::new();
    for a in (1..=x).filter(|a| count.is_multiple_of((*a).into())) {
        let rest = count / usize::from(a);
        for b in (1..=y).filter(|b| rest.is_multiple_of((*b).into())) {
            match u16::try_from(rest / usize::from(b)) {
                Ok(c) if (1..=z).contains(&c) => shapes.push([a, b, c]),
                _ => {}
            }
        }
    }
    shapes.sort_by_cached_key(|sides| {
        let places = places(torus, Place { x: 0, y: 0, z: 0 }, *sides);
        (hops(torus, &places), sides.iter().max().copied())
    });
    shapes
}

fn hops(torus: Torus, places: &[Place]) -> i64 {
    let mut pull = Pull::new(torus);
    places.iter().for_each(|place| pull.add(*place, 1));
    places.iter().map(|place| pull.at(*place)).sum()
}

fn places(torus: Torus, corner: Place, sides: [u16; 3]) -> Vec<Place> {
    let along = |first: u8, side: u16, size: u16| {
        let wrapped = move |n| ((u16::from(first) + n) % size) as u8;
        (0..side).map(wrapped)
    };
    let [x, y, z] = torus.sizes();
    let mut places = Vec::new();
    for z in along(corner.z, sides[2], z) {
        for y in along(corner.y, sides[1], y) {
            places.extend(along(corner.x, sides[0], x).map(|x| Place { x, y, z }));
        }
    }
    places
}
