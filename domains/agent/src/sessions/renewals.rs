//! Renewals of leases, as long as some domain has a fence.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use toroid_model::directory::Directory;
use toroid_model::directory::revision::Revision;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{HostRequest, HostResponse};

use crate::cluster::Cluster;
use crate::cluster::link::{Link, NoAnswer};
use crate::control::lease::RENEWAL;
use crate::core::host::Host;
use crate::error::{AgentError, during};
use crate::leases::Leases;
use crate::threads;

/// Time for an answer. A later one counts for little.
const PATIENCE: Duration = Duration::from_secs(2);

/// Renews this host's lease with the leader until the session ends.
pub(super) fn renew(host: &Arc<Host>, link: &Arc<Link>) {
    let (host, link) = (Arc::clone(host), Arc::clone(link));
    let renew = move || {
        while !link.has_ended() {
            if is_needed(&host) {
                let sent = Leases::now();
                match link.ask(HostRequest::Renew, PATIENCE) {
                    Ok(HostResponse::Renewed(needs)) => host.leases.answered(sent, needs),
                    Ok(other) => tracing::debug!("a lease is not renewed: {other:?}"),
                    Err(NoAnswer::Late) => continue,
                    Err(_) => return,
                }
            }
            thread::sleep(RENEWAL);
        }
    };
    if let Err(error) = threads::start_named("lease", renew) {
        tracing::error!("no thread for this host's lease: {error}");
    }
}

/// Renews the lease of an elected leader, which asks etcd.
pub(crate) fn renew_own(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let (host, cluster) = (Arc::clone(host), Arc::clone(cluster));
    let renew = move || {
        while !host.is_ending() {
            if is_needed(&host) {
                let since = Leases::now();
                match cluster.confirm_lead() {
                    Ok(()) => host.leases.led(since),
                    Err(refusal) => tracing::debug!("the lease is not renewed: {refusal}"),
                }
                let _turn = host.changes.retake();
                host.members.settle_leases();
            }
            thread::sleep(RENEWAL);
        }
    };
    threads::start_named("lease", renew)
        .map(drop)
        .map_err(during("start the thread of this host's lease"))
}

fn is_needed(host: &Host) -> bool {
    let is_fenced = |directory: &Directory| directory.fenced_domains().next().is_some();
    host.members.directory(is_fenced)
}

/// Answers a renewal with the revision that the host needs: looked up after the renewal came, and in
/// a term that has lasted until then.
pub(super) fn answer(cluster: &Cluster, needs: impl Fn() -> Option<Revision>) -> HostResponse {
    let needed = cluster.confirm_lead().and_then(|()| {
        let needed = needs();
        // After that: a leader whose directory has moved away knows no later revisions.
        cluster.check_lead()?;
        needed.ok_or_else(|| {
            let message = "the session has ended";
            Refusal::new(RefusalKind::Failed, message, "")
        })
    });
    needed.map_or_else(HostResponse::Refused, HostResponse::Renewed)
}
