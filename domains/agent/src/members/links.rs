//! Links of domains: their clocks, and the processes that emulate them.
//!
//! The links of a domain have a table of clocks while they are not all the machine's. A change of
//! links keeps the table. When a member leaves, the others get a fresh one before the epoch, so
//! that a process that has acknowledged the epoch does not use the former member's any more. The
//! links of an emulated torus have one table for all domains. A domain whose routes through the torus
//! are chosen has memory of its own for their records, for which the same holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use toroid_fabric::model::SharedClocks;
use toroid_fabric::{NodeId, Partition};
use toroid_model::directory::{Directory, Domain};
use toroid_model::link::{LinkModel, Time, TorusLinks};
use toroid_model::refusal::Refusal;
use toroid_protocol::agent::Event;

use super::outbox::Handed;
use super::{AttachmentId, Members, State, no_memory};
use crate::fdstore::Entry;
use crate::fdstore::takeover::Takeover;

/// Prefix of the keys of tables in the fd store.
const LINKS: &str = "links/";

/// Key of the table of the emulated torus.
const FABRIC: &str = "links/fabric";

/// Emulated links.
#[derive(Debug, Default)]
pub(super) struct Links {
    of_domains: BTreeMap<Partition, Arc<File>>,
    torus: Option<Emulated>,
}

/// Links that are not the machine's.
#[derive(Clone, Debug)]
pub(crate) struct Emulated {
    pub(crate) model: LinkModel,
    pub(crate) clocks: Arc<File>,
    /// Where routers count ([`toroid_fabric::routing::RouteRecords`]), if routes are chosen.
    pub(crate) records: Option<Arc<File>>,
}

impl Emulated {
    /// Memory of the links, as processes and the driver get it.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &Arc<File>> {
        std::iter::once(&self.clocks).chain(&self.records)
    }
}

impl Members {
    /// Takes the predecessor's tables, and makes those that are missing: for the links of domains,
    /// and for an emulated torus.
    pub(crate) fn inherit_links(
        &mut self,
        torus: Option<TorusLinks>,
        takeover: &mut Takeover,
    ) -> io::Result<()> {
        let mut state = self.lock();
        if let Some(torus) = torus {
            let kept = takeover.inherit(FABRIC).and_then(table);
            let clocks = Arc::new(kept.map_or_else(SharedClocks::create, Ok)?);
            let model = LinkModel::Torus(torus);
            state.links.torus = Some(Emulated {
                model,
                clocks,
                records: None,
            });
        }
        let domains: Vec<Domain> = state.directory.domains().cloned().collect();
        for domain in domains {
            let partition = Partition(domain.id.into());
            if let Some(clocks) = takeover.inherit(&key(partition)).and_then(table)
                && !domain.links.is_empty()
            {
                state.links.of_domains.insert(partition, Arc::new(clocks));
            }
            state.prepare_clocks(&domain)?;
        }
        state.keep_links();
        Ok(())
    }

    /// Sets the latency of Ethernet that costs of an emulated torus contain, in nanoseconds.
    pub(crate) fn set_torus_base(&self, base: u64) {
        if let Some(Emulated {
            model: LinkModel::Torus(torus),
            ..
        }) = &mut self.lock().links.torus
        {
            torus.base = Time(base);
        }
    }

    /// Makes durable links visible, and sends them to all processes of members.
    pub(crate) fn relink(&self, domain: &Domain, directory: Directory) -> Result<(), Refusal> {
        let mut state = self.lock();
        // First, because it may fail.
        state
            .prepare_clocks(domain)
            .map_err(|error| no_memory(&error))?;
        drop(state);
        self.keep(&directory)?;
        let mut state = self.lock();
        state.directory = directory;
        state.tell_links(domain, &domain.nodes());
        if domain.links.is_empty() {
            state.end_clocks(domain);
        }
        Ok(())
    }

    /// Links of a domain, unless all are the machine's.
    pub(crate) fn emulated(&self, domain: &Domain) -> Option<Emulated> {
        self.lock().emulated(domain)
    }

    /// Sends a process the links of its node, now and whenever they change. The target proxy gets
    /// none: links of nodes of other hosts are emulated there.
    pub(crate) fn send_links(&self, id: AttachmentId) {
        let mut state = self.lock();
        if let Some(attachment) = state.attachments.get_mut(&id) {
            attachment.emulates = true;
        }
        let linked: Vec<Domain> = state
            .domains_of(id)
            .filter(|domain| state.emulated(domain).is_some())
            .cloned()
            .collect();
        linked
            .iter()
            .for_each(|domain| state.tell_process(id, domain));
    }
}

impl State {
    fn domains_of(&self, id: AttachmentId) -> impl Iterator<Item = &Domain> {
        let node = self.attachments.get(&id).map(|attachment| attachment.node);
        node.into_iter()
            .flat_map(|node| self.directory.domains_of(node))
    }

    /// Sends a returning process the links of all domains of its node: some may have become the
    /// machine's in its absence.
    pub(super) fn tell_all_links(&self, id: AttachmentId) {
        self.domains_of(id)
            .for_each(|domain| self.tell_process(id, domain));
    }

    pub(super) fn keep_links(&self) {
        for (partition, clocks) in &self.links.of_domains {
            self.fd_store.put(&key(*partition), &(), &[clocks.as_fd()]);
        }
        if let Some(torus) = &self.links.torus {
            self.fd_store.put(FABRIC, &(), &[torus.clocks.as_fd()]);
        }
    }

    /// Makes the table of a domain, unless there is one or none is needed.
    fn prepare_clocks(&mut self, domain: &Domain) -> io::Result<()> {
        let partition = Partition(domain.id.into());
        if !domain.links.is_empty() && !self.links.of_domains.contains_key(&partition) {
            self.renew_clocks(domain)?;
        }
        Ok(())
    }

    fn renew_clocks(&mut self, domain: &Domain) -> io::Result<()> {
        let partition = Partition(domain.id.into());
        let clocks = Arc::new(SharedClocks::create()?);
        self.fd_store.put(&key(partition), &(), &[clocks.as_fd()]);
        self.links.of_domains.insert(partition, clocks);
        Ok(())
    }

    fn end_clocks(&mut self, domain: &Domain) {
        let partition = Partition(domain.id.into());
        if self.links.of_domains.remove(&partition).is_some() {
            self.fd_store.remove(&key(partition));
        }
    }

    /// Links after a change of membership: a fresh table for those who remain, and links for those
    /// who join.
    pub(super) fn change_links(&mut self, domain: &Domain, joined: &BTreeSet<NodeId>, left: bool) {
        if self.directory.domain_by_id(domain.id.into()).is_none() {
            return self.end_clocks(domain);
        }
        let renewed = match left && !domain.links.is_empty() {
            true => self.renew_clocks(domain),
            false => self.prepare_clocks(domain),
        };
        if let Err(error) = &renewed {
            // The former table, if any, stays.
            tracing::error!("no fresh clocks for the links of {}: {error}", domain.name);
        }
        let concerned = if left { domain.nodes() } else { joined.clone() };
        if self.emulated(domain).is_some() {
            self.tell_links(domain, &concerned);
        }
    }

    fn emulated(&self, domain: &Domain) -> Option<Emulated> {
        let own = self.links.of_domains.get(&Partition(domain.id.into()));
        if let Some(mut its) = self.links.torus.clone() {
            if let LinkModel::Torus(torus) = &mut its.model
                && domain.links.has_routing()
            {
                *torus.links = domain.links.clone();
                its.records = own.cloned();
            }
            return Some(its);
        }
        let clocks = own?;
        (!domain.links.is_empty()).then(|| Emulated {
            model: LinkModel::Pairs(domain.links.clone()),
            clocks: Arc::clone(clocks),
            records: None,
        })
    }

    fn tell_links(&self, domain: &Domain, nodes: &BTreeSet<NodeId>) {
        let of_these = self.attachments.iter();
        let of_these = of_these.filter(|(_, attachment)| nodes.contains(&attachment.node));
        of_these.for_each(|(id, _)| self.tell_process(*id, domain));
    }

    fn tell_process(&self, id: AttachmentId, domain: &Domain) {
        let Some(attachment) = self.attachments.get(&id).filter(|its| its.emulates) else {
            return;
        };
        let emulated = self.emulated(domain);
        let memory = emulated.iter().flat_map(Emulated::memory).cloned();
        let memory = memory.map(Handed::Writable).collect();
        let mut model = emulated.map(|its| its.model);
        if let Some(model) = &mut model {
            let node = attachment.node;
            let pairs = match model {
                LinkModel::Pairs(links) => &mut links.pairs,
                LinkModel::Torus(torus) => &mut torus.links.pairs,
            };
            pairs.retain(|pair, _| pair.from == node || pair.to == node);
        }
        let partition = domain.id.into();
        let event = Event::Links { partition, model };
        attachment.outbox.hand(event, memory);
    }
}

fn key(Partition(partition): Partition) -> String {
    format!("{LINKS}{partition}")
}

/// The clocks of an entry, unless they are too short for the present layout.
fn table(entry: Entry) -> Option<File> {
    let ((), [clocks]) = entry.parse()?;
    let clocks = File::from(clocks);
    (clocks.metadata().ok()?.len() >= SharedClocks::LEN as u64).then_some(clocks)
}
