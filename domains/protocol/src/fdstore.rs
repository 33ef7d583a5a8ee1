//! Messages between an agent and its file descriptor store, which outlives the agent.

use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of the store's socket in the state directory.
pub const SOCKET: &str = "keeper.sock";

/// Version of the stored state: of these messages, of the records, and of the protocols of nodes
/// and drivers. An agent takes over state of its own version only.
pub const VERSION: u32 = 8;

/// Request of an agent, or of a command that ends the remains of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum FdStoreRequest {
    /// The first message. Answered by [`FdStoreResponse::FdStore`].
    Hello,
    /// Keeps the descriptors that come along, in place of others under this key.
    Put {
        /// The key.
        key: String,
        /// The record that belongs to the descriptors.
        record: Value,
    },
    /// Replaces the record under this key, if there is one.
    Note {
        /// The key.
        key: String,
        /// The new record.
        record: Value,
    },
    /// Removes the entry under this key.
    Remove {
        /// The key.
        key: String,
    },
    /// Looks at the deadlines of nodes again. No answer.
    Look,
    /// Answered by an [`FdStoreResponse::Entry`] for each, and [`FdStoreResponse::End`].
    List,
    /// Forgets everything and ends. The end of the connection is the answer.
    End,
}

/// Response of the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum FdStoreResponse {
    /// The answer to [`FdStoreRequest::Hello`].
    #[serde(rename = "keeper")]
    FdStore {
        /// The store's [`VERSION`].
        version: u32,
        /// The store's process.
        pid: u32,
    },
    /// One entry, with its descriptors.
    Entry {
        /// The key.
        key: String,
        /// The record.
        record: Value,
    },
    /// The end of the list.
    End,
}

/// Whether a store of this user's runs for a state directory.
pub fn is_there(state: &Path) -> bool {
    UnixStream::connect(state.join(SOCKET)).is_ok()
}
