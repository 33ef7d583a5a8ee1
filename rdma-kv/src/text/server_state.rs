//! State that all conversations of a server share: rules and counters.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use super::disconnect::DisconnectReason;
use super::prefixes::Prefixes;
use super::watch::Watchers;
use crate::store;
use crate::text::counts::{Count, Counts, Sums};

/// Rules of commands, and facts about the server.
pub struct Rules {
    /// Enables `flush_all`.
    pub flush_all: bool,
    /// Enables `lru_crawler metadump`.
    pub dump: bool,
    /// Action of `shutdown`; the command is refused when `None`.
    pub shutdown: Option<Box<dyn Fn() + Send + Sync>>,
    /// Delimiter of key prefixes in `stats detail`.
    pub prefix_delimiter: u8,
    /// Collects `stats detail` from the start.
    pub detail: bool,
    /// Level of logs that `stats settings` shows, until `verbosity` changes it.
    pub verbosity: u32,
    /// Worker threads.
    pub threads: usize,
    /// Most connections at a time.
    pub connections: usize,
    /// Most commands of a conversation per turn, if limited.
    pub per_turn: Option<u32>,
    /// Addresses of the listeners, as `stats conns` shows them: `tcp:127.0.0.1:11211`.
    pub listeners: Vec<String>,
    /// Enables `watch`.
    pub watch: bool,
    /// Bytes of the buffer of each watcher.
    pub watcher_room: usize,
    /// Enables cas numbers.
    pub cas: bool,
    /// Enables `stats sizes` from the start.
    pub sizes: bool,
    /// All other rows of `stats settings`, in order.
    pub settings: Vec<(&'static str, String)>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            flush_all: true,
            dump: true,
            shutdown: None,
            prefix_delimiter: b':',
            detail: false,
            verbosity: 0,
            threads: 1,
            connections: 1024,
            per_turn: None,
            listeners: Vec::new(),
            watch: false,
            watcher_room: 256 << 10,
            cas: true,
            sizes: false,
            settings: Vec::new(),
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").finish_non_exhaustive()
    }
}

/// State of a server.
#[derive(Debug)]
pub struct ServerState {
    pub(super) rules: Rules,
    pub(super) started: Instant,
    pub(super) verbosity: AtomicU32,
    /// `stats detail on`.
    pub(super) detail: AtomicBool,
    /// `lru_crawler enable`; shown to clients, though there is no such thread.
    pub(super) crawler: AtomicBool,
    /// `stats sizes_enable`.
    pub(super) sizes: AtomicBool,
    pub(super) prefixes: Mutex<Prefixes>,
    /// Settings that commands have changed.
    tuned: Mutex<BTreeMap<&'static str, String>>,
    pub(super) watchers: Arc<Watchers>,
    connections: Mutex<Connections>,
    /// Counters of messages, all of which one thread serves.
    messages: Counts,
    /// Counters of the thread that accepts connections.
    listener: Counts,
    /// Time since when no connection is accepted.
    closed: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Connections {
    open: BTreeMap<u64, Arc<ConnectionStats>>,
    /// Connections so far, and refused ones.
    total: u64,
    refused: u64,
    /// Sums of connections that have ended.
    ended: Sums,
    /// State at the last `stats reset`.
    reset: Baseline,
}

/// State that `stats reset` subtracts.
#[derive(Clone, Copy, Debug, Default)]
struct Baseline {
    total: u64,
    refused: u64,
    sums: Sums,
    store: store::Counters,
}

/// Activity of a connection after its first command, for `stats conns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Activity {
    /// Waiting for a command.
    Read = 1,
    /// Waiting for the rest of a value.
    Value,
    /// Dropping a value that was refused.
    Swallow,
    /// Waiting for room for replies.
    Write,
    /// Watching.
    Watch,
}

/// Memcached's names: of a new connection, and of these, in their order.
const ACTIVITIES: [&str; 6] = [
    "conn_new_cmd",
    "conn_read",
    "conn_nread",
    "conn_swallow",
    "conn_mwrite",
    "conn_watch",
];

/// A connection, as other connections see it.
#[derive(Debug, Default)]
pub(super) struct ConnectionStats {
    /// An [`Activity`], or 0 before the first command.
    activity: AtomicU8,
    pub(super) counts: Counts,
    /// Time of the last input, in seconds since the start.
    pub(super) last_heard: AtomicU32,
    pub(super) ends: Ends,
}

impl ConnectionStats {
    pub(super) fn is_at(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::Relaxed);
    }

    /// Memcached's name for the state of such a connection.
    pub(super) fn state(&self) -> &'static str {
        ACTIVITIES[usize::from(self.activity.load(Ordering::Relaxed))]
    }
}

/// The ends of a connection in the format of `stats conns`: `tcp:127.0.0.1:11211`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Address of the client.
    pub peer: String,
    /// Address of the server.
    pub local: String,
}

impl Ends {
    /// Address, port and transport of the client in the format of `watch`.
    pub(super) fn client(&self) -> (&str, &str, &'static str) {
        let tcp = self
            .peer
            .strip_prefix("tcp6:")
            .or(self.peer.strip_prefix("tcp:"));
        match tcp.and_then(|tcp| tcp.rsplit_once(':')) {
            Some((ip, port)) => (ip.trim_matches(['[', ']']), port, "tcp"),
            None if self.peer.starts_with("unix:") => ("unix", "0", "local"),
            None => (&self.peer, "0", "local"),
        }
    }
}

/// Counters since the last reset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    pub(super) open: usize,
    pub(super) total: u64,
    pub(super) refused: u64,
    pub(super) sums: Sums,
    /// Of these, [`store::Counters::items`] and [`store::Counters::bytes`] are never reset.
    pub(super) store: store::Counters,
}

impl Default for ServerState {
    fn default() -> Self {
        ServerState::new(Rules::default())
    }
}

impl ServerState {
    /// The state of a server without conversations.
    pub fn new(rules: Rules) -> Self {
        ServerState {
            started: Instant::now(),
            verbosity: AtomicU32::new(rules.verbosity),
            detail: AtomicBool::new(rules.detail),
            crawler: AtomicBool::new(true),
            prefixes: Mutex::default(),
            tuned: Mutex::default(),
            watchers: Arc::new(Watchers::new(rules.watcher_room)),
            connections: Mutex::default(),
            sizes: AtomicBool::new(rules.sizes),
            messages: Counts::default(),
            listener: Counts::default(),
            closed: Mutex::default(),
            rules,
        }
    }

    /// Notes that a connection was refused.
    pub fn refused(&self) {
        self.connections().refused += 1;
    }

    /// Notes whether connections are accepted. Called by one thread.
    pub fn accepts(&self, does: bool) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        match (does, *closed) {
            (false, None) => {
                *closed = Some(Instant::now());
                self.listener.one(Count::ListenDisabled);
            }
            (true, Some(since)) => {
                *closed = None;
                let us = since.elapsed().as_micros() as u64;
                self.listener.add(Count::ListenDisabledUs, us);
            }
            _ => {}
        }
    }

    /// Whether connections are accepted.
    pub(super) fn is_accepting(&self) -> bool {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.is_none()
    }

    /// Whether there are as many conversations as connections may be.
    pub fn is_full(&self) -> bool {
        self.connections().open.len() >= self.rules.connections
    }

    /// The log of evictions.
    pub(crate) fn eviction_log(&self) -> Arc<dyn store::EvictionLog> {
        Arc::clone(&self.watchers) as _
    }

    /// Counters of the thread that serves messages.
    pub(crate) fn messages(&self) -> &Counts {
        &self.messages
    }

    /// Whether `flush_all` is understood.
    pub fn may_flush(&self) -> bool {
        self.rules.flush_all
    }

    /// Changes a value of `stats settings`.
    pub(super) fn tune(&self, name: &'static str, value: String) {
        self.tuned().insert(name, value);
    }

    /// Settings that commands have changed.
    pub(super) fn tuned(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.tuned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a setting in `stats settings`.
    pub(super) fn told_value(&self, name: &str) -> Option<&str> {
        let mut settings = self.rules.settings.iter();
        let setting = settings.find(|(told, _)| *told == name);
        setting.map(|(_, value)| value.as_str())
    }

    /// Whether a switch of `stats settings` is on, which is the default.
    pub(super) fn told(&self, name: &str) -> bool {
        self.told_value(name) != Some("no")
    }

    /// Seconds since the start.
    pub(super) fn uptime_s(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    pub(super) fn prefixes(&self) -> MutexGuard<'_, Prefixes> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn totals(&self, store: store::Counters) -> Totals {
        let connections = self.connections();
        // A reset may have happened since these were read.
        let earlier = &connections.reset.store;
        Totals {
            open: connections.open.len(),
            total: connections.total - connections.reset.total,
            refused: connections.refused - connections.reset.refused,
            sums: self.sums(&connections).since(&connections.reset.sums),
            store: store::Counters {
                total_items: store.total_items.saturating_sub(earlier.total_items),
                evictions: store.evictions.saturating_sub(earlier.evictions),
                evicted_unfetched: store
                    .evicted_unfetched
                    .saturating_sub(earlier.evicted_unfetched),
                reclaimed: store.reclaimed.saturating_sub(earlier.reclaimed),
                crawler_reclaimed: store
                    .crawler_reclaimed
                    .saturating_sub(earlier.crawler_reclaimed),
                sweeps: store.sweeps.saturating_sub(earlier.sweeps),
                swept: store.swept.saturating_sub(earlier.swept),
                expired_unfetched: store
                    .expired_unfetched
                    .saturating_sub(earlier.expired_unfetched),
                one_sided_gets: store.one_sided_gets.saturating_sub(earlier.one_sided_gets),
                one_sided_hits: store.one_sided_hits.saturating_sub(earlier.one_sided_hits),
                ..store
            },
        }
    }

    /// Resets the counters.
    pub(super) fn reset(&self, store: store::Counters) {
        let mut connections = self.connections();
        connections.reset = Baseline {
            total: connections.total,
            refused: connections.refused,
            sums: self.sums(&connections),
            store,
        };
        drop(connections);
        *self.prefixes() = Prefixes::default();
    }

    /// Calls `tell` with number and state of each open connection.
    pub(super) fn each(&self, mut tell: impl FnMut(u64, &ConnectionStats)) {
        for (&number, stats) in &self.connections().open {
            tell(number, stats);
        }
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn sums(&self, connections: &Connections) -> Sums {
        let mut sums = connections.ended;
        sums += &self.messages;
        sums += &self.listener;
        for stats in connections.open.values() {
            sums += &stats.counts;
        }
        sums
    }
}

/// Slot of a connection: its counters count as long as the server exists.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    pub(super) server: Arc<ServerState>,
    pub(super) stats: Arc<ConnectionStats>,
    pub(super) number: u64,
    /// Whether the client is connected directly: only then `shutdown` and `watch` apply.
    pub(super) is_direct: bool,
    /// The server's reason to end the connection, if any.
    pub(super) ended: OnceLock<DisconnectReason>,
}

impl ConnectionSlot {
    pub(super) fn take(server: &Arc<ServerState>, ends: Ends) -> Self {
        let stats = Arc::new(ConnectionStats {
            last_heard: AtomicU32::new(server.uptime_s()),
            ends,
            ..ConnectionStats::default()
        });
        let mut connections = server.connections();
        connections.total += 1;
        let number = connections.total;
        connections.open.insert(number, Arc::clone(&stats));
        drop(connections);
        let slot = ConnectionSlot {
            server: Arc::clone(server),
            stats,
            number,
            is_direct: true,
            ended: OnceLock::new(),
        };
        let id = slot.id();
        server.watchers.connection(id, &slot.stats.ends, None);
        slot
    }

    /// The connection's number in `stats conns`, where listeners come first.
    pub(super) fn id(&self) -> u64 {
        self.number + self.server.rules.listeners.len() as u64
    }

    pub(super) fn count(&self, count: Count) {
        self.stats.counts.one(count);
    }

    /// Counts received bytes.
    pub(super) fn heard(&self, bytes: usize) {
        self.stats.counts.add(Count::BytesRead, bytes as u64);
        let now = self.server.uptime_s();
        self.stats.last_heard.store(now, Ordering::Relaxed);
    }

    pub(super) fn detail(&self) -> bool {
        self.server.detail.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let reason = match self.ended.get() {
            None => "normal",
            Some(DisconnectReason::Idle) => "idle_timeout",
            Some(DisconnectReason::Binary) => "error",
        };
        let (id, ends) = (self.id(), &self.stats.ends);
        self.server.watchers.connection(id, ends, Some(reason));
        let mut connections = self.server.connections();
        connections.open.remove(&self.number);
        connections.ended += &self.stats.counts;
    }
}
