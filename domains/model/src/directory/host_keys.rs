//! Keys of hosts: those admitted, and names of those removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Directory;
use crate::host_key::PublicKey;

impl Directory {
    /// Keys of each host that has been admitted: one, two during a rotation, none after the host
    /// was removed.
    pub fn host_keys(&self) -> &BTreeMap<String, Vec<PublicKey>> {
        &self.host_keys
    }

    /// Keys of a host; `None` if the host has never been admitted.
    pub fn keys_of(&self, host: &str) -> Option<&[PublicKey]> {
        self.host_keys.get(host).map(Vec::as_slice)
    }

    /// The host with this key.
    pub fn host_by_key(&self, key: &PublicKey) -> Option<&str> {
        let mut all = self.host_keys.iter();
        let found = all.find(|(_, keys)| keys.contains(key));
        found.map(|(host, _)| host.as_str())
    }

    /// Whether a host is admitted.
    pub fn is_admitted(&self, host: &str) -> bool {
        self.keys_of(host).is_some_and(|keys| !keys.is_empty())
    }

    /// Gives a host these keys and no others.
    pub fn set_host_keys(&mut self, host: &str, keys: Vec<PublicKey>) {
        if self.keys_of(host) != Some(&keys) {
            Arc::make_mut(&mut self.host_keys).insert(host.into(), keys);
        }
    }

    /// Forgets a host's keys, or its removal.
    pub(super) fn forget_host_keys(&mut self, host: &str) {
        if self.host_keys.contains_key(host) {
            Arc::make_mut(&mut self.host_keys).remove(host);
        }
    }
}
