//! Why a request is refused: a kind for programs, a message and a hint for people.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Reason of a refusal: a kind for programs, a message and a remedy for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// Names the thing.
    pub message: String,
    /// Remedy; may be empty.
    pub remedy: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(kind: RefusalKind, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Refusal {
            kind,
            message: message.into(),
            remedy: remedy.into(),
        }
    }

    /// The fabric has no node with this place or number.
    pub fn no_such_node(node: impl fmt::Display) -> Self {
        let message = format!("there is no node {node}");
        Refusal::new(RefusalKind::NotFound, message, "see `toroid node ls`")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Kinds of refusal; each has an exit status of `toroid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The request is malformed or impossible.
    Invalid,
    /// No such node, domain, key or listener.
    NotFound,
    /// It exists already.
    Exists,
    /// Not permitted, not a member, or a right is missing.
    Denied,
    /// Not permitted any more: the node is leaving the domain.
    Leaving,
    /// A limit was reached: memory, descriptors, names, addresses.
    Exhausted,
    /// The versions differ.
    Version,
    /// The agent or the system failed.
    Failed,
}
