//! Deadlines in memory that processes share: when domains and nodes stop unless their host hears
//! from the leader of the directory.
//!
//! ```text
//! word 0    first: the earliest deadline of all        written last
//! word 1    begin of the host's lease
//! word 2..  deadlines of domains, by number            0: none
//! then      deadlines of nodes, by number              0: none, 1: stopped in any case
//! ```
//!
//! Times are nanoseconds of `CLOCK_BOOTTIME`, which goes on while the machine is suspended. The
//! agent alone writes. The other processes look before each batch of frames, bytes or operations, so
//! that they stop in time also while the agent is stopped. Without fenced domains, a look is one
//! load.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::mem::mapping::Mapping;
use crate::mem::memfd::create_memory;
use crate::os::thread::boottime;
use crate::{NodeId, Partition};

const FIRST: usize = 0;
const BEGIN: usize = 1;
const DOMAINS: usize = 2;

/// Numbers of domains and of nodes have two bytes.
const NUMBERS: usize = 1 << 16;
const NODES: usize = DOMAINS + NUMBERS;
const WORDS: usize = NODES + NUMBERS;

/// Pause between looks of a thread that waits for an extended deadline.
const PAUSE: Duration = Duration::from_millis(10);

/// A deadline that has passed at any time.
pub const PAST: u64 = 1;

/// The deadlines, as one process maps them.
#[derive(Debug)]
pub struct Deadlines {
    memory: Mapping,
}

impl Deadlines {
    const LEN: usize = WORDS * 8;

    /// Creates memory without deadlines. Only its used parts occupy pages.
    ///
    /// # Errors
    /// The system's.
    pub fn create() -> io::Result<File> {
        create_memory(Self::LEN as u64)
    }

    /// Maps the memory, for writing at the agent.
    ///
    /// # Errors
    /// The system's; a file that is too short is refused.
    pub fn map(memory: &File, writable: bool) -> io::Result<Self> {
        Ok(Deadlines {
            memory: Mapping::of_file(memory, Self::LEN, writable)?,
        })
    }

    /// Present time.
    pub fn now() -> u64 {
        boottime()
    }

    /// Whether the members of a domain have stopped: their deadline has passed.
    pub fn has_passed(&self, domain: Partition) -> bool {
        // Pairs with the Release in `set_first`: deadlines are at least as new as the first one.
        let first = self.load(FIRST, Ordering::Acquire);
        if first == 0 {
            return false;
        }
        let now = Self::now();
        first <= now && is_due(self.domain(domain), now)
    }

    /// Waits until the members of a domain may go on.
    pub fn await_extension(&self, domain: Partition) {
        while self.has_passed(domain) {
            thread::sleep(PAUSE);
        }
    }

    /// Whether a node has stopped.
    pub fn is_stopped(&self, node: NodeId) -> bool {
        is_due(self.node(node), Self::now())
    }

    /// Deadline of a domain; 0: none.
    pub fn domain(&self, domain: Partition) -> u64 {
        self.load(DOMAINS + (domain.0 as usize % NUMBERS), Ordering::Relaxed)
    }

    /// Deadline of a node; 0: none.
    pub fn node(&self, node: NodeId) -> u64 {
        self.load(NODES + (node.0 as usize % NUMBERS), Ordering::Acquire)
    }

    /// Begin of the host's lease; 0: it has none.
    pub fn begin(&self) -> u64 {
        self.load(BEGIN, Ordering::Relaxed)
    }

    /// Domains with a deadline.
    pub fn domains(&self) -> impl Iterator<Item = Partition> {
        let all = (0..NUMBERS as u32).map(Partition);
        all.filter(|domain| self.domain(*domain) != 0)
    }

    /// Nodes with a deadline.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let all = (0..NUMBERS as u32).map(NodeId);
        all.filter(|node| self.node(*node) != 0)
    }

    /// Sets the begin of the host's lease.
    pub fn set_begin(&self, at: u64) {
        self.store(BEGIN, at);
    }

    /// Sets the deadline of a domain. [`Deadlines::set_first`] follows.
    pub fn set_domain(&self, domain: Partition, at: u64) {
        self.store(DOMAINS + (domain.0 as usize % NUMBERS), at);
    }

    /// Sets the deadline of a node.
    pub fn set_node(&self, node: NodeId, at: u64) {
        self.store(NODES + (node.0 as usize % NUMBERS), at);
    }

    /// Sets the earliest deadline of all domains, after these.
    pub fn set_first(&self, at: u64) {
        self.store(FIRST, at);
    }

    fn load(&self, word: usize, ordering: Ordering) -> u64 {
        // Each number is below `WORDS`.
        self.word(word).map_or(PAST, |word| word.load(ordering))
    }

    fn store(&self, word: usize, value: u64) {
        if let Some(word) = self.word(word) {
            // Pairs with the Acquire loads in `has_passed` and `node`.
            word.store(value, Ordering::Release);
        }
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.memory.word(at as u64 * 8)
    }
}

fn is_due(deadline: u64, now: u64) -> bool {
    deadline != 0 && deadline <= now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_and_nodes_stop_at_their_deadlines() {
        let memory = Deadlines::create().unwrap();
        let agent = Deadlines::map(&memory, true).unwrap();
        let driver = Deadlines::map(&memory, false).unwrap();
        let (blue, red) = (Partition(7), Partition(65_535));
        let later = Deadlines::now() + 3_600_000_000_000;
        let stopped = |driver: &Deadlines| [blue, red].map(|domain| driver.has_passed(domain));
        assert_eq!(stopped(&driver), [false, false]);
        agent.set_domain(blue, PAST);
        agent.set_domain(red, later);
        agent.set_first(PAST);
        assert_eq!(stopped(&driver), [true, false]);
        agent.set_domain(blue, later);
        agent.set_first(later);
        assert_eq!(stopped(&driver), [false, false]);
        agent.set_node(NodeId(65_535), PAST);
        agent.set_node(NodeId(0), later);
        let nodes = [0, 1, 65_535].map(|node| driver.is_stopped(NodeId(node)));
        assert_eq!(nodes, [false, false, true]);
        assert!(driver.nodes().eq([0, 65_535].map(NodeId)));
        assert!(driver.domains().eq([blue, red]));
    }

    #[test]
    fn a_waiting_thread_goes_on_after_the_extension() {
        let memory = Deadlines::create().unwrap();
        let agent = Deadlines::map(&memory, true).unwrap();
        agent.set_domain(Partition(7), PAST);
        agent.set_first(PAST);
        thread::scope(|scope| {
            let driver = Deadlines::map(&memory, false).unwrap();
            let waiting = scope.spawn(move || driver.await_extension(Partition(7)));
            thread::sleep(2 * PAUSE);
            assert!(!waiting.is_finished());
            agent.set_domain(Partition(7), u64::MAX);
            waiting.join().unwrap();
        });
    }
}
