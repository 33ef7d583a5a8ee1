//! Tickets for data connections: requests to other hosts, and theirs.

use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{Claim, HostRequest, HostResponse, NodePair, TicketPurpose};
use toroid_protocol::seal::SealKeys;

use super::commands;
use crate::channel::SessionError;
use crate::channel::data::{self, Ticket};
use crate::channel::secure::{HANDSHAKE, SILENCE, Session};
use crate::cluster::addresses::no_address;
use crate::cluster::link::{Link, NoAnswer};
use crate::cluster::revisions::{At, check_fabric, check_term};
use crate::cluster::tickets::may_connect;
use crate::cluster::{CannotDial, Cluster, unreachable};
use crate::core::host::Host;
use crate::random::from_hex;

/// Longest time in which two hosts come to follow a new leader, once both reach it: sessions are
/// tried again every 2 s at most.
const SETTLES: Duration = Duration::from_secs(3);

/// Time between two requests for a ticket.
const PAUSE: Duration = Duration::from_millis(50);

const REMEDY: &str = "see `toroid status` on both hosts; then try again";

/// Issues a ticket to another host, if the nodes are on the right hosts and may talk.
pub(super) fn give_ticket(
    host: &Host,
    cluster: &Cluster,
    asking: At<'_>,
    wanted: TicketPurpose,
) -> HostResponse {
    let directory = host.members.directory(Directory::clone);
    let (to, revision) = (asking.0, directory.revision());
    let own = (cluster.config.host.as_str(), revision);
    if let Err(refusal) = check_fabric(asking, own) {
        return HostResponse::Refused(refusal);
    }
    if let Err(refusal) = check_term(asking, own) {
        return HostResponse::Again(refusal);
    }
    if !directory.is_admitted(to) {
        let message = format!("host {to} is not admitted, or was removed");
        let refusal = Refusal::new(RefusalKind::Denied, message, "see `toroid host ls`");
        return HostResponse::Refused(refusal);
    }
    let permitted = match wanted {
        TicketPurpose::Node(between) => may_connect(&directory, to, &cluster.config.host, between)
            .and_then(|()| is_sealed_as_wanted(cluster, &directory, between))
            .and_then(|()| has_listener(host, &directory, between)),
        TicketPurpose::Command { user } => commands::may_begin(host, cluster, user),
        TicketPurpose::Frames => match host.driver {
            Some(_) => Ok(()),
            None => Err(Refusal::new(
                RefusalKind::Invalid,
                format!("host {} runs without Ethernet", cluster.config.host),
                "start it without --no-ethernet",
            )),
        },
    };
    let permitted = cluster.check_directory().and(permitted);
    let given = permitted.and_then(|()| match cluster.tickets.server.get() {
        Some(_) => cluster.tickets.issue(to, wanted, revision),
        None => Err(Refusal::new(
            RefusalKind::Failed,
            format!("host {} serves no data connections", cluster.config.host),
            "use the same release on both hosts",
        )),
    });
    given.map_or_else(HostResponse::Refused, HostResponse::Ticket)
}

/// Checks that the connection is encrypted, if the domain is sealed.
fn is_sealed_as_wanted(
    cluster: &Cluster,
    directory: &Directory,
    between: NodePair,
) -> Result<(), Refusal> {
    let domain = directory.domain_by_id(between.partition);
    domain.map_or(Ok(()), |domain| cluster.check_sealed(domain))
}

/// Checks that there is a listener for a ticket's packets, if it is for packets.
fn has_listener(host: &Host, directory: &Directory, between: NodePair) -> Result<(), Refusal> {
    let domain = directory.domain_by_id(between.partition);
    let place = directory.torus().place(NodeId(between.to));
    match (between.protocol, domain, place) {
        (Some(protocol), Some(domain), Some(place)) => {
            host.members.check_listener(&domain.name, place, protocol)
        }
        _ => Ok(()),
    }
}

impl Host {
    /// Opens a data connection to another host, and agrees on keys unless encryption is off. Takes
    /// as long as the network does and as the hosts need to follow a new leader, and at most some
    /// seconds.
    pub(crate) fn data_connection(
        &self,
        carrier: &str,
        wanted: TicketPurpose,
    ) -> Result<(TcpStream, Option<SealKeys>), Refusal> {
        let Some(cluster) = &self.cluster else {
            return Err(unreachable(
                carrier,
                "this agent knows no other hosts",
                REMEDY,
            ));
        };
        cluster.check_directory()?;
        let ticket = self.ticket(cluster, carrier, wanted)?;
        let failed = |why: String| unreachable(carrier, &why, REMEDY);
        let directory = self.members.directory(Directory::clone);
        let mut made = Err(no_address(carrier, &cluster.config.host));
        for address in cluster.addresses_of(carrier, Some(&directory)) {
            let present = |stream: TcpStream| {
                let keys = data::present(&stream, ticket, cluster.cipher())?;
                Ok::<_, SessionError>((stream, keys.map(SealKeys)))
            };
            let stream = TcpStream::connect_timeout(&address, HANDSHAKE);
            let connected = stream.map_err(SessionError::Io).and_then(present);
            made = connected.map_err(|error| failed(format!("at {address}: {error}")));
            if made.is_ok() {
                cluster.addresses.note(carrier, address);
                break;
            }
        }
        made
    }

    /// Gets a ticket from another host. Waits while one of the two does not follow a new leader yet.
    fn ticket(
        &self,
        cluster: &Cluster,
        carrier: &str,
        wanted: TicketPurpose,
    ) -> Result<Ticket, Refusal> {
        let failed = |why: &str| unreachable(carrier, why, REMEDY);
        let until = Instant::now() + SETTLES;
        loop {
            let revision = self.members.directory(Directory::revision);
            let link = self.link_to(cluster, carrier)?;
            let refusal = match link.ask(HostRequest::Ticket { wanted, revision }, SILENCE) {
                Ok(HostResponse::Ticket(text)) => {
                    return from_hex(&text)
                        .map(Ticket)
                        .ok_or_else(|| failed("bad ticket"));
                }
                Ok(HostResponse::Refused(refusal)) => return Err(refusal),
                Ok(HostResponse::Again(refusal)) => refusal,
                Ok(_) => return Err(failed("it does not answer as it should")),
                // With the leader that was; there may be a session with the next one.
                Err(error @ NoAnswer::Ended) => failed(&error.to_string()),
                Err(error) => return Err(failed(&error.to_string())),
            };
            if Instant::now() >= until {
                return Err(refusal);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Opens a session with another host, which must have its key in this host's directory.
    pub(super) fn dial(
        &self,
        cluster: &Cluster,
        to: &str,
        follows: Option<Claim>,
    ) -> Result<Session, CannotDial> {
        let copy = || self.members.directory(Directory::clone);
        let directory = copy();
        let found = cluster.dial(to, Some(&directory), follows.clone());
        let next = copy();
        let has_moved = directory.address_of(to) != next.address_of(to);
        if matches!(found, Err(CannotDial::Nowhere(_))) && has_moved {
            return cluster.dial(to, Some(&next), follows);
        }
        found
    }

    /// Session with another host, opened if there is none.
    pub(super) fn link_to(&self, cluster: &Cluster, carrier: &str) -> Result<Arc<Link>, Refusal> {
        if let Some(link) = cluster.link_of(carrier) {
            return Ok(link);
        }
        let session = self.dial(cluster, carrier, None);
        let session = session.map_err(|error| match error {
            CannotDial::Unknown(refusal) => refusal,
            error => unreachable(carrier, &error.to_string(), REMEDY),
        })?;
        cluster
            .add_peer(carrier, session)
            .map_err(|error| unreachable(carrier, &error.to_string(), REMEDY))
    }
}
