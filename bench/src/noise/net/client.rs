//! The end of `noise connect`: a session with a server, and its orders.

use std::io::{Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket,
};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::PATIENCE;
use super::control::{Control, is_pause};
use super::datagrams::{self, Source};
use super::error::{NetError, Peer};
use super::key::{self, End, Key};
use super::memory::{self, Memory};
use super::orders::number_of;
use super::packets::{Handling, RoundTrip, Shortest};
use super::session::LONGEST_SESSION;
use super::traffic::{self, Budget, Data, Poller};
use super::wire::{
    Answer, Digest, Direction, Done, FILL, Flow, LONGEST_ANSWER, NUMBERED, Order, Protocol,
    Request, Streams, VERSION, line,
};
use crate::cluster::ClusterError;
use crate::noise::signals::Signals;

/// Time after which a datagram counts as lost.
const LOST: Duration = Duration::from_millis(500);

/// Pause after which a stream of datagrams has ended.
const LAST: Duration = Duration::from_millis(50);

/// Time between two greetings or ends of an order of datagrams.
const AGAIN: Duration = Duration::from_millis(200);

/// A session with a server.
pub struct Client {
    control: Control,
    server: SocketAddr,
    signals: Signals,
    budget: Budget,
}

/// The streams of an order, as received.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// Streams to the server.
    pub outward: Vec<Flow>,
    /// Streams from the server.
    pub inward: Vec<Flow>,
    /// Bytes that were sent in both directions.
    pub sent: u64,
}

impl Client {
    /// Connects to a server with the same key.
    pub fn connect(address: &str, key: &Key, signals: &Signals) -> Result<Self> {
        let (stream, server) = open(address)?;
        let mut control = Control::new(stream, server, LONGEST_ANSWER)?;
        let nonce = key::random()?;
        let welcomed = welcome(&mut control, key, nonce, signals);
        // A signal is the reason of all other errors.
        signals.check()?;
        let (seconds, bytes) = welcomed?;
        let time = Duration::from_secs(seconds.min(LONGEST_SESSION));
        Ok(Client {
            control,
            server,
            signals: signals.clone(),
            budget: Budget::new(time, bytes, signals),
        })
    }

    /// An error for the runner: a signal's, if one has arrived.
    pub fn failed(&self, error: NetError) -> ClusterError {
        match self.signals.check() {
            Err(interrupted) => interrupted,
            Ok(()) => ClusterError::Failed {
                process: "noise".into(),
                message: error.to_string(),
            },
        }
    }

    /// Opens memory of the server's node, if both nodes are in one domain.
    ///
    /// # Errors
    /// `MemberError::NotInNode` outside of nodes; the reason of this end or of the server;
    /// [`NetError::Lie`] for memory of another node.
    pub fn memory(&mut self) -> Result<Memory> {
        let (domain, place) = memory::domain_with(self.server.ip())?;
        self.order(Order::Export)?;
        match self.done()? {
            Done::Exported(key) => Memory::open(&domain, place, &key, self.control.peer),
            Done::NotExported(reason) => bail!("{}: {reason}", self.server),
            _ => Err(self
                .control
                .peer
                .lie("reports another kind of order")
                .into()),
        }
    }

    /// Limits of the session.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Gives an order. Returns its token.
    fn order(&mut self, order: Order) -> Result<Digest, NetError> {
        self.budget.check(Instant::now())?;
        self.control.send(&Request::Order(order))?;
        match self.answer(PATIENCE)? {
            Answer::Ready { token } => Ok(token),
            other => Err(unexpected(self.control.peer, &other)),
        }
    }

    fn answer(&mut self, within: Duration) -> Result<Answer, NetError> {
        match self.control.receive(within, &self.signals)? {
            Answer::Refused { reason } => Err(NetError::Refused {
                peer: self.server,
                reason,
            }),
            answer => Ok(answer),
        }
    }

    fn go(&mut self) -> Result<(), NetError> {
        match self.answer(PATIENCE)? {
            Answer::Go => Ok(()),
            other => Err(unexpected(self.control.peer, &other)),
        }
    }

    fn done(&mut self) -> Result<Done, NetError> {
        match self.answer(2 * PATIENCE)? {
            Answer::Done(done) => Ok(done),
            other => Err(unexpected(self.control.peer, &other)),
        }
    }

    /// Opens a connection of an order.
    fn data(&self, token: Digest, sends: bool) -> Result<Data, NetError> {
        let failed = |error| self.control.peer.error("open a connection to", error);
        let stream = TcpStream::connect_timeout(&self.server, PATIENCE).map_err(failed)?;
        let mut data = Data::new(stream, self.server, sends).map_err(failed)?;
        let greeting = Request::Data {
            token,
            sends: !sends,
        };
        data.stream.write_all(&line(&greeting)).map_err(failed)?;
        Ok(data)
    }

    /// A socket of this server only, from which it has received the token of an order.
    fn datagrams(&mut self, token: Digest) -> Result<UdpSocket, NetError> {
        let peer = self.control.peer;
        let failed = |error| peer.error("send datagrams to", error);
        let any: IpAddr = match self.server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).map_err(failed)?;
        socket.connect(self.server).map_err(failed)?;
        let (greeting, deadline) = (datagrams::greeting(token), Instant::now() + PATIENCE);
        while Instant::now() < deadline {
            self.budget.check(Instant::now())?;
            socket.send(&greeting).map_err(failed)?;
            match self.answer(AGAIN) {
                Ok(Answer::Go) => return Ok(socket),
                Ok(other) => return Err(unexpected(peer, &other)),
                Err(NetError::Silent { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(NetError::System {
            action: "send datagrams to",
            peer: self.server,
            source: std::io::Error::other("none came; open the port for UDP, too"),
        })
    }

    /// Ends an order of datagrams, and returns its outcome.
    fn end(&mut self, socket: &UdpSocket, token: Digest) -> Result<Done, NetError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let sent = socket.send_to(&datagrams::end(token), self.server);
            sent.map_err(|error| self.control.peer.error("send to", error))?;
            match self.answer(AGAIN) {
                Ok(Answer::Done(done)) => return Ok(done),
                Ok(other) => return Err(unexpected(self.control.peer, &other)),
                Err(NetError::Silent { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Begins round trips of messages, at most `count` on each connection; datagrams have one.
    pub fn echo(
        &mut self,
        protocol: Protocol,
        bytes: u32,
        connections: u32,
        count: u32,
    ) -> Result<Echo<'_>, NetError> {
        let token = self.order(Order::Echo {
            protocol,
            bytes,
            connections,
            count,
        })?;
        let peer = self.control.peer;
        let failed = |error| peer.error("prepare a connection to", error);
        let channel = match protocol {
            Protocol::Tcp => {
                let open = |_| {
                    let stream = self.data(token, true)?.stream;
                    stream.set_nodelay(true).map_err(failed)?;
                    Ok(stream)
                };
                let streams = (0..connections)
                    .map(open)
                    .collect::<Result<_, NetError>>()?;
                self.go()?;
                Channel::Tcp(streams)
            }
            Protocol::Udp => {
                let socket = self.datagrams(token)?;
                socket.set_read_timeout(Some(LOST)).map_err(failed)?;
                Channel::Udp(socket)
            }
        };
        Ok(Echo {
            message: vec![FILL; bytes as usize],
            // A datagram that is longer than the message is noticed.
            answer: vec![0; bytes as usize + usize::from(protocol == Protocol::Udp)],
            number: 0,
            token,
            channel,
            client: self,
            lost: 0,
        })
    }

    /// Takes round trips of datagrams without sleeping, for a time. Returns also the number of
    /// lost datagrams.
    pub fn poll(&mut self, count: u32, time: Duration) -> Result<(Vec<RoundTrip>, u64), NetError> {
        let peer = self.control.peer;
        let failed = |error| peer.error("poll", error);
        let shortest_gap_ns = traffic::calibrate().map_err(failed)?;
        let token = self.order(Order::Poll { count })?;
        let socket = self.datagrams(token)?;
        let mut poller = Poller::new(&socket, self.server).map_err(failed)?;
        let (start, mut trips) = (Instant::now(), Vec::new());
        for number in 0..count {
            self.budget.spend(2 * NUMBERED)?;
            trips.push(polled(&mut poller, number)?);
            if start.elapsed() > time {
                break;
            }
        }
        drop(poller);
        let Done::Polled(delayed) = self.end(&socket, token)? else {
            return Err(self.control.peer.lie("reports another kind of order"));
        };
        if !delayed.is_sorted() || delayed.last().is_some_and(|last| *last >= count) {
            return Err(self
                .control
                .peer
                .lie("names datagrams that were never sent"));
        }
        Ok(round_trips(shortest_gap_ns, &trips, &delayed))
    }

    /// Sends and receives streams.
    pub fn streams(&mut self, order: &Streams) -> Result<Streamed, NetError> {
        let token = self.order(Order::Streams(*order))?;
        let streamed = match order.protocol {
            Protocol::Tcp => self.stream(order, token),
            Protocol::Udp => self.stream_datagrams(order, token),
        }?;
        let all = streamed.outward.iter().chain(&streamed.inward);
        let received = all.map(|flow| flow.bytes).fold(0, u64::saturating_add);
        let is_sound = streamed.outward.iter().all(|flow| flow.is_sound(order));
        let expected = order.streams as usize * usize::from(order.direction.is_out());
        if !is_sound || streamed.outward.len() != expected {
            return Err(self
                .control
                .peer
                .lie("reports streams that contradict the order"));
        }
        if received > streamed.sent {
            let claim = format!("reports {received} bytes, and {} were sent", streamed.sent);
            return Err(self.control.peer.lie(claim));
        }
        Ok(streamed)
    }

    fn stream(&mut self, order: &Streams, token: Digest) -> Result<Streamed, NetError> {
        let mut connections = Vec::new();
        for _ in 0..order.streams {
            if order.direction.is_out() {
                connections.push(self.data(token, true)?);
            }
            if order.direction.is_in() {
                connections.push(self.data(token, false)?);
            }
        }
        self.go()?;
        let (sent, inward) = traffic::streams(order, &connections, &self.budget)
            .map_err(|error| self.reason().unwrap_or(error))?;
        let (theirs, outward) = self.streamed()?;
        Ok(Streamed {
            outward,
            inward,
            sent: sent.saturating_add(theirs),
        })
    }

    /// The server's reason for a broken connection, if it gave one.
    fn reason(&mut self) -> Option<NetError> {
        let answer = self.answer(AGAIN);
        answer
            .err()
            .filter(|error| matches!(error, NetError::Refused { .. }))
    }

    fn streamed(&mut self) -> Result<(u64, Vec<Flow>), NetError> {
        match self.done()? {
            Done::Streamed { sent, flows } => Ok((sent, flows)),
            _ => Err(self.control.peer.lie("reports another kind of order")),
        }
    }

    fn stream_datagrams(&mut self, order: &Streams, token: Digest) -> Result<Streamed, NetError> {
        let socket = self.datagrams(token)?;
        if order.direction == Direction::Out {
            let sent = traffic::send_datagrams(order, &socket, self.server, &self.budget)?;
            let Done::Streamed { flows, .. } = self.end(&socket, token)? else {
                return Err(self.control.peer.lie("reports another kind of order"));
            };
            return Ok(Streamed {
                outward: flows,
                inward: Vec::new(),
                sent,
            });
        }
        let mut source = Source::new(&socket, self.server, &self.budget, LAST)?;
        let (flow, _) = datagrams::receive(order, &mut source, |_| false)?;
        let (sent, outward) = self.streamed()?;
        Ok(Streamed {
            outward,
            inward: vec![flow],
            sent,
        })
    }
}

/// A connection to the first address of a name and port that answers.
fn open(address: &str) -> Result<(TcpStream, SocketAddr)> {
    let found = address
        .to_socket_addrs()
        .with_context(|| format!("{address} is no address; write it as ADDRESS:PORT"))?;
    let mut last = Err(anyhow!(
        "{address} has no address; write it as ADDRESS:PORT"
    ));
    for server in found {
        last = TcpStream::connect_timeout(&server, PATIENCE)
            .map(|stream| (stream, server))
            .with_context(|| {
                format!("cannot connect to {server}; run `toroid-bench noise serve --listen` there")
            });
        if last.is_ok() {
            break;
        }
    }
    last
}

/// Proves the key, and checks the server's proof. Returns the limits of time and bytes.
fn welcome(
    control: &mut Control,
    key: &Key,
    client: Digest,
    signals: &Signals,
) -> Result<(u64, u64)> {
    control.send(&Request::Hello {
        version: VERSION,
        nonce: client,
    })?;
    let server = match control.receive(PATIENCE, signals)? {
        Answer::Challenge { nonce } => nonce,
        other => return Err(unexpected(control.peer, &other).into()),
    };
    control.send(&Request::Proof(key.proof(End::Client, client, server)))?;
    match control.receive(PATIENCE, signals)? {
        Answer::Welcome {
            proof,
            seconds,
            bytes,
        } if proof == key.proof(End::Server, client, server) => Ok((seconds, bytes)),
        Answer::Welcome { .. } => Err(control.peer.lie("does not know the key").into()),
        other => Err(unexpected(control.peer, &other).into()),
    }
}

fn unexpected(peer: Peer, answer: &Answer) -> NetError {
    let word = match answer {
        Answer::Challenge { .. } => "greets again",
        Answer::Welcome { .. } => "welcomes again",
        Answer::Ready { .. } => "is ready for no order",
        Answer::Go => "begins no order",
        Answer::Done(_) => "has done no order",
        Answer::Refused { reason } => {
            return NetError::Refused {
                peer: peer.0,
                reason: reason.clone(),
            };
        }
    };
    peer.lie(word)
}

/// Sends a numbered datagram and looks for its answer. Returns the time and the handling here;
/// `None` if the datagram or its answer was lost.
fn polled(poller: &mut Poller<'_>, number: u32) -> Result<Option<(f64, Handling)>, NetError> {
    let mut message = [FILL; NUMBERED];
    message[..4].copy_from_slice(&number.to_le_bytes());
    let mut answer = [0; NUMBERED + 1];
    let (before, after) = poller.send(&message)?;
    while let Some(found) = poller.wait(&mut answer, LOST)? {
        if number_of(&answer[..found.len]) == Some(number) {
            let handling = found.handling(after - before);
            return Ok(Some(((found.now_ns - before) as f64, handling)));
        }
        if u128::from(found.now_ns - after) > LOST.as_nanos() {
            break;
        }
    }
    Ok(None)
}

/// Round trips by their number, and the number of lost ones.
fn round_trips(
    shortest_gap_ns: u64,
    trips: &[Option<(f64, Handling)>],
    delayed: &[u32],
) -> (Vec<RoundTrip>, u64) {
    let handlings: Vec<Handling> = trips.iter().flatten().map(|trip| trip.1).collect();
    let shortest = Shortest::of(shortest_gap_ns, &handlings);
    let of = |(number, trip): (u32, &Option<(f64, Handling)>)| {
        let (time_ns, handling) = (*trip)?;
        let by_server = delayed.binary_search(&number).is_ok();
        Some(RoundTrip {
            time_ns,
            has_detour: by_server || shortest.is_detour(handling),
        })
    };
    let known: Vec<RoundTrip> = (0..).zip(trips).filter_map(of).collect();
    let lost = (trips.len() - known.len()) as u64;
    (known, lost)
}

#[derive(Debug)]
enum Channel {
    Tcp(Vec<TcpStream>),
    Udp(UdpSocket),
}

/// Round trips under way.
pub struct Echo<'a> {
    client: &'a mut Client,
    channel: Channel,
    token: Digest,
    message: Vec<u8>,
    answer: Vec<u8>,
    number: u32,
    /// Datagrams lost in a row.
    lost: u32,
}

impl Echo<'_> {
    /// Takes a round trip; `None` if a datagram was lost.
    pub fn round_trip(&mut self) -> Result<Option<Duration>, NetError> {
        self.round_trip_on(0)
    }

    /// Takes a round trip on a connection with this number.
    pub fn round_trip_on(&mut self, connection: usize) -> Result<Option<Duration>, NetError> {
        self.client.budget.spend(2 * self.message.len())?;
        self.number = self.number.wrapping_add(1);
        let number = self.number.to_le_bytes();
        let len = number.len().min(self.message.len());
        self.message[..len].copy_from_slice(&number[..len]);
        match &self.channel {
            Channel::Tcp(_) => self.over_tcp(connection).map(Some),
            Channel::Udp(_) => self.over_udp(),
        }
    }

    fn over_tcp(&mut self, connection: usize) -> Result<Duration, NetError> {
        let peer = self.client.control.peer;
        let Channel::Tcp(streams) = &mut self.channel else {
            return Err(peer.lie("has no connection"));
        };
        let stream = &mut streams[connection];
        let start = Instant::now();
        let done = stream
            .write_all(&self.message)
            .and_then(|()| stream.read_exact(&mut self.answer));
        let took = start.elapsed();
        if let Err(error) = done {
            return Err(self
                .client
                .reason()
                .unwrap_or(peer.error("exchange messages with", error)));
        }
        if self.answer == self.message {
            Ok(took)
        } else {
            Err(peer.lie("sends other bytes back"))
        }
    }

    fn over_udp(&mut self) -> Result<Option<Duration>, NetError> {
        let peer = self.client.control.peer;
        let Channel::Udp(socket) = &self.channel else {
            return Err(peer.lie("has no socket"));
        };
        let start = Instant::now();
        let sent = socket.send_to(&self.message, self.client.server);
        sent.map_err(|error| peer.error("send to", error))?;
        loop {
            match socket.recv(&mut self.answer) {
                Ok(len) if self.answer[..len] == self.message[..] => {
                    self.lost = 0;
                    return Ok(Some(start.elapsed()));
                }
                Err(error) if !is_pause(&error) => return Err(peer.error("read from", error)),
                // Answers of earlier round trips are late, not lost.
                Ok(_) if start.elapsed() < LOST => self.client.budget.check(Instant::now())?,
                _ => return self.one_lost().map(|()| None),
            }
        }
    }

    fn one_lost(&mut self) -> Result<(), NetError> {
        self.client.budget.check(Instant::now())?;
        self.lost += 1;
        if LOST * self.lost >= PATIENCE {
            let error = NetError::Silent {
                peer: self.client.server,
                seconds: PATIENCE.as_secs(),
            };
            return Err(self.client.reason().unwrap_or(error));
        }
        Ok(())
    }

    /// Ends the round trips. The server has sent back `taken` messages at least.
    pub fn finish(self, taken: u64) -> Result<(), NetError> {
        let peer = self.client.control.peer;
        let done = match &self.channel {
            Channel::Tcp(streams) => {
                for stream in streams {
                    let ended = stream.shutdown(Shutdown::Write);
                    ended.map_err(|error| peer.error("end the connection to", error))?;
                }
                self.client.done()?
            }
            Channel::Udp(socket) => self.client.end(socket, self.token)?,
        };
        match done {
            Done::Echoed(count) if count >= taken => Ok(()),
            Done::Echoed(count) => Err(peer.lie(format!(
                "reports {count} messages sent back, and {taken} came"
            ))),
            _ => Err(peer.lie("reports another kind of order")),
        }
    }
}
