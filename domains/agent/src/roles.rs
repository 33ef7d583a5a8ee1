//! Roles that a program takes on when it executes itself with a hidden argument.
//!
//! A binary that starts agents calls [`run_if_asked`] first in `main`, before threads, logging and
//! the parsing of arguments: only a single-threaded process can enter a user namespace, as an
//! ordinary user's agent does, and nodes shall be small.

use std::env;

use crate::exec::{self, FAR_ROLE, NEAR_ROLE};
use crate::nodes::{bind, courier, node, trial};
use crate::start::background;
use crate::{fdstore, proxy};

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs an agent; its state directory follows.
    Agent,
    /// Holds what outlives an agent; the agent's state directory follows.
    FdStore,
    /// Serves processes of other hosts.
    TargetProxy,
    /// Carries a caller's descriptors to a node.
    FdCourier,
    /// Relays a command to another host.
    NearRelay,
    /// Relays a command of another host to a node.
    FarRelay,
    /// Makes a mount of a caller's directory for a node.
    Binder,
    /// The first process of a node; the configuration follows as JSON.
    NodeInit,
    /// Makes a node on trial.
    Trial,
}

/// Role named by the first argument, if any.
pub fn asked() -> Option<Role> {
    match env::args_os().nth(1)?.to_str()? {
        background::ROLE => Some(Role::Agent),
        fdstore::ROLE => Some(Role::FdStore),
        proxy::ROLE => Some(Role::TargetProxy),
        courier::ROLE => Some(Role::FdCourier),
        NEAR_ROLE => Some(Role::NearRelay),
        FAR_ROLE => Some(Role::FarRelay),
        bind::ROLE => Some(Role::Binder),
        node::init::ROLE => Some(Role::NodeInit),
        trial::ROLE => Some(Role::Trial),
        _ => None,
    }
}

impl Role {
    /// Takes on the role until it ends; returns the exit status.
    pub fn run(self) -> u8 {
        let config = env::args_os().nth(2).unwrap_or_default();
        let config = config.to_string_lossy();
        match self {
            Role::Agent => background::run_role(),
            Role::FdStore => fdstore::run_role(),
            Role::TargetProxy => proxy::run_role(),
            Role::FdCourier => courier::run_role(),
            Role::NearRelay => exec::run_near(),
            Role::FarRelay => exec::run_far(),
            Role::Binder => bind::run_role(),
            Role::NodeInit => node::init::run_role(&config),
            Role::Trial => trial::run_role(),
        }
    }
}

/// Takes on the role named by the first argument and returns its exit status; `None` at once
/// without one.
pub fn run_if_asked() -> Option<u8> {
    asked().map(Role::run)
}
