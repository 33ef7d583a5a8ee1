//! Sessions of memcached's protocol over messages, for clients of a proxy.

use super::backend::Session;
use crate::protocol::messages::{Awaiting, TEXT_LIMIT};
use crate::text::{Next, Wants};

/// Bytes of memory for replies that are kept.
const REPLIES_KEPT: usize = 64 * 1024;

/// A session of a client of a proxy.
#[derive(Debug)]
pub(super) struct ProxiedSession {
    session: Session,
    next: Next,
    replies: Vec<u8>,
    /// Bytes of these that were sent.
    sent: usize,
}

/// Error for which the proxy is disconnected.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxiedSessionError {
    /// The proxy sent more before it took its replies, which would need ever more memory.
    #[error("it does not take its replies")]
    NotTaken,
    #[error("the store broke: {0}")]
    Store(toroid_fabric::OpError),
}

impl ProxiedSession {
    pub(super) fn new(session: Session) -> Self {
        ProxiedSession {
            session,
            next: Next::Read,
            replies: Vec::new(),
            sent: 0,
        }
    }

    /// Carries received commands out; returns the input that the session waits for, and replies up
    /// to one message.
    pub(super) fn hear(&mut self, text: &[u8]) -> Result<(Awaiting, &[u8]), ProxiedSessionError> {
        let goes_on = self.sent < self.replies.len() || self.next == Next::Continue;
        if goes_on && !text.is_empty() {
            return Err(ProxiedSessionError::NotTaken);
        }
        self.take(text);
        if self.sent == self.replies.len() {
            self.replies.clear();
            self.sent = 0;
            if self.next != Next::Close {
                self.next = self.run()?;
            }
            self.session.conversation.input().shrink();
        }
        if self.replies.len() - self.sent <= TEXT_LIMIT && self.replies.capacity() > REPLIES_KEPT {
            // The last piece: the session may stay idle for long afterwards.
            self.replies.drain(..self.sent);
            self.replies.shrink_to(REPLIES_KEPT);
            self.sent = 0;
        }
        let start = self.sent;
        self.sent = self.replies.len().min(start + TEXT_LIMIT);
        let awaiting = match self.next {
            _ if self.sent < self.replies.len() => Awaiting::More,
            Next::Continue => Awaiting::More,
            Next::Close | Next::Watch => Awaiting::End,
            Next::Read => match self.session.conversation.wants() {
                Wants::Command => Awaiting::Command,
                Wants::Line => Awaiting::Line,
                Wants::Bytes(bytes) => Awaiting::Bytes(bytes as u64),
            },
        };
        Ok((awaiting, &self.replies[start..self.sent]))
    }

    fn take(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let room = self.session.conversation.room();
            let count = room.len().min(text.len());
            let (now, later) = text.split_at(count);
            room[..count].copy_from_slice(now);
            self.session.conversation.received(count);
            text = later;
        }
    }

    fn run(&mut self) -> Result<Next, ProxiedSessionError> {
        let next = self
            .session
            .conversation
            .run(&self.session.store, &mut self.replies);
        next.map_err(ProxiedSessionError::Store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Limits;
    use crate::testing;
    use crate::text::Conversation;

    #[test]
    fn long_replies_come_in_pieces_and_block_further_requests() {
        let store = testing::shared(Limits::DEFAULT);
        store.set(b"k", 0, 0, &[b'v'; 500_000]).unwrap();
        let conversation = Conversation::default();
        let mut proxied = ProxiedSession::new(Session {
            store,
            conversation,
        });
        let (mut text, mut replies) = (&b"get k k\r\n"[..], Vec::new());
        loop {
            let (then, piece) = proxied.hear(text).unwrap();
            assert!(piece.len() <= TEXT_LIMIT);
            replies.extend_from_slice(piece);
            match then {
                Awaiting::More => text = b"",
                then => break assert_eq!(then, Awaiting::Command),
            }
        }
        let value = [&b"VALUE k 0 500000\r\n"[..], &[b'v'; 500_000], b"\r\n"].concat();
        assert!(replies == [&value, &value, &b"END\r\n"[..]].concat());
        assert!(proxied.replies.capacity() <= REPLIES_KEPT);
        assert_eq!(proxied.hear(b"get k\r\n").unwrap().0, Awaiting::More);
        let refused = proxied.hear(b"get k\r\n");
        assert!(matches!(refused, Err(ProxiedSessionError::NotTaken)));
    }

    #[test]
    fn a_dump_continues_over_messages_to_its_end() {
        let store = testing::shared(Limits::DEFAULT);
        for n in 0..5000 {
            let key = format!("{n:0100}");
            store.set(key.as_bytes(), 0, 0, b"").unwrap();
        }
        let mut proxied = ProxiedSession::new(Session {
            store,
            conversation: Conversation::default(),
        });
        let dump = b"lru_crawler metadump all\r\n";
        let (mut text, mut replies) = (&dump[..], Vec::new());
        while let (Awaiting::More, piece) = proxied.hear(text).unwrap() {
            replies.extend_from_slice(piece);
            text = b"";
        }
        let lines = replies.split(|byte| *byte == b'\n').count() - 2;
        assert_eq!((lines, replies.ends_with(b"\nEND\r\n")), (5000, true));
    }
}
