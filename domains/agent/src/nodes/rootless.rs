//! An ordinary user's agent: root in a user namespace of its own.
//!
//! There it may make network, mount and PID namespaces. It has one uid, so its nodes are separated
//! for convenience, not against malice.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid};
use serde::{Deserialize, Serialize};

use crate::error::AgentError;

/// User of the agent, as seen from outside.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The effective user.
    pub(crate) uid: u32,
    /// Whether a user namespace was needed.
    pub(crate) rootless: bool,
}

/// Makes this process root: it is root already, or enters a user namespace, the predecessor's if
/// there is one. It must have a single thread.
pub(crate) fn enter(kept: Option<OwnedFd>) -> Result<Identity, AgentError> {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    if !uid.is_root() {
        let entered = match kept {
            Some(namespace) => setns(namespace, CloneFlags::CLONE_NEWUSER).map_err(Into::into),
            None => become_root(uid, gid),
        };
        entered.map_err(AgentError::UserNamespace)?;
    }
    Ok(Identity {
        uid: uid.as_raw(),
        rootless: !uid.is_root(),
    })
}

fn become_root(uid: Uid, gid: Gid) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // The kernel lets a process map its group only after it has given up setgroups(2).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}
