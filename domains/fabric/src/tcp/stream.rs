//! A connected socket and the bytes in transit, which are [sealed](super::secure) between hosts.
//!
//! Only [`Stream::sleep`] and [`Stream::pull_within`] block. Other processes may hold the socket too,
//! so its flags do not matter.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::secure::{Connection, Fault, Incoming, RecordError, Sealing};
use crate::core::busy_poll::BusyPoll;

/// The connection has ended, without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut;

/// Bytes that are sealed at a time.
const BATCH: usize = 64 * 1024;

/// A connected stream socket.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<OwnedFd>,
    /// Bytes to send; those before `sent` have been sent, or are sealed.
    outgoing: Vec<u8>,
    sent: usize,
    /// Sealed bytes to send before those, if the connection is sealed.
    sealing: Option<Sealing>,
    incoming: Incoming,
    fault: Fault,
    busy_poll: BusyPoll,
}

/// Ends a connection from another thread, and wakes a sleeper on it.
#[derive(Clone, Debug)]
pub struct Cutter(Weak<OwnedFd>);

impl Cutter {
    /// The cutter of the connection with this socket.
    pub fn of(socket: &Arc<OwnedFd>) -> Self {
        Cutter(Arc::downgrade(socket))
    }

    /// Whether the connection has been dropped.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Ends the connection. Its status must have ended before, so that operations return the reason.
    pub fn cut(&self) {
        if let Some(socket) = self.0.upgrade() {
            // Fails when the other side has ended the connection.
            let _ = shutdown(&socket, Shutdown::Both);
        }
    }
}

impl Stream {
    /// A stream with a buffer of `room` bytes for received, unprocessed bytes.
    pub(super) fn new(connection: impl Into<Connection>, room: usize) -> Self {
        let Connection {
            socket,
            keys,
            fault,
        } = connection.into();
        Stream {
            socket,
            outgoing: Vec::new(),
            sent: 0,
            sealing: keys.as_ref().map(Sealing::new),
            incoming: Incoming::new(room, keys.as_ref()),
            fault,
            busy_poll: BusyPoll::default(),
        }
    }

    pub(super) fn cutter(&self) -> Cutter {
        Cutter::of(&self.socket)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket.
    pub(super) fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// The outgoing bytes, to append to.
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Bytes that wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        let sealed = self.sealing.as_ref().map_or(0, Sealing::unsent);
        self.outgoing.len() - self.sent + sealed
    }

    /// Sends as much as the socket takes; returns whether that was all.
    pub(super) fn push(&mut self) -> Result<bool, Cut> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Some(sealing) = &mut self.sealing {
            let mut send = |bytes: &[u8]| Ok(send(&self.socket, bytes, flags)?);
            loop {
                if !sealing.flush(&mut send).map_err(|_: io::Error| Cut)? {
                    return Ok(false);
                }
                let rest = &self.outgoing[self.sent..];
                if rest.is_empty() {
                    break;
                }
                let batch = &rest[..rest.len().min(BATCH)];
                sealing.write(batch);
                self.sent += batch.len();
            }
        }
        while self.unsent() > 0 {
            match send(&self.socket, &self.outgoing[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(Cut),
            }
        }
        self.forget_outgoing();
        Ok(true)
    }

    /// Whether the other side sends nothing more than the bytes received so far.
    pub(super) fn has_hung_up(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut socket, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Whether the other side hangs up within `timeout`. May return early, and does once the socket
    /// takes outgoing bytes.
    pub(super) fn hangs_up_within(&self, timeout: Duration) -> bool {
        let hung_up = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut events = hung_up;
        events.set(PollFlags::OUT, self.unsent() > 0);
        let timeout = Timespec::try_from(timeout).ok();
        let mut socket = [PollFd::new(&self.socket, events)];
        // An interrupted sleep is an early return.
        let woken = poll(&mut socket, timeout.as_ref());
        woken.is_ok() && socket[0].revents().intersects(hung_up)
    }

    /// Discards outgoing bytes.
    pub(super) fn forget_outgoing(&mut self) {
        self.outgoing.clear();
        self.sent = 0;
        if let Some(sealing) = &mut self.sealing {
            sealing.forget();
        }
    }

    /// Receives as much as there is and fits; returns the number of bytes, which of a sealed
    /// connection are those of whole records.
    pub(super) fn pull(&mut self) -> Result<usize, Cut> {
        let room = self.incoming.place();
        if room.is_empty() {
            return Ok(0);
        }
        let received = loop {
            match recv(&self.socket, &mut *room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => break Err(self.incoming.check_end().err()),
                Ok((count, _)) => break self.incoming.received(count).map_err(Some),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(_) => return Err(Cut),
            }
        };
        received.map_err(|error| self.end(error))
    }

    /// Receives as [`Stream::pull`]. If there is nothing, polls and then sleeps for at most `timeout`.
    /// May return early, and does once the socket takes outgoing bytes.
    pub(super) fn pull_within(&mut self, timeout: Duration) -> Result<usize, Cut> {
        if timeout.is_zero() {
            return self.pull();
        }
        if self.unsent() > 0 || self.is_full() {
            self.sleep(true, timeout);
            return self.pull();
        }
        let (busy_poll, since) = (self.busy_poll, Instant::now());
        let mut pulled = Ok(0);
        let left = busy_poll.poll_until(since, timeout, || {
            pulled = self.pull();
            pulled != Ok(0)
        });
        if let Some(left) = left {
            self.sleep(true, left);
            self.busy_poll.record_wait(since);
            pulled = self.pull();
        }
        pulled
    }

    /// Ends a connection whose records do not open.
    fn end(&mut self, error: Option<RecordError>) -> Cut {
        if let Some(error) = error {
            self.fault.set(error);
            self.cutter().cut();
        }
        Cut
    }

    /// Whether received records did not open. One that is cut is that of a peer that has ended.
    pub(super) fn has_fault(&self) -> bool {
        let fault = self.fault.get();
        fault.is_some_and(|fault| fault != RecordError::Cut)
    }

    /// Received, unprocessed bytes.
    pub(super) fn incoming(&self) -> &[u8] {
        self.incoming.text()
    }

    /// Received, unprocessed bytes, to be changed in place.
    pub(super) fn incoming_mut(&mut self) -> &mut [u8] {
        self.incoming.text_mut()
    }

    /// Whether nothing can be received before bytes are consumed.
    pub(super) fn is_full(&self) -> bool {
        self.incoming.is_full()
    }

    /// Marks the first `count` bytes as processed.
    pub(super) fn consume(&mut self, count: usize) {
        self.incoming.consume(count);
    }

    /// Removes bytes in the middle.
    pub(super) fn take_out(&mut self, at: usize, count: usize) {
        self.incoming.take_out(at, count);
    }

    /// Sleeps until the socket takes outgoing bytes, the connection has ended, `timeout` has passed or,
    /// with `for_incoming`, bytes have come that fit. May return early.
    pub(super) fn sleep(&self, for_incoming: bool, timeout: Duration) {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, for_incoming && !self.is_full());
        events.set(PollFlags::OUT, self.unsent() > 0);
        let timeout = Timespec::try_from(timeout).ok();
        // An interrupted sleep is an early return.
        let _ = poll(&mut [PollFd::new(&self.socket, events)], timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_are_used_in_order_and_taken_out_of_the_middle() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut stream = Stream::new(OwnedFd::from(ours), 8);
        assert_eq!(stream.pull(), Ok(0));
        theirs.write_all(b"abcdefghij").unwrap();
        assert_eq!(stream.pull(), Ok(8));
        assert!(stream.is_full());
        assert_eq!(stream.pull(), Ok(0));
        stream.take_out(1, 2);
        assert_eq!(stream.incoming(), b"adefgh");
        stream.consume(3);
        assert_eq!(stream.pull(), Ok(2));
        assert_eq!(stream.incoming(), b"fghij");
        drop(theirs);
        assert_eq!(stream.pull(), Err(Cut));
        assert_eq!(stream.incoming(), b"fghij");
    }

    #[test]
    fn bytes_wait_until_the_socket_takes_them() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut stream = Stream::new(OwnedFd::from(ours), 8);
        stream.outgoing().resize(4 << 20, 7);
        assert_eq!(stream.push(), Ok(false));
        let unsent = stream.unsent();
        theirs.read_exact(&mut vec![0; (4 << 20) - unsent]).unwrap();
        stream.sleep(true, Duration::from_secs(20));
        assert_eq!(stream.push(), Ok(false));
        assert!(stream.unsent() < unsent);
        drop(theirs);
        assert_eq!(stream.push(), Err(Cut));
    }

    #[test]
    fn a_wait_ends_with_bytes_with_room_with_the_end_or_with_its_timeout() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut stream = Stream::new(OwnedFd::from(ours), 8);
        let start = Instant::now();
        let while_short = Duration::from_millis(20);
        assert_eq!(stream.pull_within(while_short), Ok(0));
        assert!(start.elapsed() >= while_short);
        assert_eq!(stream.pull_within(Duration::ZERO), Ok(0));
        let hour = Duration::from_secs(3600);
        let later = std::thread::spawn(move || {
            std::thread::sleep(while_short);
            theirs.write_all(b"late").unwrap();
            theirs
        });
        assert_eq!(stream.pull_within(hour), Ok(4));
        let theirs = later.join().unwrap();
        // As much as the socket takes: the wait ends although nothing comes.
        stream.outgoing().push(7);
        assert_eq!(stream.pull_within(hour), Ok(0));
        stream.forget_outgoing();
        drop(theirs);
        assert_eq!(stream.pull_within(hour), Err(Cut));
    }

    #[test]
    fn a_cut_wakes_a_sleeper() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut stream = Stream::new(OwnedFd::from(ours), 8);
        let cutter = stream.cutter();
        std::thread::scope(|scope| {
            scope.spawn(move || cutter.cut());
            while stream.pull() != Err(Cut) {
                stream.sleep(true, Duration::from_secs(20));
            }
        });
    }
}
