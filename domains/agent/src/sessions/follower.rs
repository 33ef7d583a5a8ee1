//! A follower's side: sessions with the leader, one after another.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{Claim, DirectoryUpdate, HostRequest, HostResponse};

use super::{apply, lookup, tickets};
use crate::channel::secure::Session;
use crate::cluster::Cluster;
use crate::cluster::link::Link;
use crate::cluster::pages::Pages;
use crate::core::host::Host;
use crate::error::{AgentError, during};
use crate::threads;

/// Pauses before the leader is called again.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Follows until the agent ends.
pub(crate) fn begin(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let (host, cluster) = (Arc::clone(host), Arc::clone(cluster));
    let started = threads::start(move || follow(&host, &cluster));
    started
        .map(drop)
        .map_err(during("start the thread that follows the directory"))
}

fn follow(host: &Arc<Host>, cluster: &Arc<Cluster>) {
    let leader = &cluster.config.directory;
    let claim = Claim {
        nodes: cluster.config.nodes.clone(),
        aliases: cluster.config.aliases.clone(),
    };
    let mut pause = BACKOFF[0];
    while !host.is_ending() {
        match host.dial(cluster, leader, Some(claim.clone())) {
            Ok(session) => {
                pause = BACKOFF[0];
                attend(host, cluster, session);
            }
            Err(error) => host.note_problem(cluster, leader, &error.to_string()),
        }
        thread::sleep(pause);
        pause = BACKOFF[1].min(pause * 2);
    }
}

fn attend(host: &Arc<Host>, cluster: &Arc<Cluster>, session: Session) {
    let leader = &cluster.config.directory;
    tracing::info!("following the directory of host {leader}");
    cluster.problems.clear(leader);
    let link = Link::new(leader.clone(), session.writer);
    let mut to_leader = cluster.leader();
    to_leader.link = Some(Arc::clone(&link));
    to_leader.differs = true;
    drop(to_leader);
    let (served, known, own) = (Arc::clone(host), Arc::clone(cluster), Arc::clone(&link));
    let pages = Arc::new(Pages::default());
    let end = link.attend(session.reader, move |ask| {
        serve(&served, &known, (&own, &pages), ask)
    });
    cluster.leader().link = None;
    if !host.is_ending() {
        host.note_problem(cluster, leader, &format!("its session has ended: {end}"));
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
        HostRequest::Ticket { wanted, revision } => {
            let asking = (cluster.config.directory.as_str(), revision);
            tickets::give_ticket(host, cluster, asking, wanted)
        }
        HostRequest::Listeners(sought) => {
            lookup::answer(host, cluster, &cluster.config.directory, sought)
        }
        HostRequest::Change { .. } => {
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
            cluster.came.notify_all();
            done_except(&exceptions)
        }
        Err(refusal) => cannot_adopt(host, cluster, link, refusal),
    }
}

fn cannot_adopt(host: &Host, cluster: &Cluster, link: &Link, refusal: Refusal) -> HostResponse {
    // An update of an earlier session may be older than those of this one.
    if !link.has_ended() {
        cluster.leader().differs = true;
        host.note_problem(cluster, &cluster.config.directory, &refusal.message);
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
