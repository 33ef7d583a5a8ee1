//! Checks of new gateways by the hosts of their nodes, as only these know their interfaces.

use std::time::Duration;

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::gateway::Gateway;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::Request;
use toroid_protocol::hosts::{HostRequest, HostResponse};

use crate::core::changes::usable_node;
use crate::core::host::Host;

/// Time for the answer of the other host.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Checks, before a change that adds a gateway, that the host of its node has the uplink. All else is
/// for the leader to refuse.
pub(crate) fn check(host: &Host, actor: Actor, request: &Request) -> Result<(), Refusal> {
    let (
        Some(cluster),
        Actor::Administrator(_),
        Request::GatewayAdd {
            node,
            domain,
            uplink,
            kind,
        },
    ) = (&host.cluster, actor, request)
    else {
        return Ok(());
    };
    let directory = host.members.directory(Directory::clone);
    let Ok(id) = usable_node(&directory, actor, node) else {
        return Ok(());
    };
    let gateway = Gateway {
        node: id.0,
        uplink: uplink.clone(),
        kind: *kind,
    };
    let Some(carrier) = host.carrier(id) else {
        return check_own(host, domain, gateway);
    };
    let domain = domain.clone();
    let query = HostRequest::Gateway { domain, gateway };
    match host.link_to(cluster, &carrier)?.ask(query, TIMEOUT) {
        Ok(HostResponse::Refused(refusal)) => Err(refusal),
        Ok(_) => Ok(()),
        Err(error) => Err(Refusal::new(
            RefusalKind::Failed,
            format!("host {carrier}, which carries node {node}: {error}"),
            "see `toroid status`",
        )),
    }
}

/// Answers another host.
pub(super) fn answer(host: &Host, domain: &str, gateway: Gateway<u32>) -> HostResponse {
    let checked = check_own(host, domain, gateway);
    checked.map_or_else(HostResponse::Refused, |()| HostResponse::Done)
}

fn check_own(host: &Host, domain: &str, gateway: Gateway<u32>) -> Result<(), Refusal> {
    let gateway = Gateway {
        node: NodeId(gateway.node),
        uplink: gateway.uplink,
        kind: gateway.kind,
    };
    host.check_gateway(domain, &gateway)
}
