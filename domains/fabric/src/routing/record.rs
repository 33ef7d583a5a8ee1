//! Counters of routes in the memory of a domain.
//!
//! The processes of a domain and the driver map the memory, and write what each of their routers
//! counts. The agent reads it. Any process of the domain can write anything: figures may then be
//! wrong, nothing else.
//!
//! The memory is a hash table with open addressing, as that of [`SharedClocks`]. An entry has the
//! name of a leg, the counts of its policy, and for each mode bytes and [`Counters`].

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Leg;
use crate::mem::mapping::Mapping;
use crate::model::SharedClocks;
use crate::routes::policy::Report;
use crate::routes::{Counters, Mode};

const ENTRIES: usize = 1 << 13;

/// Entries that a search looks at before it gives up.
const PROBES: usize = 64;

const MODES: usize = Mode::ALL.len();

/// Name, decisions, switches, skipped bytes, messages without a decision, non-minimal messages.
const HEAD: usize = 6;

const DECISIONS: usize = 1;

/// Bytes and the four counters.
const OF_MODE: usize = 5;

/// Words of an entry; a multiple of a cache line.
const WORDS: usize = (HEAD + MODES * OF_MODE).next_multiple_of(8);

/// Counters of the routes of a domain, as one process maps them.
#[derive(Debug)]
pub struct RouteRecords(Mapping);

/// First word of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(usize);

/// What was counted for some legs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteRecord {
    /// Messages on which policies decided.
    pub decisions: u64,
    /// Decisions for another mode than the one before.
    pub switches: u64,
    /// Bytes of messages too small for a decision.
    pub skipped_bytes: u64,
    /// Messages.
    pub messages: u64,
    /// Messages on a non-minimal route.
    pub non_minimal: u64,
    /// Bytes by mode, in the order of [`Mode::ALL`].
    pub bytes: [u64; MODES],
    /// Counters by mode.
    pub counters: [Counters; MODES],
}

impl RouteRecords {
    /// Bytes of the memory, of which only used parts occupy pages.
    pub const LEN: usize = ENTRIES * WORDS * 8;

    /// Maps the memory of a domain, which is as long as [`SharedClocks::LEN`] says.
    ///
    /// # Errors
    /// The system's; a file that is too short is refused.
    pub fn map(memory: &File) -> io::Result<Self> {
        const { assert!(Self::LEN <= SharedClocks::LEN) };
        Ok(RouteRecords(Mapping::of_file(memory, Self::LEN, true)?))
    }

    /// What was counted for these legs.
    pub fn of(&self, legs: impl IntoIterator<Item = Leg>) -> RouteRecord {
        let mut sum = RouteRecord::default();
        let entries = legs
            .into_iter()
            .filter_map(|leg| self.search(name(leg), false));
        entries.for_each(|entry| sum.add(|word| self.load(entry, word)));
        sum
    }

    /// What was counted for a leg in one mode.
    pub fn counters(&self, leg: Leg, mode: Mode) -> Counters {
        let entry = self.search(name(leg), false);
        entry.map_or_else(Counters::default, |entry| {
            counters(mode, |word| self.load(entry, word))
        })
    }

    /// The entry of a leg; `None` if the table is full around it.
    pub(super) fn entry(&self, leg: Leg) -> Option<Entry> {
        self.search(name(leg), true)
    }

    /// Records a decision, by the reports of the policy before and after it.
    pub(super) fn decided(
        &self,
        entry: Entry,
        mode: Mode,
        before: &Report,
        after: &Report,
        is_minimal: bool,
    ) {
        let counts = [
            after.decisions - before.decisions,
            after.switches - before.switches,
            after.skipped_bytes - before.skipped_bytes,
            u64::from(after.decisions == before.decisions),
            u64::from(!is_minimal),
        ];
        for (word, n) in (DECISIONS..).zip(counts) {
            self.add(entry, word, n);
        }
        let bytes = after.bytes_of(mode) - before.bytes_of(mode);
        self.add(entry, of_mode(mode), bytes);
    }

    pub(super) fn count(&self, entry: Entry, mode: Mode, counted: &Counters) {
        let counts = [
            counted.request_flits,
            counted.stalled_cycles,
            counted.packets,
            counted.latency_ns,
        ];
        for (word, n) in (of_mode(mode) + 1..).zip(counts) {
            self.add(entry, word, n);
        }
    }

    fn add(&self, Entry(first): Entry, word: usize, n: u64) {
        if n > 0
            && let Some(word) = self.word(first + word)
        {
            word.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn load(&self, Entry(first): Entry, word: usize) -> u64 {
        let word = self.word(first + word);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.0.word(at as u64 * 8)
    }

    fn search(&self, name: u64, claims: bool) -> Option<Entry> {
        // Fibonacci hashing (Knuth, volume 3, 6.4).
        let hash = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        for probe in 0..PROBES {
            let first = (hash as usize + probe) % ENTRIES * WORDS;
            let word = self.word(first)?;
            let order = Ordering::Relaxed;
            let found = match claims {
                true => match word.compare_exchange(0, name, order, order) {
                    Ok(_) => name,
                    Err(found) => found,
                },
                false => word.load(order),
            };
            match found {
                0 => return None,
                found if found == name => return Some(Entry(first)),
                _ => {}
            }
        }
        None
    }
}

impl RouteRecord {
    /// Share of messages on a non-minimal route; 0 without messages.
    pub fn share_non_minimal(&self) -> f64 {
        self.non_minimal as f64 / self.messages.max(1) as f64
    }

    fn add(&mut self, load: impl Fn(usize) -> u64) {
        let head = [
            &mut self.decisions,
            &mut self.switches,
            &mut self.skipped_bytes,
            &mut self.messages,
            &mut self.non_minimal,
        ];
        for (word, sum) in (DECISIONS..).zip(head) {
            *sum = sum.saturating_add(load(word));
        }
        self.messages = self.messages.saturating_add(load(DECISIONS));
        for mode in Mode::ALL {
            let bytes = &mut self.bytes[mode as usize];
            *bytes = bytes.saturating_add(load(of_mode(mode)));
            self.counters[mode as usize] += counters(mode, &load);
        }
    }
}

fn of_mode(mode: Mode) -> usize {
    HEAD + OF_MODE * mode as usize
}

fn counters(mode: Mode, load: impl Fn(usize) -> u64) -> Counters {
    let first = of_mode(mode);
    Counters {
        request_flits: load(first + 1),
        stalled_cycles: load(first + 2),
        packets: load(first + 3),
        latency_ns: load(first + 4),
    }
}

/// Name of a leg, never 0.
fn name(Leg { from, to, path }: Leg) -> u64 {
    // Numbers of nodes have 16 bits (`Torus::MAX_NODES`).
    (path as u64 + 1) << 60 | u64::from(from.0 & 0x3fff_ffff) << 30 | u64::from(to.0 & 0x3fff_ffff)
}
