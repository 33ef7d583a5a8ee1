//! The passive side: echoes and counts.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::socket::{Datagrams, Listener, Sockets, Stream};
use super::{LONGEST_MESSAGE, Session, Transport};
use crate::samples::Samples;
use crate::worker::pattern;

/// A UDP socket without datagrams for this time has received all.
const QUIET: Duration = Duration::from_millis(10);

/// Serves sessions at `address` and any free port until the process ends. Returns the port.
pub fn start(address: Ipv4Addr) -> io::Result<u16> {
    start_with(&Sockets::Kernel, SocketAddrV4::new(address, 0))
}

/// Serves sessions at `address` until the process ends. Returns the port. A userspace stack needs a
/// given port.
pub fn start_with(sockets: &Sockets, address: SocketAddrV4) -> io::Result<u16> {
    let listener = sockets.listen(address)?;
    let port = listener.local_port(address.port())?;
    let sockets = sockets.clone();
    thread::Builder::new()
        .name("sessions".into())
        .spawn(move || accept(&listener, &sockets))?;
    Ok(port)
}

fn accept(listener: &Listener, sockets: &Sockets) {
    loop {
        let Ok(stream) = listener.accept() else {
            continue;
        };
        let sockets = sockets.clone();
        // A closed connection or a failed start of the thread ends that session only, and its
        // client notices.
        let _ = thread::Builder::new().spawn(move || serve(stream, &sockets));
    }
}

fn serve(stream: Stream, sockets: &Sockets) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    match receive_line(&mut reader)? {
        Session::Echo(Transport::Tcp, bytes) => tcp_echo(stream, reader, bytes),
        Session::Echo(Transport::Udp, bytes) => udp_echo(&stream, sockets, bytes),
        Session::Sink(Transport::Tcp, bytes, verified) => tcp_sink(stream, reader, bytes, verified),
        Session::Sink(Transport::Udp, bytes, verified) => {
            udp_sink(&stream, sockets, bytes, verified)
        }
        Session::Count(bytes, group) => count(&stream, sockets, bytes, group),
    }
}

pub(super) fn receive_line<T: DeserializeOwned>(reader: &mut impl BufRead) -> io::Result<T> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_str(&line).map_err(io::Error::from)
}

pub(super) fn send_line<T: Serialize>(mut stream: &Stream, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn tcp_echo(mut stream: Stream, mut reader: BufReader<Stream>, bytes: usize) -> io::Result<()> {
    stream.set_nodelay()?;
    let mut message = vec![0; bytes];
    loop {
        reader.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

fn tcp_sink(
    stream: Stream,
    mut reader: BufReader<Stream>,
    bytes: usize,
    verified: u64,
) -> io::Result<()> {
    let mut received = Samples::default();
    let mut message = vec![0; bytes];
    for number in 0..verified {
        reader.read_exact(&mut message)?;
        received.errors += u64::from(!pattern::matches(number, &message));
    }
    let start = Instant::now();
    // The few bytes in the buffer arrived before the clock started and do not count.
    let mut rest = reader.into_inner();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match rest.read(&mut buffer)? {
            0 => break,
            count => received.bytes += count as u64,
        }
    }
    received.elapsed_ns = start.elapsed().as_nanos() as u64;
    received.ops = received.bytes / bytes as u64;
    send_line(&stream, &received)
}

/// UDP socket of a session. The session ends when the client has closed its side of the TCP
/// connection and the datagrams in flight have arrived.
struct UdpSession {
    socket: Datagrams,
    ended: Arc<AtomicBool>,
}

impl UdpSession {
    fn open(stream: &Stream, sockets: &Sockets) -> io::Result<Self> {
        UdpSession::with(sockets.datagrams(stream.local_addr()?.ip())?, stream)
    }

    fn with(socket: Datagrams, stream: &Stream) -> io::Result<Self> {
        socket.set_read_timeout(QUIET)?;
        let port = socket.port()?;
        let ended = Arc::new(AtomicBool::new(false));
        let (mut control, flag) = (stream.try_clone()?, Arc::clone(&ended));
        thread::Builder::new().spawn(move || {
            // Both a close and an error end the session.
            let _ = control.read(&mut [0]);
            // Pairs with the Acquire in `receive`.
            flag.store(true, Ordering::Release);
        })?;
        send_line(stream, &port)?;
        Ok(UdpSession { socket, ended })
    }

    /// Length and sender of the next datagram; `None` at the session's end.
    fn receive(&self, message: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        loop {
            // Before the wait: the last datagrams may come between its end and that of the session.
            let ended = self.ended.load(Ordering::Acquire);
            match self.socket.receive(message) {
                Ok(datagram) => return Ok(Some(datagram)),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if ended => return Ok(None),
                Err(_) => {}
            }
        }
    }
}

fn udp_echo(stream: &Stream, sockets: &Sockets, bytes: usize) -> io::Result<()> {
    let session = UdpSession::open(stream, sockets)?;
    let mut message = vec![0; LONGEST_MESSAGE];
    while let Some((len, from)) = session.receive(&mut message)? {
        // A foreign datagram gets no echo.
        if len == bytes {
            session.socket.send_to(&message[..len], from)?;
        }
    }
    Ok(())
}

fn udp_sink(stream: &Stream, sockets: &Sockets, bytes: usize, verified: u64) -> io::Result<()> {
    let session = UdpSession::open(stream, sockets)?;
    let mut message = vec![0; LONGEST_MESSAGE];
    let mut received = Samples::default();
    for number in 0..verified {
        let Some((len, from)) = session.receive(&mut message)? else {
            return Ok(());
        };
        let right = len == bytes && pattern::matches(number, &message[..len]);
        received.errors += u64::from(!right);
        // The client waits for this acknowledgement, so that no verified datagram is lost.
        session.socket.send_to(&message[..1], from)?;
    }
    receive_all(&session, bytes, &mut received)?;
    send_line(stream, &received)
}

fn count(
    stream: &Stream,
    sockets: &Sockets,
    bytes: usize,
    group: Option<SocketAddrV4>,
) -> io::Result<()> {
    let IpAddr::V4(address) = stream.local_addr()?.ip() else {
        return Err(ErrorKind::Unsupported.into());
    };
    let socket = match group {
        None => sockets.datagrams(address.into())?,
        Some(group) => sockets.datagrams_of(group, address)?,
    };
    socket.take_much()?;
    let session = UdpSession::with(socket, stream)?;
    let mut received = Samples::default();
    receive_all(&session, bytes, &mut received)?;
    // After the answer a client may request the same group, whose port must be free by then.
    drop(session);
    send_line(stream, &received)
}

/// Counts datagrams until the session's end.
fn receive_all(session: &UdpSession, bytes: usize, received: &mut Samples) -> io::Result<()> {
    let mut message = vec![0; LONGEST_MESSAGE];
    let mut first_and_last = None;
    while let Some((len, _)) = session.receive(&mut message)? {
        received.errors += u64::from(len != bytes);
        received.ops += 1;
        received.bytes += len as u64;
        let now = Instant::now();
        let (first, _) = first_and_last.unwrap_or((now, now));
        first_and_last = Some((first, now));
    }
    if let Some((first, last)) = first_and_last {
        received.elapsed_ns = (last - first).as_nanos() as u64;
    }
    Ok(())
}
