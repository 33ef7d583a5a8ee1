//! Regions that move because a node left that may have mapped them.
//!
//! First every process that stays is told to change to fresh memory; with the epoch that comes
//! behind it acknowledges both. When all have, or are [fenced](Members::fence), nobody who stays
//! writes the old memory any more, and the move is released: what processes wait for is copied
//! first, the rest behind everybody's back. If a leaver may write the memory that a region is copied
//! from, the change of membership is complete only when the kernel has sealed that memory against
//! writes, or all is copied. That holds for moves of earlier changes, too: [`Memories`] has the nodes.
//!
//! [`Memories`]: super::memories::Memories

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use toroid_fabric::mem::Copier;
use toroid_fabric::mem::memfd::{create_for_peers, create_memory};
use toroid_fabric::{Access, NodeId, Partition, RegionId, RemoteKey, TestKnob};
use toroid_model::directory::Change;
use toroid_protocol::agent::Event;

use super::memories::Holders;
use super::outbox::Handed;
use super::{AttachmentId, Changed, Members, RegionRecord, State, writes};
use crate::threads;

/// How long leavers that had write access have to finish what they write, after those who stay have
/// changed: it moves as a whole. Those who stay wait, too.
const LEAVERS_TIME: Duration = Duration::from_millis(2);

/// So much is rather copied than sealed.
const SMALL: u64 = 1 << 20;

/// How long a look at a piece of memory may hold up a move of it: usually it takes a few
/// milliseconds, and who has not ended by then does no harm but that it cannot be sealed.
const LOOK_TIME: Duration = Duration::from_millis(50);

/// How long those who dropped the old memory may take for it before the rest is copied: the kernel
/// needs some 70 us for each MiB that was touched, and to copy it ten times as long. Copying sooner
/// would take the processors from them.
const DROP_TIME_PER_MIB: Duration = Duration::from_micros(100);

/// How long it may take to seal at least, before the rest is copied: the child that does it has to
/// start, and needs its turns.
const SEAL_TIME: Duration = Duration::from_millis(10);

/// Chunks copied behind everybody's back between two rests, and how long a rest is.
const STRETCH: u32 = 16;
const REST: Duration = Duration::from_micros(200);

/// So many chunks that somebody waits for are copied before a change of membership goes on, each in
/// some 60 us. The others come first afterwards.
const AT_ONCE: usize = 32;

/// Where moves come out that are to be [carried](Members::carry).
pub(crate) type Migrations = mpsc::Receiver<Arc<Migration>>;

/// A region on its way to fresh memory.
#[derive(Debug)]
pub(crate) struct Migration {
    key: RemoteKey,
    copier: Copier,
    /// Whether others than its owner may write the region, and so keep the kernel's lock of its old
    /// memory for ever: who seals that or drops of it may never come back.
    others_write: bool,
    /// Chunks that were asked for before they may be copied, or too many at once.
    waiting: Mutex<BTreeSet<(AttachmentId, u64)>>,
    /// How many wait for a chunk at this moment: the rest is copied later.
    urgent: AtomicUsize,
    /// The region has ended.
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

    /// One that another agent has begun, of which these are the [parts](Migration::parts).
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

    /// What the next agent needs besides the fresh memory.
    pub(crate) fn parts(&self) -> [BorrowedFd<'_>; 2] {
        self.copier.parts()
    }

    /// The old memory and the table, for who opens the region while it moves.
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

    /// The same, out of the way of everybody. What has been copied is dropped, if that cannot hang.
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

    /// Returns whether there is more to drop.
    fn drop_copied(&self) -> bool {
        let dropped = self.copier.drop_copied();
        dropped.unwrap_or_else(|error| {
            log_leftover(self.key, &error);
            false
        })
    }

    /// Drops all of the old memory, now that it has been copied. When others may write it, behind
    /// everybody's back: that may take for ever.
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

    /// Waits until nobody can write the old memory any more. If that takes longer than it usually
    /// takes, copies meanwhile, until it is so or there is nothing left in it.
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
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// Copies what moves, until no more can come.
    pub(crate) fn carry(&self, migrations: &Migrations) {
        for migration in migrations {
            self.serve(&migration, usize::MAX);
            let carried = migration.fetch_all_slowly();
            self.arrive(&migration, carried);
            migration.drop_all();
        }
    }

    /// Bytes on their way to fresh memory, of regions of these nodes. There are some as long as not all
    /// who use a region could be told that it has arrived.
    pub(crate) fn migrating_bytes(&self, within: impl Fn(NodeId) -> bool) -> u64 {
        let migrations = self.regions.iter().filter(|record| within(record.key.node));
        let migrations = migrations.filter_map(|record| record.migration.clone());
        migrations
            .map(|migration| migration.copier.remaining().max(1))
            .sum()
    }

    /// Ends moves that are going on of regions that have to move again, which takes as long as it
    /// takes to copy them. The nodes that leave must be [noted](Members::note_leaving) before.
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

    /// Tells those who stay to change to fresh memory. Returns the moves, and the regions that
    /// cannot be moved and have to end.
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

    /// All who stay have acknowledged, or were late and are fenced; so they go on. When this returns
    /// none of `gone`, who have left or are fenced, can write what a region of the partition is
    /// copied from, whichever change it moves for.
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
        // It fails only when the agent is about to end.
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

    /// Whether one of these nodes may write what is being copied.
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

    /// Copies chunks that somebody waits for, at most so many.
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

    /// Tells a process that is back of the moves of its regions, of which it may have heard.
    /// Returns the regions that have to end, because it cannot be told.
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

    /// A process waits for a chunk.
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

    /// All has been copied, or it failed: tells all who use the region.
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

    /// There is a reason to look whether a region can be in huge pages: only those that others may
    /// write take longer to move the more of them was touched.
    pub(super) fn compact(&self, record: &RegionRecord) {
        if writes(record.access) && record.migration.is_none() {
            self.compactor.look(record.key, &record.memory, record.len);
        }
    }
}

impl RegionRecord {
    /// Whether a node leaves of which a process may have mapped the memory that it is in now.
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
            // The caller has finished it, and who leaves has opened nothing since.
            return Err(io::Error::other("it still moves for an earlier change"));
        }
        let fresh = memory_for(self.len, self.access)?;
        let old = std::mem::replace(&mut self.memory, fresh.try_clone()?);
        let copier = Copier::new(old, fresh, self.len)?;
        let stayers = self.forget_leavers(state, change);
        self.memories.begin_migration(stayers);
        let migration = Arc::new(Migration::new(self.key, copier, self.access));
        self.migration = Some(Arc::clone(&migration));
        // Before anybody hears of it.
        state.keep_region(self);
        let fresh = Fresh::of(&self.memory, &migration)?;
        let mut users = self.users();
        users.try_for_each(|user| self.tell_to_migrate(state, &fresh, user))?;
        drop(users);
        Ok(migration)
    }

    /// Returns the nodes of the openers that stay, which are granted the fresh memory.
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
            // For what it opened for reading: the kernel counts a mapping of a descriptor that can
            // be written as one that is, and does not seal that memory at the next move.
            descriptors.push(Handed::Readable(memory()));
        }
        let event = Event::Move { key: self.key };
        attachment.outbox.hand(event, descriptors);
        Ok(())
    }
}

/// What those who use a region open when it moves.
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

/// Memory for a region that peers may use in this way. If they may write it, it is such that the
/// agent can end that.
pub(super) fn memory_for(len: u64, access: Access) -> io::Result<File> {
    if writes(access) {
        create_for_peers(len)
    } else {
        create_memory(len)
    }
}
