//! Clocks of stages: until when is each reserved?

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::{MAX_BACKLOG, ticks};
use crate::topology::{Hop, NodeId};

/// Name of a clock, unique in its table and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClockId(pub(super) u64);

impl ClockId {
    /// The link from one node to another.
    pub fn pair(from: NodeId, to: NodeId) -> Self {
        Self::of(1, from, to.0)
    }

    /// A link of a torus.
    pub fn hop(hop: Hop) -> Self {
        Self::of(2, hop.from, hop.direction as u32)
    }

    /// A resource of a node itself, such as its processor for sending.
    pub fn endpoint(node: NodeId, resource: u8) -> Self {
        Self::of(3, node, resource.into())
    }

    /// A stage by its number, in a simulation whose stages are numbered.
    pub fn number(number: u32) -> Self {
        ClockId(4 << 60 | u64::from(number))
    }

    fn of(kind: u64, node: NodeId, of: u32) -> Self {
        // Numbers of nodes have 16 bits (`Torus::MAX_NODES`); 30 leave room for more.
        ClockId(kind << 60 | u64::from(node.0 & 0x3fff_ffff) << 30 | u64::from(of & 0x3fff_ffff))
    }
}

/// Times until which stages are reserved, in ticks of 1/64 ns.
pub trait Clocks {
    /// Reserves a stage for `service` ticks, from `ready` or from the end of the last reservation
    /// on, whichever is later, and returns the start. Returns `None`, and reserves nothing, if the
    /// start would be more than `wait` ticks after `ready`.
    ///
    /// A wait of more than [`MAX_BACKLOG`] counts as that long.
    fn reserve(&self, clock: ClockId, ready: u64, service: u64, wait: u64) -> Option<u64>;
}

/// Start of a reservation of a stage that is reserved until `free_at`.
pub(super) fn start(free_at: u64, ready: u64, wait: u64) -> Option<u64> {
    let start = free_at.clamp(ready, ready.saturating_add(ticks(MAX_BACKLOG)));
    (start - ready <= wait).then_some(start)
}

/// Clocks of one thread by their names, for tests.
#[derive(Clone, Debug, Default)]
pub struct LocalClocks(RefCell<HashMap<ClockId, u64>>);

impl Clocks for LocalClocks {
    fn reserve(&self, clock: ClockId, ready: u64, service: u64, wait: u64) -> Option<u64> {
        let mut clocks = self.0.borrow_mut();
        let free_at = clocks.entry(clock).or_default();
        let start = start(*free_at, ready, wait)?;
        *free_at = start.saturating_add(service);
        Some(start)
    }
}

/// Clocks of one thread by their numbers ([`ClockId::number`]), for simulation.
#[derive(Clone, Debug)]
pub struct VectorClocks(Vec<Cell<Reserved>>);

/// Reservations of a stage, in ticks of 1/64 ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reserved {
    /// End of the last one.
    pub until: u64,
    /// Sum of all.
    pub sum: u64,
}

impl VectorClocks {
    /// Clocks with the numbers below `len`, all free.
    pub fn new(len: usize) -> Self {
        VectorClocks(vec![Cell::default(); len])
    }

    /// Reservations of a stage.
    ///
    /// # Panics
    /// There is no clock of this number.
    #[inline]
    pub fn reserved(&self, number: u32) -> Reserved {
        self.0[number as usize].get()
    }
}

/// # Panics
/// A clock has no number, or one that is too large.
impl Clocks for VectorClocks {
    #[inline]
    fn reserve(&self, clock: ClockId, ready: u64, service: u64, wait: u64) -> Option<u64> {
        let number = clock.0 ^ ClockId::number(0).0;
        let cell = &self.0[number as usize];
        let Reserved { until, sum } = cell.get();
        let start = start(until, ready, wait)?;
        cell.set(Reserved {
            until: start.saturating_add(service),
            sum: sum.saturating_add(service),
        });
        Some(start)
    }
}
