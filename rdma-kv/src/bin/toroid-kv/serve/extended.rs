//! Memcached's `-o`: a list of suboptions by name, as one table.

use std::ops::RangeInclusive;
use std::time::Duration;

use toroid_kv::server::{Settings, Tuning};

use super::StartError;
use super::options::Notices;

const NONE: Option<&str> = None;
const SLABS: Option<&str> = Some("this store has no slabs");
const LRU: Option<&str> = Some("this store has no queues to tune");
const HASH: Option<&str> = Some("this store sizes and hashes its index by itself");
const CRAWLER: Option<&str> = Some("this store has no such thread");
const LOGS: Option<&str> = Some("there are no such buffers here");
const BUFFERS: Option<&str> = Some("the buffers are lent by the threads, and -c bounds the rest");

/// The value of a suboption, and its setting. The texts are memcached's: for a missing value, and for
/// one that is malformed or outside of its range.
enum Value {
    /// Without a value; one that is given is ignored.
    Flag(fn(&mut Settings)),
    /// Any number.
    Number(&'static str, fn(&mut Settings, u32)),
    /// A number in a range.
    Within(
        RangeInclusive<u32>,
        [&'static str; 2],
        fn(&mut Settings, u32),
    ),
    /// A number above 0, and up to a limit.
    Fraction(f64, [&'static str; 2], fn(&mut Settings, f64)),
    /// Anything else.
    Special(fn(&mut Settings, Option<&str>) -> Result<(), StartError>),
}

use Value::{Flag, Fraction, Number, Special, Within};

/// Name, value, and the reason in the notice if the suboption has no effect. `stats settings` shows
/// the fields of [`Tuning`], which are otherwise unused.
type Row = (&'static str, Value, Option<&'static str>);

#[rustfmt::skip]
const OPTIONS: &[Row] = &[
    ("maxconns_fast", Flag(|s| s.refuse_at_once = true), NONE),
    ("no_maxconns_fast", Flag(|s| s.refuse_at_once = false), NONE),
    ("idle_timeout", Number("Missing numeric argument for idle_timeout", idle_timeout), NONE),
    ("track_sizes", Flag(|s| s.commands.track_sizes = true), NONE),
    ("watcher_logbuf_size", Number("Missing watcher_logbuf_size argument", |s, kib| s.tuning.watcher_logbuf_size = kib.saturating_mul(1 << 10)), NONE),
    // Memcached's defaults today, or without a meaning there as well.
    ("modern", Flag(|_| {}), NONE),
    ("inline_ascii_resp", Flag(|_| {}), NONE),
    ("no_inline_ascii_resp", Flag(|_| {}), NONE),
    ("resp_obj_mem_limit", Flag(|_| {}), NONE),
    ("no_drop_privileges", Flag(|_| {}), NONE),
    ("no_modern", Flag(no_modern), LRU),
    ("hashpower", Special(hashpower), HASH),
    ("no_hashexpand", Flag(|_| {}), HASH),
    ("hash_algorithm", Special(hash_algorithm), HASH),
    ("slab_reassign", Flag(|s| s.tuning.slab_reassign = true), SLABS),
    ("no_slab_reassign", Flag(|s| s.tuning.slab_reassign = false), SLABS),
    ("slab_automove", Special(slab_automove), SLABS),
    ("no_slab_automove", Flag(|s| s.tuning.slab_automove = 0), SLABS),
    ("slab_automove_ratio", Fraction(1.0, ["Missing slab_automove_ratio argument", "slab_automove_ratio must be > 0 and < 1"], |s, ratio| s.tuning.slab_automove_ratio = ratio), SLABS),
    ("slab_automove_window", Within(3..=u32::MAX, ["Missing slab_automove_window argument", "slab_automove_window must be > 2"], |s, window| s.tuning.slab_automove_window = window), SLABS),
    ("slab_sizes", Flag(|_| {}), SLABS),
    ("slab_chunk_max", Number("Missing slab_chunk_max argument", |s, kib| s.tuning.slab_chunk_max = kib.saturating_mul(1 << 10)), SLABS),
    ("no_chunked_items", Flag(|s| s.tuning.slab_chunk_max = 1 << 20), SLABS),
    ("tail_repair_time", Within(10..=u32::MAX, ["Missing numeric argument for tail_repair_time", "Cannot set tail_repair_time to less than 10 seconds"], |s, seconds| s.tuning.tail_repair_time = seconds), LRU),
    ("lru_crawler", Flag(|s| s.tuning.lru_crawler = true), CRAWLER),
    ("no_lru_crawler", Flag(|s| s.tuning.lru_crawler = false), CRAWLER),
    ("lru_crawler_sleep", Within(0..=1_000_000, ["Missing lru_crawler_sleep value", "LRU crawler sleep must be between 0 and 1 second"], |s, us| s.tuning.lru_crawler_sleep = us), CRAWLER),
    ("lru_crawler_tocrawl", Number("Missing lru_crawler_tocrawl value", |s, items| s.tuning.lru_crawler_tocrawl = items), CRAWLER),
    ("lru_maintainer", Flag(|s| s.tuning.lru_maintainer_thread = true), CRAWLER),
    ("no_lru_maintainer", Flag(|s| s.tuning.lru_maintainer_thread = false), CRAWLER),
    ("hot_lru_pct", Within(1..=79, ["Missing hot_lru_pct argument", "hot_lru_pct must be > 1 and < 80"], |s, percent| s.tuning.hot_lru_pct = percent), LRU),
    ("warm_lru_pct", Within(1..=79, ["Missing warm_lru_pct argument", "warm_lru_pct must be > 1 and < 80"], |s, percent| s.tuning.warm_lru_pct = percent), LRU),
    ("hot_max_factor", Fraction(f64::MAX, ["Missing hot_max_factor argument", "hot_max_factor must be > 0"], |s, factor| s.tuning.hot_max_factor = factor), LRU),
    ("warm_max_factor", Fraction(f64::MAX, ["Missing warm_max_factor argument", "warm_max_factor must be > 0"], |s, factor| s.tuning.warm_max_factor = factor), LRU),
    ("temporary_ttl", Number("Missing temporary_ttl argument", |s, seconds| (s.tuning.temp_lru, s.tuning.temporary_ttl) = (true, seconds)), LRU),
    ("worker_logbuf_size", Number("Missing worker_logbuf_size argument", |s, kib| s.tuning.worker_logbuf_size = kib.saturating_mul(1 << 10)), LOGS),
    ("read_buf_mem_limit", Number("Missing read_buf_mem_limit argument", |s, mib| s.tuning.read_buf_mem_limit = mib.saturating_mul(1 << 20)), BUFFERS),
];

/// Refused suboptions, by name or by prefix, with alternatives.
const REFUSED: [(&str, &str); 5] = [
    (
        "ext_",
        "items live in memory alone: give more of it with -m",
    ),
    ("ssl_", super::options::NO_TLS),
    ("proxy_", "run a proxy, such as mcrouter, in front"),
    (
        "drop_privileges",
        "use -u, and the system's sandbox, such as SystemCallFilter= of systemd",
    ),
    ("sock_cookie_id", "filter by address or by user instead"),
];

/// Applies a list of suboptions to `settings`.
pub fn read(list: &str, settings: &mut Settings, notices: &mut Notices) -> Result<(), StartError> {
    for option in list.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let row = OPTIONS.iter().find(|(known, ..)| *known == name);
        let (name, kind, notice) = row.ok_or_else(|| unsupported(option, name))?;
        apply(name, kind, value, settings)?;
        if let Some(reason) = notice {
            notices.without_effect(&format!("-o {name}"), reason);
        }
    }
    let tuning = &settings.tuning;
    if tuning.hot_lru_pct + tuning.warm_lru_pct > 80 {
        return Err(StartError::usage(
            "hot_lru_pct + warm_lru_pct cannot be more than 80% combined",
        ));
    }
    if tuning.temp_lru && !tuning.lru_maintainer_thread {
        return Err(StartError::usage(
            "temporary_ttl requires lru_maintainer to be enabled",
        ));
    }
    Ok(())
}

fn apply(
    name: &str,
    kind: &Value,
    value: Option<&str>,
    settings: &mut Settings,
) -> Result<(), StartError> {
    match kind {
        Flag(set) => set(settings),
        Number(missing, set) => {
            let malformed = || StartError::one(format!("could not parse argument to {name}"));
            let number = text(value, missing)?.parse().map_err(|_| malformed())?;
            set(settings, number);
        }
        Within(range, [missing, outside], set) => {
            let number = text(value, missing)?.parse().ok();
            let number = number.filter(|number| range.contains(number));
            set(settings, number.ok_or_else(|| StartError::one(*outside))?);
        }
        Fraction(most, [missing, outside], set) => {
            let number = text(value, missing)?.parse().ok();
            let number = number.filter(|number| *number > 0.0 && number <= most);
            set(settings, number.ok_or_else(|| StartError::one(*outside))?);
        }
        Special(set) => set(settings, value)?,
    }
    Ok(())
}

/// The error for a suboption outside of the table: memcached's, or an alternative.
fn unsupported(option: &str, name: &str) -> StartError {
    let refused = REFUSED
        .iter()
        .find(|(refused, _)| match refused.strip_suffix('_') {
            Some(prefix) => name
                .split_once('_')
                .is_some_and(|(start, _)| start == prefix),
            None => name == *refused,
        });
    StartError::one(match refused {
        Some((_, instead)) => format!("-o {name} is not supported: {instead}"),
        None => format!("Illegal suboption \"{option}\""),
    })
}

fn text<'a>(value: Option<&'a str>, missing: &str) -> Result<&'a str, StartError> {
    value.ok_or_else(|| StartError::one(missing))
}

fn idle_timeout(settings: &mut Settings, seconds: u32) {
    settings.idle_timeout = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
}

fn no_modern(settings: &mut Settings) {
    settings.refuse_at_once = false;
    settings.tuning = Tuning {
        slab_reassign: false,
        slab_automove: 0,
        hash_algorithm: "jenkins".to_owned(),
        lru_crawler: false,
        lru_maintainer_thread: false,
        ..settings.tuning.clone()
    };
}

fn hashpower(settings: &mut Settings, value: Option<&str>) -> Result<(), StartError> {
    let power = text(value, "Missing numeric argument for hashpower")?;
    let power: u32 = power
        .parse()
        .map_err(|_| StartError::one("could not parse argument to hashpower"))?;
    settings.tuning.hashpower_init = power;
    let multiplier = format!("Initial hashtable multiplier of {power}");
    match power {
        12..=32 => Ok(()),
        ..12 => Err(StartError::one(format!("{multiplier} is too low"))),
        _ => Err(StartError::one(format!(
            "{multiplier} is too high\nChoose a value based on \"STAT hash_power_level\" from a \
             running instance"
        ))),
    }
}

fn hash_algorithm(settings: &mut Settings, value: Option<&str>) -> Result<(), StartError> {
    let name = text(value, "Missing hash_algorithm argument")?;
    if !["jenkins", "murmur3", "xxh3"].contains(&name) {
        let unknown = "Unknown hash_algorithm option (jenkins, murmur3, xxh3)";
        return Err(StartError::one(unknown));
    }
    settings.tuning.hash_algorithm = name.to_owned();
    Ok(())
}

fn slab_automove(settings: &mut Settings, value: Option<&str>) -> Result<(), StartError> {
    let level = value
        .unwrap_or("1")
        .parse()
        .ok()
        .filter(|level| *level <= 2);
    let outside = || StartError::one("slab_automove must be between 0 and 2");
    settings.tuning.slab_automove = level.ok_or_else(outside)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_list(list: &str) -> Result<(Settings, Notices), StartError> {
        let (mut settings, mut notices) = (Settings::default(), Notices::default());
        read(list, &mut settings, &mut notices).map(|()| (settings, notices))
    }

    #[test]
    fn suboptions_change_settings_or_give_a_notice() {
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
    fn invalid_suboptions_have_memcacheds_messages() {
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
            let error = read_list(list).map(|_| ()).unwrap_err();
            assert_eq!(
                (error.status, error.text.as_str()),
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
            let error = read_list(list).map(|_| ()).unwrap_err();
            assert_eq!(error.status, 1);
            assert!(error.text.contains(instead), "{}", error.text);
        }
    }
}
