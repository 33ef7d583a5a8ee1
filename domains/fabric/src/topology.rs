//! Places: the coordinates of nodes in a 3-D torus, and distances between them.
//!
//! A [`NodeId`] is opaque to everything but this module; today it is the linear index of the
//! node's [`Place`], x fastest. Links join neighbours in each dimension and wrap around, so the
//! distance between two places is the wrapped Manhattan distance.

use std::fmt;
use std::str::FromStr;

/// A node of the fabric. An opaque number; [`Torus::place`] finds where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Coordinates in a torus, written `x,y,z`.
///
/// Each coordinate fits a byte because the interface address of a place carries it in one
/// (`06:dd:dd:xx:yy:zz`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub struct Place {
    pub x: u8,
    pub y: u8,
    pub z: u8,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.x, self.y, self.z)
    }
}

/// Direction of a link of a torus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Direction {
    XUp,
    XDown,
    YUp,
    YDown,
    ZUp,
    ZDown,
}

impl Direction {
    /// All directions, in the order of their numbers (`direction as usize`).
    pub const ALL: [Direction; 6] = [
        Direction::XUp,
        Direction::XDown,
        Direction::YUp,
        Direction::YDown,
        Direction::ZUp,
        Direction::ZDown,
    ];
}

/// A directed link of a torus, between neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Node whose link it is.
    pub from: NodeId,
    /// Direction of the link.
    pub direction: Direction,
}

/// Why a text is not a place or a torus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Not three numbers.
    #[error("\"{0}\" is not a place: write x,y,z, for example 0,1,0")]
    NotAPlace(String),
    /// Not three sizes.
    #[error("\"{0}\" is not a torus: write XxYxZ with each from 1 to 256, for example 2x2x2")]
    NotATorus(String),
    /// More nodes than a torus may have.
    #[error("a torus of {0} nodes is too large: at most {max} are possible", max = Torus::MAX_NODES)]
    TooLarge(u64),
}

impl FromStr for Place {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let [x, y, z] = three(text, ',').ok_or_else(|| TopologyError::NotAPlace(text.into()))?;
        Ok(Place { x, y, z })
    }
}

/// The shape of a 3-D torus, written `XxYxZ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Torus {
    x: u16,
    y: u16,
    z: u16,
}

impl Torus {
    /// The most nodes of a torus: what a /16 subnet can address.
    pub const MAX_NODES: u64 = 65_534;

    /// A torus of `x` by `y` by `z` nodes, each size from 1 to 256.
    ///
    /// # Errors
    /// [`TopologyError::NotATorus`] for a size of 0 or above 256, [`TopologyError::TooLarge`]
    /// above [`Torus::MAX_NODES`] nodes.
    pub fn new(x: u16, y: u16, z: u16) -> Result<Self, TopologyError> {
        if [x, y, z].iter().any(|n| !(1..=256).contains(n)) {
            return Err(TopologyError::NotATorus(format!("{x}x{y}x{z}")));
        }
        let nodes = u64::from(x) * u64::from(y) * u64::from(z);
        if nodes > Self::MAX_NODES {
            return Err(TopologyError::TooLarge(nodes));
        }
        Ok(Torus { x, y, z })
    }

    /// The sizes in x, y and z.
    pub fn sizes(&self) -> [u16; 3] {
        [self.x, self.y, self.z]
    }

    /// The number of nodes.
    pub fn nodes(&self) -> u32 {
        u32::from(self.x) * u32::from(self.y) * u32::from(self.z)
    }

    /// Whether `place` is in this torus.
    pub fn contains(&self, place: Place) -> bool {
        u16::from(place.x) < self.x && u16::from(place.y) < self.y && u16::from(place.z) < self.z
    }

    /// The node at `place`, or `None` outside the torus.
    pub fn node(&self, place: Place) -> Option<NodeId> {
        let (x, y, z) = (u32::from(place.x), u32::from(place.y), u32::from(place.z));
        self.contains(place)
            .then(|| NodeId(x + u32::from(self.x) * (y + u32::from(self.y) * z)))
    }

    /// The place of `node`, or `None` if the torus has no such node.
    pub fn place(&self, node: NodeId) -> Option<Place> {
        if node.0 >= self.nodes() {
            return None;
        }
        let (sx, sy) = (u32::from(self.x), u32::from(self.y));
        let coordinate = |n: u32| u8::try_from(n).ok();
        Some(Place {
            x: coordinate(node.0 % sx)?,
            y: coordinate(node.0 / sx % sy)?,
            z: coordinate(node.0 / sx / sy)?,
        })
    }

    /// Hops on a shortest path: the sum over the dimensions of the shorter way round.
    pub fn distance(&self, a: Place, b: Place) -> u32 {
        let way = |a: u8, b: u8, size: u16| {
            let direct = u32::from(a.abs_diff(b));
            direct.min(u32::from(size).saturating_sub(direct))
        };
        way(a.x, b.x, self.x) + way(a.y, b.y, self.y) + way(a.z, b.z, self.z)
    }

    /// The dimension-ordered route from one node to another: along x, then y, then z, each the
    /// shorter way, upwards if both ways are equal. `None` if the torus lacks one of the nodes.
    pub fn route(&self, from: NodeId, to: NodeId) -> Option<Vec<Hop>> {
        let (mut at, to) = (self.place(from)?, self.place(to)?);
        let mut hops = Vec::new();
        while let Some(direction) = self.next(at, to) {
            let from = self.node(at)?;
            hops.push(Hop { from, direction });
            at = self.neighbour(at, direction);
        }
        Some(hops)
    }

    /// The place behind the link of `place` in a direction.
    pub fn neighbour(&self, place: Place, direction: Direction) -> Place {
        let step = |n: u8, size: u16, up: bool| {
            let step = if up { 1 } else { size - 1 };
            ((u16::from(n) + step) % size) as u8
        };
        let Place { x, y, z } = place;
        match direction {
            Direction::XUp | Direction::XDown => Place {
                x: step(x, self.x, direction == Direction::XUp),
                ..place
            },
            Direction::YUp | Direction::YDown => Place {
                y: step(y, self.y, direction == Direction::YUp),
                ..place
            },
            Direction::ZUp | Direction::ZDown => Place {
                z: step(z, self.z, direction == Direction::ZUp),
                ..place
            },
        }
    }

    /// Direction of the first link of the dimension-ordered route; `None` at its end.
    fn next(&self, at: Place, to: Place) -> Option<Direction> {
        let way = |at: u8, to: u8, size: u16, [up, down]: [Direction; 2]| {
            let above = (u16::from(to) + size - u16::from(at)) % size;
            match above {
                0 => None,
                above if above <= size - above => Some(up),
                _ => Some(down),
            }
        };
        way(at.x, to.x, self.x, [Direction::XUp, Direction::XDown])
            .or_else(|| way(at.y, to.y, self.y, [Direction::YUp, Direction::YDown]))
            .or_else(|| way(at.z, to.z, self.z, [Direction::ZUp, Direction::ZDown]))
    }

    /// The largest distance between two places.
    pub fn diameter(&self) -> u32 {
        self.sizes().iter().map(|n| u32::from(n / 2)).sum()
    }
}

impl fmt::Display for Torus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.x, self.y, self.z)
    }
}

impl FromStr for Torus {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let [x, y, z] = three(text, 'x').ok_or_else(|| TopologyError::NotATorus(text.into()))?;
        Torus::new(x, y, z).map_err(|error| match error {
            TopologyError::NotATorus(_) => TopologyError::NotATorus(text.into()),
            other => other,
        })
    }
}

fn three<T: FromStr>(text: &str, separator: char) -> Option<[T; 3]> {
    let mut parts = text.split(separator).map(|part| part.trim().parse().ok());
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(x: u8, y: u8, z: u8) -> Place {
        Place { x, y, z }
    }

    #[test]
    fn every_node_has_its_own_place() {
        let torus = Torus::new(3, 4, 5).unwrap();
        for n in 0..torus.nodes() {
            let place = torus.place(NodeId(n)).unwrap();
            assert_eq!(torus.node(place), Some(NodeId(n)));
        }
        assert_eq!(torus.place(NodeId(60)), None);
        assert_eq!(torus.node(place(3, 0, 0)), None);
    }

    #[test]
    fn distance_takes_the_shorter_way_round() {
        let torus: Torus = "8x4x2".parse().unwrap();
        assert_eq!(torus.distance(place(0, 0, 0), place(7, 0, 0)), 1);
        assert_eq!(torus.distance(place(0, 0, 0), place(4, 2, 1)), 7);
        assert_eq!(torus.diameter(), 7);
    }

    proptest! {
        #[test]
        fn routes_are_shortest_and_ordered_by_dimension(
            sizes in (1..=9_u16, 1..=9_u16, 1..=9_u16),
            ends in (any::<u32>(), any::<u32>()),
        ) {
            let torus = Torus::new(sizes.0, sizes.1, sizes.2).unwrap();
            let (from, to) = (NodeId(ends.0 % torus.nodes()), NodeId(ends.1 % torus.nodes()));
            let hops = torus.route(from, to).unwrap();
            let (start, end) = (torus.place(from).unwrap(), torus.place(to).unwrap());
            prop_assert_eq!(hops.len() as u32, torus.distance(start, end));
            prop_assert!(hops.is_sorted_by_key(|hop| hop.direction));
            let mut at = start;
            for hop in &hops {
                prop_assert_eq!(torus.node(at), Some(hop.from));
                let next = torus.neighbour(at, hop.direction);
                prop_assert_eq!(torus.distance(at, next), 1);
                at = next;
            }
            prop_assert_eq!(at, end);
            let links: std::collections::BTreeSet<_> = hops.iter().collect();
            prop_assert_eq!(links.len(), hops.len());
        }
    }

    #[test]
    fn routes_take_the_shorter_way_and_ties_upwards() {
        use Direction::{XDown, XUp, YUp, ZUp};
        let torus: Torus = "5x4x2".parse().unwrap();
        let route = |to| torus.route(NodeId(0), torus.node(to).unwrap()).unwrap();
        let directions = |to| {
            route(to)
                .iter()
                .map(|hop| hop.direction)
                .collect::<Vec<_>>()
        };
        assert_eq!(directions(place(2, 2, 1)), [XUp, XUp, YUp, YUp, ZUp]);
        assert_eq!(directions(place(3, 0, 0)), [XDown, XDown]);
        assert_eq!(directions(place(0, 0, 0)), []);
        assert_eq!(torus.route(NodeId(0), NodeId(40)), None);
        assert_eq!(torus.route(NodeId(40), NodeId(0)), None);
    }

    #[test]
    fn the_largest_dimension_still_has_places() {
        let torus: Torus = "256x1x1".parse().unwrap();
        assert_eq!(torus.place(NodeId(255)), Some(place(255, 0, 0)));
        assert_eq!(torus.distance(place(0, 0, 0), place(255, 0, 0)), 1);
    }

    #[test]
    fn bad_texts_are_named() {
        for text in ["", "0x2x2", "2x2", "2x2x2x2", "axbxc", "257x1x1", "-1x2x2"] {
            assert_eq!(
                text.parse::<Torus>(),
                Err(TopologyError::NotATorus(text.into()))
            );
        }
        assert_eq!(
            "256x256x1".parse::<Torus>(),
            Err(TopologyError::TooLarge(65_536))
        );
        for text in ["", "1,2", "1,2,3,4", "a,b,c", "256,0,0", "-1,0,0"] {
            assert_eq!(
                text.parse::<Place>(),
                Err(TopologyError::NotAPlace(text.into()))
            );
        }
    }
}
