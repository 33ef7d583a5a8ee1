//! Flow gateways: detours of Ethernet frames until their flow is busy.

use std::fmt;
use std::str::FromStr;

use toroid_fabric::NodeId;
use toroid_fabric::model::{ClockId, Costs, FlowRule, Path, Route, Stage};

use super::route::Resource;
use super::units::serde_as_text;
use super::{DomainLinks, LinkError, LinkModel, LinkSpec, Rate, Time};

/// Costs of the detour through a gateway, written as `500us,5Gbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowGateway {
    /// Time by which each frame is longer under way.
    pub latency: Time,
    /// Rate at which the gateway takes all frames of one sender.
    pub rate: Rate,
}

/// Path of frames from one node to another through a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayPath {
    /// Route through the link and then the gateway.
    pub route: Route,
    /// When frames take the link only.
    pub rule: FlowRule,
}

impl LinkModel {
    /// The path through a gateway; `None` if frames go direct at once. RDMA always does.
    pub fn gateway_path(&self, from: NodeId, to: NodeId) -> Option<GatewayPath> {
        match self {
            LinkModel::Pairs(links) => DomainLinks::link(links, from, to).gateway_path(from, to),
            LinkModel::Torus(_) => None,
        }
    }
}

impl LinkSpec {
    /// The link without its gateway.
    pub(super) fn without_gateway(self) -> Self {
        LinkSpec {
            gateway: None,
            direct_above: None,
            idle: None,
            ..self
        }
    }

    /// Checks that the gateway's properties are complete.
    ///
    /// # Errors
    /// [`LinkError::WithoutGateway`], [`LinkError::GatewayWithout`], [`LinkError::NeverIdle`].
    pub(super) fn check_gateway(&self) -> Result<(), LinkError> {
        match (self.gateway, self.direct_above, self.idle) {
            (None, None, None) => Ok(()),
            (None, Some(_), _) => Err(LinkError::WithoutGateway("direct-above")),
            (None, None, Some(_)) => Err(LinkError::WithoutGateway("idle")),
            (Some(_), None, _) => Err(LinkError::GatewayWithout("direct-above")),
            (Some(_), Some(_), None) => Err(LinkError::GatewayWithout("idle")),
            (Some(_), Some(_), Some(Time(0))) => Err(LinkError::NeverIdle),
            (Some(_), Some(_), Some(_)) => Ok(()),
        }
    }

    fn gateway_path(&self, from: NodeId, to: NodeId) -> Option<GatewayPath> {
        let FlowGateway { latency, rate } = self.gateway?;
        let rule = FlowRule {
            above: self.direct_above?.0,
            idle: self.idle?.0,
        };
        let mut route = self.route(from, to, Path::Ethernet)?;
        route.stages.push(Stage {
            clock: ClockId::endpoint(from, Resource::FlowGateway as u8),
            costs: Costs {
                header: self.header.unwrap_or_default().into(),
                rate: rate.0,
                latency: latency.0,
                ..Costs::default()
            },
            // A gateway is a host, which forwards whole frames.
            whole: true,
        });
        Some(GatewayPath { route, rule })
    }
}

impl fmt::Display for FlowGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.latency, self.rate)
    }
}

impl FromStr for FlowGateway {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let parts = text.split_once(',');
        let (latency, rate) = parts.ok_or_else(|| LinkError::NotAGateway(text.into()))?;
        Ok(FlowGateway {
            latency: latency.parse()?,
            rate: rate.parse()?,
        })
    }
}

serde_as_text!(FlowGateway);
