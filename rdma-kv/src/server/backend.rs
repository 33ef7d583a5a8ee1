//! Backend of all connections: the store, and the state of the server.

use std::io;
use std::sync::Arc;

use toroid_fabric::NodeId;

use super::sockets::{self, Converse, Listeners, local};
use super::{Settings, Stop};
use crate::store::shared::Shared;
use crate::text::input::Input;
use crate::text::{Conversation, DisconnectReason, Ends, Next, Rules, ServerState, Wants};

/// `reqs_per_event` that `stats settings` shows by default.
const DEFAULT_PER_TURN: u32 = 20;

/// The store and the state of the server.
#[derive(Clone)]
pub(super) struct Backend {
    pub(super) store: Shared,
    pub(super) server: Arc<ServerState>,
}

impl sockets::SessionFactory for Backend {
    type Conversation = Session;

    fn converse(&self, _: usize, ends: Ends) -> Session {
        Session {
            store: self.store.clone(),
            conversation: Conversation::new(&self.server, ends),
        }
    }

    fn refused(&self) {
        self.server.refused();
    }

    fn accepts(&self, does: bool) {
        self.server.accepts(does);
    }
}

impl Backend {
    /// A session of a client of a proxy at this node; `None` when there are too many.
    pub(super) fn converse_by_proxy(&self, node: NodeId) -> Option<Session> {
        if self.server.is_full() {
            self.server.refused();
            return None;
        }
        let ends = Ends {
            peer: format!("rdma:{node}"),
            local: "rdma".to_owned(),
        };
        Some(Session {
            store: self.store.clone(),
            conversation: Conversation::by_proxy(&self.server, ends),
        })
    }
}

/// A session: a conversation with the store.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) store: Shared,
    pub(super) conversation: Conversation,
}

impl Converse for Session {
    fn logged_in(&self, welcome: bool) {
        self.conversation.logged_in(welcome);
    }

    fn ended(&self, why: DisconnectReason) {
        self.conversation.ended(why);
    }

    fn sends(&self, waits: bool) {
        self.conversation.sends(waits);
    }

    /// As in memcached, the beginning of a line is idle, and that of a value is not.
    fn is_idle(&self) -> bool {
        !matches!(self.conversation.wants(), Wants::Bytes(_))
    }

    fn input(&mut self) -> &mut Input {
        self.conversation.input()
    }

    fn room(&mut self) -> &mut [u8] {
        self.conversation.room()
    }

    fn received(&mut self, count: usize) {
        self.conversation.received(count);
    }

    fn run(&mut self, replies: &mut Vec<u8>) -> io::Result<Next> {
        let next = self.conversation.run(&self.store, replies);
        next.map_err(io::Error::other)
    }
}

/// State that all sessions of a server share.
pub(super) fn server_state(settings: &Settings, listeners: &Listeners, stop: &Stop) -> ServerState {
    let commands = &settings.commands;
    let stop = stop.clone();
    ServerState::new(Rules {
        flush_all: commands.flush_all,
        dump: commands.dump,
        shutdown: if commands.shutdown {
            Some(Box::new(move || stop.stop()))
        } else {
            None
        },
        prefix_delimiter: commands.prefix_delimiter,
        detail: commands.detail,
        verbosity: settings.verbosity.into(),
        threads: settings.threads.max(1),
        connections: settings.connections,
        per_turn: commands.per_turn,
        listeners: listeners.fds().into_iter().map(local).collect(),
        watch: commands.watch,
        watcher_room: settings.tuning.watcher_logbuf_size as usize,
        cas: commands.cas,
        sizes: commands.track_sizes,
        settings: told(settings),
    })
}

/// Settings as `stats settings` shows them, in memcached's order; some change while the server
/// runs.
fn told(settings: &Settings) -> Vec<(&'static str, String)> {
    let Settings {
        commands, tuning, ..
    } = settings;
    let listen = settings.listen.iter().map(ToString::to_string);
    let listen: Vec<_> = listen.collect();
    let unix = settings.unix.as_ref();
    let tcp_port = match settings.port {
        // As `-p` gave it.
        Some(0) => "-1".to_owned(),
        port => port.unwrap_or_default().to_string(),
    };
    let null = || "NULL".to_owned();
    let told = vec![
        ("maxbytes", settings.limits.memory.to_string()),
        ("maxconns", settings.connections.to_string()),
        ("tcpport", tcp_port),
        ("udpport", "0".to_owned()),
        (
            "inter",
            if listen.is_empty() {
                null()
            } else {
                listen.join(",")
            },
        ),
        ("verbosity", String::new()),
        ("oldest", "0".to_owned()),
        (
            "evictions",
            if commands.evictions { "on" } else { "off" }.to_owned(),
        ),
        (
            "domain_socket",
            unix.map_or_else(null, |unix| unix.path.display().to_string()),
        ),
        (
            "umask",
            format!("{:o}", unix.map_or(0o700, |unix| unix.mode)),
        ),
        ("shutdown_command", yes(commands.shutdown)),
        ("growth_factor", format!("{:.2}", tuning.growth_factor)),
        ("chunk_size", tuning.chunk_size.to_string()),
        ("num_threads", settings.threads.max(1).to_string()),
        ("num_threads_per_udp", "0".to_owned()),
        (
            "stat_key_prefix",
            char::from(commands.prefix_delimiter).to_string(),
        ),
        ("detail_enabled", String::new()),
        (
            "reqs_per_event",
            commands.per_turn.unwrap_or(DEFAULT_PER_TURN).to_string(),
        ),
        ("cas_enabled", yes(commands.cas)),
        ("tcp_backlog", settings.backlog.to_string()),
        ("binding_protocol", "ascii".to_owned()),
        ("auth_enabled_sasl", yes(false)),
        ("auth_enabled_ascii", yes(settings.users.is_some())),
        ("item_size_max", settings.limits.item.to_string()),
        ("maxconns_fast", yes(settings.refuse_at_once)),
        ("hashpower_init", tuning.hashpower_init.to_string()),
        ("slab_reassign", yes(tuning.slab_reassign)),
        ("slab_automove", tuning.slab_automove.to_string()),
        (
            "slab_automove_ratio",
            format!("{:.2}", tuning.slab_automove_ratio),
        ),
        (
            "slab_automove_window",
            tuning.slab_automove_window.to_string(),
        ),
        ("slab_chunk_max", tuning.slab_chunk_max.to_string()),
        ("lru_crawler", String::new()),
        ("lru_crawler_sleep", tuning.lru_crawler_sleep.to_string()),
        (
            "lru_crawler_tocrawl",
            tuning.lru_crawler_tocrawl.to_string(),
        ),
        ("tail_repair_time", tuning.tail_repair_time.to_string()),
        ("flush_enabled", yes(commands.flush_all)),
        ("dump_enabled", yes(commands.dump)),
        ("hash_algorithm", tuning.hash_algorithm.clone()),
        ("lru_maintainer_thread", yes(tuning.lru_maintainer_thread)),
        ("lru_segmented", yes(false)),
        ("hot_lru_pct", tuning.hot_lru_pct.to_string()),
        ("warm_lru_pct", tuning.warm_lru_pct.to_string()),
        ("hot_max_factor", format!("{:.2}", tuning.hot_max_factor)),
        ("warm_max_factor", format!("{:.2}", tuning.warm_max_factor)),
        ("temp_lru", yes(tuning.temp_lru)),
        ("temporary_ttl", tuning.temporary_ttl.to_string()),
        (
            "idle_timeout",
            settings
                .idle_timeout
                .unwrap_or_default()
                .as_secs()
                .to_string(),
        ),
        (
            "watcher_logbuf_size",
            tuning.watcher_logbuf_size.to_string(),
        ),
        ("worker_logbuf_size", tuning.worker_logbuf_size.to_string()),
        ("read_buf_mem_limit", tuning.read_buf_mem_limit.to_string()),
        ("track_sizes", yes(commands.track_sizes)),
        ("inline_ascii_response", yes(false)),
    ];
    let absent = ABSENT.map(|(name, value)| (name, value.to_owned()));
    told.into_iter().chain(absent).collect()
}

/// Memcached's settings of features that do not exist here, such as external storage and TLS.
const ABSENT: [(&str, &str); 24] = [
    ("ext_item_size", "0"),
    ("ext_item_age", "0"),
    ("ext_low_ttl", "0"),
    ("ext_recache_rate", "0"),
    ("ext_wbuf_size", "0"),
    ("ext_compact_under", "0"),
    ("ext_drop_under", "0"),
    ("ext_max_sleep", "0"),
    ("ext_max_frag", "0.00"),
    ("slab_automove_freeratio", "0.000"),
    ("ext_drop_unread", "no"),
    ("ssl_enabled", "no"),
    ("ssl_chain_cert", "(null)"),
    ("ssl_key", "(null)"),
    ("ssl_verify_mode", "0"),
    ("ssl_keyformat", "0"),
    ("ssl_ciphers", "NULL"),
    ("ssl_ca_cert", "NULL"),
    ("ssl_wbuf_size", "0"),
    ("ssl_session_cache", "no"),
    ("ssl_kernel_tls", "no"),
    ("ssl_min_version", "none"),
    ("num_napi_ids", "(null)"),
    ("memory_file", "(null)"),
];

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}
