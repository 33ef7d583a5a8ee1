//! Who connects from outside. Until he has shown the key or a ticket he is a stranger, of whom 64
//! bytes are taken and nothing is kept; when there are many the oldest has to go.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Cluster, hold};
use crate::agent::AgentError;
use crate::agent::host::Host;
use crate::hosts::SessionError;
use crate::hosts::opening::{Kind, OPENING, Opening, PROOF, Word};
use crate::hosts::secure::{self, HANDSHAKE};

/// Strangers at a time.
const MAX_STRANGERS: usize = 64;

/// Sessions at a time, besides two of each host: who has heard an opening of another can say it
/// again, and is found out only when he has to go on.
const MORE_SESSIONS: usize = 16;

/// Pause after the system had no descriptor for a connection.
const BREATH: Duration = Duration::from_millis(100);

const STACK_BYTES: usize = 256 * 1024;

/// Somebody who has connected.
#[derive(Debug)]
struct Stranger {
    stream: TcpStream,
    address: SocketAddr,
    bytes: [u8; OPENING],
    read: usize,
    until: Instant,
}

/// Lets people come.
pub(super) fn open(
    host: &Arc<Host>,
    cluster: &Arc<Cluster>,
    listener: TcpListener,
) -> Result<(), AgentError> {
    let failed = |source| AgentError::System {
        action: "listen to other hosts",
        source,
    };
    listener.set_nonblocking(true).map_err(failed)?;
    let door = Door {
        host: Arc::clone(host),
        cluster: Arc::clone(cluster),
        listener,
        strangers: Vec::new(),
        sessions: Arc::default(),
    };
    let builder = thread::Builder::new().stack_size(STACK_BYTES);
    builder.spawn(|| door.attend()).map_err(failed)?;
    Ok(())
}

struct Door {
    host: Arc<Host>,
    cluster: Arc<Cluster>,
    listener: TcpListener,
    /// The oldest first.
    strangers: Vec<Stranger>,
    sessions: Arc<AtomicUsize>,
}

impl Door {
    fn attend(mut self) {
        loop {
            self.wait();
            self.accept();
            self.listen_to_strangers();
        }
    }

    /// Until somebody comes or says something, or has taken too long.
    fn wait(&self) {
        let now = Instant::now();
        let next = self.strangers.first();
        let next = next.map(|oldest| oldest.until.saturating_duration_since(now));
        let next = next.and_then(|left| Timespec::try_from(left).ok());
        let streams = self.strangers.iter().map(|s| s.stream.as_fd());
        let all = streams.chain([self.listener.as_fd()]);
        let mut all: Vec<PollFd<'_>> = all
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // What fails is found out by whoever reads.
        let _ = poll(&mut all, next.as_ref());
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.strangers.len() >= MAX_STRANGERS {
                        let oldest = self.strangers.remove(0);
                        secure::refuse(&oldest.stream, Word::Busy);
                    }
                    self.strangers.push(Stranger {
                        stream,
                        address,
                        bytes: [0; OPENING],
                        read: 0,
                        until: Instant::now() + HANDSHAKE,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_peer(&error) => {}
                Err(error) => {
                    tracing::warn!("cannot accept a connection of another host: {error}");
                    thread::sleep(BREATH);
                    return;
                }
            }
        }
    }

    fn listen_to_strangers(&mut self) {
        let now = Instant::now();
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.read() {
                Ok(true) => self.admit(stranger),
                Ok(false) if stranger.until > now => self.strangers.push(stranger),
                // Nobody is told: it may be a port scan.
                Ok(false) | Err(_) => tracing::debug!("{} said nothing of use", stranger.address),
            }
        }
    }

    /// All of an opening has come.
    fn admit(&self, stranger: Stranger) {
        let Stranger {
            stream,
            address,
            bytes,
            ..
        } = stranger;
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
            Kind::Data => self.cluster.broker.redeem(stream, opening.proof),
            Kind::Session => {
                if let Err(error) = self.begin_session(stream, address, &opening) {
                    self.host.note_stranger(&self.cluster, address, &error);
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
        let limit = MORE_SESSIONS + 2 * self.cluster.config.hosts.len();
        if self.sessions.load(Ordering::Relaxed) >= limit {
            secure::refuse(&stream, Word::Busy);
            return Err(SessionError::Busy);
        }
        let session = secure::accept(stream, opening, &self.cluster.secret)?;
        let (host, cluster) = (Arc::clone(&self.host), Arc::clone(&self.cluster));
        let sessions = Arc::clone(&self.sessions);
        sessions.fetch_add(1, Ordering::Relaxed);
        let count = Arc::clone(&sessions);
        let attend = move || {
            if let Err(error) = hold::receive(&host, &cluster, session) {
                host.note_stranger(&cluster, address, &error);
            }
            count.fetch_sub(1, Ordering::Relaxed);
        };
        let builder = thread::Builder::new().stack_size(STACK_BYTES);
        if let Err(error) = builder.spawn(attend) {
            sessions.fetch_sub(1, Ordering::Relaxed);
            return Err(error.into());
        }
        Ok(())
    }
}

impl Stranger {
    /// Reads what has come; returns whether that is all.
    fn read(&mut self) -> io::Result<bool> {
        while self.read < OPENING {
            match self.stream.read(&mut self.bytes[self.read..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.read += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Whether the connection had ended before it was accepted.
fn is_of_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// A ticket as it is presented.
pub(super) type Proof = [u8; PROOF];
