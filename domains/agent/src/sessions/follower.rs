//! A follower's side: sessions with the leader, one after another. With a directory on etcd another
//! candidate may lead after each, and the follower asks all of them in turn.

use std::sync::Arc;
use std::time::Duration;

use toroid_model::hosts::{ETCD, HostConfig};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{Claim, DirectoryUpdate, HostRequest, HostResponse};

use super::{apply, gateways, lookup, queries, renewals, reports, tickets};
use crate::channel::secure::Session;
use crate::cluster::link::Link;
use crate::cluster::pages::Pages;
use crate::cluster::{CannotDial, Cluster};
use crate::core::host::Host;
use crate::core::offers;
use crate::error::{AgentError, during};
use crate::threads;

/// Pauses before the leader is called again.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Longest pause before the candidates are asked again, if none of them refuses this host.
const SEARCH: Duration = Duration::from_millis(300);

/// Problem of a host that has the directory by this host's file, and etcd by its own.
const OTHER_DIRECTORY: &str = "its directory is on etcd, and this host's file names it as \
     `directory`; write directory = \"etcd\" and its `candidates` there, and start this agent anew";

/// Follows until the agent ends.
pub(crate) fn begin(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let (host, cluster) = (Arc::clone(host), Arc::clone(cluster));
    let started = threads::start(move || follow(&host, &cluster));
    started
        .map(drop)
        .map_err(during("start the thread that follows the directory"))
}

fn follow(host: &Arc<Host>, cluster: &Arc<Cluster>) {
    let mut pause = BACKOFF[0];
    while !host.is_ending() {
        if let Err(refusal) = apply::complete_offer(host, cluster) {
            tracing::warn!("the move of the directory to this host cannot be completed: {refusal}");
        }
        if cluster.has_new_role() {
            tracing::warn!("the directory has moved");
            return host.start_again();
        }
        let is_elected = cluster.whereabouts().0 == ETCD;
        let longest = match search(host, cluster) {
            Ok((leader, session)) => {
                let is_former = !cluster.whereabouts().1.contains(&leader);
                attend(host, cluster, &leader, session);
                if !is_former {
                    pause = BACKOFF[0];
                }
                if is_elected && !is_former {
                    // The next leader may be there already.
                    continue;
                }
                BACKOFF[1]
            }
            Err(Nobody { is_refused }) if is_refused || !is_elected => BACKOFF[1],
            Err(Nobody { .. }) => SEARCH,
        };
        pause = pause.min(longest);
        // A candidate may get to know the leader meanwhile.
        cluster.came.wait_for(&mut cluster.leader(), pause);
        pause *= 2;
    }
}

/// What a host tells the leader of itself.
pub(crate) fn claim(config: &HostConfig) -> Claim {
    Claim {
        nodes: config.nodes.clone(),
        aliases: config.aliases.clone(),
        address: config.told_address().unwrap_or(config.listen),
    }
}

/// No session with a leader.
struct Nobody {
    /// Whether a host refuses this one.
    is_refused: bool,
}

/// Asks each host that may lead once: the one that is said to lead first, the lost leader last, and
/// then where the directory was, unless this host's file names its place.
fn search(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(String, Session), Nobody> {
    let config = &cluster.config;
    let claim = claim(config);
    let (place, leaders) = cluster.whereabouts();
    let others = leaders.iter().map(String::as_str);
    let mut left: Vec<&str> = others.filter(|other| *other != config.host).collect();
    let former = cluster.former_leaders();
    let mut former = former.iter();
    let mut is_refused = false;
    while !host.is_ending() {
        let known = cluster.leader();
        let (named, lost) = (known.name.clone(), known.lost.clone());
        drop(known);
        let next = take_next(&mut left, named.as_deref(), lost.as_deref());
        let is_former = next.is_none();
        let Some(leader) = next.or_else(|| former.next().map(String::as_str)) else {
            break;
        };
        match host.dial(cluster, leader, Some(claim.clone())) {
            Ok(session) => return Ok((leader.to_owned(), session)),
            Err(CannotDial::NotLeader(named, Some(moved)))
                if cluster.follow_move((*moved).clone(), named.clone()) =>
            {
                // Others are to be asked.
                return Err(Nobody { is_refused: false });
            }
            // It follows, or is away.
            Err(_) if is_former => {}
            Err(CannotDial::NotLeader(_, None)) if place != ETCD => {
                is_refused = true;
                host.note_problem(cluster, leader, OTHER_DIRECTORY);
            }
            // It has heard of the move, and leads soon.
            Err(CannotDial::NotLeader(..)) if place != ETCD => {}
            Err(CannotDial::NotLeader(named, _)) => {
                cluster.problems.clear(leader);
                let mut known = cluster.leader();
                let was_it = known.name.as_deref() == Some(leader);
                // A candidate knows better from etcd.
                if was_it || config.candidacy().is_none() && named.is_some() {
                    known.name = named;
                }
            }
            Err(error) => {
                is_refused |= matches!(error, CannotDial::Refused(_));
                host.note_problem(cluster, leader, &error.to_string());
            }
        }
    }
    Err(Nobody { is_refused })
}

/// Takes the host to be asked next: the named leader, and the lost one after all others.
fn take_next<'a>(
    left: &mut Vec<&'a str>,
    named: Option<&str>,
    lost: Option<&str>,
) -> Option<&'a str> {
    let rank = |host: &str| match Some(host) {
        host if host == lost => 2,
        host if host == named => 0,
        _ => 1,
    };
    let best = left.iter().enumerate().min_by_key(|(_, host)| rank(host));
    let (at, _) = best?;
    Some(left.remove(at))
}

fn attend(host: &Arc<Host>, cluster: &Arc<Cluster>, leader: &str, session: Session) {
    tracing::info!("following the directory of host {leader}");
    // The others may be there, too.
    for candidate in cluster.whereabouts().1 {
        cluster.problems.clear(&candidate);
    }
    let link = Link::new(leader.into(), session.writer);
    let mut to_leader = cluster.leader();
    to_leader.name = Some(leader.into());
    to_leader.link = Some(Arc::clone(&link));
    to_leader.differs = true;
    drop(to_leader);
    cluster.came.notify_all();
    renewals::renew(host, &link);
    let (served, known, own) = (Arc::clone(host), Arc::clone(cluster), Arc::clone(&link));
    let pages = Arc::new(Pages::default());
    let end = link.attend(session.reader, move |ask| {
        serve(&served, &known, (&own, &pages), ask)
    });
    let mut to_leader = cluster.leader();
    to_leader.link = None;
    to_leader.lost = Some(leader.into());
    drop(to_leader);
    if !host.is_ending() {
        let problem = format!("its session has ended: {end}");
        host.note_problem(cluster, leader, &problem);
    }
}

fn serve(
    host: &Arc<Host>,
    cluster: &Cluster,
    (link, pages): (&Link, &Pages),
    ask: HostRequest,
) -> HostResponse {
    match ask {
        HostRequest::Page(records) => match pages.add(records) {
            Ok(()) => HostResponse::Done,
            Err(refusal) => cannot_adopt(host, cluster, link, refusal),
        },
        HostRequest::Adopt(update) => adopt(host, cluster, (link, pages), update),
        HostRequest::Offer(offer) => offers::take(host, cluster, &offer)
            .map_or_else(HostResponse::Refused, |()| HostResponse::Done),
        HostRequest::Ticket { wanted, revision } => {
            tickets::give_ticket(host, cluster, (&link.host, revision), wanted)
        }
        HostRequest::Listeners(sought) => lookup::answer(host, cluster, &link.host, sought),
        HostRequest::Gateway { domain, gateway } => gateways::answer(host, &domain, gateway),
        HostRequest::GatewayProblems(problems) => reports::hear(host, &link.host, problems),
        HostRequest::Query { who, request } => {
            queries::answer_host(host, cluster, (&link.host, who), &request)
        }
        HostRequest::Change { .. } | HostRequest::Renew => {
            let message = format!("host {} does not hold the directory", cluster.config.host);
            HostResponse::Refused(Refusal::new(RefusalKind::Invalid, message, ""))
        }
    }
}

fn adopt(
    host: &Arc<Host>,
    cluster: &Cluster,
    (link, pages): (&Link, &Pages),
    update: DirectoryUpdate,
) -> HostResponse {
    let update = pages.complete(update);
    match update.and_then(|update| apply::adopt(host, update)) {
        Ok(exceptions) => {
            let mut leader = cluster.leader();
            leader.has_come = true;
            leader.differs = false;
            drop(leader);
            cluster.addresses.forget_told();
            cluster.came.notify_all();
            done_except(&exceptions)
        }
        Err(refusal) => {
            let answer = cannot_adopt(host, cluster, link, refusal);
            if !cluster.whereabouts().1.contains(&link.host) {
                // The host that leads may be back.
                link.end();
            }
            answer
        }
    }
}

fn cannot_adopt(host: &Host, cluster: &Cluster, link: &Link, refusal: Refusal) -> HostResponse {
    // An update of an earlier session may be older than those of this one.
    if !link.has_ended() {
        cluster.leader().differs = true;
        host.note_problem(cluster, &link.host, &refusal.message);
    }
    HostResponse::Refused(refusal)
}

fn done_except(exceptions: &[Refusal]) -> HostResponse {
    for exception in exceptions {
        tracing::warn!("{exception}");
    }
    let texts: Vec<&str> = exceptions.iter().map(|e| e.message.as_str()).collect();
    if texts.is_empty() {
        HostResponse::Done
    } else {
        HostResponse::DoneExcept(texts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_leader_is_asked_first_and_the_lost_one_last() {
        let mut left = vec!["a", "b", "c", "d"];
        let mut next = |named| take_next(&mut left, named, Some("a"));
        // Its name is out of date.
        assert_eq!(next(Some("a")), Some("b"));
        assert_eq!(next(Some("d")), Some("d"));
        assert_eq!(next(Some("d")), Some("c"));
        assert_eq!(next(None), Some("a"));
        assert_eq!(next(Some("a")), None);
    }
}
