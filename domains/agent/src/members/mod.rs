//! Grants of attached processes: regions, listeners and channels; and membership, because all of
//! these are granted to members only.
//!
//! A grant and a membership change are decided under one lock, and their messages are queued under
//! it. So a process hears of a grant before it hears of its end.

mod compaction;
mod fences;
pub(crate) mod memories;
pub(crate) mod migration;
pub(crate) mod outbox;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dashmap::DashMap;
use parking_lot::{Condvar, Mutex, MutexGuard};
use toroid_fabric::os::thread::urgently;
use toroid_fabric::{Access, NodeId, Partition, RegionId, RemoteKey};
use toroid_model::directory::{Directory, Domain};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::Reply;

use crate::control::requests::Deciding;
use crate::fdstore::FdStore;
use crate::leases::Leases;
use crate::store::{RecoveringStore, Store};
use compaction::Compactor;
use fences::{Fences, Granted};
use memories::Memories;
use migration::{Migration, Migrations};
use outbox::Outbox;

mod kept;
mod links;
mod needs;
mod regions;
mod revocation;
mod services;
mod unfinished;
mod usage;

pub(crate) use kept::Known;
pub(crate) use links::Emulated;
use regions::writes;
pub(crate) use revocation::Changed;
pub(crate) use usage::owners;

/// The most regions of one process.
const MAX_REGIONS: usize = 4096;

/// The most channel ends of one process.
const MAX_CHANNELS: usize = 4096;

/// Time for processes of the predecessor to come back.
pub(crate) const RETURN: Duration = Duration::from_secs(2);

/// Number of an attached process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttachmentId(u64);

/// All grants of attached processes.
#[derive(Debug)]
pub(crate) struct Members {
    state: Mutex<State>,
    /// Store of the directory. Used without the lock of the state, because a disk takes its time.
    store: Mutex<RecoveringStore>,
    /// Request whose change is planned.
    deciding: Mutex<Option<Deciding>>,
    /// Deadlines of members of fenced domains.
    leases: Arc<Leases>,
    /// Signals an acknowledged epoch, or the end of a process.
    acknowledged: Condvar,
    /// Regions. Looked up without the lock of the state; changed only with it.
    pub(crate) regions: DashMap<RegionId, RegionRecord>,
    /// Migrations for the copying thread.
    pub(crate) migrations: mpsc::Sender<Arc<Migration>>,
    pub(crate) compactor: Compactor,
    /// Most registered bytes of one node.
    max_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    fd_store: Arc<FdStore>,
    directory: Directory,
    pub(crate) attachments: BTreeMap<AttachmentId, Attachment>,
    listeners: HashMap<Service, AttachmentId>,
    channels: HashMap<u64, ChannelRecord>,
    registered: HashMap<NodeId, u64>,
    links: links::Links,
    /// Leavers of incomplete changes.
    leaving: BTreeMap<Partition, BTreeSet<NodeId>>,
    /// Names and last members of the domains that were removed last.
    removed: VecDeque<(String, BTreeSet<NodeId>)>,
    next: u64,
}

/// Service of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Service {
    partition: Partition,
    node: NodeId,
    protocol: u16,
}

#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) node: NodeId,
    pub(crate) outbox: Outbox,
    /// Secret of its ticket for the next agent.
    secret: Option<String>,
    fences: Fences,
    epochs: HashMap<Partition, u32>,
    regions: HashSet<RegionId>,
    pub(crate) opened: HashSet<RegionId>,
    channels: HashSet<u64>,
    listeners: usize,
    /// Whether the process emulates the links of its node.
    emulates: bool,
}

#[derive(Debug)]
pub(crate) struct RegionRecord {
    pub(crate) key: RemoteKey,
    pub(crate) owner: AttachmentId,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// Present memory.
    pub(crate) memory: File,
    /// Attachments that have opened it, each with whether for writing.
    pub(crate) openers: HashMap<AttachmentId, bool>,
    /// Nodes that may have its memories mapped. The processes themselves may have passed them on
    /// and ended.
    pub(crate) memories: Memories,
    pub(crate) migration: Option<Arc<Migration>>,
}

#[derive(Debug)]
struct ChannelRecord {
    partition: Partition,
    /// The end that opened the channel first.
    ends: [(AttachmentId, NodeId); 2],
}

impl Members {
    /// Makes members without attached processes. `store` holds `directory`. The receiver yields
    /// migrations for [`Members::carry`].
    pub(crate) fn new(
        directory: Directory,
        store: Box<dyn Store>,
        max_bytes: u64,
        leases: Arc<Leases>,
    ) -> (Self, Migrations) {
        let (migrations, received) = mpsc::channel();
        let state = State {
            fd_store: Arc::default(),
            directory,
            attachments: BTreeMap::new(),
            listeners: HashMap::new(),
            channels: HashMap::new(),
            registered: HashMap::new(),
            links: links::Links::default(),
            leaving: BTreeMap::new(),
            removed: VecDeque::new(),
            next: first_number(),
        };
        let members = Members {
            state: Mutex::new(state),
            store: Mutex::new(RecoveringStore::new(store)),
            deciding: Mutex::default(),
            leases,
            acknowledged: Condvar::new(),
            regions: DashMap::new(),
            migrations,
            compactor: Compactor::default(),
            max_bytes,
        };
        (members, received)
    }

    /// Reads the directory under the lock.
    pub(crate) fn directory<T>(&self, look: impl FnOnce(&Directory) -> T) -> T {
        look(&self.lock().directory)
    }

    /// Whether a domain of that name was removed while `node` was a member. Other nodes must not
    /// learn that a domain existed.
    pub(crate) fn was_removed(&self, name: &str, node: NodeId) -> bool {
        let state = self.lock();
        let mut removed = state.removed.iter();
        removed.any(|(removed, members)| removed == name && members.contains(&node))
    }

    /// Makes a change durable that does not concern attached processes, and then visible. The
    /// caller has its turn: changes happen one after another.
    pub(crate) fn edit<T, E: Into<Refusal>>(
        &self,
        change: impl FnOnce(&mut Directory) -> Result<T, E>,
    ) -> Result<T, Refusal> {
        let (result, directory) = self.plan(change)?;
        self.adopt(directory)?;
        Ok(result)
    }

    /// Does the same with a planned change.
    pub(crate) fn adopt(&self, directory: Directory) -> Result<(), Refusal> {
        self.keep(&directory)?;
        self.lock().directory = directory;
        Ok(())
    }

    /// Plans a change: returns its result and the directory after it, with the next revision.
    pub(crate) fn plan<T, E: Into<Refusal>>(
        &self,
        change: impl FnOnce(&mut Directory) -> Result<T, E>,
    ) -> Result<(T, Directory), Refusal> {
        let present = self.directory(Directory::clone);
        let mut directory = present.clone();
        let result = change(&mut directory).map_err(Into::into)?;
        if let Some(deciding) = &*self.deciding.lock() {
            deciding.note(&present, &mut directory);
        }
        directory.advance(&present);
        Ok((result, directory))
    }

    /// Lets the changes that `decide` plans have the record of a request. The caller has its turn.
    pub(crate) fn for_request<T>(&self, deciding: Deciding, decide: impl FnOnce() -> T) -> T {
        struct End<'m>(&'m Members);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                *self.0.deciding.lock() = None;
            }
        }
        *self.deciding.lock() = Some(deciding);
        let _end = End(self);
        decide()
    }

    /// Makes the next directory durable. On failure the old one stays.
    ///
    /// No process, not even a leaver, gets the change before, so the write is urgent. Beside
    /// processes that touch and drop much memory it took 30 ms at p99 because its thread waited for
    /// its turn, and 7 ms with priority. One that waits for other hosts needs none.
    pub(crate) fn keep(&self, next: &Directory) -> Result<(), Refusal> {
        let present = self.directory(Directory::clone);
        // Before any process is a member.
        self.leases.include(next);
        let mut store = self.store.lock();
        let is_local = store.is_local();
        let mut keep = || store.keep(&present, next);
        let kept = if is_local { urgently(keep) } else { keep() };
        kept.map_err(Into::into)
    }

    /// Whether the store may hold another directory than the present one.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.store.lock().is_uncertain()
    }

    /// Leavers of incomplete changes.
    pub(crate) fn leavers(&self) -> BTreeSet<NodeId> {
        let state = self.lock();
        state.leaving.values().flatten().copied().collect()
    }

    /// Ends the deadlines of nodes that are in no fenced domain any more.
    pub(crate) fn settle_leases(&self) {
        let state = self.lock();
        self.leases.settle(&state.directory, &state.leaving);
    }

    /// Attaches a process.
    pub(crate) fn attach(&self, node: NodeId, outbox: Outbox) -> io::Result<AttachmentId> {
        let fences = Fences::new()?;
        let mut state = self.lock();
        let id = AttachmentId(state.take_number());
        let attachment = Attachment::new(node, outbox, fences);
        state.attachments.insert(id, attachment);
        Ok(id)
    }

    /// Replies with the fence page of a process.
    pub(crate) fn show_fence(&self, id: AttachmentId) -> Result<(), Refusal> {
        let mut state = self.lock();
        let attachment = state.attachment(id)?;
        let page = attachment.fences.hand_out();
        let page = page.map_err(|error| no_memory(&error))?;
        attachment.outbox.reply(Reply::Fence, vec![page.into()]);
        Ok(())
    }

    /// Detaches a process: ends its grants and tells its peers.
    pub(crate) fn detach(&self, id: AttachmentId) {
        self.detach_if(id, |_| true);
    }

    /// Detaches all processes that speak for a node, wherever their connections are by now.
    pub(crate) fn expel(&self, node: NodeId) {
        let mut all = Vec::new();
        for (id, attachment) in &self.lock().attachments {
            if attachment.node == node {
                attachment.outbox.shut_down();
                all.push(*id);
            }
        }
        all.into_iter().for_each(|id| self.detach(id));
    }

    fn detach_if(&self, id: AttachmentId, condition: impl FnOnce(&Attachment) -> bool) {
        let mut state = self.lock();
        if !state.attachments.get(&id).is_some_and(condition) {
            return;
        }
        let Some(mut attachment) = state.attachments.remove(&id) else {
            return;
        };
        // The process may live on, cut off or stopped, and gets no further migrations.
        attachment.fences.end_all();
        state.forget_attachment(id);
        for service in state.services_of(id) {
            state.end_listener(service);
        }
        for channel in attachment.channels {
            state.end_channel(channel);
        }
        for region in &attachment.opened {
            if let Some(mut region) = self.regions.get_mut(region) {
                region.openers.remove(&id);
            }
        }
        let ended: Vec<_> = attachment
            .regions
            .into_iter()
            .map(|region| self.end_region(&mut state, region, true))
            .collect();
        self.acknowledged.notify_all();
        drop(state);
        drop(ended);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn attachment(&mut self, id: AttachmentId) -> Result<&mut Attachment, Refusal> {
        let gone = || Refusal::new(RefusalKind::Failed, "the connection has ended", "");
        self.attachments.get_mut(&id).ok_or_else(gone)
    }

    /// The partition and the node of a process, if that is a member.
    pub(crate) fn membership(
        &mut self,
        id: AttachmentId,
        domain: &str,
    ) -> Result<(Partition, NodeId), Refusal> {
        let node = self.attachment(id)?.node;
        check_member(&self.directory, domain, node)?;
        let domain = self.directory.domain(domain)?;
        Ok((Partition(domain.id.into()), node))
    }

    /// Word of the fence for grants of a process in a partition.
    fn slot(
        &mut self,
        id: AttachmentId,
        partition: Partition,
        granted: Granted,
    ) -> Result<u32, Refusal> {
        let exhausted = || {
            Refusal::new(
                RefusalKind::Exhausted,
                "the process has been in too many domains",
                "start it again",
            )
        };
        let attachment = self.attachment(id)?;
        if let Some(slot) = attachment.fences.present(partition, granted) {
            return Ok(slot);
        }
        let slot = attachment
            .fences
            .add(partition, granted)
            .ok_or_else(exhausted)?;
        if let Some(attachment) = self.attachments.get(&id) {
            self.note_attachment(id, attachment);
        }
        Ok(slot)
    }
}

impl Attachment {
    fn new(node: NodeId, outbox: Outbox, fences: Fences) -> Self {
        Attachment {
            node,
            outbox,
            secret: None,
            fences,
            epochs: HashMap::new(),
            regions: HashSet::new(),
            opened: HashSet::new(),
            channels: HashSet::new(),
            listeners: 0,
            emulates: false,
        }
    }

    /// Whether it has no grants yet.
    fn is_unused(&self) -> bool {
        let held = [self.regions.len(), self.opened.len(), self.channels.len()];
        self.listeners == 0 && held == [0; 3]
    }
}

/// More numbers than an agent gives away in a second.
const NUMBERS_A_SECOND: u64 = 1 << 20;

/// First number of an agent: beyond the numbers of all its predecessors.
fn first_number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs() * NUMBERS_A_SECOND
}

/// Refuses a domain of which `node` is no member.
pub(crate) fn check_member(
    directory: &Directory,
    domain: &str,
    node: NodeId,
) -> Result<(), Refusal> {
    // The refusal is the same for a domain that does not exist.
    let domain_of = directory.domain(domain);
    if domain_of.is_ok_and(|domain| domain.members.contains_key(&node)) {
        return Ok(());
    }
    let place = directory.torus().place(node).map(|p| p.to_string());
    let place = place.unwrap_or_else(|| node.to_string());
    Err(Refusal::new(
        RefusalKind::Denied,
        format!("node {place} is in no domain called {domain}"),
        format!("let the domain's owner run `toroid domain grow {domain} {place}`"),
    ))
}

/// Refuses communication of two limited members.
fn check_may_talk(
    directory: &Directory,
    domain: &Domain,
    a: NodeId,
    b: NodeId,
) -> Result<(), Refusal> {
    if domain.may_talk(a, b) {
        return Ok(());
    }
    let both = directory.places(&[a, b].into());
    let name = &domain.name;
    Err(Refusal::new(
        RefusalKind::Denied,
        format!("{both} are limited members of domain {name}, which talk to full members only"),
        format!(
            "let its owner make one a full member: `toroid domain shrink {name}`, then `grow` \
             without --limited"
        ),
    ))
}

/// Compares secrets in constant time.
fn same_key(a: &RemoteKey, b: &RemoteKey) -> bool {
    let pairs = a.secret.iter().zip(b.secret);
    let differing = pairs.fold(0, |bits, (a, b)| bits | (a ^ b));
    differing == 0 && (a.node, a.partition, a.id) == (b.node, b.partition, b.id)
}

fn within(what: &str, used: usize, limit: usize) -> Result<(), Refusal> {
    if used < limit {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalKind::Exhausted,
        format!("a process may have at most {limit} {what}"),
        "end some of them",
    ))
}

fn no_such_region() -> Refusal {
    Refusal::new(
        RefusalKind::NotFound,
        "no region has this key",
        "its owner may have freed it",
    )
}

fn no_memory(error: &io::Error) -> Refusal {
    Refusal::new(
        RefusalKind::Exhausted,
        format!("no memory or descriptors: {error}"),
        "free regions and channels, or give the agent's host more memory (or `ulimit -n`)",
    )
}

#[cfg(test)]
pub(crate) mod tests;
