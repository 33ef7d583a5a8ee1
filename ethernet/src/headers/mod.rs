//! Headers of Ethernet frames and their payloads, as far as a switch reads them: checked views of
//! bytes that a node chose.
//!
//! * [`frame`]: the Ethernet header and VLAN tags; [`mac`]: MAC addresses of members and groups.
//! * `ipv6`: the upper-layer protocol behind extension headers.
//! * `ip_addresses`: the addresses that a packet claims for its sender, and its destination.
//! * `neighbour`: ARP requests and neighbour solicitations, and replies to them.
//! * `ra_guard`: router advertisements.
//! * [`igmp_mld`]: group membership reports and queries.

pub mod frame;
pub mod igmp_mld;
pub(crate) mod ip_addresses;
pub(crate) mod ipv6;
pub mod mac;
pub(crate) mod neighbour;
pub(crate) mod ra_guard;
