//! Connections from outside. Until it has shown the key or a ticket, a connection is
//! [`unauthenticated`](crate::cluster::unauthenticated): 64 bytes are read and nothing is kept. A
//! session may have been opened by repeated bytes: it has a thread and little time to prove its
//! opening, and when there are too many unproven sessions, the oldest ends.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use toroid_protocol::hosts::HostMessage;

use super::leader;
use crate::channel::SessionError;
use crate::channel::opening::{Kind, Opening};
use crate::channel::secure::{self, HANDSHAKE, Session, Writer};
use crate::cluster::Cluster;
use crate::cluster::unauthenticated::{NewConnection, Unauthenticated};
use crate::core::host::Host;
use crate::error::{AgentError, during};
use crate::threads;

/// Sessions at a time, besides two of each host: some that are about to end.
const MORE_SESSIONS: usize = 16;

/// Most sessions whose openings may be repetitions.
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
        sessions: Arc::new(Sessions {
            limit: MORE_SESSIONS + 2 * cluster.config.hosts.len(),
            ..Sessions::default()
        }),
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
    /// Number of sessions with a proven opening.
    proven: AtomicUsize,
    limit: usize,
    /// Sessions whose opening may be a repetition; the oldest first.
    unproven: Mutex<VecDeque<Writer>>,
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
        let session = secure::accept(stream, opening, &self.cluster.secret)?;
        let (host, cluster) = (Arc::clone(&self.host), Arc::clone(&self.cluster));
        let sessions = Arc::clone(&self.sessions);
        let writer = session.writer.clone();
        sessions.doubt(&writer);
        let attend = move || {
            let received = sessions
                .prove(session)
                .and_then(|session| sessions.count(|| leader::receive(&host, &cluster, session)));
            if let Err(error) = received {
                host.note_unauthenticated(&cluster, address, &error);
            }
        };
        threads::start(attend).inspect_err(|_| self.sessions.settle(&writer))?;
        Ok(())
    }
}

impl Sessions {
    /// Adds an unproven session, and ends the oldest if there are too many. An honest side proves
    /// its opening within the delay of the network.
    fn doubt(&self, writer: &Writer) {
        let mut unproven = self.unproven();
        unproven.push_back(writer.clone());
        if unproven.len() > MAX_UNPROVEN
            && let Some(oldest) = unproven.pop_front()
        {
            oldest.shut_down();
        }
    }

    /// Waits for the first message, which proves the opening.
    fn prove(&self, mut session: Session) -> Result<Session, SessionError> {
        let first = session.reader.receive();
        self.settle(&session.writer);
        match first? {
            HostMessage::Alive => Ok(session),
            other => {
                let message = format!("{} comes too early", other.kind());
                Err(SessionError::Malformed(message))
            }
        }
    }

    /// Removes a session from the unproven ones.
    fn settle(&self, writer: &Writer) {
        self.unproven()
            .retain(|other| !other.is_of_same_session(writer));
    }

    /// Serves a session, if there are not too many.
    fn count(&self, attend: impl FnOnce() -> Result<(), SessionError>) -> Result<(), SessionError> {
        let is_free = self.proven.fetch_add(1, Ordering::Relaxed) < self.limit;
        let attended = if is_free {
            attend()
        } else {
            Err(SessionError::Busy)
        };
        self.proven.fetch_sub(1, Ordering::Relaxed);
        attended
    }

    fn unproven(&self) -> MutexGuard<'_, VecDeque<Writer>> {
        self.unproven.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::link::tests::sessions;

    /// Repeated openings once took the places of hosts, for any time.
    #[test]
    fn an_unproven_session_takes_no_place_of_the_hosts() {
        let all = Sessions {
            limit: 1,
            ..Sessions::default()
        };
        let mut silent = Vec::new();
        for _ in 0..MAX_UNPROVEN + 1 {
            let [ours, theirs] = sessions();
            all.doubt(&theirs.writer);
            silent.push([ours, theirs]);
        }
        assert_eq!(all.unproven().len(), MAX_UNPROVEN);
        let [thief, first] = silent.swap_remove(0);
        assert!(all.prove(first).is_err());
        drop(thief);
        let [honest, last] = silent.pop().unwrap();
        honest.writer.send(&HostMessage::Alive).unwrap();
        let last = all.prove(last).unwrap();
        assert_eq!(all.unproven().len(), MAX_UNPROVEN - 1);
        let second = || all.count(|| Ok(()));
        let attended = all.count(|| {
            assert!(matches!(second(), Err(SessionError::Busy)));
            drop(last);
            Ok(())
        });
        attended.unwrap();
        second().unwrap();
    }
}
