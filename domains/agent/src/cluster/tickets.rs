//! Tickets for data connections: a process of one host talks to the target proxy of another about a
//! node's memory.
//!
//! The process's agent asks the other agent for a ticket in their session, and presents the ticket
//! on a connection of its own, which it then passes on with the keys that the two agree on. A ticket
//! is good for one connection, for a short time, and in the term in which it was issued: numbers of
//! domains mean the same on both hosts then.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fmt, io};

use parking_lot::Mutex;
use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::directory::revision::{Revision, Term};
use toroid_model::hosts::Encryption;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{HostResponse, NodePair, TicketPurpose};
use toroid_protocol::seal::SealKeys;

use super::Cluster;
use super::link::Link;
use crate::channel::data::{self, Presented, Ticket, TicketId};
use crate::channel::opening::{Kind, Opening, PROOF, Word};
use crate::channel::secure::{self, Session};
use crate::{random, threads};

/// Life of a ticket.
const EXPIRES: Duration = Duration::from_secs(10);

/// Most unused tickets.
const MAX_TICKETS: usize = 4096;

/// A connection that has shown its ticket. No byte has been read or written since.
#[derive(Debug)]
pub(crate) struct DataConnection {
    pub(crate) stream: TcpStream,
    /// Keys of its records; `None` if encryption is off.
    pub(crate) keys: Option<SealKeys>,
    /// Host at the other end.
    pub(crate) host: String,
    /// Purpose of the ticket.
    pub(crate) wanted: TicketPurpose,
}

type Server = Box<dyn Fn(DataConnection) + Send + Sync>;

/// Issued tickets, and the server of the connections that present them.
pub(crate) struct Tickets {
    tickets: Mutex<HashMap<TicketId, Issued>>,
    /// Term of this host's directory.
    term: Mutex<Option<Term>>,
    encryption: Encryption,
    pub(crate) server: OnceLock<Server>,
}

struct Issued {
    ticket: Ticket,
    host: String,
    wanted: TicketPurpose,
    term: Option<Term>,
    until: Instant,
}

impl Tickets {
    pub(crate) fn new(encryption: Encryption) -> Self {
        Tickets {
            tickets: Mutex::default(),
            term: Mutex::default(),
            encryption,
            server: OnceLock::new(),
        }
    }

    /// Sets the server of data connections, which must not block. No ticket is issued before.
    pub(crate) fn serve(&self, server: impl Fn(DataConnection) + Send + Sync + 'static) {
        // A second server is a bug of the agent.
        assert!(self.server.set(Box::new(server)).is_ok(), "there is one");
    }

    /// Sets the term of this host's directory. Tickets of another term are good no more.
    pub(crate) fn set_term(&self, revision: Option<Revision>) {
        *self.term.lock() = revision.map(|revision| revision.term);
    }

    /// Issues a ticket to another host, by a directory of this revision.
    pub(crate) fn issue(
        &self,
        host: &str,
        wanted: TicketPurpose,
        revision: Option<Revision>,
    ) -> Result<String, Refusal> {
        let ticket = Ticket(random::bytes()?);
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
        let issued = Issued {
            ticket,
            host: host.into(),
            wanted,
            term: revision.map(|revision| revision.term),
            until: now + EXPIRES,
        };
        // A ticket with the same identifier, one in billions, is good no more.
        tickets.insert(ticket.id(), issued);
        Ok(random::to_hex(&ticket.0))
    }

    /// Makes all tickets of a host invalid.
    pub(crate) fn revoke(&self, host: &str) {
        self.tickets.lock().retain(|_, issued| issued.host != host);
    }

    /// Serves a connection that presents a ticket, or rejects it.
    pub(crate) fn redeem(&self, stream: TcpStream, opening: &Opening<Kind>) {
        let (presented, id) = Presented::of(opening);
        // Every attempt uses the ticket up: a clear one has shown all of it.
        let issued = self.tickets.lock().remove(&id);
        let cipher = match (self.encryption, presented) {
            (Encryption::On, Presented::Sealed(cipher)) => Some(cipher),
            (Encryption::Off, Presented::Clear) => None,
            _ => return secure::refuse(&stream, Word::Cipher),
        };
        let term = *self.term.lock();
        let issued = issued.filter(|its| its.until > Instant::now() && its.term == term);
        let (Some(issued), Some(server)) = (issued, self.server.get()) else {
            return secure::refuse(&stream, Word::BadTicket);
        };
        let keys = match cipher {
            Some(cipher) => match data::accept(&stream, opening, issued.ticket, cipher) {
                Ok(keys) => Some(SealKeys(keys)),
                Err(_) => return,
            },
            None => {
                if issued.ticket.0 != opening.proof {
                    return secure::refuse(&stream, Word::BadTicket);
                }
                let welcome = Opening::new(Word::Welcome, [0; PROOF]).bytes();
                if io::Write::write_all(&mut &stream, &welcome).is_err() {
                    return;
                }
                None
            }
        };
        server(DataConnection {
            stream,
            keys,
            host: issued.host,
            wanted: issued.wanted,
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
            let link = self.leader().link.clone();
            link.filter(|link| link.host == host)
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
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    use toroid_fabric::tcp::secure::{Cipher, Keys};
    use toroid_model::directory::{Wanted as NewDomain, full_members};

    use super::*;
    use crate::channel::SessionError;
    use crate::channel::opening::{OPENING, TAG};
    use crate::cluster::revisions::tests::revision;

    const BETWEEN: NodePair = NodePair {
        from: 1,
        to: 2,
        partition: 1,
        protocol: None,
    };
    const WANTED: TicketPurpose = TicketPurpose::Node(BETWEEN);

    /// Result of presenting a ticket.
    fn present_with(
        tickets: &Tickets,
        ticket: &str,
        cipher: Option<Cipher>,
    ) -> Result<Option<Keys>, SessionError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        let ticket = Ticket(random::from_hex(ticket).unwrap());
        std::thread::scope(|scope| {
            let presenting = scope.spawn(|| data::present(&ours, ticket, cipher));
            let mut bytes = [0; OPENING];
            (&mut &theirs).read_exact(&mut bytes).unwrap();
            tickets.redeem(theirs, &Opening::parse(&bytes).unwrap());
            presenting.join().unwrap()
        })
    }

    /// The same as this host's file says.
    fn present(tickets: &Tickets, ticket: &str) -> Result<Option<Keys>, SessionError> {
        let cipher = (tickets.encryption == Encryption::On).then_some(Cipher::AesGcm);
        present_with(tickets, ticket, cipher)
    }

    #[test]
    fn a_connection_without_or_with_an_unknown_cipher_is_refused() {
        for (encryption, wrong) in [
            (Encryption::On, None),
            (Encryption::Off, Some(Cipher::AesGcm)),
        ] {
            let tickets = Tickets::new(encryption);
            tickets.serve(|connection| panic!("{connection:?}"));
            let ticket = tickets.issue("b", WANTED, None).unwrap();
            let error = present_with(&tickets, &ticket, wrong).unwrap_err();
            assert!(matches!(error, SessionError::Cipher), "{error}");
        }
        let tag = [b'x'; TAG];
        let opening = Opening::tagged(Kind::Data, tag, [0; PROOF]);
        let opening = Opening::parse(&opening.bytes()).unwrap();
        assert_eq!(Presented::of(&opening).0, Presented::Unknown);
    }

    #[test]
    fn a_ticket_is_valid_once_and_expires() {
        for encryption in [Encryption::On, Encryption::Off] {
            a_ticket_is_valid_once_and_expires_with(encryption);
        }
    }

    fn a_ticket_is_valid_once_and_expires_with(encryption: Encryption) {
        let tickets = Tickets::new(encryption);
        let early = tickets.issue("b", WANTED, None).unwrap();
        // There is no server yet.
        present(&tickets, &early).unwrap_err();
        let (served, connections) = channel();
        let served = Mutex::new(served);
        tickets.serve(move |connection| served.lock().send(connection).unwrap());
        let ticket = tickets.issue("b", WANTED, None).unwrap();
        let presented = present(&tickets, &ticket).unwrap();
        let connection = connections.recv().unwrap();
        let DataConnection {
            stream,
            keys,
            host,
            wanted,
        } = connection;
        let ours = presented.map(|keys| SealKeys(keys.mirrored()));
        assert_eq!(ours, keys);
        assert_eq!(keys.is_some(), encryption == Encryption::On);
        assert_eq!((host.as_str(), wanted), ("b", WANTED));
        // The server gets it without a byte read.
        stream.take_error().unwrap();
        let again = present(&tickets, &ticket).unwrap_err();
        assert!(matches!(again, SessionError::BadTicket), "{again}");
        let revoked = tickets.issue("b", WANTED, None).unwrap();
        let others = tickets.issue("c", WANTED, None).unwrap();
        tickets.revoke("b");
        let error = present(&tickets, &revoked).unwrap_err();
        assert!(matches!(error, SessionError::BadTicket), "{error}");
        present(&tickets, &others).unwrap();
        assert_eq!(connections.recv().unwrap().host, "c");
        let late = tickets.issue("b", WANTED, None).unwrap();
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
    fn a_ticket_is_invalid_in_another_term() {
        let tickets = Tickets::new(Encryption::On);
        let (served, connections) = channel();
        let served = Mutex::new(served);
        tickets.serve(move |connection| served.lock().send(connection).unwrap());
        let [first, next] = [revision(1, 1, 5), revision(1, 2, 6)].map(Some);
        tickets.set_term(first);
        let [early, late] = [(); 2].map(|()| tickets.issue("b", WANTED, first).unwrap());
        present(&tickets, &early).unwrap();
        connections.recv().unwrap();
        tickets.set_term(next);
        let error = present(&tickets, &late).unwrap_err();
        assert!(matches!(error, SessionError::BadTicket), "{error}");
        let ticket = tickets.issue("b", WANTED, next).unwrap();
        present(&tickets, &ticket).unwrap();
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
