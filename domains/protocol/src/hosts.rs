//! Messages between the agents of two hosts.
//!
//! The connecting agent sends [`HostMessage::Hello`]. The other answers [`HostMessage::Welcome`],
//! [`HostMessage::Refused`] or [`HostMessage::NotLeader`]. Then both send requests and responses, in
//! any order, and [`HostMessage::Alive`] periodically.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use toroid_fabric::{NodeId, Torus};
use toroid_model::as_text;
use toroid_model::directory::Directory;
use toroid_model::directory::moved::Moved;
use toroid_model::directory::records::Records;
use toroid_model::directory::requests::RequestId;
use toroid_model::directory::revision::Revision;
use toroid_model::gateway::Gateway;
use toroid_model::hosts::{Encryption, Provider};
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
    /// The answer of a host that does not lead to the [`HostMessage::Hello`] of a follower.
    NotLeader {
        /// The leader, if the host knows it.
        leader: Option<String>,
        /// The last move of the directory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moved: Option<Box<Moved>>,
        /// Addresses of the leader and of hosts that may lead where the directory is, if known.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        addresses: BTreeMap<String, SocketAddr>,
    },
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

/// Greeting of the connecting agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Agreed version, which the other side compares to detect tampering.
    pub version: u8,
    /// Name of the connecting host.
    pub host: String,
    /// The host that it means.
    pub to: String,
    /// The torus of its file.
    #[serde(with = "as_text")]
    pub torus: Torus,
    /// Provider between its nodes and those of other hosts.
    pub provider: Provider,
    /// Whether it encrypts data between hosts.
    pub encryption: Encryption,
    /// Revision of its directory, if it has one.
    pub revision: Option<Revision>,
    /// Whether some records of its directory are of a later revision.
    pub is_partial: bool,
    /// The last move of its directory, which was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Box<Moved>>,
    /// Nodes, aliases and address of a follower of the other host's directory.
    pub follows: Option<Claim>,
}

/// Nodes, aliases and address of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The nodes that it carries.
    pub nodes: BTreeSet<u32>,
    /// Further names of some of these.
    pub aliases: BTreeMap<String, u32>,
    /// Address at which other hosts reach it.
    pub address: SocketAddr,
}

/// A request to another host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HostRequest {
    /// To the leader: a change that a caller on this host requests.
    Change {
        /// The caller.
        who: Requester,
        /// The caller's process, as its own agent sees it.
        pid: Option<u32>,
        /// Identifier of the request, also when it is repeated.
        #[serde(with = "as_text")]
        id: RequestId,
        /// The request.
        request: Request,
    },
    /// To a follower: some records of the update that follows.
    Page(Records),
    /// To a follower: the new directory, with the record of its revision.
    Adopt(DirectoryUpdate),
    /// To the follower that is to lead: the change that moves the directory there, which is not
    /// committed yet.
    Offer(DirectoryUpdate),
    /// To the leader: a renewal of the asking host's lease.
    Renew,
    /// To any host: a ticket for a data connection.
    Ticket {
        /// Purpose of the connection.
        wanted: TicketPurpose,
        /// Revision of the directory by which the asking host wants it.
        revision: Option<Revision>,
    },
    /// To any host: its nodes that listen.
    Listeners(ListenerQuery),
    /// To any host: whether it has the uplink of a new gateway at one of its nodes.
    Gateway {
        /// The domain.
        domain: String,
        /// The gateway.
        gateway: Gateway<u32>,
    },
    /// To a host with members of domains that have gateways at the asking host: those that do not
    /// work, and no others. Sent once to each host, and then after changes. Not durable: repeated in
    /// the next session if there are some.
    GatewayProblems(Vec<GatewayProblem>),
    /// To any host: its part of the reply to [`Request::DomainDrops`], [`Request::ShrinkNeeds`] or
    /// [`Request::QuotaShow`], which each host counts for itself.
    Query {
        /// The caller.
        who: Requester,
        /// The request.
        request: Request,
    },
}

/// A gateway that does not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayProblem {
    /// Number of the domain.
    pub domain: u16,
    /// Number of the node.
    pub node: u32,
    /// Reason, as text.
    pub problem: String,
}

/// A directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DirectoryUpdate {
    /// All of it.
    Whole(Records),
    /// Differences from an earlier revision of the same term.
    Changes {
        /// The earlier revision. A copy of a later one may take the differences, too.
        since: Revision,
        /// Records that are new or different.
        put: Records,
        /// Keys of records that are gone.
        remove: BTreeSet<String>,
    },
}

/// Purpose of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TicketPurpose {
    /// A process of one host and a node of the other.
    Node(NodePair),
    /// Frames between the drivers of the two hosts.
    Frames,
    /// A command in a node of the host that is asked, for a user of the asking host. Its relays send
    /// the messages of [`crate::command`].
    Command {
        /// The uid.
        user: u32,
    },
}

/// A connection from a process of one host to a node of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePair {
    /// Node of the process, on the asking host.
    pub from: u32,
    /// The other node, of the host that is asked.
    pub to: u32,
    /// The domain.
    pub partition: u32,
    /// Protocol of a packet channel; `None` for operations on the node's memory.
    pub protocol: Option<u16>,
}

/// A query for listeners on another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerQuery {
    /// Node of the querying process, on the asking host.
    pub from: u32,
    /// The domain.
    pub partition: u32,
    /// Protocol of the listeners.
    pub protocol: u16,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HostResponse {
    /// The request was carried out.
    Done,
    /// Carried out, except for a failure that the asking side cannot repair; its description.
    DoneExcept(String),
    /// The request failed and changed nothing, unless the refusal says so. Nor has a
    /// [`HostRequest::Change`] with this identifier before.
    Refused(Refusal),
    /// A [`HostRequest::Change`] was refused before the leader looked for an earlier one with this
    /// identifier.
    Unsettled(Refusal),
    /// The host does not lead any more, or starts again: the change is to be requested again from
    /// the next leader. It may have been made. Or the hosts are in different terms: the ticket is to
    /// be requested again when both follow the leader.
    Again(Refusal),
    /// The reply to a [`HostRequest::Change`] or [`HostRequest::Query`].
    Reply(Box<Reply>),
    /// The answer to a [`HostRequest::Renew`]: the lease begins with the sending of the renewal, once
    /// the host has this revision.
    Renewed(Revision),
    /// In hexadecimal digits.
    Ticket(String),
    /// Numbers of nodes.
    Nodes(BTreeSet<u32>),
}

/// Origin of a request from another host.
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
    /// Kind of the message, without its confidential content, for logs.
    pub fn kind(&self) -> &'static str {
        match self {
            HostMessage::Hello(_) => "hello",
            HostMessage::Welcome => "a welcome",
            HostMessage::Refused(_) | HostMessage::NotLeader { .. } => "a refusal",
            HostMessage::Alive => "nothing",
            HostMessage::HostRequest { .. } => "a question",
            HostMessage::HostResponse { .. } => "an answer",
        }
    }
}

impl Requester {
    /// Origin of a request on this host, according to its copy of the directory.
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

    /// Actor at the leader, whose agent runs as user `own`. An administrator of another agent only
    /// is an ordinary user there.
    pub fn actor(self, own: u32) -> Actor {
        match self {
            Requester::Administrator(uid) if uid == 0 || uid == own => Actor::Administrator(uid),
            Requester::Administrator(uid) | Requester::User(uid) => Actor::User(uid),
            Requester::Node { node, .. } => Actor::Node(NodeId(node)),
        }
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
