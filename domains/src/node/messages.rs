//! What an agent and the first process of a node say to each other.

use serde::{Deserialize, Serialize};

/// The argument of the role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InitConfig {
    /// The soft limit of descriptors for commands.
    pub(crate) open_files: u64,
}

/// From the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Starts a command; three descriptors come along. Answered by [`Report::Exited`] when it
    /// has ended, also when it could not be started.
    Start {
        exec: u64,
        argv: Vec<String>,
        env: Vec<(String, String)>,
        cwd: String,
    },
    /// To the command's process group, if it still runs.
    Signal { exec: u64, signal: i32 },
    /// Nobody wants the command any more: ends its process group.
    End { exec: u64 },
}

/// To the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// First: the node is ready, apart from what the kernel did not allow.
    Ready { warnings: Vec<String> },
    /// A command has ended: its exit status, or 128 + the signal that killed it.
    Exited { exec: u64, status: i32 },
}
