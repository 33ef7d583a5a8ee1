//! Addresses at which agents of hosts reach each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

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
    } else if address.port() == 0 {
        Err("names no port")
    } else {
        Ok(())
    }
}
