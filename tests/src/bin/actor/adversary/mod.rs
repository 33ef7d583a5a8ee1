//! A hostile member: it speaks to the agent without the library, keeps every descriptor and
//! mapping that it ever got, acknowledges nothing, and goes on after its node has left.
//!
//! [`guard`] has the members that stay, [`leave`] the one that leaves. A leaver writes into rings
//! ([`forger`]), sends frames ([`sender`]), and writes to memory by its mapping ([`scribe`]), by the
//! kernel ([`pins`]), a disk ([`disk`]), a child ([`child`]), another mapping ([`moved`]) and page
//! faults ([`faults`]). Other adversaries keep the kernel's lock of memory ([`lock`]), read memory
//! too early ([`peek`]), use it after they have disconnected ([`linger`]), write to the clocks of
//! links ([`delay`]), hang the agent's system calls ([`hang`]), or attack processes ([`attack`]).

mod attack;
mod child;
mod delay;
mod disk;
mod faults;
mod forger;
mod grips;
mod guard;
mod hang;
mod leave;
mod linger;
mod lock;
mod mapping;
mod moved;
mod peek;
mod pins;
mod scribe;
mod sender;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Subcommand;
use tests::actor::Event;
use toroid_fabric::{Place, Protocol, RemoteKey};

use super::Result;
use linger::Rights;
use lock::Stays;

/// Occurrences by kind; a kind without occurrences is left out.
type Tally = BTreeMap<&'static str, u64>;

/// Offset of the word to which members add.
const COUNTED: u64 = 0;

/// Offset of the word that a leaver writes; it also writes the last word of the region.
const SCRIBBLED: u64 = 64;

/// Offsets of the words that the kernel writes for a leaver: in a pinned page, and by a file.
const PINNED: u64 = 72;
const FILED: u64 = 80;

/// Offsets of the words that a child of the leaver writes, and the leaver at other addresses.
const FORKED: u64 = 88;
const MOVED: u64 = 96;

/// Offset of the page that a disk writes, and nothing else.
const FROM_DISK: u64 = 2 * 4096;

/// Offset of the first of two pages that a leaver punches and brings back, in memory of this length.
/// They are far from the others: a pinned huge page cannot be punched.
fn faulted(len: u64) -> u64 {
    len / 2 + 3 * 4096
}

/// Bytes of a chunk; its mark is in the middle, in a page that holds nothing else.
const MARKED: u64 = 64 * 1024;

/// Offsets of the marks in a region of so many bytes.
fn marked(len: u64) -> impl DoubleEndedIterator<Item = u64> {
    (0..len / MARKED).map(|n| n * MARKED + MARKED / 2)
}

/// Duration of a look.
const LOOK: Duration = Duration::from_millis(10);

/// Protocols of the channels to a leaver, and between the members that stay.
const LEAVER: Protocol = Protocol(13);
const STAYER: Protocol = Protocol(14);

/// First bytes of packets and frames that a member may send, and of those that no member may send.
const OWN: [u8; 8] = *b"a leaver";
const FORGED: [u8; 8] = *b"a forger";

/// A part in a story of hostile members.
#[derive(Subcommand)]
pub enum Role {
    /// Own a region and listen: see what a leaver reaches.
    Guard { domain: String, bytes: u64 },
    /// Send numbered packets to a guard until that fails.
    Speak { domain: String, guard: Place },
    /// Open a guard's region and keep everything; forge frames in the name of another node.
    Leave { key: RemoteKey, other: Place },
    /// Hand the agent descriptors of a file system that does not answer on closing.
    Hang {
        node: String,
        state: PathBuf,
        file: PathBuf,
    },
    /// The process of `hang` that hands them over.
    HandOver {
        node: String,
        state: PathBuf,
        file: PathBuf,
    },
    /// Stop in the middle of handing descriptors over.
    Stall { node: String, state: PathBuf },
    /// Keep the kernel's lock of a region's memory, by a file of a FUSE server that does not answer.
    Lock {
        stays: Stays,
        key: RemoteKey,
        device: PathBuf,
        file: PathBuf,
    },
    /// The process of `lock` that opens the region.
    LockHolder {
        stays: Stays,
        key: RemoteKey,
        file: PathBuf,
    },
    /// Open a region, disconnect from the agent, and keep memory and mapping.
    Linger { key: RemoteKey, rights: Rights },
    /// Read memory to which a region moves before the agent allows it.
    Peek { key: RemoteKey },
    /// Reserve the link between two nodes, by their numbers, for ever.
    Delay { from: u32, to: u32 },
    /// Trace, write to and kill all processes in reach, but not in this PID namespace.
    Attack { namespace: PathBuf },
}

pub fn run(role: Role) -> Result<()> {
    match role {
        Role::Guard { domain, bytes } => guard::guard(&domain, bytes),
        Role::Speak { domain, guard } => guard::speak(&domain, guard),
        Role::Leave { key, other } => leave::leave(key, other),
        Role::Hang { node, state, file } => hang::hang(&node, &state, &file),
        Role::HandOver { node, state, file } => hang::hand_over(&node, &state, &file),
        Role::Stall { node, state } => hang::stall(&node, &state),
        Role::Lock {
            stays,
            key,
            device,
            file,
        } => lock::keep(stays, &key, &device, &file),
        Role::LockHolder { stays, key, file } => lock::hold(stays, key, &file),
        Role::Linger { key, rights } => linger::linger(key, rights),
        Role::Peek { key } => peek::peek(key),
        Role::Delay { from, to } => delay::delay(from, to),
        Role::Attack { namespace } => attack::attack(&namespace),
    }
}

fn event(tally: &Tally) -> Event {
    let named = tally
        .iter()
        .map(|(kind, count)| ((*kind).to_owned(), *count));
    Event::Tally(named.collect())
}

/// Kinds with more occurrences than before, and how many more.
fn growth(before: &Tally, now: &Tally) -> Tally {
    let earlier = |what| before.get(what).copied().unwrap_or_default();
    let grown = now
        .iter()
        .map(|(what, count)| (*what, count - earlier(what)));
    grown.filter(|(_, count)| *count > 0).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
