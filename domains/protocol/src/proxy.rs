//! Messages between an agent and its target proxy, on a session of the proxy's liveness socket.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toroid_model::link::Rate;
use toroid_model::rdma::Rdma;

use crate::seal::SealKeys;

/// Request of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub enum ProxyRequest {
    /// First in a session. Sets the deadlines after which members of fenced domains are not served.
    /// One descriptor: their memory ([`toroid_fabric::deadlines::Deadlines`]). A proxy that cannot
    /// map the memory ends.
    Deadlines,
    /// Second in a session. Lifts the rates of members of all domains but these.
    RetainRates {
        /// Numbers of domains.
        partitions: Vec<u32>,
    },
    /// Sets the rates of all members of a domain, also for their present connections. One
    /// descriptor, or none: the proxy closes it when the rates are in effect.
    Rates {
        /// Number of the domain.
        partition: u32,
        /// Rates of members; others have none.
        rates: MemberRates,
    },
    /// Serves a process of another host. One descriptor: the connection with that host.
    Serve(Service),
    /// Relays between a process of this host and a target proxy of another host. Two descriptors:
    /// the connection with that host, and one end of the connection of the process.
    Carry(Carriage),
}

/// Numbers of nodes by their rate in a domain.
pub type MemberRates = BTreeMap<Rate, Vec<u32>>;

/// A service for a process of another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Node of the process.
    pub from: u32,
    /// The node of this host that it is about.
    pub to: u32,
    /// The domain.
    pub domain: String,
    /// Number of the domain.
    pub partition: u32,
    /// Protocol of a packet channel; `None` for operations on the node's memory.
    pub protocol: Option<u16>,
    /// The RDMA device for that memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
    /// Keys of the connection with that host; `None` for a clear one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<SealKeys>,
}

/// A relayed connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carriage {
    /// The node of the process.
    pub from: u32,
    /// The domain's partition.
    pub partition: u32,
    /// Whether packets travel on it; otherwise operations.
    pub packets: bool,
    /// Keys of the connection with the other host; `None` for a clear one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<SealKeys>,
}

/// Request of the target proxy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "errand", rename_all = "snake_case", deny_unknown_fields)]
pub enum ProxyEvent {
    /// Attaches the target proxy for a node of another host. One descriptor: the end of a
    /// connection on which the agent is to serve the proxy like a process of that node.
    Attach {
        /// The node.
        node: u32,
    },
}
