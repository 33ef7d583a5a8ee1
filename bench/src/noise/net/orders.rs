//! The orders that a server carries out.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use anyhow::Context;
use toroid_fabric::Region;

use super::PATIENCE;
use super::control::{Control, is_pause};
use super::datagrams::{self, Source, is_end};
use super::error::{NetError, Peer};
use super::memory;
use super::packets::{Handling, Shortest};
use super::traffic::{self, Budget, Data, Poller};
use super::wire::{Answer, Digest, Done, NUMBERED, Order, Protocol, Streams};
use crate::causes::with_causes;

/// The means of an order.
pub struct Carrier<'a> {
    /// The client's control connection.
    pub control: &'a mut Control,
    /// Connections with the order's token.
    pub connections: Receiver<Data>,
    /// The server's socket for datagrams.
    pub socket: &'a UdpSocket,
    /// The order's token.
    pub token: Digest,
    /// Limits of the session.
    pub budget: &'a Budget,
    /// Region of the session.
    pub exported: &'a mut Option<Region>,
}

impl Carrier<'_> {
    /// Carries out an order, and tells the client the outcome.
    ///
    /// # Errors
    /// All kinds of [`NetError`].
    pub fn carry_out(mut self, order: &Order) -> Result<(), NetError> {
        let done = match *order {
            Order::Echo {
                protocol: Protocol::Tcp,
                bytes,
                connections,
                count,
            } => self.echo(bytes, connections, count),
            Order::Echo {
                protocol: Protocol::Udp,
                bytes,
                count,
                ..
            } => self.echo_datagrams(bytes, count),
            Order::Poll { count } => self.poll(count),
            Order::Streams(streams) if streams.protocol == Protocol::Udp => {
                self.stream_datagrams(&streams)
            }
            Order::Streams(streams) => self.streams(&streams),
            Order::Export => Ok(self.export()),
        }?;
        self.control.send(&Answer::Done(done))
    }

    /// The client goes on without a region.
    fn export(&mut self) -> Done {
        let exported = memory::export(self.control.peer.0.ip()).and_then(|region| {
            let key = region.remote_key().context("the region has no key")?;
            Ok((region, key))
        });
        match exported {
            Ok((region, key)) => {
                *self.exported = Some(region);
                Done::Exported(key.to_string())
            }
            Err(error) => Done::NotExported(with_causes(&error)),
        }
    }

    /// Waits for this many connections.
    fn gather(&self, count: usize) -> Result<Vec<Data>, NetError> {
        gather(&self.connections, count, self.control.peer, self.budget)
    }

    fn echo(&mut self, bytes: u32, connections: u32, count: u32) -> Result<Done, NetError> {
        let connections = self.gather(connections as usize)?;
        self.control.send(&Answer::Go)?;
        let budget = self.budget;
        let echoed = traffic::on_each(&connections, |data| echo(data, bytes, count, budget))?;
        Ok(Done::Echoed(echoed.into_iter().sum()))
    }

    /// Waits for the order's token, begins, and returns its source. The control connection says so:
    /// a datagram may be lost.
    fn greeting(&mut self) -> Result<SocketAddr, NetError> {
        let peer = self.control.peer;
        let (socket, host, expected) = (self.socket, peer.0.ip(), datagrams::greeting(self.token));
        let failed = |error| peer.error("read from", error);
        let set = socket.set_read_timeout(Some(datagrams::LOOK));
        set.map_err(failed)?;
        let (mut bytes, deadline) = (datagrams::buffer(), Instant::now() + PATIENCE);
        while Instant::now() < deadline {
            self.budget.check(Instant::now())?;
            match socket.recv_from(&mut bytes) {
                Ok((len, from)) if from.ip() == host && bytes[..len] == expected[..] => {
                    self.control.send(&Answer::Go)?;
                    return Ok(from);
                }
                Err(error) if !is_pause(&error) => return Err(failed(error)),
                _ => {}
            }
        }
        Err(NetError::System {
            action: "receive datagrams of",
            peer: peer.0,
            source: std::io::Error::other("none came; open the port for UDP, too"),
        })
    }

    fn echo_datagrams(&mut self, size: u32, count: u32) -> Result<Done, NetError> {
        let client = self.greeting()?;
        let mut source = Source::new(self.socket, client, self.budget, PATIENCE)?;
        let (mut bytes, mut done) = (datagrams::buffer(), 0);
        while done < u64::from(count) {
            let received = source.receive(&mut bytes)?;
            let message = &bytes[..received.ok_or_else(|| source.silent())?];
            if is_end(message, self.token) {
                break;
            }
            if message.len() == size as usize {
                send(self.socket, message, client)?;
                self.budget.spend(2 * message.len())?;
                done += 1;
            }
        }
        Ok(Done::Echoed(done))
    }

    fn poll(&mut self, count: u32) -> Result<Done, NetError> {
        let failed = |error| self.control.peer.error("poll", error);
        let shortest_ns = traffic::calibrate().map_err(failed)?;
        let client = self.greeting()?;
        let failed = |error| Peer(client).error("poll", error);
        let mut poller = Poller::new(self.socket, client).map_err(failed)?;
        let mut handled: Vec<Option<Handling>> = vec![None; count as usize];
        let mut bytes = datagrams::buffer();
        loop {
            let Some(found) = poller.wait(&mut bytes, PATIENCE)? else {
                let (peer, seconds) = (client, PATIENCE.as_secs());
                return Err(NetError::Silent { peer, seconds });
            };
            self.budget.spend(2 * found.len)?;
            let message = &bytes[..found.len];
            if is_end(message, self.token) {
                break;
            }
            let number = number_of(message);
            let Some(slot) = number.and_then(|number| handled.get_mut(number as usize)) else {
                continue;
            };
            let (before, after) = poller.send(message)?;
            *slot = Some(found.handling(after - before));
        }
        Ok(Done::Polled(delayed(shortest_ns, &handled)))
    }

    fn streams(&mut self, order: &Streams) -> Result<Done, NetError> {
        let directions = [order.direction.is_out(), order.direction.is_in()];
        let wanted = directions.into_iter().filter(|wanted| *wanted).count();
        let wanted = order.streams as usize * wanted;
        let connections = self.gather(wanted)?;
        let sending = connections.iter().filter(|data| data.sends).count();
        if sending != order.streams as usize * usize::from(order.direction.is_in()) {
            return Err(self
                .control
                .peer
                .lie("opened connections of the wrong direction"));
        }
        self.control.send(&Answer::Go)?;
        let (sent, flows) = traffic::streams(order, &connections, self.budget)?;
        Ok(Done::Streamed { sent, flows })
    }

    fn stream_datagrams(&mut self, order: &Streams) -> Result<Done, NetError> {
        let client = self.greeting()?;
        if order.direction.is_in() {
            let sent = traffic::send_datagrams(order, self.socket, client, self.budget)?;
            let flows = Vec::new();
            return Ok(Done::Streamed { sent, flows });
        }
        let is_last = |message: &[u8]| is_end(message, self.token);
        let mut source = Source::new(self.socket, client, self.budget, PATIENCE)?;
        let (flow, has_ended) = datagrams::receive(order, &mut source, is_last)?;
        if !has_ended {
            return Err(source.silent());
        }
        let (sent, flows) = (0, vec![flow]);
        Ok(Done::Streamed { sent, flows })
    }
}

/// Waits for this many connections without a long pause, and not beyond the end of the session.
fn gather(
    connections: &Receiver<Data>,
    count: usize,
    peer: Peer,
    budget: &Budget,
) -> Result<Vec<Data>, NetError> {
    let next = |_| {
        budget.check(Instant::now())?;
        let next = connections.recv_timeout(PATIENCE.min(budget.left()));
        next.or_else(|_| {
            budget.check(Instant::now())?;
            let (peer, seconds) = (peer.0, PATIENCE.as_secs());
            Err(NetError::Silent { peer, seconds })
        })
    };
    (0..count).map(next).collect()
}

/// Sends messages back. Returns their number.
fn echo(data: &Data, bytes: u32, count: u32, budget: &Budget) -> Result<u64, NetError> {
    let set = data.stream.set_nodelay(true);
    set.map_err(|error| data.peer.error("echo to", error))?;
    let mut message = vec![0; bytes as usize];
    for done in 0..u64::from(count) {
        // The end of the connection between two messages is the end of the order.
        if !traffic::read_message(&data.stream, data.peer, &mut message, budget)? {
            return Ok(done);
        }
        budget.spend(2 * message.len())?;
        traffic::write_message(&data.stream, data.peer, &message, budget)?;
    }
    Ok(count.into())
}

/// Sends a datagram. A full queue drops it, as the network may.
fn send(socket: &UdpSocket, message: &[u8], to: SocketAddr) -> Result<(), NetError> {
    match socket.send_to(message, to) {
        Err(error) if !is_pause(&error) => Err(Peer(to).error("send to", error)),
        _ => Ok(()),
    }
}

/// The number of a datagram.
pub fn number_of(message: &[u8]) -> Option<u32> {
    let number = message.first_chunk().copied().map(u32::from_le_bytes);
    number.filter(|_| message.len() == NUMBERED)
}

/// The numbers of datagrams that a detour delayed.
fn delayed(shortest_gap_ns: u64, handled: &[Option<Handling>]) -> Vec<u32> {
    let known: Vec<Handling> = handled.iter().copied().flatten().collect();
    let shortest = Shortest::of(shortest_gap_ns, &known);
    let is_delayed =
        |handling: &Option<Handling>| handling.is_some_and(|handling| shortest.is_detour(handling));
    let numbered = (0..).zip(handled);
    let delayed = numbered.filter(|(_, handling)| is_delayed(handling));
    delayed.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::noise::os::detour::THRESHOLD;
    use crate::noise::signals::Signals;

    /// Both ends of a connection.
    fn connected() -> (TcpStream, Data) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        (client, Data::new(stream, peer, true).unwrap())
    }

    #[track_caller]
    fn assert_out_of_time<T: std::fmt::Debug>(outcome: &Result<T, NetError>) {
        let is_expected = matches!(outcome, Err(NetError::Spent { what: "time", .. }));
        assert!(is_expected, "{outcome:?}");
    }

    /// A client whose bytes and connections came one by one stayed for hours after the session's end:
    /// only a whole message was followed by a look at the limits.
    #[test]
    fn a_trickling_client_does_not_outstay_its_session() {
        let budget = || Budget::new(Duration::from_millis(50), 1 << 30, &Signals::none());
        let (mut client, server) = connected();
        let (order, connections) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                // The server may end it at any time.
                while client.write_all(b"x").is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let length = 5000;
            assert_out_of_time(&echo(&server, length, 1, &budget()));
            scope.spawn(move || {
                while order.send(connected().1).is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let gathered = gather(&connections, 5000, server.peer, &budget());
            assert_out_of_time(&gathered);
            drop((server, connections));
        });
    }

    #[test]
    fn delayed_datagrams_are_named_by_their_numbers() {
        let handling = |gap_ns, send_ns| Some(Handling { gap_ns, send_ns });
        let handled = [
            handling(300, 1000),
            None,
            handling(300 * THRESHOLD + 1, 1000),
            handling(300 * THRESHOLD, 9001),
            handling(301, 1001),
        ];
        assert_eq!(delayed(300, &handled), [2, 3]);
        let mut message = [0; NUMBERED];
        message[..4].copy_from_slice(&7_u32.to_le_bytes());
        assert_eq!(number_of(&message), Some(7));
        assert_eq!(number_of(&message[1..]), None);
    }
}
