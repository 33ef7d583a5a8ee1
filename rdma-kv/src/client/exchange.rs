//! Packets of requests and replies, over one channel.

use std::ops::Range;
use std::time::{Duration, Instant};

use toroid_fabric::channel::{ChannelError, MAX_PAYLOAD};
use toroid_fabric::{NodeId, PacketChannel};

use super::ClientError;
use crate::protocol::layout::MAX_KEY;
use crate::protocol::messages::{
    OVERHEAD, Reply, Request, decode_reply, encode_request, split_message,
};

/// Time that the server has to answer a request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of a request without its value.
const HEAD_LIMIT: usize = MAX_KEY + OVERHEAD;

/// Longest value that fits into a packet with its request.
pub(super) const INLINE_MOST: usize = MAX_PAYLOAD - HEAD_LIMIT;

/// A channel to the server. Replies arrive in the order of the requests.
pub(super) struct Exchange<C> {
    channel: C,
    /// Requests that are not sent yet.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Position of the current reply in `incoming`.
    reply: Range<usize>,
    number: u32,
    /// Time of the last send.
    sent: Instant,
    timed_out: bool,
}

impl<C: PacketChannel> Exchange<C> {
    pub(super) fn new(channel: C) -> Self {
        Exchange {
            channel,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            reply: 0..0,
            number: 0,
            sent: Instant::now(),
            timed_out: false,
        }
    }

    pub(super) fn peer(&self) -> NodeId {
        self.channel.peer()
    }

    /// Queues a request, for which [`Exchange::has_room`] held; returns its number.
    pub(super) fn add(&mut self, request: &Request<'_>) -> u32 {
        let number = self.next_number();
        encode_request(&mut self.outgoing, number, request);
        number
    }

    /// The number of the next request.
    pub(super) fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// Whether all queued requests are sent.
    pub(super) fn all_is_sent(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Whether a request with a value of `value_len` bytes can be queued now; sends queued ones
    /// if there is no room.
    ///
    /// # Errors
    /// [`ClientError::Timeout`] once the server has not answered in time: it may still read the
    /// staging region. And how the channel ended.
    pub(super) fn has_room(&mut self, value_len: usize) -> Result<bool, ClientError> {
        if self.timed_out {
            Err(ClientError::Timeout)
        } else if self.outgoing.len() + value_len <= INLINE_MOST {
            Ok(true)
        } else {
            self.send()
        }
    }

    /// Checks that the channel works, when no request is under way. Sends nothing.
    ///
    /// # Errors
    /// If not, as [`Exchange::next`].
    #[cfg(feature = "server")]
    pub(super) fn check(&mut self) -> Result<(), ClientError> {
        if !self.timed_out && self.receive()? {
            Err(ClientError::Protocol)
        } else if self.timed_out {
            Err(ClientError::Timeout)
        } else {
            Ok(())
        }
    }

    /// Sends the queued requests; returns whether the channel had room.
    ///
    /// # Errors
    /// How the channel ended.
    pub(super) fn send(&mut self) -> Result<bool, ClientError> {
        if self.outgoing.is_empty() {
            return Ok(true);
        }
        match self.channel.send(&[&self.outgoing]) {
            Ok(()) => {
                self.outgoing.clear();
                self.sent = Instant::now();
                Ok(true)
            }
            Err(ChannelError::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a request that has no reply. Without room in the channel the request is dropped.
    ///
    /// # Errors
    /// How the channel ended.
    pub(super) fn tell(&mut self, request: &Request<'_>) -> Result<(), ClientError> {
        let mut packet = Vec::new();
        encode_request(&mut packet, 0, request);
        match self.channel.send(&[&packet]) {
            Err(ChannelError::Full) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves on to the next reply; returns whether there is one.
    ///
    /// # Errors
    /// [`ClientError::Protocol`], and how the channel ended.
    pub(super) fn receive(&mut self) -> Result<bool, ClientError> {
        if self.reply.end == self.incoming.len() {
            self.reply = 0..0;
            if !self.channel.receive(&mut self.incoming)? {
                return Ok(false);
            }
        }
        let mut rest = &self.incoming[self.reply.end..];
        let message = split_message(&mut rest)?;
        let end = self.incoming.len() - rest.len();
        self.reply = end - message.len()..end;
        Ok(true)
    }

    /// Sends the queued requests and waits for the next reply.
    ///
    /// # Errors
    /// [`ClientError::Timeout`], [`ClientError::Protocol`], and how the channel ended.
    pub(super) fn next(&mut self, deadline: Instant) -> Result<(), ClientError> {
        loop {
            self.send()?;
            if self.receive()? {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.time_out());
            }
            self.channel.wait(left);
        }
    }

    /// Time of the last send; the server cannot have answered earlier.
    pub(super) fn last_sent(&self) -> Instant {
        self.sent
    }

    /// Marks the server as unresponsive: all later requests fail.
    pub(super) fn time_out(&mut self) -> ClientError {
        self.timed_out = true;
        ClientError::Timeout
    }

    /// The current reply and the number of its request.
    ///
    /// # Errors
    /// [`ClientError::Protocol`].
    pub(super) fn reply(&self) -> Result<(u32, Reply<'_>), ClientError> {
        let message = self.incoming.get(self.reply.clone()).unwrap_or_default();
        Ok(decode_reply(message)?)
    }

    /// Sends a request and waits for its reply, when no other request is under way.
    ///
    /// # Errors
    /// As [`Exchange::next`].
    pub(super) fn ask(&mut self, request: &Request<'_>) -> Result<Reply<'_>, ClientError> {
        let number = self.add(request);
        self.next(Instant::now() + TIMEOUT)?;
        match self.reply()? {
            (of, reply) if of == number => Ok(reply),
            _ => Err(ClientError::Protocol),
        }
    }
}
