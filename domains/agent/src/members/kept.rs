//! State of the members in the fd store, and its recovery by the next agent.
//!
//! Everything is stored before the process that it is granted to hears of it. After a takeover the
//! state is as before, with absent processes. Each process comes back with
//! [`Request::Resume`](toroid_protocol::agent::Request::Resume), and lists the grants that it has
//! heard of. A process that does not come back has ended meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toroid_fabric::{Access, NodeId, Partition, RegionId, RemoteKey};
use toroid_model::as_text;
use toroid_model::directory::Directory;
use toroid_model::info::DomainMembers;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Event, Reply};

use super::fences::{Fences, Words};
use super::memories::{Holders, Memories};
use super::migration::Migration;
use super::outbox::Outbox;
use super::unfinished::LEAVING;
use super::{
    Attachment, AttachmentId, ChannelRecord, Members, NUMBERS_A_SECOND, RegionRecord, Service,
    State, writes,
};
use crate::fdstore::takeover::Takeover;
use crate::fdstore::{Entry, FdStore};
use crate::random;

const ATTACHMENT: &str = "attachment/";
const REGION: &str = "region/";
const CHANNEL: &str = "channel/";
const LISTENER: &str = "listener/";
const NUMBERS: &str = "numbers";

/// First number of an agent.
#[derive(Serialize, Deserialize)]
struct KeptNumbers {
    first: u64,
}

#[derive(Serialize, Deserialize)]
struct KeptAttachment {
    node: u32,
    secret: String,
    /// Words of its fence page, which is the descriptor.
    #[serde(flatten)]
    words: Words,
}

/// Record of a region. Its memory is the descriptor, during a migration followed by the
/// [parts](Migration::parts).
#[derive(Serialize, Deserialize)]
struct KeptRegion {
    #[serde(with = "as_text")]
    key: RemoteKey,
    owner: u64,
    len: u64,
    access: u8,
    /// Attachments that opened it, each with whether for writing.
    openers: Vec<(u64, bool)>,
    mapped_by: Holders,
    /// Holders of the old memory during a migration.
    #[serde(default)]
    source_mapped_by: Option<Holders>,
}

#[derive(Serialize, Deserialize)]
struct KeptChannel {
    partition: u32,
    /// Attachments of both ends, with their nodes.
    ends: [(u64, u32); 2],
}

#[derive(Serialize, Deserialize)]
struct KeptListener {
    partition: u32,
    node: u32,
    protocol: u16,
    owner: u64,
}

/// Grants that a returning process has heard of.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub(crate) regions: &'a [u64],
    pub(crate) channels: &'a [u64],
    pub(crate) listeners: &'a [(u32, u16)],
}

impl Members {
    /// Takes over the predecessor's state, and uses its fd store from now on.
    pub(crate) fn inherit(&mut self, fd_store: Arc<FdStore>, takeover: &mut Takeover) {
        let state = self.state.get_mut();
        state.fd_store = fd_store;
        let mut left = Vec::new();
        let mut each = |prefix, inherit: &mut dyn FnMut(&str, Entry) -> Option<()>| {
            for (key, entry) in takeover.inherit_all(prefix) {
                if inherit(&key, entry).is_none() {
                    left.push(key);
                }
            }
        };
        each(ATTACHMENT, &mut |key, entry| {
            state.inherit_attachment(key, entry)
        });
        each(REGION, &mut |_, entry| {
            let record = state.inherit_region(entry)?;
            self.regions.insert(record.key.id, record);
            Some(())
        });
        each(LEAVING, &mut |_, entry| state.inherit_leaving(entry));
        each(CHANNEL, &mut |key, entry| state.inherit_channel(key, entry));
        each(LISTENER, &mut |_, entry| state.inherit_listener(entry));
        left.iter().for_each(|key| state.fd_store.remove(key));
        let attachments = state.attachments.keys().map(|id| id.0);
        let regions = self.regions.iter().map(|region| region.key.id.0);
        let numbers = attachments
            .chain(regions)
            .chain(state.channels.keys().copied());
        // The predecessor may have begun to count in this second, too, and things that it numbered
        // may have ended: its processes may still name them.
        let newest = numbers.max().unwrap_or_default();
        let kept = takeover.inherit(NUMBERS).and_then(Entry::parse);
        let first = kept.map_or(0, |(KeptNumbers { first }, [])| first);
        let beyond = newest.max(first).saturating_add(NUMBERS_A_SECOND);
        state.next = state.next.max(beyond);
        state.keep_numbers();
    }

    /// Puts the whole state into a new fd store.
    pub(crate) fn keep_all(&self) {
        let state = self.lock();
        state.keep_numbers();
        for (id, attachment) in &state.attachments {
            state.keep_attachment(*id, attachment);
        }
        for region in &self.regions {
            state.keep_region(&region);
        }
        for (id, channel) in &state.channels {
            state.keep_channel(*id, channel);
        }
        for (service, owner) in &state.listeners {
            state.keep_listener(*service, *owner);
        }
        for (partition, nodes) in &state.leaving {
            state.keep_leaving(*partition, nodes);
        }
        state.keep_links();
    }

    /// Makes the ticket with which a process comes back to a later agent.
    pub(crate) fn ticket(&self, id: AttachmentId) -> Result<Reply, Refusal> {
        let secret = random::to_hex(&random::bytes::<16>()?);
        let mut state = self.lock();
        state.attachment(id)?.secret = Some(secret.clone());
        state.keep_attachment(id, state.attachments.get(&id).ok_or_else(unknown)?);
        let AttachmentId(attachment) = id;
        Ok(Reply::Ticket { attachment, secret })
    }

    /// Resumes a process on the connection of `fresh`, which has not been used yet. Grants that the
    /// process has not heard of end, and the reply lists the others. Then it gets the migrations,
    /// and the epochs, whose acknowledgement covers the migrations.
    pub(crate) fn resume(
        &self,
        fresh: AttachmentId,
        ticket: (u64, &str),
        known: &Known<'_>,
    ) -> Result<AttachmentId, Refusal> {
        let id = AttachmentId(ticket.0);
        let mut state = self.lock();
        let node = state.attachment(fresh)?.node;
        let old = state.attachments.get(&id).ok_or_else(unknown)?;
        let its = old.node == node && old.secret.as_ref().is_some_and(|s| same(s, ticket.1));
        if !its || !old.outbox.is_absent() || !state.attachment(fresh)?.is_unused() {
            return Err(unknown());
        }
        let fresh = state.attachments.remove(&fresh).ok_or_else(unknown)?;
        let resumed = state.attachment(id)?;
        resumed.outbox = fresh.outbox;
        resumed.emulates = fresh.emulates;
        let mut ended = self.end_unknown(&mut state, id, known);
        let reply = state.resumed(id)?;
        state.attachment(id)?.outbox.reply(reply, vec![]);
        let lost = self.tell_migrations(&state, id).into_iter();
        ended.extend(lost.filter_map(|region| self.end_region(&mut state, region, true)));
        state.tell_all_links(id);
        state.tell_epochs(id)?;
        self.acknowledged.notify_all();
        drop(state);
        drop(ended);
        Ok(id)
    }

    fn end_unknown(&self, state: &mut State, id: AttachmentId, known: &Known<'_>) -> Vec<File> {
        let Ok(attachment) = state.attachment(id) else {
            return Vec::new();
        };
        let regions = attachment.regions.iter().copied();
        let regions: Vec<_> = regions.filter(|r| !known.regions.contains(&r.0)).collect();
        let channels = attachment.channels.iter().copied();
        let channels: Vec<_> = channels.filter(|c| !known.channels.contains(c)).collect();
        for channel in channels {
            if let Ok(attachment) = state.attachment(id) {
                attachment.channels.remove(&channel);
            }
            state.end_channel(channel);
        }
        for service in state.services_of(id) {
            if !known
                .listeners
                .contains(&(service.partition.0, service.protocol))
            {
                state.end_listener(service);
            }
        }
        let end = |region| self.end_region(state, region, true);
        regions.into_iter().filter_map(end).collect()
    }

    /// Detaches processes that have not come back. `forget` is called before with their nodes, if
    /// there are any.
    pub(crate) fn detach_absent(&self, forget: impl FnOnce(&BTreeSet<NodeId>)) {
        let state = self.lock();
        let absent = state
            .attachments
            .iter()
            .filter(|(_, a)| a.outbox.is_absent());
        let (absent, nodes): (Vec<AttachmentId>, BTreeSet<NodeId>) = absent
            .map(|(id, attachment)| (*id, attachment.node))
            .unzip();
        drop(state);
        if !nodes.is_empty() {
            forget(&nodes);
        }
        for id in absent {
            self.detach_if(id, |attachment| attachment.outbox.is_absent());
        }
    }
}

impl State {
    fn inherit_attachment(&mut self, key: &str, entry: Entry) -> Option<()> {
        let id = AttachmentId(key.strip_prefix(ATTACHMENT)?.parse().ok()?);
        let (kept, [page]) = entry.parse::<KeptAttachment, 1>()?;
        let fences = Fences::inherit(page.into(), &kept.words).ok()?;
        let mut attachment = Attachment::new(NodeId(kept.node), Outbox::absent(), fences);
        attachment.secret = Some(kept.secret);
        self.attachments.insert(id, attachment);
        Some(())
    }

    /// Restores a region whose owner is known and still a member.
    fn inherit_region(&mut self, entry: Entry) -> Option<RegionRecord> {
        let (kept, descriptors) = entry.parse_any::<KeptRegion>()?;
        let (key, owner) = (kept.key, AttachmentId(kept.owner));
        if !is_member(&self.directory, key.partition, key.node) {
            return None;
        }
        let access = Access::from_bits_truncate(kept.access);
        let mut files = descriptors.into_iter().map(File::from);
        let memory = files.next()?;
        let migration = match files.next() {
            Some(old) => {
                let (parts, fresh) = ([old, files.next()?], memory.try_clone().ok()?);
                let migration = Migration::resume(key, parts, fresh, kept.len, access);
                Some(Arc::new(migration.ok()?))
            }
            None => None,
        };
        let attachment = self.attachments.get_mut(&owner)?;
        attachment.regions.insert(key.id);
        *self.registered.entry(key.node).or_default() += kept.len;
        let mut openers = HashMap::new();
        for (opener, writes) in kept.openers {
            let opener = AttachmentId(opener);
            if let Some(attachment) = self.attachments.get_mut(&opener)
                && is_member(&self.directory, key.partition, attachment.node)
            {
                attachment.opened.insert(key.id);
                openers.insert(opener, writes);
            }
        }
        let torus = self.directory.torus();
        // An older agent has not stored these holders, and may have granted the old memory to any
        // node.
        let all = || (0..torus.nodes()).map(|node| (NodeId(node), writes(access)));
        let source = kept.source_mapped_by.unwrap_or_else(|| all().collect());
        Some(RegionRecord {
            key,
            owner,
            len: kept.len,
            access,
            memory,
            openers,
            memories: Memories::inherited(kept.mapped_by, migration.as_ref().map(|_| source)),
            migration,
        })
    }

    fn inherit_channel(&mut self, key: &str, entry: Entry) -> Option<()> {
        let id: u64 = key.strip_prefix(CHANNEL)?.parse().ok()?;
        let (kept, []) = entry.parse::<KeptChannel, 0>()?;
        let partition = Partition(kept.partition);
        let ends = kept
            .ends
            .map(|(end, node)| (AttachmentId(end), NodeId(node)));
        let stands = |(end, node): &(AttachmentId, NodeId)| {
            self.attachments.contains_key(end) && is_member(&self.directory, partition, *node)
        };
        if !ends.iter().all(stands) {
            return None;
        }
        for (end, _) in ends {
            self.attachments.get_mut(&end)?.channels.insert(id);
        }
        self.channels.insert(id, ChannelRecord { partition, ends });
        Some(())
    }

    fn inherit_listener(&mut self, entry: Entry) -> Option<()> {
        let (kept, []) = entry.parse::<KeptListener, 0>()?;
        let service = Service {
            partition: Partition(kept.partition),
            node: NodeId(kept.node),
            protocol: kept.protocol,
        };
        if !is_member(&self.directory, service.partition, service.node) {
            return None;
        }
        let owner = AttachmentId(kept.owner);
        self.attachments.get_mut(&owner)?.listeners += 1;
        self.listeners.insert(service, owner);
        Some(())
    }

    /// Makes the reply with the remaining grants of a resumed process.
    fn resumed(&self, id: AttachmentId) -> Result<Reply, Refusal> {
        let attachment = self.attachments.get(&id).ok_or_else(unknown)?;
        let regions = attachment.regions.union(&attachment.opened);
        let services = self.services_of(id).into_iter();
        let domains = self.directory.domains_of(attachment.node);
        Ok(Reply::Resumed {
            regions: regions.map(|region| region.0).collect(),
            channels: attachment.channels.iter().copied().collect(),
            listeners: services.map(|s| (s.partition.0, s.protocol)).collect(),
            domains: domains
                .map(|domain| DomainMembers {
                    partition: domain.id.into(),
                    epoch: domain.epoch,
                    members: domain.members.keys().map(|node| node.0).collect(),
                })
                .collect(),
        })
    }

    fn keep_numbers(&self) {
        let record = KeptNumbers { first: self.next };
        self.fd_store.put(NUMBERS, &record, &[]);
    }

    fn tell_epochs(&self, id: AttachmentId) -> Result<(), Refusal> {
        let attachment = self.attachments.get(&id).ok_or_else(unknown)?;
        for domain in self.directory.domains_of(attachment.node) {
            let event = Event::Epoch {
                partition: domain.id.into(),
                epoch: domain.epoch,
                left: Vec::new(),
            };
            attachment.outbox.event(event, vec![]);
        }
        Ok(())
    }

    pub(super) fn services_of(&self, id: AttachmentId) -> Vec<Service> {
        let its = self.listeners.iter().filter(|(_, owner)| **owner == id);
        its.map(|(service, _)| *service).collect()
    }

    fn keep_attachment(&self, id: AttachmentId, attachment: &Attachment) {
        if let Some(record) = KeptAttachment::of(attachment) {
            let page = attachment.fences.page();
            self.fd_store
                .put(&attachment_key(id), &record, &[page.as_fd()]);
        }
    }

    /// Updates only the record of an attachment.
    pub(super) fn note_attachment(&self, id: AttachmentId, attachment: &Attachment) {
        if let Some(record) = KeptAttachment::of(attachment) {
            self.fd_store.note(&attachment_key(id), &record);
        }
    }

    pub(super) fn forget_attachment(&self, id: AttachmentId) {
        self.fd_store.remove(&attachment_key(id));
    }

    pub(super) fn keep_region(&self, region: &RegionRecord) {
        let mut descriptors = vec![region.memory.as_fd()];
        if let Some(migration) = &region.migration {
            descriptors.extend(migration.parts());
        }
        let (key, record) = (region_key(region.key.id), KeptRegion::of(region));
        self.fd_store.put(&key, &record, &descriptors);
    }

    /// Updates only the record of a region.
    pub(super) fn note_region(&self, region: &RegionRecord) {
        self.fd_store
            .note(&region_key(region.key.id), &KeptRegion::of(region));
    }

    pub(super) fn forget_region(&self, id: RegionId) {
        self.fd_store.remove(&region_key(id));
    }

    pub(super) fn keep_channel(&self, id: u64, channel: &ChannelRecord) {
        let record = KeptChannel {
            partition: channel.partition.0,
            ends: channel.ends.map(|(end, node)| (end.0, node.0)),
        };
        self.fd_store.put(&channel_key(id), &record, &[]);
    }

    pub(super) fn keep_listener(&self, service: Service, owner: AttachmentId) {
        let record = KeptListener {
            partition: service.partition.0,
            node: service.node.0,
            protocol: service.protocol,
            owner: owner.0,
        };
        self.fd_store.put(&listener_key(service), &record, &[]);
    }

    pub(super) fn forget_listener(&self, service: Service) {
        self.fd_store.remove(&listener_key(service));
    }
}

impl KeptAttachment {
    /// Makes the record; `None` for a process that cannot come back.
    fn of(attachment: &Attachment) -> Option<Self> {
        Some(KeptAttachment {
            node: attachment.node.0,
            secret: attachment.secret.clone()?,
            words: attachment.fences.words(),
        })
    }
}

impl KeptRegion {
    fn of(region: &RegionRecord) -> Self {
        KeptRegion {
            key: region.key,
            owner: region.owner.0,
            len: region.len,
            access: region.access.bits(),
            openers: region
                .openers
                .iter()
                .map(|(o, writes)| (o.0, *writes))
                .collect(),
            mapped_by: region.memories.present().clone(),
            source_mapped_by: region.memories.source().cloned(),
        }
    }
}

fn attachment_key(AttachmentId(id): AttachmentId) -> String {
    format!("{ATTACHMENT}{id}")
}

fn region_key(RegionId(id): RegionId) -> String {
    format!("{REGION}{id}")
}

pub(super) fn channel_key(id: u64) -> String {
    format!("{CHANNEL}{id}")
}

fn listener_key(service: Service) -> String {
    let (Partition(partition), NodeId(node)) = (service.partition, service.node);
    format!("{LISTENER}{partition}/{node}/{}", service.protocol)
}

fn is_member(directory: &Directory, partition: Partition, node: NodeId) -> bool {
    let domain = directory.domain_by_id(partition.0);
    domain.is_some_and(|domain| domain.members.contains_key(&node))
}

/// Compares secrets in constant time.
fn same(a: &str, b: &str) -> bool {
    let pairs = a.bytes().zip(b.bytes());
    a.len() == b.len() && pairs.fold(0, |bits, (a, b)| bits | (a ^ b)) == 0
}

fn unknown() -> Refusal {
    Refusal::new(
        RefusalKind::NotFound,
        "the agent knows nothing of this process",
        "it was away for too long; attach anew",
    )
}
