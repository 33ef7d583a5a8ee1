//! The private protocols of Toroid: one module for each, and the framing that all share.
//!
//! | module | between |
//! |---|---|
//! | [`agent`] | an agent and its clients: administrators, and processes in nodes |
//! | [`command`] | the two relays of a command in a node of another host |
//! | [`driver`] | an agent and its Ethernet driver |
//! | [`fdstore`] | an agent and its file descriptor store |
//! | [`hosts`] | the agents of two hosts |
//! | [`node`] | an agent and the first process of a node |
//! | [`proxy`] | an agent and its target proxy |
//!
//! [`seal`] has the keys of a sealed connection with another host. [`wire`] frames messages with
//! descriptors over Unix sockets; [`liveness`] ties a process to the holders of the other end.

#![forbid(unsafe_code)]

pub mod agent;
pub mod command;
pub mod driver;
pub mod fdstore;
pub mod hosts;
pub mod liveness;
pub mod node;
pub mod proxy;
pub mod seal;
pub mod wire;
