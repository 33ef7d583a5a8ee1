//! Routers: a chunk is routed, and reserves its next link.

use toroid_fabric::NodeId;
use toroid_fabric::model::VectorClocks;
use toroid_fabric::routes::{LinkId, Load, Mode, Path, Topology, choose, choose_again};

use super::{ChunkNetwork, Event, FINER, reserve};
use crate::sim::{Profile, Ticks};

impl<T: Topology> ChunkNetwork<T> {
    /// Chooses the path of a chunk between two nodes.
    pub(super) fn route(&mut self, (from, to): (NodeId, NodeId), mode: Mode) -> Path {
        let ends = (self.topology.router(from), self.topology.router(to));
        let load = load(
            &self.clocks,
            &self.profile,
            &self.topology,
            self.agenda.now(),
        );
        let random = || self.random.u64(..);
        let biases = &self.profile.biases;
        let path = choose(&self.topology, mode, ends, biases, random, load);
        self.routed.count(path.is_minimal());
        path
    }

    /// A chunk at a router reserves the next link, or the receiving card.
    #[inline]
    pub(super) fn forward(&mut self, index: u32) {
        let chunk = &mut self.chunks[index];
        if chunk.is_adaptive && chunk.path.hop() > 0 && !chunk.path.is_at_end() {
            let load = load(
                &self.clocks,
                &self.profile,
                &self.topology,
                self.agenda.now(),
            );
            let random = || self.random.u64(..);
            let biases = &self.profile.biases;
            chunk.path = choose_again(&self.topology, &chunk.path, biases, random, load);
        }
        match self.topology.step(&mut chunk.path) {
            Some(step) => {
                let stage = self.stages.link(step.link, self.topology.kind(step.link));
                reserve(&mut chunk.reach, &stage, &self.clocks, chunk.wire);
                let head = chunk.reach.head / FINER;
                self.agenda.schedule(head, Event::Router(index));
            }
            None => {
                let stage = self.stages.receiver(chunk.to);
                reserve(&mut chunk.reach, &stage, &self.clocks, chunk.wire);
                let tail = chunk.reach.tail.div_ceil(FINER);
                self.agenda.schedule(tail, Event::Arrival(index));
            }
        }
    }
}

/// What a router knows of a link: the packets for which the link is reserved.
fn load<'a>(
    clocks: &'a VectorClocks,
    profile: &'a Profile,
    topology: &'a impl Topology,
    now: Ticks,
) -> impl Fn(LinkId, u8) -> Load + 'a {
    let wire = u64::from(profile.payload + profile.header);
    move |link, _| {
        let backlog = clocks.reserved(link.0).until.saturating_sub(now * FINER) / FINER;
        let packet = profile.link(topology.kind(link)).service(wire).max(1);
        Load {
            queue: u32::try_from(backlog / packet).unwrap_or(u32::MAX),
            credits: 0,
        }
    }
}
