//! Messages between the agents of two hosts.
//!
//! Whoever connects says [`HostMessage::Alive`], which is short and shows that the key is his, and
//! [`HostMessage::Hello`]; the other [`HostMessage::Welcome`] or [`HostMessage::Refused`]. From
//! then on both ask and answer, in any order, and say [`HostMessage::Alive`] often enough.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toroid_fabric::{NodeId, Torus};
use toroid_model::as_text;
use toroid_model::directory::Directory;
use toroid_model::directory::records::{Changes, Records};
use toroid_model::hosts::Provider;
use toroid_model::refusal::Refusal;
use toroid_model::rights::Actor;

use crate::agent::{Reply, Request};

/// A message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HostMessage {
    /// First from the host that connects.
    Hello(Hello),
    /// The answer to [`HostMessage::Hello`]: the session is accepted.
    Welcome,
    /// The answer to [`HostMessage::Hello`]: the session is refused.
    Refused(Refusal),
    /// A sign of life.
    Alive,
    /// A request.
    HostRequest {
        /// The number of the request, chosen by its sender.
        number: u64,
        /// The request.
        ask: HostRequest,
    },
    /// An answer.
    HostResponse {
        /// The number of the request.
        number: u64,
        /// The answer.
        answer: HostResponse,
    },
}

/// Who connects, to whom and what for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The version that was agreed on: the other side checks that nobody has altered it.
    pub version: u8,
    /// Its host.
    pub host: String,
    /// The host that it means.
    pub to: String,
    /// The torus of its file.
    #[serde(with = "as_text")]
    pub torus: Torus,
    /// What connects its nodes to those of others.
    pub provider: Provider,
    /// If it follows the directory of the other one.
    pub follows: Option<Claim>,
}

/// What a host brings along.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The nodes that it carries.
    pub nodes: BTreeSet<u32>,
    /// Further names of some of these.
    pub aliases: BTreeMap<String, u32>,
}

/// What one asks the other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HostRequest {
    /// Of the holder of the directory: what somebody on the other host wants changed.
    Change {
        /// The caller.
        who: Requester,
        /// The caller's process, as its own agent sees it.
        pid: Option<u32>,
        /// The request.
        request: Request,
    },
    /// Of those who follow it: to let the directory be so.
    Adopt(DirectoryUpdate),
    /// Of anybody: a ticket for a data connection.
    Ticket(TicketPurpose),
    /// Of anybody: which of its nodes listen.
    Listeners(ListenerQuery),
}

/// A directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DirectoryUpdate {
    /// All of it.
    Whole(Records),
    /// What differs from the one before.
    Changes {
        /// Records that are new or different.
        put: Records,
        /// Keys of records that are gone.
        remove: BTreeSet<String>,
    },
}

/// What a data connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TicketPurpose {
    /// A process of one host and a node of the other.
    Node(NodePair),
    /// Frames between the drivers of the two hosts.
    Frames,
}

/// What a process of one host wants of a node of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePair {
    /// The node whose process it is, of the host that asks.
    pub from: u32,
    /// The other node, of the host that is asked.
    pub to: u32,
    /// The domain.
    pub partition: u32,
    /// Packets for who listens for this protocol; otherwise operations on the node's memory.
    pub protocol: Option<u16>,
}

/// What a process of one host looks for at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerQuery {
    /// Its node, of the host that asks.
    pub from: u32,
    /// The domain.
    pub partition: u32,
    /// What others listen for.
    pub protocol: u16,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HostResponse {
    /// The request was carried out.
    Done,
    /// Done, but for something that the asking side cannot mend: what, for people.
    DoneExcept(String),
    /// The request failed and changed nothing.
    Refused(Refusal),
    /// The reply to a [`HostRequest::Change`].
    Reply(Box<Reply>),
    /// In hexadecimal digits.
    Ticket(String),
    /// Numbers of nodes.
    Nodes(BTreeSet<u32>),
}

/// Who wants something of the holder of the directory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requester {
    /// An administrator, by uid.
    Administrator(u32),
    /// Another user, by uid.
    User(u32),
    /// A node, which belonged to that user when its process asked.
    Node {
        /// The number of the node.
        node: u32,
        /// The uid of its owner.
        owner: Option<u32>,
    },
}

impl HostMessage {
    /// What it is. What is in it is for whoever it was said to, and not for logs.
    pub fn kind(&self) -> &'static str {
        match self {
            HostMessage::Hello(_) => "hello",
            HostMessage::Welcome => "a welcome",
            HostMessage::Refused(_) => "a refusal",
            HostMessage::Alive => "nothing",
            HostMessage::HostRequest { .. } => "a question",
            HostMessage::HostResponse { .. } => "an answer",
        }
    }
}

impl Requester {
    /// Somebody of this host, as this copy of the directory has it.
    pub fn of(actor: Actor, directory: &Directory) -> Self {
        match actor {
            Actor::Administrator(uid) => Requester::Administrator(uid),
            Actor::User(uid) => Requester::User(uid),
            Actor::Node(node) => Requester::Node {
                node: node.0,
                owner: directory.owner_of(node),
            },
        }
    }

    /// Who that is at the holder, whose agent is of user `own`. Whoever is an administrator only
    /// because an agent elsewhere is his is a user like any other.
    pub fn actor(self, own: u32) -> Actor {
        match self {
            Requester::Administrator(uid) if uid == 0 || uid == own => Actor::Administrator(uid),
            Requester::Administrator(uid) | Requester::User(uid) => Actor::User(uid),
            Requester::Node { node, .. } => Actor::Node(NodeId(node)),
        }
    }
}

impl From<Changes> for DirectoryUpdate {
    fn from(Changes { put, remove }: Changes) -> Self {
        DirectoryUpdate::Changes { put, remove }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_user_of_the_leader_administer_the_directory() {
        let who = |uid| Requester::Administrator(uid).actor(1000);
        assert_eq!(who(0), Actor::Administrator(0));
        assert_eq!(who(1000), Actor::Administrator(1000));
        assert_eq!(who(1001), Actor::User(1001));
        assert_eq!(Requester::User(0).actor(1000), Actor::User(0));
    }
}
