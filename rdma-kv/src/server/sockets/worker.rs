//! Worker threads, each with an epoll of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::auth::{AuthHandshake, Users};
use super::connection::{Connection, Converse, Scratch, Wait};
use super::ends::ends;
use crate::server::Stop;
use crate::text::Ends;

/// Most events per wait.
const EVENTS: usize = 128;

/// Period of checks for idle connections.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// Period in which watchers are served.
const WATCH: Duration = Duration::from_millis(10);

/// Epoll data of the two descriptors that are no connections.
const STOP: u64 = u64::MAX;
const INBOX: u64 = u64::MAX - 1;

/// Makes the conversations of connections.
pub(crate) trait SessionFactory: Sync {
    /// Conversation of a connection.
    type Conversation: Converse + Send;

    /// Makes the conversation of a connection with these ends, which this thread serves.
    fn converse(&self, thread: usize, ends: Ends) -> Self::Conversation;

    /// Notes that a connection was refused.
    fn refused(&self);

    /// Notes whether connections are accepted from now on; called by the thread that accepts.
    fn accepts(&self, does: bool);
}

/// State of all workers.
pub(super) struct Service<'a, H> {
    pub(super) sessions: &'a H,
    pub(super) stop: &'a Stop,
    pub(super) users: Option<&'a Users>,
    pub(super) idle_timeout: Option<Duration>,
    /// Open connections of all workers.
    pub(super) open: AtomicUsize,
}

/// Sends connections to a worker.
pub(super) struct Inbox {
    sender: Sender<OwnedFd>,
    wake: OwnedFd,
}

impl Inbox {
    /// Sends a nonblocking socket, which counts as open from now on.
    pub(super) fn give(&self, socket: OwnedFd, service: &Service<'_, impl SessionFactory>) {
        service.open.fetch_add(1, Ordering::Relaxed);
        // A worker that has ended stops the server.
        if self.sender.send(socket).is_ok() {
            // Fails only after 2^64 - 2 connections that the worker has not taken.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// One thread's connections.
pub(super) struct Worker<'a, H: SessionFactory> {
    service: &'a Service<'a, H>,
    /// Number of the thread, from 0.
    number: usize,
    epoll: OwnedFd,
    inbox: Receiver<OwnedFd>,
    wake: OwnedFd,
    connections: Vec<Option<Entry<H::Conversation>>>,
    /// Free indices of `connections`.
    free: Vec<usize>,
    /// Connections with more to do than one turn allows.
    unfinished: Vec<usize>,
    /// Connections that watch.
    watching: Vec<usize>,
    watched: Instant,
    /// Scratch memory of the connection whose turn it is.
    scratch: Scratch,
    now: Instant,
    idle_checked: Instant,
}

struct Entry<C> {
    connection: Connection<C>,
    /// Events that epoll reports.
    interest: EventFlags,
    last_turn: Instant,
    /// Whether it is among the unfinished.
    queued: bool,
}

impl<'a, H: SessionFactory> Worker<'a, H> {
    pub(super) fn new(service: &'a Service<'a, H>, number: usize) -> io::Result<(Self, Inbox)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop = EventData::new_u64(STOP);
        epoll::add(&epoll, service.stop.fd(), stop, EventFlags::IN)?;
        epoll::add(&epoll, &wake, EventData::new_u64(INBOX), EventFlags::IN)?;
        let (sender, inbox) = channel();
        let given = Inbox {
            sender,
            wake: wake.try_clone()?,
        };
        let now = Instant::now();
        let worker = Worker {
            service,
            number,
            epoll,
            inbox,
            wake,
            connections: Vec::new(),
            free: Vec::new(),
            unfinished: Vec::new(),
            watching: Vec::new(),
            watched: now,
            scratch: Scratch::default(),
            now,
            idle_checked: now,
        };
        Ok((worker, given))
    }

    /// Serves until stopped; connections end with it.
    ///
    /// # Errors
    /// The system's, of epoll itself.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let timeout = self
                .timeout()
                .and_then(|time| Timespec::try_from(time).ok());
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.service.idle_timeout.is_some() {
                self.now = Instant::now();
            }
            // Unfinished connections come last, and once. An event gives them no
            // further turn, or busy connections would have ever more turns.
            let unfinished = std::mem::take(&mut self.unfinished);
            for event in &events {
                match event.data.u64() {
                    STOP => return Ok(()),
                    INBOX => self.take_new()?,
                    number if self.is_queued(number as usize) => {}
                    number => self.turn(number as usize),
                }
            }
            for number in unfinished {
                if let Some(entry) = &mut self.connections[number] {
                    entry.queued = false;
                }
                self.turn(number);
            }
            self.tell_watchers();
            self.close_idle();
        }
    }

    /// Time to wait for events; unlimited if `None`.
    fn timeout(&self) -> Option<Duration> {
        if !self.unfinished.is_empty() {
            return Some(Duration::ZERO);
        }
        let watch = (!self.watching.is_empty()).then_some(WATCH);
        watch.or(self.service.idle_timeout.map(|_| IDLE_CHECK))
    }

    fn is_queued(&self, number: usize) -> bool {
        let entry = self.connections[number].as_ref();
        entry.is_some_and(|entry| entry.queued)
    }

    fn take_new(&mut self) -> io::Result<()> {
        match rustix::io::read(&self.wake, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(socket) = self.inbox.try_recv() {
            let handshake = self.service.users.cloned().map(AuthHandshake::new);
            let conversation = self.service.sessions.converse(self.number, ends(&socket));
            let connection = Connection::new(socket, handshake, conversation);
            let number = self.free.pop().unwrap_or(self.connections.len());
            let data = EventData::new_u64(number as u64);
            let interest = EventFlags::IN;
            if number == self.connections.len() {
                self.connections.push(None);
            }
            match epoll::add(&self.epoll, &connection, data, interest) {
                Ok(()) => {
                    self.connections[number] = Some(Entry {
                        connection,
                        interest,
                        last_turn: self.now,
                        queued: false,
                    });
                }
                Err(error) => {
                    tracing::warn!("a connection is lost: {error}");
                    self.close(number);
                }
            }
        }
        Ok(())
    }

    /// Gives a connection its turn, unless it has ended.
    fn turn(&mut self, number: usize) {
        let Some(entry) = &mut self.connections[number] else {
            return;
        };
        entry.last_turn = self.now;
        let result = entry.connection.turn(&mut self.scratch);
        let interest = match result {
            Ok(Wait::Read) => EventFlags::IN,
            Ok(Wait::Write) => EventFlags::OUT,
            Ok(Wait::Watch) => {
                if !self.watching.contains(&number) {
                    self.watching.push(number);
                }
                EventFlags::IN
            }
            Ok(Wait::Turn) => {
                entry.queued = true;
                return self.unfinished.push(number);
            }
            Ok(Wait::End) => return self.close(number),
            Err(error) => {
                tracing::debug!("connection {number}: {error}");
                return self.close(number);
            }
        };
        if interest != entry.interest {
            let data = EventData::new_u64(number as u64);
            match epoll::modify(&self.epoll, &entry.connection, data, interest) {
                Ok(()) => entry.interest = interest,
                Err(error) => {
                    tracing::warn!("connection {number} is lost: {error}");
                    self.close(number);
                }
            }
        }
    }

    /// Closing a socket removes it from the epoll.
    fn close(&mut self, number: usize) {
        self.connections[number] = None;
        self.watching.retain(|watching| *watching != number);
        self.free.push(number);
        self.service.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives each watching connection a turn, unless its socket has no room.
    fn tell_watchers(&mut self) {
        if self.watching.is_empty() || self.watched.elapsed() < WATCH {
            return;
        }
        self.watched = Instant::now();
        for number in self.watching.clone() {
            let entry = self.connections[number].as_ref();
            if entry.is_some_and(|entry| entry.interest == EventFlags::IN) {
                self.turn(number);
            }
        }
    }

    fn close_idle(&mut self) {
        let Some(limit) = self.service.idle_timeout else {
            return;
        };
        if self.now - self.idle_checked < IDLE_CHECK {
            return;
        }
        self.idle_checked = self.now;
        for number in 0..self.connections.len() {
            let idle = |entry: &&Entry<H::Conversation>| {
                self.now - entry.last_turn >= limit && entry.connection.is_idle()
            };
            if let Some(entry) = self.connections[number].as_ref().filter(idle) {
                entry.connection.end_idle();
                self.close(number);
            }
        }
    }
}
