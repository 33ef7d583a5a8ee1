//! The command `noise serve`: the end that answers.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use nix::poll::{PollFd, PollFlags, poll};

use super::control::{Control, is_pause};
use super::error::{NetError, Peer};
use super::key::{self, Key, Shared};
use super::orders::Carrier;
use super::session::{LONGEST_SESSION, Limits, Session, Step};
use super::traffic::{Budget, Data};
use super::wire::{Answer, Digest, LONGEST_ORDER, MOST_STREAMS, WireError};
use crate::noise::signals::Signals;

/// Connections without a proof at the same time.
const MOST_STRANGERS: usize = 64;

/// Further ones at the same time from the address of the client that is being served.
const MOST_CONNECTIONS: usize = 2 * MOST_STREAMS as usize;

/// Time for a proof.
const TO_PROVE: Duration = Duration::from_secs(10);

/// Milliseconds between two looks of the listener at the signals.
const LOOK: u8 = 200;

/// Pause of the listener after a failure.
const SHORTAGE: Duration = Duration::from_millis(20);

/// Longest pause between two orders of a client.
const IDLE: Duration = Duration::from_secs(60);

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub(crate) struct Options {
    /// Address and port for TCP and UDP.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,

    #[command(flatten)]
    key: Shared,

    /// Longest session.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 7200,
        value_parser = value_parser!(u64).range(1..=LONGEST_SESSION)
    )]
    max_seconds: u64,

    /// Most bytes of messages in a session.
    #[arg(
        long,
        value_name = "GIB",
        default_value_t = 16384,
        value_parser = value_parser!(u64).range(1..=1 << 32)
    )]
    max_gib: u64,
}

/// The server, shared by the threads of its connections.
struct Host {
    key: Key,
    limits: Limits,
    signals: Signals,
    /// Held by the one session at a time.
    session: Mutex<()>,
    /// The order that waits for connections.
    expected: Mutex<Option<Expected>>,
    strangers: AtomicUsize,
}

/// An order that waits for connections.
struct Expected {
    client: IpAddr,
    token: Digest,
    order: Sender<Data>,
}

/// Serves until a signal.
pub(crate) fn serve(options: &Options) -> Result<Infallible> {
    let signals = Signals::catch()?;
    let (key, file) = options.key.given_or_made()?;
    let at = options.listen;
    let cannot = || format!("cannot listen on {at}; name a free port of an address of this host");
    let listener = TcpListener::bind(at).with_context(cannot)?;
    let at = listener.local_addr()?;
    // Each session binds its own address to answer from; this tells now if the port is taken.
    drop(UdpSocket::bind(at).with_context(cannot)?);
    let host = Arc::new(Host {
        key,
        limits: Limits {
            seconds: options.max_seconds,
            bytes: options.max_gib << 30,
        },
        session: Mutex::default(),
        signals: signals.clone(),
        expected: Mutex::default(),
        strangers: AtomicUsize::new(0),
    });
    listener.set_nonblocking(true)?;
    match file {
        Some(file) => println!("ready on {at}, with the key in {}", file.display()),
        None => println!("ready on {at}"),
    }
    loop {
        signals.check()?;
        let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        // A signal ends the wait, too.
        let _ = poll(&mut waiting, LOOK);
        match listener.accept() {
            Ok((stream, peer)) => host.admit(stream, peer),
            Err(error) if is_pause(&error) => {}
            // Such as too many open files, until other connections have ended.
            Err(_) => thread::sleep(SHORTAGE),
        }
    }
}

impl Host {
    /// Starts a thread for a connection, unless too many strangers have one.
    fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let before = self.strangers.fetch_add(1, Ordering::Relaxed);
        let stranger = Stranger(Arc::clone(self));
        let most = if self.expects(peer.ip()) {
            MOST_STRANGERS + MOST_CONNECTIONS
        } else {
            MOST_STRANGERS
        };
        if before >= most || stream.set_nonblocking(false).is_err() {
            return;
        }
        let talk = move || {
            match stranger.talk(stream, peer) {
                // A client ends its session by closing the connection.
                Ok(()) | Err(NetError::Closed { .. } | NetError::Interrupted) => {}
                Err(error) => eprintln!("toroid-bench: session of {peer}: {error}"),
            }
        };
        // Without memory for a thread the connection is closed.
        let _ = thread::Builder::new().spawn(talk);
    }

    /// Lets connections of a client with a new token come. Returns the token and their source.
    fn expect(&self, client: Peer) -> Result<(Digest, Receiver<Data>), NetError> {
        let token = key::random().map_err(|error| client.error("make a token for", error))?;
        let (order, receiver) = mpsc::channel();
        *self.expected() = Some(Expected {
            client: client.0.ip(),
            token,
            order,
        });
        Ok((token, receiver))
    }

    /// Whether an order waits for connections from there, or has waited for them last.
    fn expects(&self, from: IpAddr) -> bool {
        let expected = self.expected();
        expected.as_ref().is_some_and(|its| its.client == from)
    }

    fn expected(&self) -> MutexGuard<'_, Option<Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a connection to the order with its token.
    fn pass(&self, token: Digest, data: Data) {
        if let Some(expected) = &*self.expected()
            && expected.token == token
        {
            // The order may have ended.
            let _ = expected.order.send(data);
        }
    }
}

/// A connection that counts as a stranger's until dropped.
struct Stranger(Arc<Host>);

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.strangers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stranger {
    fn talk(self, stream: TcpStream, peer: SocketAddr) -> Result<(), NetError> {
        let failed = |source| Peer(peer).error("talk to", source);
        let at = stream.local_addr().map_err(failed)?;
        let data = stream.try_clone().map_err(failed)?;
        let control = Control::new(stream, peer, LONGEST_ORDER).map_err(failed)?;
        let nonce = key::random().map_err(failed)?;
        let host = Arc::clone(&self.0);
        let mut talk = Talk {
            session: Session::new(host.key.clone(), nonce, host.limits),
            host: &host,
            control,
            at,
            since: Instant::now(),
            within: TO_PROVE,
        };
        loop {
            match talk.step()? {
                Step::Answer(answer) => talk.control.send(&answer)?,
                Step::Data { token, sends } => {
                    host.pass(token, Data::new(data, peer, sends).map_err(failed)?);
                    return Ok(());
                }
                Step::Authenticated(welcome) => {
                    drop(self);
                    return talk.serve(&welcome);
                }
                Step::Work(_) => return Err(talk.control.peer.lie("has not proved its key")),
            }
        }
    }
}

/// A conversation.
struct Talk<'a> {
    host: &'a Host,
    session: Session,
    control: Control,
    /// Address of this end.
    at: SocketAddr,
    /// The next message must come within this time since then.
    since: Instant,
    within: Duration,
}

impl Talk<'_> {
    fn step(&mut self) -> Result<Step, NetError> {
        loop {
            match self.session.next_step() {
                Ok(Some(step)) => return Ok(step),
                Ok(None) => {}
                Err(error) => return Err(self.refuse(error)),
            }
            // Bytes that come slowly do not move the deadline.
            if self.since.elapsed() > self.within {
                let (peer, seconds) = (self.control.peer.0, self.within.as_secs());
                return Err(NetError::Silent { peer, seconds });
            }
            let deadline = self.since + self.within;
            let read = self.control.read(deadline, &self.host.signals);
            let read = read.map_err(|error| error.after(self.within))?;
            self.session.push(&read.unwrap_or_default());
        }
    }

    /// Tells the client why its session ends.
    fn refuse(&mut self, error: WireError) -> NetError {
        self.say_refused(error.for_client());
        self.control.peer.wire(error)
    }

    /// A socket at the address that the client knows.
    fn datagrams(&mut self) -> Result<UdpSocket, NetError> {
        UdpSocket::bind(self.at).map_err(|source| {
            let error = self.control.peer.error("bind the port of UDP for", source);
            self.say_refused(error.to_string());
            error
        })
    }

    fn say_refused(&mut self, reason: String) {
        // The client may have gone.
        let _ = self.control.send(&Answer::Refused { reason });
    }

    /// Carries out the orders of an authenticated client.
    fn serve(&mut self, welcome: &Answer) -> Result<(), NetError> {
        let _session = match self.host.session.try_lock() {
            Ok(session) => session,
            // A session that panicked has ended, too.
            Err(TryLockError::Poisoned(ended)) => ended.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.say_refused("another session is going on; try again when it has ended".into());
                return Ok(());
            }
        };
        let socket = self.datagrams()?;
        // Standard output may be closed by now.
        let _ = writeln!(io::stdout(), "session of {}", self.control.peer.0);
        self.control.send(welcome)?;
        let limits = self.host.limits;
        let time = Duration::from_secs(limits.seconds);
        let budget = Budget::new(time, limits.bytes, &self.host.signals);
        let mut exported = None;
        loop {
            (self.since, self.within) = (Instant::now(), budget.left().min(IDLE));
            let step = self.step();
            if let Err(spent) = budget.check(Instant::now()) {
                self.say_refused(spent.to_string());
                return Err(spent);
            }
            let Step::Work(order) = step? else {
                continue;
            };
            let (token, connections) = self.host.expect(self.control.peer)?;
            self.control.send(&Answer::Ready { token })?;
            let carrier = Carrier {
                control: &mut self.control,
                connections,
                socket: &socket,
                token,
                budget: &budget,
                exported: &mut exported,
            };
            if let Err(error) = carrier.carry_out(&order) {
                self.say_refused(error.to_string());
                return Err(error);
            }
        }
    }
}
