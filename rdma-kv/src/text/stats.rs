//! What a server tells of itself: `stats` and its kin.
//!
//! Names and order are memcached's. What has no meaning here is left out, or 0 where tools expect
//! it: there are no slab classes, so all items are told as those of class 1. Gets of clients that
//! read by themselves are among all gets, and told once more alone.

use std::fmt::Display;
use std::process;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use fabric::OpError;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::host::Totals;
use super::input::Arguments;
use super::{Done, ERROR, OK, Turn, VERSION};
use crate::counts::Count;
use crate::number;
use crate::store;

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
                self.seat.host.reset(counters);
                return Ok(self.say(b"RESET\r\n"));
            }
            (b"detail", _) => return Ok(self.detail(arguments)),
            (b"settings", _) => self.settings(),
            (b"cachedump", _) => return Ok(self.cachedump(arguments)),
            (b"hotkeys", _) => return self.hot_keys(arguments),
            (b"conns", _) => self.connections(),
            (b"items", _) => self.items(),
            (b"slabs", _) => self.slab_classes(),
            (b"sizes", _) => self.tell("sizes_status", "disabled"),
            (b"sizes_enable", _) => {
                self.tell("sizes_status", "error");
                self.tell("sizes_error", "not_supported");
                return Ok(Done::Used);
            }
            (b"sizes_disable", _) => {
                self.tell("sizes_status", "disabled");
                return Ok(Done::Used);
            }
            _ => return Ok(self.say(ERROR)),
        }
        Ok(self.say(b"END\r\n"))
    }

    fn tell(&mut self, name: impl Display, value: impl Display) {
        let line = format!("STAT {name} {value}\r\n");
        self.replies.extend_from_slice(line.as_bytes());
    }

    fn totals(&self) -> Totals {
        let counters = self.store.with(|store| store.counters());
        self.seat.host.totals(counters)
    }

    fn general(&mut self) {
        let (totals, host) = (self.totals(), &self.seat.host);
        let sums = &totals.sums;
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.tell("pid", process::id());
        self.tell("uptime", host.uptime_s());
        self.tell("time", unix.as_secs());
        self.tell("version", version());
        self.tell("pointer_size", usize::BITS);
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            self.tell("rusage_user", seconds(usage.user_time()));
            self.tell("rusage_system", seconds(usage.system_time()));
        }
        self.tell("max_connections", host.rules.connections);
        self.tell("curr_connections", totals.open);
        self.tell("total_connections", totals.total);
        self.tell("rejected_connections", totals.refused);
        self.tell("connection_structures", totals.open);
        for (name, count) in COMMANDS {
            self.tell(name, sums[count] + one_sided(count, &totals.store));
        }
        self.tell("limit_maxbytes", self.store.limits().memory);
        self.tell("accepting_conns", 1);
        self.tell("listen_disabled_num", 0);
        self.tell("threads", host.rules.threads);
        self.tell("conn_yields", sums[Count::Yields]);
        self.tell("bytes", totals.store.bytes);
        self.tell("curr_items", totals.store.items);
        self.tell("total_items", totals.store.total_items);
        self.tell("slab_global_page_pool", 0);
        self.tell("expired_unfetched", totals.store.expired_unfetched);
        self.tell("evicted_unfetched", totals.store.evicted_unfetched);
        self.tell("evictions", totals.store.evictions);
        self.tell("reclaimed", totals.store.reclaimed);
        self.tell("one_sided_gets", totals.store.one_sided_gets);
        self.tell("one_sided_hits", totals.store.one_sided_hits);
    }

    fn settings(&mut self) {
        let host = &self.seat.host;
        let told = &host.rules.settings;
        if told.is_empty() {
            let limits = self.store.limits();
            self.tell("maxbytes", limits.memory);
            self.tell("maxconns", host.rules.connections);
            self.tell("verbosity", host.verbosity.load(Ordering::Relaxed));
            self.tell("num_threads", host.rules.threads);
            self.tell("item_size_max", limits.item);
        }
        for (name, value) in told {
            match *name {
                "verbosity" => self.tell(name, host.verbosity.load(Ordering::Relaxed)),
                "detail_enabled" => self.tell(name, yes(self.seat.detail())),
                "lru_crawler" => self.tell(name, yes(host.crawler.load(Ordering::Relaxed))),
                _ => self.tell(name, value),
            }
        }
    }

    fn connections(&mut self) {
        let (now, us) = (self.seat.host.uptime_s(), self.seat.number);
        let replies = &mut *self.replies;
        self.seat.host.each(|number, guest| {
            let state = match number == us {
                true => "conn_parse_cmd",
                false => "conn_read",
            };
            let idle = now.saturating_sub(guest.last_heard.load(Ordering::Relaxed));
            for (name, value) in [
                ("addr", guest.ends.peer.as_str()),
                ("listen_addr", &guest.ends.local),
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

    fn items(&mut self) {
        let store = self.totals().store;
        if store.items == 0 {
            return;
        }
        for (name, value) in [
            ("number", store.items),
            ("mem_requested", store.bytes),
            ("evicted", store.evictions),
            ("outofmemory", 0),
            ("tailrepairs", 0),
            ("reclaimed", store.reclaimed),
            ("expired_unfetched", store.expired_unfetched),
            ("evicted_unfetched", store.evicted_unfetched),
        ] {
            self.tell(format_args!("items:1:{name}"), value);
        }
    }

    fn slab_classes(&mut self) {
        let totals = self.totals();
        let sums = &totals.sums;
        let used = totals.store.items > 0;
        if used {
            self.tell("1:used_chunks", totals.store.items);
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
                let value = sums[count] + one_sided(count, &totals.store);
                self.tell(format_args!("1:{name}"), value);
            }
        }
        self.tell("active_slabs", u8::from(used));
        self.tell("total_malloced", self.store.limits().memory);
    }

    fn detail(&mut self, arguments: &Arguments<'_>) -> Done {
        let host = &self.seat.host;
        match arguments.at(1) {
            switch @ (b"on" | b"off") => {
                host.detail.store(switch == b"on", Ordering::Relaxed);
                self.say(OK)
            }
            b"dump" => {
                host.prefixes().dump(self.replies);
                self.say(b"END\r\n")
            }
            _ => self.say(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
        }
    }

    /// Memcached tells items that nobody got for a while; here nobody keeps such a list.
    fn cachedump(&mut self, arguments: &Arguments<'_>) -> Done {
        let number = |at| number::unsigned_int(arguments.at(at));
        self.say(match (arguments.count, number(1), number(2)) {
            (..3, _, _) => b"CLIENT_ERROR bad command line\r\n",
            (_, Some(..64), Some(_)) => b"END\r\n",
            (_, Some(_), Some(_)) => b"CLIENT_ERROR Illegal slab id\r\n",
            _ => super::BAD_FORMAT,
        })
    }
}

/// Counts of commands, in the order in which they are told.
const COMMANDS: [(&str, Count); 25] = [
    ("cmd_get", Count::GetCommands),
    ("cmd_set", Count::SetCommands),
    ("cmd_flush", Count::FlushCommands),
    ("cmd_touch", Count::TouchCommands),
    ("cmd_meta", Count::MetaCommands),
    ("get_hits", Count::GetHits),
    ("get_misses", Count::GetMisses),
    ("get_expired", Count::GetExpired),
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
    ("bytes_read", Count::BytesRead),
    ("bytes_written", Count::BytesWritten),
];

/// What clients that read by themselves add to a count.
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
