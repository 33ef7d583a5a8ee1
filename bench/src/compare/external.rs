//! A host outside of the fabric. Nodes open connections to it through a gateway that translates
//! addresses; it opens connections to nodes through a bridge, as in the paper.

use std::net::{Ipv4Addr, SocketAddrV4};

use toroid_model::addressing::Subnet;
use toroid_model::gateway::GatewayKind;
use toroid_model::info::DomainInfo;

use super::{DOMAIN, SERVER};
use crate::cluster::{Cluster, ClusterError, Process, member};
use crate::outside::{Outside, Uplink};
use crate::worker::Order;

/// A node can have one gateway, so there is a third node. Its neighbours are both others.
pub const TORUS: &str = "3x1x1";

/// The domain of the bridge. The other gateway is that of [`DOMAIN`], at [`SERVER`].
const BRIDGED: &str = "bridged";

/// The node of the bridge.
const BRIDGE: &str = "2,0,0";

/// Uplinks, also names of their interfaces.
const NAT_UPLINK: &str = "nat-uplink";
const BRIDGE_UPLINK: &str = "bridge-uplink";

/// Addresses of the agent's host and of the host outside (for benchmarks, RFC 2544).
const NAT_ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];

const NAT_PREFIX: u8 = 30;

/// The host outside.
pub struct Host {
    pub process: Process,
    /// Its session server for nodes.
    pub server: SocketAddrV4,
    /// Address of the node [`SERVER`] for connections from outside.
    pub node: Ipv4Addr,
}

/// Connects the nodes to a host outside by both gateways.
pub fn connect(
    cluster: &mut Cluster,
    outside: &Outside,
    domain: &DomainInfo,
) -> Result<Host, ClusterError> {
    let bridged = cluster.create_domain(BRIDGED)?;
    let addresses = NAT_ADDRESSES.map(|address| Some((address, NAT_PREFIX)));
    outside.connect(&Uplink {
        name: NAT_UPLINK,
        mtu: domain.mtu,
        number: 1,
        addresses,
    })?;
    outside.connect(&Uplink {
        name: BRIDGE_UPLINK,
        mtu: bridged.mtu,
        number: 2,
        addresses: [None, Some(free_address(&bridged)?)],
    })?;
    let control = cluster.control()?;
    control.add_gateway(SERVER, DOMAIN, NAT_UPLINK, GatewayKind::Nat)?;
    control.add_gateway(BRIDGE, BRIDGED, BRIDGE_UPLINK, GatewayKind::Bridge)?;
    let mut process = outside.worker(cluster)?;
    let port = cluster.ask(&mut process, &Order::Serve)?;
    Ok(Host {
        process,
        server: SocketAddrV4::new(NAT_ADDRESSES[1], port),
        node: member(&bridged, SERVER)?.ipv4,
    })
}

/// The last address of a domain's subnet, which no node has, and the length of the prefix.
fn free_address(domain: &DomainInfo) -> Result<(Ipv4Addr, u8), ClusterError> {
    let subnet: Subnet = domain.subnet.parse().map_err(ClusterError::ours)?;
    let last = subnet.base().to_bits() + (subnet.addresses() - 2) as u32;
    Ok((Ipv4Addr::from_bits(last), subnet.prefix()))
}
