//! The file for `toroid up --config`: this host and the other hosts.
//!
//! ```toml
//! host = "a"
//! torus = "2x2x2"
//! nodes = ["0,*,*"]                  # those that it carries
//! listen = "10.0.0.1:7470"
//! address = "203.0.113.1:7470"       # where the others reach it; absent: as `listen`
//! key = "/etc/toroid/key"
//! directory = "a"                    # whose agent holds the directory, or "etcd"
//! candidates = ["a", "b"]            # on etcd: hosts that may lead
//! provider = "verbs"                 # between hosts; absent: tcp
//! encryption = "off"                 # of data between hosts; absent: on
//! admission = "manual"               # of new hosts, at the leader; absent: key
//! commands = "off"                   # of other hosts in nodes of this one; absent: on
//! device = "mlx5_0"                  # with provider verbs; absent: the first, as the next three
//! port = 1
//! gid-index = 3
//! partition-key-index = 0
//!
//! [hosts]                            # those that may lead; others where the directory is wrong
//! b = "10.0.0.2:7470"
//!
//! [alias]                            # of nodes that it carries
//! db = "0,1,1"
//!
//! [etcd]                             # on candidates
//! endpoints = ["https://10.0.0.1:2379", "https://10.0.0.2:2379"]
//! prefix = "/toroid/main"            # of all keys; absent: /toroid
//! ca = "/etc/toroid/ca.pem"          # with https, as the next two
//! cert = "/etc/toroid/a.pem"         # absent: without, as etcd allows
//! key = "/etc/toroid/a.key"
//! ```
//!
//! With a directory on etcd the candidates elect the leader. `[etcd]` is refused on other hosts:
//! they do not talk to etcd, and need no access to it. With a host's name as `directory`, candidates
//! and `[etcd]` are checked and have no effect.

pub mod etcd;
mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;

use crate::as_text;
use crate::directory::moved::Moved;
use crate::host_address::{canonical, check_address};
use crate::rdma::Rdma;
use crate::settings::{Lines, Problem};
use etcd::EtcdConfig;

pub use crate::directory::moved::ETCD;

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
    /// Address at which other agents reach it, unless that is `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// The file with the key that all share, which admits new hosts.
    pub key: PathBuf,
    /// Name of the host whose agent holds the directory, or [`ETCD`].
    pub directory: String,
    /// Hosts that may lead with a directory on etcd; perhaps this one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub candidates: BTreeSet<String>,
    /// Access to etcd. Each candidate has it with a directory there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdConfig>,
    /// Provider between nodes of different hosts.
    pub provider: Provider,
    /// Whether data between hosts is encrypted.
    #[serde(default)]
    pub encryption: Encryption,
    /// What admits a new host, at the leader.
    #[serde(default)]
    pub admission: Admission,
    /// Whether users of other hosts run commands in nodes of this one.
    #[serde(default)]
    pub commands: Commands,
    /// RDMA device, with provider verbs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
    /// Addresses of other hosts: those that may lead, of which a host without a copy of the directory
    /// has no others, and those whose address in the directory is of no use here.
    pub hosts: BTreeMap<String, SocketAddr>,
    /// Place to which the directory has moved and where it is lost, so that this host obeys its file.
    /// Not in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
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

/// Whether users of other hosts run commands in nodes of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Commands {
    /// A host is believed whose users its callers are.
    #[default]
    On,
    /// They do not.
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
    /// Address that it tells the other hosts, if they can reach one.
    pub fn told_address(&self) -> Option<SocketAddr> {
        let address = canonical(self.address.unwrap_or(self.listen));
        check_address(address).is_ok().then_some(address)
    }

    /// Whether its agent holds the directory, which is not on etcd.
    pub fn holds_directory(&self) -> bool {
        self.directory == self.host
    }

    /// Access to etcd, if the directory is there and this host may lead.
    pub fn candidacy(&self) -> Option<&EtcdConfig> {
        let etcd = self.etcd.as_ref();
        etcd.filter(|_| self.directory == ETCD && self.candidates.contains(&self.host))
    }

    /// Whether a host may lead.
    pub fn may_lead(&self, host: &str) -> bool {
        self.possible_leaders().contains(&host)
    }

    /// Hosts that may lead: the candidates, or the one that `directory` names.
    pub fn possible_leaders(&self) -> Vec<&str> {
        self.whereabouts(None).possible_leaders()
    }
}

/// Where the directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts<'a> {
    /// The host whose agent holds the directory, or [`ETCD`].
    pub directory: &'a str,
    /// Hosts that may lead, on etcd.
    pub candidates: &'a BTreeSet<String>,
}

impl<'a> Whereabouts<'a> {
    /// Hosts that may lead: the candidates, or the one that holds the directory.
    pub fn possible_leaders(&self) -> Vec<&'a str> {
        if self.directory == ETCD {
            self.candidates.iter().map(String::as_str).collect()
        } else {
            vec![self.directory]
        }
    }
}

impl HostConfig {
    /// Where the directory is after its last move: where the move went if the file names a former
    /// place, and otherwise where the file says.
    pub fn whereabouts<'a>(&'a self, moved: Option<&'a Moved>) -> Whereabouts<'a> {
        match moved.filter(|moved| moved.from.contains(&self.directory)) {
            Some(moved) => Whereabouts {
                directory: &moved.to,
                candidates: &moved.candidates,
            },
            None => Whereabouts {
                directory: &self.directory,
                candidates: &self.candidates,
            },
        }
    }

    /// The configuration that names the [present place](HostConfig::whereabouts) of the directory.
    pub fn redirected(&self, moved: Option<&Moved>) -> HostConfig {
        let now = self.whereabouts(moved);
        HostConfig {
            directory: now.directory.into(),
            candidates: now.candidates.clone(),
            ..self.clone()
        }
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

as_text::display_serde_name!(Commands);

impl FromStr for Commands {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        as_text::variant(text).ok_or("commands is \"on\" or \"off\"")
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
    let file = table.and_then(|table| file::File { lines: &mut lines }.read(table.get_ref()));
    // An unreadable file has a problem.
    lines.end(file)?.ok_or_else(Vec::new)
}
