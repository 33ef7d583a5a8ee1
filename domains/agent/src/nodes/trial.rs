//! Trial nodes: `toroid doctor` makes one like an agent, and ends it at once.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use toroid_fabric::Place;
use toroid_model::refusal::Refusal;

use super::node::Plan;
use super::users::Users;
use super::{cgroups, rootless};
use crate::error::{AgentError, during};

/// Argument of the role: makes a node on trial.
pub(crate) const ROLE: &str = "__trial";

/// Makes a node in a process of its own, because an ordinary user's agent enters a user namespace
/// first, and ends it. Nothing remains.
///
/// # Errors
/// The reason why an agent of this user could not make nodes, and the remedy.
pub fn make_node() -> Result<(), Refusal> {
    let started = Command::new("/proc/self/exe")
        .arg(ROLE)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let failed = during("try to make a node");
    let output = started.map_err(|error| failed(error).refusal())?;
    match (
        output.status.success(),
        serde_json::from_slice(&output.stdout),
    ) {
        (true, _) => Ok(()),
        (false, Ok(refusal)) => Err(refusal),
        (false, Err(_)) => Err(failed(io::Error::other(output.status.to_string())).refusal()),
    }
}

/// Checks that an agent of this user could limit the memory and the processes of nodes.
///
/// # Errors
/// The reason, and the remedy.
pub fn limit_nodes() -> Result<(), Refusal> {
    cgroups::try_out().map_err(|error| error.refusal())
}

/// The other side of [`make_node`]; returns the exit status.
pub(crate) fn run_role() -> u8 {
    let Err(error) = make_here() else {
        return 0;
    };
    let refusal = serde_json::to_string(&error.refusal()).unwrap_or_default();
    // If this fails, its parent still gets the status.
    let _ = io::stdout().write_all(refusal.as_bytes());
    1
}

fn make_here() -> Result<(), AgentError> {
    let identity = rootless::enter(None)?;
    let has_users = !identity.rootless && Users::are_mapped().map_err(AgentError::Users)?;
    let place = Place { x: 0, y: 0, z: 0 };
    let plan = Plan {
        place,
        hosts: "/etc/hosts".into(),
        open_files: 1024,
        shares_tmp: false,
        temporary_bytes: 1 << 20,
        groups: Vec::new(),
    };
    // Nothing runs there, so no range of users is reserved.
    let made = plan.make(has_users.then_some(Users::LAST));
    let mut node = made.map_err(|error| AgentError::Node {
        place,
        action: error.action,
        source: error.source,
    })?;
    // They fail when it has ended already.
    let _ = node.init.kill();
    let _ = node.init.wait();
    Ok(())
}
