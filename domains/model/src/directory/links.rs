//! Links of domains.

use std::collections::BTreeSet;

use toroid_fabric::NodeId;

use super::{Directory, DirectoryError, Domain};
use crate::link::{DomainLinks, LinkError, Pair};

/// Maximum number of links of a domain with properties of their own.
pub const MAX_LINKS: usize = 4096;

impl Directory {
    /// Gives the links of a domain these properties. With `keep`, all others stay as they are;
    /// otherwise they become the machine's.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn set_links(
        &mut self,
        name: &str,
        links: &DomainLinks,
        keep: bool,
    ) -> Result<Domain, DirectoryError> {
        let domain = self.domain(name)?;
        let mut next = if keep {
            domain.links.clone()
        } else {
            DomainLinks::default()
        };
        next.default = links.default.or(next.default);
        for (pair, link) in &links.pairs {
            self.check_pair(domain, *pair)?;
            let link = link.or(next.pairs.get(pair).copied().unwrap_or_default());
            if link.is_empty() {
                next.pairs.remove(pair);
            } else {
                next.pairs.insert(*pair, link);
            }
        }
        next.check()?;
        if next.pairs.len() > MAX_LINKS {
            return Err(DirectoryError::TooManyLinks(name.into()));
        }
        self.put_links(name, next)
    }

    /// Ends the properties of single links of a domain, or without pairs those of all of its links.
    ///
    /// # Errors
    /// [`DirectoryError`], among them [`DirectoryError::NoLink`] if one has none.
    pub fn remove_links(&mut self, name: &str, pairs: &[Pair]) -> Result<Domain, DirectoryError> {
        let domain = self.domain(name)?;
        let missing = |pair: Option<&Pair>| DirectoryError::NoLink {
            domain: name.into(),
            pair: pair.map(|pair| self.places(&[pair.from, pair.to].into())),
        };
        if pairs.is_empty() && domain.links.is_empty() {
            return Err(missing(None));
        }
        let mut next = match pairs {
            [] => DomainLinks::default(),
            _ => domain.links.clone(),
        };
        for pair in pairs {
            self.check_pair(domain, *pair)?;
            if next.pairs.remove(pair).is_none() {
                return Err(missing(Some(pair)));
            }
        }
        next.check()?;
        self.put_links(name, next)
    }

    /// Checks that both ends of a link are members, and not one node.
    ///
    /// # Errors
    /// [`DirectoryError::NotMembers`], [`LinkError::Loop`].
    pub fn check_pair(&self, domain: &Domain, pair: Pair) -> Result<(), DirectoryError> {
        let nodes = BTreeSet::from([pair.from, pair.to]);
        let outsiders = &nodes - &domain.nodes();
        if !outsiders.is_empty() {
            return Err(DirectoryError::NotMembers {
                domain: domain.name.clone(),
                nodes: self.places(&outsiders),
            });
        }
        if pair.from == pair.to {
            return Err(LinkError::Loop.into());
        }
        Ok(())
    }

    fn put_links(&mut self, name: &str, links: DomainLinks) -> Result<Domain, DirectoryError> {
        self.change(name, |domain| domain.links = links)
    }
}

impl Domain {
    /// Ends the properties of single links of other nodes than members.
    pub(super) fn retain_links(&mut self) {
        let members = &self.members;
        let is_member = |node: &NodeId| members.contains_key(node);
        let pairs = &mut self.links.pairs;
        pairs.retain(|pair, _| is_member(&pair.from) && is_member(&pair.to));
    }
}
