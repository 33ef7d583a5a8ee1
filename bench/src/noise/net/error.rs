//! Errors of a conversation between two hosts.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::wire::WireError;

/// Reason for the early end of an order or a session.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A system call failed.
    #[error("cannot {action} {peer}: {source}")]
    System {
        /// The failed action, as a verb with a preposition.
        action: &'static str,
        /// The other end.
        peer: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The peer has stopped without closing its connections.
    #[error("{peer} has stopped: nothing came for {seconds} s")]
    Silent {
        /// The other end.
        peer: SocketAddr,
        /// The time-out.
        seconds: u64,
    },
    /// The peer has closed a connection early.
    #[error("{peer} has closed the connection, or has ended")]
    Closed {
        /// The other end.
        peer: SocketAddr,
    },
    /// The peer speaks another protocol, or has another key.
    #[error("{peer}: {source}")]
    Wire {
        /// The other end.
        peer: SocketAddr,
        /// The reason.
        source: WireError,
    },
    /// The peer contradicts itself or this end.
    #[error("{peer} lies: it {claim}")]
    Lie {
        /// The other end.
        peer: SocketAddr,
        /// Verb that completes the sentence.
        claim: String,
    },
    /// The server ended the session.
    #[error("{peer} refuses: {reason}")]
    Refused {
        /// The other end.
        peer: SocketAddr,
        /// The server's reason.
        reason: String,
    },
    /// A limit of the session is reached.
    #[error("the session has used up its {what}; raise the server's {option}")]
    Spent {
        /// `time` or `bytes`.
        what: &'static str,
        /// The option with the limit.
        option: &'static str,
    },
    /// A signal ends the run.
    #[error("interrupted")]
    Interrupted,
}

impl NetError {
    /// The same error after another time-out.
    pub fn after(self, time: Duration) -> Self {
        match self {
            NetError::Silent { peer, .. } => NetError::Silent {
                peer,
                seconds: time.as_secs(),
            },
            other => other,
        }
    }
}

/// The other end of a connection, for errors.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

impl Peer {
    /// Classifies an error of a system call whose time-out is [`super::PATIENCE`].
    pub fn error(self, action: &'static str, source: io::Error) -> NetError {
        let peer = self.0;
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => NetError::Silent {
                peer,
                seconds: super::PATIENCE.as_secs(),
            },
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => NetError::Closed { peer },
            _ => NetError::System {
                action,
                peer,
                source,
            },
        }
    }

    /// An error of the protocol.
    pub fn wire(self, source: WireError) -> NetError {
        NetError::Wire {
            peer: self.0,
            source,
        }
    }

    /// A contradiction.
    pub fn lie(self, claim: impl Into<String>) -> NetError {
        NetError::Lie {
            peer: self.0,
            claim: claim.into(),
        }
    }
}
