//! How the agents of several hosts talk to each other.
//!
//! ```text
//!   host a                                     host b
//!   agent ── session: Noise with the shared key ── agent      control: directory, changes, tickets
//!   process ─────── data connection ────────────── agent      a provider's own protocol
//! ```
//!
//! [`opening`] is what both kinds of connection begin with: 64 bytes each way, before which nobody
//! is given anything. [`secure`] is a session's encryption and framing, [`messages`] what is said
//! in one, [`secret`] the key and [`config`] the file that says who the others are. Who follows
//! whom is the agent's business.

pub(crate) mod opening;
pub mod secret;
pub(crate) mod secure;

use std::io;

/// Why a connection to another host's agent could not be had, or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The system's.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has ended it.
    #[error("the connection was closed")]
    Closed,
    /// What answers there is no agent.
    #[error("what answers there is no agent of Toroid")]
    NoAgent,
    /// No version that both speak.
    #[error(
        "it speaks versions {} to {} of the protocol between agents, and we {} to {}; use the same \
         release on both",
        theirs.0, theirs.1, ours.0, ours.1
    )]
    Version {
        /// The lowest and the highest of ours.
        ours: (u8, u8),
        /// Of theirs.
        theirs: (u8, u8),
    },
    /// The other side has another key, or somebody between the two has altered something.
    #[error("its pre-shared key is another than ours; the file that `key` names must be the same")]
    WrongKey,
    /// The other side takes no more connections.
    #[error("it has too many connections that are not authenticated yet")]
    Busy,
    /// A data connection presented what is no ticket any more.
    #[error("the ticket of a data connection is unknown, was used, or has expired")]
    BadTicket,
    /// What was received in a session cannot be what was sent.
    #[error("what it sent was altered on its way")]
    Altered,
    /// What was received makes no sense.
    #[error("malformed message: {0}")]
    Malformed(String),
}

impl SessionError {
    /// Which one it is, without what the other side can choose in it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            SessionError::Io(_) => "io",
            SessionError::Closed => "closed",
            SessionError::NoAgent => "no agent",
            SessionError::Version { .. } => "version",
            SessionError::WrongKey => "wrong key",
            SessionError::Busy => "busy",
            SessionError::BadTicket => "bad ticket",
            SessionError::Altered => "altered",
            SessionError::Malformed(_) => "malformed",
        }
    }
}
