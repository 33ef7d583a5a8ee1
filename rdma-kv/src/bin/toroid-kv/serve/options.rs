//! Memcached's command line, as of version 1.6.18.
//!
//! Options without effect on results, durability, capacity or security are accepted with a notice.
//! Options that have one and are not implemented are refused, with an alternative.

use std::path::PathBuf;

use clap::Args;
use toroid_kv::server::Limits;
use toroid_kv::server::{Listen, Rdma, Settings, UnixSocket};

use super::{StartError, extended};

/// Alternative to memcached's TLS.
pub const NO_TLS: &str = "there is no TLS here: serve inside a domain, or on 127.0.0.1 behind a \
                          TLS proxy such as stunnel";

const PROTOCOL: &str = "Protocol";
const PROCESS: &str = "Process";
const IGNORED: &str = "Accepted without effect";
const REFUSED: &str = "Refused, with an alternative";
const DOMAIN: &str = "Not memcached's";

/// Options of the server.
#[derive(Args, Default)]
#[command(next_help_heading = "Memcached's options", after_help = EXTENDED)]
pub struct Serve {
    /// TCP port to listen on; 0 disables TCP, -1 takes any free port.
    #[arg(
        short,
        long,
        value_name = "NUM",
        default_value_t = 11211,
        allow_negative_numbers = true
    )]
    port: i64,
    /// Address to listen on: HOST, HOST:PORT, [IPV6]:PORT or *; separate several with commas.
    /// Default: all addresses.
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Unix socket to listen on, instead of TCP.
    #[arg(short = 's', long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Permissions of the unix socket, in octal.
    #[arg(short = 'a', long, value_name = "MASK", default_value = "700", value_parser = parse_mode)]
    unix_mask: u32,
    /// Memory for items in MiB.
    #[arg(short, long, value_name = "MB", default_value_t = 64)]
    memory_limit: u64,
    /// Maximum item size in bytes, or with suffix k, m or g; from 1k to half the memory.
    #[arg(short = 'I', long, value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    max_item_size: u64,
    /// Return an error when memory is full, instead of evicting items.
    #[arg(short = 'M', long)]
    disable_evictions: bool,
    /// Maximum number of connections.
    #[arg(
        short,
        long,
        value_name = "NUM",
        default_value_t = 1024,
        allow_negative_numbers = true
    )]
    conn_limit: i64,
    /// Number of worker threads.
    #[arg(
        short,
        long,
        value_name = "NUM",
        default_value_t = 4,
        allow_negative_numbers = true
    )]
    threads: i64,
    /// Length of the listen backlog.
    #[arg(short = 'b', long, value_name = "NUM", default_value_t = 1024)]
    listen_backlog: u16,
    /// Comma-separated suboptions; see below.
    #[arg(short = 'o', long, value_name = "LIST")]
    extended: Vec<String>,

    /// Require authentication as a user in FILE (lines user:password; SIGHUP reloads it).
    #[arg(short = 'Y', long, value_name = "FILE", help_heading = PROTOCOL)]
    pub auth_file: Option<PathBuf>,
    /// Enable the "shutdown" command.
    #[arg(short = 'A', long, help_heading = PROTOCOL)]
    enable_shutdown: bool,
    /// Disable the "flush_all" command.
    #[arg(short = 'F', long, help_heading = PROTOCOL)]
    disable_flush_all: bool,
    /// Disable "stats cachedump" and "lru_crawler metadump".
    #[arg(short = 'X', long, help_heading = PROTOCOL)]
    disable_dumping: bool,
    /// Disable the "watch" command.
    #[arg(short = 'W', long, help_heading = PROTOCOL)]
    disable_watch: bool,
    /// Collect "stats detail" from the start, by key prefixes up to this delimiter (default: ":").
    #[arg(short = 'D', value_name = "CHAR", help_heading = PROTOCOL)]
    delimiter: Option<String>,
    /// Disable CAS.
    #[arg(short = 'C', long, help_heading = PROTOCOL)]
    disable_cas: bool,
    /// Maximum requests per connection and turn; by default all that one read brings.
    #[arg(short = 'R', long, value_name = "NUM", allow_negative_numbers = true, help_heading = PROTOCOL)]
    max_reqs_per_event: Option<i64>,
    /// Protocol: auto or ascii.
    #[arg(short = 'B', long, value_name = "NAME", default_value = "auto", help_heading = PROTOCOL)]
    protocol: String,

    /// Run in the background.
    #[arg(short, long, help_heading = PROCESS)]
    pub daemon: bool,
    /// Write the process id to FILE while serving.
    #[arg(short = 'P', long, value_name = "FILE", help_heading = PROCESS)]
    pub pidfile: Option<PathBuf>,
    /// Change to this user when started as root.
    #[arg(short, long, value_name = "NAME", help_heading = PROCESS)]
    pub user: Option<String>,
    /// Remove the limit on core files.
    #[arg(short = 'r', long, help_heading = PROCESS)]
    pub enable_coredumps: bool,
    /// Lock all memory.
    #[arg(short = 'k', long, help_heading = PROCESS)]
    pub lock_memory: bool,
    /// Print the licence.
    #[arg(short = 'i', long, help_heading = PROCESS)]
    pub license: bool,
    /// Print the version.
    #[arg(short = 'V', long, help_heading = PROCESS)]
    pub version: bool,

    /// Domain to serve by RDMA; the node's only one by default.
    #[arg(long, value_name = "NAME", help_heading = DOMAIN)]
    domain: Option<String>,
    /// Disable RDMA.
    #[arg(long, conflicts_with = "domain", help_heading = DOMAIN)]
    no_rdma: bool,

    /// Slab growth factor.
    #[arg(short = 'f', long, value_name = "NUM", help_heading = IGNORED)]
    slab_growth_factor: Option<f64>,
    /// Minimum slab size.
    #[arg(short = 'n', long, value_name = "BYTES", help_heading = IGNORED)]
    slab_min_size: Option<u32>,
    /// Use large pages.
    #[arg(short = 'L', long, help_heading = IGNORED)]
    enable_largepages: bool,
    /// Number of NAPI ids.
    #[arg(short = 'N', long, value_name = "NUM", allow_negative_numbers = true, help_heading = IGNORED)]
    napi_ids: Option<i64>,

    /// UDP port; only 0 (disabled) is accepted.
    #[arg(short = 'U', long, value_name = "NUM", allow_negative_numbers = true, help_heading = REFUSED)]
    udp_port: Option<i64>,
    /// Enable SASL.
    #[arg(short = 'S', long, help_heading = REFUSED)]
    enable_sasl: bool,
    /// Enable TLS.
    #[arg(short = 'Z', long, help_heading = REFUSED)]
    enable_ssl: bool,
    /// Memory file for warm restarts.
    #[arg(short = 'e', long, value_name = "FILE", help_heading = REFUSED)]
    memory_file: Option<PathBuf>,
}

const EXTENDED: &str = "\
Suboptions of -o:
  idle_timeout=SECONDS     close idle connections (default: never)
  no_maxconns_fast         queue connections over the limit (default: refuse them)
  track_sizes              enable stats sizes from the start
  watcher_logbuf_size=KIB  buffer of each watcher (default: 256)
  Memcached's others are accepted without effect (slabs, LRU, hash table), or refused
  (ext_*, ssl_*, proxy_*, drop_privileges, sock_cookie_id).

Once clients can connect, it prints one line to standard output:
  ready tcp ADDRESS:PORT... unix FILE rdma DOMAIN PLACE

Signals: SIGTERM, SIGINT and SIGUSR1 stop the server; SIGHUP reloads the file of -Y.
Where memcached refuses to run as root without -u, this server runs.";

/// Notices about options without effect, once each.
#[derive(Debug, Default)]
pub struct Notices(Vec<String>);

impl Notices {
    /// Adds the notice that `option` has no effect, for `reason`.
    pub fn without_effect(&mut self, option: &str, reason: &str) {
        let notice = format!("{option} has no effect: {reason}");
        if !self.0.contains(&notice) {
            self.0.push(notice);
        }
    }
}

impl IntoIterator for Notices {
    type Item = String;
    type IntoIter = std::vec::IntoIter<String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Serve {
    /// Settings of these options, and notices.
    pub fn read(&self, verbosity: u8) -> Result<(Settings, Notices), StartError> {
        let mut settings = Settings {
            verbosity,
            ..Settings::default()
        };
        let mut notices = Notices::default();
        self.refuse()?;
        self.read_tuning(&mut settings, &mut notices)?;
        for list in &self.extended {
            extended::read(list, &mut settings, &mut notices)?;
        }
        settings.threads = self.thread_count()?;
        if self.napi_ids.is_some_and(|ids| ids > self.threads) {
            return Err(StartError::usage(format!(
                "Number of napi_ids({}) cannot be greater than number of threads({})",
                self.napi_ids.unwrap_or_default(),
                self.threads
            )));
        }
        settings.connections = above_zero(self.conn_limit)
            .ok_or_else(|| StartError::one("Maximum connections must be greater than 0"))?;
        settings.limits = self.limits()?;
        settings.may_grow = !self.lock_memory;
        settings.backlog = self.listen_backlog.into();
        self.read_places(&mut settings)?;
        settings.rdma = match (&self.domain, self.no_rdma) {
            (_, true) => Rdma::Off,
            (Some(name), _) => Rdma::Domain(name.clone()),
            (None, _) => Rdma::Auto,
        };
        let commands = &mut settings.commands;
        commands.shutdown = self.enable_shutdown;
        commands.flush_all = !self.disable_flush_all;
        commands.dump = !self.disable_dumping;
        commands.watch = !self.disable_watch;
        commands.evictions = !self.disable_evictions;
        Ok((settings, notices))
    }

    /// Refuses options that matter and are not implemented.
    fn refuse(&self) -> Result<(), StartError> {
        match self.protocol.as_str() {
            "auto" | "ascii" => {}
            "binary" => {
                return Err(StartError::one(
                    "-B binary is not supported: most clients speak the ascii protocol, too",
                ));
            }
            other => {
                return Err(StartError::usage(format!(
                    "Invalid value for binding protocol: {other}\n \
                     -- should be one of auto, binary, or ascii"
                )));
            }
        }
        let refused = [
            (
                self.udp_port.is_some_and(|port| port != 0),
                "-U: there is no UDP here: use TCP, or a unix socket with -s",
            ),
            (
                self.enable_sasl,
                "-S is not supported: use -Y FILE, with names and passwords for the ascii protocol",
            ),
            (
                self.memory_file.is_some(),
                "-e is not supported: items do not outlive the server; let clients fill it again",
            ),
        ];
        if self.enable_ssl {
            return Err(StartError::one(format!("-Z is not supported: {NO_TLS}")));
        }
        match refused.iter().find(|(given, _)| *given) {
            Some((_, text)) => Err(StartError::one(*text)),
            None => Ok(()),
        }
    }

    fn read_tuning(
        &self,
        settings: &mut Settings,
        notices: &mut Notices,
    ) -> Result<(), StartError> {
        if let Some(count) = self.max_reqs_per_event {
            let low = || StartError::one("Number of requests per event must be greater than 0");
            settings.commands.per_turn = Some(above_zero(count).ok_or_else(low)?);
        }
        settings.commands.cas = !self.disable_cas;
        if let Some(delimiter) = &self.delimiter {
            let first = delimiter.bytes().next();
            let first = first.ok_or_else(|| StartError::one("No delimiter specified"))?;
            settings.commands.prefix_delimiter = first;
            settings.commands.detail = true;
        }
        if let Some(factor) = self.slab_growth_factor {
            if factor.is_nan() || factor <= 1.0 {
                return Err(StartError::one("Factor must be greater than 1"));
            }
            settings.tuning.growth_factor = factor;
            notices.without_effect("-f", "this store has no slabs");
        }
        if let Some(size) = self.slab_min_size {
            if size == 0 {
                return Err(StartError::one("Chunk size must be greater than 0"));
            }
            settings.tuning.chunk_size = size;
            notices.without_effect("-n", "this store has no slabs");
        }
        if self.enable_largepages {
            notices.without_effect("-L", "clients map the memory, too, page by page");
        }
        if let Some(ids) = self.napi_ids {
            let low = || StartError::one("Maximum number of NAPI IDs must be greater than 0");
            above_zero::<u32>(ids).ok_or_else(low)?;
            notices.without_effect("-N", "connections are dealt to threads in turn");
        }
        Ok(())
    }

    fn thread_count(&self) -> Result<usize, StartError> {
        let low = || StartError::one("Number of threads must be greater than 0");
        let threads = above_zero(self.threads).ok_or_else(low)?;
        if threads > 64 {
            eprintln!(
                "WARNING: Setting a high number of worker threads is not recommended.\n \
                 Set this value to the number of cores in your machine or less."
            );
        }
        Ok(threads)
    }

    fn limits(&self) -> Result<Limits, StartError> {
        let memory = self.memory_limit.saturating_mul(1 << 20);
        let item = self.max_item_size;
        let text = match item {
            0..1024 => "Item max size cannot be less than 1024 bytes.",
            _ if item > memory / 2 => "Cannot set item size limit higher than 1/2 of memory max.",
            _ => {
                if let Ok(item) = u32::try_from(item)
                    && item <= 1 << 30
                {
                    return Ok(Limits { memory, item });
                }
                "Cannot set item size limit higher than a gigabyte."
            }
        };
        Err(StartError::usage(text))
    }

    fn read_places(&self, settings: &mut Settings) -> Result<(), StartError> {
        settings.port = match self.port {
            0 => None,
            -1 => Some(0),
            port => {
                let wrong = |_| StartError::usage(format!("ERROR: Invalid port number {port}."));
                Some(u16::try_from(port).map_err(wrong)?)
            }
        };
        let places = self.listen.iter().flat_map(|list| list.split([',', ';']));
        for place in places.filter(|place| !place.is_empty()) {
            let place: Listen = place
                .parse()
                .map_err(|error| StartError::system(format!("{error}")))?;
            if !settings.listen.contains(&place) {
                settings.listen.push(place);
            }
        }
        if let Some(path) = &self.unix_socket {
            settings.port = None;
            settings.unix = Some(UnixSocket {
                path: path.clone(),
                mode: self.unix_mask,
            });
        }
        Ok(())
    }
}

fn above_zero<T: TryFrom<i64>>(number: i64) -> Option<T> {
    T::try_from(number).ok().filter(|_| number > 0)
}

pub fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("write an octal number up to 777".to_owned()),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return Err("write a number, with k, m or g after it if you like".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too large".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use std::time::Duration;

    use super::*;
    use crate::Alone;

    /// As `memcached WORDS` reads them.
    fn read(words: &str) -> Result<(Settings, Vec<String>), StartError> {
        let words = std::iter::once("memcached").chain(words.split_whitespace());
        let alone = Alone::try_parse_from(words).unwrap();
        let read = alone.serve.read(alone.verbose);
        read.map(|(settings, notices)| (settings, notices.into_iter().collect()))
    }

    #[test]
    fn defaults_are_memcacheds() {
        let (settings, notices) = read("").unwrap();
        assert_eq!(
            format!("{settings:?}"),
            format!("{:?}", Settings::default())
        );
        assert_eq!(notices, Vec::<String>::new());
    }

    #[test]
    fn short_and_long_options_mean_the_same() {
        let short = "-p 1 -l 127.0.0.1:2 -l a,[::1]:3 -m 100 -I 2m -c 9 -t 2 -b 7 -A -F -M -X -W -vv \
                     -o idle_timeout=3 -f 1.5 -n 32 -R 5 -C -D: -L -N 1 -U 0 -B ascii -d -P pid \
                     -u me -r -k -Y users";
        let long = "--port=1 --listen=127.0.0.1:2,a --listen [::1]:3 --memory-limit 100 \
                    --max-item-size 2048k --conn-limit=9 --threads=2 --listen-backlog 7 \
                    --enable-shutdown --disable-flush-all --disable-dumping --disable-watch --disable-evictions \
                    --verbose -v --extended idle_timeout=3 --slab-growth-factor=1.5 \
                    --slab-min-size=32 --max-reqs-per-event=5 --disable-cas -D : \
                    --enable-largepages --napi-ids=1 --udp-port=0 --protocol=ascii --daemon \
                    --pidfile=pid --user=me --enable-coredumps --lock-memory --auth-file=users";
        let [short, long] = [short, long].map(|words| read(words).unwrap());
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        let (settings, notices) = short;
        assert_eq!(settings.port, Some(1));
        let places: Vec<_> = settings.listen.iter().map(Listen::to_string).collect();
        assert_eq!(places, ["127.0.0.1:2", "a", "[::1]:3"]);
        let expected = Limits {
            memory: 100 << 20,
            item: 2 << 20,
        };
        assert_eq!(settings.limits, expected);
        assert_eq!(
            (settings.connections, settings.threads, settings.backlog),
            (9, 2, 7)
        );
        assert_eq!(settings.idle_timeout, Some(Duration::from_secs(3)));
        assert_eq!(settings.verbosity, 2);
        let commands = &settings.commands;
        assert!(commands.shutdown && !commands.flush_all && !commands.dump && !commands.watch);
        assert!(!commands.evictions);
        assert_eq!(
            (commands.per_turn, commands.cas, commands.detail),
            (Some(5), false, true)
        );
        assert_eq!(notices.len(), 4, "{notices:?}");
    }

    #[test]
    fn the_last_option_counts_and_long_names_may_be_abbreviated() {
        let (settings, _) = read("-p 1 -p -1 -m 10 --memory-l 20 --thr=7").unwrap();
        assert_eq!((settings.port, settings.threads), (Some(0), 7));
        assert_eq!(settings.limits.memory, 20 << 20);
        assert_eq!(read("-p 0").unwrap().0.port, None);
    }

    #[test]
    fn a_unix_socket_replaces_tcp() {
        let (settings, _) = read("-s /tmp/socket -a 0666 -p 5").unwrap();
        assert_eq!(settings.port, None);
        let unix = UnixSocket {
            path: "/tmp/socket".into(),
            mode: 0o666,
        };
        assert_eq!(settings.unix, Some(unix));
    }

    #[test]
    fn invalid_options_have_memcacheds_messages_and_statuses() {
        let cases = [
            ("-c 0", 1, "Maximum connections must be greater than 0"),
            ("-c -5", 1, "Maximum connections must be greater than 0"),
            ("-t 0", 1, "Number of threads must be greater than 0"),
            (
                "-R 0",
                1,
                "Number of requests per event must be greater than 0",
            ),
            ("-f 1", 1, "Factor must be greater than 1"),
            ("-n 0", 1, "Chunk size must be greater than 0"),
            (
                "-N 0",
                1,
                "Maximum number of NAPI IDs must be greater than 0",
            ),
            (
                "-N 5",
                64,
                "Number of napi_ids(5) cannot be greater than number of threads(4)",
            ),
            ("-p 70000", 64, "ERROR: Invalid port number 70000."),
            ("-p -2", 64, "ERROR: Invalid port number -2."),
            (
                "-I 1023",
                64,
                "Item max size cannot be less than 1024 bytes.",
            ),
            (
                "-I 33m",
                64,
                "Cannot set item size limit higher than 1/2 of memory max.",
            ),
            (
                "-m 0",
                64,
                "Cannot set item size limit higher than 1/2 of memory max.",
            ),
            (
                "-m 9999 -I 1025m",
                64,
                "Cannot set item size limit higher than a gigabyte.",
            ),
            ("-l [::1", 71, "Invalid IPV6 address: \"[::1\""),
            ("-l a:b", 71, "Invalid port number: \"b\""),
            (
                "-l notls:a:1",
                71,
                "'notls' option is valid only when SSL is enabled",
            ),
            (
                "-B x",
                64,
                "Invalid value for binding protocol: x\n -- should be one of auto, binary, or ascii",
            ),
        ];
        for (words, status, text) in cases {
            let error = read(words).map(|_| ()).unwrap_err();
            assert_eq!(
                (error.status, error.text.as_str()),
                (status, text),
                "{words}"
            );
        }
    }

    #[test]
    fn unsupported_options_are_refused_with_an_alternative() {
        let cases = [
            ("-U 11211", "TCP"),
            ("-S", "-Y"),
            ("-Z", "stunnel"),
            ("-B binary", "ascii"),
            ("-e /dev/shm/items", "clients"),
            ("-o ext_path=/x:1G", "-m"),
        ];
        for (words, instead) in cases {
            let error = read(words).map(|_| ()).unwrap_err();
            assert_eq!(error.status, 1, "{words}");
            assert!(error.text.contains(instead), "{}", error.text);
        }
    }
}
