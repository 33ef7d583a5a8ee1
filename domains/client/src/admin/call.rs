//! Requests and their replies. If the agent starts again meanwhile, a request is repeated at its next
//! life.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use toroid_protocol::agent::{Event, Message, Reply, ReplyValue, Request};
use toroid_protocol::query_request;
use toroid_protocol::wire::WireError;

use super::{ClientError, Control, PAUSE};
use crate::once::{once, repeat};

/// Time in which a request is repeated if the agent is starting again: it lets other requests end
/// before.
const REPEATED: Duration = Duration::from_secs(15);

/// Time after which a request that waits for an agent says so.
const PATIENCE: Duration = Duration::from_secs(1);

impl Control {
    pub(super) fn call<T: ReplyValue>(&mut self, request: &Request) -> Result<T, ClientError> {
        let (reply, _) = self.call_with_descriptors(request)?;
        T::from_reply(reply).map_err(|other| unexpected(&other))
    }

    /// Sends a request and waits for its reply. If the agent starts again meanwhile, connects anew
    /// and repeats the request. A change has an identifier, so that it is made once.
    pub(super) fn call_with_descriptors(
        &mut self,
        request: &Request,
    ) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        let once = once(request)?;
        let is_change = once.is_some();
        let mut request = once.unwrap_or_else(|| request.clone());
        let mut waits = self.waits;
        let (mut broken, mut is_begun) = (None, false);
        // What became of a change is not known any more.
        let unknown = |error, is_begun| match is_change && is_begun {
            true => ClientError::Unknown(Box::new(error)),
            false => error,
        };
        loop {
            let failure = match self.exchange(&request, &mut waits) {
                Ok((Reply::Again { begun }, _)) => {
                    is_begun |= begun;
                    ClientError::Silent
                }
                Err(ClientError::Wire(error)) if self.may_repeat(&request, &error) => {
                    is_begun |= !self.is_unread(&error);
                    error.into()
                }
                result => return result,
            };
            if is_begun {
                repeat(&mut request);
            }
            let since = broken.get_or_insert_with(Instant::now).elapsed();
            if since > REPEATED {
                return Err(unknown(failure, is_begun));
            }
            if since > PATIENCE
                && let Some(tell) = waits.take()
            {
                tell();
            }
            thread::sleep(PAUSE);
            match Self::open(self.address.clone()) {
                Ok(next) => {
                    *self = Control {
                        waits: self.waits,
                        ..next
                    }
                }
                Err(_) if is_begun => return Err(unknown(failure, is_begun)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether a request whose connection broke may be repeated: the agent has not read it, it is a
    /// change with an identifier, or it changes nothing.
    fn may_repeat(&self, request: &Request, error: &WireError) -> bool {
        let is_harmless = matches!(request, query_request!() | Request::Once { .. });
        is_broken_off(error) && (self.is_unread(error) || is_harmless)
    }

    /// Whether the agent has not read the request when the connection broke.
    fn is_unread(&self, error: &WireError) -> bool {
        self.reader.was_reset() || !matches!(error, WireError::Closed)
    }

    pub(super) fn exchange(
        &mut self,
        request: &Request,
        waits: &mut Option<fn()>,
    ) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        // An agent that refuses a client sends the reason before it closes the connection, so the
        // reply is read even when the request could not be sent.
        let sent = self.writer.send(request, &[]);
        if let Err(error @ WireError::Malformed(_)) = sent {
            return Err(ClientError::TooLong(error));
        }
        match self.reply(waits) {
            Err(ClientError::Wire(error)) => Err(sent.err().unwrap_or(error).into()),
            reply => reply,
        }
    }

    fn reply(&mut self, waits: &mut Option<fn()>) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        loop {
            match self.reader.receive()? {
                (Message::Reply(Reply::Error(refusal)), _) => return Err(refusal.into()),
                (Message::Reply(reply), descriptors) => return Ok((reply, descriptors)),
                (Message::Event(Event::Waiting), _) => {
                    if let Some(tell) = waits.take() {
                        tell();
                    }
                }
                // News is for attached processes.
                (Message::Event(_), _) => {}
            }
        }
    }
}

pub(super) fn is_broken_off(error: &WireError) -> bool {
    match error {
        WireError::Closed => true,
        WireError::Io(error) => matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        ),
        WireError::Malformed(_) => false,
    }
}

pub(super) fn unexpected(reply: &Reply) -> ClientError {
    ClientError::Unexpected(format!("{reply:?}"))
}
