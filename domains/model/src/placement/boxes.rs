//! Boxes: the sets that are compact by construction.

use toroid_fabric::{Place, Torus};

/// Places of boxes of one shape that are looked at.
const MAX_STEPS: usize = 4_000_000;

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
        // All corners of a thousand nodes, some of a large torus.
        let step = 1 + corners.len() * count / MAX_STEPS;
        let candidates = corners.into_iter().step_by(step).filter_map(whole);
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
    shapes.sort_by_cached_key(|sides| (hops(torus, *sides), sides.iter().max().copied()));
    shapes
}

/// Sum of the distances from each place of a box to each.
fn hops(torus: Torus, sides: [u16; 3]) -> u64 {
    let count: u64 = sides.iter().map(|side| u64::from(*side)).product();
    let along = |(side, size): (u16, u16)| -> u64 {
        let from = |a: u16| (0..side).map(move |b| a.abs_diff(b).min(size - a.abs_diff(b)));
        let sum: u64 = (0..side).flat_map(from).map(u64::from).sum();
        // Places that have the same coordinate.
        let others = count / u64::from(side);
        sum * others * others
    };
    sides.into_iter().zip(torus.sizes()).map(along).sum()
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

#[cfg(test)]
mod tests {
    use super::super::Pull;
    use super::*;

    #[test]
    fn hops_of_a_box_are_those_of_all_its_pairs() {
        let torus: Torus = "7x4x3".parse().unwrap();
        for sides in [[1, 1, 1], [2, 3, 1], [7, 4, 3], [5, 1, 2]] {
            let places = places(torus, Place { x: 6, y: 1, z: 2 }, sides);
            let mut pull = Pull::new(torus);
            places.iter().for_each(|place| pull.add(*place, 1));
            let all: i64 = places.iter().map(|place| pull.at(*place)).sum();
            assert_eq!(hops(torus, sides) as i64, all, "{sides:?}");
        }
    }
}
