//! Addresses at which agents of hosts reach each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// An address in its only form: no IPv4 address within an IPv6 one, no zone, no flow label.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Checks that other hosts can reach an agent at an address, as far as the address shows.
///
/// # Errors
/// What the address does.
pub fn check_address(address: SocketAddr) -> Result<(), &'static str> {
    let ip = address.ip().to_canonical();
    if ip.is_unspecified() {
        Err("names all interfaces")
    } else if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Err("is that of many hosts")
    } else if matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        Err("is valid on one link only")
    } else if address.port() == 0 {
        Err("names no port")
    } else {
        Ok(())
    }
}
