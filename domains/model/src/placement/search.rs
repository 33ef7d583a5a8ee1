//! Growth from seeds, and exchanges of one node while they improve the set.
//!
//! The cost of a set is the sum of the distances between its nodes, and to those that it joins.
//! The cost of exchanging `u` for `v` is `pull(v) - pull(u) - distance(u, v)`, where `pull` is the
//! sum of the distances to the set, so all exchanges can be judged without making any.
//!
//! A set that no single exchange improves need not be the best. Finally the best set is shaken: a
//! few nodes are exchanged at random, and the set is improved again.

use toroid_fabric::{Place, Torus};

use super::{NodeId, Policy, Pull, Wish, boxes, split_mix};

/// Budget of visited places and pairs, each about 1 to 2 ns.
const EFFORT: i64 = 10_000_000;

/// Maximum number of exchanges to improve one set.
const MAX_EXCHANGES: usize = 400;

/// Number of times that the best set is shaken.
const SHAKES: usize = 400;

pub(super) struct Search<'a> {
    torus: Torus,
    candidates: &'a [(NodeId, Place)],
    count: usize,
    /// 1 looks for the least cost, -1 for the greatest.
    sense: i64,
    /// Distances to the nodes that the set joins, and to the node that it shall be near.
    outer: Pull,
    effort: i64,
    best: Option<(i64, Vec<usize>)>,
}

/// A set of candidates while it changes.
struct Set {
    pull: Pull,
    inside: Vec<bool>,
}

impl<'a> Search<'a> {
    pub(super) fn new(torus: Torus, candidates: &'a [(NodeId, Place)], wish: &Wish) -> Self {
        let mut outer = Pull::new(torus);
        for fellow in wish.fellows.iter().filter_map(|node| torus.place(*node)) {
            outer.add(fellow, 1);
        }
        if let Some(near) = wish.near.and_then(|node| torus.place(node)) {
            // One hop nearer outweighs all distances of one node to the others.
            let others = (wish.count + wish.fellows.len() + 1) as i64;
            outer.add(near, others * i64::from(torus.diameter() + 1));
        }
        let apart = wish.policy == Policy::Spread && wish.near.is_none();
        Search {
            torus,
            candidates,
            count: wish.count,
            sense: if apart { -1 } else { 1 },
            outer,
            effort: EFFORT,
            best: None,
        }
    }

    pub(super) fn run(mut self) -> Vec<usize> {
        if self.count == 0 {
            return Vec::new();
        }
        if self.sense == 1 {
            self.try_box();
        }
        // In strides that soon have been everywhere.
        let len = self.candidates.len();
        let stride = stride(len);
        for n in 0..len {
            if self.effort < 0 && self.best.is_some() {
                break;
            }
            let set = self.grow(n * stride % len);
            self.improve(set);
        }
        let mut random = 0;
        for _ in 0..SHAKES {
            match self.shaken(&mut random) {
                Some(set) if self.effort > 0 => self.improve(set),
                _ => break,
            }
        }
        self.best.map(|(_, nodes)| nodes).unwrap_or_default()
    }

    fn try_box(&mut self) {
        let index = |place: Place| {
            let node = self.torus.node(place)?;
            self.candidates.binary_search_by_key(&node, |c| c.0).ok()
        };
        let is_free = |place| index(place).is_some();
        let rank = |places: &[Place]| places.iter().map(|place| self.outer.at(*place)).sum();
        if let Some(places) = boxes::best(self.torus, self.count, is_free, rank) {
            let indices: Vec<usize> = places.into_iter().filter_map(index).collect();
            let mut set = self.empty();
            indices.into_iter().for_each(|n| self.enter(&mut set, n));
            self.improve(set);
        }
    }

    fn empty(&self) -> Set {
        Set {
            pull: self.outer.clone(),
            inside: vec![false; self.candidates.len()],
        }
    }

    fn enter(&self, set: &mut Set, n: usize) {
        set.inside[n] = true;
        set.pull.add(self.candidates[n].1, 1);
    }

    fn leave(&self, set: &mut Set, n: usize) {
        set.inside[n] = false;
        set.pull.add(self.candidates[n].1, -1);
    }

    fn grow(&mut self, seed: usize) -> Set {
        let mut set = self.empty();
        self.enter(&mut set, seed);
        let len = self.candidates.len();
        // One at a time, unless that would exceed the budget.
        let at_once = 1 + self.count * len / EFFORT as usize;
        let mut inside = 1;
        while inside < self.count {
            let outside = (0..len).filter(|n| !set.inside[*n]);
            let ranked = outside.map(|n| (self.sense * set.pull.at(self.candidates[n].1), n));
            let next = least(ranked, at_once.min(self.count - inside));
            self.effort -= len as i64;
            inside += next.len();
            next.into_iter().for_each(|n| self.enter(&mut set, n));
        }
        set
    }

    /// The best set with some nodes exchanged; `None` when there are none to exchange.
    fn shaken(&mut self, random: &mut u64) -> Option<Set> {
        let mut set = self.empty();
        for n in &self.best.as_ref()?.1 {
            self.enter(&mut set, *n);
        }
        if self.count == self.candidates.len() {
            return None;
        }
        self.effort -= self.candidates.len() as i64;
        for _ in 0..2 + split_mix(random) % 3 {
            let out = any(&set, true, random)?;
            self.leave(&mut set, out);
            let into = any(&set, false, random)?;
            self.enter(&mut set, into);
        }
        Some(set)
    }

    /// Exchanges while that helps, and keeps the set if it is better than the best.
    fn improve(&mut self, mut set: Set) {
        for _ in 0..MAX_EXCHANGES {
            let Some((out, into)) = self.best_exchange(&set) else {
                break;
            };
            self.leave(&mut set, out);
            self.enter(&mut set, into);
        }
        let cost = self.sense * self.cost(&set);
        if self.best.as_ref().is_none_or(|(best, _)| cost < *best) {
            let nodes = (0..set.inside.len()).filter(|n| set.inside[*n]).collect();
            self.best = Some((cost, nodes));
        }
    }

    /// The sum over the pairs; those with nodes outside count once.
    fn cost(&self, set: &Set) -> i64 {
        let inside = (0..self.candidates.len()).filter(|n| set.inside[*n]);
        let places = inside.map(|n| self.candidates[n].1);
        places
            .map(|place| set.pull.at(place) + self.outer.at(place))
            .sum::<i64>()
            / 2
    }

    /// The best exchange, if any improves the set.
    fn best_exchange(&mut self, set: &Set) -> Option<(usize, usize)> {
        let pull = |n: usize| self.sense * set.pull.at(self.candidates[n].1);
        let all = 0..self.candidates.len();
        let (inside, outside): (Vec<_>, Vec<_>) =
            all.map(|n| (n, pull(n))).partition(|(n, _)| set.inside[*n]);
        let worst = inside.iter().map(|(_, pull)| *pull).max()?;
        let nearest = outside.iter().map(|(_, pull)| *pull).min()?;
        // No more than this is gained by the two being apart.
        let slack = match self.sense {
            1 => i64::from(self.torus.diameter()),
            _ => -1,
        };
        let leavers = inside.iter().filter(|(_, pull)| nearest - pull < slack);
        let leavers: Vec<_> = leavers.collect();
        let comers = outside.iter().filter(|(_, pull)| pull - worst < slack);
        let comers: Vec<_> = comers.collect();
        self.effort -= (self.candidates.len() + leavers.len() * comers.len()) as i64;
        if self.effort < 0 {
            return None;
        }
        let mut best = (0, None);
        for (out, pull_out) in leavers {
            for (into, pull_in) in &comers {
                let (a, b) = (self.candidates[*out].1, self.candidates[*into].1);
                let apart = i64::from(self.torus.distance(a, b));
                let gain = pull_out - pull_in + self.sense * apart;
                if gain > best.0 {
                    best = (gain, Some((*out, *into)));
                }
            }
        }
        best.1
    }
}

/// The candidates with the lowest ranks, so many of them.
fn least(ranked: impl Iterator<Item = (i64, usize)>, count: usize) -> Vec<usize> {
    if count == 1 {
        return ranked.min().map(|(_, n)| n).into_iter().collect();
    }
    let mut ranked: Vec<_> = ranked.collect();
    if count < ranked.len() {
        ranked.select_nth_unstable(count);
    }
    ranked.into_iter().take(count).map(|(_, n)| n).collect()
}

/// A candidate that is in the set, or not.
fn any(set: &Set, is_inside: bool, random: &mut u64) -> Option<usize> {
    let all = 0..set.inside.len();
    let these: Vec<usize> = all.filter(|n| set.inside[*n] == is_inside).collect();
    let chosen = split_mix(random) % these.len().max(1) as u64;
    these.get(chosen as usize).copied()
}

/// About the golden part of `len`, and without a divisor in common with it.
fn stride(len: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let from = (len * 618 / 1000).max(1);
    (from..).find(|n| gcd(*n, len) == 1).unwrap_or(1)
}
