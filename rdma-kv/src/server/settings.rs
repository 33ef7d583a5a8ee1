//! What a server is started with: memcached's options, by what they mean here.

use std::path::PathBuf;
use std::time::Duration;

use super::{Listen, Users};
use crate::store::Limits;

/// What to serve, where and how. In brackets: what `stats settings` calls it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen by TCP (`inter`); at all addresses when empty.
    pub listen: Vec<Listen>,
    /// TCP port of those that name none (`tcpport`); `Some(0)` takes any free one, `None` serves
    /// no TCP.
    pub port: Option<u16>,
    /// A unix socket to listen at, too.
    pub unix: Option<UnixSocket>,
    /// Connections that the system keeps until they are accepted (`tcp_backlog`).
    pub backlog: i32,
    /// Connections at a time (`maxconns`).
    pub connections: usize,
    /// More of them are refused; else they wait until others end (`maxconns_fast`).
    pub refuse_at_once: bool,
    /// Threads that serve connections (`num_threads`).
    pub threads: usize,
    /// Connections that say nothing for so long are closed (`idle_timeout`).
    pub idle_timeout: Option<Duration>,
    /// Memory for items (`maxbytes`), and the largest one (`item_size_max`).
    pub limits: Limits,
    /// Addresses are reserved for more of it, so that `cache_memlimit` can raise the limit. Not for a
    /// process that locks its memory, where they would be filled at once; nor is it done for a domain.
    pub may_grow: bool,
    /// Who may come; anybody when `None` (`auth_enabled_ascii`).
    pub users: Option<Users>,
    /// What the commands may do.
    pub commands: Commands,
    /// How much is logged (`verbosity`).
    pub verbosity: u8,
    /// What has no effect, but is told.
    pub tuning: Tuning,
    /// Where to serve by RDMA.
    pub rdma: Rdma,
}

impl Default for Settings {
    /// Memcached's.
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
    /// Who may open it: the file's permissions (`umask`, though it is none).
    pub mode: u32,
}

/// What the commands may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commands {
    /// `shutdown` is understood (`shutdown_command`).
    pub shutdown: bool,
    /// `flush_all` is (`flush_enabled`).
    pub flush_all: bool,
    /// `stats cachedump` and `lru_crawler metadump` are (`dump_enabled`).
    pub dump: bool,
    /// `watch` is.
    pub watch: bool,
    /// Items have cas numbers (`cas_enabled`).
    pub cas: bool,
    /// Old items make room for new ones (`evictions`).
    pub evictions: bool,
    /// What ends a key's prefix in `stats detail` (`stat_key_prefix`).
    pub prefix_delimiter: u8,
    /// `stats detail` is collected from the start (`detail_enabled`).
    pub detail: bool,
    /// `stats sizes` is (`track_sizes`).
    pub track_sizes: bool,
    /// Requests of one connection before the next one's turn (`reqs_per_event`); all that one read
    /// brings when `None`.
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

/// What memcached's memory and threads are tuned by. This store has no slab classes and none of
/// those threads: it only tells what was given, by the names of `stats settings`.
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
    /// In a node, in its only domain; else by TCP alone, which [`super::Ready`] says.
    Auto,
    /// In this domain.
    Domain(String),
    /// Not at all.
    Off,
}
