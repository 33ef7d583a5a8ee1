//! Clocks in memory that processes share, with a record of how late transfers left.
//!
//! The agent creates the memory and hands it to all processes whose traffic contends. Each of them
//! can write anything: a wrong clock delays messages by at most [`super::MAX_BACKLOG`], and a wrong
//! name makes two stages share a clock. No process reads another's data there.
//!
//! The memory is a hash table with open addressing. An entry is claimed by storing the name of its
//! clock; entries are never freed.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::clocks::{ClockId, Clocks, start};
use super::{FlowPath, MAX_BACKLOG, Nanos, TICKS, ticks};
use crate::mem::mapping::Mapping;
use crate::mem::memfd::create_memory;
use crate::os::thread::now;

/// Entries of a table.
const ENTRIES: usize = 1 << 14;

/// Entries that a search looks at before it gives up.
const PROBES: usize = 64;

/// Buckets of a histogram: four for each power of two, from 16 ns on.
const BUCKETS: usize = 72;

/// Words of a histogram: its buckets, then late transfers, then processor time in nanoseconds.
const HISTOGRAM: usize = BUCKETS + 2;

/// Words of an entry: name, clock, clocks out of range, a histogram for each path, and a
/// [`FlowRecord`]; a multiple of a cache line.
const WORDS: usize = (FLOWS + 3).next_multiple_of(8);

/// Word after the entries: reservations without an entry.
const WITHOUT_CLOCK: usize = ENTRIES * WORDS;

const NAME: usize = 0;
const FREE_AT: usize = 1;
const CLAMPED: usize = 2;
const HISTOGRAMS: usize = 3;
const FLOWS: usize = HISTOGRAMS + 2 * HISTOGRAM;

/// The two paths of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// One-sided operations and packets of channels.
    Rdma,
    /// Frames.
    Ethernet,
}

/// How late the transfers of one path left a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockRecord {
    /// Transfers.
    pub transfers: u64,
    /// Transfers that left later than both 1 us and 1 % of the time they took.
    pub late: u64,
    /// Median lateness in nanoseconds, to 19 %.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Processor time spent on waiting, in nanoseconds.
    pub cpu: Nanos,
    /// Reservations that found a clock out of range.
    pub clamped: u64,
    /// Frames of flows with a gateway. Of Ethernet only.
    pub flows: FlowRecord,
}

/// Paths of the frames of flows with a gateway, whether they arrived or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRecord {
    /// Frames through the gateway.
    pub gateway: u64,
    /// Frames without the detour.
    pub direct: u64,
    /// Changes of a flow from the gateway to the direct path.
    pub switches: u64,
}

/// The table, as one process maps it.
#[derive(Debug)]
pub struct SharedClocks {
    memory: Mapping,
    /// Entries found so far by [`LinkClocks`], by the number of the link; 0: none yet.
    found: OnceLock<Box<[AtomicU32]>>,
}

/// Clocks of numbered links, for many looks: each clock is searched once.
#[derive(Clone, Copy, Debug)]
pub struct LinkClocks<'a> {
    clocks: &'a SharedClocks,
    found: &'a [AtomicU32],
}

impl SharedClocks {
    /// Bytes of the memory, of which only used parts occupy pages.
    pub const LEN: usize = (WITHOUT_CLOCK + 1) * 8;

    /// Creates empty memory for a table.
    ///
    /// # Errors
    /// The system's.
    pub fn create() -> io::Result<File> {
        create_memory(Self::LEN as u64)
    }

    /// Maps a table.
    ///
    /// # Errors
    /// The system's; a file that is too short is refused.
    pub fn map(memory: &File) -> io::Result<Self> {
        Ok(SharedClocks {
            memory: Mapping::of_file(memory, Self::LEN, true)?,
            found: OnceLock::new(),
        })
    }

    /// The time by which all processes reserve: `CLOCK_MONOTONIC`.
    pub fn now() -> Nanos {
        now().as_nanos() as Nanos
    }

    /// Records a transfer on the clock of the first stage of its route: it left `late` nanoseconds
    /// after it was due and took `took` in all. `cpu` is the processor time that waiting cost.
    pub fn record(&self, clock: ClockId, path: Path, late: Nanos, took: Nanos, cpu: Nanos) {
        let Some(entry) = self.entry(clock) else {
            return;
        };
        let at = entry + HISTOGRAMS + HISTOGRAM * path as usize;
        let add = |word: usize, n: u64| {
            if let Some(word) = self.word(at + word) {
                word.fetch_add(n, Ordering::Relaxed);
            }
        };
        add(bucket(late), 1);
        if late > 1_000.max(took / 100) {
            add(BUCKETS, 1);
        }
        if cpu > 0 {
            add(BUCKETS + 1, cpu);
        }
    }

    /// Records frames of a flow on the clock of its link. `switches`: the flow is direct after them,
    /// and was not before.
    pub fn record_flow(&self, clock: ClockId, path: FlowPath, frames: u64, switches: bool) {
        let Some(entry) = self.entry(clock) else {
            return;
        };
        let of_path = entry + FLOWS + path as usize;
        for (at, n) in [(of_path, frames), (entry + FLOWS + 2, switches.into())] {
            if n > 0
                && let Some(word) = self.word(at)
            {
                word.fetch_add(n, Ordering::Relaxed);
            }
        }
    }

    /// The clocks of `links` links, which have the same numbers in all calls.
    pub fn links(&self, links: u32) -> LinkClocks<'_> {
        let found = self.found.get_or_init(|| {
            let links = 0..links;
            links.map(|_| AtomicU32::new(0)).collect()
        });
        LinkClocks {
            clocks: self,
            found,
        }
    }

    /// Reservations that found the table full, and so had no queue.
    pub fn without_clock(&self) -> u64 {
        let count = self.word(WITHOUT_CLOCK);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.memory.word(at as u64 * 8)
    }

    /// First word of the entry of a clock, which is claimed if the clock has none yet; `None` if
    /// the table is full around it.
    fn entry(&self, clock: ClockId) -> Option<usize> {
        self.search(clock, |name| {
            let claimed = name.compare_exchange(0, clock.0, Ordering::Relaxed, Ordering::Relaxed);
            claimed.map_or_else(|other| other, |_| clock.0)
        })
    }

    /// First word of the entry of a clock, if the clock has one.
    fn existing(&self, clock: ClockId) -> Option<usize> {
        self.search(clock, |_| 0)
    }

    /// First word of the entry of a clock. An empty entry has the name that `claim` returns.
    fn search(&self, clock: ClockId, claim: impl Fn(&AtomicU64) -> u64) -> Option<usize> {
        // Fibonacci hashing (Knuth, volume 3, 6.4).
        let hash = clock.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        for probe in 0..PROBES {
            let entry = (hash as usize + probe) % ENTRIES * WORDS;
            let name = self.word(entry + NAME)?;
            let found = match name.load(Ordering::Relaxed) {
                0 => claim(name),
                found => found,
            };
            match found {
                0 => return None,
                found if found == clock.0 => return Some(entry),
                _ => {}
            }
        }
        None
    }
}

impl LinkClocks<'_> {
    /// The time until which a link is reserved; 0 if no message has passed the link yet.
    #[inline]
    pub fn reserved_until(&self, link: u32, clock: impl FnOnce() -> ClockId) -> Nanos {
        let found = self.found.get(link as usize);
        let entry = match found.map_or(0, |found| found.load(Ordering::Relaxed)) {
            0 => match self.clocks.existing(clock()) {
                Some(entry) => self.keep(link, entry),
                None => return 0,
            },
            entry => entry as usize - 1,
        };
        let free_at = self.clocks.word(entry + FREE_AT);
        free_at.map_or(0, |free_at| free_at.load(Ordering::Relaxed)) / TICKS
    }

    #[cold]
    fn keep(&self, link: u32, entry: usize) -> usize {
        if let Some(found) = self.found.get(link as usize) {
            found.store(entry as u32 + 1, Ordering::Relaxed);
        }
        entry
    }
}

/// Stages that find no entry have no queue.
impl Clocks for SharedClocks {
    fn reserve(&self, clock: ClockId, ready: u64, service: u64, wait: u64) -> Option<u64> {
        let words = self
            .entry(clock)
            .map(|entry| (self.word(entry + FREE_AT), self.word(entry + CLAMPED)));
        let Some((Some(word), Some(clamped))) = words else {
            if let Some(count) = self.word(WITHOUT_CLOCK) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            return Some(ready);
        };
        // The word orders no other memory.
        let order = Ordering::Relaxed;
        let latest = ready.saturating_add(ticks(MAX_BACKLOG));
        let mut free_at = word.load(order);
        loop {
            let start = start(free_at, ready, wait);
            // A clock out of range is set right also by a message that does not wait for it.
            let next = start.map_or(free_at.min(latest), |start| start.saturating_add(service));
            match word.compare_exchange_weak(free_at, next, order, order) {
                Ok(_) => {
                    if free_at > latest {
                        clamped.fetch_add(1, order);
                    }
                    return start;
                }
                Err(now) => free_at = now,
            }
        }
    }
}

/// The record of one path over some clocks of a table.
pub fn record_of(
    clocks: &SharedClocks,
    path: Path,
    of: impl IntoIterator<Item = ClockId>,
) -> ClockRecord {
    let mut buckets = [0_u64; BUCKETS];
    let mut record = ClockRecord::default();
    for entry in of.into_iter().filter_map(|clock| clocks.existing(clock)) {
        let load = |at: usize| {
            clocks
                .word(at)
                .map_or(0, |word| word.load(Ordering::Relaxed))
        };
        let at = entry + HISTOGRAMS + HISTOGRAM * path as usize;
        for (n, sum) in buckets.iter_mut().enumerate() {
            *sum = sum.saturating_add(load(at + n));
        }
        record.late = record.late.saturating_add(load(at + BUCKETS));
        record.cpu = record.cpu.saturating_add(load(at + BUCKETS + 1));
        record.clamped = record.clamped.saturating_add(load(entry + CLAMPED));
        if path == Path::Ethernet {
            let flows = &mut record.flows;
            let sums = [&mut flows.gateway, &mut flows.direct, &mut flows.switches];
            for (n, sum) in sums.into_iter().enumerate() {
                *sum = sum.saturating_add(load(entry + FLOWS + n));
            }
        }
    }
    record.transfers = buckets.iter().fold(0, |sum, n| sum.saturating_add(*n));
    record.p50 = percentile(&buckets, record.transfers, 50);
    record.p99 = percentile(&buckets, record.transfers, 99);
    record
}

/// Bucket of a lateness.
fn bucket(late: Nanos) -> usize {
    if late < 16 {
        return 0;
    }
    let octave = late.ilog2();
    let quarter = (late >> (octave - 2)) & 3;
    (((octave - 4) * 4) as usize + quarter as usize + 1).min(BUCKETS - 1)
}

/// Upper end of a bucket.
fn upper(bucket: usize) -> Nanos {
    if bucket == 0 {
        return 16;
    }
    let (octave, quarter) = ((bucket - 1) / 4 + 4, (bucket - 1) % 4);
    (1_u64 << octave) + ((quarter as u64 + 1) << (octave - 2))
}

fn percentile(buckets: &[u64; BUCKETS], total: u64, percent: u64) -> Nanos {
    if total == 0 {
        return 0;
    }
    let wanted = u128::from(total) * u128::from(percent);
    let mut seen = 0_u128;
    for (n, count) in buckets.iter().enumerate() {
        seen += u128::from(*count) * 100;
        if seen >= wanted {
            return upper(n);
        }
    }
    upper(BUCKETS - 1)
}
