//! Which NAT links there are, in a file of the state directory: what they need of the host outlives
//! the agent, and is taken back by whoever comes after it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::nat_link::NatLink;
use crate::store::ownership;

/// The file.
const FILE: &str = "gateways.json";

/// The NAT links of an agent, by domain.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    nat_links: BTreeMap<u16, NatLink>,
}

impl Journal {
    /// What the agent of a state directory has, or the one before had. A file that is none, as
    /// from another release, is passed over.
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

    /// To be called before what it says is so.
    pub(crate) fn put(&mut self, domain: u16, nat_link: NatLink) -> io::Result<()> {
        if self.nat_links.get(&domain) == Some(&nat_link) {
            return Ok(());
        }
        self.nat_links.insert(domain, nat_link);
        self.write()
    }

    /// To be called after what it said is so no longer.
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
