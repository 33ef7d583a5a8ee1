//! Connections that carry messages: packet channels of the fabric or of RDMA devices, and TCP sockets
//! of the kernel.

use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use toroid_fabric::PacketChannel;
use toroid_fabric::channel::{ChannelError, MAX_PAYLOAD};
use toroid_fabric::emulation::Channel;
#[cfg(feature = "verbs")]
use toroid_fabric::verbs;

use super::script::{MOST_SEGMENTS, Wait};

/// Longest sleep in a wait for the other side.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes of a message's length before the message, on a socket.
const LENGTH: usize = 4;

/// Time for which a receive on a socket polls before it sleeps, if asked.
const SPIN: Duration = Duration::from_micros(100);

/// A connection.
#[derive(Debug)]
pub enum Wire {
    Channel(Box<Channel>),
    Socket(Socket),
    /// A channel of two RDMA devices.
    #[cfg(feature = "verbs")]
    Verbs(Box<verbs::Channel>),
}

impl Wire {
    /// Sends a message of at most [`MOST_SEGMENTS`] parts.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        match self {
            Wire::Socket(socket) => socket.send(parts),
            Wire::Channel(channel) => send(&mut **channel, parts),
            #[cfg(feature = "verbs")]
            Wire::Verbs(channel) => send(&mut **channel, parts),
        }
    }

    /// Looks once for a message, and replaces `into` by it; returns whether there was one.
    pub fn poll(&mut self, into: &mut Vec<u8>) -> Result<bool> {
        match self {
            Wire::Socket(socket) => socket.receive(into),
            Wire::Channel(channel) => Ok(channel.receive(into)?),
            #[cfg(feature = "verbs")]
            Wire::Verbs(channel) => Ok(channel.receive(into)?),
        }
    }

    /// Receives a message.
    pub fn receive(&mut self, into: &mut Vec<u8>, wait: Wait) -> Result<()> {
        while !self.poll(into)? {
            match (wait, &mut *self) {
                (Wait::Poll, _) => std::hint::spin_loop(),
                (Wait::Block, wire) => wire.sleep()?,
                (Wait::SpinThenBlock, Wire::Channel(channel)) => channel.wait(LOOK),
                #[cfg(feature = "verbs")]
                (Wait::SpinThenBlock, Wire::Verbs(channel)) => channel.wait(LOOK),
                (Wait::SpinThenBlock, Wire::Socket(socket)) => {
                    if socket.spin(into)? {
                        return Ok(());
                    }
                    self.sleep()?;
                }
            }
        }
        Ok(())
    }

    /// Sleeps until there may be a message.
    fn sleep(&mut self) -> Result<()> {
        sleep(slice::from_mut(self))
    }

    /// Asks for a signal of the next message; returns false if there are news already.
    fn arm(&mut self) -> bool {
        match self {
            Wire::Socket(_) => true,
            Wire::Channel(channel) => channel.arm(),
            #[cfg(feature = "verbs")]
            Wire::Verbs(channel) => channel.arm(),
        }
    }

    fn disarm(&mut self) {
        match self {
            Wire::Socket(_) => {}
            Wire::Channel(channel) => channel.disarm(),
            #[cfg(feature = "verbs")]
            Wire::Verbs(channel) => channel.disarm(),
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        match self {
            Wire::Socket(socket) => socket.stream.as_fd(),
            Wire::Channel(channel) => channel.wake_fd(),
            #[cfg(feature = "verbs")]
            Wire::Verbs(channel) => channel.wake_fd(),
        }
    }
}

fn send(channel: &mut impl PacketChannel, parts: &[&[u8]]) -> Result<()> {
    loop {
        match channel.send(parts) {
            Err(ChannelError::Full) => channel.wait(LOOK),
            sent => return Ok(sent?),
        }
    }
}

/// Receives the first message that is found by a look at each connection in turns, from `next` on;
/// returns the number of its connection.
pub fn receive_any(
    wires: &mut [Wire],
    next: usize,
    into: &mut Vec<u8>,
    wait: Wait,
) -> Result<usize> {
    let mut since = Instant::now();
    loop {
        let count = wires.len();
        for at in (next..next + count).map(|at| at % count) {
            if wires[at].poll(into)? {
                return Ok(at);
            }
        }
        let sleeps = match wait {
            Wait::Poll => false,
            Wait::Block => true,
            Wait::SpinThenBlock => since.elapsed() >= SPIN,
        };
        if sleeps {
            sleep(wires)?;
            since = Instant::now();
        }
    }
}

/// Sleeps until there may be a message at one of these connections.
fn sleep(wires: &mut [Wire]) -> Result<()> {
    let armed = wires.iter_mut().all(Wire::arm);
    let slept = if armed { sleep_on(wires) } else { Ok(()) };
    wires.iter_mut().for_each(Wire::disarm);
    Ok(slept?)
}

fn sleep_on(wires: &[Wire]) -> nix::Result<()> {
    let fds = wires.iter().map(Wire::wake_fd);
    let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(
        &mut fds,
        PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::NONE),
    ) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A TCP socket, on which each message follows its length.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    /// Received bytes: those from `taken` to `filled` are of no message yet.
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl Socket {
    /// Switches Nagle's algorithm off.
    pub fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Socket {
            stream,
            buffer: vec![0; 4 * MAX_PAYLOAD],
            taken: 0,
            filled: 0,
        })
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > MAX_PAYLOAD || parts.len() > MOST_SEGMENTS {
            bail!(
                "a message of {bytes} bytes in {} parts is too long",
                parts.len()
            );
        }
        let length = (bytes as u32).to_le_bytes();
        let mut slices = [IoSlice::new(&[]); 1 + MOST_SEGMENTS];
        slices[0] = IoSlice::new(&length);
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        let mut left = &mut slices[..=parts.len()];
        while !left.is_empty() {
            match self.stream.write_vectored(left)? {
                0 => return Err(ChannelError::PeerDead.into()),
                written => IoSlice::advance_slices(&mut left, written),
            }
        }
        Ok(())
    }

    /// Takes a message that is here; never waits.
    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool> {
        if self.take(into) {
            return Ok(true);
        }
        if self.taken > 0 {
            self.buffer.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        let room = &mut self.buffer[self.filled..];
        match recv(self.stream.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Err(ChannelError::PeerDead.into()),
            Ok(received) => self.filled += received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(self.take(into))
    }

    /// Takes a message from the buffer.
    fn take(&mut self, into: &mut Vec<u8>) -> bool {
        let here = &self.buffer[self.taken..self.filled];
        let Some((length, rest)) = here.split_first_chunk::<LENGTH>() else {
            return false;
        };
        let Some(message) = rest.get(..u32::from_le_bytes(*length) as usize) else {
            return false;
        };
        into.clear();
        into.extend_from_slice(message);
        self.taken += LENGTH + message.len();
        true
    }

    /// Polls for a message; returns whether it came.
    fn spin(&mut self, into: &mut Vec<u8>) -> Result<bool> {
        let since = Instant::now();
        while since.elapsed() < SPIN {
            if self.receive(into)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
