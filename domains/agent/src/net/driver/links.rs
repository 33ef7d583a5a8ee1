//! Links of domains, for the driver.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use toroid_protocol::driver::DriverRequest;

use super::{Driver, State};
use crate::members::Emulated;

/// Links of a domain, as the driver gets them.
#[derive(Debug)]
pub(super) struct Sent {
    request: DriverRequest,
    memory: Vec<Arc<File>>,
}

impl Driver {
    /// Sets the links of a domain, which may have no ports yet.
    pub(crate) fn set_links(&self, domain_id: u32, emulated: Option<Emulated>) {
        let memory = emulated.iter().flat_map(Emulated::memory).cloned();
        let memory = memory.collect();
        let model = emulated.map(|its| its.model);
        let sent = Sent {
            request: DriverRequest::Links {
                domain_id,
                model,
                precision: self.precision,
            },
            memory,
        };
        let mut state = self.state.lock();
        state.send_links(&sent);
        match sent.memory.is_empty() {
            false => drop(state.links.insert(domain_id, sent)),
            true => drop(state.links.remove(&domain_id)),
        }
    }
}

impl State {
    pub(super) fn send_all_links(&self) {
        self.links.values().for_each(|sent| self.send_links(sent));
    }

    fn send_links(&self, sent: &Sent) {
        let memory: Vec<_> = sent.memory.iter().map(|its| its.as_fd()).collect();
        self.send_with(&sent.request, &memory);
    }
}
