//! Tickets for data connections: a process of one host talks to the target proxy of another about a
//! node's memory.
//!
//! The process's agent asks the other agent for a ticket in their session, and presents the ticket
//! on a connection of its own, which it then passes on. A ticket is good for one connection, and
//! for a short time.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fmt, io};

use parking_lot::Mutex;
use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{HostResponse, NodePair, TicketPurpose};

use super::Cluster;
use super::link::Link;
use crate::channel::opening::{Opening, PROOF, Word};
use crate::channel::secure::{self, Session};
use crate::{random, threads};

/// Life of a ticket.
const EXPIRES: Duration = Duration::from_secs(10);

/// Most unused tickets.
const MAX_TICKETS: usize = 4096;

/// A ticket as it is presented.
pub(crate) type Proof = [u8; PROOF];

/// A connection that has shown its ticket. No byte has been read or written since.
#[derive(Debug)]
pub(crate) struct DataConnection {
    pub(crate) stream: TcpStream,
    /// Host at the other end.
    pub(crate) host: String,
    /// Purpose of the ticket.
    pub(crate) wanted: TicketPurpose,
}

type Server = Box<dyn Fn(DataConnection) + Send + Sync>;

/// Issued tickets, and the server of the connections that present them.
#[derive(Default)]
pub(crate) struct Tickets {
    tickets: Mutex<HashMap<Proof, Ticket>>,
    pub(crate) server: OnceLock<Server>,
}

#[derive(Debug)]
struct Ticket {
    host: String,
    wanted: TicketPurpose,
    until: Instant,
}

impl Tickets {
    /// Sets the server of data connections, which must not block. No ticket is issued before.
    pub(crate) fn serve(&self, server: impl Fn(DataConnection) + Send + Sync + 'static) {
        // A second server is a bug of the agent.
        assert!(self.server.set(Box::new(server)).is_ok(), "there is one");
    }

    /// Issues a ticket to another host.
    pub(crate) fn issue(&self, host: &str, wanted: TicketPurpose) -> Result<String, Refusal> {
        let proof: Proof = random::bytes()?;
        let now = Instant::now();
        let mut tickets = self.tickets.lock();
        tickets.retain(|_, ticket| ticket.until > now);
        if tickets.len() >= MAX_TICKETS {
            return Err(Refusal::new(
                RefusalKind::Exhausted,
                format!("{MAX_TICKETS} data connections are about to be made"),
                "try again later",
            ));
        }
        let ticket = Ticket {
            host: host.into(),
            wanted,
            until: now + EXPIRES,
        };
        tickets.insert(proof, ticket);
        Ok(random::to_hex(&proof))
    }

    /// Serves a connection that presents a ticket, or rejects it.
    pub(crate) fn redeem(&self, stream: TcpStream, proof: Proof) {
        let ticket = self.tickets.lock().remove(&proof);
        let ticket = ticket.filter(|ticket| ticket.until > Instant::now());
        let (Some(ticket), Some(server)) = (ticket, self.server.get()) else {
            return secure::refuse(&stream, Word::BadTicket);
        };
        let welcome = Opening::new(Word::Welcome, [0; PROOF]).bytes();
        if std::io::Write::write_all(&mut &stream, &welcome).is_err() {
            return;
        }
        server(DataConnection {
            stream,
            host: ticket.host,
            wanted: ticket.wanted,
        });
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn link_of(&self, host: &str) -> Option<std::sync::Arc<Link>> {
        let follower = self.followers().get(host).cloned();
        let leader = || {
            let is_it = !self.is_leader() && host == self.config.directory;
            self.leader().link.clone().filter(|_| is_it)
        };
        let peer = || self.peers().get(host).cloned();
        let link = follower.or_else(leader).or_else(peer);
        link.filter(|link| !link.has_ended())
    }

    /// Serves a session for tickets, unless another thread has just opened one.
    pub(crate) fn add_peer(&self, host: &str, session: Session) -> io::Result<Arc<Link>> {
        let mut peers = self.peers();
        if let Some(link) = peers.get(host).filter(|link| !link.has_ended()) {
            return Ok(Arc::clone(link));
        }
        let link = Link::new(host.into(), session.writer);
        let attended = Arc::clone(&link);
        // The other side sends no requests here: it opens a session of its own for them.
        let attend = move || attended.attend(session.reader, |_| HostResponse::Done);
        threads::start(attend)?;
        peers.insert(host.into(), Arc::clone(&link));
        Ok(link)
    }
}

/// Checks in the directory that a process of `host` may talk to a node of `ours`.
pub(crate) fn may_connect(
    directory: &Directory,
    host: &str,
    ours: &str,
    between: NodePair,
) -> Result<(), Refusal> {
    let (from, to) = (NodeId(between.from), NodeId(between.to));
    let denied = |message: String| {
        let remedy = "see `toroid node ls` and `toroid domain show` on both hosts";
        Err(Refusal::new(RefusalKind::Denied, message, remedy))
    };
    for (node, carrier) in [(from, host), (to, ours)] {
        if directory.host_of(node) != Some(carrier) {
            let node = directory.places(&[node].into());
            return denied(format!("host {carrier} does not carry node {node}"));
        }
    }
    let domain = directory.domain_by_id(between.partition);
    if domain.is_some_and(|domain| domain.may_talk(from, to)) {
        Ok(())
    } else {
        denied("the two nodes may not talk in that domain".into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    use toroid_model::directory::{Wanted as NewDomain, full_members};

    use super::*;
    use crate::channel::SessionError;

    const BETWEEN: NodePair = NodePair {
        from: 1,
        to: 2,
        partition: 1,
        protocol: None,
    };
    const WANTED: TicketPurpose = TicketPurpose::Node(BETWEEN);

    /// Result of presenting a ticket.
    fn present(tickets: &Tickets, ticket: &str) -> Result<(), SessionError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        let proof = random::from_hex(ticket).unwrap();
        tickets.redeem(theirs, proof);
        secure::present(&ours, proof)
    }

    #[test]
    fn a_ticket_is_valid_once_and_expires() {
        let tickets = Tickets::default();
        let early = tickets.issue("b", WANTED).unwrap();
        // There is no server yet.
        present(&tickets, &early).unwrap_err();
        let (served, connections) = channel();
        let served = Mutex::new(served);
        tickets.serve(move |connection| served.lock().send(connection).unwrap());
        let ticket = tickets.issue("b", WANTED).unwrap();
        present(&tickets, &ticket).unwrap();
        let connection = connections.recv().unwrap();
        let DataConnection {
            stream,
            host,
            wanted,
        } = connection;
        assert_eq!((host.as_str(), wanted), ("b", WANTED));
        // The server gets it without a byte read.
        stream.take_error().unwrap();
        let again = present(&tickets, &ticket).unwrap_err();
        assert!(matches!(again, SessionError::BadTicket), "{again}");
        let late = tickets.issue("b", WANTED).unwrap();
        for ticket in tickets.tickets.lock().values_mut() {
            ticket.until = Instant::now();
        }
        present(&tickets, &late).unwrap_err();
        assert!(connections.try_recv().is_err());
        for nonsense in ["", "00", &"é".repeat(PROOF), &"0g".repeat(PROOF)] {
            assert!(random::from_hex::<PROOF>(nonsense).is_none());
        }
    }

    #[test]
    fn tickets_are_for_members_of_the_two_hosts() {
        let nodes = |numbers: [u32; 2]| numbers.map(NodeId).into_iter().collect();
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        directory.claim("a", &nodes([2, 3])).unwrap();
        directory.claim("b", &nodes([0, 1])).unwrap();
        let blue = NewDomain {
            name: "blue".into(),
            members: full_members(nodes([1, 2])),
            ..NewDomain::default()
        };
        directory.create(blue).unwrap();
        may_connect(&directory, "b", "a", BETWEEN).unwrap();
        let refused = [
            ("c", BETWEEN),
            ("a", BETWEEN),
            ("b", NodePair { from: 3, ..BETWEEN }),
            ("b", NodePair { from: 0, ..BETWEEN }),
            ("b", NodePair { to: 3, ..BETWEEN }),
            ("b", NodePair { to: 9, ..BETWEEN }),
            (
                "b",
                NodePair {
                    partition: 2,
                    ..BETWEEN
                },
            ),
        ];
        for (host, between) in refused {
            let refusal = may_connect(&directory, host, "a", between).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Denied, "{host} {between:?}");
        }
    }
}
