//! Commands in nodes of other hosts, and of other hosts in nodes of this one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use toroid_client::credentials::Ids;
use toroid_model::directory::Directory;
use toroid_model::hosts::Commands;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::command::Start;
use toroid_protocol::hosts::TicketPurpose;

use crate::cluster::Cluster;
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
    let is_admitted = || is_admitted(host, carrier);
    let relays = &host.relays;
    relays.start_near(caller, carrier, (&connection, keys), start, is_admitted)
}

/// Whether a user of another host may run commands here. Nodes without users of their own have those
/// of their agent: no other host makes itself root of this one. Under the agent of an ordinary user
/// the other host's word counts for that user.
pub(super) fn may_begin(host: &Host, cluster: &Cluster, user: u32) -> Result<(), Refusal> {
    let refuse = |why: String| {
        let remedy = "run it on that host";
        Err(Refusal::new(RefusalKind::Denied, why, remedy))
    };
    let (name, own) = (&cluster.config.host, host.identity.uid);
    if cluster.config.commands == Commands::Off {
        return refuse(format!("the file of host {name} has commands = \"off\""));
    }
    if host.users.is_none() && !(host.identity.rootless && user == own) {
        return refuse(format!(
            "nodes of host {name} have no users of their own, so their commands are those of uid \
             {own} there"
        ));
    }
    Ok(())
}

/// Starts the far relay of a command of another host, on a thread: it takes a moment.
pub(super) fn receive(host: &Arc<Host>, user: u32, connection: DataConnection) {
    let host = Arc::clone(host);
    let start = move || {
        let DataConnection {
            stream,
            keys,
            host: from,
            ..
        } = connection;
        let may_begin = || is_admitted(&host, &from) && !host.is_ending();
        if !may_begin() {
            return;
        }
        let (state, relays) = (&host.state, &host.relays);
        let started = relays.start_far(state, (&from, user), (&stream, keys.as_ref()), may_begin);
        if let Err(refusal) = started {
            tracing::warn!("a command of host {from}: {refusal}");
            relays.refuse(stream, keys.as_ref(), refusal);
        }
    };
    if let Err(error) = threads::start(start) {
        tracing::warn!("cannot start a thread for a command of another host: {error}");
    }
}

fn is_admitted(host: &Host, other: &str) -> bool {
    host.members
        .directory(|directory: &Directory| directory.is_admitted(other))
}
