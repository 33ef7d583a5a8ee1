//! Connections between the agents of several hosts.
//!
//! ```text
//!   host a                                     host b
//!   agent ── session: Noise with both key pairs ── agent      control: directory, changes, tickets
//!   process ─────── data connection ────────────── agent      a provider's own protocol, sealed
//! ```
//!
//! [`opening`] is the start of both kinds of connection: 64 bytes each way, before which nothing is
//! granted. [`handshake`] authenticates a session, with the [`key_pair`] of each host and the
//! [`secret`] that all share; [`secure`] has its encryption and framing. [`data`] is the handshake of
//! data connections.

pub(crate) mod data;
pub(crate) mod handshake;
pub(crate) mod key_pair;
pub(crate) mod opening;
pub mod secret;
pub(crate) mod secure;

use std::io;

use toroid_model::host_key::PublicKey;
use toroid_protocol::wire::MAX_PAYLOAD;

/// Failure of a connection to another host's agent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Error of the system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The answer is not that of an agent.
    #[error("what answers there is no agent of Toroid")]
    NoAgent,
    /// The two sides have no version of the protocol in common.
    #[error(
        "it speaks versions {} to {} of the protocol between agents, and we {} to {}; use the same \
         release on both",
        theirs.0, theirs.1, ours.0, ours.1
    )]
    Version {
        /// Lowest and highest version of this side.
        ours: (u8, u8),
        /// Lowest and highest version of the other side.
        theirs: (u8, u8),
    },
    /// The other side is not admitted, and has another pre-shared key.
    #[error(
        "it is not admitted, and its pre-shared key is another than ours; the file that `key` \
         names must be the same, or see `toroid host admit --help`"
    )]
    WrongKey,
    /// The other side is admitted with another key.
    #[error(
        "it shows another key than the host of that name, {0}; the address may be wrong; if that host \
         has lost its data, admit its new key on the leader (`toroid host admit --help`); if it is the \
         leader, and that is its key, start this host with `--fresh`"
    )]
    OtherKey(PublicKey),
    /// This host's directory has no key of the other one, or it was removed.
    #[error("it is not admitted, see `toroid host ls`")]
    NotAdmitted,
    /// The other side has not completed the handshake of the key that it shows.
    #[error("it has not proven its key; what it sent was altered, or recorded earlier")]
    Unproven,
    /// The other side takes no more unauthenticated connections.
    #[error("it has too many connections that are not authenticated yet")]
    Busy,
    /// A data connection presented an unknown, used or expired ticket.
    #[error("the ticket of a data connection is unknown, was used, or has expired")]
    BadTicket,
    /// The two sides have no cipher for a data connection in common.
    #[error(
        "it knows not the cipher of the data connection, or only one side encrypts; use the same \
         release and the same `encryption` on both"
    )]
    Cipher,
    /// The other side of a data connection has not the secret of the ticket.
    #[error("it has not proven that it issued the ticket; look for what stands between the hosts")]
    NotTheIssuer,
    /// A record of the session was altered on its way.
    #[error("what it sent was altered on its way")]
    Altered,
    /// A message of this side is over the limit. The session goes on.
    #[error("a message of {len} bytes is over the limit of {MAX_PAYLOAD}")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// A message violates the protocol.
    #[error("malformed message: {0}")]
    Malformed(String),
}

impl SessionError {
    /// Name of the variant, without any text that the other side chooses.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            SessionError::Io(_) => "io",
            SessionError::Closed => "closed",
            SessionError::NoAgent => "no agent",
            SessionError::Version { .. } => "version",
            SessionError::WrongKey => "wrong key",
            SessionError::OtherKey(_) => "other key",
            SessionError::NotAdmitted => "not admitted",
            SessionError::Unproven => "unproven",
            SessionError::Busy => "busy",
            SessionError::BadTicket => "bad ticket",
            SessionError::Cipher => "cipher",
            SessionError::NotTheIssuer => "not the issuer",
            SessionError::Altered => "altered",
            SessionError::TooLong { .. } => "too long",
            SessionError::Malformed(_) => "malformed",
        }
    }
}
