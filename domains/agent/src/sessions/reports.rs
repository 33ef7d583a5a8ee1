//! Reports of gateways that do not work, from their host to those with members of their domains.
//!
//! The host of a gateway alone knows its uplink. Its agent reports to the agents of the other hosts
//! directly, so that the leader has no part in it and its end no effect. All reports of a life but the
//! first are about changes. A host without a tunnel to this one cannot use the gateways, and is told
//! when it has one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::{Directory, Domain};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{GatewayProblem, HostRequest, HostResponse};

use crate::cluster::Cluster;
use crate::cluster::link::{Link, NoAnswer, Question};
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

/// Longest pause between two attempts to open a session.
const MAX_PAUSE: Duration = Duration::from_secs(16);

/// Characters of a problem that are kept.
const MAX_TEXT: usize = 200;

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

fn report(host: &Arc<Host>, cluster: &Arc<Cluster>, driver: &Driver) {
    let (mut reported, mut dials) = (BTreeMap::<String, Reported>::new(), Dials::default());
    let (mut seen, mut next) = (0, None);
    while let Some(pulse) = driver.await_pulse(seen, next) {
        if host.is_ending() {
            return;
        }
        seen = pulse;
        let wanted = host.gateway_reports(&cluster.config.host);
        reported.retain(|other, _| wanted.contains_key(other));
        let mut is_open = wanted.values().any(|problems| !problems.is_empty());
        let mut reports = Vec::new();
        for (other, problems) in wanted {
            let is_known = reported.get(&other).is_some_and(|it| it.covers(&problems));
            if is_known || driver.passes_to(&other) != Some(true) {
                continue;
            }
            if let Some(link) = cluster.link_of(&other) {
                dials.0.remove(&other);
                reports.push((other, Reported { problems, link }));
            } else {
                dials.open(host, cluster, &other);
                is_open = true;
            }
        }
        let count = reports.len();
        let taken = send(reports, TIMEOUT);
        is_open |= taken.len() < count;
        reported.extend(taken);
        next = is_open.then(|| Instant::now() + AGAIN);
    }
}

/// Sends reports to all at once, because a host may be silent. Returns those that the other hosts
/// have taken.
fn send(reports: Vec<(String, Reported)>, timeout: Duration) -> Vec<(String, Reported)> {
    let until = Instant::now() + timeout;
    let asked = reports.iter().map(|(_, report)| {
        let problems = report.problems.clone();
        report.link.begin(HostRequest::GatewayProblems(problems))
    });
    let asked: Vec<_> = asked.collect();
    let is_taken = |(asked, (other, _)): (Result<Question<'_>, NoAnswer>, &(String, _))| {
        let time = until.saturating_duration_since(Instant::now());
        let answer = asked.and_then(|question| question.wait(time));
        if !matches!(answer, Ok(HostResponse::Done)) {
            tracing::debug!("no report on gateways to host {other}: {answer:?}");
            return false;
        }
        true
    };
    let taken: Vec<bool> = asked.into_iter().zip(&reports).map(is_taken).collect();
    let reports = reports.into_iter().zip(taken);
    reports
        .filter_map(|(report, is_taken)| is_taken.then_some(report))
        .collect()
}

/// Sessions in the making, by host, each in a thread of its own.
#[derive(Default)]
struct Dials(BTreeMap<String, Dial>);

struct Dial {
    thread: JoinHandle<()>,
    /// Time until the next attempt, and its moment.
    pause: Duration,
    next: Instant,
}

impl Dials {
    /// Opens a session with another host, if an attempt is due. A new session wakes the reporter.
    fn open(&mut self, host: &Arc<Host>, cluster: &Arc<Cluster>, other: &str) {
        let (now, last) = (Instant::now(), self.0.get(other));
        if last.is_some_and(|last| !last.thread.is_finished() || now < last.next) {
            return;
        }
        let pause = last.map_or(AGAIN, |last| MAX_PAUSE.min(last.pause * 2));
        let (host, cluster, to) = (Arc::clone(host), Arc::clone(cluster), other.to_owned());
        let dial = move || match host.link_to(&cluster, &to) {
            Ok(_) => host.rethink_ways(),
            Err(refusal) => tracing::debug!("no report on gateways to host {to}: {refusal}"),
        };
        match threads::start(dial) {
            Ok(thread) => {
                let next = now + pause;
                let dial = Dial {
                    thread,
                    pause,
                    next,
                };
                self.0.insert(other.into(), dial);
            }
            Err(error) => tracing::debug!("no report on gateways to host {other}: {error}"),
        }
    }
}

/// Takes a report of another host. Refuses one about other gateways than that host has by the
/// directory, which may be older than its own: it repeats the report.
pub(super) fn hear(host: &Host, from: &str, problems: Vec<GatewayProblem>) -> HostResponse {
    let count = problems.len();
    let problems = host
        .members
        .directory(|directory| known(directory, from, problems));
    let is_whole = problems.len() == count;
    let mut reported = host.gateways.reported();
    let is_new = reported.get(from) != Some(&problems);
    reported.insert(from.into(), problems);
    drop(reported);
    if is_new {
        host.rethink_ways();
    }
    if is_whole {
        return HostResponse::Done;
    }
    HostResponse::Refused(Refusal::new(
        RefusalKind::NotFound,
        format!("not all are gateways of host {from}"),
        "try again later",
    ))
}

/// Problems of gateways that a host has by the directory, with texts fit for logs and terminals.
fn known(
    directory: &Directory,
    from: &str,
    problems: Vec<GatewayProblem>,
) -> BTreeMap<GatewayId, String> {
    let is_its = |its: &GatewayProblem| {
        let node = NodeId(its.node);
        let domain = directory.domain_by_id(its.domain.into());
        let is_gateway = domain.is_some_and(|domain| domain.gateway_at(node).is_some());
        is_gateway && directory.host_of(node) == Some(from)
    };
    let problem = |its: GatewayProblem| {
        let (domain, node) = (its.domain, NodeId(its.node));
        let text = its.problem.chars().take(MAX_TEXT);
        let text = text.collect::<String>().escape_debug().to_string();
        (GatewayId { domain, node }, text)
    };
    problems.into_iter().filter(is_its).map(problem).collect()
}

impl Host {
    /// Problems of this host's gateways, by host with members that may use them.
    fn gateway_reports(&self, ours: &str) -> BTreeMap<String, Vec<GatewayProblem>> {
        let directory = self.members.directory(Directory::clone);
        let mut reports: BTreeMap<String, Vec<GatewayProblem>> = BTreeMap::new();
        for domain in directory.connected_domains() {
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
}

/// Hosts of a domain's members.
fn hosts_of<'d>(directory: &'d Directory, domain: &Domain) -> BTreeSet<&'d str> {
    let nodes = domain.members.keys();
    nodes.filter_map(|node| directory.host_of(*node)).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use toroid_protocol::hosts::HostMessage;

    use super::*;
    use crate::channel::SessionError;
    use crate::channel::secure::Session;
    use crate::cluster::link::tests::sessions;
    use crate::net::gateways::tests::connected;

    #[test]
    fn a_host_reports_on_its_own_gateways_alone_and_in_short() {
        let mut directory = connected();
        for (host, nodes) in [("a", [0, 1]), ("b", [2, 3])] {
            directory.claim(host, &nodes.map(NodeId).into()).unwrap();
        }
        let domain = directory.domain("blue").unwrap().id;
        let report = |domain, node| GatewayProblem {
            domain,
            node,
            problem: "\x1b[2J".repeat(100),
        };
        // A gateway of another host, no gateway, no domain, and no node.
        let others = [(domain, 1), (domain, 3), (domain + 1, 2), (domain, 9)];
        let all = others.into_iter().chain([(domain, 2)]);
        let all = all.map(|(domain, node)| report(domain, node)).collect();
        let node = NodeId(2);
        let text = "\\u{1b}[2J".repeat(50);
        let expected = BTreeMap::from([(GatewayId { domain, node }, text)]);
        assert_eq!(known(&directory, "b", all), expected);
    }

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

    /// A host was asked after the hosts before it had answered, of which one may be silent.
    #[test]
    fn a_host_gets_its_report_before_another_has_answered() {
        let (slow, quick) = (sessions(), sessions());
        let report = |host: &str, session: &Session| {
            let link = Link::new(host.into(), session.writer.clone());
            let problems = Vec::new();
            (host.to_owned(), Reported { problems, link })
        };
        let reports = vec![report("b", &slow[0]), report("c", &quick[0])];
        let links = [0, 1].map(|n: usize| Arc::clone(&reports[n].1.link));
        let [[b_ours, mut b], [c_ours, mut c]] = [slow, quick];
        let answer = |session: &Session, heard: Result<HostMessage, SessionError>| {
            let Ok(HostMessage::HostRequest { number, .. }) = heard else {
                panic!("{heard:?} is no request");
            };
            let answer = HostResponse::Done;
            let message = HostMessage::HostResponse { number, answer };
            session.writer.send(&message).unwrap();
        };
        let [to_b, to_c] = &links;
        thread::scope(|scope| {
            scope.spawn(|| to_b.attend(b_ours.reader, |_| HostResponse::Done));
            scope.spawn(|| to_c.attend(c_ours.reader, |_| HostResponse::Done));
            let sent = scope.spawn(|| send(reports, Duration::from_secs(60)));
            let heard = c.reader.receive();
            answer(&c, heard);
            let heard = b.reader.receive();
            answer(&b, heard);
            let taken = sent.join().unwrap();
            let taken: Vec<&str> = taken.iter().map(|(host, _)| host.as_str()).collect();
            assert_eq!(taken, ["b", "c"]);
            links.iter().for_each(|link| link.end());
        });
    }
}
