//! Commands in nodes of other hosts, and of other hosts in nodes of this one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use toroid_client::credentials::Ids;
use toroid_model::directory::Directory;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::command::Start;
use toroid_protocol::hosts::TicketPurpose;

use crate::cluster::tickets::DataConnection;
use crate::core::host::Host;
use crate::threads;

/// Starts a command of `user`, whose process has the ids `caller`, on host `carrier`. Returns its
/// session.
pub(crate) fn start(
    host: &Host,
    (user, caller): (u32, Ids),
    carrier: &str,
    start: Start,
) -> Result<OwnedFd, Refusal> {
    let wanted = TicketPurpose::Command { user };
    let (connection, keys) = host.data_connection(carrier, wanted)?;
    let relays = &host.relays;
    relays.start_near(caller, carrier, &connection, keys, start)
}

/// Whether this agent can give a command the rights of a user. Root on the other host administers this
/// one, too (see [`Requester::actor`](toroid_protocol::hosts::Requester::actor)).
pub(super) fn may_begin(host: &Host, user: u32) -> Result<(), Refusal> {
    let own = host.identity.uid;
    if !host.identity.rootless || user == 0 || user == own {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalKind::Denied,
        format!("the agent there runs as uid {own}, so it starts commands of that user only"),
        "start it as root",
    ))
}

/// Starts the far relay of a command of another host, on a thread: it takes a moment.
pub(super) fn receive(host: &Arc<Host>, user: u32, connection: DataConnection) {
    let host = Arc::clone(host);
    let start = move || {
        let from = connection.host.as_str();
        let is_admitted =
            || host.members.directory(Directory::clone).is_admitted(from) && !host.is_ending();
        let (stream, keys) = (&connection.stream, connection.keys.clone());
        let started = host
            .relays
            .start_far(&host.state, (from, user), stream, keys, is_admitted);
        if let Err(refusal) = started {
            tracing::warn!("a command of host {from}: {refusal}");
        }
    };
    if let Err(error) = threads::start(start) {
        tracing::warn!("cannot start a thread for a command of another host: {error}");
    }
}
