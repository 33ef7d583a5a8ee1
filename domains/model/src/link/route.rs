//! Routes between nodes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toroid_fabric::model::{ClockId, Costs, Jitter, Path, Route, Stage};
use toroid_fabric::routes::TorusNetwork;
use toroid_fabric::routing::{Leg, RouteRecords, Router, Stages};
use toroid_fabric::{NodeId, Torus};

use super::{DomainLinks, EthernetCosts, FabricProfile, LinkSpec, Mode, Rate, Routing, Time};
use crate::as_text;

/// A model of the network, which processes and the driver are given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkModel {
    /// Each pair of members has its own links.
    Pairs(DomainLinks),
    /// All domains share the links of a torus.
    Torus(TorusLinks),
}

/// A torus with costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorusLinks {
    /// Costs.
    pub profile: FabricProfile,
    /// Shape.
    #[serde(with = "as_text")]
    pub torus: Torus,
    /// Time that a frame takes on this machine itself, which counts as a part of the costs.
    #[serde(default)]
    pub base: Time,
    /// Choice of routes in a domain; other properties of links have no effect.
    #[serde(default, skip_serializing_if = "DomainLinks::<NodeId>::is_empty")]
    pub links: Box<DomainLinks>,
}

/// Resources of a node, each with a clock.
#[derive(Clone, Copy)]
pub(super) enum Resource {
    RdmaSender,
    EthernetHost,
    EthernetSender,
    EthernetReceiver,
    GatewayHost,
    GatewaySender,
    GatewayReceiver,
    /// Of the flows that a node sends through a gateway.
    FlowGateway,
}

impl LinkModel {
    /// The route from one node to another; `None` if the machine's own costs are all.
    pub fn route(&self, from: NodeId, to: NodeId, path: Path) -> Option<Route> {
        match self {
            LinkModel::Pairs(links) => links.link(from, to).route(from, to, path),
            LinkModel::Torus(torus) => torus.route(from, to, path),
        }
    }

    /// The way in which RDMA takes the time of that route.
    pub fn mode(&self, from: NodeId, to: NodeId) -> Mode {
        match self {
            LinkModel::Pairs(links) => links.link(from, to).mode.unwrap_or_default(),
            LinkModel::Torus(_) => Mode::Delay,
        }
    }

    /// The choice of routes from one node to another.
    pub fn routing(&self, from: NodeId, to: NodeId) -> Routing {
        match self {
            LinkModel::Pairs(_) => Routing::Off,
            LinkModel::Torus(torus) => torus.links.link(from, to).routing.unwrap_or_default(),
        }
    }

    /// A router that chooses routes, and counts in the domain's `records`; `None` if routes are not
    /// chosen.
    pub fn router(
        &self,
        leg: Leg,
        routing: Routing,
        records: &Arc<RouteRecords>,
    ) -> Option<Router> {
        let LinkModel::Torus(torus) = self else {
            return None;
        };
        let policy = routing.policy()?;
        let is_inside = |node| torus.torus.place(node).is_some();
        (leg.from != leg.to && is_inside(leg.from) && is_inside(leg.to)).then(|| {
            let stages = torus.stages(leg.from, leg.to, leg.path);
            Router::new(torus.torus, leg, stages, policy, Arc::clone(records))
        })
    }

    /// The route of frames between a member and an external network, which stands at the gateway's
    /// node; `None` if the machine's own costs are all.
    pub fn external_route(&self, from: NodeId, to: NodeId) -> Option<Route> {
        match self {
            LinkModel::Pairs(_) => self.route(from, to, Path::Ethernet),
            LinkModel::Torus(torus) => torus.external_route(from, to),
        }
    }
}

impl LinkSpec {
    /// The direct route over this link; `None` if the link has no properties for the path.
    pub fn route(&self, from: NodeId, to: NodeId, path: Path) -> Option<Route> {
        let properties = match path {
            Path::Rdma => self.without_gateway(),
            Path::Ethernet => *self,
        };
        // A mode alone takes no time.
        let mode = None;
        let is_machine = LinkSpec { mode, ..properties }.without_routing().is_empty();
        if is_machine || from == to {
            return None;
        }
        let jitter = self.jitter.map_or(Jitter::None, |jitter| jitter.0);
        let latency = self.latency.map_or(0, |latency| latency.nanos);
        let costs = Costs {
            header: self.header.unwrap_or_default().into(),
            rate: self.rate.map_or(0, |Rate(rate)| rate),
            latency: latency.saturating_sub(jitter.reach()),
            ..Costs::default()
        };
        let stage = Stage {
            clock: ClockId::pair(from, to),
            costs,
            whole: false,
        };
        Some(Route {
            stages: vec![stage],
            jitter,
            loss: self.loss.unwrap_or_default().of_one(),
            limit: self.limit.map(|limit| limit.0),
            // A link without a latency has that of the machine, to which a rate adds.
            on_top: path == Path::Ethernet || self.latency.is_none_or(|latency| latency.on_top),
            base: 0,
        })
    }
}

impl TorusLinks {
    /// The route through the torus; `None` for a node to itself or outside the torus.
    pub fn route(&self, from: NodeId, to: NodeId, path: Path) -> Option<Route> {
        let hops = self.torus.route(from, to).filter(|hops| !hops.is_empty())?;
        let links = hops.into_iter().map(TorusNetwork::link);
        Some(self.stages(from, to, path).route(links))
    }

    /// The stages of all routes from one node to another.
    fn stages(&self, from: NodeId, to: NodeId, path: Path) -> Stages {
        let profile = &self.profile;
        let (before, after, base) = match path {
            Path::Rdma => (self.rdma(from), Vec::new(), 0),
            Path::Ethernet => {
                let costs = &profile.ethernet;
                let sender = [Resource::EthernetHost, Resource::EthernetSender];
                let before = self.sender(from, costs, sender);
                let after = self.receiver(to, costs, Resource::EthernetReceiver);
                (before, after, self.base.0)
            }
        };
        Stages {
            before,
            link: Costs {
                payload: profile.payload,
                header: profile.header,
                rate: profile.rate.0,
                latency: profile.hop.0,
                ..Costs::default()
            },
            after,
            base,
        }
    }

    fn rdma(&self, node: NodeId) -> Vec<Stage> {
        let costs = Costs {
            message: self.profile.rdma.message.0,
            packet: self.profile.rdma.packet.0,
            payload: self.profile.payload,
            ..Costs::default()
        };
        vec![stage(node, Resource::RdmaSender, costs)]
    }

    /// The route through a gateway, which is beside the torus if the gateway has costs.
    fn external_route(&self, from: NodeId, to: NodeId) -> Option<Route> {
        let Some(costs) = &self.profile.gateway else {
            return self.route(from, to, Path::Ethernet);
        };
        let sender = [Resource::GatewayHost, Resource::GatewaySender];
        let mut stages = self.sender(from, costs, sender);
        stages.extend(self.receiver(to, costs, Resource::GatewayReceiver));
        Some(Route {
            stages,
            base: self.base.0,
            ..Route::default()
        })
    }

    fn sender(
        &self,
        node: NodeId,
        costs: &EthernetCosts,
        [host, card]: [Resource; 2],
    ) -> Vec<Stage> {
        let host_costs = Costs {
            message: costs.message.0,
            rate: costs.rate.map_or(0, |Rate(rate)| rate),
            ..Costs::default()
        };
        let card = stage(node, card, self.card(costs));
        vec![stage(node, host, host_costs), card]
    }

    fn receiver(&self, node: NodeId, costs: &EthernetCosts, card: Resource) -> Vec<Stage> {
        let costs = Costs {
            latency: costs.wakeup.0,
            ..self.card(costs)
        };
        vec![stage(node, card, costs)]
    }

    fn card(&self, costs: &EthernetCosts) -> Costs {
        Costs {
            packet: costs.packet.0,
            payload: self.profile.payload,
            ..Costs::default()
        }
    }
}

/// A stage at an end. Hosts and network cards begin with a message that has come as a whole.
fn stage(node: NodeId, resource: Resource, costs: Costs) -> Stage {
    Stage {
        clock: ClockId::endpoint(node, resource as u8),
        costs,
        whole: true,
    }
}
