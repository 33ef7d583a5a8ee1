//! Commands in nodes of other hosts: messages between the two relays of a command.
//!
//! The near relay, on the host of the caller, sends [`Notice::Start`]. Then both send frames:
//!
//! ```text
//!  0     1        5
//!  +-----+--------+---------+
//!  | tag | length | payload |   little endian
//!  +-----+--------+---------+
//! ```
//!
//! Tags 0, 1 and 2 have bytes of the command's standard input, output and error, or none at its end.
//! A sender has at most [`WINDOW`] bytes of a stream under way. Tag 3 has a [`Notice`] as JSON.

use serde::{Deserialize, Serialize};
use toroid_model::refusal::Refusal;

use crate::agent::Terminal;

/// Bytes of a stream that its receiver has not passed on yet, at most.
pub const WINDOW: usize = 256 * 1024;

/// The longest payload with bytes of a stream.
pub const MAX_DATA: usize = 32 * 1024;

/// The longest payload with a notice.
pub const MAX_NOTICE: usize = 4 << 20;

/// A standard stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Its input, or that of its terminal.
    Input,
    /// Its output, or that of its terminal.
    Output,
    /// Its error.
    Error,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Notice {
    /// First, from the near relay.
    Start(Start),
    /// Bytes of a stream were passed on.
    Passed {
        /// The stream.
        stream: Stream,
        /// The number of bytes since the last such notice.
        bytes: usize,
    },
    /// Nothing reads the stream any more.
    Closed(Stream),
    /// A signal for the command's process group.
    Signal(i32),
    /// New size of the terminal.
    Resize {
        /// Height in characters.
        rows: u16,
        /// Width in characters.
        columns: u16,
    },
    /// Last, from the far relay: the command has ended with this status.
    Exited(i32),
    /// Last, from the far relay: there is no command.
    Refused(Refusal),
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Place of the node.
    pub node: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Directories where the program is searched on the host of the node.
    pub search: String,
    /// Working directory.
    pub cwd: String,
    /// The terminal that it gets, if any.
    pub terminal: Option<Terminal>,
}
