//! Reports of gateways that do not work, from their host to those with members of their domains.
//!
//! The host of a gateway alone knows its uplink. Its agent reports to the agents of the other hosts
//! directly, so that the leader has no part in it and its end no effect. All reports of a life but the
//! first are about changes. A host without a tunnel to this one cannot use the gateways, and is told
//! when it has one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::{Directory, Domain};
use toroid_protocol::hosts::{GatewayProblem, HostRequest, HostResponse};

use crate::cluster::Cluster;
use crate::cluster::link::Link;
use crate::core::host::Host;
use crate::error::{AgentError, during};
use crate::net::driver::Driver;
use crate::net::gateways::GatewayId;
use crate::threads;

/// Time for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which a failed report is repeated. As long as there are problems, also the interval of
/// checks for sessions that have ended, because the other agent may be a new one.
const AGAIN: Duration = Duration::from_secs(1);

/// The last report to a host.
struct Reported {
    problems: Vec<GatewayProblem>,
    link: Arc<Link>,
}

impl Reported {
    /// Whether the other agent knows these problems. A new agent knows none.
    fn covers(&self, problems: &[GatewayProblem]) -> bool {
        self.problems == problems && (problems.is_empty() || !self.link.has_ended())
    }
}

/// Starts the thread that reports.
pub(super) fn begin(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let Some(driver) = host
        .driver
        .clone()
        .filter(|_| host.can_have_gateways().is_ok())
    else {
        return Ok(());
    };
    let (host, cluster) = (Arc::clone(host), Arc::clone(cluster));
    let started = threads::start(move || report(&host, &cluster, &driver));
    started
        .map(drop)
        .map_err(during("start the thread that reports on gateways"))
}

fn report(host: &Host, cluster: &Cluster, driver: &Driver) {
    let mut reported = BTreeMap::new();
    let (mut seen, mut next) = (0, None);
    while let Some(pulse) = driver.await_pulse(seen, next) {
        if host.is_ending() {
            return;
        }
        seen = pulse;
        let wanted = host.gateway_reports(&cluster.config.host);
        reported.retain(|other, _| wanted.contains_key(other));
        let mut is_open = false;
        for (other, problems) in wanted {
            is_open |= !problems.is_empty();
            let last: Option<&Reported> = reported.get(&other);
            let is_known = last.is_some_and(|last| last.covers(&problems));
            if is_known || driver.passes_to(&other) != Some(true) {
                continue;
            }
            match host.send_report(cluster, &other, &problems) {
                Some(link) => drop(reported.insert(other, Reported { problems, link })),
                None => is_open = true,
            }
        }
        next = is_open.then(|| Instant::now() + AGAIN);
    }
}

/// Takes a report of another host.
pub(super) fn hear(host: &Host, from: &str, problems: Vec<GatewayProblem>) -> HostResponse {
    let problems = problems.into_iter().map(|its| {
        let (domain, node) = (its.domain, NodeId(its.node));
        (GatewayId { domain, node }, its.problem)
    });
    host.gateways
        .reported()
        .insert(from.into(), problems.collect());
    host.rethink_ways();
    HostResponse::Done
}

impl Host {
    /// Problems of this host's gateways, by host with members that may use them.
    fn gateway_reports(&self, ours: &str) -> BTreeMap<String, Vec<GatewayProblem>> {
        let directory = self.members.directory(Directory::clone);
        let mut reports: BTreeMap<String, Vec<GatewayProblem>> = BTreeMap::new();
        for domain in directory.domains() {
            let gateways = domain.gateways.iter();
            let mut here = gateways
                .filter(|gateway| self.node(gateway.node).is_some())
                .peekable();
            if here.peek().is_none() {
                continue;
            }
            let problem = |id| self.own_problem(id).map(|problem| (id, problem));
            let problems = here.filter_map(|gateway| problem(GatewayId::of(domain, gateway)));
            let problems: Vec<GatewayProblem> = problems
                .map(|(id, problem)| GatewayProblem {
                    domain: id.domain,
                    node: id.node.0,
                    problem,
                })
                .collect();
            for other in hosts_of(&directory, domain)
                .into_iter()
                .filter(|it| *it != ours)
            {
                reports
                    .entry(other.into())
                    .or_default()
                    .extend(problems.iter().cloned());
            }
        }
        reports
    }

    /// Sends a report. Returns its session if the other host has taken it.
    fn send_report(
        &self,
        cluster: &Cluster,
        other: &str,
        problems: &[GatewayProblem],
    ) -> Option<Arc<Link>> {
        let link = match self.link_to(cluster, other) {
            Ok(link) => link,
            Err(refusal) => {
                tracing::debug!("no report on gateways to host {other}: {refusal}");
                return None;
            }
        };
        match link.ask(HostRequest::GatewayProblems(problems.to_vec()), TIMEOUT) {
            Ok(HostResponse::Done) => Some(link),
            answer => {
                tracing::debug!("no report on gateways to host {other}: {answer:?}");
                None
            }
        }
    }
}

/// Hosts of a domain's members.
fn hosts_of<'d>(directory: &'d Directory, domain: &Domain) -> BTreeSet<&'d str> {
    let nodes = domain.members.keys();
    nodes.filter_map(|node| directory.host_of(*node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::link::tests::sessions;

    #[test]
    fn problems_are_reported_again_in_the_next_session_and_their_absence_is_not() {
        let [ours, _theirs] = sessions();
        let link = Link::new("b".into(), ours.writer);
        let problem = GatewayProblem {
            domain: 1,
            node: 2,
            problem: "eth1 is down".into(),
        };
        let of = |problems: &[GatewayProblem]| Reported {
            problems: problems.to_vec(),
            link: Arc::clone(&link),
        };
        let problems = [problem];
        let (none, some) = (of(&[]), of(&problems));
        assert!(none.covers(&[]) && some.covers(&problems));
        assert!(!none.covers(&problems) && !some.covers(&[]));
        link.end();
        assert!(none.covers(&[]));
        assert!(!some.covers(&problems));
    }
}
