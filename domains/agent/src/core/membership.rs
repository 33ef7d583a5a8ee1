//! Changes of membership and names, which concern driver, attached processes and names alike.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::revision::Revision;
use toroid_model::directory::{Change, Directory, Domain, MemberSpec, Wanted};
use toroid_model::info::{DomainInfo, ShrinkNeeds};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::NewDomain;
use toroid_protocol::driver::PortError;

use super::changes::usable_node;
use super::fences;
use super::host::Host;
use super::hosts_file;
use super::ports::{delete_interface, log_errors, port, remote_ports_of};
use super::rates::first_members;
use crate::members::Changed;

/// Additional wait for acknowledgements for each domain when nodes leave several at once.
const ACK_TIMEOUT_EACH: Duration = Duration::from_millis(2);

/// Durable departures of members whose effects on this host are not complete.
#[derive(Debug, Default)]
pub(super) struct Departure {
    changed: Vec<Changed>,
    /// Generation of the driver before it was told.
    generation: Option<u32>,
    /// Whether the driver has removed the ports.
    is_cut: bool,
}

impl Host {
    /// Creates a domain. Its interfaces are up and its names resolve when this returns.
    pub(crate) fn create(
        &self,
        actor: Actor,
        wanted: Wanted,
        new: &NewDomain,
    ) -> Result<DomainInfo, Refusal> {
        let (change, directory) = self.members.plan(|directory| {
            let members = first_members(actor, directory, new)?;
            let wanted = Wanted { members, ..wanted };
            let members = wanted.members.keys().copied().collect();
            actor.may_create(directory, &members)?;
            wanted.subnet.map_or(Ok(()), |s| actor.may_address(s))?;
            directory.check_owned_domains(&wanted)?;
            directory.check_carried(&members)?;
            directory.check_memberships(&members)?;
            let created = directory.create(wanted);
            let created = created.map_err(|error| actor.may_read(directory, error))?;
            self.check_sealed(directory, &created.domain)?;
            self.check_ethernet(&created.domain)?;
            fences::check(self, &created.domain)?;
            Ok::<_, Refusal>(created)
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
            let grown = directory.admit(name, &nodes, spec)?;
            self.check_sealed(directory, &grown.domain)?;
            Ok::<_, Refusal>(grown)
        })?;
        self.join(change, directory)
    }

    /// Takes nodes out of a domain. The change is durable before any process sees it. When its
    /// effects are complete, the leavers' packets are cut, they get no new access, and the
    /// remaining processes have acknowledged or have had their time.
    ///
    /// A user that takes nodes out of another user's domain does not want them back there: their
    /// consent is withdrawn.
    pub(super) fn shrink(
        &self,
        actor: Actor,
        name: &str,
        nodes: &[String],
    ) -> Result<(DomainInfo, Departure), Refusal> {
        let (change, directory) = self.plan_shrink(actor, name, nodes)?;
        let domain = change.domain.clone();
        let departure = self.begin_departure(vec![change], directory)?;
        Ok((self.describe(&domain), departure))
    }

    /// Cost of that shrink at this moment, refused where the shrink would be.
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

    /// Removes a domain: all members leave.
    pub(super) fn remove(&self, actor: Actor, name: &str) -> Result<Departure, Refusal> {
        let (change, directory) = self.members.plan(|directory| {
            actor.may_own(directory, actor.named(directory, name)?)?;
            Ok::<_, Refusal>(directory.remove(name)?)
        })?;
        self.begin_departure(vec![change], directory)
    }

    /// Makes a change that concerns no connection between nodes.
    pub(crate) fn edit<T>(
        &self,
        change: impl FnOnce(&mut Directory) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.members.edit(change)
    }

    /// Adds an alias of a node.
    pub(crate) fn alias(&self, actor: Actor, node: &str, alias: &str) -> Result<(), Refusal> {
        self.name(|directory| {
            let node = usable_node(directory, actor, node)?;
            directory.add_alias(node, alias)?;
            Ok(node)
        })
    }

    /// Removes an alias.
    pub(super) fn unalias(&self, actor: Actor, alias: &str) -> Result<(), Refusal> {
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

    /// Prepares the joining nodes and then makes the change durable. Until then the preparations
    /// can be undone.
    pub(crate) fn join(&self, change: Change, directory: Directory) -> Result<DomainInfo, Refusal> {
        let prepared = self
            .add_ports(&change, &directory)
            .and_then(|()| self.write_hosts(&directory, &change.domain.nodes()))
            .and_then(|()| self.tell_rates([&change.domain]))
            .and_then(|()| self.members.keep(&directory));
        if let Err(refusal) = prepared {
            self.take_back(&change);
            return Err(refusal);
        }
        let info = self.describe(&change.domain);
        self.members.change(change, directory);
        self.rethink_ways();
        Ok(info)
    }

    /// Does the same for decisions of the leader, all in one: the nodes are members, even if their
    /// ports here fail, which a node's root can spoil. Returns the problems of ports.
    pub(crate) fn join_as_decided(
        &self,
        changes: Vec<Change>,
        directory: &Directory,
    ) -> Result<Vec<Refusal>, Refusal> {
        let add = |change: &Change| self.add_ports(change, directory).err();
        let spoiled: Vec<Refusal> = changes.iter().filter_map(add).collect();
        let members = changes.iter().flat_map(|its| its.domain.members.keys());
        let here = members.copied().filter(|id| self.node(*id).is_some());
        let prepared = self.write_hosts(directory, &here.collect());
        if let Err(refusal) = prepared.and_then(|()| self.members.keep(directory)) {
            changes.iter().for_each(|change| self.take_back(change));
            return Err(refusal);
        }
        let mut spoiled = spoiled;
        for change in changes {
            spoiled.extend(self.tell_rates([&change.domain]).err());
            let linked = (!change.domain.links.is_empty()).then(|| change.domain.clone());
            self.members.change(change, directory.clone());
            if let Some(domain) = linked {
                self.tell_links(&domain);
            }
        }
        self.rethink_ways();
        Ok(spoiled)
    }

    /// Undoes the preparations for joining nodes.
    fn take_back(&self, change: &Change) {
        let Change { domain, joined, .. } = change;
        let present = self.members.directory(Directory::clone);
        match present.domain_by_id(domain.id.into()) {
            Some(domain) => {
                self.tell_remote(domain, &present);
                self.settle_rates([domain]);
            }
            None => self.forget_remote(domain),
        }
        self.remove_ports(domain, joined);
        // The driver cannot remove the port that failed.
        self.delete_interfaces(domain, joined);
        if let Err(error) = self.write_hosts(&present, &domain.nodes()) {
            tracing::warn!("{error}");
        }
    }

    /// Takes nodes out of several domains at once, in one turn. The acknowledgements of all are
    /// awaited together, because other changes wait for their turn. In a directory of this revision
    /// no others have left.
    pub(crate) fn leave_all(
        &self,
        changes: Vec<Change>,
        directory: Directory,
        revision: Option<Revision>,
    ) -> Result<(), Refusal> {
        let mut departure = self.begin_departure(changes, directory)?;
        let held = self.let_others_go_on(&mut departure, revision);
        self.await_acknowledgements(&departure);
        self.finish_departure(departure);
        self.leases.release(&held);
        Ok(())
    }

    /// Lets members go on that have stopped at a deadline, and have to acknowledge departures: waits
    /// for the extension of the lease, as long as it takes. The leavers stay stopped. Returns their
    /// nodes on this host.
    fn let_others_go_on(
        &self,
        departure: &mut Departure,
        revision: Option<Revision>,
    ) -> BTreeSet<NodeId> {
        if !self.leases.stops_within(self.ack_timeout) {
            return BTreeSet::new();
        }
        self.await_cut(departure);
        let changes = departure.changed.iter().map(|changed| &changed.change);
        let left = changes.flat_map(|change| change.left.iter().copied());
        let left = left.filter(|node| self.node(*node).is_some()).collect();
        self.leases.hold(&left);
        self.leases.cut(revision);
        // Nobody answers a leader that begins.
        let leads = self.cluster.as_ref().is_some_and(|its| its.is_leader());
        self.leases.await_extension(|| leads || self.is_ending());
        left
    }

    /// Makes departures durable, tells driver and processes, and writes the names of members.
    /// [`Host::await_acknowledgements`] and [`Host::finish_departure`] follow.
    pub(super) fn begin_departure(
        &self,
        changes: Vec<Change>,
        directory: Directory,
    ) -> Result<Departure, Refusal> {
        // First, so that leavers open no further region that would have to migrate again.
        self.members.note_leaving(&changes);
        for change in &changes {
            self.members.finish_migrations(change);
        }
        let kept = self.members.keep(&directory);
        kept.inspect_err(|_| self.members.note_staying(&changes))?;
        let generation = self.driver.as_ref().map(|driver| driver.generation());
        let mut concerned = BTreeSet::new();
        for Change { domain, left, .. } in &changes {
            self.tell_to_remove(domain, left);
            self.tell_remote(domain, &directory);
            if self.loses_gateways(domain) {
                self.tell_ports(domain);
            }
            concerned.extend(left | &domain.nodes());
        }
        let cut = |change: Change| {
            let changed = self.members.change(change, directory.clone());
            let domain = &changed.change.domain;
            self.tell_epoch(domain);
            if !domain.links.is_empty() {
                // Fresh clocks.
                self.tell_links(domain);
            }
            changed
        };
        let changed = changes.into_iter().map(cut).collect();
        // While driver and processes work. The change is made: a hosts file that cannot be written
        // does not undo it.
        if let Err(refusal) = self.write_hosts(&directory, &concerned) {
            tracing::warn!("{refusal}");
        }
        Ok(Departure {
            changed,
            generation,
            is_cut: false,
        })
    }

    /// Waits until the driver has removed the ports of a departure.
    pub(super) fn await_cut(&self, departure: &mut Departure) {
        let has_worked = self.await_driver();
        let generation = self.driver.as_ref().map(|driver| driver.generation());
        departure.is_cut = has_worked && generation == departure.generation;
    }

    /// Waits until the driver has carried out its requests. Returns whether it has.
    pub(super) fn await_driver(&self) -> bool {
        match self.driver.as_ref().map(|driver| driver.sync()) {
            Some(Ok(errors)) => {
                log_errors(&errors);
                true
            }
            // It has been killed, and forwards nothing.
            Some(Err(error)) => {
                tracing::warn!("{error}");
                false
            }
            None => true,
        }
    }

    /// Waits until the remaining processes have acknowledged departures. The caller needs no turn,
    /// if no other change of these domains is made meanwhile.
    pub(super) fn await_acknowledgements(&self, departure: &Departure) {
        self.complete(&departure.changed, self.ack_timeout);
    }

    /// Completes acknowledged departures, in a turn.
    pub(super) fn finish_departure(&self, departure: Departure) {
        let Departure {
            changed,
            generation,
            is_cut,
        } = departure;
        let directory = self.members.directory(Directory::clone);
        // After the cut: until then the rates of leavers hold, and the proxy delays no revocation.
        self.settle_rates(changed.iter().map(|changed| {
            let domain = &changed.change.domain;
            directory.domain_by_id(domain.id.into()).unwrap_or(domain)
        }));
        if !is_cut {
            let changes = changed.iter().map(|changed| &changed.change);
            self.await_removal(
                changes.map(|change| (&change.domain, &change.left)),
                generation,
            );
        }
        self.settle_gateways();
    }

    /// Whether a change removes gateways of the domain from its members.
    fn loses_gateways(&self, changed: &Domain) -> bool {
        let has_more = |directory: &Directory| {
            let present = directory.domain(&changed.name);
            present.is_ok_and(|domain| domain.gateways.len() > changed.gateways.len())
        };
        self.members.directory(has_more)
    }

    /// Updates the default routes of all members, and waits for the driver. Fails if the node of a
    /// new gateway does.
    pub(super) fn lead_members(
        &self,
        domain: &Domain,
        gateway: Option<NodeId>,
    ) -> Result<(), Refusal> {
        self.tell_ports(domain);
        // A member whose root has removed its interface concerns no other.
        self.sync_ports(domain, |node| Some(node) == gateway)
    }

    /// Sends the ports of all members to the driver. The caller waits for the driver afterwards.
    pub(super) fn tell_ports(&self, domain: &Domain) {
        let Some(driver) = &self.driver else {
            return;
        };
        let directory = self.members.directory(Directory::clone);
        self.tell_remote(domain, &directory);
        let ways = self.gateways.ways();
        for node in domain.members.keys().filter_map(|id| self.node(*id)) {
            if let Some(port) = port(domain, node, self.torus, self.interfaces, &ways) {
                driver.add(port, node.network());
            }
        }
    }

    /// Sends the driver the members of a domain that other hosts carry in this directory. The
    /// caller waits for the driver afterwards.
    fn tell_remote(&self, domain: &Domain, directory: &Directory) {
        if let (Some(driver), Some(cluster)) = (&self.driver, &self.cluster) {
            let remote = remote_ports_of(domain, directory, cluster, self.interfaces);
            driver.set_remote(domain.id.into(), remote);
        }
    }

    fn forget_remote(&self, domain: &Domain) {
        if let Some(driver) = &self.driver {
            driver.set_remote(domain.id.into(), Vec::new());
        }
    }

    /// Does the same for the domains of nodes that went to other hosts.
    pub(crate) fn tell_moved(&self, directory: &Directory, moved: &BTreeSet<NodeId>) {
        let domains = moved.iter().flat_map(|node| directory.domains_of(*node));
        let domains: BTreeMap<u16, &Domain> = domains.map(|domain| (domain.id, domain)).collect();
        for domain in domains.into_values() {
            self.tell_remote(domain, directory);
        }
    }

    /// Does the same for all domains.
    pub(crate) fn tell_all_remote(&self, directory: &Directory) {
        for domain in directory.domains() {
            self.tell_remote(domain, directory);
        }
    }

    /// Completes changes: waits for acknowledgements, a little longer for each change when there
    /// are several.
    pub(crate) fn complete(&self, changed: &[Changed], timeout: Duration) {
        let deadline = Instant::now() + timeout + ACK_TIMEOUT_EACH * changed.len() as u32;
        for changed in changed {
            self.await_members(changed, deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn tell_epoch(&self, domain: &Domain) {
        if let Some(driver) = &self.driver {
            driver.set_epoch(domain.id.into(), domain.epoch);
        }
    }

    fn await_members(&self, changed: &Changed, timeout: Duration) {
        let fenced = |nodes: &_| self.invalidate_registrations(nodes);
        let late = self.members.complete(changed, timeout, fenced);
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
        self.tell_remote(&change.domain, directory);
        let is_torus = self.emulation.fabric.is_some();
        let has_base = self.base.ethernet().is_some();
        if is_torus && has_base {
            self.tell_links(&change.domain);
        } else if is_torus {
            // Until the latency of Ethernet without links has been measured.
            driver.set_links(change.domain.id.into(), None);
        }
        let ways = self.gateways.ways();
        for node in change.joined.iter().filter_map(|id| self.node(*id)) {
            if let Some(port) = port(&change.domain, node, self.torus, self.interfaces, &ways) {
                driver.add(port, node.network());
            }
        }
        drop(ways);
        if change.joined.iter().any(|id| self.node(*id).is_some()) {
            self.sync_ports(&change.domain, |node| change.joined.contains(&node))?;
        }
        if is_torus && !has_base {
            self.measure_ethernet(&change.domain);
            self.tell_all_links();
            self.tell_links(&change.domain);
        }
        Ok(())
    }

    /// Waits until the driver has carried out its requests. Fails for an error of one of the nodes
    /// in question.
    pub(super) fn sync_ports(
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
        // Other errors are of ports that were sent again to a new driver.
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

    /// Sends the removal of ports to the driver. [`Host::await_removal`] follows.
    fn tell_to_remove(&self, domain: &Domain, nodes: &BTreeSet<NodeId>) {
        let Some(driver) = &self.driver else {
            return;
        };
        for node in nodes {
            driver.remove(domain.id.into(), node.0);
        }
    }

    /// Returns when nothing passes the removed ports any more. `generation` is that of the driver
    /// before the removal was sent.
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
        // A driver that has died forwards nothing, and its successor does not get these ports. But
        // their interfaces outlive it.
        if result.is_err() || Some(driver.generation()) != generation {
            for (domain, nodes) in ports {
                self.delete_interfaces(domain, nodes);
            }
        }
    }

    /// Deletes existing interfaces that no driver holds.
    fn delete_interfaces(&self, domain: &Domain, nodes: &BTreeSet<NodeId>) {
        for node in nodes.iter().filter_map(|id| self.node(*id)) {
            let cut = self
                .driver
                .as_ref()
                .map(|its| its.cut(domain.id.into(), node.id.0));
            let deleted = delete_interface(node, &domain.name);
            for error in cut.and_then(Result::err).into_iter().chain(deleted.err()) {
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
}
