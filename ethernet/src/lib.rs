//! Ethernet over the fabric: in each node one interface per domain, for software that knows only
//! sockets.
//!
//! One driver per host holds every TAP of that host. Frames between two of its nodes go from TAP
//! to TAP. From the bytes up:
//!
//! * [`address`], [`frame`]: what a frame says of itself.
//! * [`neighbour`]: answers to ARP requests and IPv6 neighbour solicitations.
//! * [`forward`]: which of a partition's members a frame reaches; a decision, without I/O.

#![deny(unsafe_code)]

pub mod address;
pub mod forward;
pub mod frame;
pub mod neighbour;
