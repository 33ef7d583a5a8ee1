//! Communication domains: who may talk to whom.
//!
//! [`protocol`] is what an agent and its clients say to each other, [`driver_protocol`] what it
//! and its Ethernet driver do, [`wire`] how both travel. [`addressing`] computes the addresses
//! of members; [`netlink`] gives them to interfaces.

#![forbid(unsafe_code)]

pub mod addressing;
pub mod driver_protocol;
pub mod member;
pub mod netlink;
pub mod protocol;
pub mod wire;
