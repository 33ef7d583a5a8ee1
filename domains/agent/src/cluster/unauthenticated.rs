//! Connections whose opening is not complete. When there are too many, the oldest is read a last
//! time and then closed.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::channel::opening::{OPENING, Word};
use crate::channel::secure::{self, HANDSHAKE};

/// Connections at a time, and connections accepted between two reads of all of them.
const MAX_UNAUTHENTICATED: usize = 64;

/// Pause after the system had no descriptor for a connection.
const BREATH: Duration = Duration::from_millis(100);

/// A connection without a complete opening.
#[derive(Debug)]
pub(crate) struct NewConnection {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    /// Received part of the opening.
    pub(crate) bytes: [u8; OPENING],
    read: usize,
    until: Instant,
}

/// All connections without a complete opening, and the listener.
#[derive(Debug)]
pub(crate) struct Unauthenticated {
    listener: TcpListener,
    /// Oldest first.
    waiting: Vec<NewConnection>,
}

impl Unauthenticated {
    pub(crate) fn new(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Unauthenticated {
            listener,
            waiting: Vec::new(),
        })
    }

    /// Waits, and returns the connections whose openings are complete.
    pub(crate) fn next(&mut self) -> Vec<NewConnection> {
        self.wait();
        let mut complete = self.listen();
        complete.extend(self.accept());
        complete
    }

    /// Waits for a connection, for bytes, or for the oldest to time out.
    fn wait(&self) {
        let now = Instant::now();
        let next = self.waiting.first();
        let next = next.map(|oldest| oldest.until.saturating_duration_since(now));
        let next = next.and_then(|left| Timespec::try_from(left).ok());
        let streams = self.waiting.iter().map(|s| s.stream.as_fd());
        let all = streams.chain([self.listener.as_fd()]);
        let mut all: Vec<PollFd<'_>> = all
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // Reading from a failed connection reports the failure.
        let _ = poll(&mut all, next.as_ref());
    }

    /// Accepts a bounded number of connections: a flood of them must not delay those that have sent
    /// bytes.
    fn accept(&mut self) -> Vec<NewConnection> {
        let mut complete = Vec::new();
        for _ in 0..MAX_UNAUTHENTICATED {
            match self.listener.accept() {
                Ok((stream, address)) => complete.extend(self.let_in(stream, address)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_of_peer(&error) => {}
                Err(error) => {
                    tracing::warn!("cannot accept a connection of another host: {error}");
                    thread::sleep(BREATH);
                    break;
                }
            }
        }
        complete
    }

    /// Adds a connection. Returns the oldest if its place is needed and its opening is just
    /// complete.
    fn let_in(&mut self, stream: TcpStream, address: SocketAddr) -> Option<NewConnection> {
        stream.set_nonblocking(true).ok()?;
        let is_full = self.waiting.len() >= MAX_UNAUTHENTICATED;
        let oldest = is_full.then(|| self.waiting.remove(0));
        self.waiting.push(NewConnection {
            stream,
            address,
            bytes: [0; OPENING],
            read: 0,
            until: Instant::now() + HANDSHAKE,
        });
        let mut oldest = oldest?;
        if let Ok(true) = oldest.read() {
            return Some(oldest);
        }
        secure::refuse(&oldest.stream, Word::Busy);
        None
    }

    fn listen(&mut self) -> Vec<NewConnection> {
        let now = Instant::now();
        let mut complete = Vec::new();
        for mut connection in std::mem::take(&mut self.waiting) {
            match connection.read() {
                Ok(true) => complete.push(connection),
                Ok(false) if connection.until > now => self.waiting.push(connection),
                // Only a debug message: it may be a port scan.
                Ok(false) | Err(_) => tracing::debug!("{} said nothing of use", connection.address),
            }
        }
        complete
    }
}

impl NewConnection {
    /// Reads available bytes; returns whether the opening is complete.
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A flood once closed every connection before its bytes were read.
    #[test]
    fn a_complete_opening_is_served_in_a_flood_of_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut unauthenticated = Unauthenticated::new(listener).unwrap();
        let mut honest = TcpStream::connect(address).unwrap();
        honest.write_all(&[7; OPENING]).unwrap();
        let _flood: Vec<TcpStream> = (0..2 * MAX_UNAUTHENTICATED)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut complete = Vec::new();
        while complete.is_empty() {
            complete = unauthenticated.next();
            assert!(unauthenticated.waiting.len() <= MAX_UNAUTHENTICATED);
        }
        assert_eq!(complete[0].address, honest.local_addr().unwrap());
        assert_eq!(complete[0].bytes, [7; OPENING]);
    }
}
