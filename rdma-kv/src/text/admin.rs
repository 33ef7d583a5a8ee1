//! Administrative commands. Many of memcached's tune threads and slab classes that do not exist
//! here: they are checked and answered as memcached does, and change nothing.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use toroid_fabric::OpError;

use super::dump::DumpKind;
use super::input::Arguments;
use super::{BAD_FORMAT, Done, ERROR, OK, Turn, VERSION};
use crate::number;
use crate::store::Store;
use crate::store::operations;
use crate::text::counts::Count;

/// Bound of memcached's slab classes.
const CLASSES: u32 = 64;

/// Memcached's largest slab class by default, which bounds `slabs reassign`.
const LARGEST_CLASS: i32 = 39;

const VERBOSITY_LIMIT: u32 = i32::MAX as u32 - 1;

impl Turn<'_> {
    pub(super) fn flush_all(&mut self, arguments: &Arguments<'_>) -> Result<Done, OpError> {
        if arguments.count > 2 {
            return Ok(self.say(ERROR));
        }
        self.noreply = arguments.noreply();
        self.count(Count::FlushCommands);
        if !self.slot.server.rules.flush_all {
            return Ok(self.say(b"CLIENT_ERROR flush_all not allowed\r\n"));
        }
        let mut delay = Some(0);
        if arguments.count != usize::from(self.noreply) {
            delay = number::int(arguments.at(0));
        }
        let Some(delay) = delay else {
            return Ok(self.say(b"CLIENT_ERROR invalid exptime argument\r\n"));
        };
        self.store
            .with(|store| operations::flush(store, delay.into()))?;
        Ok(self.say(OK))
    }

    pub(super) fn shutdown(&mut self, arguments: &Arguments<'_>) -> Done {
        let shutdown = self.slot.server.rules.shutdown.as_ref();
        let Some(shutdown) = shutdown.filter(|_| self.slot.is_direct) else {
            return self.say(b"ERROR: shutdown not enabled\r\n");
        };
        match (arguments.count, arguments.at(0)) {
            (0, _) | (1, b"graceful") => {
                shutdown();
                Done::Close
            }
            _ => self.say(b"CLIENT_ERROR invalid shutdown mode\r\n"),
        }
    }

    pub(super) fn administer(&mut self, command: &[u8], arguments: &Arguments<'_>) -> Done {
        match command {
            b"version" => self.say(VERSION),
            b"verbosity" => self.verbosity(arguments),
            b"cache_memlimit" => self.memory_limit(arguments),
            b"slabs" => self.slabs(arguments),
            b"lru" => self.lru(arguments),
            b"lru_crawler" => self.lru_crawler(arguments),
            b"watch" => self.watch(arguments),
            // A browser that was led here must not change anything.
            _ if may_be_http(command, arguments) => Done::Close,
            _ => self.say(ERROR),
        }
    }

    fn verbosity(&mut self, arguments: &Arguments<'_>) -> Done {
        if !(1..=2).contains(&arguments.count) {
            return self.say(ERROR);
        }
        self.noreply = arguments.noreply();
        match number::unsigned_int(arguments.at(0)) {
            Some(level) => {
                let level = level.min(VERBOSITY_LIMIT);
                self.slot.server.verbosity.store(level, Ordering::Relaxed);
                self.say(OK)
            }
            None => self.say(BAD_FORMAT),
        }
    }

    fn memory_limit(&mut self, arguments: &Arguments<'_>) -> Done {
        if !(1..=2).contains(&arguments.count) {
            return self.say(ERROR);
        }
        self.noreply = arguments.noreply();
        self.say(match number::unsigned_int(arguments.at(0)) {
            None => ERROR,
            Some(..8) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
            Some(1_000_000_001..) => {
                b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"
            }
            Some(limit) if self.store.limit_memory(u64::from(limit) << 20) => OK,
            Some(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        })
    }

    fn slabs(&mut self, arguments: &Arguments<'_>) -> Done {
        let text: &[u8] = match (arguments.at(0), arguments.count) {
            (b"reassign", 3) => {
                let class = |at| number::int(arguments.at(at));
                let valid = |class| (0..=LARGEST_CLASS).contains(&class);
                match (class(1), class(2)) {
                    (Some(from), Some(to)) if from == to => {
                        b"SAME src and dst class are identical\r\n"
                    }
                    (Some(from), Some(to)) if valid(from) && valid(to) => {
                        b"NOSPARE source class has no spare pages\r\n"
                    }
                    (Some(_), Some(_)) => b"BADCLASS invalid src or dst class id\r\n",
                    _ => BAD_FORMAT,
                }
            }
            (b"automove", 2..) => {
                self.noreply = arguments.noreply();
                match arguments.at(1) {
                    b"ratio" => match number::real(arguments.at(2)) {
                        Some(ratio) => self.tune("slab_automove_ratio", format_args!("{ratio:.2}")),
                        None => ERROR,
                    },
                    level => match number::unsigned_int(level) {
                        Some(level @ 0..=2) => self.tune("slab_automove", level),
                        Some(_) => ERROR,
                        None => BAD_FORMAT,
                    },
                }
            }
            _ => ERROR,
        };
        self.say(text)
    }

    fn lru(&mut self, arguments: &Arguments<'_>) -> Done {
        if arguments.count == 0 {
            return self.say(ERROR);
        }
        self.noreply = arguments.noreply();
        let text = match (arguments.at(0), arguments.count) {
            (b"tune", 5..) => self.tune_lists(arguments),
            (b"mode", 2..) if [b"flat", &b"segmented"[..]].contains(&arguments.at(1)) => OK,
            (b"temp_ttl", 2..) => match number::int(arguments.at(1)) {
                Some(..0) => self.tune("temp_lru", "no"),
                Some(ttl) => {
                    self.tune("temp_lru", "yes");
                    self.tune("temporary_ttl", ttl)
                }
                None => ERROR,
            },
            _ => ERROR,
        };
        self.say(text)
    }

    fn tune_lists(&self, arguments: &Arguments<'_>) -> &'static [u8] {
        let percent = |at| number::unsigned_int(arguments.at(at));
        let factor = |at| number::real(arguments.at(at));
        let (Some(hot), Some(warm), Some(hot_factor), Some(warm_factor)) =
            (percent(1), percent(2), factor(3), factor(4))
        else {
            return ERROR;
        };
        if hot.wrapping_add(warm) > 80 {
            b"ERROR hot and warm pcts must not exceed 80\r\n"
        } else if hot_factor <= 0.0 || warm_factor <= 0.0 {
            b"ERROR hot/warm age factors must be greater than 0\r\n"
        } else {
            self.tune("hot_lru_pct", hot);
            self.tune("warm_lru_pct", warm);
            self.tune("hot_max_factor", format_args!("{hot_factor:.2}"));
            self.tune("warm_max_factor", format_args!("{warm_factor:.2}"))
        }
    }

    /// Changes a setting without effect, which `stats settings` shows.
    fn tune(&self, name: &'static str, value: impl Display) -> &'static [u8] {
        self.slot.server.tune(name, value.to_string());
        OK
    }

    /// Sweeps all segments within a second, whichever class was named.
    fn crawl(&self) -> &'static [u8] {
        self.store.with(Store::crawl);
        OK
    }

    fn lru_crawler(&mut self, arguments: &Arguments<'_>) -> Done {
        let crawler = &self.slot.server.crawler;
        let value = arguments.at(1);
        let may_dump = self.slot.server.rules.dump;
        let text: &[u8] = match (arguments.at(0), arguments.count) {
            (b"crawl" | b"metadump", 2) if !crawler.load(Ordering::Relaxed) => {
                b"CLIENT_ERROR lru crawler disabled\r\n"
            }
            (b"metadump", 2) if !may_dump => b"ERROR metadump not allowed\r\n",
            (b"crawl" | b"metadump", 2) if !are_classes(value) => b"BADCLASS invalid class id\r\n",
            // Memcached accepts this list for "metadump" alone.
            (b"crawl", 2) if value == b"hash" => b"ERROR an unknown error happened\r\n",
            (b"crawl", 2) => self.crawl(),
            (b"metadump", 2) if has_first_class(value) => {
                self.count(Count::CrawlerStarts);
                return Done::Dump(DumpKind::Metadump);
            }
            (b"metadump", 2) => b"END\r\n",
            (b"tocrawl", 2) => match number::unsigned_int(value) {
                Some(limit) => self.tune("lru_crawler_tocrawl", limit),
                None => BAD_FORMAT,
            },
            (b"sleep", 2) => match number::unsigned_int(value) {
                Some(us @ ..=1_000_000) => self.tune("lru_crawler_sleep", us),
                Some(_) => b"CLIENT_ERROR sleep must be one second or less\r\n",
                None => BAD_FORMAT,
            },
            (b"enable", 1) => {
                if crawler.swap(true, Ordering::Relaxed) {
                    b"ERROR failed to start lru crawler thread\r\n"
                } else {
                    OK
                }
            }
            (b"disable", 1) => {
                crawler.store(false, Ordering::Relaxed);
                OK
            }
            _ => ERROR,
        };
        self.say(text)
    }
}

/// Whether this is `all`, `hash`, or a comma-separated list of classes.
fn are_classes(list: &[u8]) -> bool {
    let is_class = |text: &[u8]| {
        text.is_empty() || number::unsigned_int(text).is_some_and(|n| (1..CLASSES).contains(&n))
    };
    [b"all", &b"hash"[..]].contains(&list) || list.split(|&byte| byte == b',').all(is_class)
}

/// Whether the list has class 1, in which all items are shown.
fn has_first_class(list: &[u8]) -> bool {
    let is_first = |text: &[u8]| number::unsigned_int(text) == Some(1);
    [b"all", &b"hash"[..]].contains(&list) || list.split(|&byte| byte == b',').any(is_first)
}

/// Whether an unknown command is the first line of an HTTP request. As in memcached, commands with
/// the first letter of a known one are exempt.
fn may_be_http(command: &[u8], arguments: &Arguments<'_>) -> bool {
    let like_ours = matches!(
        command,
        [b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't', ..]
    );
    let last = match arguments.count {
        0 => command,
        _ => arguments.last(),
    };
    !like_ours && command.len() >= 2 && last.starts_with(b"HTTP/")
}
