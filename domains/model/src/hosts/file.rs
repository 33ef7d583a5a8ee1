//! Reader of the file. All mistakes are reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use toml::de::DeTable;
use toroid_fabric::{NodeId, Place, Torus};

use super::{Admission, Commands, ConfigFile, ETCD, Encryption, HostConfig, Provider};
use crate::host_address::check_address;
use crate::limits::{MAX_ACK_TIMEOUT_MS, MAX_HOSTS, MAX_NODES};
use crate::names::{is_alias, is_host_name};
use crate::nodeset::{self, Names};
use crate::rdma::Rdma;
use crate::refusal::Refusal;
use crate::settings::{Key, Lines, Value};

const KEYS: [&str; 24] = [
    "host",
    "torus",
    "nodes",
    "listen",
    "address",
    "key",
    "directory",
    "candidates",
    "etcd",
    "provider",
    "encryption",
    "admission",
    "commands",
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

pub(super) struct File<'a> {
    pub(super) lines: &'a mut Lines,
}

impl File<'_> {
    pub(super) fn read(&mut self, table: &DeTable<'_>) -> Option<ConfigFile> {
        self.lines.check_keys(table, "the file", &KEYS);
        let host = self.required(table, "host").and_then(|v| self.host(v));
        let torus = self.required(table, "torus");
        let torus = torus.and_then(|value| self.parsed::<Torus>(value));
        let nodes = self.required(table, "nodes");
        let nodes = torus.zip(nodes).map(|(torus, v)| self.nodes(v, torus));
        let listen = self.required(table, "listen");
        let listen = listen.and_then(|value| self.address(value));
        let address = table.get("address").map(|value| self.address(value));
        self.check_told(table, address.unwrap_or(listen));
        let key = self.required(table, "key").and_then(|v| self.path(v));
        let directory = self.required(table, "directory");
        let holder = directory.and_then(|value| self.directory(value));
        let provider = table.get("provider").map(|value| self.parsed(value));
        let provider = provider.unwrap_or(Some(Provider::default()));
        let encryption = table.get("encryption").map(|value| self.parsed(value));
        let encryption = encryption.unwrap_or(Some(Encryption::default()));
        let admission = table.get("admission").map(|value| self.parsed(value));
        let admission = admission.unwrap_or(Some(Admission::default()));
        let commands = table.get("commands").map(|value| self.parsed(value));
        let commands = commands.unwrap_or(Some(Commands::default()));
        let rdma = self.rdma(table, provider);
        let hosts = self.hosts(table);
        let is_host = |name: &String| hosts.contains_key(name) || host.as_ref() == Some(name);
        if let (Some(holder), Some(value)) = (&holder, directory)
            && host.is_some()
            && holder != ETCD
            && !is_host(holder)
        {
            let message = format!("host {holder} is not among the hosts; add its address there");
            self.lines.problem(value.span().start, message);
        }
        // Ready for a move of the directory, which has their addresses then.
        let has_address = |name: &String| holder.as_deref() != Some(ETCD) || is_host(name);
        let candidates = self.candidates(table, has_address);
        let access = table.get("etcd").map(|value| self.etcd(value));
        let access = access.unwrap_or_default();
        if let (Some(host), Some(ETCD)) = (&host, holder.as_deref()) {
            self.check_candidacy(table, host, candidates.as_ref());
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
                address: address.flatten(),
                key: key?,
                directory: holder?,
                candidates: candidates.unwrap_or_default(),
                etcd: access,
                provider: provider?,
                encryption: encryption?,
                admission: admission?,
                commands: commands?,
                rdma,
                hosts,
                lost: None,
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

    pub(super) fn host(&mut self, value: &Value<'_>) -> Option<String> {
        let name = self.lines.string(value)?;
        self.host_name(value.span().start, name)
    }

    /// A host, or [`ETCD`].
    fn directory(&mut self, value: &Value<'_>) -> Option<String> {
        match self.lines.string(value)? {
            ETCD => Some(ETCD.into()),
            _ => self.host(value),
        }
    }

    fn host_name(&mut self, at: usize, name: &str) -> Option<String> {
        let message = if name == ETCD {
            "\"etcd\" cannot be a host: as `directory` it means a directory on etcd".into()
        } else if !is_host_name(name) {
            format!("\"{name}\" names no host: use a-z, 0-9 and - within")
        } else {
            return Some(name.to_owned());
        };
        self.lines.problem(at, message);
        None
    }

    /// Checks the address that the host tells the others.
    fn check_told(&mut self, table: &DeTable<'_>, address: Option<SocketAddr>) {
        let (key, remedy) = match table.contains_key("address") {
            true => ("address", "write where the other hosts reach this one"),
            false => (
                "listen",
                "add `address`, where the other hosts reach this one",
            ),
        };
        if let (Some(address), Some(value)) = (address, table.get(key))
            && let Err(why) = check_address(address)
        {
            let message = format!("{address} {why}; {remedy}");
            self.lines.problem(value.span().start, message);
        }
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

    pub(super) fn path(&mut self, value: &Value<'_>) -> Option<PathBuf> {
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
