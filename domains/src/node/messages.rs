//! What an agent and the first process of a node say to each other.
//!
//! A command has a session of its own (see [`crate::lifeline`]). The agent says [`Start`] on it and
//! hands its end to whoever wants the command; from then on that is between the caller and the
//! node: signals and the end of the command, in the messages of [`crate::protocol`].

use serde::{Deserialize, Serialize};

/// The argument of the role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InitConfig {
    /// The soft limit of descriptors for commands.
    pub(crate) open_files: u64,
}

/// First on a session: starts a command. Its standard input, output and error come along.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
}

/// On the lifeline, to the agent that made the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// The node is ready, apart from what the kernel did not allow.
    Ready { warnings: Vec<String> },
}
