//! Who listens on other hosts.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric::{NodeId, Partition};

use super::Cluster;
use crate::agent::host::Host;
use crate::hosts::messages::{Answer, Ask, Sought};
use crate::protocol::{Refusal, RefusalKind};

/// How long each of them may take. One that is away has nobody who listens.
const PATIENCE: Duration = Duration::from_secs(2);

impl Host {
    /// The nodes of other hosts of which a process listens, as far as those can be reached.
    pub(in crate::agent) fn far_listeners(
        &self,
        partition: Partition,
        from: NodeId,
        protocol: u16,
    ) -> BTreeSet<NodeId> {
        let Some(cluster) = &self.cluster else {
            return BTreeSet::new();
        };
        let carriers: BTreeSet<String> = self.members.directory(|directory| {
            let members = directory
                .domain_by_id(partition.0)
                .map(|domain| &domain.members);
            let members = members.into_iter().flatten();
            let carriers = members.filter_map(|node| directory.host_of(*node));
            carriers.map(str::to_owned).collect()
        });
        let sought = Sought {
            from: from.0,
            partition: partition.0,
            protocol,
        };
        let carriers = carriers.into_iter().filter(|c| *c != cluster.config.host);
        let links: Vec<_> = carriers
            .filter_map(|carrier| Some((self.link_to(cluster, &carrier).ok()?, carrier)))
            .collect();
        // All are asked before the first is waited for.
        let asked: Vec<_> = links
            .iter()
            .filter_map(|(link, carrier)| Some((carrier, link.begin(Ask::Listeners(sought)).ok()?)))
            .collect();
        let mut all = BTreeSet::new();
        for (carrier, question) in asked {
            let Ok(Answer::Nodes(nodes)) = question.wait(PATIENCE) else {
                continue;
            };
            let nodes = nodes.into_iter().map(NodeId);
            // It speaks for its own.
            all.extend(nodes.filter(|node| self.carrier(*node).as_ref() == Some(carrier)));
        }
        all
    }
}

/// Answers another host, for a node of its own.
pub(super) fn answer(host: &Host, cluster: &Cluster, asking: &str, sought: Sought) -> Answer {
    let (from, partition) = (NodeId(sought.from), Partition(sought.partition));
    let is_member = host.members.directory(|directory| {
        let domain = directory.domain_by_id(sought.partition);
        let is_member = domain.is_some_and(|domain| domain.members.contains(&from));
        is_member && directory.host_of(from) == Some(asking)
    });
    if !is_member {
        return Answer::Refused(Refusal::new(
            RefusalKind::Denied,
            format!(
                "that node is no member here on host {}",
                cluster.config.host
            ),
            "see `toroid domain show` on both hosts",
        ));
    }
    let nodes = host.members.listening(partition, from, sought.protocol);
    Answer::Nodes(nodes.into_iter().map(|NodeId(node)| node).collect())
}
