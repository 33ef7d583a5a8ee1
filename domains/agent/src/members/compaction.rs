//! Regions that peers may write are brought into huge pages in the background, so that the time of
//! a migration does not grow with the touched memory.
//!
//! One thread compacts one region after another: after it was opened for writing, after it has
//! migrated, after a takeover; and 1, 10 and 100 s later if something is left to do. A migration
//! stops the compaction of its region, which ends after the present piece of 2 MiB. The thread
//! holds no lock of the members meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use toroid_fabric::mem::Compaction;
use toroid_fabric::mem::compaction::{self, Look, PIECE};
use toroid_fabric::{NodeId, RegionId, RemoteKey};

/// Times of further passes after a reason for one.
const AGAIN: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(100),
];

/// Most passes over one memory: opening a region again and again gives no more.
const MOST_LOOKS: u32 = 16;

/// Pause between two pieces, for other threads.
const REST: Duration = Duration::from_micros(200);

/// Schedule of passes.
#[derive(Debug, Default)]
pub(crate) struct Compactor {
    plan: Mutex<Plan>,
    /// Signals a new pass, or the end of one.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Plan {
    regions: HashMap<RegionId, Entry>,
    queue: BTreeSet<(Instant, RegionId)>,
    /// Region of the present pass.
    present: Option<RegionId>,
    last_number: u64,
    /// Whether this kernel cannot compact.
    is_off: bool,
}

/// A region in its present memory.
#[derive(Debug)]
struct Entry {
    node: NodeId,
    /// Number of the memory, unique.
    number: u64,
    /// Absent during a pass.
    compaction: Option<Compaction>,
    looks: u32,
    /// Passes since the last reason.
    round: usize,
    due: Option<Instant>,
    /// Bytes left for the next pass, or for the present one.
    remaining: u64,
}

/// A pass that is due.
#[derive(Debug)]
struct Job {
    region: RegionId,
    number: u64,
    compaction: Compaction,
}

impl Compactor {
    /// Schedules a pass over a region that does not migrate.
    pub(crate) fn look(&self, key: RemoteKey, memory: &File, len: u64) {
        if len < PIECE {
            return;
        }
        let mut plan = self.plan.lock();
        match plan.look(Instant::now(), key, || Compaction::new(memory, len)) {
            Ok(()) => {
                self.changed.notify_all();
            }
            Err(error) => tracing::debug!("region {key:?} stays in small pages: {error}"),
        }
    }

    /// Ends passes over a region, which ends or is about to migrate.
    pub(super) fn stop(&self, region: RegionId) {
        self.plan.lock().stop(region);
    }

    /// Waits for the end of a pass over a region after [`Compactor::stop`], at most for `timeout`.
    pub(super) fn await_stop(&self, region: RegionId, timeout: Duration) {
        let looks = |plan: &mut Plan| plan.present == Some(region);
        self.changed
            .wait_while_for(&mut self.plan.lock(), looks, timeout);
    }

    /// Bytes that are due in regions of these nodes.
    pub(crate) fn due_bytes(&self, within: impl Fn(NodeId) -> bool) -> u64 {
        self.plan.lock().due_bytes(Instant::now(), within)
    }

    /// Runs passes for ever; none if the kernel cannot compact.
    pub(crate) fn run(&self) {
        let mut job = self.next();
        if let Err(error) = compaction::available() {
            tracing::info!("regions stay in pages of 4 KiB: {error}");
            return self.plan.lock().turn_off();
        }
        loop {
            self.work(job);
            job = self.next();
        }
    }

    fn next(&self) -> Job {
        let mut plan = self.plan.lock();
        loop {
            let now = Instant::now();
            if let Some(job) = plan.take(now) {
                return job;
            }
            match plan.next_due() {
                Some(due) => {
                    self.changed.wait_until(&mut plan, due);
                }
                None => self.changed.wait(&mut plan),
            }
        }
    }

    fn work(&self, mut job: Job) {
        let (region, number) = (job.region, job.number);
        let found = job.compaction.look(|left| {
            let goes_on = self.plan.lock().go_on(region, number, left);
            if goes_on {
                thread::sleep(REST);
            }
            goes_on
        });
        let found = found.unwrap_or_else(|error| {
            tracing::debug!("region {region:?} stays in small pages: {error}");
            Look::Later
        });
        // Dropped without the lock: after the region's end it may be the last reference to the
        // memory.
        let ended = self.plan.lock().finish(Instant::now(), job, found);
        self.changed.notify_all();
        drop(ended);
    }
}

impl Plan {
    fn look(
        &mut self,
        now: Instant,
        key: RemoteKey,
        prepare: impl FnOnce() -> io::Result<Compaction>,
    ) -> io::Result<()> {
        if self.is_off {
            return Ok(());
        }
        if !self.regions.contains_key(&key.id) {
            let compaction = prepare()?;
            self.last_number += 1;
            let entry = Entry {
                node: key.node,
                number: self.last_number,
                remaining: compaction.remaining(),
                compaction: Some(compaction),
                looks: 0,
                round: 0,
                due: None,
            };
            self.regions.insert(key.id, entry);
        }
        if let Some(entry) = self.regions.get_mut(&key.id) {
            entry.round = 0;
            // A region in a pass is scheduled again after it.
            if entry.compaction.is_some() {
                entry.plan(key.id, &mut self.queue, now);
            }
        }
        Ok(())
    }

    fn stop(&mut self, region: RegionId) {
        if let Some(entry) = self.regions.remove(&region)
            && let Some(due) = entry.due
        {
            self.queue.remove(&(due, region));
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Takes the first pass that is due.
    fn take(&mut self, now: Instant) -> Option<Job> {
        let (due, region) = *self.queue.first()?;
        if due > now {
            return None;
        }
        self.queue.pop_first();
        let entry = self.regions.get_mut(&region)?;
        entry.due = None;
        entry.looks += 1;
        self.present = Some(region);
        Some(Job {
            region,
            number: entry.number,
            compaction: entry.compaction.take()?,
        })
    }

    /// Whether a pass with so many bytes left shall continue.
    fn go_on(&mut self, region: RegionId, number: u64, left: u64) -> bool {
        let entry = self.regions.get_mut(&region);
        let entry = entry.filter(|entry| entry.number == number);
        entry.map(|entry| entry.remaining = left).is_some()
    }

    /// Ends a pass. Returns its compaction if the region has ended or has other memory.
    fn finish(&mut self, now: Instant, job: Job, found: Look) -> Option<Compaction> {
        self.present = None;
        let entry = self.regions.get_mut(&job.region);
        let Some(entry) = entry.filter(|entry| entry.number == job.number) else {
            return Some(job.compaction);
        };
        let again = AGAIN.get(entry.round).map(|after| now + *after);
        entry.round += 1;
        entry.remaining = job.compaction.remaining();
        entry.compaction = Some(job.compaction);
        match (found, again) {
            (Look::Later, Some(again)) => entry.plan(job.region, &mut self.queue, again),
            (Look::TooLong, _) => entry.looks = MOST_LOOKS,
            _ => {}
        }
        None
    }

    fn due_bytes(&self, now: Instant, within: impl Fn(NodeId) -> bool) -> u64 {
        let is_due = |entry: &&Entry| {
            let is_due = entry.compaction.is_none() || entry.due.is_some_and(|due| due <= now);
            is_due && within(entry.node)
        };
        let due = self.regions.values().filter(is_due);
        due.map(|entry| entry.remaining).sum()
    }

    fn turn_off(&mut self) {
        *self = Plan {
            is_off: true,
            ..Plan::default()
        };
    }
}

impl Entry {
    /// Schedules the next pass, if there may be one and it is of use.
    fn plan(&mut self, region: RegionId, queue: &mut BTreeSet<(Instant, RegionId)>, due: Instant) {
        if let Some(before) = self.due.take() {
            queue.remove(&(before, region));
        }
        if self.looks < MOST_LOOKS && self.remaining > 0 {
            self.due = Some(due);
            queue.insert((due, region));
        }
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::Partition;
    use toroid_fabric::mem::memfd::create_for_peers;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const KEY: RemoteKey = RemoteKey {
        node: NodeId(1),
        partition: Partition(7),
        id: RegionId(3),
        secret: [0; 16],
    };

    const LEN: u64 = 2 * PIECE + 4096;

    fn look(plan: &mut Plan, now: Instant) {
        let memory = create_for_peers(LEN).unwrap();
        let look = plan.look(now, KEY, || Compaction::new(&memory, LEN));
        look.unwrap();
    }

    fn due(plan: &Plan, now: Instant) -> u64 {
        plan.due_bytes(now, |node| node == KEY.node)
    }

    /// Runs a pass with this result; returns whether one was due.
    fn looks(plan: &mut Plan, now: Instant, found: Look) -> bool {
        let job = plan.take(now);
        let is_due = job.is_some();
        job.map(|job| plan.finish(now, job, found));
        is_due
    }

    #[test]
    fn passes_come_at_once_and_then_at_growing_intervals() {
        let (mut plan, start) = (Plan::default(), Instant::now());
        assert!(plan.next_due().is_none());
        look(&mut plan, start);
        assert_eq!(due(&plan, start), 2 * PIECE);
        assert_eq!(plan.due_bytes(start, |_| false), 0);
        let mut now = start;
        for after in [0, 1, 10, 100] {
            let at = now + after * SECOND;
            assert_eq!(plan.next_due(), Some(at));
            assert!(after == 0 || !looks(&mut plan, at - SECOND / 2, Look::Later));
            assert!(looks(&mut plan, at, Look::Later));
            assert_eq!(due(&plan, at), 0);
            now = at;
        }
        assert_eq!(plan.next_due(), None);
        look(&mut plan, now);
        assert_eq!(plan.next_due(), Some(now));
    }

    #[test]
    fn one_memory_gets_a_limited_number_of_passes() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        let count = |plan: &mut Plan| {
            let all = (0..2 * MOST_LOOKS).filter(|_| {
                look(plan, now);
                looks(plan, now, Look::Later)
            });
            all.count() as u32
        };
        assert_eq!(count(&mut plan), MOST_LOOKS);
        assert_eq!((due(&plan, now), plan.next_due()), (0, None));
        // Fresh memory gets its own passes.
        plan.stop(KEY.id);
        assert_eq!(count(&mut plan), MOST_LOOKS);
    }

    #[test]
    fn a_complete_or_too_long_pass_is_not_repeated() {
        for found in [Look::Done, Look::TooLong] {
            let (mut plan, now) = (Plan::default(), Instant::now());
            look(&mut plan, now);
            assert!(looks(&mut plan, now, found));
            assert_eq!(plan.next_due(), None, "{found:?}");
        }
        let (mut plan, now) = (Plan::default(), Instant::now());
        look(&mut plan, now);
        looks(&mut plan, now, Look::TooLong);
        look(&mut plan, now);
        assert_eq!(plan.next_due(), None);
    }

    #[test]
    fn a_migration_stops_a_pass_and_fresh_memory_gets_a_new_number() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        look(&mut plan, now);
        let job = plan.take(now).unwrap();
        assert!(plan.go_on(job.region, job.number, PIECE));
        assert_eq!(due(&plan, now), PIECE);
        plan.stop(KEY.id);
        assert!(!plan.go_on(job.region, job.number, PIECE));
        assert_eq!(plan.present, Some(KEY.id), "it is at a piece");
        look(&mut plan, now);
        assert!(!plan.go_on(job.region, job.number, PIECE));
        assert!(plan.finish(now, job, Look::Stopped).is_some());
        assert_eq!(plan.present, None);
        assert_eq!(due(&plan, now), 2 * PIECE);
        plan.stop(KEY.id);
        assert_eq!((due(&plan, now), plan.next_due()), (0, None));
    }

    #[test]
    fn a_kernel_without_compaction_gets_no_passes() {
        let (mut plan, now) = (Plan::default(), Instant::now());
        look(&mut plan, now);
        plan.turn_off();
        look(&mut plan, now);
        assert_eq!((due(&plan, now), plan.next_due()), (0, None));
    }

    /// A pass that is stopped is awaited.
    #[test]
    fn a_migration_waits_for_a_piece_of_a_pass() {
        let compactor = Compactor::default();
        let memory = create_for_peers(LEN).unwrap();
        compactor.look(KEY, &memory, LEN);
        compactor.look(KEY, &memory, PIECE - 1);
        let job = compactor.next();
        compactor.stop(KEY.id);
        compactor.await_stop(KEY.id, Duration::from_millis(1));
        assert_eq!(compactor.plan.lock().present, Some(KEY.id));
        thread::scope(|scope| {
            scope.spawn(|| compactor.work(job));
            compactor.await_stop(KEY.id, 60 * SECOND);
            assert_eq!(compactor.plan.lock().present, None);
        });
    }
}
