//! The active side: the measurements.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddrV4;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::server::{receive_line, send_line};
use super::socket::{Datagrams, Sockets, Stream};
use super::{Session, Transport};
use crate::samples::Samples;
use crate::worker::pattern;
use crate::worker::sampler::{Pace, Work, sample};

/// Messages at the start of a stream that are verified instead of counted.
const VERIFIED: u64 = 64;

/// Longest wait for an answer. A segment that is lost twice needs 3 s: RFC 6298 begins with 1 s, and
/// doubles it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Measures round trips of messages of `bytes` bytes with `server`; a sample is half a round trip.
pub fn round_trips(
    sockets: &Sockets,
    server: SocketAddrV4,
    transport: Transport,
    bytes: usize,
    pace: Pace,
) -> anyhow::Result<Samples> {
    let stream = open(sockets, server, &Session::Echo(transport, bytes))?;
    let mut samples = match transport {
        Transport::Tcp => {
            stream.set_nodelay()?;
            sample(&mut Echo::new(stream, bytes), pace)
        }
        Transport::Udp => {
            let socket = udp_socket(sockets, server, &stream)?;
            sample(&mut Echo::new(socket, bytes), pace)
        }
    }?;
    for sample in &mut samples.samples_ns {
        *sample /= 2.0;
    }
    Ok(samples)
}

/// Measures a stream of messages of `bytes` bytes to `server`; received messages count.
pub fn stream(
    sockets: &Sockets,
    server: SocketAddrV4,
    transport: Transport,
    bytes: usize,
    time: Duration,
) -> anyhow::Result<Samples> {
    stream_while(sockets, server, transport, bytes, &mut lasting(time))
}

/// Measures TCP streams side by side, each as [`stream`]. Their bytes count together.
pub fn streams(
    sockets: &Sockets,
    server: SocketAddrV4,
    bytes: usize,
    time: Duration,
    count: usize,
) -> anyhow::Result<Samples> {
    let one = || stream(sockets, server, Transport::Tcp, bytes, time);
    let all = thread::scope(|scope| {
        let started: Vec<_> = (0..count).map(|_| scope.spawn(one)).collect();
        let ended = started.into_iter().map(ScopedJoinHandle::join);
        ended
            .map(|one| one.unwrap_or_else(|_| Err(anyhow::anyhow!("a stream panicked"))))
            .collect::<anyhow::Result<Vec<Samples>>>()
    })?;
    let mut sum = Samples::default();
    for one in all {
        sum.bytes += one.bytes;
        sum.errors += one.errors;
        sum.elapsed_ns = sum.elapsed_ns.max(one.elapsed_ns);
    }
    Ok(sum)
}

/// As [`stream`], as long as `goes_on`, which is asked before each message that counts.
pub fn stream_while(
    sockets: &Sockets,
    server: SocketAddrV4,
    transport: Transport,
    bytes: usize,
    goes_on: &mut dyn FnMut() -> bool,
) -> anyhow::Result<Samples> {
    let session = Session::Sink(transport, bytes, VERIFIED);
    let stream = open(sockets, server, &session)?;
    match transport {
        Transport::Tcp => send_tcp(&stream, bytes, goes_on)?,
        Transport::Udp => send_udp(&udp_socket(sockets, server, &stream)?, bytes, goes_on)?,
    }
    stream.end_writing()?;
    Ok(receive_line(&mut BufReader::new(&stream))?)
}

pub(super) fn open(
    sockets: &Sockets,
    server: SocketAddrV4,
    session: &Session,
) -> io::Result<Stream> {
    let stream = sockets.connect(server, PATIENCE)?;
    send_line(&stream, session)?;
    Ok(stream)
}

fn udp_socket(sockets: &Sockets, server: SocketAddrV4, stream: &Stream) -> io::Result<Datagrams> {
    let port = receive_line(&mut BufReader::new(stream))?;
    let socket = sockets.datagrams_to(SocketAddrV4::new(*server.ip(), port))?;
    socket.set_read_timeout(PATIENCE)?;
    Ok(socket)
}

/// Whether `time` since the first call is not over.
fn lasting(time: Duration) -> impl FnMut() -> bool {
    let mut end = None;
    move || {
        let now = Instant::now();
        now < *end.get_or_insert(now + time)
    }
}

fn send_tcp(
    mut stream: &Stream,
    bytes: usize,
    goes_on: &mut dyn FnMut() -> bool,
) -> io::Result<()> {
    let mut message = vec![0; bytes];
    for number in 0..VERIFIED {
        pattern::fill(number, &mut message);
        stream.write_all(&message)?;
    }
    while goes_on() {
        stream.write_all(&message)?;
    }
    Ok(())
}

fn send_udp(socket: &Datagrams, bytes: usize, goes_on: &mut dyn FnMut() -> bool) -> io::Result<()> {
    let mut message = vec![0; bytes];
    for number in 0..VERIFIED {
        pattern::fill(number, &mut message);
        socket.send(&message)?;
        socket.receive(&mut [0])?;
    }
    while goes_on() {
        socket.send(&message)?;
    }
    Ok(())
}

/// Sends and receives whole messages.
trait Messages {
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Returns whether a message of the right length arrived in time.
    fn receive(&mut self, message: &mut [u8]) -> io::Result<bool>;
}

impl Messages for Stream {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.write_all(message)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<bool> {
        self.read_exact(message).map(|()| true)
    }
}

impl Messages for Datagrams {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        Datagrams::send(self, message).map(drop)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<bool> {
        match Datagrams::receive(self, message) {
            Ok((len, _)) => Ok(len == message.len()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

struct Echo<M> {
    messages: M,
    number: u64,
    sent: Vec<u8>,
    received: Vec<u8>,
    came: bool,
}

impl<M: Messages> Echo<M> {
    fn new(messages: M, bytes: usize) -> Self {
        Echo {
            messages,
            number: 0,
            sent: vec![0; bytes],
            received: vec![0; bytes],
            came: false,
        }
    }
}

impl<M: Messages> Work for Echo<M> {
    fn bytes(&self) -> u64 {
        self.sent.len() as u64
    }

    fn prepare(&mut self, _count: u32) -> anyhow::Result<()> {
        self.number += 1;
        pattern::fill(self.number, &mut self.sent);
        Ok(())
    }

    fn run(&mut self, _at: u32) -> anyhow::Result<()> {
        self.messages.send(&self.sent)?;
        self.came = self.messages.receive(&mut self.received)?;
        Ok(())
    }

    fn check(&mut self) -> anyhow::Result<u64> {
        let right = self.came && self.received == self.sent;
        Ok(u64::from(!right))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::super::server;
    use super::*;

    const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Udp];
    const TIME: Duration = Duration::from_millis(5);

    fn server() -> SocketAddrV4 {
        let here = Ipv4Addr::LOCALHOST;
        SocketAddrV4::new(here, server::start(here).unwrap())
    }

    #[test]
    fn echoes_come_back_whole() {
        let server = server();
        let batch = Some(1);
        let pace = Pace { time: TIME, batch };
        for transport in BOTH {
            for bytes in [1, 200, 8000] {
                let samples =
                    round_trips(&Sockets::Kernel, server, transport, bytes, pace).unwrap();
                assert_eq!(samples.errors, 0, "{transport:?}, {bytes} bytes");
                assert_eq!(samples.ops, samples.samples_ns.len() as u64);
                assert_eq!(samples.bytes, samples.ops * bytes as u64);
            }
        }
    }

    /// A number of messages, not a time: on a loaded machine a time may be over after the first.
    #[test]
    fn a_stream_counts_received_messages() {
        let server = server();
        for (transport, sizes) in [
            (Transport::Tcp, [200, 131_072]),
            (Transport::Udp, [200, 8000]),
        ] {
            for bytes in sizes {
                // More bytes than come with the verified messages, which are not counted.
                let mut left = 1000;
                let mut goes_on = || {
                    left -= 1;
                    left >= 0
                };
                let sockets = Sockets::Kernel;
                let samples = stream_while(&sockets, server, transport, bytes, &mut goes_on);
                let samples = samples.unwrap();
                assert_eq!(samples.errors, 0, "{transport:?}, {bytes} bytes");
                assert!(samples.ops > 0 && samples.elapsed_ns > 0);
            }
        }
    }

    #[test]
    fn a_malformed_request_ends_only_its_own_session() {
        let server = server();
        let mut stranger = TcpStream::connect(server).unwrap();
        stranger.write_all(b"GET / HTTP/1.0\r\n").unwrap();
        assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
        assert!(stream(&Sockets::Kernel, server, Transport::Tcp, 200, TIME).is_ok());
    }
}
