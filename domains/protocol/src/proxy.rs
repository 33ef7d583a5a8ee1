//! Messages between an agent and its target proxy, on a session of the proxy's liveness socket.

use serde::{Deserialize, Serialize};
use toroid_model::rdma::Rdma;

/// From the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub enum ProxyRequest {
    /// Serves a process of another host. One descriptor: the connection with that host.
    Serve(Service),
    /// Carries what a process of this host and a target proxy of another say to each other. Two
    /// descriptors: the connection with that host, and one end of the process's.
    Carry(Carriage),
}

/// What a process of another host wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its node.
    pub from: u32,
    /// The node of this host that it is about.
    pub to: u32,
    /// The domain.
    pub domain: String,
    /// Its number.
    pub partition: u32,
    /// Packets for who listens for it; otherwise operations on the node's memory.
    pub protocol: Option<u16>,
    /// The RDMA device for that memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carriage {
    /// The node of the process.
    pub from: u32,
    /// Whether packets travel on it; otherwise operations.
    pub packets: bool,
}

/// From the target proxy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "errand", rename_all = "snake_case", deny_unknown_fields)]
pub enum ProxyEvent {
    /// Attaches the target proxy in the name of a node that another host carries. One descriptor: the
    /// end of a connection on which the agent is to serve it as it serves processes of nodes.
    Attach {
        /// The node.
        node: u32,
    },
}
