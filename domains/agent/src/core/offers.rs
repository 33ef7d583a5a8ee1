//! Offers to lead: before the leader commits a move of the directory to this host's files, this host
//! keeps the change that the move is. It brings the change into effect when it knows that the move
//! was committed, also if it hears so from another host than the leader.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use toroid_model::directory::Directory;
use toroid_model::directory::moved::Moved;
use toroid_model::directory::records::Changes;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::hosts::DirectoryUpdate;

use super::host::Host;
use crate::cluster::Cluster;
use crate::store::ownership;

/// File with the last offer, in the data directory.
const OFFER: &str = "offer";

/// Keeps an offer of the leader.
pub(crate) fn take(host: &Host, cluster: &Cluster, offer: &DirectoryUpdate) -> Result<(), Refusal> {
    let _turn = host.changes.take(Actor::Administrator(host.identity.uid))?;
    keep(host, cluster, offer)
}

/// Keeps an offer. The caller has a turn.
pub(crate) fn keep(host: &Host, cluster: &Cluster, offer: &DirectoryUpdate) -> Result<(), Refusal> {
    let name = &cluster.config.host;
    let present = host.members.directory(Directory::clone);
    let next = after(&present, offer)?;
    let here = next.moved().filter(|moved| moved.to == *name);
    if !cluster.file.redirected(here).holds_directory() {
        let named = &cluster.file.directory;
        return Err(Refusal::new(
            RefusalKind::Invalid,
            format!("the file of host {name} names {named} as `directory`, which is not followed"),
            format!("write directory = \"{name}\" there, and try again"),
        ));
    }
    write(&host.data, offer).map_err(|error| {
        let message = format!("host {name} cannot keep the move: {error}");
        Refusal::new(
            RefusalKind::Failed,
            message,
            "see to its disk, and try again",
        )
    })
}

fn write(data: &Path, offer: &DirectoryUpdate) -> io::Result<()> {
    let path = data.join(OFFER);
    ownership::replace(&path, &serde_json::to_vec(offer)?)?;
    File::open(&path)?.sync_all()?;
    File::open(data)?.sync_all()
}

/// The last offer.
pub(crate) fn read(data: &Path) -> Option<DirectoryUpdate> {
    let text = fs::read(data.join(OFFER)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Forgets an offer, which is made for another directory than the present one.
pub(crate) fn forget(host: &Host) {
    // There is none most of the time.
    let _ = fs::remove_file(host.data.join(OFFER));
}

/// The directory after an offer, which goes on from exactly the present one.
pub(crate) fn after(present: &Directory, offer: &DirectoryUpdate) -> Result<Directory, Refusal> {
    let failed = |message| Refusal::new(RefusalKind::Failed, message, "try again");
    let DirectoryUpdate::Changes { since, put, remove } = offer else {
        return Err(failed("an offer has the changes of a move".into()));
    };
    if present.is_partial() || present.revision().as_ref() != Some(since) {
        return Err(failed(format!("the copy here is not of {since}")));
    }
    let changes = Changes {
        put: put.clone(),
        remove: remove.clone(),
    };
    present
        .with(&changes)
        .map_err(|error| failed(format!("the offer makes no sense: {error}")))
}

/// Notes that another host has the record of a move to this one, which it got after the move was
/// committed.
pub(crate) fn hear(host: &Host, cluster: &Cluster, moved: &Moved) {
    let is_offered = || {
        let present = host.members.directory(Directory::clone);
        let next = read(&host.data).and_then(|offer| after(&present, &offer).ok());
        next.is_some_and(|next| next.moved() == Some(moved))
    };
    if moved.to == cluster.config.host && !cluster.is_leader() && is_offered() {
        cluster.moves.note(moved.clone());
        cluster.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use toroid_model::directory::revision::FabricId;

    use super::*;

    #[test]
    fn an_offer_goes_on_from_the_directory_that_it_was_made_for_only() {
        let mut present = Directory::new("2x1x1".parse().unwrap());
        present.begin_term(FabricId(1), 1);
        let moved = |to| {
            let mut next = present.clone();
            next.relocate("a", to, BTreeSet::new(), 7);
            next.advance(&present);
            next
        };
        let next = moved("b");
        let Changes { put, remove } = next.changes_since(&present);
        let since = present.revision().unwrap();
        let offer = DirectoryUpdate::Changes { since, put, remove };
        let data = tempfile::tempdir().unwrap();
        assert!(read(data.path()).is_none());
        write(data.path(), &offer).unwrap();
        let read = read(data.path()).unwrap();
        assert_eq!(after(&present, &read).unwrap().records(), next.records());
        // Another change was made, or another move.
        let other = moved("c");
        let refusal = after(&other, &read).unwrap_err();
        assert!(refusal.message.contains("revision 1"), "{refusal}");
        after(&present, &DirectoryUpdate::Whole(next.records())).unwrap_err();
    }
}
