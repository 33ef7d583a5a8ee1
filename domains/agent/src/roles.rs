//! Roles that a program takes on when it executes itself with a hidden argument.
//!
//! A binary that starts agents calls [`run_if_asked`] first in `main`, before threads, logging
//! and the parsing of arguments: an agent of an ordinary user enters a user namespace, which
//! only a single-threaded process can, and nodes shall be small.

use std::env;

use crate::{adapter, agent, node};

/// Runs an agent; the configuration follows as JSON.
pub const AGENT: &str = "__agent";

/// Keeps what outlives an agent; the agent's state directory follows.
pub const KEEPER: &str = "__keeper";

/// Serves processes of other hosts.
pub const ADAPTER: &str = "__adapter";

/// Carries a caller's descriptors to a node.
pub const PORTER: &str = "__porter";

/// Makes a mount of a caller's directory for a node.
pub const BINDER: &str = "__binder";

/// Is the first process of a node; the configuration follows as JSON.
pub const NODE_INIT: &str = "__node-init";

/// Makes a node on trial.
pub const TRIAL: &str = "__trial";

/// What a process was started as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// [`AGENT`].
    Agent,
    /// [`KEEPER`].
    Keeper,
    /// [`ADAPTER`].
    Adapter,
    /// [`PORTER`].
    Porter,
    /// [`BINDER`].
    Binder,
    /// [`NODE_INIT`].
    NodeInit,
    /// [`TRIAL`].
    Trial,
}

/// The role that the first argument asks for, if any.
pub fn asked() -> Option<Role> {
    match env::args_os().nth(1)?.to_str()? {
        AGENT => Some(Role::Agent),
        KEEPER => Some(Role::Keeper),
        ADAPTER => Some(Role::Adapter),
        PORTER => Some(Role::Porter),
        BINDER => Some(Role::Binder),
        NODE_INIT => Some(Role::NodeInit),
        TRIAL => Some(Role::Trial),
        _ => None,
    }
}

impl Role {
    /// Takes on the role until it ends; returns the exit status.
    pub fn run(self) -> u8 {
        let config = env::args_os().nth(2).unwrap_or_default();
        let config = config.to_string_lossy();
        match self {
            Role::Agent => agent::background::run_role(&config),
            Role::Keeper => agent::keeper::run_role(),
            Role::Adapter => adapter::run_role(),
            Role::Porter => agent::porter::run_role(),
            Role::Binder => agent::bind::run_role(),
            Role::NodeInit => node::init::run_role(&config),
            Role::Trial => agent::trial::run_role(),
        }
    }
}

/// Takes on the role that the first argument asks for and returns its exit status, or `None`
/// at once when it asks for none.
pub fn run_if_asked() -> Option<u8> {
    asked().map(Role::run)
}
