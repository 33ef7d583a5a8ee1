//! What an agent and its keeper say to each other.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of what is kept: of these messages, of the records, and of what nodes and drivers
/// understand. An agent takes over only what is of its own.
pub(super) const VERSION: u32 = 5;

/// From an agent, or from whoever ends what an agent has left.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(super) enum Request {
    /// Who is there? Answered by [`Answer::Keeper`].
    Hello,
    /// Keeps the descriptors that come along, in place of others under this key.
    Put { key: String, record: Value },
    /// Another record for what is under this key, if there is something.
    Note { key: String, record: Value },
    /// Forgets what is under this key.
    Remove { key: String },
    /// Answered by an [`Answer::Entry`] for each, and [`Answer::End`].
    List,
    /// Forgets everything and ends. The end of the connection is the answer.
    End,
}

/// From the keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum Answer {
    /// This is it.
    Keeper { version: u32, pid: u32 },
    /// Something kept, with its descriptors.
    Entry { key: String, record: Value },
    /// There is no more.
    End,
}
