//! Connections from outside. Until its opening is complete, a connection is
//! [`unauthenticated`](crate::cluster::unauthenticated): 64 bytes are read and nothing is kept. A
//! session may have been opened by anybody: it has a thread and little time to prove a key, with a
//! message of fixed length, and when there are too many unproven sessions, the oldest ends.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::HostMessage;

use super::leader;
use crate::channel::SessionError;
use crate::channel::handshake::{self, Unproven};
use crate::channel::opening::{Kind, Opening};
use crate::channel::secure::{HANDSHAKE, Session};
use crate::cluster::Cluster;
use crate::cluster::admission::check_stranger;
use crate::cluster::unauthenticated::{NewConnection, Unauthenticated};
use crate::core::host::Host;
use crate::error::{AgentError, during};
use crate::threads;

/// Sessions at a time, besides two of each host: some that are about to end, and some of new hosts.
const MORE_SESSIONS: usize = 64;

/// Most sessions that have proven no key yet.
const MAX_UNPROVEN: usize = 32;

/// Starts the thread that accepts connections of other hosts.
pub(crate) fn open(
    host: &Arc<Host>,
    cluster: &Arc<Cluster>,
    listener: TcpListener,
) -> Result<(), AgentError> {
    let failed = during("listen to other hosts");
    let accepting = Listener {
        host: Arc::clone(host),
        cluster: Arc::clone(cluster),
        sessions: Arc::default(),
    };
    let unauthenticated = Unauthenticated::new(listener).map_err(failed)?;
    threads::start(|| accepting.attend(unauthenticated)).map_err(failed)?;
    Ok(())
}

struct Listener {
    host: Arc<Host>,
    cluster: Arc<Cluster>,
    sessions: Arc<Sessions>,
}

/// Sessions that were opened here.
#[derive(Debug, Default)]
struct Sessions {
    /// Number of sessions with a proven key.
    proven: AtomicUsize,
    /// Sessions that have proven no key yet; the oldest first.
    unproven: Mutex<VecDeque<Arc<TcpStream>>>,
}

impl Listener {
    fn attend(self, mut unauthenticated: Unauthenticated) {
        loop {
            for connection in unauthenticated.next() {
                self.admit(connection);
            }
        }
    }

    /// Serves a connection with a complete opening.
    fn admit(&self, connection: NewConnection) {
        let NewConnection {
            stream,
            address,
            bytes,
            ..
        } = connection;
        let Some(opening) = Opening::<Kind>::parse(&bytes) else {
            return tracing::debug!("{address} does not speak as agents do");
        };
        let is_ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_write_timeout(Some(HANDSHAKE)));
        if is_ready.is_err() {
            return;
        }
        match opening.word {
            Kind::Data => self.cluster.tickets.redeem(stream, &opening),
            Kind::Session => {
                if let Err(error) = self.begin_session(stream, address, &opening) {
                    self.host
                        .note_unauthenticated(&self.cluster, address, &error);
                }
            }
        }
    }

    fn begin_session(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        opening: &Opening<Kind>,
    ) -> Result<(), SessionError> {
        let keys = self.cluster.keys.lock().clone();
        let unproven = handshake::answer(stream, opening, &keys, &self.cluster.secret)?;
        let (host, cluster) = (Arc::clone(&self.host), Arc::clone(&self.cluster));
        let sessions = Arc::clone(&self.sessions);
        let stream = Arc::clone(&unproven.stream);
        sessions.doubt(&stream);
        let attend = move || {
            let check = |session: Session| check_key(&host, &cluster, session);
            let received = sessions
                .prove(unproven, |unproven| {
                    unproven.prove(&cluster.secret).and_then(check)
                })
                .and_then(|session| {
                    let limit = most_sessions(&host, &cluster);
                    sessions.count(limit, || leader::receive(&host, &cluster, session, address))
                });
            if let Err(error) = received {
                host.note_unauthenticated(&cluster, address, &error);
            }
        };
        threads::start(attend).inspect_err(|_| self.sessions.settle(&stream))?;
        Ok(())
    }
}

/// Most sessions with a proven key, with the present number of hosts.
fn most_sessions(host: &Host, cluster: &Cluster) -> usize {
    let admitted = host.members.directory(|its| its.admitted().count());
    MORE_SESSIONS + 2 * admitted.max(cluster.config.hosts.len())
}

/// Refuses a host that has neither an admitted key nor the pre-shared one.
fn check_key(host: &Host, cluster: &Cluster, session: Session) -> Result<Session, SessionError> {
    // A candidate that does not lead tells new hosts which one does.
    let may_lead = cluster.config.may_lead(&cluster.config.host);
    let checked = host
        .members
        .directory(|directory| check_stranger(directory, &session.peer, may_lead));
    let Err(error) = checked else {
        return Ok(session);
    };
    let message = format!(
        "host {} does not know this host's key, and the pre-shared key is another, or of no use there",
        cluster.config.host
    );
    let remedy = "compare the files that `key` names, or see `toroid host admit --help`";
    let refusal = Refusal::new(RefusalKind::Denied, message, remedy);
    session.writer.send(&HostMessage::Refused(refusal))?;
    session.reader.see_off();
    Err(error)
}

impl Sessions {
    /// Adds an unproven session, and ends the oldest if there are too many. An honest side proves
    /// its opening within the delay of the network.
    fn doubt(&self, stream: &Arc<TcpStream>) {
        let mut unproven = self.unproven();
        unproven.push_back(Arc::clone(stream));
        if unproven.len() > MAX_UNPROVEN
            && let Some(oldest) = unproven.pop_front()
        {
            // This fails only after the connection has ended.
            let _ = oldest.shutdown(Shutdown::Both);
        }
    }

    /// Waits for the proof of a key.
    fn prove(
        &self,
        unproven: Unproven,
        prove: impl FnOnce(Unproven) -> Result<Session, SessionError>,
    ) -> Result<Session, SessionError> {
        let stream = Arc::clone(&unproven.stream);
        let proven = prove(unproven);
        self.settle(&stream);
        proven
    }

    /// Removes a session from the unproven ones.
    fn settle(&self, stream: &Arc<TcpStream>) {
        self.unproven().retain(|other| !Arc::ptr_eq(other, stream));
    }

    /// Serves a session, if there are not too many.
    fn count(
        &self,
        limit: usize,
        attend: impl FnOnce() -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let is_free = self.proven.fetch_add(1, Ordering::Relaxed) < limit;
        let attended = if is_free {
            attend()
        } else {
            Err(SessionError::Busy)
        };
        self.proven.fetch_sub(1, Ordering::Relaxed);
        attended
    }

    fn unproven(&self) -> MutexGuard<'_, VecDeque<Arc<TcpStream>>> {
        self.unproven.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::handshake::tests::{half_open, secret};

    /// Repeated openings once took the places of hosts, for any time.
    #[test]
    fn an_unproven_session_takes_no_place_of_the_hosts() {
        let all = Sessions::default();
        let mut silent = Vec::new();
        for _ in 0..MAX_UNPROVEN + 1 {
            let (thief, unproven) = half_open(false);
            all.doubt(&unproven.stream);
            silent.push((thief, unproven));
        }
        assert_eq!(all.unproven().len(), MAX_UNPROVEN);
        let prove = |unproven| all.prove(unproven, |unproven| unproven.prove(&secret()));
        // It was ended for the last one.
        let (thief, first) = silent.swap_remove(0);
        assert!(prove(first).is_err());
        drop(thief);
        let (honest, unproven) = half_open(true);
        all.doubt(&unproven.stream);
        let last = prove(unproven).unwrap();
        drop(honest);
        assert_eq!(all.unproven().len(), MAX_UNPROVEN - 1);
        let second = || all.count(1, || Ok(()));
        let attended = all.count(1, || {
            assert!(matches!(second(), Err(SessionError::Busy)));
            drop(last);
            Ok(())
        });
        attended.unwrap();
        second().unwrap();
    }
}
