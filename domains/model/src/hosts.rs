//! The file for `toroid up --config`: this host and the other hosts.
//!
//! ```toml
//! host = "a"
//! torus = "2x2x2"
//! nodes = ["0,*,*"]                  # those that it carries
//! listen = "10.0.0.1:7470"
//! key = "/etc/toroid/key"
//! directory = "a"                    # whose agent holds the directory
//! provider = "verbs"                 # between hosts; absent: tcp
//! encryption = "off"                 # of data between hosts; absent: on
//! admission = "manual"               # of new hosts, at the leader; absent: key
//! device = "mlx5_0"                  # with provider verbs; absent: the first, as the next three
//! port = 1
//! gid-index = 3
//! partition-key-index = 0
//!
//! [hosts]                            # all others
//! b = "10.0.0.2:7470"
//!
//! [alias]                            # of nodes that it carries
//! db = "0,1,1"
//! ```

pub mod etcd;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::de::DeTable;
use toroid_fabric::{NodeId, Place, Torus};

use crate::as_text;
use crate::limits::{MAX_ACK_TIMEOUT_MS, MAX_HOSTS, MAX_NODES};
use crate::names::{is_alias, is_host_name};
use crate::nodeset::{self, Names};
use crate::rdma::Rdma;
use crate::refusal::Refusal;
use crate::settings::{Key, Lines, Problem, Value};

const KEYS: [&str; 20] = [
    "host",
    "torus",
    "nodes",
    "listen",
    "key",
    "directory",
    "provider",
    "encryption",
    "admission",
    "device",
    "port",
    "gid-index",
    "partition-key-index",
    "hosts",
    "alias",
    "state",
    "data",
    "ack-timeout",
    "offload",
    "ethernet",
];

/// Configuration of one of several hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostConfig {
    /// Name of the host.
    pub host: String,
    /// The fabric of all hosts.
    #[serde(with = "as_text")]
    pub torus: Torus,
    /// The numbers of the nodes that it carries.
    pub nodes: BTreeSet<u32>,
    /// Further names of nodes that it carries, and their numbers.
    pub aliases: BTreeMap<String, u32>,
    /// Address at which its agent listens to other agents.
    pub listen: SocketAddr,
    /// The file with the key that all share, which admits new hosts.
    pub key: PathBuf,
    /// Name of the host whose agent holds the directory.
    pub directory: String,
    /// Provider between nodes of different hosts.
    pub provider: Provider,
    /// Whether data between hosts is encrypted.
    #[serde(default)]
    pub encryption: Encryption,
    /// What admits a new host, at the leader.
    #[serde(default)]
    pub admission: Admission,
    /// RDMA device, with provider verbs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
    /// The other hosts, and where their agents listen.
    pub hosts: BTreeMap<String, SocketAddr>,
}

/// Provider between nodes of different hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// Connections to the agent of the host where the memory is.
    #[default]
    Tcp,
    /// RDMA devices, beside such connections.
    Verbs,
}

/// Whether data between hosts is encrypted. Data that RDMA devices carry never is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encryption {
    /// Data is encrypted and authenticated. Hosts without encryption are refused.
    #[default]
    On,
    /// Data travels in the clear: attackers on the path read and forge it.
    Off,
}

/// What admits a new host to the directory, besides an administrator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// The pre-shared key.
    #[default]
    Key,
    /// Nothing.
    Manual,
}

/// A file.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigFile {
    /// The host.
    pub host: HostConfig,
    /// State directory, unless another is requested.
    pub state: Option<PathBuf>,
    /// Directory of the data, unless another is requested.
    pub data: Option<PathBuf>,
    /// As `ack_timeout_ms` of the agent.
    pub ack_timeout_ms: Option<u64>,
    /// As `offload` of the agent.
    pub offload: Option<bool>,
    /// Whether nodes have interfaces in domains.
    pub ethernet: bool,
}

impl HostConfig {
    /// Whether its agent holds the directory.
    pub fn holds_directory(&self) -> bool {
        self.directory == self.host
    }
}

/// Reason why data between hosts is not encrypted, if some is not.
pub fn unencrypted(provider: Provider, encryption: Encryption) -> Option<&'static str> {
    match (provider, encryption) {
        (Provider::Tcp, Encryption::On) => None,
        (Provider::Verbs, _) => Some("provider = \"verbs\": RDMA between hosts is not encrypted"),
        (_, Encryption::Off) => Some("encryption = \"off\": nothing between hosts is encrypted"),
    }
}

as_text::display_serde_name!(Provider);

impl FromStr for Provider {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        as_text::variant(text).ok_or("there are tcp and verbs")
    }
}

as_text::display_serde_name!(Encryption);

impl FromStr for Encryption {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        as_text::variant(text).ok_or("encryption is \"on\" or \"off\"")
    }
}

as_text::display_serde_name!(Admission);

impl FromStr for Admission {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        as_text::variant(text).ok_or("admission is \"key\" or \"manual\"")
    }
}

/// Reads a file. Paths in it are as they are written.
///
/// # Errors
/// All problems, in order of their lines.
pub fn parse(text: &str) -> Result<ConfigFile, Vec<Problem>> {
    let (mut lines, table) = Lines::read(text);
    let file = table.and_then(|table| File { lines: &mut lines }.read(table.get_ref()));
    // An unreadable file has a problem.
    lines.end(file)?.ok_or_else(Vec::new)
}

struct File<'a> {
    lines: &'a mut Lines,
}

impl File<'_> {
    fn read(&mut self, table: &DeTable<'_>) -> Option<ConfigFile> {
        self.lines.check_keys(table, "the file", &KEYS);
        let host = self.required(table, "host").and_then(|v| self.host(v));
        let torus = self.required(table, "torus");
        let torus = torus.and_then(|value| self.parsed::<Torus>(value));
        let nodes = self.required(table, "nodes");
        let nodes = torus.zip(nodes).map(|(torus, v)| self.nodes(v, torus));
        let listen = self.required(table, "listen");
        let listen = listen.and_then(|value| self.address(value));
        let key = self.required(table, "key").and_then(|v| self.path(v));
        let directory = self.required(table, "directory");
        let holder = directory.and_then(|value| self.host(value));
        let provider = table.get("provider").map(|value| self.parsed(value));
        let provider = provider.unwrap_or(Some(Provider::default()));
        let encryption = table.get("encryption").map(|value| self.parsed(value));
        let encryption = encryption.unwrap_or(Some(Encryption::default()));
        let admission = table.get("admission").map(|value| self.parsed(value));
        let admission = admission.unwrap_or(Some(Admission::default()));
        let rdma = self.rdma(table, provider);
        let hosts = self.hosts(table);
        if let Some(torus) = torus {
            self.check_torus(table, torus, hosts.len() + 1);
        }
        if let (Some(host), Some(holder), Some(value)) = (&host, &holder, directory)
            && host != holder
            && !hosts.contains_key(holder)
        {
            let message = format!("host {holder} is not among the hosts; add its address there");
            self.lines.problem(value.span().start, message);
        }
        let aliases = torus.zip(nodes.clone());
        let aliases = aliases.map(|(torus, nodes)| self.aliases(table, torus, &nodes));
        let ack_timeout = table.get("ack-timeout");
        let file = ConfigFile {
            state: table.get("state").and_then(|value| self.path(value)),
            data: table.get("data").and_then(|value| self.path(value)),
            ack_timeout_ms: ack_timeout
                .and_then(|value| self.lines.integer(value, 1..=MAX_ACK_TIMEOUT_MS)),
            offload: table.get("offload").and_then(|v| self.lines.boolean(v)),
            ethernet: table.get("ethernet").and_then(|v| self.lines.boolean(v)) != Some(false),
            host: HostConfig {
                host: host.clone()?,
                torus: torus?,
                nodes: nodes?,
                aliases: aliases?,
                listen: listen?,
                key: key?,
                directory: holder?,
                provider: provider?,
                encryption: encryption?,
                admission: admission?,
                rdma,
                hosts,
            },
        };
        if let Some((key, _)) = self.own_entry(table, &file.host.host) {
            let message = format!(
                "host {} is this one; only the others go here",
                file.host.host
            );
            self.lines.problem(key.span().start, message);
        }
        Some(file)
    }

    /// Reads the keys of the RDMA device, which are for provider verbs only.
    fn rdma(&mut self, table: &DeTable<'_>, provider: Option<Provider>) -> Option<Rdma> {
        let keys = ["device", "port", "gid-index", "partition-key-index"];
        let [device, port, gid_index, partition_key_index] = keys.map(|key| table.get(key));
        let mut number = |value: Option<&Value<'_>>, range| {
            value.and_then(|value| self.lines.integer(value, range))
        };
        let port = number(port, 1..=255).map(|port| port as u8);
        let gid_index = number(gid_index, 0..=255).map(|index| index as u8);
        let key_index = number(partition_key_index, 0..=65_535).map(|index| index as u16);
        let rdma = Rdma {
            device: device.and_then(|value| self.lines.string(value).map(str::to_owned)),
            port,
            gid_index,
            partition_key_index: key_index,
        };
        if provider == Some(Provider::Verbs) {
            return Some(rdma);
        }
        for (key, value) in keys.iter().filter_map(|key| Some((key, table.get(*key)?))) {
            let message = format!("\"{key}\" is for provider = \"verbs\"");
            self.lines.problem(value.span().start, message);
        }
        None
    }

    fn required<'t, 'i>(&mut self, table: &'t DeTable<'i>, key: &str) -> Option<&'t Value<'i>> {
        let value = table.get(key);
        if value.is_none() {
            self.lines.problem(0, format!("the file has no \"{key}\""));
        }
        value
    }

    fn own_entry<'t, 'i>(
        &mut self,
        table: &'t DeTable<'i>,
        host: &str,
    ) -> Option<(&'t Key<'i>, &'t Value<'i>)> {
        let mut entries = self.lines.entries(table, "hosts");
        entries.find(|(key, _)| key.get_ref() == host)
    }

    fn hosts(&mut self, table: &DeTable<'_>) -> BTreeMap<String, SocketAddr> {
        let mut hosts = BTreeMap::new();
        for (key, value) in self.lines.entries(table, "hosts") {
            let name = self.host_name(key.span().start, key.get_ref());
            if let (Some(name), Some(address)) = (name, self.address(value)) {
                hosts.insert(name, address);
            }
            if hosts.len() >= MAX_HOSTS {
                let message = format!(
                    "there are more than {MAX_HOSTS} hosts with this one; let fewer hosts carry \
                     more nodes each, at most {MAX_NODES}"
                );
                self.lines.problem(key.span().start, message);
                break;
            }
        }
        hosts
    }

    fn aliases(
        &mut self,
        table: &DeTable<'_>,
        torus: Torus,
        nodes: &BTreeSet<u32>,
    ) -> BTreeMap<String, u32> {
        let mut aliases = BTreeMap::new();
        for (key, value) in self.lines.entries(table, "alias") {
            let (at, alias) = (key.span().start, key.get_ref());
            if !is_alias(alias) {
                let bad = format!("\"{alias}\" cannot be an alias, which is also a host name");
                self.lines.problem(at, bad);
            }
            let Some(place) = self.parsed::<Place>(value) else {
                continue;
            };
            match torus.node(place).filter(|node| nodes.contains(&node.0)) {
                Some(node) => {
                    aliases.insert(alias.to_string(), node.0);
                }
                None => {
                    let message = format!("{place} is not among the nodes that this host carries");
                    self.lines.problem(value.span().start, message);
                }
            }
        }
        aliases
    }

    fn nodes(&mut self, value: &Value<'_>, torus: Torus) -> BTreeSet<u32> {
        let Some(sets) = value.get_ref().as_array() else {
            let wanted = "a list of node sets, such as [\"0,0,0\", \"*,*,1\"]";
            self.lines.mistyped(value, wanted);
            return BTreeSet::new();
        };
        let mut nodes = BTreeSet::new();
        for set in sets.iter() {
            let Some(text) = self.lines.string(set) else {
                continue;
            };
            match nodeset::resolve(&[text.into()], torus, &Nobody) {
                Ok(found) => nodes.extend(found.iter().map(|node| node.0)),
                Err(error) => self.lines.problem(set.span().start, Refusal::from(error)),
            }
        }
        if nodes.len() > MAX_NODES as usize {
            let message = format!(
                "{} nodes are too many for one host: it carries at most {MAX_NODES}; let other \
                 hosts carry the rest",
                nodes.len()
            );
            self.lines.problem(value.span().start, message);
        }
        nodes
    }

    /// Checks that the hosts can carry all nodes of the torus.
    fn check_torus(&mut self, table: &DeTable<'_>, torus: Torus, hosts: usize) {
        let least = torus.nodes().div_ceil(MAX_NODES);
        if (hosts as u64) < u64::from(least)
            && let Some(value) = table.get("torus")
        {
            let message = format!(
                "{} nodes are too many for {hosts} hosts, which carry at most {MAX_NODES} each; \
                 name at least {least} hosts, or choose a smaller torus",
                torus.nodes()
            );
            self.lines.problem(value.span().start, message);
        }
    }

    fn host(&mut self, value: &Value<'_>) -> Option<String> {
        let name = self.lines.string(value)?;
        self.host_name(value.span().start, name)
    }

    fn host_name(&mut self, at: usize, name: &str) -> Option<String> {
        let is_name = is_host_name(name);
        if !is_name {
            let message = format!("\"{name}\" names no host: use a-z, 0-9 and - within");
            self.lines.problem(at, message);
        }
        is_name.then(|| name.to_owned())
    }

    fn address(&mut self, value: &Value<'_>) -> Option<SocketAddr> {
        let text = self.lines.string(value)?;
        let address = text.parse().ok();
        if address.is_none() {
            let message =
                format!("\"{text}\" is no address; write 10.0.0.1:7470 or [fd00::1]:7470");
            self.lines.problem(value.span().start, message);
        }
        address
    }

    fn path(&mut self, value: &Value<'_>) -> Option<PathBuf> {
        self.lines.string(value).map(PathBuf::from)
    }

    fn parsed<T: FromStr<Err: fmt::Display>>(&mut self, value: &Value<'_>) -> Option<T> {
        match self.lines.string(value)?.parse() {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                self.lines.problem(value.span().start, error);
                None
            }
        }
    }
}

/// No names: there is no directory yet.
struct Nobody;

impl Names for Nobody {
    fn alias(&self, _: &str) -> Option<NodeId> {
        None
    }

    fn members(&self, _: &str) -> Option<BTreeSet<NodeId>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = r#"host = "a"
torus = "2x2x2"
nodes = ["0,*,*"]
listen = "10.0.0.1:7470"
key = "key"
directory = "b"
ack-timeout = 500
offload = false
state = "/run/a"

[hosts]
b = "[fd00::2]:7470"

[alias]
db = "0,1,1"
"#;

    #[test]
    fn a_file_describes_a_host() {
        let file = parse(SOUND).unwrap();
        let host = &file.host;
        assert_eq!((host.host.as_str(), host.holds_directory()), ("a", false));
        assert_eq!(host.nodes.len(), 4);
        assert_eq!(host.provider, Provider::Tcp);
        assert_eq!(host.encryption, Encryption::On);
        assert_eq!(host.admission, Admission::Key);
        assert_eq!(host.hosts["b"].port(), 7470);
        let db = host.torus.node("0,1,1".parse().unwrap()).unwrap();
        assert_eq!(host.aliases["db"], db.0);
        assert_eq!(
            (file.ack_timeout_ms, file.offload),
            (Some(500), Some(false))
        );
        assert_eq!((file.state, file.data), (Some("/run/a".into()), None));
        assert!(file.ethernet);
    }

    #[test]
    fn an_rdma_device_can_be_chosen() {
        let with = |lines: &str| {
            let text = SOUND.replace("state = \"/run/a\"", lines);
            let host = parse(&text).unwrap().host;
            (host.provider, host.rdma)
        };
        assert_eq!(with(""), (Provider::Tcp, None));
        let verbs = "provider = \"verbs\"\n";
        assert_eq!(with(verbs), (Provider::Verbs, Some(Rdma::default())));
        let all = "device = \"rxe0\"\nport = 2\ngid-index = 3\npartition-key-index = 4";
        let chosen = Rdma {
            device: Some("rxe0".into()),
            port: Some(2),
            gid_index: Some(3),
            partition_key_index: Some(4),
        };
        let (_, rdma) = with(&format!("{verbs}{all}"));
        assert_eq!(rdma, Some(chosen));
    }

    #[test]
    fn only_the_word_off_switches_encryption_off() {
        let with = |value: &str| {
            let text = SOUND.replace("state = \"/run/a\"", &format!("encryption = {value}"));
            parse(&text).map(|file| file.host.encryption)
        };
        assert_eq!(with("\"on\""), Ok(Encryption::On));
        assert_eq!(with("\"off\""), Ok(Encryption::Off));
        for other in ["false", "\"\"", "\"no\"", "\"OFF\""] {
            assert!(with(other).is_err(), "{other}");
        }
    }

    /// A file with so many other hosts.
    fn with_hosts(count: usize, torus: &str, nodes: &str) -> String {
        let hosts = (1..count).map(|n| format!("h{n} = \"10.1.{}.{}:7470\"\n", n / 256, n % 256));
        let hosts: String = hosts.collect();
        SOUND
            .replace("2x2x2", torus)
            .replace("0,*,*", nodes)
            .replace("0,1,1", "0,0,0")
            .replace("[hosts]\n", &format!("[hosts]\n{hosts}"))
    }

    /// Of 65,534 nodes.
    const LARGEST: &str = "151x31x14";

    #[test]
    fn the_largest_fabric_has_4096_hosts() {
        let largest = with_hosts(MAX_HOSTS - 1, LARGEST, "0,0,*");
        let host = parse(&largest).unwrap().host;
        assert_eq!((host.hosts.len(), host.nodes.len()), (MAX_HOSTS - 1, 14));
        assert_eq!(u64::from(host.torus.nodes()), Torus::MAX_NODES);
        let problems = parse(&with_hosts(MAX_HOSTS, LARGEST, "0,0,*")).unwrap_err();
        let [problem] = &problems[..] else {
            panic!("{problems:?}")
        };
        assert!(
            problem.message.contains("more than 4096 hosts"),
            "{problem}"
        );
        assert!(problem.message.contains("let fewer hosts"), "{problem}");
    }

    /// The bounds are those of a host and of all hosts, each with its remedy.
    #[test]
    fn a_host_carries_1024_nodes_and_no_more() {
        let most = parse(&with_hosts(2, "64x17x1", "*,0-15,0")).unwrap();
        assert_eq!(most.host.nodes.len(), 1024);
        let one = |count, torus, nodes, line, words: &[&str]| {
            let problems = parse(&with_hosts(count, torus, nodes)).unwrap_err();
            let [problem] = &problems[..] else {
                panic!("{problems:?}")
            };
            assert_eq!(problem.line, line, "{problem}");
            for words in words {
                assert!(problem.message.contains(words), "{problem}");
            }
        };
        let too_many = ["1025 nodes are too many for one host", "let other hosts"];
        one(2, "41x25x2", "*,*,0", 3, &too_many);
        parse(&with_hosts(1, "64x32x1", "0,0,0")).unwrap();
        let too_few = ["2112 nodes are too many for 2 hosts", "at least 3 hosts"];
        one(1, "64x33x1", "0,0,0", 2, &too_few);
        parse(&with_hosts(63, LARGEST, "0,0,0")).unwrap();
        one(62, LARGEST, "0,0,0", 2, &["for 63 hosts", "at least 64"]);
        let beyond = ["65536 nodes is too large", "at most 65534"];
        one(4000, "256x256x1", "0,0,0", 2, &beyond);
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        let bad = [
            ("host = \"a\"", "host = \"A\"", 1, "names no host"),
            ("host = \"a\"", "hots = \"a\"", 1, "did you mean \"host\"?"),
            ("2x2x2", "2x2", 2, ""),
            ("0,*,*", "2,*,*", 3, "outside the torus"),
            ("[\"0,*,*\"]", "\"0,*,*\"", 3, "a list of node sets"),
            ("10.0.0.1:7470", "10.0.0.1", 4, "is no address"),
            ("\"key\"", "7", 5, "a text in quotes"),
            (
                "directory = \"b\"",
                "directory = \"c\"",
                6,
                "not among the hosts",
            ),
            ("500", "0", 7, "0 is not from 1"),
            ("offload = false", "offload = 0", 8, "true or false"),
            ("state = ", "provider = ", 9, "there are tcp and verbs"),
            ("state = ", "encryption = ", 9, "\"on\" or \"off\""),
            ("state = ", "admission = ", 9, "\"key\" or \"manual\""),
            (
                "state = \"/run/a\"",
                "device = \"mlx5_0\"",
                9,
                "is for provider = \"verbs\"",
            ),
            ("offload = false", "port = 0", 8, "0 is not from 1"),
            (
                "b = \"[fd00::2]:7470\"",
                "a = \"[fd00::2]:7470\"",
                12,
                "this one",
            ),
            ("\"0,1,1\"", "\"1,1,1\"", 15, "not among the nodes"),
            ("db = ", "Db = ", 15, "cannot be an alias"),
            ("[alias]", "[alias", 14, ""),
        ];
        for (from, to, line, words) in bad {
            let problems = parse(&SOUND.replacen(from, to, 1)).unwrap_err();
            let found = problems
                .iter()
                .any(|p| p.line == line && p.message.contains(words));
            assert!(found, "{to}: {problems:?}");
        }
        for line in SOUND.lines().take(6) {
            let problems = parse(&SOUND.replace(line, "")).unwrap_err();
            let (key, _) = line.split_once(' ').unwrap();
            let missing = format!("no \"{key}\"");
            assert!(
                problems.iter().any(|p| p.message.contains(&missing)),
                "{problems:?}"
            );
        }
    }
}
