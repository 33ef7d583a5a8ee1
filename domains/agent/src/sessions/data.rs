//! Data connections of other hosts that have shown a ticket.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use toroid_model::refusal::Refusal;
use toroid_protocol::hosts::{NodePair, TicketPurpose};
use toroid_protocol::proxy::{ProxyRequest, Service};
use toroid_protocol::seal::SealKeys;

use super::{commands, tunnels};
use crate::cluster::Cluster;
use crate::cluster::tickets::DataConnection;
use crate::core::host::Host;

/// Serves data connections of other hosts.
pub(crate) fn serve(host: &Arc<Host>, cluster: &Cluster) {
    let host = Arc::clone(host);
    cluster
        .tickets
        .serve(move |connection| receive(&host, connection));
}

/// Must not block: other connections wait meanwhile.
fn receive(host: &Arc<Host>, connection: DataConnection) {
    match connection.wanted {
        TicketPurpose::Frames => tunnels::receive(host, connection),
        TicketPurpose::Command { user } => commands::receive(host, user, connection),
        TicketPurpose::Node(between) => {
            let DataConnection {
                stream,
                keys,
                host: from,
                ..
            } = connection;
            if let Err(refusal) = serve_node(host, between, stream, keys) {
                tracing::warn!("host {from} connects in vain: {refusal}");
            }
        }
    }
}

/// Passes a connection of a remote process to the target proxy.
fn serve_node(
    host: &Host,
    between: NodePair,
    stream: TcpStream,
    keys: Option<SealKeys>,
) -> Result<(), Refusal> {
    let domain = host.members.directory(|directory| {
        let domain = directory.domain_by_id(between.partition)?;
        Some(domain.name.clone())
    });
    let (Some(proxy), Some(domain)) = (&host.proxy, domain) else {
        // The domain has been removed since the ticket was issued.
        return Ok(());
    };
    let service = Service {
        from: between.from,
        to: between.to,
        domain,
        partition: between.partition,
        protocol: between.protocol,
        rdma: host.rdma(),
        keys,
    };
    proxy.order(&ProxyRequest::Serve(service), &[stream.as_fd()])
}
