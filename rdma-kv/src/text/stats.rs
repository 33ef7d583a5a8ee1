//! `stats` and its variants.
//!
//! Names and order are memcached's. Values without a meaning here are 0, or the nearest that
//! `docs/memcached-protocol.md` lists. There are no slab classes, so all items are shown in class 1.
//! One-sided gets are included in all gets, and shown separately as well.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::process;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use toroid_fabric::OpError;

use super::dump::DumpKind;
use super::input::{self, Arguments};
use super::server_state::Totals;
use super::{Done, ERROR, OK, REPLIES, Turn, VERSION};
use crate::number;
use crate::protocol::layout::UNIT;
use crate::store;
use crate::text::counts::Count;

/// Bytes of memcached's pages.
const PAGE: u64 = 1 << 20;

/// Bytes of a slot of the index.
const SLOT_LEN: u64 = 8;

/// Descriptors of a worker: an epoll, and both ends of its wake-up.
const DESCRIPTORS_PER_THREAD: usize = 3;

/// The version without command and line end.
fn version() -> &'static str {
    let text = std::str::from_utf8(VERSION).unwrap_or_default();
    text.trim_start_matches("VERSION ").trim_end()
}

impl Turn<'_> {
    pub(super) fn stats(&mut self, arguments: &Arguments<'_>) -> Result<Done, OpError> {
        match (arguments.at(0), arguments.count) {
            (_, 0) => self.general(),
            (b"reset", _) => {
                let counters = self.store.with(|store| store.counters());
                self.slot.server.reset(counters);
                return Ok(self.say(b"RESET\r\n"));
            }
            (b"detail", _) => return Ok(self.detail(arguments)),
            (b"settings", _) => self.settings(),
            (b"cachedump", _) => return Ok(self.cachedump(arguments)),
            (b"hotkeys", _) => return self.hot_keys(arguments),
            (b"conns", _) => self.connections(),
            (b"items", _) => self.items(),
            (b"slabs", _) => self.slab_classes(),
            (b"sizes", _) => return Ok(self.sizes()),
            (b"sizes_enable", _) => return Ok(self.switch_sizes(true)),
            (b"sizes_disable", _) => return Ok(self.switch_sizes(false)),
            _ => return Ok(self.say(ERROR)),
        }
        Ok(self.say(b"END\r\n"))
    }

    fn tell(&mut self, name: impl Display, value: impl Display) {
        let line = format!("STAT {name} {value}\r\n");
        self.replies.extend_from_slice(line.as_bytes());
    }

    fn tell_zeros(&mut self, names: &[&str]) {
        for name in names {
            self.tell(name, 0);
        }
    }

    fn totals(&self) -> Totals {
        let counters = self.store.with(|store| store.counters());
        self.slot.server.totals(counters)
    }

    /// Appends `stats`; rows of our own come last.
    fn general(&mut self) {
        let (totals, server) = (self.totals(), &self.slot.server);
        let (sums, store) = (&totals.sums, &totals.store);
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.tell("pid", process::id());
        self.tell("uptime", server.uptime_s());
        self.tell("time", unix.as_secs());
        self.tell("version", version());
        self.tell("libevent", "none");
        self.tell("pointer_size", usize::BITS);
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            self.tell("rusage_user", seconds(usage.user_time()));
            self.tell("rusage_system", seconds(usage.system_time()));
        }
        self.tell("max_connections", server.rules.connections);
        self.tell("curr_connections", totals.open);
        self.tell("total_connections", totals.total);
        if server.told("maxconns_fast") {
            self.tell("rejected_connections", totals.refused);
        }
        self.tell("connection_structures", totals.open);
        let threads = server.rules.threads;
        self.tell("response_obj_oom", 0);
        self.tell("response_obj_count", threads);
        self.tell("response_obj_bytes", threads * REPLIES);
        self.tell("read_buf_count", threads);
        self.tell("read_buf_bytes", threads * input::SCRATCH_LEN);
        self.tell("read_buf_bytes_free", 0);
        self.tell("read_buf_oom", sums[Count::LongGets]);
        self.tell("reserved_fds", threads * DESCRIPTORS_PER_THREAD);
        for (name, count) in COMMANDS {
            if name == "idle_kicks" && server.told_value("idle_timeout") == Some("0") {
                continue;
            }
            self.tell(name, sums[count] + one_sided(count, store));
        }
        self.tell("limit_maxbytes", self.store.limits().memory);
        self.tell("accepting_conns", u8::from(server.is_accepting()));
        self.tell("listen_disabled_num", sums[Count::ListenDisabled]);
        self.tell("time_in_listen_disabled_us", sums[Count::ListenDisabledUs]);
        self.tell("threads", threads);
        self.tell("conn_yields", sums[Count::Yields]);
        let (index, _) = self.store.limits().regions();
        self.tell("hash_power_level", index.ilog2() - SLOT_LEN.ilog2());
        self.tell("hash_bytes", index);
        self.tell("hash_is_expanding", 0);
        if server.told("slab_reassign") {
            self.tell_zeros(&SLAB_REASSIGN);
        }
        if server.crawler.load(Ordering::Relaxed) {
            let runs = self.store.with(|store| store.is_crawling());
            self.tell("lru_crawler_running", u8::from(runs));
            let starts = sums[Count::CrawlerStarts] + store.sweeps;
            self.tell("lru_crawler_starts", starts);
        }
        if server.told("lru_maintainer_thread") {
            self.tell("lru_maintainer_juggles", 0);
        }
        let watched = server.watchers.counts();
        self.tell("malloc_fails", 0);
        self.tell("log_worker_dropped", 0);
        self.tell("log_worker_written", watched.written);
        self.tell("log_watcher_skipped", watched.skipped);
        self.tell("log_watcher_sent", watched.sent);
        self.tell("log_watchers", watched.watchers);
        self.tell("unexpected_napi_ids", 0);
        self.tell("round_robin_fallback", 0);
        self.tell("bytes", store.bytes);
        self.tell("curr_items", store.items);
        self.tell("total_items", store.total_items);
        self.tell("slab_global_page_pool", 0);
        for (name, value) in lost(store) {
            match name {
                "evicted_active" => {
                    self.tell(name, value);
                    self.tell("evictions", store.evictions);
                }
                _ => self.tell(name, value),
            }
        }
        self.tell("lru_bumps_dropped", 0);
        self.tell("one_sided_gets", store.one_sided_gets);
        self.tell("one_sided_hits", store.one_sided_hits);
        self.tell("binary_clients_refused", sums[Count::BinaryClients]);
    }

    fn settings(&mut self) {
        let server = &self.slot.server;
        let told = &server.rules.settings;
        if told.is_empty() {
            let limits = self.store.limits();
            self.tell("maxbytes", limits.memory);
            self.tell("maxconns", server.rules.connections);
            self.tell("verbosity", server.verbosity.load(Ordering::Relaxed));
            self.tell("num_threads", server.rules.threads);
            self.tell("item_size_max", limits.item);
        }
        for (name, value) in told {
            match *name {
                "verbosity" => self.tell(name, server.verbosity.load(Ordering::Relaxed)),
                "detail_enabled" => self.tell(name, yes(self.slot.detail())),
                "maxbytes" => self.tell(name, self.store.limits().memory),
                "lru_crawler" => self.tell(name, yes(server.crawler.load(Ordering::Relaxed))),
                "track_sizes" => self.tell(name, yes(server.sizes.load(Ordering::Relaxed))),
                _ => {
                    let tuned = server.tuned().get(name).cloned();
                    self.tell(name, tuned.as_ref().unwrap_or(value));
                }
            }
        }
    }

    fn connections(&mut self) {
        let (now, us) = (self.slot.server.uptime_s(), self.slot.number);
        let listeners = self.slot.server.rules.listeners.clone();
        for (number, address) in listeners.iter().enumerate() {
            let number = number + 1;
            self.tell(format_args!("{number}:addr"), address);
            self.tell(format_args!("{number}:state"), "conn_listening");
            self.tell(format_args!("{number}:secs_since_last_cmd"), now);
        }
        let replies = &mut *self.replies;
        self.slot.server.each(|number, stats| {
            let state = if number == us {
                "conn_parse_cmd"
            } else {
                stats.state()
            };
            let idle = now.saturating_sub(stats.last_heard.load(Ordering::Relaxed));
            let number = number + listeners.len() as u64;
            for (name, value) in [
                ("addr", stats.ends.peer.as_str()),
                ("listen_addr", &stats.ends.local),
                ("state", state),
                ("secs_since_last_cmd", &idle.to_string()),
            ] {
                if !value.is_empty() {
                    let line = format!("STAT {number}:{name} {value}\r\n");
                    replies.extend_from_slice(line.as_bytes());
                }
            }
        });
    }

    /// Appends `stats items`: all items as cold ones of class 1.
    fn items(&mut self) {
        let totals = self.totals();
        let (store, sums) = (&totals.store, &totals.sums);
        if store.items == 0 {
            return;
        }
        let first = [
            ("number", store.items),
            ("number_hot", 0),
            ("number_warm", 0),
            ("number_cold", store.items),
            ("age_hot", 0),
            ("age_warm", 0),
            ("age", 0),
            ("mem_requested", store.bytes),
            ("evicted", store.evictions),
            ("evicted_nonzero", 0),
            ("evicted_time", 0),
            ("outofmemory", sums[Count::NoMemory]),
            ("tailrepairs", 0),
            ("reclaimed", store.reclaimed),
        ];
        let lost = lost(store);
        let lost = lost.into_iter().filter(|(name, _)| *name != "reclaimed");
        let hits = sums[Count::GetHits] + store.one_sided_hits;
        let last = [
            ("hits_to_hot", 0),
            ("hits_to_warm", 0),
            ("hits_to_cold", hits),
            ("hits_to_temp", 0),
        ];
        for (name, value) in first.into_iter().chain(lost).chain(last) {
            self.tell(format_args!("items:1:{name}"), value);
        }
    }

    /// Appends `stats slabs`: all memory as pages of class 1, whose chunks are the units of
    /// items.
    fn slab_classes(&mut self) {
        let totals = self.totals();
        let (store, sums) = (&totals.store, &totals.sums);
        let memory = self.store.limits().memory;
        let used = store.items > 0;
        if used {
            let (chunk, pages) = (UNIT as u64, memory / PAGE);
            let chunks = pages * (PAGE / chunk);
            let in_use = store.bytes.div_ceil(chunk).min(chunks);
            for (name, value) in [
                ("chunk_size", chunk),
                ("chunks_per_page", PAGE / chunk),
                ("total_pages", pages),
                ("total_chunks", chunks),
                ("used_chunks", in_use),
                ("free_chunks", chunks - in_use),
                ("free_chunks_end", 0),
            ] {
                self.tell(format_args!("1:{name}"), value);
            }
            for (name, count) in [
                ("get_hits", Count::GetHits),
                ("cmd_set", Count::SetCommands),
                ("delete_hits", Count::DeleteHits),
                ("incr_hits", Count::IncrHits),
                ("decr_hits", Count::DecrHits),
                ("cas_hits", Count::CasHits),
                ("cas_badval", Count::CasBadValues),
                ("touch_hits", Count::TouchHits),
            ] {
                let value = sums[count] + one_sided(count, store);
                self.tell(format_args!("1:{name}"), value);
            }
        }
        self.tell("active_slabs", u8::from(used));
        self.tell("total_malloced", memory);
    }

    fn sizes(&mut self) -> Done {
        if self.slot.server.sizes.load(Ordering::Relaxed) {
            Done::Dump(DumpKind::Sizes(BTreeMap::new()))
        } else {
            self.tell("sizes_status", "disabled");
            self.say(b"END\r\n")
        }
    }

    /// As in memcached, without END.
    fn switch_sizes(&mut self, on: bool) -> Done {
        if on && !self.slot.server.rules.cas {
            self.tell("sizes_status", "error");
            self.tell("sizes_error", "cas_support_disabled");
        } else {
            self.slot.server.sizes.store(on, Ordering::Relaxed);
            self.tell("sizes_status", if on { "enabled" } else { "disabled" });
        }
        Done::Used
    }

    fn detail(&mut self, arguments: &Arguments<'_>) -> Done {
        let server = &self.slot.server;
        match arguments.at(1) {
            switch @ (b"on" | b"off") => {
                server.detail.store(switch == b"on", Ordering::Relaxed);
                self.say(OK)
            }
            b"dump" => {
                server.prefixes().dump(self.replies);
                self.say(b"END\r\n")
            }
            _ => self.say(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
        }
    }

    /// `stats cachedump`: keys and lengths of items, all in class 1; limit 0 is none.
    fn cachedump(&mut self, arguments: &Arguments<'_>) -> Done {
        if !self.slot.server.rules.dump {
            return self.say(b"CLIENT_ERROR stats cachedump not allowed\r\n");
        }
        let number = |at| number::unsigned_int(arguments.at(at));
        match (arguments.count, number(1), number(2)) {
            (..3, _, _) => self.say(b"CLIENT_ERROR bad command line\r\n"),
            (_, Some(1), Some(limit)) => Done::Dump(DumpKind::Cachedump {
                left: match limit {
                    0 => usize::MAX,
                    limit => limit as usize,
                },
            }),
            (_, Some(..64), Some(_)) => self.say(b"END\r\n"),
            (_, Some(_), Some(_)) => self.say(b"CLIENT_ERROR Illegal slab id\r\n"),
            _ => self.say(super::BAD_FORMAT),
        }
    }
}

/// Counters of commands, in the order of `stats`.
const COMMANDS: [(&str, Count); 27] = [
    ("cmd_get", Count::GetCommands),
    ("cmd_set", Count::SetCommands),
    ("cmd_flush", Count::FlushCommands),
    ("cmd_touch", Count::TouchCommands),
    ("cmd_meta", Count::MetaCommands),
    ("get_hits", Count::GetHits),
    ("get_misses", Count::GetMisses),
    ("get_expired", Count::GetExpired),
    ("get_flushed", Count::GetFlushed),
    ("delete_misses", Count::DeleteMisses),
    ("delete_hits", Count::DeleteHits),
    ("incr_misses", Count::IncrMisses),
    ("incr_hits", Count::IncrHits),
    ("decr_misses", Count::DecrMisses),
    ("decr_hits", Count::DecrHits),
    ("cas_misses", Count::CasMisses),
    ("cas_hits", Count::CasHits),
    ("cas_badval", Count::CasBadValues),
    ("touch_hits", Count::TouchHits),
    ("touch_misses", Count::TouchMisses),
    ("store_too_large", Count::TooLarge),
    ("store_no_memory", Count::NoMemory),
    ("auth_cmds", Count::AuthCommands),
    ("auth_errors", Count::AuthErrors),
    ("idle_kicks", Count::IdleKicks),
    ("bytes_read", Count::BytesRead),
    ("bytes_written", Count::BytesWritten),
];

/// Rows about memory that moves between slab classes, of which there is one.
const SLAB_REASSIGN: [&str; 8] = [
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
];

/// Rows about items that are gone. A set evicts by itself, so each eviction is a direct reclaim.
fn lost(store: &store::Counters) -> [(&'static str, u64); 11] {
    [
        ("expired_unfetched", store.expired_unfetched),
        ("evicted_unfetched", store.evicted_unfetched),
        ("evicted_active", 0),
        ("reclaimed", store.reclaimed),
        ("crawler_reclaimed", store.crawler_reclaimed),
        ("crawler_items_checked", store.swept),
        ("lrutail_reflocked", 0),
        ("moves_to_cold", 0),
        ("moves_to_warm", 0),
        ("moves_within_lru", 0),
        ("direct_reclaims", store.evictions),
    ]
}

/// One-sided gets that a counter includes.
fn one_sided(count: Count, store: &store::Counters) -> u64 {
    match count {
        Count::GetCommands => store.one_sided_gets,
        Count::GetHits => store.one_sided_hits,
        Count::GetMisses => store.one_sided_gets.saturating_sub(store.one_sided_hits),
        _ => 0,
    }
}

fn seconds(time: TimeVal) -> impl Display {
    format!("{}.{:06}", time.tv_sec(), time.tv_usec())
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}
