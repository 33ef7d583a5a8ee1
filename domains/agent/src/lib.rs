//! The agent of a host: it holds the host's nodes and decides who may talk to whom.
//!
//! [`run`] is the agent itself; [`roles`] lets one binary be all processes that it needs.
//! [`doctor`] tells what a machine lacks. The directory of domains is kept in a [`store`].

#![forbid(unsafe_code)]

mod adapter;
mod agent;
pub mod doctor;
mod events;
mod hosts;
mod node;
mod ownership;
pub mod roles;
pub mod store;

pub use agent::*;
