//! Messages between an agent and the first process of a node.
//!
//! Each command has a control channel of its own (see [`crate::liveness`]). A courier of the agent
//! sends [`StartCommand`] on that channel, with the connection of the caller. Then caller and node
//! communicate directly: signals and the end of the command, in the messages of [`crate::agent`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::agent::{Bind, Terminal};

/// The argument of the role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InitConfig {
    /// The soft limit of descriptors for commands.
    pub open_files: u64,
    /// The name of the node as a host.
    pub name: String,
    /// The file that is `/etc/hosts` in the node.
    pub hosts: PathBuf,
    /// The first of the node's own users on the host, if it has such.
    pub users: Option<u32>,
    /// Whether `/tmp` and `/var/tmp` are the host's.
    pub shares_tmp: bool,
    /// The most that each file system for temporary files or shared memory holds.
    pub temporary_bytes: u64,
}

/// The answer to [`NodeEvent::Unshared`]: the users are there. The node's `/sys` comes along.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Mapped;

/// First message on a control channel: starts a command. Descriptors: its standard input, output
/// and error, then its directory and its program if present, the mounts of its binds, and last the
/// connection of its caller.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub cwd: String,
    /// Path of the program, if found.
    pub program: Option<String>,
    /// Whether the directory comes along, as the node sees it.
    pub has_directory: bool,
    /// Whether the program does.
    pub has_file: bool,
    /// The terminal that its standard input is, if that is to be its controlling terminal.
    #[serde(default)]
    pub terminal: Option<Terminal>,
    /// The directories of the caller that the command gets.
    #[serde(default)]
    pub binds: Vec<Bind>,
}

/// On the liveness socket, to the agent that made the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum NodeEvent {
    /// The process is in a user namespace that has no users yet.
    Unshared,
    /// The node is ready, apart from features that the kernel did not allow. Descriptors: its
    /// network namespace and its node socket.
    Ready {
        /// Features that the kernel did not allow, one sentence each.
        warnings: Vec<String>,
    },
    /// There will be no node.
    Failed {
        /// Failed step, as a verb and its object.
        action: String,
        /// The reason.
        message: String,
        /// Number of the system error, if there is one.
        code: Option<i32>,
    },
}
