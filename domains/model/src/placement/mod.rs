//! Choice of free nodes of a torus: close together, far apart or anywhere; and figures of node
//! sets.
//!
//! Pure computation. Finding the closest set is a hard problem, so the search is bounded: the most
//! compact free box, then growth from many seeds, each improved by exchanges of one node, until the
//! effort is spent. Tests compare the result with an exhaustive search.

mod boxes;
mod search;

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toroid_fabric::{NodeId, Place, Torus};

use search::Search;

/// Placement of allocated nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Close together: the least mean distance.
    #[default]
    Compact,
    /// Far apart: the greatest mean distance.
    Spread,
    /// Anywhere.
    Random,
}

crate::as_text::display_serde_name!(Policy);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::as_text::variant(text).ok_or_else(|| PolicyError(text.into()))
    }
}

/// No policy is called so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a placement: write compact, spread or random")]
pub struct PolicyError(String);

/// A wanted set of nodes.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Number of nodes.
    pub count: usize,
    /// Placement.
    pub policy: Policy,
    /// Node to which they shall be nearest, with any policy; among equally near nodes, compact sets
    /// are chosen.
    pub near: Option<NodeId>,
    /// Nodes that they join: distances to these count as those among themselves do.
    pub fellows: BTreeSet<NodeId>,
    /// Seed of [`Policy::Random`].
    pub seed: u64,
}

/// Chooses from `free`; `None` when there are fewer than wanted.
///
/// Takes 30 ms at most for a thousand nodes, and some tenths of a second for 65,534. The result is deterministic.
pub fn choose(torus: Torus, free: &BTreeSet<NodeId>, wish: &Wish) -> Option<BTreeSet<NodeId>> {
    let candidates: Vec<(NodeId, Place)> = free
        .iter()
        .filter_map(|node| Some((*node, torus.place(*node)?)))
        .collect();
    if candidates.len() < wish.count {
        return None;
    }
    let taken = match (wish.policy, wish.near) {
        (Policy::Random, None) => sample(candidates.len(), wish.count, wish.seed),
        _ => Search::new(torus, &candidates, wish).run(),
    };
    Some(taken.into_iter().map(|n| candidates[n].0).collect())
}

/// `count` different numbers below `len`, each set with the same probability.
fn sample(len: usize, count: usize, seed: u64) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..len).collect();
    let mut state = seed;
    for n in 0..count {
        let rest = (len - n) as u64;
        let chosen = n + (split_mix(&mut state) % rest) as usize;
        numbers.swap(n, chosen);
    }
    numbers.truncate(count);
    numbers
}

/// Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Size and distances of a node set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The number of nodes.
    pub size: u32,
    /// The most hops between two of them.
    pub diameter: u32,
    /// Hops, the mean over all pairs; 0 without pairs.
    pub mean_hops: f64,
}

impl Figures {
    /// Figures of `nodes`.
    pub fn of(torus: Torus, nodes: &BTreeSet<NodeId>) -> Self {
        let places: Vec<Place> = nodes.iter().filter_map(|node| torus.place(*node)).collect();
        let mut pull = Pull::new(torus);
        let mut hops = 0;
        for place in &places {
            hops += pull.at(*place);
            pull.add(*place, 1);
        }
        let pairs = places.len() * places.len().saturating_sub(1) / 2;
        Figures {
            size: places.len() as u32,
            diameter: diameter(torus, &places),
            mean_hops: hops as f64 / pairs.max(1) as f64,
        }
    }
}

fn diameter(torus: Torus, places: &[Place]) -> u32 {
    let is_opposite = |a: &Place, b: &Place| torus.distance(*a, *b) == torus.diameter();
    if let [first, others @ ..] = places
        && others.iter().any(|other| is_opposite(first, other))
    {
        return torus.diameter();
    }
    let lengths: u32 = torus.sizes().iter().map(|size| u32::from(*size)).sum();
    let steps = torus.nodes() as usize * lengths as usize;
    if places.len() * places.len() > steps {
        return diameter_by_axes(torus, places);
    }
    let mut most = 0;
    for (n, a) in places.iter().enumerate() {
        for b in &places[n + 1..] {
            most = most.max(torus.distance(*a, *b));
        }
    }
    most
}

/// The same for sets with very many pairs: the most hops from each place of the torus to the set,
/// over one dimension more in each turn.
fn diameter_by_axes(torus: Torus, places: &[Place]) -> u32 {
    let nodes = || places.iter().filter_map(|place| torus.node(*place));
    let mut farthest = vec![None; torus.nodes() as usize];
    nodes().for_each(|node| farthest[node.0 as usize] = Some(0));
    let mut stride = 1;
    for size in torus.sizes().map(usize::from) {
        let before = farthest.clone();
        for (at, most) in farthest.iter_mut().enumerate() {
            let own = at / stride % size;
            let line = at - own * stride;
            let hops = (0..size).filter_map(|other| {
                let direct = own.abs_diff(other);
                Some(before[line + other * stride]? + direct.min(size - direct))
            });
            *most = hops.max();
        }
        stride *= size;
    }
    let most = nodes().filter_map(|node| farthest[node.0 as usize]).max();
    most.unwrap_or_default() as u32
}

/// Sums of the distances from any place to all places of a set. A distance is a sum over the
/// dimensions, so one row of sums for each suffices, and adding a place changes few of them.
#[derive(Clone, Debug)]
struct Pull {
    axes: [Vec<i64>; 3],
}

impl Pull {
    /// That of no place.
    fn new(torus: Torus) -> Self {
        Pull {
            axes: torus.sizes().map(|size| vec![0; size.into()]),
        }
    }

    /// Adds a place that counts `weight` times; a negative weight takes it out.
    fn add(&mut self, place: Place, weight: i64) {
        for (axis, at) in self.axes.iter_mut().zip([place.x, place.y, place.z]) {
            let size = axis.len();
            for (n, sum) in axis.iter_mut().enumerate() {
                let direct = n.abs_diff(at.into());
                *sum += weight * direct.min(size - direct) as i64;
            }
        }
    }

    fn at(&self, place: Place) -> i64 {
        let [x, y, z] = &self.axes;
        x[usize::from(place.x)] + y[usize::from(place.y)] + z[usize::from(place.z)]
    }
}

#[cfg(test)]
mod tests;
