//! Journal of NAT links, in a file of the state directory. Their traces in the host outlive the
//! agent, and its successor removes them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::nat_link::NatLink;
use crate::store::ownership;

/// The file.
const FILE: &str = "gateways.json";

/// NAT links of an agent, by domain.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    nat_links: BTreeMap<u16, NatLink>,
}

impl Journal {
    /// Opens the journal of a state directory. A file in another format, as of another release,
    /// counts as empty.
    pub(crate) fn open(state: &Path) -> Self {
        let path = state.join(FILE);
        let kept = fs::read(&path).ok();
        let nat_links = kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Journal {
            path,
            nat_links: nat_links.unwrap_or_default(),
        }
    }

    pub(crate) fn get(&self, domain: u16) -> Option<&NatLink> {
        self.nat_links.get(&domain)
    }

    pub(crate) fn domains(&self) -> Vec<u16> {
        self.nat_links.keys().copied().collect()
    }

    /// Enters a NAT link, before it is made.
    pub(crate) fn put(&mut self, domain: u16, nat_link: NatLink) -> io::Result<()> {
        if self.nat_links.get(&domain) == Some(&nat_link) {
            return Ok(());
        }
        self.nat_links.insert(domain, nat_link);
        self.write()
    }

    /// Removes a NAT link, after it is gone.
    pub(crate) fn remove(&mut self, domain: u16) -> io::Result<()> {
        match self.nat_links.remove(&domain) {
            Some(_) => self.write(),
            None => Ok(()),
        }
    }

    fn write(&self) -> io::Result<()> {
        if self.nat_links.is_empty() {
            return fs::remove_file(&self.path);
        }
        ownership::replace(&self.path, &serde_json::to_vec(&self.nat_links)?)
    }
}
