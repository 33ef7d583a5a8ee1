//! Two interfaces of one name in two network namespaces, alone on their link.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use toroid_netlink::{Netlink, NetlinkError};

/// Prefix length of a subnet with two addresses.
const PREFIX: u8 = 30;

/// Sets MTU and address of both interfaces, and brings them up.
///
/// # Errors
/// [`NetlinkError`]; only root of the host may enter other namespaces.
pub fn configure(
    name: &str,
    networks: [&File; 2],
    mtu: u32,
    addresses: [Ipv4Addr; 2],
) -> Result<(), NetlinkError> {
    for (network, address) in networks.into_iter().zip(addresses) {
        let mut netlink = Netlink::open_in(network.as_fd())?;
        let index = netlink.index(name)?;
        netlink.set_mtu(index, mtu)?;
        netlink.add_address(index, address.into(), PREFIX)?;
        netlink.set_up(index)?;
    }
    Ok(())
}

/// Sets the transmit queue length of both interfaces to that of `model`, an interface in the first
/// namespace: a longer queue loses fewer packets.
///
/// # Errors
/// [`NetlinkError`].
pub fn queue_like(model: &str, name: &str, networks: [&File; 2]) -> Result<(), NetlinkError> {
    let packets = Netlink::open_in(networks[0].as_fd())?
        .link(model)?
        .queue_len;
    for network in networks {
        let mut netlink = Netlink::open_in(network.as_fd())?;
        let index = netlink.index(name)?;
        netlink.set_queue_len(index, packets)?;
    }
    Ok(())
}
