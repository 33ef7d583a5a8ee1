//! Application of the leader's directory at a follower: by the changes that its own agent would
//! make, in one turn. Members that left meanwhile are cut off first. The effort depends on the
//! differences, not on the number of domains.

use toroid_model::directory::Directory;
use toroid_model::directory::records::Changes;
use toroid_model::directory::transition::Transition;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::hosts::DirectoryUpdate;

use crate::cluster::Cluster;
use crate::cluster::revisions::{check_base, check_update};
use crate::core::host::Host;
use crate::core::offers;
use crate::nodes::HostedNode;
use crate::nodes::generation::Closed;

/// Carries out the differences between the new directory and the present one. Returns failures that
/// leave the directory valid: they do not stop the rest.
pub(crate) fn adopt(host: &Host, adoption: DirectoryUpdate) -> Result<Vec<Refusal>, Refusal> {
    let _turn = host.changes.take(Actor::Administrator(host.identity.uid))?;
    let present = host.members.directory(Directory::clone);
    let next = read(&present, adoption)?;
    check_revision(host, &present, &next)?;
    follow(host, &present, next)
}

/// Carries out the differences between a directory and the present one. The caller has its turn.
pub(crate) fn follow(
    host: &Host,
    present: &Directory,
    next: Directory,
) -> Result<Vec<Refusal>, Refusal> {
    if next.torus() != present.torus() {
        let message = format!("its directory is of a torus {}", next.torus());
        return Err(Refusal::new(RefusalKind::Invalid, message, ""));
    }
    let transition = Transition::between(present, &next).map_err(|error| {
        let remedy = "if that directory was begun anew, begin anew here, too: `toroid up --fresh`";
        Refusal::new(RefusalKind::Exists, error.to_string(), remedy)
    })?;
    let is_rekeyed = next.host_keys() != present.host_keys();
    let (revision, adopted) = (next.revision(), next.clone());
    let carried_out = carry_out(host, transition, next);
    // Also after a failure: when the leader repeats the update, the keys are the same.
    if is_rekeyed {
        // Also of a host that is new.
        host.cut_removed_hosts();
    }
    if let (Ok(_), Some(cluster)) = (&carried_out, &host.cluster) {
        cluster.moves.keep(&adopted);
        if revision != present.revision() {
            offers::forget(host);
        }
        cluster.tickets.set_term(revision);
        host.leases.cut(revision);
        host.members.settle_leases();
    }
    carried_out
}

/// Brings the offer of a committed move to this host into effect, if it is not yet.
pub(super) fn complete_offer(host: &Host, cluster: &Cluster) -> Result<(), Refusal> {
    let last = cluster.moves.last();
    let Some(moved) = last.filter(|last| last.to == cluster.config.host) else {
        return Ok(());
    };
    let _turn = host.changes.take(Actor::Administrator(host.identity.uid))?;
    let present = host.members.directory(Directory::clone);
    let Some(offer) = offers::read(&host.data).filter(|_| present.moved() != Some(&moved)) else {
        return Ok(());
    };
    let next = offers::after(&present, &offer).ok();
    let Some(next) = next.filter(|next| next.moved() == Some(&moved)) else {
        return Ok(());
    };
    tracing::info!("the move of the directory to this host was committed");
    follow(host, &present, next).map(drop)
}

/// Refuses a directory of another fabric, an older one than this host's copy, or one that has moved
/// away.
fn check_revision(host: &Host, present: &Directory, next: &Directory) -> Result<(), Refusal> {
    let Some(cluster) = &host.cluster else {
        return Ok(());
    };
    let leader = cluster.leader_name().unwrap_or_default();
    cluster.check_place(&leader, next.moved())?;
    check_update((&cluster.config.host, present.revision()), (&leader, next))
}

/// Whether the effects of the last update may be incomplete: it failed, or this is the first of a
/// session.
fn may_lack_effects(host: &Host) -> bool {
    let cluster = host.cluster.as_ref();
    cluster.is_some_and(|cluster| cluster.leader().differs)
}

fn read(present: &Directory, adoption: DirectoryUpdate) -> Result<Directory, Refusal> {
    let next = match adoption {
        DirectoryUpdate::Whole(records) => {
            Directory::from_records(&records).map(|next| next.administered_as(present))
        }
        DirectoryUpdate::Changes { since, put, remove } => {
            check_base(present, &since)?;
            present.with(&Changes { put, remove })
        }
    };
    next.map_err(|error| {
        let message = format!("the directory that came makes no sense: {error}");
        Refusal::new(
            RefusalKind::Failed,
            message,
            "use the same release on all hosts",
        )
    })
}

fn carry_out(
    host: &Host,
    transition: Transition,
    next: Directory,
) -> Result<Vec<Refusal>, Refusal> {
    let given = transition.given.iter().filter_map(|id| host.node(*id));
    let given: Vec<&HostedNode> = given.collect();
    let _closed: Vec<Closed<'_>> = given.iter().map(|node| node.generation.close()).collect();
    if !transition.leaving.is_empty() {
        host.leave_all(transition.leaving, transition.meanwhile, next.revision())?;
    }
    if !given.is_empty() {
        host.empty(&given)?;
    }
    let mut exceptions = if transition.joining.is_empty() {
        host.members.adopt(next.clone())?;
        Vec::new()
    } else {
        host.join_as_decided(transition.joining, &next)?
    };
    let is_whole = may_lack_effects(host);
    if is_whole {
        host.tell_all_remote(&next);
    } else {
        host.tell_moved(&next, &transition.moved);
    }
    for domain in &transition.altered {
        exceptions.extend(host.tell_members(domain).err());
    }
    for domain in &transition.relinked {
        exceptions.extend(host.adopt_links(domain).err());
    }
    let renamed = if is_whole {
        host.nodes.iter().map(|node| node.id).collect()
    } else {
        transition.renamed
    };
    host.write_hosts(&next, &renamed)?;
    if is_whole || !transition.altered.is_empty() {
        host.settle_gateways();
    }
    Ok(exceptions)
}
