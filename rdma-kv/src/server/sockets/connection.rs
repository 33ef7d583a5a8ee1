//! A connection: bytes from its socket to the protocol, and replies back.
//!
//! A client that does not read its replies is not read from: at most one batch of replies is kept
//! for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::auth::{AuthHandshake, AuthStep};
use crate::text::input::{Input, ScratchInput};
use crate::text::{BINARY_REQUEST, DisconnectReason, Next, warn_of_binary};

/// Bytes of memory for replies that are kept.
const REPLIES_KEPT: usize = 512 * 1024;

/// Bytes that are read at a time before authentication: each wrong line has a longer reply.
const HANDSHAKE_LEN: usize = 4 * 1024;

/// Scratch memory that the connections of a thread use in turn.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    input: ScratchInput,
    /// Empty between turns.
    replies: Vec<u8>,
}

/// The conversation behind a connection: bytes in, replies appended.
pub(crate) trait Converse {
    /// Notes a first authentication, and whether it succeeded.
    fn logged_in(&self, welcome: bool);

    /// Notes that the server ends the connection.
    fn ended(&self, _: DisconnectReason) {}

    /// Notes whether replies wait for room in the socket.
    fn sends(&self, _: bool) {}

    /// Whether no command is under way, so that an idle connection may be closed.
    fn is_idle(&self) -> bool;

    /// Received bytes that are not used yet.
    fn input(&mut self) -> &mut Input;

    /// Buffer for received bytes; at least one.
    fn room(&mut self) -> &mut [u8];

    /// Notes that `count` bytes were received into the buffer.
    fn received(&mut self, count: usize);

    /// Carries complete commands out, and appends the replies.
    ///
    /// # Errors
    /// Own mistakes, for which the connection ends.
    fn run(&mut self, replies: &mut Vec<u8>) -> io::Result<Next>;
}

/// A socket with its conversation.
#[derive(Debug)]
pub(super) struct Connection<C> {
    socket: OwnedFd,
    /// Present until the client has authenticated, if it has to.
    handshake: Option<AuthHandshake>,
    /// Whether the client has sent nothing yet.
    is_new: bool,
    conversation: C,
    next: Next,
    /// Replies that the socket has not taken.
    unsent: Vec<u8>,
    /// Bytes of these that it has taken since.
    taken: usize,
}

/// Event that a connection waits for after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Something to read.
    Read,
    /// Room for replies.
    Write,
    /// Its next turn.
    Turn,
    /// Something to read, or a short time: it watches.
    Watch,
    /// Nothing: it has ended.
    End,
}

impl<C: Converse> Connection<C> {
    pub(super) fn new(socket: OwnedFd, handshake: Option<AuthHandshake>, conversation: C) -> Self {
        Connection {
            conversation,
            socket,
            handshake,
            is_new: true,
            next: Next::Read,
            unsent: Vec::new(),
            taken: 0,
        }
    }

    /// Reads, carries out, writes once.
    ///
    /// # Errors
    /// The socket's, or the conversation's own mistakes; the connection has then ended.
    pub(super) fn turn(&mut self, scratch: &mut Scratch) -> io::Result<Wait> {
        self.conversation.input().move_to(&mut scratch.input);
        let wait = self.turn_with(&mut scratch.replies);
        self.conversation.input().move_from(&mut scratch.input);
        scratch.replies.clear();
        scratch.replies.shrink_to(REPLIES_KEPT);
        wait
    }

    fn turn_with(&mut self, replies: &mut Vec<u8>) -> io::Result<Wait> {
        if !self.send_rest()? {
            return Ok(Wait::Write);
        }
        let mut more = false;
        match self.next {
            Next::Close => return Ok(Wait::End),
            Next::Continue => {}
            Next::Read | Next::Watch => {
                let mut room = self.conversation.room();
                if self.handshake.is_some() {
                    let len = room.len().min(HANDSHAKE_LEN);
                    room = &mut room[..len];
                }
                let len = room.len();
                let count = match rustix::io::read(&self.socket, &mut *room) {
                    Ok(0) => return Ok(Wait::End),
                    Ok(count) => count,
                    Err(Errno::AGAIN | Errno::INTR) if self.next == Next::Watch => 0,
                    Err(Errno::AGAIN | Errno::INTR) => return Ok(Wait::Read),
                    Err(error) => return Err(error.into()),
                };
                // Fewer bytes than fit: these were all.
                more = count == len;
                if std::mem::take(&mut self.is_new) && room[0] == BINARY_REQUEST {
                    self.conversation.ended(DisconnectReason::Binary);
                    warn_of_binary();
                    return Ok(Wait::End);
                }
                if let Some(wait) = self.pass_handshake(count, replies)? {
                    return Ok(wait);
                }
            }
        }
        self.next = self.conversation.run(replies)?;
        Ok(match (self.send(replies)?, self.next) {
            (false, _) => Wait::Write,
            (true, Next::Close) => Wait::End,
            (true, Next::Continue) => Wait::Turn,
            (true, Next::Watch) => Wait::Watch,
            (true, Next::Read) if more => Wait::Turn,
            (true, Next::Read) => Wait::Read,
        })
    }

    /// Whether the connection is idle: no reply is unsent, and no command is under way.
    pub(super) fn is_idle(&self) -> bool {
        let is_read = self.next == Next::Read && self.unsent.is_empty();
        is_read && (self.handshake.is_some() || self.conversation.is_idle())
    }

    /// Notes that the connection is closed for being idle.
    pub(super) fn end_idle(&self) {
        self.conversation.ended(DisconnectReason::Idle);
    }

    /// Passes `count` received bytes to the handshake; returns what to wait for unless the
    /// conversation has bytes.
    fn pass_handshake(&mut self, count: usize, replies: &mut Vec<u8>) -> io::Result<Option<Wait>> {
        let Some(handshake) = &mut self.handshake else {
            self.conversation.received(count);
            return Ok(None);
        };
        let step = handshake.receive(&self.conversation.room()[..count], replies);
        for _ in 0..std::mem::take(&mut handshake.refusals) {
            self.conversation.logged_in(false);
        }
        match step {
            AuthStep::Close => Ok(Some(Wait::End)),
            AuthStep::NeedMore => Ok(Some(if self.send(replies)? {
                Wait::Read
            } else {
                Wait::Write
            })),
            AuthStep::Accepted(bytes) => {
                self.handshake = None;
                self.conversation.logged_in(true);
                self.conversation.room()[..bytes.len()].copy_from_slice(&bytes);
                self.conversation.received(bytes.len());
                Ok(None)
            }
        }
    }

    /// Sends replies as far as the socket takes them, and keeps the rest; returns whether all
    /// are sent.
    fn send(&mut self, replies: &mut Vec<u8>) -> io::Result<bool> {
        if replies.is_empty() {
            return Ok(true);
        }
        let count = send_some(&self.socket, replies)?;
        if count == replies.len() {
            return Ok(true);
        }
        self.conversation.sends(true);
        // A large buffer is moved, a small rest copied: the buffer of the thread may be
        // large.
        (self.unsent, self.taken) = match &replies[count..] {
            few if few.len() <= REPLIES_KEPT => (few.to_vec(), 0),
            _ => (std::mem::take(replies), count),
        };
        Ok(false)
    }

    fn send_rest(&mut self) -> io::Result<bool> {
        if self.unsent.is_empty() {
            return Ok(true);
        }
        self.taken += send_some(&self.socket, &self.unsent[self.taken..])?;
        if self.taken < self.unsent.len() {
            return Ok(false);
        }
        self.unsent = Vec::new();
        self.conversation.sends(false);
        Ok(true)
    }
}

impl<C> AsFd for Connection<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes that the socket took.
fn send_some(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Ok(count) => Ok(count),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::server::backend::Session;
    use crate::server::sockets::auth::tests::handshake;
    use crate::store::Limits;
    use crate::store::shared::Shared;
    use crate::testing;
    use crate::text::Conversation;

    fn pair(store: &Shared) -> (UnixStream, Connection<Session>) {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let session = Session {
            store: store.clone(),
            conversation: Conversation::default(),
        };
        (client, Connection::new(server.into(), None, session))
    }

    fn until_it_waits(connection: &mut Connection<Session>, scratch: &mut Scratch) -> Wait {
        loop {
            match connection.turn(scratch).unwrap() {
                Wait::Turn => {}
                wait => return wait,
            }
        }
    }

    #[test]
    fn a_batch_of_requests_takes_one_turn() {
        let store = testing::shared(Limits::DEFAULT);
        let (mut client, mut connection) = pair(&store);
        let mut scratch = Scratch::default();
        assert_eq!(connection.turn(&mut scratch).unwrap(), Wait::Read);
        client
            .write_all(b"set a 0 0 1\r\n1\r\nget a\r\nget b\r\nversio")
            .unwrap();
        assert_eq!(connection.turn(&mut scratch).unwrap(), Wait::Read);
        let expected = b"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nEND\r\n";
        let mut said = vec![0; expected.len()];
        client.read_exact(&mut said).unwrap();
        assert_eq!(said, expected);
        client.write_all(b"n\r\nquit\r\n").unwrap();
        assert_eq!(connection.turn(&mut scratch).unwrap(), Wait::End);
    }

    /// Replies once came with each piece that was read, and woke the client each time.
    #[test]
    fn a_large_batch_is_answered_at_once() {
        let store = testing::shared(Limits::DEFAULT);
        let (mut client, mut connection) = pair(&store);
        let (mut scratch, sets) = (Scratch::default(), 100);
        let set = [&b"set a 0 0 1000\r\n"[..], &[b'v'; 1000], b"\r\n"].concat();
        client.write_all(&set.repeat(sets)).unwrap();
        assert_eq!(connection.turn(&mut scratch).unwrap(), Wait::Read);
        let mut said = vec![0; 1000];
        let len = client.read(&mut said).unwrap();
        assert_eq!(said[..len], b"STORED\r\n".repeat(sets));
        // Also when nothing can follow.
        client.write_all(&set.repeat(sets)).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        while connection.turn(&mut scratch).unwrap() != Wait::End {}
        drop(connection);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"STORED\r\n".repeat(sets));
    }

    /// Connections with pieces of any length use one scratch space in turn: the rest of a request
    /// leaves the space before the next turn, and no connection keeps unneeded memory.
    #[test]
    fn connections_with_parts_of_requests_share_scratch() {
        let store = testing::shared(Limits::DEFAULT);
        let lens = [10, 20_000, 100_000, 131_072, 900_000];
        let mut scratch = Scratch::default();
        for piece in [7_000, 16_384, 50_000, 131_072, 400_000] {
            let mut ends = lens.map(|_| pair(&store));
            for (client, _) in &ends {
                client.set_nonblocking(true).unwrap();
            }
            let requests = lens.map(|len| {
                let value = vec![b'a' + (len % 23) as u8; len];
                [
                    format!("set k{len} 0 0 {len}\r\n").as_bytes(),
                    &value,
                    b"\r\nget k",
                ]
                .concat()
            });
            let longest = requests.iter().map(Vec::len).max().unwrap();
            for start in (0..longest).step_by(piece) {
                for ((client, connection), request) in ends.iter_mut().zip(&requests) {
                    let end = request.len().min(start + piece);
                    let mut part = request.get(start..end).unwrap_or_default();
                    while !part.is_empty() {
                        // There may be no room for all of it.
                        part = &part[client.write(part).unwrap_or(0)..];
                        assert_ne!(until_it_waits(connection, &mut scratch), Wait::End);
                    }
                }
            }
            for (((client, connection), len), request) in ends.iter_mut().zip(lens).zip(requests) {
                assert_eq!(connection.conversation.input().bytes(), b"get k");
                assert!(connection.conversation.input().capacity() < 100);
                client.write_all(format!("{len}\r\n").as_bytes()).unwrap();
                let line = format!("STORED\r\nVALUE k{len} 0 {len}\r\n");
                let value = &request[request.len() - len - 7..request.len() - 7];
                let expected = [line.as_bytes(), value, b"\r\nEND\r\n"].concat();
                let (mut said, mut piece) = (Vec::new(), vec![0; 1 << 20]);
                while said.len() < expected.len() {
                    until_it_waits(connection, &mut scratch);
                    let count = client.read(&mut piece).expect("more");
                    said.extend_from_slice(&piece[..count]);
                }
                assert!(said == expected, "{len}");
                assert_eq!(connection.conversation.input().capacity(), 0);
            }
        }
    }

    /// Each wrong line has an answer thirty times as long.
    #[test]
    fn an_unauthenticated_client_that_does_not_read_costs_little_memory() {
        let store = testing::shared(Limits::DEFAULT);
        let (mut client, mut connection) = pair(&store);
        connection.handshake = Some(handshake(b"a:b"));
        client.set_nonblocking(true).unwrap();
        let mut scratch = Scratch::default();
        // Earlier connections have had long replies.
        scratch.replies.reserve(REPLIES_KEPT);
        while client.write(&[b'\n'; 100_000]).is_ok() {}
        while connection.turn(&mut scratch).unwrap() != Wait::Write {
            let _ = client.write(&[b'\n'; 100_000]);
        }
        assert!(connection.unsent.capacity() < 300_000);
    }

    #[test]
    fn no_requests_are_read_from_a_client_that_reads_no_replies() {
        let store = testing::shared(Limits::DEFAULT);
        store.set(b"k", 0, 0, &[b'v'; 500_000]).unwrap();
        let (mut client, mut connection) = pair(&store);
        let mut scratch = Scratch::default();
        client
            .write_all("get k k k k\r\n".repeat(100).as_bytes())
            .unwrap();
        assert_eq!(connection.turn(&mut scratch).unwrap(), Wait::Write);
        let kept = connection.unsent.len();
        assert!(kept < 2_000_000);
        for _ in 0..10 {
            assert_eq!(connection.turn(&mut scratch).unwrap(), Wait::Write);
            assert_eq!(connection.unsent.len(), kept);
        }
        // All replies arrive once the client reads.
        client.set_nonblocking(true).unwrap();
        let one = b"VALUE k 0 500000\r\n\r\n".len() + 500_000;
        let expected = (4 * one + b"END\r\n".len()) * 100;
        let (mut len, mut piece) = (0, vec![0; 1 << 20]);
        while len < expected {
            let wait = connection.turn(&mut scratch).unwrap();
            assert_ne!(wait, Wait::End);
            len += client.read(&mut piece).unwrap_or(0);
        }
        assert_eq!(len, expected);
        assert_eq!(connection.turn(&mut scratch).unwrap(), Wait::Read);
        assert_eq!(connection.unsent.capacity(), 0);
    }
}
