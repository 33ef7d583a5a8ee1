//! Data connections: a process of one host talks to the agent of another about a node's memory.
//!
//! The process's agent asks the other for a ticket in their session, and presents it on a connection of
//! its own, which it then gives to the process. A ticket is good for one connection, and not for long.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{Answer, Ask, Between, Wanted};

use super::door::Proof;
use super::link::Link;
use super::{Cluster, unreachable};
use crate::agent::host::Host;
use crate::hosts::opening::{Opening, PROOF, Word};
use crate::hosts::secure::{self, HANDSHAKE, SILENCE, Session};

/// How long a ticket is good.
const EXPIRES: Duration = Duration::from_secs(10);

/// Tickets at a time.
const MAX_TICKETS: usize = 4096;

const REMEDY: &str = "see `toroid status` on both hosts; then try again";

/// A connection that has shown its ticket. Nothing has been read or written on it since.
#[derive(Debug)]
pub(in crate::agent) struct DataConnection {
    pub(in crate::agent) stream: TcpStream,
    /// The host that has made it.
    pub(in crate::agent) host: String,
    /// What for.
    pub(in crate::agent) wanted: Wanted,
}

type Server = Box<dyn Fn(DataConnection) + Send + Sync>;

/// The tickets that were given out, and who serves those who present them.
#[derive(Default)]
pub(in crate::agent) struct Broker {
    tickets: Mutex<HashMap<Proof, Ticket>>,
    server: OnceLock<Server>,
}

#[derive(Debug)]
struct Ticket {
    host: String,
    wanted: Wanted,
    until: Instant,
}

impl Broker {
    /// Lets data connections be served; without this none are promised. It must not take long.
    pub(in crate::agent) fn serve(&self, server: impl Fn(DataConnection) + Send + Sync + 'static) {
        // A second one would be a mistake of ours.
        assert!(self.server.set(Box::new(server)).is_ok(), "there is one");
    }

    /// A ticket for another host.
    fn issue(&self, host: &str, wanted: Wanted) -> Result<String, Refusal> {
        let mut proof = [0; PROOF];
        getrandom::fill(&mut proof).map_err(|error| {
            let message = format!("the system gives no random bytes: {error}");
            Refusal::new(RefusalKind::Failed, message, "")
        })?;
        let now = Instant::now();
        let mut tickets = self.lock();
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
        Ok(proof.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Somebody presents one.
    pub(super) fn redeem(&self, stream: TcpStream, proof: Proof) {
        let ticket = self.lock().remove(&proof);
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Proof, Ticket>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").finish_non_exhaustive()
    }
}

/// Gives another host a ticket, if the nodes are whose they should be and may talk.
pub(super) fn give_ticket(host: &Host, cluster: &Cluster, to: &str, wanted: Wanted) -> Answer {
    let directory = host.members.directory(Directory::clone);
    let permitted = match wanted {
        Wanted::Node(between) => may_connect(&directory, to, &cluster.config.host, between)
            .and_then(|()| has_listener(host, &directory, between)),
        Wanted::Frames => match host.driver {
            Some(_) => Ok(()),
            None => Err(Refusal::new(
                RefusalKind::Invalid,
                format!("host {} runs without Ethernet", cluster.config.host),
                "start it without --no-ethernet",
            )),
        },
    };
    let permitted = cluster.check_directory().and(permitted);
    let given = permitted.and_then(|()| match cluster.broker.server.get() {
        Some(_) => cluster.broker.issue(to, wanted),
        None => Err(Refusal::new(
            RefusalKind::Failed,
            format!("host {} serves no data connections", cluster.config.host),
            "use the same release on both hosts",
        )),
    });
    given.map_or_else(Answer::Refused, Answer::Ticket)
}

/// Whether somebody listens for the packets that it is about, if any.
fn has_listener(host: &Host, directory: &Directory, between: Between) -> Result<(), Refusal> {
    let domain = directory.domain_by_id(between.partition);
    let place = directory.torus().place(NodeId(between.to));
    match (between.protocol, domain, place) {
        (Some(protocol), Some(domain), Some(place)) => {
            host.members.check_listener(&domain.name, place, protocol)
        }
        _ => Ok(()),
    }
}

fn may_connect(
    directory: &Directory,
    host: &str,
    ours: &str,
    between: Between,
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

impl Host {
    /// A connection to another host for this purpose. Takes as long as the network does, and at
    /// most some seconds.
    pub(in crate::agent) fn data_connection(
        &self,
        carrier: &str,
        wanted: Wanted,
    ) -> Result<TcpStream, Refusal> {
        let Some(cluster) = &self.cluster else {
            return Err(unreachable(
                carrier,
                "this agent knows no other hosts",
                REMEDY,
            ));
        };
        cluster.check_directory()?;
        let link = self.link_to(cluster, carrier)?;
        let failed = |why: String| unreachable(carrier, &why, REMEDY);
        let proof = match link.ask(Ask::Ticket(wanted), SILENCE) {
            Ok(Answer::Ticket(text)) => parse(&text).ok_or_else(|| failed("bad ticket".into()))?,
            Ok(Answer::Refused(refusal)) => return Err(refusal),
            Ok(_) => return Err(failed("it does not answer as it should".into())),
            Err(error) => return Err(failed(error.to_string())),
        };
        let address = cluster.config.hosts.get(carrier);
        let address = address.ok_or_else(|| failed("its address is unknown".into()))?;
        let stream = TcpStream::connect_timeout(address, HANDSHAKE);
        let stream = stream.map_err(|error| failed(error.to_string()))?;
        secure::present(&stream, proof).map_err(|error| failed(error.to_string()))?;
        Ok(stream)
    }

    /// The session with another host, made if there is none.
    pub(super) fn link_to(&self, cluster: &Cluster, carrier: &str) -> Result<Arc<Link>, Refusal> {
        if let Some(link) = cluster.link_of(carrier) {
            return Ok(link);
        }
        let session = cluster.dial(carrier, None);
        let session = session.map_err(|error| unreachable(carrier, &error.to_string(), REMEDY))?;
        cluster
            .add_peer(carrier, session)
            .map_err(|error| unreachable(carrier, &error.to_string(), REMEDY))
    }
}

impl Cluster {
    pub(super) fn link_of(&self, host: &str) -> Option<std::sync::Arc<Link>> {
        let follower = self
            .followers()
            .get(host)
            .map(|follower| follower.link.clone());
        let holder = || {
            let is_it = !self.holds() && host == self.config.directory;
            self.holder().link.clone().filter(|_| is_it)
        };
        let peer = || self.peers().get(host).cloned();
        let link = follower.or_else(holder).or_else(peer);
        link.filter(|link| !link.has_ended())
    }

    /// Attends to a session that was made for the sake of tickets, unless somebody else has just
    /// made one.
    fn add_peer(&self, host: &str, session: Session) -> io::Result<Arc<Link>> {
        let mut peers = self.peers();
        if let Some(link) = peers.get(host).filter(|link| !link.has_ended()) {
            return Ok(Arc::clone(link));
        }
        let link = Link::new(host.into(), session.writer);
        let attended = Arc::clone(&link);
        // It asks nothing: whoever does has a session of its own.
        let attend = move || attended.attend(session.reader, |_| Answer::Done);
        thread::Builder::new().spawn(attend)?;
        peers.insert(host.into(), Arc::clone(&link));
        Ok(link)
    }
}

fn parse(text: &str) -> Option<Proof> {
    let mut proof = [0; PROOF];
    if text.len() != 2 * PROOF || !text.is_ascii() {
        return None;
    }
    for (n, byte) in proof.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(proof)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    use toroid_model::directory::Wanted as NewDomain;

    use super::*;
    use crate::hosts::SessionError;

    const BETWEEN: Between = Between {
        from: 1,
        to: 2,
        partition: 1,
        protocol: None,
    };
    const WANTED: Wanted = Wanted::Node(BETWEEN);

    /// How presenting a ticket ends.
    fn present(broker: &Broker, ticket: &str) -> Result<(), SessionError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        let proof = parse(ticket).unwrap();
        broker.redeem(theirs, proof);
        secure::present(&ours, proof)
    }

    #[test]
    fn a_ticket_is_good_once_and_not_for_ever() {
        let broker = Broker::default();
        let early = broker.issue("b", WANTED).unwrap();
        // Nobody serves yet.
        present(&broker, &early).unwrap_err();
        let (served, connections) = channel();
        let served = Mutex::new(served);
        broker.serve(move |connection| served.lock().unwrap().send(connection).unwrap());
        let ticket = broker.issue("b", WANTED).unwrap();
        present(&broker, &ticket).unwrap();
        let connection = connections.recv().unwrap();
        let DataConnection {
            stream,
            host,
            wanted,
        } = connection;
        assert_eq!((host.as_str(), wanted), ("b", WANTED));
        // Whoever serves it has it without a byte read.
        stream.take_error().unwrap();
        let again = present(&broker, &ticket).unwrap_err();
        assert!(matches!(again, SessionError::BadTicket), "{again}");
        let late = broker.issue("b", WANTED).unwrap();
        for ticket in broker.lock().values_mut() {
            ticket.until = Instant::now();
        }
        present(&broker, &late).unwrap_err();
        assert!(connections.try_recv().is_err());
        for nonsense in ["", "00", &"é".repeat(PROOF), &"0g".repeat(PROOF)] {
            assert!(parse(nonsense).is_none());
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
            members: nodes([1, 2]),
            ..NewDomain::default()
        };
        directory.create(blue).unwrap();
        may_connect(&directory, "b", "a", BETWEEN).unwrap();
        let refused = [
            ("c", BETWEEN),
            ("a", BETWEEN),
            ("b", Between { from: 3, ..BETWEEN }),
            ("b", Between { from: 0, ..BETWEEN }),
            ("b", Between { to: 3, ..BETWEEN }),
            ("b", Between { to: 9, ..BETWEEN }),
            (
                "b",
                Between {
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
