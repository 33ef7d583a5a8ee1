//! Migrations: a region moves to fresh memory because a node left that may have mapped the old.
//!
//! First, every remaining process is told to change to fresh memory. It acknowledges that with the
//! epoch, which follows. When all have acknowledged, or are [fenced](Members::fence), no remaining
//! process writes the old memory any more, and the migration is released. Chunks that processes
//! wait for are copied first, the others in the background. If a leaver may write the source, the
//! change of membership is complete only when the kernel has sealed the source against writes, or
//! all is copied. That also holds for migrations of earlier changes: [`Memories`] has the nodes.
//!
//! [`Memories`]: super::memories::Memories

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use toroid_fabric::mem::Copier;
use toroid_fabric::mem::memfd::{create_for_peers, create_memory};
use toroid_fabric::{Access, NodeId, Partition, RegionId, RemoteKey, TestKnob};
use toroid_model::directory::Change;
use toroid_protocol::agent::Event;

use super::memories::Holders;
use super::outbox::Handed;
use super::{AttachmentId, Changed, Members, RegionRecord, State, writes};
use crate::threads;

/// Time for leavers with write access to finish their writes, after the remaining processes have
/// changed: then the memory migrates as a whole. The remaining processes wait, too.
const LEAVERS_TIME: Duration = Duration::from_millis(2);

/// Up to this many bytes are copied rather than sealed.
const SMALL: u64 = 1 << 20;

/// Time to wait for a compaction pass at a piece of the memory. It usually takes a few
/// milliseconds; if it takes longer, the memory just cannot be sealed.
const LOOK_TIME: Duration = Duration::from_millis(50);

/// Time for processes to drop the old memory before the rest is copied. The kernel needs some 70 us
/// for each touched MiB, and copying takes ten times as long. Copying sooner would take processors
/// from them.
const DROP_TIME_PER_MIB: Duration = Duration::from_micros(100);

/// Least time for sealing before the rest is copied: the child that seals must start and be
/// scheduled.
const SEAL_TIME: Duration = Duration::from_millis(10);

/// Chunks copied in the background between two rests, and the length of a rest.
const STRETCH: u32 = 16;
const REST: Duration = Duration::from_micros(200);

/// Most awaited chunks that are copied before a change of membership goes on, each in some 60 us.
/// The others come first afterwards.
const AT_ONCE: usize = 32;

/// Receiver of migrations for [`Members::carry`].
pub(crate) type Migrations = mpsc::Receiver<Arc<Migration>>;

/// Migration of a region to fresh memory.
#[derive(Debug)]
pub(crate) struct Migration {
    key: RemoteKey,
    copier: Copier,
    /// Whether peers may write the region. They can keep the kernel's lock of its old memory for
    /// ever, so a thread that seals or drops it may never return.
    others_write: bool,
    /// Requested chunks that may not be copied yet, or that were too many at once.
    waiting: Mutex<BTreeSet<(AttachmentId, u64)>>,
    /// Threads that wait for a chunk at this moment: background copying yields to them.
    urgent: AtomicUsize,
    /// Whether the region has ended.
    pub(crate) is_over: AtomicBool,
}

impl Migration {
    fn new(key: RemoteKey, copier: Copier, access: Access) -> Self {
        Migration {
            key,
            copier,
            others_write: writes(access),
            waiting: Mutex::default(),
            urgent: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Continues a migration of another agent, of which these are the [parts](Migration::parts).
    pub(crate) fn resume(
        key: RemoteKey,
        parts: [File; 2],
        fresh: File,
        len: u64,
        access: Access,
    ) -> io::Result<Self> {
        let copier = Copier::resume(parts, fresh, len)?;
        Ok(Migration::new(key, copier, access))
    }

    /// Descriptors that the next agent needs besides the fresh memory.
    pub(crate) fn parts(&self) -> [BorrowedFd<'_>; 2] {
        self.copier.parts()
    }

    /// The old memory and the table, for a process that opens the region during the migration.
    pub(super) fn companions(&self) -> io::Result<[File; 2]> {
        Ok([self.copier.old()?, self.copier.table()?])
    }

    /// Copies a chunk before all others.
    fn fetch(&self, chunk: u64) -> io::Result<()> {
        self.urgent.fetch_add(1, Ordering::Relaxed);
        let fetched = self.copier.fetch(chunk);
        self.urgent.fetch_sub(1, Ordering::Relaxed);
        fetched
    }

    fn fetch_all(&self) -> io::Result<()> {
        while !self.is_over() && self.copier.fetch_next()? {}
        Ok(())
    }

    /// Copies everything in the background. Copied memory is dropped, if that cannot block for
    /// ever.
    fn fetch_all_slowly(&self) -> io::Result<()> {
        let mut stretch = 0;
        while !self.is_over() && self.copier.fetch_next()? {
            stretch += 1;
            let is_urgent = self.urgent.load(Ordering::Relaxed) > 0;
            if stretch >= STRETCH || is_urgent {
                stretch = 0;
                if !is_urgent && !self.others_write {
                    self.drop_copied();
                }
                thread::sleep(REST);
            }
        }
        Ok(())
    }

    /// Drops copied memory; returns whether there is more.
    fn drop_copied(&self) -> bool {
        let dropped = self.copier.drop_copied();
        dropped.unwrap_or_else(|error| {
            log_leftover(self.key, &error);
            false
        })
    }

    /// Drops all of the old memory, after it was copied. If peers may write it, a separate thread
    /// does so, because that may take for ever.
    fn drop_all(&self) {
        if !self.others_write {
            while !self.is_over() && self.drop_copied() {}
            return;
        }
        let key = self.key;
        let dropping = self.copier.leftover().and_then(|leftover| {
            let Some(leftover) = leftover else {
                return Ok(());
            };
            let drop = move || {
                let dropped = leftover.drop_forked(key.partition);
                dropped.unwrap_or_else(|error| log_leftover(key, &error));
            };
            threads::start(drop).map(|_| ())
        });
        dropping.unwrap_or_else(|error| log_leftover(key, &error));
    }

    /// Waits until no process can write the old memory. After the usual time it copies meanwhile,
    /// until sealing succeeds or everything is copied.
    fn shut_out_leavers(&self, may_seal: &mut bool) -> io::Result<()> {
        let remaining = self.copier.remaining();
        let timeout = DROP_TIME_PER_MIB * (remaining >> 20) as u32;
        let mut freezing = if *may_seal && remaining > SMALL {
            self.copier
                .freeze(self.key.partition)
                .inspect_err(|e| self.log_copy(e))
                .ok()
        } else {
            None
        };
        let mut timeout = timeout.max(SEAL_TIME);
        while !self.is_over() {
            match freezing.as_mut().map(|freezing| freezing.wait(timeout)) {
                Some(Ok(true)) => return Ok(()),
                Some(Err(error)) => {
                    self.log_copy(&error);
                    *may_seal = false;
                    freezing = None;
                }
                _ => {}
            }
            timeout = Duration::ZERO;
            for _ in 0..STRETCH {
                if !self.copier.fetch_next()? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn log_copy(&self, error: &io::Error) {
        tracing::debug!("region {:?} is copied, not sealed: {error}", self.key);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeSet<(AttachmentId, u64)>> {
        self.waiting.lock()
    }
}

impl Members {
    /// Copies migrations until the channel closes.
    pub(crate) fn carry(&self, migrations: &Migrations) {
        for migration in migrations {
            self.serve(&migration, usize::MAX);
            let carried = migration.fetch_all_slowly();
            self.arrive(&migration, carried);
            migration.drop_all();
        }
    }

    /// Bytes of migrations of regions of these nodes. A migration counts at least 1 until all users
    /// have been told of its end.
    pub(crate) fn migrating_bytes(&self, within: impl Fn(NodeId) -> bool) -> u64 {
        let migrations = self.regions.iter().filter(|record| within(record.key.node));
        let migrations = migrations.filter_map(|record| record.migration.clone());
        migrations
            .map(|migration| migration.copier.remaining().max(1))
            .sum()
    }

    /// Finishes present migrations of regions that must migrate again, which takes the time of
    /// copying them. The leavers must be [noted](Members::note_leaving) before.
    pub(crate) fn finish_migrations(&self, change: &Change) {
        let migrations: Vec<_> = self
            .regions
            .iter()
            .filter(|record| record.must_migrate(change))
            .filter_map(|record| record.migration.clone())
            .collect();
        for migration in migrations {
            let copied = migration.fetch_all();
            self.arrive(&migration, copied);
        }
    }

    /// Tells remaining processes to change to fresh memory. Returns the migrations, and the regions
    /// that cannot migrate and must end.
    pub(super) fn start_migrations(
        &self,
        state: &mut State,
        change: &Change,
    ) -> (Vec<Arc<Migration>>, Vec<RegionId>) {
        let (mut migrations, mut lost) = (Vec::new(), Vec::new());
        if TestKnob::WithoutFreshPages.is_set() {
            return (migrations, lost);
        }
        for mut record in self.regions.iter_mut() {
            if !record.must_migrate(change) {
                continue;
            }
            self.compactor.stop(record.key.id);
            match record.start_migration(state, change) {
                Ok(migration) => migrations.push(migration),
                Err(error) => {
                    log_loss(record.key, &error);
                    lost.push(record.key.id);
                }
            }
        }
        (migrations, lost)
    }

    /// Releases migrations, after all remaining processes have acknowledged or are fenced. When
    /// this returns, none of `gone`, which have left or are fenced, can write the source of a
    /// region of the partition, whichever change it migrates for.
    pub(super) fn release_migrations(&self, changed: &Changed, gone: &BTreeSet<NodeId>) {
        let partition = changed.partition();
        let left = &changed.change.left;
        let large = |migration: &&Arc<Migration>| {
            migration.copier.remaining() > SMALL && self.must_shut_out(migration, left)
        };
        if changed.migrations.iter().any(|migration| large(&migration)) {
            let epoch = changed.change.domain.epoch;
            self.await_epoch(&changed.leavers, partition, epoch, LEAVERS_TIME);
        }
        for migration in &changed.migrations {
            self.release(migration);
        }
        let is_new = |migration: &Arc<Migration>| {
            changed
                .migrations
                .iter()
                .any(|new| Arc::ptr_eq(new, migration))
        };
        let present = self.migrations_of(|of| of == partition).into_iter();
        let (awaited, others): (Vec<_>, Vec<_>) =
            present.partition(|migration| self.must_shut_out(migration, gone));
        // This fails only when the agent is about to end.
        let carry = |migration| _ = self.migrations.send(migration);
        others.into_iter().filter(is_new).for_each(carry);
        let mut may_seal = true;
        for migration in awaited {
            self.compactor.await_stop(migration.key.id, LOOK_TIME);
            match migration.shut_out_leavers(&mut may_seal) {
                Ok(()) if is_new(&migration) => carry(migration),
                Ok(()) => {}
                failed => self.arrive(&migration, failed),
            }
        }
    }

    /// Whether one of these nodes may write the source.
    fn must_shut_out(&self, migration: &Arc<Migration>, nodes: &BTreeSet<NodeId>) -> bool {
        let record = self.regions.get(&migration.key.id);
        let record = record.filter(|record| record.is_migrated_by(migration));
        record.is_some_and(|record| record.memories.must_shut_out(nodes))
    }

    fn release(&self, migration: &Arc<Migration>) {
        let waiting = migration.waiting();
        migration.copier.release();
        drop(waiting);
        self.serve(migration, AT_ONCE);
    }

    /// Copies awaited chunks, at most `most`.
    fn serve(&self, migration: &Arc<Migration>, most: usize) {
        for _ in 0..most {
            let Some((attachment, chunk)) = migration.waiting().pop_first() else {
                return;
            };
            if let Err(error) = migration.fetch(chunk) {
                return self.arrive(migration, Err(error));
            }
            self.tell_arrived(attachment, migration.key);
        }
    }

    /// Tells a resumed process of the migrations of its regions, of which it may have heard.
    /// Returns the regions that must end, because it cannot be told.
    pub(super) fn tell_migrations(&self, state: &State, id: AttachmentId) -> Vec<RegionId> {
        let tell = |record: &RegionRecord| match &record.migration {
            Some(migration) => {
                let fresh = Fresh::of(&record.memory, migration)?;
                record.tell_to_migrate(state, &fresh, id)
            }
            None => Ok(()),
        };
        let mut lost = Vec::new();
        for record in self.regions.iter().filter(|record| record.is_used_by(id)) {
            if let Err(error) = tell(&record) {
                log_loss(record.key, &error);
                lost.push(record.key.id);
            }
        }
        lost
    }

    /// Copies a chunk that a process waits for.
    pub(crate) fn fetch(&self, id: AttachmentId, key: RemoteKey, chunk: u64) {
        let record = self.regions.get(&key.id);
        let record = record.filter(|record| record.key == key && record.is_used_by(id));
        let migration = record.and_then(|record| record.migration.clone());
        if let Some(migration) = migration {
            let mut waiting = migration.waiting();
            if !migration.copier.is_released() {
                if chunk < migration.copier.chunks() {
                    waiting.insert((id, chunk));
                }
                return;
            }
            drop(waiting);
            if let Err(error) = migration.fetch(chunk) {
                return self.arrive(&migration, Err(error));
            }
        }
        self.tell_arrived(id, key);
    }

    fn tell_arrived(&self, id: AttachmentId, key: RemoteKey) {
        if let Some(attachment) = self.lock().attachments.get(&id) {
            attachment.outbox.event(Event::Arrived { key }, vec![]);
        }
    }

    /// Ends a migration after copying, or the region after a failure, and tells all users of the
    /// region.
    fn arrive(&self, migration: &Arc<Migration>, copied: io::Result<()>) {
        let mut state = self.lock();
        if let Err(error) = copied {
            log_loss(migration.key, &error);
            let ended = self.end_region(&mut state, migration.key.id, true);
            drop(state);
            return drop(ended);
        }
        let Some(mut record) = self.regions.get_mut(&migration.key.id) else {
            return;
        };
        if record.is_migrated_by(migration) {
            let key = migration.key;
            record.end_migration();
            state.keep_region(&record);
            record.tell_users(&state, |outbox| outbox.event(Event::Moved { key }, vec![]));
            self.compact(&record);
        }
    }

    /// Schedules the compaction of a region, if peers may write it: only then the time of a
    /// migration grows with the touched memory.
    pub(super) fn compact(&self, record: &RegionRecord) {
        if writes(record.access) && record.migration.is_none() {
            self.compactor.look(record.key, &record.memory, record.len);
        }
    }
}

impl RegionRecord {
    /// Whether a node leaves of which a process may have mapped the present memory.
    pub(super) fn must_migrate(&self, change: &Change) -> bool {
        self.key.partition == Partition(change.domain.id.into())
            && !change.left.contains(&self.key.node)
            && self.memories.must_migrate(&change.left)
    }

    fn is_migrated_by(&self, migration: &Arc<Migration>) -> bool {
        let present = self.migration.as_ref();
        present.is_some_and(|present| Arc::ptr_eq(present, migration))
    }

    fn end_migration(&mut self) {
        self.migration = None;
        self.memories.end_migration();
    }

    fn is_used_by(&self, id: AttachmentId) -> bool {
        self.owner == id || self.openers.contains_key(&id)
    }

    fn start_migration(
        &mut self,
        state: &mut State,
        change: &Change,
    ) -> io::Result<Arc<Migration>> {
        if self.migration.is_some() {
            // The caller has finished it, and leavers have opened nothing since.
            return Err(io::Error::other("it still moves for an earlier change"));
        }
        let fresh = memory_for(self.len, self.access)?;
        let old = std::mem::replace(&mut self.memory, fresh.try_clone()?);
        let copier = Copier::new(old, fresh, self.len)?;
        let stayers = self.forget_leavers(state, change);
        self.memories.begin_migration(stayers);
        let migration = Arc::new(Migration::new(self.key, copier, self.access));
        self.migration = Some(Arc::clone(&migration));
        // Before any process hears of it.
        state.keep_region(self);
        let fresh = Fresh::of(&self.memory, &migration)?;
        let mut users = self.users();
        users.try_for_each(|user| self.tell_to_migrate(state, &fresh, user))?;
        drop(users);
        Ok(migration)
    }

    /// Removes leavers from the openers. Returns the nodes of the others, which are granted the
    /// fresh memory.
    fn forget_leavers(&mut self, state: &mut State, change: &Change) -> Holders {
        let id = self.key.id;
        let mut stayers = Vec::new();
        self.openers.retain(|opener, writes| {
            let Some(attachment) = state.attachments.get_mut(opener) else {
                return false;
            };
            let stays = !change.left.contains(&attachment.node);
            if stays {
                stayers.push((attachment.node, *writes))
            } else {
                _ = attachment.opened.remove(&id)
            }
            stays
        });
        stayers.into_iter().collect()
    }

    fn tell_to_migrate(&self, state: &State, fresh: &Fresh, user: AttachmentId) -> io::Result<()> {
        let Some(attachment) = state.attachments.get(&user) else {
            return Ok(());
        };
        let opened = self.openers.get(&user);
        let writes = user == self.owner || opened == Some(&true);
        let memory = || Arc::clone(&fresh.memory);
        let mut descriptors = vec![
            if user == self.owner {
                Handed::Ready(self.memory.try_clone()?.into())
            } else if writes {
                Handed::Writable(memory())
            } else {
                Handed::Readable(memory())
            },
            Handed::Readable(Arc::clone(&fresh.table)),
        ];
        if writes && opened.is_some() {
            // For its read-only mappings: the kernel counts a mapping of a writable descriptor as
            // writable, and would not seal that memory at the next migration.
            descriptors.push(Handed::Readable(memory()));
        }
        let event = Event::Move { key: self.key };
        attachment.outbox.hand(event, descriptors);
        Ok(())
    }
}

/// Descriptors for users of a migrating region.
struct Fresh {
    memory: Arc<File>,
    table: Arc<File>,
}

impl Fresh {
    fn of(memory: &File, migration: &Migration) -> io::Result<Self> {
        let [_, table] = migration.parts();
        Ok(Fresh {
            memory: Arc::new(memory.try_clone()?),
            table: Arc::new(table.try_clone_to_owned()?.into()),
        })
    }
}

fn log_leftover(key: RemoteKey, error: &io::Error) {
    tracing::warn!("region {key:?} leaves its old memory behind: {error}");
}

fn log_loss(key: RemoteKey, error: &io::Error) {
    tracing::error!("region {key:?} ends, it cannot be moved: {error}");
}

/// Makes memory for a region with these rights of peers. If peers may write it, the agent can seal
/// it.
pub(super) fn memory_for(len: u64, access: Access) -> io::Result<File> {
    if writes(access) {
        create_for_peers(len)
    } else {
        create_memory(len)
    }
}
