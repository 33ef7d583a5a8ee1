//! Packets of requests, and of their replies.

use std::ops::Range;
use std::time::{Duration, Instant};

use toroid_fabric::channel::{ChannelError, MAX_PAYLOAD};
use toroid_fabric::{NodeId, PacketChannel};

use super::ClientError;
use crate::protocol::layout::MAX_KEY;
use crate::protocol::messages::{
    OVERHEAD, Reply, Request, decode_reply, encode_request, split_message,
};

/// How long the server may take to answer a message.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// A request but for its value has at most this many bytes.
const HEAD_LIMIT: usize = MAX_KEY + OVERHEAD;

/// A value of this many bytes can travel with its request.
pub(super) const INLINE_MOST: usize = MAX_PAYLOAD - HEAD_LIMIT;

/// A channel to the server, over which requests go and replies come in the same order.
pub(super) struct Exchange<C> {
    channel: C,
    /// Requests that are still to be sent.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// The last reply that was taken from `incoming`.
    reply: Range<usize>,
    number: u32,
    /// When something was sent last.
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

    /// Adds a request to those to be sent, for which [`Exchange::has_room`]; returns its number.
    pub(super) fn add(&mut self, request: &Request<'_>) -> u32 {
        let number = self.next_number();
        encode_request(&mut self.outgoing, number, request);
        number
    }

    /// A number that no other request has.
    pub(super) fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// Whether nothing that was added is still to be sent.
    pub(super) fn all_is_sent(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Whether another request can be added now, with a value of `value_len` bytes.
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

    /// Whether the server can be asked, when nothing is on its way; asks nobody.
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

    /// Sends what was added; returns whether there was room in the channel.
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

    /// Sends a request that has no reply; it is lost where there is no room.
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

    /// Goes on to the next reply, if it is there.
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

    /// Sends what was added and waits for the next reply.
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

    /// When something was sent last: before that the server could not answer it.
    pub(super) fn last_sent(&self) -> Instant {
        self.sent
    }

    /// From now on nothing can be asked any more.
    pub(super) fn time_out(&mut self) -> ClientError {
        self.timed_out = true;
        ClientError::Timeout
    }

    /// The last reply that was received, and the number of its request.
    ///
    /// # Errors
    /// [`ClientError::Protocol`].
    pub(super) fn reply(&self) -> Result<(u32, Reply<'_>), ClientError> {
        let message = self.incoming.get(self.reply.clone()).unwrap_or_default();
        Ok(decode_reply(message)?)
    }

    /// Asks when nothing else is on its way.
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
