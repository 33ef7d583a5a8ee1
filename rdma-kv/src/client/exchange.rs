//! A request and its reply.

use std::time::{Duration, Instant};

use fabric::PacketChannel;
use fabric::channel::ChannelError;

use super::ClientError;
use crate::control::{Reply, Request, decode_reply, encode_request};

/// How long the server may take to answer a message.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a request and waits for its reply, which stays in `packet`.
pub(super) fn call<'a>(
    channel: &mut impl PacketChannel,
    packet: &'a mut Vec<u8>,
    number: u32,
    request: &Request<'_>,
) -> Result<Reply<'a>, ClientError> {
    let deadline = Instant::now() + TIMEOUT;
    encode_request(packet, number, request);
    while let Err(error) = channel.send(&[packet]) {
        match error {
            ChannelError::Full => wait(channel, deadline)?,
            error => return Err(error.into()),
        }
    }
    while !channel.receive(packet)? {
        wait(channel, deadline)?;
    }
    match decode_reply(packet)? {
        (of, reply) if of == number => Ok(reply),
        _ => Err(ClientError::Protocol),
    }
}

fn wait(channel: &mut impl PacketChannel, deadline: Instant) -> Result<(), ClientError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ClientError::Timeout);
    }
    channel.wait(left);
    Ok(())
}
