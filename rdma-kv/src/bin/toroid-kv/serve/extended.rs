//! Memcached's `-o`: a list of suboptions by name.

use std::time::Duration;

use toroid_kv::server::Settings;

use super::Refusal;
use super::options::Notices;

const SLABS: &str = "this store has no slabs";
const LRU: &str = "this store has no queues to tune";
const HASH: &str = "this store sizes and hashes its index by itself";
const CRAWLER: &str = "this store has no such thread";
const LOGS: &str = "there are no such buffers here";

/// Puts what `list` says into `settings`.
pub fn read(list: &str, settings: &mut Settings, notices: &mut Notices) -> Result<(), Refusal> {
    for option in list.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let option = Suboption {
            text: option,
            name,
            value,
        };
        option.apply(settings, notices)?;
    }
    let tuning = &settings.tuning;
    if tuning.hot_lru_pct + tuning.warm_lru_pct > 80 {
        return Err(Refusal::usage(
            "hot_lru_pct + warm_lru_pct cannot be more than 80% combined",
        ));
    }
    if tuning.temp_lru && !tuning.lru_maintainer_thread {
        return Err(Refusal::usage(
            "temporary_ttl requires lru_maintainer to be enabled",
        ));
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Suboption<'a> {
    text: &'a str,
    name: &'a str,
    value: Option<&'a str>,
}

impl Suboption<'_> {
    fn apply(self, settings: &mut Settings, notices: &mut Notices) -> Result<(), Refusal> {
        let tuning = &mut settings.tuning;
        let without_effect = match self.name {
            "maxconns_fast" => {
                settings.refuse_at_once = true;
                return Ok(());
            }
            "no_maxconns_fast" => {
                settings.refuse_at_once = false;
                return Ok(());
            }
            "idle_timeout" => {
                let seconds = self.number("Missing numeric argument for idle_timeout")?;
                settings.idle_timeout = match seconds {
                    0 => None,
                    seconds => Some(Duration::from_secs(seconds.into())),
                };
                return Ok(());
            }
            "track_sizes" => {
                settings.commands.track_sizes = true;
                return Ok(());
            }
            // What memcached does without them, too, or has long forgotten.
            "modern"
            | "inline_ascii_resp"
            | "no_inline_ascii_resp"
            | "resp_obj_mem_limit"
            | "no_drop_privileges" => return Ok(()),
            "no_modern" => {
                settings.refuse_at_once = false;
                tuning.slab_reassign = false;
                tuning.slab_automove = 0;
                tuning.hash_algorithm = "jenkins".to_owned();
                tuning.lru_crawler = false;
                tuning.lru_maintainer_thread = false;
                LRU
            }
            "hashpower" => {
                let power = self.number("Missing numeric argument for hashpower")?;
                if power < 12 {
                    let text = format!("Initial hashtable multiplier of {power} is too low");
                    return Err(Refusal::one(text));
                }
                if power > 32 {
                    return Err(Refusal::one(format!(
                        "Initial hashtable multiplier of {power} is too high\nChoose a value \
                         based on \"STAT hash_power_level\" from a running instance"
                    )));
                }
                tuning.hashpower_init = power;
                HASH
            }
            "no_hashexpand" => HASH,
            "hash_algorithm" => {
                let name = self.text("Missing hash_algorithm argument")?;
                if !["jenkins", "murmur3", "xxh3"].contains(&name) {
                    return Err(Refusal::one(
                        "Unknown hash_algorithm option (jenkins, murmur3, xxh3)",
                    ));
                }
                tuning.hash_algorithm = name.to_owned();
                HASH
            }
            "slab_reassign" | "no_slab_reassign" => {
                tuning.slab_reassign = self.is_on();
                SLABS
            }
            "slab_automove" => {
                let outside = "slab_automove must be between 0 and 2";
                tuning.slab_automove = match self.value {
                    None => 1,
                    Some(_) => self.number_in(0..=2, outside, outside)?,
                };
                SLABS
            }
            "no_slab_automove" => {
                tuning.slab_automove = 0;
                SLABS
            }
            "slab_automove_ratio" => {
                let missing = "Missing slab_automove_ratio argument";
                let ratio = self.fraction(missing, "slab_automove_ratio must be > 0 and < 1")?;
                if ratio > 1.0 {
                    return Err(Refusal::one("slab_automove_ratio must be > 0 and < 1"));
                }
                tuning.slab_automove_ratio = ratio;
                SLABS
            }
            "slab_automove_window" => {
                let missing = "Missing slab_automove_window argument";
                let low = "slab_automove_window must be > 2";
                tuning.slab_automove_window = self.number_in(3..=u32::MAX, missing, low)?;
                SLABS
            }
            "slab_sizes" => SLABS,
            "slab_chunk_max" => {
                let kib = self.number("Missing slab_chunk_max argument")?;
                tuning.slab_chunk_max = kib.saturating_mul(1024);
                SLABS
            }
            "no_chunked_items" => {
                tuning.slab_chunk_max = 1 << 20;
                SLABS
            }
            "tail_repair_time" => {
                let missing = "Missing numeric argument for tail_repair_time";
                let low = "Cannot set tail_repair_time to less than 10 seconds";
                tuning.tail_repair_time = self.number_in(10..=u32::MAX, missing, low)?;
                LRU
            }
            "lru_crawler" | "no_lru_crawler" => {
                tuning.lru_crawler = self.is_on();
                CRAWLER
            }
            "lru_crawler_sleep" => {
                let outside = "LRU crawler sleep must be between 0 and 1 second";
                let missing = "Missing lru_crawler_sleep value";
                tuning.lru_crawler_sleep = self.number_in(0..=1_000_000, missing, outside)?;
                CRAWLER
            }
            "lru_crawler_tocrawl" => {
                tuning.lru_crawler_tocrawl = self.number("Missing lru_crawler_tocrawl value")?;
                CRAWLER
            }
            "lru_maintainer" | "no_lru_maintainer" => {
                tuning.lru_maintainer_thread = self.is_on();
                CRAWLER
            }
            "hot_lru_pct" => {
                let outside = "hot_lru_pct must be > 1 and < 80";
                tuning.hot_lru_pct =
                    self.number_in(1..=79, "Missing hot_lru_pct argument", outside)?;
                LRU
            }
            "warm_lru_pct" => {
                let outside = "warm_lru_pct must be > 1 and < 80";
                tuning.warm_lru_pct =
                    self.number_in(1..=79, "Missing warm_lru_pct argument", outside)?;
                LRU
            }
            "hot_max_factor" => {
                let missing = "Missing hot_max_factor argument";
                tuning.hot_max_factor = self.fraction(missing, "hot_max_factor must be > 0")?;
                LRU
            }
            "warm_max_factor" => {
                let missing = "Missing warm_max_factor argument";
                tuning.warm_max_factor = self.fraction(missing, "warm_max_factor must be > 0")?;
                LRU
            }
            "temporary_ttl" => {
                tuning.temp_lru = true;
                tuning.temporary_ttl = self.number("Missing temporary_ttl argument")?;
                LRU
            }
            "watcher_logbuf_size" => {
                let kib = self.number("Missing watcher_logbuf_size argument")?;
                tuning.watcher_logbuf_size = kib.saturating_mul(1024);
                return Ok(());
            }
            "worker_logbuf_size" => {
                let kib = self.number("Missing worker_logbuf_size argument")?;
                tuning.worker_logbuf_size = kib.saturating_mul(1024);
                LOGS
            }
            "read_buf_mem_limit" => {
                let mib = self.number("Missing read_buf_mem_limit argument")?;
                tuning.read_buf_mem_limit = mib.saturating_mul(1 << 20);
                "the buffers are lent by the threads, and -c bounds the rest"
            }
            _ => return Err(self.unsupported()),
        };
        notices.without_effect(&format!("-o {}", self.name), without_effect);
        Ok(())
    }

    /// Memcached's word for what it does not know; more for what it would do and we do not.
    fn unsupported(self) -> Refusal {
        let name = self.name;
        let instead = match name.split_once('_') {
            Some(("ext", _)) => "items live in memory alone: give more of it with -m",
            Some(("ssl", _)) => super::options::NO_TLS,
            Some(("proxy", _)) => "run a proxy, such as mcrouter, in front",
            _ if name == "drop_privileges" => {
                "use -u, and the system's sandbox, such as SystemCallFilter= of systemd"
            }
            _ if name == "sock_cookie_id" => "filter by address or by user instead",
            _ => return Refusal::one(format!("Illegal suboption \"{}\"", self.text)),
        };
        Refusal::one(format!("-o {name} is not supported: {instead}"))
    }

    fn is_on(self) -> bool {
        !self.name.starts_with("no_")
    }

    fn text(&self, missing: &str) -> Result<&str, Refusal> {
        self.value.ok_or_else(|| Refusal::one(missing))
    }

    fn number(self, missing: &str) -> Result<u32, Refusal> {
        let malformed = format!("could not parse argument to {}", self.name);
        self.number_in(0..=u32::MAX, missing, &malformed)
    }

    fn number_in(
        self,
        range: std::ops::RangeInclusive<u32>,
        missing: &str,
        outside: &str,
    ) -> Result<u32, Refusal> {
        let number = self.text(missing)?.parse().ok();
        let within = number.filter(|number| range.contains(number));
        within.ok_or_else(|| Refusal::one(outside))
    }

    /// A number above 0.
    fn fraction(self, missing: &str, low: &str) -> Result<f64, Refusal> {
        let number = self.text(missing)?.parse().ok();
        let above = number.filter(|number: &f64| *number > 0.0 && number.is_finite());
        above.ok_or_else(|| Refusal::one(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_list(list: &str) -> Result<(Settings, Notices), Refusal> {
        let (mut settings, mut notices) = (Settings::default(), Notices::default());
        read(list, &mut settings, &mut notices).map(|()| (settings, notices))
    }

    #[test]
    fn what_has_an_effect_is_set_and_the_rest_is_told() {
        let list =
            "no_maxconns_fast,idle_timeout=7,modern,track_sizes,hashpower=20,,hot_lru_pct=30";
        let (settings, notices) = read_list(list).unwrap();
        assert!(!settings.refuse_at_once);
        assert_eq!(settings.idle_timeout, Some(Duration::from_secs(7)));
        assert!(settings.commands.track_sizes);
        assert_eq!(settings.tuning.hashpower_init, 20);
        assert_eq!(settings.tuning.hot_lru_pct, 30);
        let told: Vec<_> = notices.into_iter().collect();
        assert_eq!(told.len(), 2);
        assert!(
            told[0].starts_with("-o hashpower has no effect"),
            "{told:?}"
        );
        let (settings, notices) = read_list("maxconns_fast,idle_timeout=0").unwrap();
        assert!(settings.refuse_at_once && settings.idle_timeout.is_none());
        assert_eq!(notices.into_iter().count(), 0);
    }

    #[test]
    fn what_is_wrong_has_memcacheds_words() {
        let cases = [
            ("nonsense", 1, "Illegal suboption \"nonsense\""),
            ("modern,nonsense=7", 1, "Illegal suboption \"nonsense=7\""),
            (
                "idle_timeout",
                1,
                "Missing numeric argument for idle_timeout",
            ),
            (
                "idle_timeout=x",
                1,
                "could not parse argument to idle_timeout",
            ),
            (
                "hashpower=11",
                1,
                "Initial hashtable multiplier of 11 is too low",
            ),
            (
                "hash_algorithm=md5",
                1,
                "Unknown hash_algorithm option (jenkins, murmur3, xxh3)",
            ),
            (
                "slab_automove=3",
                1,
                "slab_automove must be between 0 and 2",
            ),
            (
                "slab_automove_ratio=1.5",
                1,
                "slab_automove_ratio must be > 0 and < 1",
            ),
            ("hot_max_factor=nan", 1, "hot_max_factor must be > 0"),
            (
                "tail_repair_time=9",
                1,
                "Cannot set tail_repair_time to less than 10 seconds",
            ),
            (
                "hot_lru_pct=50,warm_lru_pct=50",
                64,
                "hot_lru_pct + warm_lru_pct cannot be more than 80% combined",
            ),
            (
                "temporary_ttl=5,no_lru_maintainer",
                64,
                "temporary_ttl requires lru_maintainer to be enabled",
            ),
        ];
        for (list, status, text) in cases {
            let refusal = read_list(list).map(|_| ()).unwrap_err();
            assert_eq!(
                (refusal.status, refusal.text.as_str()),
                (status, text),
                "{list}"
            );
        }
        let elsewhere = [
            ("ext_path=/x:1G", "-m"),
            ("ssl_key=x", "TLS"),
            ("proxy_config=x", "proxy"),
            ("drop_privileges", "-u"),
            ("sock_cookie_id=1", "address"),
        ];
        for (list, instead) in elsewhere {
            let refusal = read_list(list).map(|_| ()).unwrap_err();
            assert_eq!(refusal.status, 1);
            assert!(refusal.text.contains(instead), "{}", refusal.text);
        }
    }
}
