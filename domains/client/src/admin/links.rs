//! Links of domains.

use toroid_fabric::Place;
use toroid_model::info::{DomainInfo, LinkReport};
use toroid_model::link::{DomainLinks, Pair};
use toroid_protocol::agent::Request;

use super::{ClientError, Control};

impl Control {
    /// Gives links of a domain these properties. With `keep`, all others stay; otherwise they become
    /// the machine's. In effect when it returns, up to the microseconds in which attached processes
    /// read it.
    ///
    /// # Errors
    /// [`ClientError`], as for all that follow.
    pub fn set_links(
        &mut self,
        domain: &str,
        links: &DomainLinks<Place>,
        keep: bool,
    ) -> Result<DomainInfo, ClientError> {
        self.call(&Request::LinkSet {
            domain: domain.into(),
            links: links.clone(),
            keep,
        })
    }

    /// Ends the properties of these links, or without links of all.
    pub fn remove_links(
        &mut self,
        domain: &str,
        links: &[Pair<Place>],
    ) -> Result<DomainInfo, ClientError> {
        self.call(&Request::LinkRemove {
            domain: domain.into(),
            pairs: links.into(),
        })
    }

    /// Properties of these links, or without links of all, and how late transfers left them.
    pub fn links(
        &mut self,
        domain: &str,
        links: &[Pair<Place>],
    ) -> Result<LinkReport, ClientError> {
        self.call(&Request::Links {
            domain: domain.into(),
            pairs: links.into(),
        })
    }
}
