//! A connected socket and the bytes in transit.
//!
//! Only [`Stream::sleep`] blocks. Other processes may hold the socket too, so its flags do not
//! matter.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

/// The connection has ended, without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut;

/// A connected stream socket.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<OwnedFd>,
    /// Bytes to send; those before `sent` have been sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Received bytes; those from `head` to `end` are unprocessed.
    incoming: Box<[u8]>,
    head: usize,
    end: usize,
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
    pub(super) fn new(socket: impl Into<Arc<OwnedFd>>, room: usize) -> Self {
        Stream {
            socket: socket.into(),
            outgoing: Vec::new(),
            sent: 0,
            incoming: vec![0; room].into_boxed_slice(),
            head: 0,
            end: 0,
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
        self.outgoing.len() - self.sent
    }

    /// Sends as much as the socket takes; returns whether that was all.
    pub(super) fn push(&mut self) -> Result<bool, Cut> {
        while self.unsent() > 0 {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
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

    /// Discards outgoing bytes.
    pub(super) fn forget_outgoing(&mut self) {
        self.outgoing.clear();
        self.sent = 0;
    }

    /// Receives as much as there is and fits; returns the number of bytes.
    pub(super) fn pull(&mut self) -> Result<usize, Cut> {
        self.make_room();
        if self.end == self.incoming.len() {
            return Ok(0);
        }
        loop {
            let room = &mut self.incoming[self.end..];
            match recv(&self.socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Cut),
                Ok((count, _)) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(_) => return Err(Cut),
            }
        }
    }

    /// Moves unprocessed bytes to the start, when there are none or little room is behind them.
    fn make_room(&mut self) {
        let is_cramped = self.incoming.len() - self.end < self.incoming.len() / 4;
        if self.head == self.end || is_cramped {
            self.incoming.copy_within(self.head..self.end, 0);
            self.end -= self.head;
            self.head = 0;
        }
    }

    /// Received, unprocessed bytes.
    pub(super) fn incoming(&self) -> &[u8] {
        &self.incoming[self.head..self.end]
    }

    /// Received, unprocessed bytes, to be changed in place.
    pub(super) fn incoming_mut(&mut self) -> &mut [u8] {
        &mut self.incoming[self.head..self.end]
    }

    /// Whether nothing can be received before bytes are consumed.
    pub(super) fn is_full(&self) -> bool {
        self.end - self.head == self.incoming.len()
    }

    /// Marks the first `count` bytes as processed.
    pub(super) fn consume(&mut self, count: usize) {
        self.head = self.end.min(self.head.saturating_add(count));
    }

    /// Removes bytes in the middle.
    pub(super) fn take_out(&mut self, at: usize, count: usize) {
        let start = self.head + at;
        self.incoming.copy_within(start + count..self.end, start);
        self.end -= count;
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
