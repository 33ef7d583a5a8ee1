//! Listeners and channels of attached processes.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use parking_lot::MutexGuard;
use toroid_fabric::shm::ChannelEnds;
use toroid_fabric::shm::RING_BYTES;
use toroid_fabric::{NodeId, Partition, Place};
use toroid_model::directory::Domain;
use toroid_model::rdma::Rdma;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{ChannelInfo, Event, RemoteInfo, Reply};

use super::fences::Granted;
use super::kept::channel_key;
use super::{
    AttachmentId, ChannelRecord, MAX_CHANNELS, Members, RETURN, Service, State, check_may_talk,
    check_member, no_memory, usage, within,
};

/// Most channels that processes of one node open to one process: others want to reach it, too.
const MAX_CHANNELS_OF_PEER: usize = MAX_CHANNELS / 8;

/// The most listeners of one process.
const MAX_LISTENERS: usize = 256;

impl Members {
    /// Lets a process accept channels.
    pub(crate) fn listen(
        &self,
        id: AttachmentId,
        domain: &str,
        protocol: u16,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        let service = state.service(id, domain, protocol)?;
        if state.listeners.contains_key(&service) {
            return Err(Refusal::new(
                RefusalKind::Exists,
                format!(
                    "a process of this node listens for protocol {protocol} in {domain} already"
                ),
                "end it first",
            ));
        }
        let attachment = state.attachment(id)?;
        within("listeners", attachment.listeners, MAX_LISTENERS)?;
        attachment.listeners += 1;
        state.listeners.insert(service, id);
        state.keep_listener(service, id);
        Ok(())
    }

    /// Ends a listener.
    pub(crate) fn unlisten(
        &self,
        id: AttachmentId,
        domain: &str,
        protocol: u16,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        let service = state.service(id, domain, protocol)?;
        if state.listeners.get(&service) != Some(&id) {
            return Err(Refusal::new(
                RefusalKind::NotFound,
                format!("this process does not listen for protocol {protocol} in {domain}"),
                "end only what it has begun",
            ));
        }
        state.end_listener(service);
        Ok(())
    }

    /// Connects a process to a listener, and replies with its end.
    pub(crate) fn connect(
        &self,
        id: AttachmentId,
        domain: &str,
        place: Place,
        protocol: u16,
    ) -> Result<(), Refusal> {
        let (ours, theirs) = ChannelEnds::create(RING_BYTES).map_err(|error| no_memory(&error))?;
        let mut state = self.await_listener(domain, place, protocol);
        let (partition, node) = state.membership(id, domain)?;
        let (peer, listener) = state.listener_at(domain, place, protocol)?;
        check_may_talk(
            &state.directory,
            state.directory.domain(domain)?,
            node,
            peer,
        )?;
        if listener == id {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                "a process cannot connect to itself",
                "attach a second time",
            ));
        }
        state.check_quotas(node, &usage::of_channel())?;
        let of_peer = state.channels_between(listener, node);
        within("channels to one listener", of_peer, MAX_CHANNELS_OF_PEER)?;
        for end in [id, listener] {
            let channels = state.attachment(end)?.channels.len();
            within("channels", channels, MAX_CHANNELS)?;
        }
        let channel = state.take_number();
        let torus = state.directory.torus();
        let fences = [id, listener].map(|end| state.slot(end, partition, Granted::Shared));
        let info = |peer: NodeId, domain: &Domain, fence: u32| ChannelInfo {
            id: channel,
            domain: domain.name.clone(),
            partition: partition.0,
            epoch: domain.epoch,
            peer: peer.0,
            place: torus.place(peer).unwrap_or(place),
            protocol,
            fence,
        };
        let [ours_fence, theirs_fence] = fences;
        let domain = state.directory.domain(domain)?;
        let for_us = info(peer, domain, ours_fence?);
        let for_them = info(node, domain, theirs_fence?);
        let record = ChannelRecord {
            partition,
            ends: [(id, node), (listener, peer)],
        };
        state.keep_channel(channel, &record);
        state.channels.insert(channel, record);
        let them = state.attachment(listener)?;
        them.channels.insert(channel);
        let event = Event::Incoming(for_them);
        them.outbox.event(event, theirs.into_fds().into());
        let us = state.attachment(id)?;
        us.channels.insert(channel);
        let reply = Reply::Channel(for_us);
        us.outbox.reply(reply, ours.into_fds().into());
        Ok(())
    }

    /// Waits while the listening process is about to come back to this agent: an absent process
    /// would not hear of a channel.
    fn await_listener(&self, domain: &str, place: Place, protocol: u16) -> MutexGuard<'_, State> {
        let is_absent = |state: &mut State| {
            let listener = state.listener_at(domain, place, protocol);
            let attachment = listener.ok().and_then(|(_, id)| state.attachments.get(&id));
            attachment.is_some_and(|attachment| attachment.outbox.is_absent())
        };
        let mut state = self.lock();
        self.acknowledged
            .wait_while_for(&mut state, is_absent, RETURN);
        state
    }

    /// Ends a channel of this process, if there is one.
    pub(crate) fn disconnect(&self, id: AttachmentId, channel: u64) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.attachment(id)?.channels.remove(&channel) {
            state.end_channel(channel);
        }
        Ok(())
    }

    /// Nodes of this host with a listener, with which `node` may talk.
    pub(crate) fn listening(
        &self,
        partition: Partition,
        node: NodeId,
        protocol: u16,
    ) -> BTreeSet<NodeId> {
        let state = self.lock();
        let Some(domain) = state.directory.domain_by_id(partition.0) else {
            return BTreeSet::new();
        };
        let wanted = |s: &&Service| {
            let is_it = s.partition == partition && s.protocol == protocol;
            is_it && domain.may_talk(node, s.node)
        };
        let services = state.listeners.keys().filter(wanted);
        services.map(|service| service.node).collect()
    }

    /// Refuses a service without a listener.
    pub(crate) fn check_listener(
        &self,
        domain: &str,
        place: Place,
        protocol: u16,
    ) -> Result<(), Refusal> {
        let state = self.await_listener(domain, place, protocol);
        state.listener_at(domain, place, protocol).map(drop)
    }

    /// Replies with a connection to a member on another host, if the two may still talk.
    pub(crate) fn grant_remote(
        &self,
        id: AttachmentId,
        domain: &str,
        place: Place,
        rdma: Option<Rdma>,
        connection: OwnedFd,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        let (partition, _, peer) = state.partner(id, domain, place)?;
        let epoch = state.directory.domain(domain)?.epoch;
        let fence = state.slot(id, partition, Granted::Shared)?;
        let remote = Reply::Remote(RemoteInfo {
            partition: partition.0,
            epoch,
            peer: peer.0,
            fence,
            rdma,
        });
        state.attachment(id)?.outbox.reply(remote, vec![connection]);
        Ok(())
    }
}

impl State {
    /// Partition, node of a process, and another member.
    pub(crate) fn fellow(
        &mut self,
        id: AttachmentId,
        domain: &str,
        place: Place,
    ) -> Result<(Partition, NodeId, NodeId), Refusal> {
        let (partition, node) = self.membership(id, domain)?;
        let members = &self.directory.domain(domain)?.members;
        let peer = self.directory.torus().node(place);
        let peer = peer
            .filter(|peer| members.contains_key(peer))
            .ok_or_else(|| {
                Refusal::new(
                    RefusalKind::NotFound,
                    format!("node {place} is not a member of domain {domain}"),
                    format!("see `toroid domain show {domain}`"),
                )
            })?;
        Ok((partition, node, peer))
    }

    /// Partition, node of a process, and another member with which it may talk.
    pub(crate) fn partner(
        &mut self,
        id: AttachmentId,
        domain: &str,
        place: Place,
    ) -> Result<(Partition, NodeId, NodeId), Refusal> {
        let (partition, node, peer) = self.fellow(id, domain, place)?;
        let domain = self.directory.domain(domain)?;
        check_may_talk(&self.directory, domain, node, peer)?;
        Ok((partition, node, peer))
    }

    /// Service of a process, if its node is a member.
    fn service(
        &mut self,
        id: AttachmentId,
        domain: &str,
        protocol: u16,
    ) -> Result<Service, Refusal> {
        let (partition, node) = self.membership(id, domain)?;
        Ok(Service {
            partition,
            node,
            protocol,
        })
    }

    fn listener_at(
        &self,
        domain: &str,
        place: Place,
        protocol: u16,
    ) -> Result<(NodeId, AttachmentId), Refusal> {
        let node = self.directory.torus().node(place);
        let node = node.ok_or_else(|| Refusal::no_such_node(place))?;
        check_member(&self.directory, domain, node)?;
        let service = Service {
            partition: Partition(self.directory.domain(domain)?.id.into()),
            node,
            protocol,
        };
        let nobody = || {
            Refusal::new(
                RefusalKind::NotFound,
                format!("nobody at {place} listens for protocol {protocol} in {domain}"),
                "start the process that shall listen there first",
            )
        };
        let listener = self.listeners.get(&service).ok_or_else(nobody)?;
        Ok((node, *listener))
    }

    /// Number of channels to a listener that processes of a node have opened.
    fn channels_between(&self, listener: AttachmentId, node: NodeId) -> usize {
        let channels = self.channels.values();
        let between = |channel: &&ChannelRecord| {
            let [(_, opener), (end, _)] = channel.ends;
            opener == node && end == listener
        };
        channels.filter(between).count()
    }

    pub(super) fn end_listener(&mut self, service: Service) {
        let owner = self.listeners.remove(&service);
        self.forget_listener(service);
        if let Some(owner) = owner.and_then(|owner| self.attachments.get_mut(&owner)) {
            owner.listeners -= 1;
        }
    }

    /// Removes a channel and tells the ends that have not ended it themselves.
    pub(super) fn end_channel(&mut self, id: u64) {
        let Some(channel) = self.channels.remove(&id) else {
            return;
        };
        self.fd_store.remove(&channel_key(id));
        for (end, _) in channel.ends {
            if let Some(end) = self.attachments.get_mut(&end)
                && end.channels.remove(&id)
            {
                end.outbox.event(Event::ChannelGone { id }, vec![]);
            }
        }
    }
}
