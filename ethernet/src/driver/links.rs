//! Links of domains.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use toroid_fabric::Partition;
use toroid_fabric::model::SharedClocks;
use toroid_fabric::routing::RouteRecords;
use toroid_model::link::LinkModel;

use super::{ControlPath, PortFailure};
use crate::switch::{ModeledLinks, SwitchEnded};

impl ControlPath {
    /// Sets the links of a domain; without a model those of the machine. A failure counts for the
    /// first node.
    pub(super) fn set_links(
        &mut self,
        domain_id: u32,
        model: Option<LinkModel>,
        descriptors: Vec<OwnedFd>,
        precision: u8,
    ) -> Result<(), SwitchEnded> {
        let links = model.map(|model| {
            let mut files = descriptors.into_iter().map(File::from);
            let clocks = files.next().ok_or(io::ErrorKind::NotFound)?;
            let records = files.next().map(|memory| RouteRecords::map(&memory));
            Ok(ModeledLinks {
                model,
                clocks: SharedClocks::map(&clocks)?,
                records: records.transpose()?.map(Arc::new),
            })
        });
        match links.transpose() {
            Ok(links) => {
                let partition = Partition(domain_id);
                self.switch
                    .call(move |switch| switch.set_links(partition, links, precision))?;
                let of_domain = self.ports.keys().filter(|key| key.0 == domain_id);
                let of_domain: Vec<_> = of_domain.copied().collect();
                of_domain.into_iter().try_for_each(|key| self.admit(key))
            }
            Err(error) => {
                self.record((domain_id, 0), Err(PortFailure::Clocks(error)));
                Ok(())
            }
        }
    }
}
