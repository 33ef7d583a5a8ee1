//! Whom connections of other hosts are for that have shown a ticket.

use std::net::TcpStream;
use std::sync::Arc;

use super::Cluster;
use super::broker::DataConnection;
use crate::adapter::messages::{Order, Service};
use crate::agent::adapter::borrow;
use crate::agent::host::Host;
use crate::hosts::messages::{Between, Wanted};
use crate::protocol::Refusal;

/// Lets other hosts connect.
pub(super) fn serve(host: &Arc<Host>, cluster: &Cluster) {
    let host = Arc::clone(host);
    cluster
        .broker
        .serve(move |connection| receive(&host, connection));
}

/// Must not take long: others wait at the door meanwhile.
fn receive(host: &Arc<Host>, connection: DataConnection) {
    let DataConnection {
        stream,
        host: from,
        wanted,
    } = connection;
    match wanted {
        Wanted::Node(between) => {
            if let Err(refusal) = serve_node(host, between, stream) {
                tracing::warn!("host {from} connects in vain: {refusal}");
            }
        }
        Wanted::Frames => {
            tracing::debug!("host {from} connects for {wanted:?}, which nothing serves");
            drop(stream);
        }
    }
}

/// Lets the adapter serve a process of a node of another host.
fn serve_node(host: &Host, between: Between, stream: TcpStream) -> Result<(), Refusal> {
    let domain = host.members.directory(|directory| {
        let domain = directory.domain_by_id(between.partition)?;
        Some(domain.name.clone())
    });
    let (Some(adapter), Some(domain)) = (&host.adapter, domain) else {
        // It has been removed since the ticket was given.
        return Ok(());
    };
    let service = Service {
        from: between.from,
        to: between.to,
        domain,
        partition: between.partition,
        protocol: between.protocol,
    };
    adapter.order(&Order::Serve(service), &borrow([&stream.into()]))
}
