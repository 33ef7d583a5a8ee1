//! Ports of members for the Ethernet driver.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use toroid_fabric::{NodeId, Place, Torus};
use toroid_model::addressing::{IPV6_PREFIX, ipv6, mac};
use toroid_model::directory::{Directory, Domain};
use toroid_model::ethernet::EthernetPath;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_netlink::{Netlink, NetlinkError};
use toroid_protocol::driver::{Port, PortError};

use super::host::{Host, find};
use crate::cluster::Cluster;
use crate::interfaces::Interfaces;
use crate::net::driver::{PlacedPort, RemotePort};
use crate::net::gateways::ways::Ways;
use crate::net::gateways::{own_way_out, way_out};
use crate::nodes::HostedNode;

pub(crate) fn log_errors(errors: &[PortError]) {
    for error in errors {
        tracing::warn!(
            "port of node {} in domain {}: {}",
            error.node,
            error.domain_id,
            error.message
        );
    }
}

pub(super) fn delete_interface(node: &HostedNode, name: &str) -> Result<(), NetlinkError> {
    let mut netlink = Netlink::open_in(node.network().as_fd())?;
    match netlink.index(name) {
        Ok(index) => netlink.delete(index),
        Err(NetlinkError::NoSuchLink(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Ports of all members on this host.
pub(crate) fn ports(
    directory: &Directory,
    nodes: &[HostedNode],
    interfaces: Interfaces,
    ways: &Ways,
) -> Vec<PlacedPort> {
    let of = |domain: &Domain| {
        let members = domain.members.keys();
        let members = members.filter_map(|id| find(nodes, *id));
        let placed = members.filter_map(|node| {
            let port = port(domain, node, directory.torus(), interfaces, ways)?;
            Some((port, node.network()))
        });
        placed.collect::<Vec<_>>()
    };
    directory.domains().flat_map(of).collect()
}

/// Ports of members on other hosts, of domains that this host has members of.
pub(crate) fn remote_ports(
    directory: &Directory,
    cluster: &Cluster,
    interfaces: Interfaces,
) -> Vec<RemotePort> {
    let of = |domain| remote_ports_of(domain, directory, cluster, interfaces);
    directory.domains().flat_map(of).collect()
}

pub(super) fn remote_ports_of(
    domain: &Domain,
    directory: &Directory,
    cluster: &Cluster,
    interfaces: Interfaces,
) -> Vec<RemotePort> {
    let ours = cluster.config.host.as_str();
    let host = |node: &NodeId| directory.host_of(*node);
    let is_here = domain.members.keys().any(|node| host(node) == Some(ours));
    let may_pass = is_here && cluster.check_sealed(domain).is_ok();
    let members = domain.members.keys().filter(|_| may_pass);
    let remote = members.filter_map(move |node| {
        let host = host(node).filter(|host| *host != ours)?;
        let torus = directory.torus();
        let place = (*node, torus.place(*node)?);
        // The driver of its host has its route.
        let gateway = own_way_out(domain, *node);
        let port = port_at(domain, place, torus, interfaces, gateway)?;
        Some((port, host.to_owned()))
    });
    remote.collect()
}

/// Port of a node of this host, with its way out; `None` for a node that has never been a member.
pub(super) fn port(
    domain: &Domain,
    node: &HostedNode,
    torus: Torus,
    interfaces: Interfaces,
    ways: &Ways,
) -> Option<Port> {
    let gateway = way_out(domain, node.id, ways);
    port_at(domain, (node.id, node.place), torus, interfaces, gateway)
}

fn port_at(
    domain: &Domain,
    (node, place): (NodeId, Place),
    torus: Torus,
    interfaces: Interfaces,
    gateway: Option<Ipv4Addr>,
) -> Option<Port> {
    let spec = domain.spec(node);
    Some(Port {
        node: node.0,
        place,
        domain_id: domain.id.into(),
        epoch: domain.epoch,
        ifname: domain.name.clone(),
        mac: mac(domain.id, place),
        ipv4: domain.address(node)?,
        prefix: domain.subnet.prefix(),
        nodes: domain.capacity().unwrap_or(torus.nodes()),
        ipv6: ipv6(domain.id, place),
        ipv6_prefix: IPV6_PREFIX,
        mtu: domain.mtu,
        limited: spec.limited,
        offload: interfaces.offload && !spec.no_offload,
        gateway,
        forward: domain.forward,
        stack: interfaces.is_stack(domain, node),
        rate: spec.rate,
        kernel: interfaces.kernel && is_for_kernel(domain, node),
    })
}

/// Whether frames between a member and other such members may pass through the kernel alone. The
/// driver knows when the links of the domain have a model.
fn is_for_kernel(domain: &Domain, node: NodeId) -> bool {
    let is_free = domain.ethernet != EthernetPath::Driver && domain.fence.is_none();
    is_free && domain.spec(node).without_kernel().is_none()
}

impl Host {
    /// Why no frames on this host pass through the kernel alone, if that is so.
    pub(super) fn without_kernel(&self) -> Option<String> {
        let why = match &self.driver {
            None => "the agent runs without Ethernet",
            Some(_) if self.identity.rootless => "the agent is not root's",
            Some(_) if self.interfaces.stacks => "members have no interfaces of the kernel",
            Some(_) if !self.interfaces.kernel => "the links of a torus are emulated",
            Some(_) if !self.interfaces.offload => "the agent was started without offload",
            Some(driver) => return driver.without_kernel(),
        };
        Some(why.into())
    }

    /// Refuses a domain that is set to the kernel's path and cannot have it.
    pub(super) fn check_ethernet(&self, domain: &Domain) -> Result<(), Refusal> {
        let why = domain.without_kernel().map(Into::into);
        match why.or_else(|| self.without_kernel()) {
            Some(why) if domain.ethernet == EthernetPath::Kernel => Err(Refusal::new(
                RefusalKind::Invalid,
                format!("frames cannot pass through the kernel alone: {why}"),
                "use --ethernet auto",
            )),
            _ => Ok(()),
        }
    }
}
