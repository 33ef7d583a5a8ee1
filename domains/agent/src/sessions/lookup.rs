//! Lookups of listeners on other hosts.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use toroid_fabric::{NodeId, Partition};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{HostRequest, HostResponse, ListenerQuery};

use crate::cluster::Cluster;
use crate::core::host::Host;
use crate::threads;

/// Time for all hosts together. A host that is away has no listener.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Nodes of other hosts with a listener, as far as those hosts answer in time.
pub(crate) fn remote_listeners(
    host: &Arc<Host>,
    partition: Partition,
    from: NodeId,
    protocol: u16,
) -> BTreeSet<NodeId> {
    let Some(cluster) = &host.cluster else {
        return BTreeSet::new();
    };
    let carriers: BTreeSet<String> = host.members.directory(|directory| {
        let members = directory
            .domain_by_id(partition.0)
            .map(|domain| domain.nodes());
        let members = members.into_iter().flatten();
        let carriers = members.filter_map(|node| directory.host_of(node));
        carriers.map(str::to_owned).collect()
    });
    let sought = ListenerQuery {
        from: from.0,
        partition: partition.0,
        protocol,
    };
    let (answers, received) = mpsc::channel();
    for carrier in carriers {
        // A host with a problem would not answer.
        if carrier == cluster.config.host || cluster.problems.of(&carrier).is_some() {
            continue;
        }
        let (host, answers) = (Arc::clone(host), answers.clone());
        let ask = move || {
            if let Some(nodes) = ask(&host, &carrier, sought) {
                // This fails when the answer is late.
                let _ = answers.send((carrier, nodes));
            }
        };
        // Without a thread the host counts as one that does not answer.
        let _ = threads::start(ask);
    }
    drop(answers);
    let deadline = Instant::now() + TIMEOUT;
    let mut all = BTreeSet::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((carrier, nodes)) = received.recv_timeout(left) else {
            return all;
        };
        // A host answers for its own nodes only.
        let nodes = nodes.into_iter().map(NodeId);
        all.extend(nodes.filter(|node| host.carrier(*node).as_ref() == Some(&carrier)));
    }
}

fn ask(host: &Host, carrier: &str, sought: ListenerQuery) -> Option<BTreeSet<u32>> {
    let link = host.link_to(host.cluster.as_ref()?, carrier).ok()?;
    match link.ask(HostRequest::Listeners(sought), TIMEOUT) {
        Ok(HostResponse::Nodes(nodes)) => Some(nodes),
        _ => None,
    }
}

/// Answers another host's lookup for one of its nodes.
pub(crate) fn answer(
    host: &Host,
    cluster: &Cluster,
    asking: &str,
    sought: ListenerQuery,
) -> HostResponse {
    let (from, partition) = (NodeId(sought.from), Partition(sought.partition));
    let is_member = host.members.directory(|directory| {
        let domain = directory.domain_by_id(sought.partition);
        let is_member = domain.is_some_and(|domain| domain.members.contains_key(&from));
        is_member && directory.host_of(from) == Some(asking)
    });
    if !is_member {
        return HostResponse::Refused(Refusal::new(
            RefusalKind::Denied,
            format!(
                "that node is no member here on host {}",
                cluster.config.host
            ),
            "see `toroid domain show` on both hosts",
        ));
    }
    let nodes = host.members.listening(partition, from, sought.protocol);
    HostResponse::Nodes(nodes.into_iter().map(|NodeId(node)| node).collect())
}
