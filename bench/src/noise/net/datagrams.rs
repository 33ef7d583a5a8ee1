//! Datagrams of an order: its token at the beginning and at the end, and streams between.

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use super::control::is_pause;
use super::error::{NetError, Peer};
use super::traffic::Budget;
use super::window::Counter;
use super::wire::{Digest, Flow, LARGEST_DATAGRAM, Streams};
use crate::noise::os::since;

/// Sent by a client until the server has answered.
const HELLO: &[u8] = b"hello ";

/// Sent by a server in answer.
const READY: &[u8] = b"ready ";

/// Sent by a client at the end of an order.
const END: &[u8] = b"end ";

fn of(word: &[u8], token: Digest) -> Vec<u8> {
    [word, String::from(token).as_bytes()].concat()
}

/// The first datagram of a client.
pub fn greeting(token: Digest) -> Vec<u8> {
    of(HELLO, token)
}

/// The server's answer to it.
pub fn ready(token: Digest) -> Vec<u8> {
    of(READY, token)
}

/// The last datagram of a client.
pub fn end(token: Digest) -> Vec<u8> {
    of(END, token)
}

/// Whether a datagram is a client's last one.
pub fn is_end(message: &[u8], token: Digest) -> bool {
    // Most messages differ in the first byte.
    message.starts_with(END) && message == end(token)
}

/// Answers a greeting.
///
/// # Errors
/// The system's.
pub fn answer(socket: &UdpSocket, token: Digest, to: SocketAddr) -> Result<(), NetError> {
    let sent = socket.send_to(&ready(token), to);
    sent.map(drop)
        .map_err(|error| Peer(to).error("send to", error))
}

/// Space for any datagram of this protocol, and one byte more.
pub fn buffer() -> Vec<u8> {
    vec![0; LARGEST_DATAGRAM as usize + 1]
}

/// Receives a stream of datagrams up to the last one. A pause as long as the socket's time-out is an
/// error.
///
/// # Errors
/// The limits', and the system's.
pub fn receive(
    order: &Streams,
    socket: &UdpSocket,
    from: SocketAddr,
    budget: &Budget,
    is_last: impl Fn(&[u8]) -> bool,
) -> Result<Flow, NetError> {
    let (mut bytes, mut counter, start) = (buffer(), Counter::new(order), Instant::now());
    loop {
        let (len, source) = match socket.recv_from(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => (0, from),
            received => received.map_err(|error| Peer(from).error("read from", error))?,
        };
        if source == from && is_last(&bytes[..len]) {
            return Ok(counter.finish());
        }
        if source == from && len == order.bytes as usize {
            counter.add(since(start), len as u64);
        }
        budget.spend(len)?;
    }
}

/// Receives a stream of datagrams until none has come for the socket's time-out.
///
/// # Errors
/// The limits', and the system's.
pub fn receive_until_pause(
    order: &Streams,
    socket: &UdpSocket,
    from: SocketAddr,
    budget: &Budget,
) -> Result<Flow, NetError> {
    let (mut bytes, mut counter, start) = (buffer(), Counter::new(order), Instant::now());
    loop {
        match socket.recv_from(&mut bytes) {
            Ok((len, source)) if source == from && len == order.bytes as usize => {
                counter.add(since(start), len as u64);
            }
            Ok(_) => {}
            Err(error) if is_pause(&error) => return Ok(counter.finish()),
            Err(error) => return Err(Peer(from).error("read from", error)),
        }
        budget.spend(0)?;
    }
}
