//! Requests of this host's processes about nodes on other hosts.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use toroid_fabric::{NodeId, Place};
use toroid_model::directory::Directory;
use toroid_model::rdma::Rdma;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Reply, Request};
use toroid_protocol::hosts::{NodePair, TicketPurpose};
use toroid_protocol::proxy::{Carriage, ProxyRequest};

use crate::core::host::Host;
use crate::members::AttachmentId;
use crate::proxy::supervisor::ProxySupervisor;
use crate::sessions::lookup::remote_listeners;

/// Whether a request concerns a node on another host.
pub(super) fn is_remote(host: &Host, request: &Request) -> bool {
    match request {
        Request::Reach { place, .. } | Request::Connect { place, .. } => {
            let node = host.torus.node(*place);
            node.is_some_and(|node| host.is_elsewhere(node))
        }
        _ => false,
    }
}

/// Serves such a request, or a lookup on all hosts. Returns the reply, unless it has been sent.
pub(crate) fn serve(
    host: &Arc<Host>,
    id: AttachmentId,
    request: &Request,
) -> Result<Option<Reply>, Refusal> {
    match request {
        Request::Reach { domain, place } => reach(host, id, domain, *place, None).map(|()| None),
        Request::Connect {
            domain,
            place,
            protocol,
        } => reach(host, id, domain, *place, Some(*protocol)).map(|()| None),
        Request::Lookup { domain, protocol } => {
            let (partition, node) = host.members.lock().membership(id, domain)?;
            let mut nodes = host.members.listening(partition, node, *protocol);
            nodes.extend(remote_listeners(host, partition, node, *protocol));
            let places = host.places(&nodes);
            Ok(Some(Reply::Listeners { places }))
        }
        _ => Ok(None),
    }
}

/// Connects a process with the host of the node at `place`, and replies with its end.
fn reach(
    host: &Host,
    id: AttachmentId,
    domain: &str,
    place: Place,
    protocol: Option<u16>,
) -> Result<(), Refusal> {
    let (partition, from, to) = host.members.lock().partner(id, domain, place)?;
    let (Some(proxy), Some(carrier)) = (&host.proxy, host.carrier(to)) else {
        let message = format!("no host carries node {place}");
        return Err(Refusal::new(
            RefusalKind::NotFound,
            message,
            "see `toroid node ls`",
        ));
    };
    let wanted = TicketPurpose::Node(NodePair {
        from: from.0,
        to: to.0,
        partition: partition.0,
        protocol,
    });
    let (remote, keys) = host.data_connection(&carrier, wanted)?;
    let remote = OwnedFd::from(remote);
    let (ours, theirs) = UnixStream::pair().map_err(|error| {
        let message = format!("no descriptor for a connection: {error}");
        Refusal::new(
            RefusalKind::Exhausted,
            message,
            "raise `ulimit -n` of the agent",
        )
    })?;
    let carriage = Carriage {
        from: from.0,
        partition: partition.0,
        packets: protocol.is_some(),
        keys,
    };
    let ends = [remote.as_fd(), theirs.as_fd()];
    proxy.order(&ProxyRequest::Carry(carriage), &ends)?;
    let rdma = host.rdma();
    host.members
        .grant_remote(id, domain, place, rdma, ours.into())
}

impl Host {
    /// Host of a node, if that is another one.
    pub(crate) fn carrier(&self, node: NodeId) -> Option<String> {
        if self.cluster.is_none() || self.node(node).is_some() {
            return None;
        }
        let carrier = |directory: &Directory| directory.host_of(node).map(str::to_owned);
        self.members.directory(carrier)
    }

    /// RDMA device for other hosts.
    pub(crate) fn rdma(&self) -> Option<Rdma> {
        self.cluster.as_ref()?.config.rdma.clone()
    }

    /// Ends device registrations for these nodes, whose grants end without their processes' help.
    /// For remote nodes that process is the target proxy, which has not acknowledged: an RDMA
    /// device ignores fences and may still access registered memory. The kernel ends the
    /// registrations with the proxy, which has ended when this returns.
    pub(crate) fn invalidate_registrations(&self, nodes: &BTreeSet<NodeId>) {
        let is_remote = |node: &NodeId| self.node(*node).is_none();
        if nodes.iter().any(is_remote)
            && let Some(proxy) = &self.proxy
            && proxy.may_have_registrations()
        {
            tracing::warn!("the process for other hosts is late, so another takes its place");
            proxy.kill();
        }
    }

    /// Does the same for grants of the predecessor to a process that has not come back. A proxy
    /// started by this agent has none of those.
    pub(crate) fn invalidate_inherited_registrations(&self, nodes: &BTreeSet<NodeId>) {
        if self
            .proxy
            .as_deref()
            .is_some_and(ProxySupervisor::is_inherited)
        {
            self.invalidate_registrations(nodes);
        }
    }

    /// Whether a node is on another host.
    pub(super) fn is_elsewhere(&self, node: NodeId) -> bool {
        self.carrier(node).is_some()
    }
}
