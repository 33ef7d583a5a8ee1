//! The host: everything of an agent.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use toroid_fabric::{NodeId, Torus};
use toroid_model::addressing::Subnet;
use toroid_model::directory::{Directory, DirectoryError};
use toroid_model::info::Limits;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::wire::Writer;

use super::audit::Audit;
use super::base::Base;
use super::fair_queue::FairQueue;
use crate::cluster::Cluster;
use crate::control::Control;
use crate::emulation::Emulation;
use crate::exec::Relays;
use crate::fdstore::FdStore;
use crate::fdstore::takeover;
use crate::gate::Gate;
use crate::interfaces::Interfaces;
use crate::leases::Leases;
use crate::members::Members;
use crate::net::driver::Driver;
use crate::net::gateways::Gateways;
use crate::nodes::HostedNode;
use crate::nodes::rootless::Identity;
use crate::nodes::users::Users;
use crate::proxy::supervisor::ProxySupervisor;

/// Reason of an agent's end.
#[derive(Debug)]
pub(crate) enum Ending {
    /// [`toroid_protocol::agent::Request::Down`], with the connection to answer when all has ended.
    Asked(Writer),
    /// A signal, or the end of the liveness socket.
    Told,
    /// No end of nodes and driver: the agent [starts again](crate::start::again).
    Again,
}

/// Nodes, driver and state of an agent.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) state: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) fd_store: Arc<FdStore>,
    /// Whether nodes share the temporary files of the host.
    pub(crate) share_tmp: bool,
    /// Whether everything ends with this process's standard input.
    pub(crate) lifeline: bool,
    pub(crate) audit: Audit,
    /// Time that a shrink waits for acknowledgements.
    pub(crate) ack_timeout: Duration,
    pub(crate) identity: Identity,
    /// Other hosts, if there are any.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Commands between this host and others.
    pub(crate) relays: Relays,
    /// Target proxy, if there are other hosts.
    pub(crate) proxy: Option<Arc<ProxySupervisor>>,
    /// Users of the nodes, if these have users of their own.
    pub(crate) users: Option<Arc<Users>>,
    pub(crate) torus: Torus,
    /// Nodes of this host, in order of their numbers.
    pub(crate) nodes: Vec<HostedNode>,
    pub(crate) driver: Option<Arc<Driver>>,
    pub(crate) interfaces: Interfaces,
    pub(crate) emulation: Emulation,
    pub(crate) base: Base,
    /// Reason and remedy if there are no TAPs.
    pub(crate) no_taps: Option<Refusal>,
    /// Limits of each node.
    pub(crate) limits: Limits,
    /// Reason and remedy if nodes lack default limits.
    pub(crate) no_limits: Option<Refusal>,
    pub(crate) gateways: Gateways,
    pub(crate) members: Members,
    /// Lease of this host, and deadlines of members of fenced domains.
    pub(crate) leases: Arc<Leases>,
    pub(crate) ending: mpsc::Sender<Ending>,
    pub(crate) is_ending: AtomicBool,
    /// Admission of requests that must not be cut off in the middle.
    pub(crate) gate: Gate,
    /// Control of changes and followers.
    pub(crate) control: Arc<Control>,
    /// Turns for changes. Functions that make changes expect their caller to have its turn.
    pub(crate) changes: FairQueue,
}

impl Host {
    /// Whether nodes and driver are ending.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// The node with this number, if this host carries it.
    pub(crate) fn node(&self, id: NodeId) -> Option<&HostedNode> {
        find(&self.nodes, id)
    }

    /// Refusal for a node of another host.
    pub(crate) fn elsewhere(&self, id: NodeId) -> Refusal {
        let directory = self.members.directory(Directory::clone);
        let place = directory.places(&[id].into());
        match directory.host_of(id) {
            Some(host) => Refusal::new(
                RefusalKind::Invalid,
                format!("node {place} is on host {host}"),
                format!("run it there, with the agent of host {host}"),
            ),
            None => DirectoryError::NotCarried(place).into(),
        }
    }

    /// Whether a generation of a node is the present one.
    pub(crate) fn is_current(&self, node: NodeId, generation: u64) -> bool {
        let node = self.node(node);
        node.is_some_and(|node| node.generation.number() == generation)
    }

    /// Puts everything that this agent holds into a new fd store.
    pub(crate) fn keep_all(&self) {
        let kind = takeover::Kind {
            torus: self.torus,
            ethernet: self.driver.is_some(),
            carries: self.cluster.as_ref().map(|c| c.config.nodes.clone()),
            share_tmp: self.share_tmp,
        };
        let emulation = self.emulation.clone();
        takeover::keep_host(
            &self.fd_store,
            kind,
            self.interfaces,
            emulation,
            self.lifeline,
        );
        if let Some(users) = &self.users {
            users.keep(&self.fd_store);
        }
        self.leases.keep();
        self.nodes.iter().for_each(HostedNode::keep);
        if let Some(driver) = &self.driver {
            driver.keep();
        }
        if let Some(proxy) = &self.proxy {
            proxy.keep();
        }
        self.base.keep(&self.fd_store);
        self.members.keep_all();
    }

    pub(crate) fn log(&self) -> String {
        let log = self.state.join(crate::store::names::LOG);
        log.display().to_string()
    }
}

/// Names of a node's domains.
pub(crate) fn names(directory: &Directory, node: NodeId) -> Vec<String> {
    let domains = directory.domains_of(node);
    domains.map(|domain| domain.name.clone()).collect()
}

/// The node of a set that names exactly one.
pub(super) fn only_node(directory: &Directory, actor: Actor, set: &str) -> Result<NodeId, Refusal> {
    let nodes = actor.resolve(directory, &[set.into()])?;
    match (nodes.first(), nodes.len()) {
        (Some(node), 1) => Ok(*node),
        (_, count) => Err(Refusal::new(
            RefusalKind::Invalid,
            format!("{set} names {count} nodes"),
            "name one",
        )),
    }
}

/// Parses a client's subnet.
pub(super) fn parse_subnet(text: Option<&str>) -> Result<Option<Subnet>, Refusal> {
    let subnet = text.map(str::parse).transpose();
    subnet.map_err(|error| DirectoryError::Subnet(error).into())
}

/// Finds a node in a list in order of numbers.
pub(super) fn find(nodes: &[HostedNode], id: NodeId) -> Option<&HostedNode> {
    let at = nodes.binary_search_by_key(&id, |node| node.id).ok()?;
    nodes.get(at)
}
