//! Regions of attached processes: allocation, grants to peers, and the ends of both.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

use toroid_fabric::mem::memfd::{is_spoiled, read_only, read_write};
use toroid_fabric::{Access, RegionId, RemoteKey};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Event, Reply};

use super::fences::Granted;
use super::memories::Memories;
use super::migration::memory_for;
use super::outbox::Outbox;
use super::{
    AttachmentId, MAX_REGIONS, Members, RegionRecord, State, check_may_talk, no_memory,
    no_such_region, same_key, within,
};
use crate::random;

impl Members {
    /// Allocates a region and replies with it.
    pub(crate) fn alloc(
        &self,
        id: AttachmentId,
        domain: &str,
        len: u64,
        access: Access,
    ) -> Result<(), Refusal> {
        if len == 0 {
            let message = "a region of 0 bytes is not possible";
            return Err(Refusal::new(
                RefusalKind::Invalid,
                message,
                "ask for 1 byte or more",
            ));
        }
        if len > self.max_bytes {
            return Err(self.too_much(len, 0));
        }
        let memory = memory_for(len, access).map_err(|error| no_memory(&error))?;
        let owners = memory.try_clone().map_err(|error| no_memory(&error))?;
        let secret = random::bytes()?;
        let mut state = self.lock();
        let (partition, node) = state.membership(id, domain)?;
        let registered = state.registered.get(&node).copied().unwrap_or_default();
        if registered.saturating_add(len) > self.max_bytes {
            return Err(self.too_much(len, registered));
        }
        state.check_quotas(node, &super::usage::of_region(len))?;
        let region = RegionId(state.take_number());
        let attachment = state.attachment(id)?;
        within("regions", attachment.regions.len(), MAX_REGIONS)?;
        let fence = state.slot(id, partition, Granted::Own)?;
        state.attachment(id)?.regions.insert(region);
        let key = RemoteKey {
            node,
            partition,
            id: region,
            secret,
        };
        let record = RegionRecord {
            key,
            owner: id,
            len,
            access,
            memory,
            openers: HashMap::new(),
            memories: Memories::default(),
            migration: None,
        };
        // Stored before the reply: a peer may present the key as soon as the owner has it.
        state.keep_region(&record);
        self.regions.insert(region, record);
        let attachment = state.attachment(id)?;
        let reply = Reply::Region {
            key,
            len,
            fence,
            moving: false,
        };
        attachment.outbox.reply(reply, vec![owners.into()]);
        state.registered.insert(node, registered + len);
        Ok(())
    }

    pub(super) fn too_much(&self, len: u64, registered: u64) -> Refusal {
        Refusal::new(
            RefusalKind::Exhausted,
            format!(
                "a region of {len} bytes is too much: the node has registered {registered} of at \
                 most {}",
                self.max_bytes
            ),
            "free other regions first",
        )
    }

    /// Frees a region of this process.
    pub(crate) fn free(&self, id: AttachmentId, key: RemoteKey) -> Result<(), Refusal> {
        let mut state = self.lock();
        let attachment = state.attachment(id)?;
        if !attachment.regions.remove(&key.id) {
            return Err(no_such_region());
        }
        let ended = self.end_region(&mut state, key.id, true);
        drop(state);
        drop(ended);
        Ok(())
    }

    /// Replies with a region of a peer.
    pub(crate) fn open(
        &self,
        id: AttachmentId,
        key: RemoteKey,
        access: Access,
    ) -> Result<(), Refusal> {
        {
            let record = self.regions.get(&key.id);
            let record = record.filter(|record| same_key(&record.key, &key));
            record.ok_or_else(no_such_region)?.permit(access)?;
        }
        let mut state = self.lock();
        let node = state.attachment(id)?.node;
        let domain = state.directory.domain_by_id(key.partition.0);
        let members = domain.map(|domain| &domain.members);
        if !members
            .is_some_and(|members| members.contains_key(&node) && members.contains_key(&key.node))
        {
            return Err(Refusal::new(
                RefusalKind::Denied,
                "the two nodes are not members of the region's domain",
                "see who is with `toroid domain show`; its owner can change it with `toroid \
                 domain grow`",
            ));
        }
        if let Some(domain) = domain {
            check_may_talk(&state.directory, domain, node, key.node)?;
        }
        state.check_stays(key.partition, node)?;
        let attachment = state.attachment(id)?;
        if !attachment.opened.contains(&key.id) {
            within("open regions", attachment.opened.len(), MAX_REGIONS)?;
        }
        let fence = state.slot(id, key.partition, Granted::Shared)?;
        // Under the lock, so that it is the present memory.
        self.end_spoiled(&mut state, key)?;
        let mut record = self.regions.get_mut(&key.id).ok_or_else(no_such_region)?;
        let memory = record.hand_out(access).map_err(|error| no_memory(&error))?;
        let writes = writes(access);
        *record.openers.entry(id).or_default() |= writes;
        record.memories.grant(node, writes);
        state.note_region(&record);
        let (len, moving) = (record.len, record.migration.is_some());
        if writes {
            self.compact(&record);
        }
        drop(record);
        let attachment = state.attachment(id)?;
        attachment.opened.insert(key.id);
        let reply = Reply::Region {
            key,
            len,
            fence,
            moving,
        };
        let descriptors = memory.into_iter().map(Into::into).collect();
        attachment.outbox.reply(reply, descriptors);
        Ok(())
    }

    /// Ends a region that cannot be granted because a process with write access has sealed it.
    fn end_spoiled(&self, state: &mut State, key: RemoteKey) -> Result<(), Refusal> {
        let is_whole = |record: &RegionRecord| matches!(is_spoiled(&record.memory), Ok(false));
        if self
            .regions
            .get(&key.id)
            .is_none_or(|record| is_whole(&record))
        {
            return Ok(());
        }
        tracing::error!("region {key:?} ends: a process that may write it has sealed it");
        drop(self.end_region(state, key.id, true));
        Err(no_such_region())
    }

    /// Removes a region. Returns its memory, to be dropped without the lock: the kernel takes a
    /// while to free gigabytes.
    pub(super) fn end_region(
        &self,
        state: &mut State,
        region: RegionId,
        tell_users: bool,
    ) -> Option<File> {
        let (_, record) = self.regions.remove(&region)?;
        self.compactor.stop(region);
        state.forget_region(region);
        if let Some(bytes) = state.registered.get_mut(&record.key.node) {
            *bytes -= record.len;
        }
        if let Some(owner) = state.attachments.get_mut(&record.owner) {
            owner.regions.remove(&region);
        }
        if let Some(migration) = &record.migration {
            migration.is_over.store(true, Ordering::Relaxed);
        }
        if tell_users {
            let gone = Event::RegionGone { key: record.key };
            record.tell_users(state, |outbox| outbox.event(gone.clone(), vec![]));
        }
        for opener in record.openers.keys() {
            if let Some(opener) = state.attachments.get_mut(opener) {
                opener.opened.remove(&region);
            }
        }
        Some(record.memory)
    }
}

impl RegionRecord {
    fn permit(&self, access: Access) -> Result<(), Refusal> {
        if !access.is_empty() && self.access.contains(access) {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalKind::Denied,
            format!("the region's owner has not given the right {access:?}"),
            "ask for less, or let the owner allocate it with more",
        ))
    }

    /// Opens a descriptor with exactly these rights; during a migration also its companions.
    pub(super) fn hand_out(&self, access: Access) -> io::Result<Vec<File>> {
        let mut files = vec![if writes(access) {
            read_write(&self.memory)?
        } else {
            read_only(&self.memory)?
        }];
        if let Some(migration) = &self.migration {
            files.extend(migration.companions()?);
        }
        Ok(files)
    }

    /// Tells the owner and all openers of the region.
    pub(super) fn tell_users(&self, state: &State, tell: impl Fn(&Outbox)) {
        let users = self.users();
        users
            .filter_map(|user| state.attachments.get(&user))
            .for_each(|user| tell(&user.outbox));
    }

    pub(crate) fn users(&self) -> impl Iterator<Item = AttachmentId> {
        let others = self.openers.keys().filter(|user| **user != self.owner);
        others.chain([&self.owner]).copied()
    }
}

pub(super) fn writes(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}
