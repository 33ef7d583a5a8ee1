//! Links of domains with a model: what frames pay between the decision and the delivery.
//!
//! A frame pays at its sender's host. Its route is that from the sender's node to the receiver's;
//! frames from and to the external network take the route of the gateway's node. A frame for
//! several receivers is charged on the link of each. The copy for the members of another host
//! waits for the last of them. Replies of the driver itself, to queries of addresses, pay nothing.
//!
//! A GSO packet is charged as the frames that it stands for, and cut into parts of up to [`PART`]
//! at the slowest stage. Otherwise its first frames would be late. A lost frame has taken its time
//! at the stages that it has reserved.
//!
//! A flow is the frames from one node to another. With a gateway, packets of a flow take the route
//! through the gateway until the flow is [busy](Flow). They cannot overtake each other, because the
//! delay line keeps the order of a link. Flows outlive changes that leave a model, and those of
//! other members. External frames belong to no flow.
//!
//! Frames keep their time if the model changes meanwhile, and later frames of the link come after
//! them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use toroid_fabric::model::{
    ClockId, Costs, Flow, FlowPath, FlowRule, Jitter, LocalClocks, Nanos, Passage, Path, QueueFull,
    Route, SharedClocks, StageList, carry,
};
use toroid_fabric::routes::Operation;
use toroid_fabric::routing::{Leg, RouteRecords, Router};
use toroid_fabric::{NodeId, Partition};
use toroid_model::ethernet::DropReason;
use toroid_model::link::{GatewayPath, LinkModel};

use crate::delay_line::{AHEAD, Ahead, Course, DelayLine, Frame, Link};
use crate::forward::{End, Ingress, NextHop};
use crate::offload::Offload;
use crate::port::SwitchPort;

/// Longest part of a GSO packet.
const PART: Nanos = 50_000;

/// Longest wait for a link, less than the backlog that a clock counts
/// ([`MAX_BACKLOG`](toroid_fabric::model::MAX_BACKLOG)).
const LONGEST_WAIT: Nanos = 4_000_000_000;

/// Links of a domain with a model, and their clocks, which the members on this host share.
pub(crate) struct ModeledLinks {
    pub(crate) model: LinkModel,
    pub(crate) clocks: SharedClocks,
    /// Where routers count; absent if routes are not chosen.
    pub(crate) records: Option<Arc<RouteRecords>>,
}

/// Links of all domains, and the frames under way.
#[derive(Default)]
pub(super) struct Links {
    domains: HashMap<Partition, Domain>,
    pub(super) line: DelayLine,
    random: fastrand::Rng,
}

/// A domain with a model, or one whose last frames are under way.
#[derive(Default)]
struct Domain {
    links: Option<ModeledLinks>,
    /// Positions of the ways from one node to another, or with `true` by a gateway; `None` where
    /// frames pay nothing.
    known: HashMap<(NodeId, NodeId, bool), Option<usize>>,
    ways: Vec<Way>,
    /// Flows that have a gateway.
    flows: HashMap<(NodeId, NodeId), Flow>,
}

/// Way of frames from one node to another.
struct Way {
    /// The route without choice.
    route: Arc<Route>,
    /// Chooses a route for each packet.
    router: Option<Arc<Router>>,
    /// The route of the present packet.
    course: Course,
    /// Time that an empty frame takes without other traffic, by the gateway if there is one.
    alone: Nanos,
    /// Whether frames pay nothing.
    is_free: bool,
    /// Length of frames, and the number of such frames in a part of a GSO packet.
    part: (usize, usize),
    /// Of links with a gateway.
    detour: Option<Detour>,
}

/// Detour of a way through a gateway.
struct Detour {
    /// Position of the way through the gateway.
    way: usize,
    rule: FlowRule,
    flow: (NodeId, NodeId),
}

/// Arrival of a frame that has reserved its first stages.
struct Arrival {
    /// Time, at least if stages are ahead.
    due: Nanos,
    ahead: Option<Ahead>,
}

impl Arrival {
    fn at(due: Nanos) -> Self {
        Arrival { due, ahead: None }
    }
}

/// Links of one domain.
pub(super) struct DomainLinks<'a> {
    domain: &'a mut Domain,
    line: &'a mut DelayLine,
    random: &'a mut fastrand::Rng,
}

impl Links {
    /// Sets the links of a domain; `None`: those of the machine.
    pub(super) fn set(&mut self, partition: Partition, links: Option<ModeledLinks>) {
        let former = self.domains.remove(&partition);
        let former = former.filter(|_| links.is_some()).unwrap_or_default();
        let domain = Domain {
            links,
            flows: former.flows,
            ..Domain::default()
        };
        self.domains.insert(partition, domain);
        self.forget_unused();
    }

    pub(super) fn has_model(&self, partition: Partition) -> bool {
        let domain = self.domains.get(&partition);
        domain.is_some_and(|domain| domain.links.is_some())
    }

    /// Links of a domain; `None` if its frames pay nothing.
    pub(super) fn of(&mut self, partition: Partition) -> Option<DomainLinks<'_>> {
        if self.is_empty() {
            return None;
        }
        Some(DomainLinks {
            domain: self.domains.get_mut(&partition)?,
            line: &mut self.line,
            random: &mut self.random,
        })
    }

    /// Whether all domains have the links of the machine, and no frame is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Reserves the stages that frames come to until `now`.
    pub(super) fn advance(&mut self, now: Nanos) {
        let clocks = |partition| {
            let domain: &Domain = self.domains.get(&partition)?;
            domain.links.as_ref().map(|links| &links.clocks)
        };
        self.line.advance(now, clocks);
    }

    /// Forgets the links of domains that are not among these.
    pub(super) fn retain(&mut self, wanted: &HashSet<Partition>) {
        for (partition, domain) in &mut self.domains {
            if !wanted.contains(partition) {
                *domain = Domain::default();
            }
        }
        self.forget_unused();
    }

    /// Drops the frames under way from and to one end of links of a domain.
    pub(super) fn drop_of(&mut self, partition: Partition, end: End) {
        self.line.drop_of(partition, end);
        self.forget_unused();
    }

    /// Forgets the flows from and to a node that leaves a domain.
    pub(super) fn forget_flows(&mut self, partition: Partition, node: NodeId) {
        if let Some(domain) = self.domains.get_mut(&partition) {
            let stays = |(from, to): (NodeId, NodeId)| from != node && to != node;
            domain.flows.retain(|flow, _| stays(*flow));
        }
    }

    /// Records a frame that left at `left`, after `polled` nanoseconds of polling.
    pub(super) fn record(&mut self, link: &Link, frame: &Frame, left: Nanos, polled: Nanos) {
        let domain = self.domains.get(&link.partition);
        match domain.map(|domain| (&domain.links, frame.clock)) {
            Some((Some(ModeledLinks { clocks, .. }), Some(clock))) => {
                let (late, took) = (left - frame.due, left - frame.sent);
                clocks.record(clock, Path::Ethernet, late, took, polled);
            }
            Some((None, _)) => self.forget_unused(),
            _ => {}
        }
    }

    /// Forgets domains without a model whose frames have left.
    fn forget_unused(&mut self) {
        let line = &self.line;
        self.domains
            .retain(|partition, domain| domain.links.is_some() || line.holds_any_of(*partition));
    }
}

impl DomainLinks<'_> {
    /// Time at which the next frame of any domain is due.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.line.next_due()
    }

    /// Takes a packet for its next hop. Returns the number of its frames; `None` if the packet pays
    /// nothing and is to be delivered.
    pub(super) fn take(
        &mut self,
        ingress: &Ingress<'_, SwitchPort>,
        next_hop: &NextHop<'_, SwitchPort>,
        packet: &[u8],
    ) -> Option<usize> {
        let (from, sender) = ingress.end();
        let (partition, to) = (ingress.partition(), next_hop.end());
        let link = Link {
            partition,
            from,
            to,
        };
        let receivers = receivers(ingress, next_hop).into_iter();
        let is_external = from == End::Outside || to == End::Outside;
        let ways = receivers.filter_map(|receiver| self.domain.way(sender, receiver, is_external));
        let mut ways: Vec<usize> = ways.collect();
        if ways.is_empty() && self.pass_at_once(&link, &ways) {
            return None;
        }
        let (offload, frame) = Offload::split(packet)?;
        let (sent, len) = (SharedClocks::now(), frame.len());
        let count = offload.frames(len);
        for way in &mut ways {
            let bytes = || (0..count).map(|n| offload.frame_len(len, n) as u64).sum();
            *way = self.domain.path(*way, sent, count, bytes);
        }
        if self.pass_at_once(&link, &ways) {
            return None;
        }
        if self.is_full(&link, &ways, sent, packet.len(), count) {
            (0..count).for_each(|_| ingress.count(DropReason::QueueFull));
            return Some(count);
        }
        let most = self.frames_in_part(&ways, offload.frame_len(len, 0));
        let clock = ways.first().and_then(|way| self.domain.clock(*way));
        let mut push = |frames: Range<usize>, Arrival { due, ahead }| {
            if !frames.is_empty() {
                let frame = Frame {
                    packet: offload.part(packet, frames),
                    sent,
                    due,
                    ahead,
                    clock,
                };
                self.line.push(link, frame);
            }
        };
        let (mut part, mut last) = (0..0, Arrival::at(sent));
        for n in 0..count {
            let bytes = offload.frame_len(len, n) as u64;
            match self.domain.charge(&ways, sent, bytes, self.random) {
                Ok(arrival) if part.len() < most => (part.end, last) = (n + 1, arrival),
                Ok(arrival) => {
                    push(part, last);
                    (part, last) = (n..n + 1, arrival);
                }
                Err(reason) => {
                    push(part, last);
                    (part, last) = (n + 1..n + 1, Arrival::at(sent));
                    ingress.count(reason);
                }
            }
        }
        push(part, last);
        Some(count)
    }

    /// Whether packets on these ways pay nothing, and follow no frame under way.
    fn pass_at_once(&self, link: &Link, ways: &[usize]) -> bool {
        let is_free = |way: &usize| self.domain.ways[*way].is_free;
        ways.iter().all(is_free) && self.line.last_due(link).is_none()
    }

    /// Whether no packet of so many bytes and frames may wait for a link.
    fn is_full(
        &self,
        link: &Link,
        ways: &[usize],
        sent: Nanos,
        bytes: usize,
        frames: usize,
    ) -> bool {
        let alone = ways.iter().map(|way| self.domain.ways[*way].alone);
        let longest = alone.max().unwrap_or_default() + LONGEST_WAIT;
        let last_due = self.line.last_due(link);
        last_due.is_some_and(|due| due > sent + longest) || !self.line.has_room(link, bytes, frames)
    }

    /// Number of frames of `bytes` in a part of a GSO packet.
    fn frames_in_part(&mut self, ways: &[usize], bytes: usize) -> usize {
        let most = ways
            .iter()
            .map(|way| self.domain.ways[*way].frames_in_part(bytes));
        most.min().unwrap_or(usize::MAX)
    }
}

/// Nodes of the receivers of a packet.
fn receivers(ingress: &Ingress<'_, SwitchPort>, next_hop: &NextHop<'_, SwitchPort>) -> Vec<NodeId> {
    match next_hop {
        NextHop::Member(port, _) | NextHop::Host(_, Some(port)) => vec![NodeId(port.node)],
        NextHop::Outside(node, _) => vec![*node],
        NextHop::Host(host, None) => {
            let members = ingress.members_at(*host);
            members.map(|port| NodeId(port.node)).collect()
        }
    }
}

impl Domain {
    /// Position of the way from one node to another; `None` if frames pay nothing.
    fn way(&mut self, from: NodeId, to: NodeId, is_external: bool) -> Option<usize> {
        let ModeledLinks { model, records, .. } = self.links.as_ref()?;
        let known = self.known.entry((from, to, is_external));
        *known.or_insert_with(|| {
            let route = if is_external {
                model.external_route(from, to)?
            } else {
                model.route(from, to, Path::Ethernet)?
            };
            let mut way = Way::new(route);
            let leg = Leg {
                from,
                to,
                path: Path::Ethernet,
            };
            if !is_external && let Some(records) = records {
                let router = model.router(leg, model.routing(from, to), records);
                way.router = router.map(Arc::new);
            }
            // Flows are of members only.
            if !is_external && let Some(gateway) = model.gateway_path(from, to) {
                let GatewayPath { route, rule } = gateway;
                let through = Way::new(route);
                // Direct frames wait for those in the gateway.
                way.alone = way.alone.max(through.alone);
                self.ways.push(through);
                way.detour = Some(Detour {
                    way: self.ways.len() - 1,
                    rule,
                    flow: (from, to),
                });
            }
            self.ways.push(way);
            Some(self.ways.len() - 1)
        })
    }

    /// Position of the way that a packet of `count` frames takes: `way`, or that through its
    /// gateway.
    fn path(&mut self, way: usize, now: Nanos, count: usize, bytes: impl Fn() -> u64) -> usize {
        let Some(links) = &self.links else {
            return way;
        };
        self.ways[way].choose(&links.clocks, now, &bytes);
        let Some(detour) = &self.ways[way].detour else {
            return way;
        };
        let flow = self.flows.entry(detour.flow).or_default();
        let path = flow.send(&detour.rule, now, bytes());
        let switches = path != flow.path();
        if let Some(clock) = self.clock(way) {
            let frames = count as u64;
            links.clocks.record_flow(clock, path, frames, switches);
        }
        match path {
            FlowPath::Gateway => detour.way,
            FlowPath::Direct => way,
        }
    }

    /// The clock of the first stage of a way.
    fn clock(&self, way: usize) -> Option<ClockId> {
        self.ways[way].course.stage(0).map(|stage| stage.clock)
    }

    /// Charges a frame on some ways. Returns the arrival at the last receiver.
    ///
    /// # Errors
    /// The reason why the frame arrives at none.
    fn charge(
        &self,
        ways: &[usize],
        now: Nanos,
        bytes: u64,
        random: &mut fastrand::Rng,
    ) -> Result<Arrival, DropReason> {
        let Some(ModeledLinks { clocks, .. }) = &self.links else {
            return Ok(Arrival::at(now));
        };
        let ways = ways.iter().map(|way| &self.ways[*way]);
        let arrivals = ways.map(|way| way.charge(clocks, now, bytes, random));
        let last = arrivals.reduce(|one, another| match (one, another) {
            (Ok(one), Ok(another)) if one.due > another.due => Ok(one),
            (Ok(_), Ok(another)) => Ok(another),
            (Ok(arrival), Err(_)) | (Err(_), Ok(arrival)) => Ok(arrival),
            (Err(reason), Err(_)) => Err(reason),
        });
        last.unwrap_or(Ok(Arrival::at(now)))
    }
}

impl Way {
    fn new(route: Route) -> Self {
        let idle = LocalClocks::default();
        let alone = carry(&route, &idle, 0, 0, 2 * route.jitter.reach()).arrival;
        let pays = route.stages.iter().any(|its| its.costs != Costs::default());
        let is_free = !pays && route.loss <= 0.0 && route.jitter == Jitter::None && route.base == 0;
        let route = Arc::new(route);
        Way {
            course: Course::Fixed(Arc::clone(&route)),
            route,
            router: None,
            alone,
            is_free,
            part: (0, 1),
            detour: None,
        }
    }

    /// Chooses the route of the next packet.
    fn choose(&mut self, clocks: &SharedClocks, now: Nanos, bytes: impl Fn() -> u64) {
        if let Some(router) = &self.router {
            self.course = Course::Chosen(router.send(clocks, now, bytes(), Operation::Put));
        }
    }

    /// Reserves the first stages for a frame.
    ///
    /// # Errors
    /// The reason why the frame does not arrive.
    fn charge(
        &self,
        clocks: &SharedClocks,
        now: Nanos,
        bytes: u64,
        random: &mut fastrand::Rng,
    ) -> Result<Arrival, DropReason> {
        let Way { route, course, .. } = self;
        let delay = route.jitter.draw(random);
        // Chosen routes have no limit.
        let passage = Passage::enter(route, clocks, now, bytes);
        let mut passage = passage.map_err(|QueueFull| DropReason::QueueFull)?;
        passage.advance(course, clocks, now + AHEAD);
        if route.loss > 0.0 && random.f64() < route.loss {
            return Err(DropReason::Lost);
        }
        Ok(match passage.reaches(course) {
            None => {
                course.passed(&passage);
                Arrival::at(passage.times(course, delay).arrival)
            }
            Some(due) => Arrival {
                due,
                ahead: Some(Ahead {
                    passage,
                    course: course.clone(),
                    delay,
                }),
            },
        })
    }

    /// Number of frames of `bytes` that pass the slowest stage within [`PART`], at least one. Over
    /// several stages each frame moves alone.
    fn frames_in_part(&mut self, bytes: usize) -> usize {
        if self.course.stage(1).is_some() {
            return 1;
        }
        if self.part.0 != bytes {
            let clocks = LocalClocks::default();
            let arrive = |()| carry(&self.course, &clocks, 0, bytes as u64, 0).arrival;
            let [first, second] = [(); 2].map(arrive);
            let most = PART / (second - first).max(1);
            self.part = (bytes, most.max(1) as usize);
        }
        self.part.1
    }
}

#[cfg(test)]
mod tests;
