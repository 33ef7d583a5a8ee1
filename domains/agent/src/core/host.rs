//! All that an agent has, and the changes of membership, which concern all of it: driver, attached
//! processes, names.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use toroid_fabric::{NodeId, Place, Torus};
use toroid_model::addressing::{IPV6_PREFIX, Subnet, ipv6, mac, mac_text};
use toroid_model::directory::{
    Change, Directory, DirectoryError, Domain, MemberSpec, Wanted, members,
};
use toroid_model::info::{
    DomainInfo, HostInfo, Limits, MemberDrops, MemberInfo, NodeInfo, ShrinkNeeds, Status,
};
use toroid_model::placement::Figures;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_netlink::{Netlink, NetlinkError};
use toroid_protocol::agent::NewDomain;
use toroid_protocol::driver::{Port, PortError};
use toroid_protocol::wire::Writer;

use super::audit::Audit;
use super::changes::usable_node;
use super::fair_queue::FairQueue;
use super::hosts_file;
use crate::cluster::Cluster;
use crate::fdstore::FdStore;
use crate::fdstore::takeover;
use crate::interfaces::Interfaces;
use crate::members::{Changed, Members};
use crate::net::driver::{Driver, Drops, FarPort, PlacedPort};
use crate::net::gateways::{self, Gateways};
use crate::nodes::HostedNode;
use crate::nodes::rootless::Identity;
use crate::nodes::users::Users;
use crate::proxy::supervisor::ProxySupervisor;

/// How much longer a change waits for the processes that stay for each domain when nodes leave
/// several at once.
const ACK_TIMEOUT_EACH: Duration = Duration::from_millis(2);

/// Why an agent ends.
#[derive(Debug)]
pub(crate) enum Ending {
    /// [`toroid_protocol::agent::Request::Down`]: to be answered when all has ended.
    Asked(Writer),
    /// A signal, or the end of the liveness socket.
    Told,
}

/// An agent's nodes, driver and books.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) state: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) fd_store: Arc<FdStore>,
    /// Whether nodes have the temporary files of the host.
    pub(crate) share_tmp: bool,
    /// Whether all shall end with this process's standard input.
    pub(crate) lifeline: bool,
    pub(crate) audit: Audit,
    /// How long a shrink waits for the processes that stay.
    pub(crate) ack_timeout: Duration,
    pub(crate) identity: Identity,
    /// Other hosts, if there are any.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Serves and reaches nodes of these.
    pub(crate) proxy: Option<Arc<ProxySupervisor>>,
    /// Those of the nodes, if they have users of their own.
    pub(crate) users: Option<Arc<Users>>,
    pub(crate) torus: Torus,
    /// Those that this host carries, by number.
    pub(crate) nodes: Vec<HostedNode>,
    pub(crate) driver: Option<Arc<Driver>>,
    pub(crate) interfaces: Interfaces,
    /// Why there are no TAPs, and what to do.
    pub(crate) no_taps: Option<Refusal>,
    /// Of each node.
    pub(crate) limits: Limits,
    /// Why nodes have fewer than by default.
    pub(crate) no_limits: Option<Refusal>,
    pub(crate) gateways: Gateways,
    pub(crate) members: Members,
    pub(crate) ending: mpsc::Sender<Ending>,
    pub(crate) is_ending: AtomicBool,
    /// Changes happen one after another: the functions that make them expect their caller to have
    /// its turn.
    pub(crate) changes: FairQueue,
}

impl Host {
    /// Whether nodes and driver are meant to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// A hosted node.
    pub(crate) fn node(&self, id: NodeId) -> Option<&HostedNode> {
        find(&self.nodes, id)
    }

    /// Says where a node is that this host does not carry.
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

    /// Whether a generation of a node has not ended.
    pub(crate) fn is_current(&self, node: NodeId, generation: u64) -> bool {
        let node = self.node(node);
        node.is_some_and(|node| node.generation.number() == generation)
    }

    /// Creates a domain; its interfaces are up and its names resolve when this returns.
    pub(crate) fn create(
        &self,
        actor: Actor,
        wanted: Wanted,
        new: &NewDomain,
    ) -> Result<DomainInfo, Refusal> {
        let (change, directory) = self.members.plan(|directory| {
            let wanted = Wanted {
                members: members(
                    &actor.resolve(directory, &new.nodes)?,
                    &actor.resolve(directory, &new.limited)?,
                    &actor.resolve(directory, &new.plain)?,
                    &actor.resolve(directory, &new.stacks)?,
                ),
                ..wanted
            };
            let members = wanted.members.keys().copied().collect();
            actor.may_create(directory, &members)?;
            wanted.subnet.map_or(Ok(()), |s| actor.may_address(s))?;
            directory.check_owned_domains(wanted.owner, wanted.subnet)?;
            directory.check_carried(&members)?;
            directory.check_memberships(&members)?;
            let created = directory.create(wanted);
            Ok::<_, Refusal>(created.map_err(|error| actor.may_read(directory, error))?)
        })?;
        self.join(change, directory)
    }

    /// Adds nodes to a domain.
    pub(crate) fn grow(
        &self,
        actor: Actor,
        name: &str,
        nodes: &[String],
        spec: MemberSpec,
    ) -> Result<DomainInfo, Refusal> {
        let (change, directory) = self.members.plan(|directory| {
            let nodes = actor.resolve(directory, nodes)?;
            let domain = actor.named(directory, name)?;
            actor.may_grow(directory, domain, &nodes)?;
            let new = &nodes - &domain.nodes();
            directory.check_carried(&new)?;
            directory.check_memberships(&new)?;
            Ok::<_, Refusal>(directory.admit(name, &nodes, spec)?)
        })?;
        self.join(change, directory)
    }

    /// Takes nodes out of a domain. That is durable before anybody sees it; when this returns
    /// their packets are cut, they get no new access, and the processes that stay know, or have had their time.
    ///
    /// Who takes nodes out of another's domain does not want them back in it: what they had
    /// consented to is void.
    pub(crate) fn shrink(
        &self,
        actor: Actor,
        name: &str,
        nodes: &[String],
    ) -> Result<DomainInfo, Refusal> {
        let (change, directory) = self.plan_shrink(actor, name, nodes)?;
        let domain = self.leave(change, directory)?;
        Ok(self.describe(&domain))
    }

    /// What that would need at this moment, refused where it would be.
    pub(crate) fn shrink_needs(
        &self,
        actor: Actor,
        name: &str,
        nodes: &[String],
    ) -> Result<ShrinkNeeds, Refusal> {
        let (change, _) = self.plan_shrink(actor, name, nodes)?;
        Ok(self.members.needs(&change))
    }

    fn plan_shrink(
        &self,
        actor: Actor,
        name: &str,
        nodes: &[String],
    ) -> Result<(Change, Directory), Refusal> {
        self.members.plan(|directory| {
            let nodes = actor.resolve(directory, nodes)?;
            let domain = actor.named(directory, name)?;
            actor.may_shrink(directory, domain, &nodes)?;
            let is_guest = actor.may_own(directory, domain).is_err();
            let change = directory.shrink(name, &nodes)?;
            if is_guest && actor.uid().is_some() {
                directory.consent(&change.left, name, true)?;
            }
            Ok::<_, Refusal>(change)
        })
    }

    /// Removes a domain: all leave.
    pub(crate) fn remove(&self, actor: Actor, name: &str) -> Result<(), Refusal> {
        let (change, directory) = self.members.plan(|directory| {
            actor.may_own(directory, actor.named(directory, name)?)?;
            Ok::<_, Refusal>(directory.remove(name)?)
        })?;
        self.leave(change, directory).map(drop)
    }

    /// Changes what concerns no connection between nodes.
    pub(crate) fn edit<T>(
        &self,
        change: impl FnOnce(&mut Directory) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.members.edit(change)
    }

    /// Gives a node a further name.
    pub(crate) fn alias(&self, actor: Actor, node: &str, alias: &str) -> Result<(), Refusal> {
        self.name(|directory| {
            let node = usable_node(directory, actor, node)?;
            directory.add_alias(node, alias)?;
            Ok(node)
        })
    }

    /// Takes a further name away.
    pub(crate) fn unalias(&self, actor: Actor, alias: &str) -> Result<(), Refusal> {
        self.name(|directory| {
            let node = directory.remove_alias(alias)?;
            actor.may_use(directory, &BTreeSet::from([node]))?;
            Ok(node)
        })
    }

    /// Changes the names of a node, which the other members of its domains use.
    fn name(
        &self,
        change: impl FnOnce(&mut Directory) -> Result<NodeId, Refusal>,
    ) -> Result<(), Refusal> {
        let fellows = self.members.edit(|directory| {
            let node = change(directory)?;
            let members = directory.domains_of(node).flat_map(|d| d.nodes());
            Ok::<BTreeSet<NodeId>, Refusal>(members.collect())
        })?;
        let directory = self.members.directory(Directory::clone);
        if let Err(refusal) = self.write_hosts(&directory, &fellows) {
            tracing::warn!("{refusal}");
        }
        Ok(())
    }

    /// Puts all that this agent holds into the hands of a new fd store.
    pub(crate) fn keep_all(&self) {
        let kind = takeover::Kind {
            torus: self.torus,
            ethernet: self.driver.is_some(),
            carries: self.cluster.as_ref().map(|cluster| &cluster.config.nodes),
            share_tmp: self.share_tmp,
        };
        takeover::keep_host(&self.fd_store, kind, self.interfaces, self.lifeline);
        if let Some(users) = &self.users {
            users.keep(&self.fd_store);
        }
        self.nodes.iter().for_each(HostedNode::keep);
        if let Some(driver) = &self.driver {
            driver.keep();
        }
        if let Some(proxy) = &self.proxy {
            proxy.keep();
        }
        self.members.keep_all();
    }

    /// Prepares what joins, and last makes it durable: until then it can be taken back.
    pub(crate) fn join(&self, change: Change, directory: Directory) -> Result<DomainInfo, Refusal> {
        let prepared = self
            .add_ports(&change, &directory)
            .and_then(|()| self.write_hosts(&directory, &change.domain.nodes()))
            .and_then(|()| self.members.keep(&directory));
        if let Err(refusal) = prepared {
            self.take_back(&change);
            return Err(refusal);
        }
        let info = self.describe(&change.domain);
        self.members.change(change, directory);
        Ok(info)
    }

    /// The same where another host has decided so: they are members, whatever becomes of their ports
    /// here, of which a node's root can spoil its own. Returns what was wrong with these.
    pub(crate) fn join_as_decided(
        &self,
        change: Change,
        directory: Directory,
    ) -> Result<Option<Refusal>, Refusal> {
        let spoiled = self.add_ports(&change, &directory).err();
        let prepared = self.write_hosts(&directory, &change.domain.nodes());
        if let Err(refusal) = prepared.and_then(|()| self.members.keep(&directory)) {
            self.take_back(&change);
            return Err(refusal);
        }
        self.members.change(change, directory);
        Ok(spoiled)
    }

    /// Undoes what was prepared for those who would have joined.
    fn take_back(&self, change: &Change) {
        let Change { domain, joined, .. } = change;
        let present = self.members.directory(Directory::clone);
        match present.domain_by_id(domain.id.into()) {
            Some(domain) => self.tell_far(domain, &present),
            None => self.forget_far(domain),
        }
        self.remove_ports(domain, joined);
        // The port that failed is none that the driver could remove.
        self.delete_interfaces(domain, joined);
        if let Err(error) = self.write_hosts(&present, &domain.nodes()) {
            tracing::warn!("{error}");
        }
    }

    pub(crate) fn leave(&self, change: Change, directory: Directory) -> Result<Domain, Refusal> {
        let domain = change.domain.clone();
        self.leave_all(vec![change], directory)?;
        Ok(domain)
    }

    /// Takes nodes out of several domains at once. Whoever stays is waited for once, however many
    /// there are: others wait for their turn.
    pub(crate) fn leave_all(
        &self,
        changes: Vec<Change>,
        directory: Directory,
    ) -> Result<(), Refusal> {
        // First: what leaves opens nothing more that would have to move again.
        self.members.note_leaving(&changes);
        for change in &changes {
            self.members.finish_moves(change);
        }
        let kept = self.members.keep(&directory);
        kept.inspect_err(|_| self.members.note_staying(&changes))?;
        let generation = self.driver.as_ref().map(|driver| driver.generation());
        let mut concerned = BTreeSet::new();
        for Change { domain, left, .. } in &changes {
            self.tell_to_remove(domain, left);
            self.tell_far(domain, &directory);
            if self.loses_gateway(domain) {
                self.tell_ports(domain);
            }
            concerned.extend(left | &domain.nodes());
        }
        let cut = |change: Change| {
            let changed = self.members.change(change, directory.clone());
            self.tell_epoch(&changed.change.domain);
            changed
        };
        let changed: Vec<Changed> = changes.into_iter().map(cut).collect();
        self.complete(&changed, self.ack_timeout);
        // It has happened: a hosts file that is late is no reason to say otherwise.
        if let Err(refusal) = self.write_hosts(&directory, &concerned) {
            tracing::warn!("{refusal}");
        }
        // Last: the driver has worked all the while.
        let changes = changed.iter().map(|changed| &changed.change);
        self.await_removal(
            changes.map(|change| (&change.domain, &change.left)),
            generation,
        );
        self.settle_gateways();
        Ok(())
    }

    /// Whether the domain has a gateway that is not among its members after a change.
    fn loses_gateway(&self, changed: &Domain) -> bool {
        let present = |directory: &Directory| {
            let present = directory.domain(&changed.name);
            present.is_ok_and(|domain| domain.gateway.is_some())
        };
        changed.gateway.is_none() && self.members.directory(present)
    }

    /// Lets the ports of all members be as the domain has them, and waits until they are.
    pub(crate) fn tell_members(&self, domain: &Domain) -> Result<(), Refusal> {
        self.tell_ports(domain);
        self.sync_ports(domain, |_| false)
    }

    /// Lets all members know by whom they leave the domain, and waits until they do.
    pub(crate) fn lead_members(&self, domain: &Domain) -> Result<(), Refusal> {
        self.tell_ports(domain);
        // A member whose root has taken its interface away is nobody else's trouble.
        let gateway = domain.gateway.as_ref().map(|gateway| gateway.node);
        self.sync_ports(domain, |node| Some(node) == gateway)
    }

    /// To be followed by a wait for the driver.
    fn tell_ports(&self, domain: &Domain) {
        let Some(driver) = &self.driver else {
            return;
        };
        let directory = self.members.directory(Directory::clone);
        self.tell_far(domain, &directory);
        for node in domain.members.keys().filter_map(|id| self.node(*id)) {
            let port = port(domain, node, self.torus, self.interfaces);
            driver.add(port, node.network());
        }
    }

    /// Lets the driver know which members of a domain other hosts carry, as this directory has it. To be followed
    /// by a wait for the driver.
    fn tell_far(&self, domain: &Domain, directory: &Directory) {
        if let (Some(driver), Some(cluster)) = (&self.driver, &self.cluster) {
            let ours = &cluster.config.host;
            let far = far_ports_of(domain, directory, ours, self.interfaces);
            driver.set_far(domain.id.into(), far);
        }
    }

    fn forget_far(&self, domain: &Domain) {
        if let Some(driver) = &self.driver {
            driver.set_far(domain.id.into(), Vec::new());
        }
    }

    /// The same of all domains, after nodes were given to other hosts.
    pub(crate) fn tell_all_far(&self, directory: &Directory) {
        for domain in directory.domains() {
            self.tell_far(domain, directory);
        }
    }

    /// Waits for those who stay, and a little longer for each change when there are several.
    pub(crate) fn complete(&self, changed: &[Changed], patience: Duration) {
        let deadline = Instant::now() + patience + ACK_TIMEOUT_EACH * changed.len() as u32;
        for changed in changed {
            self.await_members(changed, deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn tell_epoch(&self, domain: &Domain) {
        if let Some(driver) = &self.driver {
            driver.set_epoch(domain.id.into(), domain.epoch);
        }
    }

    fn await_members(&self, changed: &Changed, patience: Duration) {
        let fenced = |nodes: &_| self.let_adapters_forget(nodes);
        let late = self.members.complete(changed, patience, fenced);
        if late > 0 {
            let domain = &changed.change.domain;
            tracing::warn!(
                "{late} processes have not acknowledged epoch {} of domain {} in time, so \
                 they are cut off from it",
                domain.epoch,
                domain.name
            );
        }
    }

    fn add_ports(&self, change: &Change, directory: &Directory) -> Result<(), Refusal> {
        let Some(driver) = &self.driver else {
            return Ok(());
        };
        self.tell_far(&change.domain, directory);
        for id in &change.joined {
            if let Some(node) = self.node(*id) {
                let port = port(&change.domain, node, self.torus, self.interfaces);
                driver.add(port, node.network());
            }
        }
        self.sync_ports(&change.domain, |node| change.joined.contains(&node))
    }

    /// Waits until ports are as the driver was told; fails if that is wrong with one of those in
    /// question.
    fn sync_ports(
        &self,
        domain: &Domain,
        is_in_question: impl Fn(NodeId) -> bool,
    ) -> Result<(), Refusal> {
        let Some(driver) = &self.driver else {
            return Ok(());
        };
        let errors = driver.sync().map_err(|error| {
            let remedy = format!("see {}", self.log());
            Refusal::new(RefusalKind::Failed, error.to_string(), remedy)
        })?;
        // Others are of ports that were told again to a new driver.
        let ours = |error: &PortError| {
            error.domain_id == u32::from(domain.id) && is_in_question(NodeId(error.node))
        };
        let (ours, others): (Vec<_>, Vec<_>) = errors.into_iter().partition(ours);
        log_errors(&others);
        match ours.first() {
            None => Ok(()),
            Some(error) => Err(Refusal::new(
                RefusalKind::Failed,
                format!("domain {}: {}", domain.name, error.message),
                format!("see {}", self.log()),
            )),
        }
    }

    fn remove_ports(&self, domain: &Domain, nodes: &BTreeSet<NodeId>) {
        let generation = self.driver.as_ref().map(|driver| driver.generation());
        self.tell_to_remove(domain, nodes);
        self.await_removal([(domain, nodes)], generation);
    }

    /// To be followed by [`Host::await_removal`].
    fn tell_to_remove(&self, domain: &Domain, nodes: &BTreeSet<NodeId>) {
        let Some(driver) = &self.driver else {
            return;
        };
        for node in nodes {
            driver.remove(domain.id.into(), node.0);
        }
    }

    /// Returns when nothing passes ports any more which the driver was told to remove; it was the
    /// driver of this generation, or comes after it.
    fn await_removal<'a>(
        &self,
        ports: impl IntoIterator<Item = (&'a Domain, &'a BTreeSet<NodeId>)>,
        generation: Option<u32>,
    ) {
        let Some(driver) = &self.driver else {
            return;
        };
        let result = driver.sync();
        if let Ok(errors) = &result {
            log_errors(errors);
        }
        // A driver that has died forwards nothing, and its successor is not told of the ports;
        // but their interfaces outlive it.
        if result.is_err() || Some(driver.generation()) != generation {
            for (domain, nodes) in ports {
                self.delete_interfaces(domain, nodes);
            }
        }
    }

    /// Deletes interfaces that no driver holds, where they are.
    fn delete_interfaces(&self, domain: &Domain, nodes: &BTreeSet<NodeId>) {
        for node in nodes.iter().filter_map(|id| self.node(*id)) {
            if let Err(error) = delete_interface(node, &domain.name) {
                tracing::warn!("node {}: {error}", node.place);
            }
        }
    }

    pub(crate) fn write_hosts(
        &self,
        directory: &Directory,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<(), Refusal> {
        let mut texts = hosts_file::Texts::new(directory);
        for id in nodes {
            if let Some(node) = self.node(*id) {
                hosts_file::write(node.hosts(), &texts.of(*id))
                    .map_err(|error| self.cannot_write(&error))?;
            }
        }
        Ok(())
    }

    fn cannot_write(&self, error: &io::Error) -> Refusal {
        let state = self.state.display();
        let message = format!("cannot write the hosts files in {state}: {error}");
        let remedy = "make room there; the change can then be made again";
        Refusal::new(RefusalKind::Failed, message, remedy)
    }

    pub(crate) fn log(&self) -> String {
        let log = self.state.join(crate::store::names::LOG);
        log.display().to_string()
    }

    /// The state of the agent, with the sums that concern the actor.
    pub(crate) fn status(&self, actor: Actor) -> Status {
        let directory = self.members.directory(Directory::clone);
        let concerns = |node| match actor {
            Actor::Administrator(_) => true,
            Actor::User(uid) => directory.owner_of(node) == Some(uid),
            Actor::Node(only) => node == only,
        };
        // The target proxy, which stands in for those of other hosts, is no process of a node.
        let its = |node| self.node(node).is_some() && concerns(node);
        let (attached, registered_bytes) = self.members.totals(its);
        let moving_bytes = self.members.moving_bytes(its);
        let compacting_bytes = self.members.compactor.due_bytes(its);
        let domains = directory.domains().filter(|d| actor.sees(&directory, d));
        let driver = self.driver.as_ref().map(|driver| driver.status());
        let (driver_pid, driver_restarts) = driver.unwrap_or_default();
        Status {
            pid: std::process::id(),
            state: self.state.display().to_string(),
            data: self.data.display().to_string(),
            torus: self.torus,
            nodes: self.nodes.len() as u32,
            hosts: self.describe_hosts(),
            between_hosts: self.cluster.as_ref().map(|c| c.config.provider),
            rdma: self.rdma(),
            domains: domains.count() as u32,
            provider: "shm".into(),
            ethernet: match &self.driver {
                None => "none",
                Some(_) if self.interfaces.stacks => "stack",
                Some(_) => "tap",
            }
            .into(),
            no_taps: self.no_taps.clone(),
            limits: self.limits,
            no_limits: self.no_limits.clone(),
            rootless: self.identity.rootless,
            private_users: self.users.is_some(),
            offload: match &self.driver {
                Some(driver) if self.interfaces.offload => driver.offload(),
                _ => Vec::new(),
            },
            driver_pid,
            driver_restarts,
            adapter_pid: self.proxy.as_deref().and_then(ProxySupervisor::pid),
            attached: attached as u32,
            registered_bytes,
            moving_bytes,
            compacting_bytes,
        }
    }

    fn describe_hosts(&self) -> Vec<HostInfo> {
        let hosts = self.cluster.iter().flat_map(|cluster| cluster.describe());
        let Some(driver) = &self.driver else {
            return hosts.collect();
        };
        let has_rdma = self.rdma().is_some();
        let by_rdma = has_rdma.then(|| driver.frames_by_rdma()).flatten();
        hosts
            .map(|host| HostInfo {
                frames: driver.has_trunk(&host.name),
                frames_over: driver.trunk_provider(&host.name),
                frames_by_rdma: by_rdma
                    .as_ref()
                    .and_then(|all| all.get(&host.name))
                    .copied(),
                ..host
            })
            .collect()
    }

    /// All nodes, with what the actor may see of each.
    pub(crate) fn list_nodes(&self, actor: Actor) -> Vec<NodeInfo> {
        let describe = |id: NodeId| {
            // Asked first: a node that does not listen shall not hold up the directory.
            let pid = self.node(id).map(HostedNode::pid);
            let place = self.torus.place(id)?;
            self.members.directory(|directory| {
                let knows = actor.knows(directory, id);
                let owner = directory.owner_of(id);
                Some(NodeInfo {
                    id: id.0,
                    place,
                    host: directory.host_of(id).map(Into::into),
                    aliases: directory
                        .aliases_of(id)
                        .filter(|_| knows)
                        .map(Into::into)
                        .collect(),
                    owner: Some(owner.unwrap_or(self.identity.uid))
                        .filter(|_| knows || owner.is_none()),
                    allocated: owner.is_some(),
                    free: directory.is_free(id),
                    domains: directory
                        .domains_of(id)
                        .filter(|domain| actor.sees(directory, domain))
                        .map(|domain| domain.name.clone())
                        .collect(),
                    consents: directory
                        .consents_of(id)
                        .filter(|name| {
                            directory
                                .domain(name)
                                .is_ok_and(|d| actor.sees(directory, d))
                        })
                        .map(Into::into)
                        .collect(),
                    pid: pid.filter(|_| actor.has(directory, id)),
                })
            })
        };
        let all = (0..self.torus.nodes()).map(NodeId);
        all.filter_map(describe).collect()
    }

    /// What became of the frames that members of a domain sent and nobody received: of all that
    /// may own the domain, of others' own nodes.
    pub(crate) fn drops(&self, actor: Actor, name: &str) -> Result<Vec<MemberDrops>, Refusal> {
        let directory = self.members.directory(Directory::clone);
        let domain = actor.named(&directory, name)?;
        let driver = self.driver.as_ref().ok_or_else(|| {
            let message = "the agent runs without Ethernet, so it drops no frames";
            Refusal::new(
                RefusalKind::Invalid,
                message,
                "start it without --no-ethernet",
            )
        })?;
        let owns = actor.may_own(&directory, domain).is_ok();
        let sees = |node: NodeId| match actor {
            Actor::Node(own) => own == node,
            _ => {
                owns || actor
                    .uid()
                    .is_some_and(|uid| directory.owner_of(node) == Some(uid))
            }
        };
        let Drops { ports, hosts } = driver.drops(domain.id.into()).map_err(|error| {
            Refusal::new(RefusalKind::Failed, error.to_string(), "ask once more")
        })?;
        let seen = ports.into_iter().filter(|port| sees(NodeId(port.node)));
        let mut drops: Vec<_> = seen
            .filter_map(|port| {
                Some(MemberDrops {
                    node: Some(self.torus.place(NodeId(port.node))?),
                    host: None,
                    outside: port.outside,
                    dropped: port.dropped,
                })
            })
            .collect();
        drops.sort_by_key(|member| member.node.and_then(|place| self.torus.node(place)));
        let of_host = |(host, dropped)| MemberDrops {
            node: None,
            host: Some(host),
            outside: false,
            dropped,
        };
        drops.extend(hosts.into_iter().filter(|_| owns).map(of_host));
        Ok(drops)
    }

    pub(crate) fn places(&self, nodes: &BTreeSet<NodeId>) -> Vec<String> {
        let places = nodes.iter().filter_map(|node| self.torus.place(*node));
        places.map(|place| place.to_string()).collect()
    }

    /// The hosts that carry nodes, where there are several.
    fn hosts_of(&self, nodes: &BTreeSet<NodeId>) -> BTreeMap<NodeId, String> {
        let named = |directory: &Directory, node: NodeId| {
            let host = directory.host_of(node)?;
            Some((node, host.to_owned()))
        };
        self.members
            .directory(|directory| nodes.iter().filter_map(|n| named(directory, *n)).collect())
    }

    /// A domain as clients see it.
    pub(crate) fn describe(&self, domain: &Domain) -> DomainInfo {
        let has_interface =
            |id: &NodeId| self.driver.is_some() && !self.interfaces.is_stack(domain, *id);
        let mut hosts = self.hosts_of(&domain.nodes());
        let member = |(id, spec): (&NodeId, &MemberSpec)| {
            let place = self.torus.place(*id)?;
            Some(MemberInfo {
                node: place,
                host: hosts.remove(id),
                limited: spec.limited,
                plain: spec.no_offload,
                stack: spec.userspace_stack,
                ifname: has_interface(id).then(|| domain.name.clone()),
                mac: mac_text(mac(domain.id, place)),
                ipv4: domain.subnet.address(*id),
                ipv6: ipv6(domain.id, place),
            })
        };
        DomainInfo {
            name: domain.name.clone(),
            id: domain.id.into(),
            epoch: domain.epoch,
            owner: domain.owner,
            mtu: domain.mtu,
            subnet: domain.subnet.to_string(),
            public: domain.public,
            managers: self.places(&domain.managers),
            forward: domain.forward,
            gateway: self.describe_gateway(domain),
            figures: Figures::of(self.torus, &domain.nodes()),
            members: domain.members.iter().filter_map(member).collect(),
        }
    }
}

/// The names of a node's domains.
pub(crate) fn names(directory: &Directory, node: NodeId) -> Vec<String> {
    let domains = directory.domains_of(node);
    domains.map(|domain| domain.name.clone()).collect()
}

/// The node that `set` names, if it is one.
pub(crate) fn only_node(directory: &Directory, actor: Actor, set: &str) -> Result<NodeId, Refusal> {
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

/// Parses what a client gave as a subnet.
pub(crate) fn parse_subnet(text: Option<&str>) -> Result<Option<Subnet>, Refusal> {
    let subnet = text.map(str::parse).transpose();
    subnet.map_err(|error| as_refusal(DirectoryError::Subnet(error)))
}

fn as_refusal(error: DirectoryError) -> Refusal {
    error.into()
}

pub(crate) fn log_errors(errors: &[PortError]) {
    for error in errors {
        tracing::warn!(
            "port of node {} in domain {}: {}",
            error.node,
            error.domain_id,
            error.message
        );
    }
}

fn delete_interface(node: &HostedNode, name: &str) -> Result<(), NetlinkError> {
    let mut netlink = Netlink::open_in(node.network().as_fd())?;
    match netlink.index(name) {
        Ok(index) => netlink.delete(index),
        Err(NetlinkError::NoSuchLink(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// One of several nodes, which are in order.
fn find(nodes: &[HostedNode], id: NodeId) -> Option<&HostedNode> {
    let at = nodes.binary_search_by_key(&id, |node| node.id).ok()?;
    nodes.get(at)
}

/// The ports of all members, as both this host and the membership have them.
pub(crate) fn ports(
    directory: &Directory,
    nodes: &[HostedNode],
    interfaces: Interfaces,
) -> Vec<PlacedPort> {
    let of = |domain: &Domain| {
        let members = domain.members.keys();
        let members = members.filter_map(|id| find(nodes, *id));
        let placed = members.map(|node| {
            (
                port(domain, node, directory.torus(), interfaces),
                node.network(),
            )
        });
        placed.collect::<Vec<_>>()
    };
    directory.domains().flat_map(of).collect()
}

/// The members that other hosts carry, of domains that this host has members of.
pub(crate) fn far_ports(directory: &Directory, ours: &str, interfaces: Interfaces) -> Vec<FarPort> {
    let of = |domain| far_ports_of(domain, directory, ours, interfaces);
    directory.domains().flat_map(of).collect()
}

fn far_ports_of(
    domain: &Domain,
    directory: &Directory,
    ours: &str,
    interfaces: Interfaces,
) -> Vec<FarPort> {
    let host = |node: &NodeId| directory.host_of(*node);
    let is_here = domain.members.keys().any(|node| host(node) == Some(ours));
    let members = domain.members.keys().filter(|_| is_here);
    let far = members.filter_map(move |node| {
        let host = host(node).filter(|host| *host != ours)?;
        let torus = directory.torus();
        let port = port_at(domain, *node, torus.place(*node)?, torus, interfaces);
        Some((port, host.to_owned()))
    });
    far.collect()
}

fn port(domain: &Domain, node: &HostedNode, torus: Torus, interfaces: Interfaces) -> Port {
    port_at(domain, node.id, node.place, torus, interfaces)
}

fn port_at(
    domain: &Domain,
    node: NodeId,
    place: Place,
    torus: Torus,
    interfaces: Interfaces,
) -> Port {
    let spec = domain.spec(node);
    Port {
        node: node.0,
        place,
        domain_id: domain.id.into(),
        epoch: domain.epoch,
        ifname: domain.name.clone(),
        mac: mac(domain.id, place),
        ipv4: domain.subnet.address(node),
        prefix: domain.subnet.prefix(),
        nodes: torus.nodes(),
        ipv6: ipv6(domain.id, place),
        ipv6_prefix: IPV6_PREFIX,
        mtu: domain.mtu,
        limited: spec.limited,
        offload: interfaces.offload && !spec.no_offload,
        gateway: gateways::way_out(domain, node),
        forward: domain.forward,
        stack: interfaces.is_stack(domain, node),
    }
}
