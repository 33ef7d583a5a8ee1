//! Communication domains: who may talk to whom.
//!
//! An [`agent`] holds the nodes of a host and decides. Programs administer it with
//! [`client`]; processes in nodes use the fabric with [`member`].
//!
//! [`protocol`] is what an agent and its clients say to each other, [`driver_protocol`] what it
//! and its Ethernet driver do, [`wire`] how both travel, [`lifeline`] what nodes and driver hang on. [`addressing`] computes the addresses
//! of members; [`netlink`] gives them to interfaces, from inside of their [`namespace`]. A [`gateway`] connects a domain to the outside.
//! [`hosts`] is how the agents of several hosts find and trust each other.
//! [`rdma`] is what a host is told of its RDMA adapter. [`roles`] lets one binary be all of these. [`doctor`] tells what a machine lacks.

#![forbid(unsafe_code)]

mod adapter;
pub mod addressing;
pub mod agent;
pub mod allocation;
pub mod client;
mod credentials;
pub mod declare;
pub mod directory;
pub mod doctor;
pub mod driver_protocol;
pub mod events;
pub mod explain;
pub mod gateway;
pub mod hosts;
pub mod lifeline;
pub mod member;
pub mod namespace;
pub mod netlink;
mod node;
pub mod nodeset;
mod ownership;
pub mod placement;
pub mod protocol;
pub mod quota;
pub mod rdma;
pub mod rights;
pub mod roles;
mod settings;
pub mod wire;
