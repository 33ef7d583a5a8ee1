//! Requests to all hosts at once, such as lookups of listeners.

use std::collections::{BTreeMap, BTreeSet};
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
    if host.cluster.is_none() {
        return BTreeSet::new();
    }
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
    let query = move || HostRequest::Listeners(sought);
    let mut all = BTreeSet::new();
    for (carrier, response) in ask_all(host, carriers, query, TIMEOUT) {
        if let HostResponse::Nodes(nodes) = response {
            // A host answers for its own nodes only.
            let nodes = nodes.into_iter().map(NodeId);
            all.extend(nodes.filter(|node| host.carrier(*node).as_ref() == Some(&carrier)));
        }
    }
    all
}

/// Asks other hosts the same. Returns the responses that came in time.
pub(super) fn ask_all(
    host: &Arc<Host>,
    others: BTreeSet<String>,
    request: impl Fn() -> HostRequest + Clone + Send + 'static,
    timeout: Duration,
) -> BTreeMap<String, HostResponse> {
    let Some(cluster) = &host.cluster else {
        return BTreeMap::new();
    };
    let (answers, received) = mpsc::channel();
    for other in others {
        // A host with a problem would not answer.
        let problem = cluster.problems.of(&other, Instant::now());
        if other == cluster.config.host || problem.is_some() {
            continue;
        }
        let (host, answers, request) = (Arc::clone(host), answers.clone(), request.clone());
        let ask = move || {
            let link = host.cluster.as_ref().map(|its| host.link_to(its, &other));
            let Some(Ok(link)) = link else { return };
            if let Ok(response) = link.ask(request(), timeout) {
                // This fails when the response is late.
                let _ = answers.send((other, response));
            }
        };
        // Without a thread the host counts as one that does not answer.
        let _ = threads::start(ask);
    }
    drop(answers);
    let deadline = Instant::now() + timeout;
    let next = || received.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    std::iter::from_fn(|| next().ok()).collect()
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
