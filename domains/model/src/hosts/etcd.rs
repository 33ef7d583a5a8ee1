//! Access of candidates to etcd, the table `[etcd]` of the file for `toroid up --config`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use super::file::File;
use crate::settings::Value;

/// Prefix of all keys, if the file has none.
pub const DEFAULT_PREFIX: &str = "/toroid";

const KEYS: [&str; 5] = ["endpoints", "prefix", "ca", "cert", "key"];

/// Access to the servers of an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdConfig {
    /// URLs of the servers of one cluster, such as `https://10.0.0.1:2379`. At least one.
    pub endpoints: Vec<String>,
    /// Prefix of all keys, without a slash at its end.
    pub prefix: String,
    /// File with the certificates (PEM) of the authorities of the servers. With `https` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// File with this host's certificate (PEM). With `key` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// File with the private key (PEM) of `cert`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl EtcdConfig {
    /// Paths of all files.
    pub fn files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let files = [&mut self.ca, &mut self.cert, &mut self.key];
        files.into_iter().flatten()
    }
}

impl File<'_> {
    /// Reads the hosts that may lead; `None` if the file does not name any.
    pub(super) fn candidates(
        &mut self,
        table: &DeTable<'_>,
        has_address: impl Fn(&String) -> bool,
    ) -> Option<BTreeSet<String>> {
        let value = table.get("candidates")?;
        let Some(names) = value.get_ref().as_array() else {
            self.lines
                .mistyped(value, "a list of hosts, such as [\"a\", \"b\"]");
            return Some(BTreeSet::new());
        };
        if names.is_empty() {
            let message = "there are no candidates; name at least one host, or better three";
            self.lines.problem(value.span().start, message);
        }
        let mut candidates = BTreeSet::new();
        for value in names.iter() {
            let Some(name) = self.host(value) else {
                continue;
            };
            if !has_address(&name) {
                let message =
                    format!("candidate {name} is not among the hosts; add its address there");
                self.lines.problem(value.span().start, message);
            }
            if let Some(name) = candidates.replace(name) {
                let message = format!("candidate {name} is named twice");
                self.lines.problem(value.span().start, message);
            }
        }
        Some(candidates)
    }

    /// Checks who talks to etcd, with a directory there: the candidates, and no other host.
    pub(super) fn check_candidacy(
        &mut self,
        table: &DeTable<'_>,
        host: &str,
        candidates: Option<&BTreeSet<String>>,
    ) {
        let Some(candidates) = candidates else {
            let message = "the file has no \"candidates\", the hosts that may lead with a \
                           directory on etcd";
            return self.lines.problem(0, message);
        };
        match (candidates.contains(host), table.get_key_value("etcd")) {
            (true, None) => {
                let message = format!("host {host} is a candidate; add [etcd] with its endpoints");
                self.lines.problem(0, message);
            }
            (false, Some((key, _))) => {
                let message = format!(
                    "host {host} is no candidate, and does not talk to etcd; remove [etcd] here, \
                     or add the host to the candidates in all files"
                );
                self.lines.problem(key.span().start, message);
            }
            _ => {}
        }
    }

    pub(super) fn etcd(&mut self, value: &Value<'_>) -> Option<EtcdConfig> {
        let table = self.lines.table(value)?;
        self.lines.check_keys(table, "[etcd]", &KEYS);
        let endpoints = self.endpoints(value, table);
        let is_secure = endpoints.iter().any(|url| url.starts_with("https:"));
        let prefix = match table.get("prefix") {
            Some(value) => self.prefix(value),
            None => Some(DEFAULT_PREFIX.into()),
        };
        let [ca, cert, key] = ["ca", "cert", "key"].map(|key| table.get(key));
        if is_secure && ca.is_none() {
            let message = "https needs \"ca\", the certificates of the authorities of the servers";
            self.lines.problem(value.span().start, message);
        }
        for given in [ca, cert, key].into_iter().flatten() {
            if !endpoints.is_empty() && !is_secure {
                let message = "certificates are for endpoints with https";
                self.lines.problem(given.span().start, message);
            }
        }
        if let (Some(alone), None) | (None, Some(alone)) = (cert, key) {
            let message = "\"cert\" and \"key\" belong together";
            self.lines.problem(alone.span().start, message);
        }
        let mut path = |value: Option<&Value<'_>>| value.and_then(|value| self.path(value));
        let (ca, cert, key) = (path(ca), path(cert), path(key));
        Some(EtcdConfig {
            endpoints,
            prefix: prefix?,
            ca,
            cert,
            key,
        })
    }

    fn endpoints(&mut self, etcd: &Value<'_>, table: &DeTable<'_>) -> Vec<String> {
        const WANTED: &str = "a list of URLs, such as [\"http://10.0.0.1:2379\"]";
        let Some(value) = table.get("endpoints") else {
            let message = "[etcd] has no \"endpoints\", the URLs of the servers";
            self.lines.problem(etcd.span().start, message);
            return Vec::new();
        };
        let Some(urls) = value.get_ref().as_array() else {
            self.lines.mistyped(value, WANTED);
            return Vec::new();
        };
        if urls.is_empty() {
            self.lines
                .problem(value.span().start, format!("write {WANTED}"));
        }
        let mut endpoints: Vec<String> = Vec::new();
        for value in urls.iter() {
            let Some(url) = self.lines.string(value) else {
                continue;
            };
            let Some(scheme) = scheme(url) else {
                let message =
                    format!("\"{url}\" is no endpoint; write http://10.0.0.1:2379 or https://...");
                self.lines.problem(value.span().start, message);
                continue;
            };
            let first = endpoints.first().and_then(|first| self::scheme(first));
            if first.is_some_and(|first| first != scheme) {
                let message = "use https for all endpoints, or for none";
                self.lines.problem(value.span().start, message);
            }
            endpoints.push(url.into());
        }
        endpoints
    }

    fn prefix(&mut self, value: &Value<'_>) -> Option<String> {
        let prefix = self.lines.string(value)?;
        let may_have = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
        let is_prefix = prefix.len() > 1
            && prefix.starts_with('/')
            && !prefix.ends_with('/')
            && prefix.chars().all(may_have);
        if !is_prefix {
            let message = format!(
                "\"{prefix}\" is no prefix of keys; write one such as /toroid/main, without a slash \
                 at its end"
            );
            self.lines.problem(value.span().start, message);
        }
        is_prefix.then(|| prefix.into())
    }
}

/// Scheme of the URL of a server: scheme, host and port.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':')?;
    let is_sound = !host.is_empty()
        && !host.contains(['/', '@', '?', '#', ' '])
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    (is_sound && matches!(scheme, "http" | "https")).then_some(scheme)
}
