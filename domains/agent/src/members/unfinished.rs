//! Unfinished changes of a killed agent, which its successor completes.
//!
//! The fd store gets the leavers before a change is durable. After a takeover the directory
//! decides: leavers that it does not list as members are cut off, as if the agent had not been
//! killed.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toroid_fabric::{NodeId, Partition};
use toroid_model::directory::Change;
use toroid_model::refusal::{Refusal, RefusalKind};

use super::migration::Migration;
use super::{Changed, Members, State};
use crate::fdstore::Entry;

/// Prefix of their keys in the fd store.
pub(super) const LEAVING: &str = "leaving/";

/// Nodes that leave a domain in a change that is not complete.
#[derive(Serialize, Deserialize)]
struct KeptLeaving {
    partition: u32,
    nodes: Vec<u32>,
}

impl Members {
    /// Notes leavers. From now on they open no region of these domains. The note stays until the
    /// change is [complete], or does [not happen] at all.
    ///
    /// [complete]: Members::complete
    /// [not happen]: Members::note_staying
    pub(crate) fn note_leaving(&self, changes: &[Change]) {
        let mut state = self.lock();
        for change in changes {
            let partition = Partition(change.domain.id.into());
            state.leaving.insert(partition, change.left.clone());
            state.keep_leaving(partition, &change.left);
        }
    }

    /// Removes the note after a failed write. The fd store keeps it: if a change has become durable
    /// nevertheless, the next agent completes it.
    pub(crate) fn note_staying(&self, changes: &[Change]) {
        let mut state = self.lock();
        for change in changes {
            state.leaving.remove(&Partition(change.domain.id.into()));
        }
    }

    /// Continues the predecessor's migrations, and begins its unfinished changes again. The caller
    /// completes them when processes can come back.
    pub(crate) fn take_up(&self) -> Vec<Changed> {
        let unfinished = self.lock().unfinished();
        for change in &unfinished {
            self.finish_migrations(change);
        }
        let mut state = self.lock();
        let mut ended = Vec::new();
        let changed: Vec<Changed> = unfinished
            .into_iter()
            .map(|change| {
                tracing::info!("going on with a change of domain {}", change.domain.name);
                let (mut changed, lost) = self.begin(&mut state, change);
                ended.extend(lost);
                changed.migrations =
                    self.migrations_of(|partition| partition == changed.partition());
                changed
            })
            .collect();
        let is_unfinished = |partition| changed.iter().any(|c| c.partition() == partition);
        for migration in self.migrations_of(|partition| !is_unfinished(partition)) {
            // This fails only when the agent is about to end.
            let _ = self.migrations.send(migration);
        }
        self.regions.iter().for_each(|record| self.compact(&record));
        drop(state);
        drop(ended);
        changed
    }

    /// Present migrations of regions of these partitions.
    pub(super) fn migrations_of(&self, of: impl Fn(Partition) -> bool) -> Vec<Arc<Migration>> {
        let regions = self.regions.iter();
        let its = regions.filter(|record| of(record.key.partition));
        its.filter_map(|record| record.migration.clone()).collect()
    }
}

impl State {
    pub(super) fn inherit_leaving(&mut self, entry: Entry) -> Option<()> {
        let (kept, []) = entry.parse::<KeptLeaving, 0>()?;
        let nodes = kept.nodes.into_iter().map(NodeId).collect();
        self.leaving.insert(Partition(kept.partition), nodes);
        Some(())
    }

    /// Changes of noted leavers that are durable. Other notes are removed.
    fn unfinished(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (partition, nodes) in self.leaving.clone() {
            let domain = self.directory.domain_by_id(partition.0).cloned();
            let change = domain.map(|domain| Change {
                left: &nodes - &domain.nodes(),
                joined: BTreeSet::new(),
                domain,
            });
            match change.filter(|change| !change.left.is_empty()) {
                Some(change) => changes.push(change),
                None => self.forget_leaving(partition),
            }
        }
        changes
    }

    /// Refuses new grants to a leaver.
    pub(super) fn check_stays(&self, partition: Partition, node: NodeId) -> Result<(), Refusal> {
        let leaving = self.leaving.get(&partition);
        if !leaving.is_some_and(|leaving| leaving.contains(&node)) {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalKind::Leaving,
            "the node is leaving the region's domain",
            "if it is a member again later, open the region anew",
        ))
    }

    pub(super) fn keep_leaving(&self, partition: Partition, nodes: &BTreeSet<NodeId>) {
        let record = KeptLeaving {
            partition: partition.0,
            nodes: nodes.iter().map(|node| node.0).collect(),
        };
        self.fd_store.put(&leaving_key(partition), &record, &[]);
    }

    pub(super) fn forget_leaving(&mut self, partition: Partition) {
        self.leaving.remove(&partition);
        self.fd_store.remove(&leaving_key(partition));
    }
}

fn leaving_key(Partition(partition): Partition) -> String {
    format!("{LEAVING}{partition}")
}
