//! What an agent and the first process of a node say to each other.
//!
//! A command has a session of its own (see [`crate::lifeline`]). A porter of the agent says [`Start`] on
//! it and hands over the session of whoever wants the command; from then on that is between the caller
//! and the node: signals and the end of the command, in the messages of [`crate::protocol`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::NodeError;
use crate::protocol::{Bind, Terminal};

/// The argument of the role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InitConfig {
    /// The soft limit of descriptors for commands.
    pub(crate) open_files: u64,
    /// The name of the node as a host.
    pub(crate) name: String,
    /// The file that is `/etc/hosts` in the node.
    pub(crate) hosts: PathBuf,
    /// The first of the node's own users on the host, if it has such.
    pub(crate) users: Option<u32>,
    /// Whether `/tmp` and `/var/tmp` are the host's.
    pub(crate) shares_tmp: bool,
    /// The most that each file system for temporary files or shared memory holds.
    pub(crate) temporary_bytes: u64,
}

/// The answer to [`Report::Unshared`]: the users are there. The node's `/sys` comes along.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Mapped;

/// On a session: starts a command. Its standard input, output and error come along, then its directory
/// and its program if it has them, the mounts of its binds, and last the session of its caller.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    /// Where the program was found.
    pub(crate) program: Option<String>,
    /// Whether the directory comes along, as the node sees it.
    pub(crate) has_directory: bool,
    /// Whether the program does.
    pub(crate) has_file: bool,
    /// The terminal that its standard input is, if that is to be its controlling terminal.
    #[serde(default)]
    pub(crate) terminal: Option<Terminal>,
    #[serde(default)]
    pub(crate) binds: Vec<Bind>,
}

/// On the lifeline, to the agent that made the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// The process is in a user namespace that has no users yet.
    Unshared,
    /// The node is ready, apart from what the kernel did not allow. Its network namespace and its
    /// node socket come along.
    Ready { warnings: Vec<String> },
    /// There will be no node.
    Failed {
        action: String,
        message: String,
        /// The system's number of the error, if it has one.
        code: Option<i32>,
    },
}

impl From<&NodeError> for Report {
    fn from(error: &NodeError) -> Self {
        Report::Failed {
            action: error.action.clone(),
            message: error.source.to_string(),
            code: error.source.raw_os_error(),
        }
    }
}
