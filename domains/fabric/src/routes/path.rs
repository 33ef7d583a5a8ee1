//! A path: the state of a packet that is under way.

use super::{RouterId, Step, Topology};

/// A path from the router where a packet is to its last router.
///
/// The hops are not stored: [`Topology::step`] computes each from the state. So a path has the same
/// size in a network of any diameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    pub(super) at: RouterId,
    pub(super) to: RouterId,
    /// Router to pass before `to`; `to` itself if there is none or it is passed.
    pub(super) via: RouterId,
    /// Bits by which the topology picks among equal links.
    pub(super) choice: u32,
    /// Hops made.
    pub(super) hop: u8,
    /// Virtual channel of the last hop.
    pub(super) channel: u8,
    /// Least class of virtual channels from here on (torus).
    pub(super) class: u8,
    pub(super) is_minimal: bool,
}

impl Path {
    pub(super) fn direct(at: RouterId, to: RouterId, choice: u32) -> Self {
        Path {
            at,
            to,
            via: to,
            choice,
            hop: 0,
            channel: 0,
            class: 0,
            is_minimal: true,
        }
    }

    pub(super) fn by(at: RouterId, via: RouterId, to: RouterId, choice: u32) -> Self {
        Path {
            via,
            is_minimal: false,
            ..Self::direct(at, to, choice)
        }
    }

    /// The router that the packet has reached.
    pub fn at(&self) -> RouterId {
        self.at
    }

    /// The last router.
    pub fn to(&self) -> RouterId {
        self.to
    }

    /// Hops made, at most 255.
    pub fn hop(&self) -> u8 {
        self.hop
    }

    /// Whether the path was chosen as a minimal one.
    pub fn is_minimal(&self) -> bool {
        self.is_minimal
    }

    /// Whether the last router is reached.
    pub fn is_at_end(&self) -> bool {
        self.at == self.to && self.via == self.to
    }

    /// Whether an intermediate router is still ahead.
    pub(super) fn is_before_via(&self) -> bool {
        self.via != self.to
    }

    #[inline]
    pub(super) fn advance(&mut self, to: RouterId, channel: u8) {
        self.at = to;
        self.channel = channel;
        self.hop = self.hop.saturating_add(1);
    }
}

/// The hops of a path.
#[derive(Debug)]
pub struct Steps<'a, T> {
    topology: &'a T,
    path: Path,
}

impl<'a, T: Topology> Steps<'a, T> {
    pub(super) fn new(topology: &'a T, path: &Path) -> Self {
        Steps {
            topology,
            path: *path,
        }
    }
}

impl<T: Topology> Iterator for Steps<'_, T> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        self.topology.step(&mut self.path)
    }
}
