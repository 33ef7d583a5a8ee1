//! Links of the routes between one pair of nodes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::model::{ClockId, LinkClocks, MAX_BACKLOG, Nanos};
use crate::routes::{self, LinkId, Topology, TorusNetwork};

/// Most non-minimal routes of a pair that are kept. All of a pair in a torus of 8x8x8 are about 1,100;
/// in one of 16x16x16 they are more, and then some are computed again.
const MAX_ROUTES: usize = 4096;

/// Choices of minimal routes: an order of dimensions, and ways round where both are equal.
const MINIMAL: usize = 64;

/// The links of some routes between one pair of nodes.
pub(super) struct Candidates {
    /// By [`TorusNetwork::minimal_choice`]. Equal routes share their links.
    minimal: [Option<Arc<[LinkId]>>; MINIMAL],
    /// Places in `links`.
    known: HashMap<u64, usize, BuildHasherDefault<KeyHasher>>,
    /// Of non-minimal routes.
    links: Vec<Arc<[LinkId]>>,
}

/// A hash of one word (Knuth, volume 3, 6.4).
#[derive(Default)]
struct KeyHasher(u64);

impl Candidates {
    /// The links of a path.
    #[inline]
    pub(super) fn links(&mut self, network: &TorusNetwork, path: &routes::Path) -> &Arc<[LinkId]> {
        if path.is_minimal() {
            return self.minimal(network, path);
        }
        let key = network.key(path);
        let place = match self.known.get(&key) {
            Some(place) => *place,
            None => self.keep(key, network, path),
        };
        &self.links[place]
    }

    /// The links of a minimal path: a place in memory without a search, as all messages look at two.
    #[inline]
    fn minimal(&mut self, network: &TorusNetwork, path: &routes::Path) -> &Arc<[LinkId]> {
        let choice = TorusNetwork::minimal_choice(path);
        if self.minimal[choice].is_none() {
            self.keep_minimal(choice, network, path);
        }
        // There is one by now.
        self.minimal[choice].get_or_insert_default()
    }

    #[cold]
    fn keep_minimal(&mut self, choice: usize, network: &TorusNetwork, path: &routes::Path) {
        let links: Arc<[LinkId]> = network.steps(path).map(|step| step.link).collect();
        let mut kept = self.minimal.iter().flatten();
        let equal = kept.find(|kept| **kept == links).cloned();
        self.minimal[choice] = Some(equal.unwrap_or(links));
    }

    /// Nanoseconds for which the first byte of a message that leaves at `now` would wait at the links
    /// of a path. A wait of `limit` or more may be longer than the result.
    #[inline]
    pub(super) fn wait(
        &mut self,
        network: &TorusNetwork,
        path: &routes::Path,
        clocks: LinkClocks<'_>,
        mut wait: Wait,
        limit: Nanos,
    ) -> Nanos {
        if path.is_minimal() {
            // All links: an early end is mispredicted more often than a few clocks are worth.
            let links = self.minimal(network, path);
            links.iter().for_each(|link| wait.pass(clocks, *link));
        } else {
            network.pass_links(path, |link| {
                wait.pass(clocks, link);
                wait.so_far() < limit
            });
        }
        wait.so_far().min(MAX_BACKLOG)
    }

    #[cold]
    fn keep(&mut self, key: u64, network: &TorusNetwork, path: &routes::Path) -> usize {
        if self.links.len() >= MAX_ROUTES {
            self.known.clear();
            self.links.clear();
        }
        let links = network.steps(path).map(|step| step.link).collect();
        self.known.insert(key, self.links.len());
        self.links.push(links);
        self.links.len() - 1
    }
}

impl Default for Candidates {
    fn default() -> Self {
        Candidates {
            minimal: [const { None }; MINIMAL],
            known: HashMap::default(),
            links: Vec::new(),
        }
    }
}

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // Tables take the low bits for the place and the high ones for a tag.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// The wait of the first byte of a message at links that it passes one after another.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    now: Nanos,
    latency: Nanos,
    /// The byte is as late as if it had left then.
    leaves: Nanos,
    /// Latency of the links so far.
    way: Nanos,
}

impl Wait {
    /// The wait of a message that leaves at `now` over links of a latency.
    pub(super) fn new(now: Nanos, latency: Nanos) -> Self {
        Wait {
            now,
            latency,
            leaves: now,
            way: 0,
        }
    }

    /// A link delays the byte until it is free. The link is reached when the byte has left the earlier
    /// ones.
    #[inline]
    fn pass(&mut self, clocks: LinkClocks<'_>, link: LinkId) {
        let free = reserved_until(clocks, link);
        self.leaves = self.leaves.max(free.saturating_sub(self.way));
        self.way += self.latency;
    }

    #[inline]
    fn so_far(&self) -> Nanos {
        self.leaves - self.now
    }
}

#[inline]
pub(super) fn reserved_until(clocks: LinkClocks<'_>, link: LinkId) -> Nanos {
    clocks.reserved_until(link.0, || ClockId::hop(TorusNetwork::hop(link)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Clocks, SharedClocks, TICKS};
    use crate::routes::RouterId;

    const NETWORKS: [[u32; 3]; 4] = [[4, 4, 2], [8, 8, 8], [5, 3, 1], [2, 1, 6]];

    fn paths(network: &TorusNetwork, random: &mut fastrand::Rng) -> [routes::Path; 2] {
        let mut router = || RouterId(random.u32(..network.routers()));
        let (from, to) = (router(), router());
        [
            network.minimal(from, to, random.u64(..)),
            network.non_minimal(from, to, random.u64(..)),
        ]
    }

    #[test]
    fn kept_links_are_those_of_the_path() {
        let mut random = fastrand::Rng::with_seed(5);
        for sizes in NETWORKS {
            let network = TorusNetwork::new(sizes).unwrap();
            for _ in 0..20 {
                let [one, _] = paths(&network, &mut random);
                let mut candidates = Candidates::default();
                for _ in 0..5_000 {
                    let choice = random.u64(..);
                    let path = match random.bool() {
                        true => network.minimal(one.at(), one.to(), choice),
                        false => network.non_minimal(one.at(), one.to(), choice),
                    };
                    let links: Vec<_> = network.steps(&path).map(|step| step.link).collect();
                    assert_eq!(candidates.links(&network, &path)[..], links);
                }
            }
        }
    }

    #[test]
    fn links_are_passed_in_the_order_of_the_steps_until_told() {
        let mut random = fastrand::Rng::with_seed(8);
        for sizes in NETWORKS {
            let network = TorusNetwork::new(sizes).unwrap();
            for _ in 0..10_000 {
                for path in paths(&network, &mut random) {
                    let links = network.steps(&path).map(|step| step.link);
                    let links: Vec<_> = links.take(random.usize(1..16)).collect();
                    let mut passed = Vec::new();
                    network.pass_links(&path, |link| {
                        passed.push(link);
                        passed.len() < links.len()
                    });
                    assert_eq!(passed, links);
                }
            }
        }
    }

    #[test]
    fn all_routes_of_a_pair_in_8x8x8_are_kept() {
        let network = TorusNetwork::new([8, 8, 8]).unwrap();
        let mut random = fastrand::Rng::with_seed(6);
        for to in [1, 4, 36, 292, 511].map(RouterId) {
            let mut candidates = Candidates::default();
            for _ in 0..100_000 {
                let choice = random.u64(..);
                candidates.links(&network, &network.minimal(RouterId(0), to, choice));
                candidates.links(&network, &network.non_minimal(RouterId(0), to, choice));
            }
            let kept = candidates.links.len();
            assert!((510..MAX_ROUTES / 2).contains(&kept), "{kept} to {to:?}");
        }
    }

    #[test]
    fn the_wait_is_the_sum_of_the_waits_link_by_link() {
        const NOW: Nanos = 1_000_000;
        const LATENCY: Nanos = 70;
        let mut random = fastrand::Rng::with_seed(7);
        for sizes in NETWORKS {
            let network = TorusNetwork::new(sizes).unwrap();
            let clocks = SharedClocks::map(&SharedClocks::create().unwrap()).unwrap();
            let mut waited = 0;
            for _ in 0..1_000 {
                for path in paths(&network, &mut random) {
                    let links: Vec<_> = network.steps(&path).map(|step| step.link).collect();
                    let clock = |link| ClockId::hop(TorusNetwork::hop(link));
                    if let Some(link) = random.choice(&links) {
                        let ready = (NOW + random.u64(..2_000)) * TICKS;
                        clocks.reserve(clock(*link), ready, random.u64(..200_000), u64::MAX);
                    }
                    let found = |limit| {
                        let clocks = clocks.links(network.links());
                        let wait = Wait::new(NOW, LATENCY);
                        Candidates::default().wait(&network, &path, clocks, wait, limit)
                    };
                    let (mut head, mut waits) = (NOW, 0);
                    for link in &links {
                        // A message that takes no time.
                        let start = clocks.reserve(clock(*link), head * TICKS, 0, u64::MAX);
                        let wait = start.unwrap() / TICKS - head;
                        waits += wait;
                        head += wait + LATENCY;
                    }
                    assert_eq!(found(Nanos::MAX), waits);
                    assert_eq!(found(waits + 1), waits);
                    let limit = random.u64(1..4_000);
                    assert_eq!(found(limit) >= limit, waits >= limit);
                    waited += waits;
                }
            }
            assert!(waited > 0);
        }
    }
}
