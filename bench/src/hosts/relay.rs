//! Round trips through a bare relay between two hosts: about the least time of a path through a proxy on
//! this machine. (The relay of [`ether`](crate::ether) is one between two interfaces.)
//!
//! A thread copies bytes between a socket pair and a connection with an echo on the other host, as the
//! initiator's proxy does. All three threads poll, and yield their processors between two polls.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::thread;

use anyhow::{Result, bail};

use super::network::{self, Networks};
use crate::cluster::{ClusterError, system};
use crate::samples::Samples;
use crate::worker::sampler::{self, Pace, Work};

/// Bytes that are copied at a time: more than a message.
const BUFFER: usize = 256;

/// Measures round trips of messages of `bytes` bytes.
pub fn round_trips(networks: &Networks, bytes: usize, pace: Pace) -> Result<Samples, ClusterError> {
    let (user, proxy, near, far) = sockets(networks)?;
    let mut work = RoundTrips {
        user,
        message: vec![0; bytes],
    };
    thread::scope(|scope| {
        // Both end when the socket that they read has ended, one after the other.
        let threads = [
            scope.spawn(move || echo(&far)),
            scope.spawn(move || relay(&proxy, &near)),
        ];
        let samples = sampler::sample(&mut work, pace);
        drop(work);
        for thread in threads {
            match thread.join() {
                Ok(Err(error)) if error.kind() != ErrorKind::UnexpectedEof => {
                    return Err(system("relay")(error));
                }
                Ok(_) => {}
                Err(panic) => resume_unwind(panic),
            }
        }
        samples.map_err(ClusterError::ours)
    })
}

/// Both ends of the socket pair, and of a connection between two hosts. None of them blocks.
fn sockets(
    networks: &Networks,
) -> Result<(UnixStream, UnixStream, TcpStream, TcpStream), ClusterError> {
    let any_port = SocketAddrV4::new(network::address(1, 0), 0);
    let listen = || TcpListener::bind(any_port);
    let listener = networks.inside(1, listen)?.map_err(system("listen"))?;
    let connect = || TcpStream::connect(listener.local_addr()?);
    let near = networks.inside(0, connect)?.map_err(system("connect"))?;
    let set_up = || {
        let far = listener.accept()?.0;
        let (user, proxy) = UnixStream::pair()?;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
        }
        for end in [&user, &proxy] {
            end.set_nonblocking(true)?;
        }
        Ok((user, proxy, far))
    };
    let (user, proxy, far) = set_up().map_err(system("make sockets"))?;
    Ok((user, proxy, near, far))
}

fn echo(connection: &TcpStream) -> io::Result<Infallible> {
    loop {
        if !pass(connection, connection)? {
            thread::yield_now();
        }
    }
}

fn relay(near: &UnixStream, far: &TcpStream) -> io::Result<Infallible> {
    loop {
        if !(pass(near, far)? | pass(far, near)?) {
            thread::yield_now();
        }
    }
}

/// Copies available bytes; returns whether there were any.
fn pass(mut from: impl Read, mut to: impl Write) -> io::Result<bool> {
    let mut buffer = [0; BUFFER];
    match from.read(&mut buffer) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => to.write_all(&buffer[..count]).map(|()| true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

struct RoundTrips {
    user: UnixStream,
    message: Vec<u8>,
}

impl Work for RoundTrips {
    fn bytes(&self) -> u64 {
        self.message.len() as u64
    }

    fn run(&mut self, _: u32) -> Result<()> {
        self.user.write_all(&self.message)?;
        let mut left = &mut self.message[..];
        while !left.is_empty() {
            match self.user.read(left) {
                Ok(0) => bail!("the relay has ended"),
                Ok(count) => left = &mut left[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// TCP loses nothing.
    fn check(&mut self) -> Result<u64> {
        Ok(0)
    }
}
