//! The dragonfly of Cray Aries: groups of chassis of routers.
//!
//! Within a chassis each router has one link to each other router (row); within a group each router
//! has [`COPIES`] links to each router at the same place of another chassis (column). Each pair of
//! groups has the same number of global links, spread evenly over the routers of both groups.
//!
//! A minimal path has one global link at most: up to two hops, a global link, two hops. A
//! non-minimal path between groups goes by a router of a third group, up to ten hops. A non-minimal
//! path within a group goes by another router of the group, up to four hops.
//!
//! The virtual channel is the number of the hop. It rises on any path, so channels form no cycle.

use super::divisor::Divisor;
use super::{
    Ends, LinkId, LinkKind, NetworkError, Path, RouterId, Step, Topology, one_of, pick, without,
};
use crate::topology::NodeId;

/// Links between two routers of a column.
const COPIES: u32 = 3;

/// Global ports of a router.
const GLOBAL_PORTS: u32 = 10;

/// Most hops of a path.
const MAX_HOPS: u8 = 10;

/// A dragonfly, written `dragonfly:GROUPSxCHASSISxROUTERSxNODES:LINKS`, with the number of global
/// links of each pair of groups at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dragonfly {
    groups: u32,
    chassis: u32,
    /// Routers of a chassis.
    blades: u32,
    /// Nodes of a router.
    nodes: u32,
    /// Global links of a pair of groups.
    global: u32,
    /// Routers of a group.
    size: u32,
    /// Links of a router within its group.
    ports: u32,
    by_size: Divisor,
    by_nodes: Divisor,
    by_global: Divisor,
    /// Step from the router of a global port to that of the next; coprime to `size`.
    stride: u32,
    spots: Vec<Spot>,
}

/// Where a router is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    group: u16,
    chassis: u8,
    blade: u8,
}

impl Dragonfly {
    /// The most routers.
    pub const MAX_ROUTERS: u64 = 1 << 20;

    /// The most routers of a group.
    pub const MAX_GROUP: u32 = 4096;

    /// The most nodes.
    pub const MAX_NODES: u64 = 1 << 24;

    /// Groups of 6 chassis of 16 routers of 4 nodes, as of Cray XC, with as many global links as the
    /// ports allow.
    ///
    /// # Errors
    /// As [`Dragonfly::new`].
    pub fn aries(groups: u32) -> Result<Self, NetworkError> {
        Self::new([groups, 6, 16, 4], None)
    }

    /// A dragonfly of `[groups, chassis, routers, nodes]` with `global` links for each pair of groups
    /// or, by default, as many as the ports allow.
    ///
    /// # Errors
    /// [`NetworkError`] for a size of 0, for too many routers, and for more global links than ports.
    pub fn new(
        [groups, chassis, blades, nodes]: [u32; 4],
        global: Option<u32>,
    ) -> Result<Self, NetworkError> {
        let sizes = [groups, chassis, blades, nodes];
        if sizes.contains(&0) || global == Some(0) {
            return Err(NetworkError::Zero);
        }
        let routers = [groups, chassis, blades]
            .iter()
            .fold(1_u64, |product, n| product.saturating_mul((*n).into()));
        let is_wide = chassis > 256 || blades > 256 || chassis * blades > Self::MAX_GROUP;
        if routers > Self::MAX_ROUTERS || is_wide || groups > 1 << 16 {
            return Err(NetworkError::TooManyRouters(Self::MAX_ROUTERS));
        }
        if routers.saturating_mul(nodes.into()) > Self::MAX_NODES || nodes > 1 << 16 {
            return Err(NetworkError::TooLarge(Self::MAX_NODES));
        }
        let size = chassis * blades;
        let most = size * GLOBAL_PORTS / (groups - 1).max(1);
        let global = global.unwrap_or(most);
        if groups > 1 && (global == 0 || global > most) {
            return Err(NetworkError::TooManyGlobalLinks { groups, most });
        }
        let global = if groups > 1 { global } else { 0 };
        let of = |n: u32| Spot {
            group: (n / size) as u16,
            chassis: (n % size / blades) as u8,
            blade: (n % blades) as u8,
        };
        Ok(Dragonfly {
            groups,
            chassis,
            blades,
            nodes,
            global,
            size,
            ports: blades - 1 + COPIES * (chassis - 1),
            by_size: Divisor::new(size),
            by_nodes: Divisor::new(nodes),
            by_global: Divisor::new(global.max(1)),
            stride: stride(size),
            spots: (0..groups * size).map(of).collect(),
        })
    }

    /// The numbers of groups, of chassis of a group, of routers of a chassis, of nodes of a router.
    pub fn sizes(&self) -> [u32; 4] {
        [self.groups, self.chassis, self.blades, self.nodes]
    }

    /// The number of groups.
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Global links of each pair of groups, in each direction.
    pub fn global_links(&self) -> u32 {
        self.global
    }

    /// The group of a router.
    pub fn group(&self, router: RouterId) -> u32 {
        self.spot(router).group.into()
    }

    fn spot(&self, router: RouterId) -> Spot {
        self.spots[router.0 as usize]
    }

    /// Number of `other` among the other groups of `group`.
    fn rank(group: u32, other: u32) -> u32 {
        other - u32::from(other > group)
    }

    /// The router of `group` with the `n`th link to another group.
    fn gateway(&self, group: u32, other: u32, n: u32) -> RouterId {
        let port = Self::rank(group, other) * self.global + n;
        let place = self.by_size.divide(port).1 * self.stride;
        RouterId(group * self.size + self.by_size.divide(place).1)
    }

    /// The `n`th link from `group` to another group.
    fn global_link(&self, group: u32, other: u32, n: u32) -> LinkId {
        let pair = group * (self.groups - 1) + Self::rank(group, other);
        LinkId(self.spots.len() as u32 * self.ports + pair * self.global + n)
    }

    /// The link of a path to another group: all links of the pair for any source, by its choice.
    #[inline]
    fn number(&self, choice: u32, target: RouterId) -> u32 {
        let number = pick(choice, 0, self.global) + target.0;
        self.by_global.divide(number).1
    }

    /// The hop towards another router of the same group.
    #[inline]
    fn local(&self, at: RouterId, to: RouterId, choice: u32) -> (LinkId, RouterId) {
        let (from, goal) = (self.spot(at), self.spot(to));
        let is_row_first = choice >> 31 == 0;
        let is_row = from.chassis == goal.chassis || is_row_first && from.blade != goal.blade;
        let first = at.0 * self.ports;
        let (from_chassis, from_blade) = (u32::from(from.chassis), u32::from(from.blade));
        if is_row {
            let other = u32::from(goal.blade);
            let port = other - u32::from(other > from_blade);
            (LinkId(first + port), RouterId(at.0 + other - from_blade))
        } else {
            let other = u32::from(goal.chassis);
            let copy = pick(choice, 15, COPIES);
            let port = (other - u32::from(other > from_chassis)) * COPIES + copy;
            let router = at.0 + other * self.blades - from_chassis * self.blades;
            (LinkId(first + self.blades - 1 + port), RouterId(router))
        }
    }

    /// An intermediate router: of a third group or, within a group, another of the group.
    fn intermediate(&self, from: RouterId, to: RouterId, choice: u64) -> Option<RouterId> {
        let random = (choice >> 32) as u32;
        let (a, b) = (self.group(from), self.group(to));
        if from == to {
            return None;
        }
        if a == b {
            let first = a * self.size;
            let others = self.size.checked_sub(2).filter(|n| *n > 0)?;
            let n = one_of(random, others);
            return Some(RouterId(first + without(n, from.0 - first, to.0 - first)));
        }
        let others = self.groups.checked_sub(2).filter(|n| *n > 0)?;
        let n = one_of(random, others * self.size);
        let (group, router) = (n / self.size, n % self.size);
        Some(RouterId(without(group, a, b) * self.size + router))
    }

    fn local_distance(&self, from: RouterId, to: RouterId) -> u32 {
        let (from, to) = (self.spot(from), self.spot(to));
        u32::from(from.chassis != to.chassis) + u32::from(from.blade != to.blade)
    }
}

impl Topology for Dragonfly {
    fn nodes(&self) -> u32 {
        self.routers() * self.nodes
    }

    fn routers(&self) -> u32 {
        self.spots.len() as u32
    }

    #[inline]
    fn router(&self, node: NodeId) -> RouterId {
        RouterId(self.by_nodes.divide(node.0).0)
    }

    fn links(&self) -> u32 {
        self.routers() * self.ports + self.groups * (self.groups - 1) * self.global
    }

    fn ends(&self, link: LinkId) -> Ends {
        let local = self.routers() * self.ports;
        if let Some(global) = link.0.checked_sub(local) {
            let (pair, n) = (global / self.global, global % self.global);
            let (group, rank) = (pair / (self.groups - 1), pair % (self.groups - 1));
            let other = rank + u32::from(rank >= group);
            return Ends {
                from: self.gateway(group, other, n),
                to: self.gateway(other, group, n),
            };
        }
        let (from, port) = (link.0 / self.ports, link.0 % self.ports);
        let spot = self.spot(RouterId(from));
        let (chassis, blade) = (u32::from(spot.chassis), u32::from(spot.blade));
        let to = match port.checked_sub(self.blades - 1) {
            None => from + port + u32::from(port >= blade) - blade,
            Some(port) => {
                let other = port / COPIES;
                let other = other + u32::from(other >= chassis);
                from + other * self.blades - chassis * self.blades
            }
        };
        Ends {
            from: RouterId(from),
            to: RouterId(to),
        }
    }

    fn kind(&self, link: LinkId) -> LinkKind {
        if link.0 >= self.routers() * self.ports {
            LinkKind::Global
        } else if link.0 % self.ports < self.blades - 1 {
            LinkKind::Row
        } else {
            LinkKind::Column
        }
    }

    fn channels(&self) -> u8 {
        MAX_HOPS
    }

    fn distance(&self, from: RouterId, to: RouterId) -> u32 {
        let (a, b) = (self.group(from), self.group(to));
        if a == b {
            return self.local_distance(from, to);
        }
        let ways = (0..self.global).map(|n| {
            let (exit, entry) = (self.gateway(a, b, n), self.gateway(b, a, n));
            self.local_distance(from, exit) + 1 + self.local_distance(entry, to)
        });
        ways.min().unwrap_or(0)
    }

    #[inline]
    fn minimal(&self, from: RouterId, to: RouterId, choice: u64) -> Path {
        Path::direct(from, to, choice as u32)
    }

    fn non_minimal(&self, from: RouterId, to: RouterId, choice: u64) -> Path {
        match self.intermediate(from, to, choice) {
            Some(via) => Path::by(from, via, to, choice as u32),
            None => self.minimal(from, to, choice),
        }
    }

    fn divert(&self, path: &Path, is_minimal: bool, choice: u64) -> Option<Path> {
        let new = if is_minimal {
            self.minimal(path.at, path.to, choice)
        } else {
            let via = self.intermediate(path.at, path.to, choice)?;
            Path::by(path.at, via, path.to, choice as u32)
        };
        let fits = u32::from(path.hop) + self.hops(&new) <= MAX_HOPS.into();
        fits.then_some(Path {
            hop: path.hop,
            channel: path.channel,
            ..new
        })
    }

    #[inline]
    fn step(&self, path: &mut Path) -> Option<Step> {
        if path.at == path.via {
            if !path.is_before_via() {
                return None;
            }
            path.via = path.to;
            // Other bits pick the links of the second half.
            path.choice = path.choice.wrapping_mul(0x9e37_79b1);
        }
        let (here, there) = (self.group(path.at), self.group(path.via));
        let n = || self.number(path.choice, path.via);
        let (link, router) = if here == there {
            self.local(path.at, path.via, path.choice)
        } else {
            let n = n();
            let exit = self.gateway(here, there, n);
            if path.at == exit {
                (
                    self.global_link(here, there, n),
                    self.gateway(there, here, n),
                )
            } else {
                self.local(path.at, exit, path.choice)
            }
        };
        let channel = path.hop;
        path.advance(router, channel);
        Some(Step { link, channel })
    }
}

/// A step near the golden section of `size` that is coprime to it: neighbouring global ports are
/// then far apart in the group.
fn stride(size: u32) -> u32 {
    let golden = (f64::from(size) * 0.618) as u32;
    (golden.max(1)..).find(|n| gcd(*n, size) == 1).unwrap_or(1)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
