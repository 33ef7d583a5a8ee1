//! Datagrams of an order: its token at the beginning and at the end, and streams between.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::control::is_pause;
use super::error::{NetError, Peer};
use super::traffic::Budget;
use super::window::Counter;
use super::wire::{Digest, Flow, LARGEST_DATAGRAM, Streams};
use crate::noise::os::since;

/// Longest wait between two looks at the limits.
pub const LOOK: Duration = Duration::from_millis(200);

/// Sent by a client until the server begins.
const HELLO: &[u8] = b"hello ";

/// Sent by a client at the end of an order.
const END: &[u8] = b"end ";

fn of(word: &[u8], token: Digest) -> Vec<u8> {
    [word, String::from(token).as_bytes()].concat()
}

/// The first datagram of a client.
pub fn greeting(token: Digest) -> Vec<u8> {
    of(HELLO, token)
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

/// Space for any datagram of this protocol, and one byte more.
pub fn buffer() -> Vec<u8> {
    vec![0; LARGEST_DATAGRAM as usize + 1]
}

/// The datagrams of one peer. Those of others cost it nothing, and keep no order alive.
#[derive(Debug)]
pub struct Source<'a> {
    socket: &'a UdpSocket,
    peer: SocketAddr,
    budget: &'a Budget,
    patience: Duration,
    last: Instant,
}

impl<'a> Source<'a> {
    /// The datagrams of `peer` without a pause as long as `patience`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(
        socket: &'a UdpSocket,
        peer: SocketAddr,
        budget: &'a Budget,
        patience: Duration,
    ) -> Result<Self, NetError> {
        let set = socket.set_read_timeout(Some(patience.min(LOOK)));
        set.map_err(|error| Peer(peer).error("receive from", error))?;
        Ok(Source {
            socket,
            peer,
            budget,
            patience,
            last: Instant::now(),
        })
    }

    /// The length of the next datagram; `None` after a pause.
    ///
    /// # Errors
    /// The limits', and the system's.
    pub fn receive(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, NetError> {
        loop {
            let received = self.socket.recv_from(bytes);
            let now = Instant::now();
            self.budget.check(now)?;
            match received {
                Ok((len, from)) if from == self.peer => {
                    self.last = now;
                    return Ok(Some(len));
                }
                Err(error) if !is_pause(&error) => {
                    return Err(Peer(self.peer).error("read from", error));
                }
                _ if now >= self.last + self.patience => return Ok(None),
                _ => {}
            }
        }
    }

    /// The error after a pause.
    pub fn silent(&self) -> NetError {
        NetError::Silent {
            peer: self.peer,
            seconds: self.patience.as_secs(),
        }
    }
}

/// Receives a stream of datagrams up to the last one or a pause. Returns also whether the last one
/// has come.
///
/// # Errors
/// The limits', and the system's.
pub fn receive(
    order: &Streams,
    source: &mut Source<'_>,
    is_last: impl Fn(&[u8]) -> bool,
) -> Result<(Flow, bool), NetError> {
    let (mut bytes, mut counter, start) = (buffer(), Counter::new(order), Instant::now());
    while let Some(len) = source.receive(&mut bytes)? {
        if is_last(&bytes[..len]) {
            return Ok((counter.finish(), true));
        }
        if len == order.bytes as usize {
            counter.add(since(start), len as u64);
        }
        source.budget.spend(len)?;
    }
    Ok((counter.finish(), false))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::noise::signals::Signals;

    /// The outcome of a receiver while only a stranger sends.
    fn among_strangers(time: Duration, patience: Duration) -> Result<Option<usize>, NetError> {
        let [here, peer, stranger] = [0; 3].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let budget = Budget::new(time, 10, &Signals::none());
        let (at, from) = (here.local_addr().unwrap(), peer.local_addr().unwrap());
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    stranger.send_to(&[1; 100], at).unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let mut source = Source::new(&here, from, &budget, patience).unwrap();
            let received = source.receive(&mut buffer());
            has_ended.store(true, Ordering::Relaxed);
            received
        })
    }

    #[test]
    fn strangers_neither_prolong_an_order_nor_use_up_its_bytes() {
        let [short, long] = [50, 60_000].map(Duration::from_millis);
        assert!(matches!(among_strangers(long, short), Ok(None)));
        let spent = among_strangers(short, long);
        assert!(
            matches!(spent, Err(NetError::Spent { what: "time", .. })),
            "{spent:?}"
        );
    }
}
