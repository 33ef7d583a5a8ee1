//! Settings of a server: memcached's options by their meaning.

use std::path::PathBuf;
use std::time::Duration;

use super::{Listen, Users};
use crate::store::Limits;

/// Settings of a server. In parentheses: names in `stats settings`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// TCP addresses to listen at (`inter`); all when empty.
    pub listen: Vec<Listen>,
    /// TCP port of addresses without one (`tcpport`). `Some(0)` takes any free port, `None`
    /// disables TCP.
    pub port: Option<u16>,
    /// Unix socket to listen at.
    pub unix: Option<UnixSocket>,
    /// Connections that the system queues until they are accepted (`tcp_backlog`).
    pub backlog: i32,
    /// Most connections at a time (`maxconns`).
    pub connections: usize,
    /// Whether further connections are refused, or wait until others end (`maxconns_fast`).
    pub refuse_at_once: bool,
    /// Threads that serve connections (`num_threads`).
    pub threads: usize,
    /// Time after which idle connections are closed (`idle_timeout`).
    pub idle_timeout: Option<Duration>,
    /// Memory for items (`maxbytes`) and size of the largest item (`item_size_max`).
    pub limits: Limits,
    /// Whether addresses for more memory are reserved, so that `cache_memlimit` can raise the
    /// limit. Not for a process that locks its memory, where the memory would be allocated at
    /// once. Without effect in a domain.
    pub may_grow: bool,
    /// Users that must authenticate; no authentication when `None` (`auth_enabled_ascii`).
    pub users: Option<Users>,
    /// Options of commands.
    pub commands: Commands,
    /// Level of logs (`verbosity`).
    pub verbosity: u8,
    /// Options without effect, which `stats settings` shows.
    pub tuning: Tuning,
    /// RDMA.
    pub rdma: Rdma,
}

impl Default for Settings {
    /// Memcached's defaults.
    fn default() -> Self {
        Settings {
            listen: Vec::new(),
            port: Some(11211),
            unix: None,
            backlog: 1024,
            connections: 1024,
            refuse_at_once: true,
            threads: 4,
            idle_timeout: None,
            limits: Limits::DEFAULT,
            may_grow: true,
            users: None,
            commands: Commands::default(),
            verbosity: 0,
            tuning: Tuning::default(),
            rdma: Rdma::Auto,
        }
    }
}

/// A unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its file (`domain_socket`).
    pub path: PathBuf,
    /// Permissions of the file (shown as `umask`).
    pub mode: u32,
}

/// Options of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commands {
    /// Enables `shutdown` (`shutdown_command`).
    pub shutdown: bool,
    /// Enables `flush_all` (`flush_enabled`).
    pub flush_all: bool,
    /// Enables `stats cachedump` and `lru_crawler metadump` (`dump_enabled`).
    pub dump: bool,
    /// Enables `watch`.
    pub watch: bool,
    /// Enables cas numbers (`cas_enabled`).
    pub cas: bool,
    /// Evicts old items when memory is full (`evictions`).
    pub evictions: bool,
    /// Delimiter of key prefixes in `stats detail` (`stat_key_prefix`).
    pub prefix_delimiter: u8,
    /// Collects `stats detail` from the start (`detail_enabled`).
    pub detail: bool,
    /// Enables `stats sizes` (`track_sizes`).
    pub track_sizes: bool,
    /// Most requests of a connection before other connections have their turn
    /// (`reqs_per_event`); all that one read brings when `None`.
    pub per_turn: Option<u32>,
}

impl Default for Commands {
    fn default() -> Self {
        Commands {
            shutdown: false,
            flush_all: true,
            dump: true,
            watch: true,
            cas: true,
            evictions: true,
            prefix_delimiter: b':',
            detail: false,
            track_sizes: false,
            per_turn: None,
        }
    }
}

/// Options that tune memcached's slab classes and threads. This store has neither: `stats settings`
/// shows them, and nothing else uses them.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "the names are memcached's, and so are the meanings"
)]
pub struct Tuning {
    pub growth_factor: f64,
    pub chunk_size: u32,
    pub hashpower_init: u32,
    pub slab_reassign: bool,
    pub slab_automove: u32,
    pub slab_automove_ratio: f64,
    pub slab_automove_window: u32,
    pub slab_chunk_max: u32,
    pub lru_crawler: bool,
    pub lru_crawler_sleep: u32,
    pub lru_crawler_tocrawl: u32,
    pub tail_repair_time: u32,
    pub hash_algorithm: String,
    pub lru_maintainer_thread: bool,
    pub hot_lru_pct: u32,
    pub warm_lru_pct: u32,
    pub hot_max_factor: f64,
    pub warm_max_factor: f64,
    pub temp_lru: bool,
    pub temporary_ttl: u32,
    pub watcher_logbuf_size: u32,
    pub worker_logbuf_size: u32,
    pub read_buf_mem_limit: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            growth_factor: 1.25,
            chunk_size: 48,
            hashpower_init: 0,
            slab_reassign: true,
            slab_automove: 1,
            slab_automove_ratio: 0.8,
            slab_automove_window: 30,
            slab_chunk_max: 512 << 10,
            lru_crawler: true,
            lru_crawler_sleep: 100,
            lru_crawler_tocrawl: 0,
            tail_repair_time: 0,
            hash_algorithm: "murmur3".to_owned(),
            lru_maintainer_thread: true,
            hot_lru_pct: 20,
            warm_lru_pct: 40,
            hot_max_factor: 0.2,
            warm_max_factor: 2.0,
            temp_lru: false,
            temporary_ttl: 61,
            watcher_logbuf_size: 256 << 10,
            worker_logbuf_size: 64 << 10,
            read_buf_mem_limit: 0,
        }
    }
}

/// Whether to serve by RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rdma {
    /// In the only domain of the node; outside of a node by TCP alone, as [`super::Ready`]
    /// shows.
    Auto,
    /// In the domain of this name.
    Domain(String),
    /// Disabled.
    Off,
}
