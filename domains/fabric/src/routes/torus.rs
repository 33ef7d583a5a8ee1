//! A 3-D torus of any size. Each node is its own router.
//!
//! A minimal path takes the dimensions in one of six orders, each the shorter way round, and either
//! way if both are equal. A non-minimal path goes by an intermediate router, x before y before z
//! before and behind it.
//!
//! # Virtual channels
//!
//! A ring has two channels: 0 while the link that wraps around is ahead, 1 otherwise (dateline; Dally
//! and Seitz, 1987). A path that takes a smaller dimension after a larger one changes to the next
//! class of channels, and so does a path at its intermediate router. Classes never fall, dimensions
//! rise within a class, and so the channels form no cycle.

use super::divisor::Divisor;
use super::{
    Ends, LinkId, LinkKind, NetworkError, Path, RouterId, Step, Topology, one_of, pick, without,
};
use crate::topology::{Direction, Hop, NodeId, Torus};

/// Classes of virtual channels: the order z, y, x takes a smaller dimension twice.
const CLASSES: u8 = 3;

/// Orders of dimensions, each with its class at each dimension.
const ORDERS: [[(u8, u8); 3]; 6] = [
    [(0, 0), (1, 0), (2, 0)],
    [(0, 0), (2, 0), (1, 1)],
    [(1, 0), (0, 1), (2, 1)],
    [(1, 0), (2, 0), (0, 1)],
    [(2, 0), (0, 1), (1, 1)],
    [(2, 0), (1, 1), (0, 2)],
];

/// First of the three bits of a choice that say which way round is taken if both are equal.
const WAYS: u32 = 16;

const WAYS_OF_ONE: u32 = 7 << WAYS;

/// A 3-D torus, written `torus:XxYxZ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TorusNetwork {
    sizes: [u32; 3],
    /// Distances of the numbers of neighbours.
    strides: [u32; 3],
    /// Of the sizes in x and y.
    divisors: [Divisor; 2],
}

impl TorusNetwork {
    /// The most nodes.
    pub const MAX_NODES: u64 = 1 << 24;

    /// The largest size.
    pub const MAX_SIZE: u32 = 1 << 16;

    /// A torus of these sizes. Nodes have numbers with x fastest, as in [`crate::Torus`].
    ///
    /// # Errors
    /// [`NetworkError`] for a size of 0 or above [`TorusNetwork::MAX_SIZE`], and for more than
    /// [`TorusNetwork::MAX_NODES`] nodes.
    pub fn new(sizes: [u32; 3]) -> Result<Self, NetworkError> {
        let nodes = sizes
            .iter()
            .try_fold(1_u64, |product, size| product.checked_mul((*size).into()));
        match nodes {
            Some(0) => Err(NetworkError::Zero),
            Some(nodes)
                if nodes <= Self::MAX_NODES && sizes.iter().all(|n| *n <= Self::MAX_SIZE) =>
            {
                Ok(Self::of(sizes))
            }
            _ => Err(NetworkError::TooLarge(Self::MAX_NODES)),
        }
    }

    fn of(sizes: [u32; 3]) -> Self {
        let [x, y, _] = sizes;
        TorusNetwork {
            sizes,
            strides: [1, x, x * y],
            divisors: [x, y].map(Divisor::new),
        }
    }

    /// The sizes in x, y and z.
    pub fn sizes(&self) -> [u32; 3] {
        self.sizes
    }

    /// The link of a hop.
    pub fn link(hop: Hop) -> LinkId {
        LinkId(hop.from.0 * 6 + hop.direction as u32)
    }

    /// The hop over a link.
    pub fn hop(link: LinkId) -> Hop {
        Hop {
            from: NodeId(link.0 / 6),
            direction: Direction::ALL[(link.0 % 6) as usize],
        }
    }

    /// Coordinates of a router.
    #[inline]
    pub fn place(&self, router: RouterId) -> [u32; 3] {
        let [by_x, by_y] = self.divisors;
        let (rest, x) = by_x.divide(router.0);
        let (z, y) = by_y.divide(rest);
        [x, y, z]
    }

    /// The router at coordinates.
    pub fn at(&self, [x, y, z]: [u32; 3]) -> RouterId {
        RouterId(x + self.sizes[0] * (y + self.sizes[1] * z))
    }

    /// A number for the links of a path that has not begun: two paths between the same routers with
    /// the same number take the same links.
    #[inline]
    pub(crate) fn key(&self, path: &Path) -> u64 {
        let (at, via) = (self.place(path.at), self.place(path.via));
        // Either way round is as long as the other one.
        let ties = |a: [u32; 3], b: [u32; 3]| {
            let is_tie = |n: usize| u32::from(2 * a[n].abs_diff(b[n]) == self.sizes[n]) << n;
            is_tie(0) | is_tie(1) | is_tie(2)
        };
        let ties = match path.is_before_via() {
            true => ties(at, via) | ties(via, self.place(path.to)) << 3,
            false => ties(at, via),
        };
        let choice = path.choice & (ties << WAYS | 7);
        u64::from(path.via.0) << 32 | u64::from(choice)
    }

    /// The choice of a minimal path among all, from 0 to 63.
    #[inline]
    pub(crate) fn minimal_choice(path: &Path) -> usize {
        (path.choice & 7 | (path.choice >> WAYS & 7) << 3) as usize
    }

    /// Calls `pass` with the links of a path that has not begun, in their order, until `pass` returns
    /// false. Computes no virtual channels, unlike [`Topology::step`].
    #[inline]
    pub(crate) fn pass_links(&self, path: &Path, mut pass: impl FnMut(LinkId) -> bool) {
        let direct = path.choice & 7;
        let continues = self.pass_leg([path.at, path.via], direct, path.choice, &mut pass);
        if continues && path.is_before_via() {
            let choice = behind_via(path.choice);
            self.pass_leg([path.via, path.to], 0, choice, &mut pass);
        }
    }

    /// As [`TorusNetwork::pass_links`], for the shortest way in an order of dimensions. Returns the last
    /// result of `pass`.
    #[inline]
    fn pass_leg(
        &self,
        [from, to]: [RouterId; 2],
        order: u32,
        choice: u32,
        pass: &mut impl FnMut(LinkId) -> bool,
    ) -> bool {
        let (start, end, mut at) = (self.place(from), self.place(to), from.0);
        for (dimension, _) in ORDERS[order as usize] {
            let n = usize::from(dimension);
            let (is_up, hops) = self.way_round(n, start[n], end[n], choice);
            let (last, stride) = (self.sizes[n] - 1, self.strides[n]);
            let link = 2 * u32::from(dimension) + u32::from(!is_up);
            // Links before the one around the ring, and distances of the routers' numbers.
            let (before, step, around) = match is_up {
                true => (last - start[n], stride, (stride * last).wrapping_neg()),
                false => (start[n], stride.wrapping_neg(), stride * last),
            };
            for hop in 0..hops {
                if !pass(LinkId(at * 6 + link)) {
                    return false;
                }
                at = at.wrapping_add(if hop == before { around } else { step });
            }
        }
        true
    }

    /// Whether the way from one place of a ring to another one is upwards, and its hops.
    #[inline]
    fn way_round(&self, n: usize, at: u32, to: u32, choice: u32) -> (bool, u32) {
        let size = self.sizes[n];
        let above = match to.checked_sub(at) {
            Some(above) => above,
            None => to + size - at,
        };
        let below = size - above;
        let is_down_on_tie = choice >> (WAYS + n as u32) & 1 == 1;
        let is_up = above < below || above == below && !is_down_on_tie;
        (is_up, if is_up { above } else { below })
    }

    /// A random router that is neither of these two.
    fn intermediate(&self, from: RouterId, to: RouterId, choice: u64) -> Option<RouterId> {
        let others = self.nodes().checked_sub(2)?;
        let is_any = others > 0 && from != to;
        is_any.then(|| {
            let n = one_of((choice >> 32) as u32, others);
            RouterId(without(n, from.0, to.0))
        })
    }
}

impl From<Torus> for TorusNetwork {
    fn from(torus: Torus) -> Self {
        TorusNetwork::of(torus.sizes().map(u32::from))
    }
}

impl Topology for TorusNetwork {
    fn nodes(&self) -> u32 {
        self.sizes.iter().product()
    }

    fn routers(&self) -> u32 {
        self.nodes()
    }

    #[inline]
    fn router(&self, node: NodeId) -> RouterId {
        RouterId(node.0)
    }

    fn links(&self) -> u32 {
        self.nodes() * 6
    }

    fn ends(&self, link: LinkId) -> Ends {
        let (from, dimension) = (RouterId(link.0 / 6), (link.0 % 6 / 2) as usize);
        let mut to = self.place(from);
        let step = if link.0.is_multiple_of(2) {
            1
        } else {
            self.sizes[dimension] - 1
        };
        to[dimension] = (to[dimension] + step) % self.sizes[dimension];
        Ends {
            from,
            to: self.at(to),
        }
    }

    fn kind(&self, _: LinkId) -> LinkKind {
        LinkKind::Torus
    }

    fn channels(&self) -> u8 {
        CLASSES * 2
    }

    fn distance(&self, from: RouterId, to: RouterId) -> u32 {
        let (from, to) = (self.place(from), self.place(to));
        let ways = (0..3).map(|n| {
            let direct = from[n].abs_diff(to[n]);
            direct.min(self.sizes[n] - direct)
        });
        ways.sum()
    }

    #[inline]
    fn minimal(&self, from: RouterId, to: RouterId, choice: u64) -> Path {
        let choice = choice as u32;
        Path::direct(from, to, pick(choice, 0, 6) | choice & WAYS_OF_ONE)
    }

    #[inline]
    fn non_minimal(&self, from: RouterId, to: RouterId, choice: u64) -> Path {
        match self.intermediate(from, to, choice) {
            Some(via) => Path::by(from, via, to, in_order(choice)),
            None => self.minimal(from, to, choice),
        }
    }

    fn divert(&self, path: &Path, is_minimal: bool, choice: u64) -> Option<Path> {
        let class = path.channel / 2 + u8::from(path.hop > 0);
        let last = class + u8::from(!is_minimal);
        if last >= CLASSES {
            return None;
        }
        let new = if is_minimal {
            Path::direct(path.at, path.to, in_order(choice))
        } else {
            let via = self.intermediate(path.at, path.to, choice)?;
            Path::by(path.at, via, path.to, in_order(choice))
        };
        Some(Path {
            hop: path.hop,
            channel: path.channel,
            class,
            ..new
        })
    }

    #[inline]
    fn step(&self, path: &mut Path) -> Option<Step> {
        if path.at == path.via && path.is_before_via() {
            path.via = path.to;
            path.class += 1;
            path.choice = behind_via(path.choice);
        }
        let (at, to) = (self.place(path.at), self.place(path.via));
        let order = &ORDERS[(path.choice & 7) as usize];
        for (dimension, class) in order {
            let n = usize::from(*dimension);
            if at[n] == to[n] {
                continue;
            }
            let size = self.sizes[n];
            let (is_up, _) = self.way_round(n, at[n], to[n], path.choice);
            let next = match (is_up, at[n]) {
                (true, at) if at + 1 == size => 0,
                (true, at) => at + 1,
                (false, 0) => size - 1,
                (false, at) => at - 1,
            };
            let wraps_ahead = if is_up { next > to[n] } else { next < to[n] };
            let channel = 2 * (path.class + class) + u8::from(!wraps_ahead);
            let link = LinkId(path.at.0 * 6 + 2 * u32::from(*dimension) + u32::from(!is_up));
            let stride = self.strides[n];
            let router = path.at.0 + stride * next - stride * at[n];
            path.advance(RouterId(router), channel);
            return Some(Step { link, channel });
        }
        None
    }

    fn hops(&self, path: &Path) -> u32 {
        self.distance(path.at, path.via) + self.distance(path.via, path.to)
    }
}

/// The order x, y, z, and six random bits for the ways round.
fn in_order(choice: u64) -> u32 {
    choice as u32 & (0x3f << WAYS)
}

/// The choice of a path behind its intermediate router: the order x, y, z, and other bits for the
/// ways round.
fn behind_via(choice: u32) -> u32 {
    choice >> 3 & WAYS_OF_ONE
}
