//! Regions that move because a node left that may have mapped them.
//!
//! First every process that stays is told to change to fresh memory; with the epoch that comes
//! behind it acknowledges both. When all have, or are [fenced](Members::fence), nobody who stays
//! writes the old memory any more. If the leavers cannot write it either, the move is released:
//! the change of membership is complete, and what processes wait for is copied first, the rest
//! behind everybody's back. If a leaver still may write, all is copied before.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fabric::shm::Transfer;
use fabric::shm::control::{create_memory, read_only, read_write};
use fabric::{NodeId, Partition, RegionId, RemoteKey};

use super::members::{AttachmentId, Books, Members, RegionRecord};
use crate::directory::Change;
use crate::protocol::Event;

/// How long leavers that had write access have to let go of it by themselves.
const LEAVERS_TIME: Duration = Duration::from_millis(5);

/// Regions up to this size are copied at once rather than waiting for leavers to let go.
const SMALL: u64 = 1 << 20;

/// Chunks copied behind everybody's back between two rests, and how long a rest is.
const STRETCH: u32 = 16;
const REST: Duration = Duration::from_micros(200);

/// Set in the environment of an agent, it leaves regions where they are: for the test that shows
/// that the tests of hostile members would notice.
const STAY: &str = "TOROID_TEST_WITHOUT_FRESH_PAGES";

/// Where moves come out that are to be [carried](Members::carry).
pub(super) type Moves = mpsc::Receiver<Arc<Move>>;

/// A region on its way to fresh memory.
#[derive(Debug)]
pub(super) struct Move {
    key: RemoteKey,
    transfer: Transfer,
    /// Whether a process of a leaving node had it mapped for writing.
    leaver_wrote: bool,
    waiting: Mutex<Waiting>,
    /// How many wait for a chunk at this moment: the rest is copied later.
    urgent: AtomicUsize,
    /// The region has ended.
    pub(super) is_over: AtomicBool,
}

/// Chunks that were asked for before they may be copied.
#[derive(Debug, Default)]
struct Waiting {
    is_released: bool,
    wanted: BTreeSet<(AttachmentId, u64)>,
}

impl Move {
    /// The old memory and the table, for who opens the region while it moves.
    pub(super) fn companions(&self) -> io::Result<[File; 2]> {
        Ok([self.transfer.old()?, self.transfer.table()?])
    }

    /// Copies a chunk before all others.
    fn fetch(&self, chunk: u64) -> io::Result<()> {
        self.urgent.fetch_add(1, Ordering::Relaxed);
        let fetched = self.transfer.fetch(chunk);
        self.urgent.fetch_sub(1, Ordering::Relaxed);
        fetched
    }

    fn fetch_all(&self) -> io::Result<()> {
        while !self.is_over() && self.transfer.fetch_next()? {}
        Ok(())
    }

    /// The same, out of the way of everybody.
    fn fetch_all_slowly(&self) -> io::Result<()> {
        let mut stretch = 0;
        while !self.is_over() && self.transfer.fetch_next()? {
            stretch += 1;
            if stretch >= STRETCH || self.urgent.load(Ordering::Relaxed) > 0 {
                stretch = 0;
                thread::sleep(REST);
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// Copies what moves, until no more can come.
    pub(super) fn carry(&self, moves: &Moves) {
        for moving in moves {
            let carried = moving.fetch_all_slowly();
            self.arrive(&moving, carried);
        }
    }

    /// Bytes on their way to fresh memory, of regions of these nodes.
    pub(super) fn moving_bytes(&self, within: impl Fn(NodeId) -> bool) -> u64 {
        let moves = self.regions.iter().filter(|record| within(record.key.node));
        let moves = moves.filter_map(|record| record.moving.clone());
        moves.map(|moving| moving.transfer.remaining()).sum()
    }

    /// Ends moves that are going on of regions that have to move again.
    pub(super) fn finish_moves(&self, change: &Change) {
        let moves: Vec<_> = self
            .regions
            .iter()
            .filter(|record| record.has_to_move(change))
            .filter_map(|record| record.moving.clone())
            .collect();
        for moving in moves {
            let copied = moving.fetch_all();
            self.arrive(&moving, copied);
        }
    }

    /// Tells those who stay to change to fresh memory. Returns the moves, and the regions that
    /// cannot be moved and have to end.
    pub(super) fn start_moves(
        &self,
        books: &mut Books,
        change: &Change,
    ) -> (Vec<Arc<Move>>, Vec<RegionId>) {
        let (mut moves, mut lost) = (Vec::new(), Vec::new());
        if std::env::var_os(STAY).is_some() {
            tracing::error!("{STAY} is set: whoever leaves keeps what it has mapped");
            return (moves, lost);
        }
        for mut record in self.regions.iter_mut() {
            if !record.has_to_move(change) {
                continue;
            }
            match record.start_moving(books, change) {
                Ok(moving) => moves.push(moving),
                Err(error) => {
                    tracing::error!("region {:?} ends, it cannot be moved: {error}", record.key);
                    lost.push(record.key.id);
                }
            }
        }
        (moves, lost)
    }

    /// All who stay have acknowledged or are fenced: from here on nobody meets anything that a
    /// leaver writes.
    pub(super) fn release_moves(&self, moves: &[Arc<Move>], leavers: &[AttachmentId], epoch: u32) {
        let large = |moving: &Arc<Move>| moving.leaver_wrote && moving.transfer.remaining() > SMALL;
        if moves.iter().any(large) {
            let partition = moves[0].key.partition;
            let end = Instant::now() + LEAVERS_TIME;
            self.await_epoch(leavers, partition, epoch, LEAVERS_TIME);
            // A process may have acknowledged while another thread of it still unmaps.
            while moves.iter().any(|m| large(m) && !m.transfer.is_frozen()) && Instant::now() < end
            {
                thread::sleep(Duration::from_micros(100));
            }
        }
        for moving in moves {
            let frozen = !moving.leaver_wrote || large(moving) && moving.transfer.is_frozen();
            let copied = match frozen {
                true => Ok(()),
                false => moving.fetch_all(),
            };
            self.release(moving, copied);
        }
    }

    fn release(&self, moving: &Arc<Move>, mut copied: io::Result<()>) {
        let mut waiting = moving.waiting();
        waiting.is_released = true;
        let wanted = std::mem::take(&mut waiting.wanted);
        drop(waiting);
        for (attachment, chunk) in wanted {
            copied = copied.and_then(|()| moving.fetch(chunk));
            self.tell_arrived(attachment, moving.key);
        }
        match copied {
            // It fails only when the agent is about to end.
            Ok(()) => _ = self.moves.send(Arc::clone(moving)),
            Err(_) => self.arrive(moving, copied),
        }
    }

    /// A process waits for a chunk.
    pub(super) fn fetch(&self, id: AttachmentId, key: RemoteKey, chunk: u64) {
        let record = self.regions.get(&key.id);
        let uses = |record: &RegionRecord| record.owner == id || record.openers.contains_key(&id);
        let record = record.filter(|record| record.key == key && uses(record));
        let moving = record.and_then(|record| record.moving.clone());
        if let Some(moving) = moving {
            let mut waiting = moving.waiting();
            if !waiting.is_released {
                if chunk < moving.transfer.chunks() {
                    waiting.wanted.insert((id, chunk));
                }
                return;
            }
            drop(waiting);
            if let Err(error) = moving.fetch(chunk) {
                return self.arrive(&moving, Err(error));
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
    fn arrive(&self, moving: &Arc<Move>, copied: io::Result<()>) {
        let mut books = self.lock();
        if let Err(error) = copied {
            tracing::error!("region {:?} ends, it cannot be moved: {error}", moving.key);
            let ended = self.end_region(&mut books, moving.key.id, true);
            drop(books);
            return drop(ended);
        }
        let Some(mut record) = self.regions.get_mut(&moving.key.id) else {
            return;
        };
        let ours = |present: &mut Arc<Move>| Arc::ptr_eq(present, moving);
        if record.moving.take_if(ours).is_some() {
            let key = moving.key;
            books.note_region(&record);
            record.tell_users(&books, |outbox| outbox.event(Event::Moved { key }, vec![]));
        }
    }
}

impl RegionRecord {
    /// Whether a node leaves of which a process may have mapped the memory that it is in now.
    pub(super) fn has_to_move(&self, change: &Change) -> bool {
        self.key.partition == Partition(change.domain.id.into())
            && !change.left.contains(&self.key.node)
            && self.mapped_by.keys().any(|node| change.left.contains(node))
    }

    fn start_moving(&mut self, books: &mut Books, change: &Change) -> io::Result<Arc<Move>> {
        if let Some(moving) = self.moving.take() {
            // A process opened it a moment ago, while it moved.
            moving.fetch_all()?;
            let key = self.key;
            self.tell_users(books, |outbox| outbox.event(Event::Moved { key }, vec![]));
        }
        let fresh = create_memory(self.len)?;
        let old = std::mem::replace(&mut self.memory, fresh.try_clone()?);
        let wrote = |(node, wrote): (&NodeId, &bool)| *wrote && change.left.contains(node);
        let moving = Arc::new(Move {
            key: self.key,
            transfer: Transfer::new(old, fresh, self.len)?,
            leaver_wrote: self.mapped_by.iter().any(wrote),
            waiting: Mutex::default(),
            urgent: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        self.forget_leavers(books, change);
        self.tell_to_move(books, &moving)?;
        self.moving = Some(Arc::clone(&moving));
        books.keep_region(self);
        Ok(moving)
    }

    fn forget_leavers(&mut self, books: &mut Books, change: &Change) {
        let (id, mapped_by) = (self.key.id, &mut self.mapped_by);
        mapped_by.clear();
        self.openers.retain(|opener, writes| {
            let Some(attachment) = books.attachments.get_mut(opener) else {
                return false;
            };
            let stays = !change.left.contains(&attachment.node);
            match stays {
                true => *mapped_by.entry(attachment.node).or_default() |= *writes,
                false => _ = attachment.opened.remove(&id),
            }
            stays
        });
    }

    fn tell_to_move(&self, books: &Books, moving: &Move) -> io::Result<()> {
        let tell = |id, memory: File, let_go| {
            let key = self.key;
            let descriptors = vec![memory.into(), moving.transfer.table()?.into()];
            if let Some(attachment) = books.attachments.get(&id) {
                let event = Event::Move { key, let_go };
                attachment.outbox.event(event, descriptors);
            }
            Ok::<(), io::Error>(())
        };
        // What the owner has is not counted among those that can write, so it may keep the old
        // memory for a while.
        tell(self.owner, self.memory.try_clone()?, false)?;
        for (opener, writes) in &self.openers {
            let memory = match writes {
                true => read_write(&self.memory)?,
                false => read_only(&self.memory)?,
            };
            tell(*opener, memory, *writes && moving.leaver_wrote)?;
        }
        Ok(())
    }
}
