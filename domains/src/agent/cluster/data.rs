//! Whom connections of other hosts are for that have shown a ticket.

use std::sync::Arc;

use super::Cluster;
use super::broker::DataConnection;
use crate::agent::host::Host;
use crate::hosts::messages::Wanted;

/// Lets other hosts connect.
pub(super) fn serve(host: &Arc<Host>, cluster: &Cluster) {
    let host = Arc::clone(host);
    cluster
        .broker
        .serve(move |connection| receive(&host, connection));
}

/// Must not take long: others wait at the door meanwhile.
fn receive(_host: &Arc<Host>, connection: DataConnection) {
    let DataConnection {
        stream,
        host: from,
        wanted,
    } = connection;
    match wanted {
        Wanted::Frames | Wanted::Node(_) => {
            tracing::debug!("host {from} connects for {wanted:?}, which nothing serves");
            drop(stream);
        }
    }
}
