//! Changes of membership: the grants that end, acknowledgements, and fences for processes that do
//! not acknowledge.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use toroid_fabric::mem::fence::settle;
use toroid_fabric::{NodeId, Partition, RegionId};
use toroid_model::directory::{Change, Directory};
use toroid_protocol::agent::Event;

use super::kept::channel_key;
use super::migration::Migration;
use super::{Attachment, AttachmentId, ChannelRecord, Members, Service, State};

/// Most removed domains that are remembered.
const REMOVED: usize = 64;

/// A change of membership that has been made, and the processes that must acknowledge it.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) change: Change,
    pub(super) waiting_for: Vec<AttachmentId>,
    pub(crate) leavers: Vec<AttachmentId>,
    pub(crate) migrations: Vec<Arc<Migration>>,
}

impl Changed {
    pub(crate) fn partition(&self) -> Partition {
        Partition(self.change.domain.id.into())
    }
}

impl Members {
    /// Notes that a process has dropped everything of nodes that left before this epoch.
    pub(crate) fn acknowledge(&self, id: AttachmentId, partition: u32, epoch: u32) {
        let mut state = self.lock();
        if let Some(attachment) = state.attachments.get_mut(&id) {
            attachment.fences.acknowledge(Partition(partition), epoch);
        }
        let Some(domain) = state.directory.domain_by_id(partition) else {
            return;
        };
        let present = domain.epoch;
        if let Some(attachment) = state.attachments.get_mut(&id) {
            // An epoch that has not come cannot be acknowledged.
            let epoch = epoch.min(present);
            let known = attachment.epochs.entry(Partition(partition)).or_default();
            *known = epoch.max(*known);
            self.acknowledged.notify_all();
        }
    }

    /// Makes a change of membership, whose directory is durable ([`Members::keep`]): ends grants to
    /// and of leavers, and tells every process concerned.
    pub(crate) fn change(&self, change: Change, directory: Directory) -> Changed {
        let mut state = self.lock();
        state.directory = directory;
        if state
            .directory
            .domain_by_id(change.domain.id.into())
            .is_none()
        {
            state.removed.truncate(REMOVED - 1);
            let removed = (change.domain.name.clone(), change.left.clone());
            state.removed.push_front(removed);
        }
        let (changed, ended) = self.begin(&mut state, change);
        drop(state);
        drop(ended);
        changed
    }

    /// Also returns the memory that is to be dropped without the lock.
    pub(super) fn begin(&self, state: &mut State, change: Change) -> (Changed, Vec<File>) {
        // First, so that leavers' operations in flight do not last as long as the preparation of
        // migrations.
        let leavers = state.announce(&change, &change.left);
        state.fence_leavers(&leavers, &change);
        let mut ended = self.revoke(state, &change);
        let (migrations, lost) = self.start_migrations(state, &change);
        let lost = lost.into_iter();
        ended.extend(lost.filter_map(|region| self.end_region(state, region, true)));
        state.change_links(&change.domain, &change.joined, !change.left.is_empty());
        let waiting_for = state.announce(&change, &change.domain.nodes());
        let changed = Changed {
            change,
            waiting_for,
            leavers,
            migrations,
        };
        (changed, ended)
    }

    /// Ends grants of and to leavers. Returns the memory that is to be dropped without the lock.
    fn revoke(&self, state: &mut State, change: &Change) -> Vec<File> {
        if change.left.is_empty() {
            return Vec::new();
        }
        let partition = Partition(change.domain.id.into());
        let left = |node: NodeId| change.left.contains(&node);
        let services: Vec<Service> = state.listeners.keys().copied().collect();
        for service in services {
            if service.partition == partition && left(service.node) {
                state.end_listener(service);
            }
        }
        state.revoke_channels(partition, left);
        let regions: Vec<RegionId> = self
            .regions
            .iter()
            .filter(|record| record.key.partition == partition && left(record.key.node))
            .map(|record| record.key.id)
            .collect();
        // Openers get the epoch.
        let end = |region| self.end_region(state, region, false);
        regions.into_iter().filter_map(end).collect()
    }

    /// Waits until every remaining process has acknowledged a change or ended. Fences those that
    /// are late, and releases migrations. `fenced` is called before with the nodes of late
    /// processes, if there are any. Returns the number of late processes.
    pub(crate) fn complete(
        &self,
        changed: &Changed,
        timeout: Duration,
        fenced: impl FnOnce(&BTreeSet<NodeId>),
    ) -> usize {
        let (partition, epoch) = (changed.partition(), changed.change.domain.epoch);
        let late = self.await_epoch(&changed.waiting_for, partition, epoch, timeout);
        let mut gone = changed.change.left.clone();
        if !late.is_empty() {
            let nodes = self.fence(partition, &late);
            fenced(&nodes);
            gone.extend(nodes);
        }
        self.release_migrations(changed, &gone);
        self.lock().forget_leaving(partition);
        late.len()
    }

    /// Waits until these processes have acknowledged an epoch or ended. Returns the late ones.
    pub(super) fn await_epoch(
        &self,
        of: &[AttachmentId],
        partition: Partition,
        epoch: u32,
        timeout: Duration,
    ) -> Vec<AttachmentId> {
        let late = |state: &State| -> Vec<AttachmentId> {
            let late = |id: &&AttachmentId| {
                let attachment = state.attachments.get(id);
                attachment.is_some_and(|a| a.epochs.get(&partition).is_none_or(|e| *e < epoch))
            };
            of.iter().filter(late).copied().collect()
        };
        let mut state = self.lock();
        self.acknowledged
            .wait_while_for(&mut state, |state| !late(state).is_empty(), timeout);
        late(&state)
    }

    /// Fences processes as if they had left: a stopped one finds out when it continues. Returns
    /// their nodes.
    fn fence(&self, partition: Partition, late: &[AttachmentId]) -> BTreeSet<NodeId> {
        let mut state = self.lock();
        let (mut ended, mut nodes) = (Vec::new(), BTreeSet::new());
        for id in late {
            nodes.extend(state.attachments.get(id).map(|attachment| attachment.node));
            ended.extend(self.end_grants(&mut state, *id, partition));
        }
        drop(state);
        if let Err(error) = settle() {
            tracing::error!("cannot make sure that a fence is seen: {error}");
        }
        drop(ended);
        nodes
    }

    /// Ends all grants of a process in a partition. Returns the memory that is to be dropped
    /// without the lock.
    fn end_grants(&self, state: &mut State, id: AttachmentId, partition: Partition) -> Vec<File> {
        let Some(attachment) = state.attachments.get_mut(&id) else {
            return Vec::new();
        };
        attachment.fences.end(partition);
        let number = partition.0;
        let fenced = Event::Fenced { partition: number };
        attachment.outbox.event(fenced, vec![]);
        if let Some(attachment) = state.attachments.get(&id) {
            state.note_attachment(id, attachment);
        }
        let in_it = |region: &RegionId| {
            let record = self.regions.get(region);
            record.is_some_and(|record| record.key.partition == partition)
        };
        let Some(attachment) = state.attachments.get_mut(&id) else {
            return Vec::new();
        };
        let opened: Vec<_> = attachment.opened.extract_if(in_it).collect();
        let owned: Vec<_> = attachment.regions.iter().copied().filter(in_it).collect();
        for region in opened {
            if let Some(mut record) = self.regions.get_mut(&region) {
                record.openers.remove(&id);
                state.note_region(&record);
            }
        }
        let services = state.services_of(id);
        for service in services {
            if service.partition == partition {
                state.end_listener(service);
            }
        }
        let ends = |channel: &ChannelRecord| channel.ends.iter().any(|(end, _)| *end == id);
        let channels = state.channels.iter();
        let channels = channels.filter(|(_, c)| c.partition == partition && ends(c));
        let channels: Vec<u64> = channels.map(|(channel, _)| *channel).collect();
        channels
            .into_iter()
            .for_each(|channel| state.end_channel(channel));
        let end = |region| self.end_region(state, region, true);
        owned.into_iter().filter_map(end).collect()
    }
}

impl State {
    /// Removes channels of leavers. Their ends get the epoch.
    fn revoke_channels(&mut self, partition: Partition, left: impl Fn(NodeId) -> bool) {
        let (attachments, fd_store) = (&mut self.attachments, &self.fd_store);
        self.channels.retain(|id, channel| {
            let cut = channel.ends.iter().any(|(_, node)| left(*node));
            let ended = channel.partition == partition && cut;
            if ended {
                fd_store.remove(&channel_key(*id));
                for (end, _) in channel.ends {
                    if let Some(end) = attachments.get_mut(&end) {
                        end.channels.remove(id);
                    }
                }
            }
            !ended
        });
    }

    /// Fences the shared memory of leavers, which may not listen, before any page of it is removed:
    /// they would read zeros instead of bytes.
    fn fence_leavers(&mut self, leavers: &[AttachmentId], change: &Change) {
        let partition = Partition(change.domain.id.into());
        for id in leavers {
            if let Some(attachment) = self.attachments.get_mut(id) {
                attachment.fences.leave(partition, change.domain.epoch);
            }
            if let Some(attachment) = self.attachments.get(id) {
                self.note_attachment(*id, attachment);
            }
        }
    }

    /// Sends a change to every process of these nodes; returns them.
    fn announce(&self, change: &Change, nodes: &BTreeSet<NodeId>) -> Vec<AttachmentId> {
        let event = Event::Epoch {
            partition: change.domain.id.into(),
            epoch: change.domain.epoch,
            left: change.left.iter().map(|node| node.0).collect(),
        };
        let of_these = self.attachments.iter();
        let of_these = of_these.filter(|(_, attachment)| nodes.contains(&attachment.node));
        let tell = |(id, attachment): (&AttachmentId, &Attachment)| {
            attachment.outbox.event(event.clone(), vec![]);
            *id
        };
        of_these.map(tell).collect()
    }
}
