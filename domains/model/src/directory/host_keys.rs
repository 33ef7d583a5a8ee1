//! Keys of hosts: those admitted, and names of those removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Change, Directory, DirectoryError};
use crate::host_key::PublicKey;
use crate::limits::MAX_HOSTS;
use crate::names::is_host_name;

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

    /// All admitted hosts, in order of their names.
    pub fn admitted(&self) -> impl Iterator<Item = &str> {
        let admitted = self.host_keys.iter().filter(|(_, keys)| !keys.is_empty());
        admitted.map(|(host, _)| host.as_str())
    }

    /// Enters the key of a host that is not admitted.
    ///
    /// # Errors
    /// [`DirectoryError::TooManyHosts`].
    pub fn admit_host(&mut self, host: &str, key: PublicKey) -> Result<(), DirectoryError> {
        if self.admitted().count() >= MAX_HOSTS {
            return Err(DirectoryError::TooManyHosts);
        }
        self.set_host_keys(host, vec![key]);
        Ok(())
    }

    /// Whether a host was removed, and not admitted again.
    pub fn is_removed(&self, host: &str) -> bool {
        self.keys_of(host).is_some_and(<[_]>::is_empty)
    }

    /// Digest of the pre-shared key that a removed host had.
    pub fn spent_secret(&self) -> Option<&str> {
        self.spent_secret.as_deref()
    }

    /// Takes a host out of the directory: its nodes leave all domains, it carries none, and its
    /// keys are valid no more. Returns the changes of the domains, none for a removed host. Nobody is
    /// admitted with the pre-shared key of this digest any more.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchHost`].
    pub fn remove_host(&mut self, host: &str, secret: &str) -> Result<Vec<Change>, DirectoryError> {
        if self.keys_of(host).is_none() && !self.hosts.contains_key(host) {
            return Err(DirectoryError::NoSuchHost(host.into()));
        }
        if self.is_removed(host) {
            return Ok(Vec::new());
        }
        let nodes = self.hosts.get(host).cloned().unwrap_or_default();
        let changes = self.leave_all(&nodes)?;
        self.set_host(host, None);
        self.set_host_keys(host, Vec::new());
        self.set_address(host, None);
        self.spent_secret = Some(secret.into());
        Ok(changes)
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

    pub(super) fn restore_host_keys(
        &mut self,
        name: &str,
        keys: Vec<PublicKey>,
    ) -> Result<(), String> {
        if !is_host_name(name) {
            return Err("names no host".into());
        }
        if let Some(other) = keys.iter().find_map(|key| self.host_by_key(key)) {
            return Err(format!("has a key that host {other} has, too"));
        }
        self.set_host_keys(name, keys);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::NodeId;

    use super::*;
    use crate::directory::sample::{nodes, wanted};

    #[test]
    fn a_removed_host_is_in_no_domain_and_its_name_stays_known() {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        let key = |byte| vec![PublicKey([byte; 32])];
        for (host, first) in [("a", 0), ("b", 2), ("c", 4)] {
            directory.claim(host, &nodes(&[first, first + 1])).unwrap();
            directory.set_host_keys(host, key(first as u8));
        }
        directory.create(wanted("blue", &[0, 2, 3])).unwrap();
        directory.create(wanted("red", &[1, 4])).unwrap();
        directory.create(wanted("grey", &[2, 4])).unwrap();
        let before = directory.clone();
        let changes = directory.remove_host("b", "00").unwrap();
        let left: Vec<_> = changes
            .iter()
            .map(|c| (&c.domain.name[..], c.left.len()))
            .collect();
        assert_eq!(left, [("blue", 2), ("grey", 1)]);
        assert!(directory.is_removed("b") && !directory.is_admitted("b"));
        assert_eq!(directory.host_by_key(&key(2)[0]), None);
        assert!(directory.host_of(NodeId(2)).is_none() && !directory.is_free(NodeId(2)));
        // Each other host has to end its sessions.
        assert_eq!(
            Vec::from_iter(directory.concerned_since(&before)),
            ["a", "c"]
        );
        let copy = Directory::from_records(&directory.records()).unwrap();
        assert!(copy.is_removed("b") && copy.spent_secret() == Some("00"));
        let followed = before.with(&directory.changes_since(&before)).unwrap();
        assert_eq!(followed.records(), directory.records());
        // The present pre-shared key may be another by now.
        assert_eq!(directory.remove_host("b", "01").unwrap().len(), 0);
        assert_eq!(directory.spent_secret(), Some("00"));
        let error = directory.remove_host("d", "00").unwrap_err();
        assert_eq!(error, DirectoryError::NoSuchHost("d".into()));
        // One that has shown no key yet.
        directory.claim("d", &nodes(&[6])).unwrap();
        directory.remove_host("d", "00").unwrap();
        assert!(directory.is_removed("d"));
        assert_eq!(directory.admitted().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn no_more_hosts_are_admitted_than_there_may_be() {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        let key = |n: usize| PublicKey(std::array::from_fn(|at| n.to_le_bytes()[at % 8]));
        for n in 0..MAX_HOSTS {
            directory.admit_host(&format!("h{n}"), key(n)).unwrap();
        }
        let refused = directory
            .admit_host("one-more", key(MAX_HOSTS))
            .unwrap_err();
        assert_eq!(refused, DirectoryError::TooManyHosts);
        directory.remove_host("h7", "00").unwrap();
        directory.admit_host("one-more", key(MAX_HOSTS)).unwrap();
    }
}
