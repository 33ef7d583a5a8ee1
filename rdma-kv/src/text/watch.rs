//! `watch`: log lines for connections that asked for them, in memcached's format.
//!
//! The thread of an event writes it to the buffer of each [`Watcher`] of its kind. Buffers are
//! bounded. An event without room is counted and skipped, so a slow watcher costs others nothing.
//! Without watchers an event costs one load of an atomic.

use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use toroid_fabric::OpError;

use super::dump::append;
use super::input::Arguments;
use super::keys::append_encoded;
use super::server_state::Ends;
use super::{Done, ERROR, Turn};
use crate::protocol::change::{Change, Mode, Stored};
use crate::protocol::layout::{ItemHeader, Marks};
use crate::store::{EvictionLog, Item, SetError};

/// Most watchers at a time.
const MOST: usize = 20;

/// Bytes reserved for a line about skipped events.
const SKIPPED_LEN: usize = 40;

bitflags::bitflags! {
    /// Kinds of events.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Kinds: u8 {
        const FETCHERS = 1;
        const MUTATIONS = 2;
        const EVICTIONS = 4;
        const CONNEVENTS = 8;
        const DELETIONS = 16;
    }
}

impl Kinds {
    /// The kind of a name; empty for events that do not occur here.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"fetchers" => Kinds::FETCHERS,
            b"mutations" => Kinds::MUTATIONS,
            b"evictions" => Kinds::EVICTIONS,
            b"connevents" => Kinds::CONNEVENTS,
            b"deletions" => Kinds::DELETIONS,
            b"rawcmds" | b"sysevents" | b"proxyreqs" | b"proxyevents" | b"proxyuser" => {
                Kinds::empty()
            }
            _ => return None,
        })
    }
}

/// All watchers of a server.
#[derive(Debug)]
pub(crate) struct Watchers {
    /// Union of the kinds of all watchers.
    wanted: AtomicU8,
    all: Mutex<Vec<Arc<Watcher>>>,
    /// Size of each buffer in bytes.
    room: usize,
    /// Events so far.
    events: AtomicU64,
    sent: AtomicU64,
    skipped: AtomicU64,
}

/// A connection that watches.
#[derive(Debug)]
pub(super) struct Watcher {
    kinds: Kinds,
    buffer: Mutex<Buffer>,
}

#[derive(Debug, Default)]
struct Buffer {
    lines: Vec<u8>,
    /// Events skipped since the last one that was buffered.
    skipped: u64,
}

/// Registration of a watcher, until it is dropped.
#[derive(Debug)]
pub(super) struct Watching {
    watchers: Arc<Watchers>,
    watcher: Arc<Watcher>,
}

/// Counters for `stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) written: u64,
    pub(super) skipped: u64,
    pub(super) sent: u64,
    pub(super) watchers: usize,
}

/// Result of a lookup of an item.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fetched {
    /// Found, with the length of the value.
    Found(u32),
    Missed,
    Expired,
}

impl Watchers {
    /// No watchers; `room` bytes for each.
    pub(super) fn new(room: usize) -> Self {
        Watchers {
            wanted: AtomicU8::new(0),
            all: Mutex::default(),
            room,
            events: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// Registers a watcher of `kinds`; `None` if there are too many.
    pub(super) fn add(self: &Arc<Self>, kinds: Kinds) -> Option<Watching> {
        let mut all = self.all();
        if all.len() >= MOST {
            return None;
        }
        let watcher = Arc::new(Watcher {
            kinds,
            buffer: Mutex::default(),
        });
        all.push(Arc::clone(&watcher));
        self.count_wanted(&all);
        Some(Watching {
            watchers: Arc::clone(self),
            watcher,
        })
    }

    pub(super) fn counts(&self) -> Watched {
        Watched {
            written: self.events.load(Ordering::Relaxed),
            skipped: self.skipped.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            watchers: self.all().len(),
        }
    }

    /// Whether a watcher wants one of these kinds.
    pub(super) fn want(&self, kinds: Kinds) -> bool {
        self.wanted.load(Ordering::Relaxed) & kinds.bits() != 0
    }

    /// Logs a lookup of an item by a connection.
    pub(super) fn item_get(&self, connection: u64, key: &[u8], fetched: Fetched) {
        if !self.want(Kinds::FETCHERS) {
            return;
        }
        let (status, class, len) = match fetched {
            Fetched::Found(len) => ("found", 1, len),
            Fetched::Missed => ("not_found", 0, 0),
            Fetched::Expired => ("expired", 0, 0),
        };
        self.tell(Kinds::FETCHERS, |line| {
            line.extend_from_slice(b"type=item_get key=");
            append_encoded(line, key);
            append(
                line,
                format_args!(" status={status} clsid={class} cfd={connection} size={len}"),
            );
        });
    }

    /// Logs an attempt to store an item with `ttl` seconds to live (0 for ever).
    pub(super) fn item_store(
        &self,
        connection: u64,
        key: &[u8],
        [status, command]: [&str; 2],
        ttl: u32,
        len: usize,
    ) {
        self.tell(Kinds::MUTATIONS, |line| {
            line.extend_from_slice(b"type=item_store key=");
            append_encoded(line, key);
            append(
                line,
                format_args!(
                    " status={status} cmd={command} ttl={ttl} clsid=1 cfd={connection} size={len}"
                ),
            );
        });
    }

    /// Logs a removal by a command, in the format of later versions of memcached.
    pub(super) fn deleted(&self, key: &[u8], command: &str, len: u32) {
        self.tell(Kinds::DELETIONS, |line| {
            line.extend_from_slice(b"type=deleted key=");
            append_encoded(line, key);
            append(line, format_args!(" cmd={command} clsid=1 size={len}"));
        });
    }

    /// Logs a new connection, or the end of one with its reason.
    pub(super) fn connection(&self, connection: u64, ends: &Ends, closed: Option<&str>) {
        if !self.want(Kinds::CONNEVENTS) {
            return;
        }
        let (ip, port, transport) = ends.client();
        self.tell(Kinds::CONNEVENTS, |line| {
            let kind = if closed.is_some() { "close" } else { "new" };
            append(
                line,
                format_args!("type=conn_{kind} rip={ip} rport={port} transport={transport}"),
            );
            if let Some(reason) = closed {
                append(line, format_args!(" reason={reason}"));
            }
            append(line, format_args!(" cfd={connection}"));
        });
    }

    /// Writes a line to the watchers of its kind.
    fn tell(&self, kind: Kinds, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.want(kind) {
            return;
        }
        // The number is drawn under the lock, so lines are in order.
        let all = self.all();
        let number = self.events.fetch_add(1, Ordering::Relaxed) + 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let mut line = Vec::with_capacity(256);
        // Without leading zeros, as memcached has it.
        append(
            &mut line,
            format_args!("ts={}.{} gid={number} ", now.as_secs(), now.subsec_micros()),
        );
        write(&mut line);
        line.push(b'\n');
        for watcher in all.iter().filter(|watcher| watcher.kinds.contains(kind)) {
            let counter = if watcher.offer(&line, self.room) {
                &self.sent
            } else {
                &self.skipped
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count_wanted(&self, all: &[Arc<Watcher>]) {
        let wanted = all
            .iter()
            .fold(0, |kinds, watcher| kinds | watcher.kinds.bits());
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Watcher>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EvictionLog for Watchers {
    fn is_wanted(&self) -> bool {
        self.want(Kinds::EVICTIONS)
    }

    fn evicted(&self, header: &ItemHeader, key: &[u8], clock: u32) {
        let fetched = header.marks.contains(Marks::FETCHED);
        let ttl = match header.exptime {
            0 => -1,
            exptime => i64::from(exptime) - i64::from(clock),
        };
        self.tell(Kinds::EVICTIONS, |line| {
            line.extend_from_slice(b"type=eviction key=");
            append_encoded(line, key);
            append(
                line,
                format_args!(
                    " fetch={} ttl={ttl} la={} clsid=1 size={}",
                    if fetched { "yes" } else { "no" },
                    clock.saturating_sub(header.accessed),
                    header.value_len,
                ),
            );
        });
    }
}

impl Watching {
    /// Moves the buffer to the replies.
    pub(super) fn take(&self, replies: &mut Vec<u8>) {
        let lines = std::mem::take(&mut self.watcher.buffer().lines);
        replies.extend_from_slice(&lines);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut all = self.watchers.all();
        all.retain(|other| !Arc::ptr_eq(other, &self.watcher));
        self.watchers.count_wanted(&all);
    }
}

impl Watcher {
    /// Buffers a line, if it fits into `room` bytes; returns whether it did.
    fn offer(&self, line: &[u8], room: usize) -> bool {
        let mut buffer = self.buffer();
        if buffer.lines.len() + line.len() + SKIPPED_LEN > room {
            buffer.skipped += 1;
            return false;
        }
        if buffer.skipped > 0 {
            let skipped = std::mem::take(&mut buffer.skipped);
            // Writing to a vector cannot fail.
            let _ = writeln!(buffer.lines, "skipped={skipped}");
        }
        buffer.lines.extend_from_slice(line);
        true
    }

    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    pub(super) fn watch(&mut self, arguments: &Arguments<'_>) -> Done {
        self.noreply = arguments.noreply();
        let server = &self.slot.server;
        if !server.rules.watch || !self.slot.is_direct {
            return self.say(b"CLIENT_ERROR watch commands not allowed\r\n");
        }
        if !self.replies.is_empty() {
            return self.say(b"ERROR cannot pipeline other commands before watch\r\n");
        }
        let mut kinds = Kinds::empty();
        for number in 0..arguments.count {
            match Kinds::named(arguments.at(number)) {
                Some(kind) => kinds |= kind,
                None => return self.say(ERROR),
            }
        }
        if arguments.count == 0 {
            kinds = Kinds::FETCHERS;
        }
        match server.watchers.add(kinds) {
            Some(watching) => {
                self.noreply = false;
                self.say(b"OK\r\n");
                Done::Watch(watching)
            }
            None => self.say(b"WATCHER_TOO_MANY log watcher limit reached\r\n"),
        }
    }

    /// Logs a lookup of an item.
    pub(super) fn saw(&self, key: &[u8], item: Option<&Item>) {
        let fetched = item.map_or(Fetched::Missed, |item| {
            Fetched::Found(item.header.value_len)
        });
        self.fetched(key, fetched);
    }

    pub(super) fn fetched(&self, key: &[u8], fetched: Fetched) {
        let watchers = &self.slot.server.watchers;
        watchers.item_get(self.slot.id(), key, fetched);
    }

    /// Logs the lookup of the item that a store replaces.
    pub(super) fn looks_before(&self, key: &[u8]) -> Result<(), OpError> {
        if self.slot.server.watchers.want(Kinds::FETCHERS) {
            let item = self.store.with(|store| store.find(key))?;
            self.saw(key, item.as_ref());
        }
        Ok(())
    }

    /// Logs an attempt to store a value.
    pub(super) fn tells_store(
        &self,
        change: &Change<'_>,
        stored: &Result<Stored, SetError>,
        len: usize,
    ) {
        if !self.slot.server.watchers.want(Kinds::MUTATIONS) {
            return;
        }
        let status = match stored {
            Ok(Stored::Stored { .. }) => "stored",
            Ok(Stored::NotStored) => "not_stored",
            Ok(Stored::Exists) => "exists",
            Ok(Stored::NotFound) => "not_found",
            Err(SetError::TooLarge) => "too_large",
            Err(_) => "no_memory",
        };
        let command = match change.mode {
            Mode::Set => "set",
            Mode::Add => "add",
            Mode::Replace => "replace",
            Mode::Append => "append",
            Mode::Prepend => "prepend",
            Mode::Compare => "cas",
        };
        let watchers = &self.slot.server.watchers;
        let ttl = seconds_left(change.exptime);
        watchers.item_store(self.slot.id(), change.key, [status, command], ttl, len);
    }

    /// Logs a removal by `command`.
    pub(super) fn tells_deleted(&self, key: &[u8], command: &str, len: u32) {
        self.slot.server.watchers.deleted(key, command, len);
    }
}

/// Time to live of an expiry in memcached's form: 0 for none, and for one that has passed.
fn seconds_left(exptime: i64) -> u32 {
    /// Larger expiry times are Unix times.
    const RELATIVE: i64 = 60 * 60 * 24 * 30;
    let left = match exptime {
        ..=RELATIVE => exptime,
        at => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            at - now.unwrap_or_default().as_secs() as i64
        }
    };
    u32::try_from(left).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_skips_events_and_reports_their_number() {
        let watchers = Arc::new(Watchers::new(1000));
        let slow = watchers.add(Kinds::FETCHERS).unwrap();
        for _ in 0..100 {
            watchers.item_get(7, b"a key", Fetched::Found(3));
        }
        let mut said = Vec::new();
        slow.take(&mut said);
        assert!(said.len() <= 1000);
        let told = said.iter().filter(|byte| **byte == b'\n').count() as u64;
        let counts = watchers.counts();
        assert_eq!((counts.written, counts.sent), (100, told));
        assert_eq!(counts.skipped, 100 - told);
        watchers.item_get(7, b"a key", Fetched::Missed);
        said.clear();
        slow.take(&mut said);
        let text = String::from_utf8(said).unwrap();
        let (first, second) = text.split_once('\n').unwrap();
        assert_eq!(first, format!("skipped={}", 100 - told));
        let end = " gid=101 type=item_get key=a%20key status=not_found clsid=0 cfd=7 size=0\n";
        assert!(second.ends_with(end), "{second}");
    }

    #[test]
    fn a_registered_watcher_gets_its_kinds_of_events() {
        let watchers = Arc::new(Watchers::new(1000));
        watchers.item_get(1, b"a", Fetched::Missed);
        let [fetchers, deletions] =
            [Kinds::FETCHERS, Kinds::DELETIONS].map(|kinds| watchers.add(kinds).unwrap());
        watchers.item_get(1, b"a", Fetched::Missed);
        watchers.deleted(b"a", "delete", 5);
        for (watcher, end) in [
            (
                fetchers,
                "gid=1 type=item_get key=a status=not_found clsid=0 cfd=1 size=0\n",
            ),
            (
                deletions,
                "gid=2 type=deleted key=a cmd=delete clsid=1 size=5\n",
            ),
        ] {
            let mut said = Vec::new();
            watcher.take(&mut said);
            let text = String::from_utf8(said).unwrap();
            assert!(text.ends_with(end) && text.lines().count() == 1, "{text}");
        }
        watchers.item_get(1, b"a", Fetched::Missed);
        assert_eq!(watchers.counts().written, 2);
        let more: Vec<_> = (0..MOST + 1)
            .map_while(|_| watchers.add(Kinds::empty()))
            .collect();
        assert_eq!((more.len(), watchers.counts().watchers), (MOST, MOST));
    }
}
