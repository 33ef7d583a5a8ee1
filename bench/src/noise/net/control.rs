//! The control connection: messages in lines, with time-outs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::PATIENCE;
use super::error::{NetError, Peer};
use super::wire::{Lines, line};
use crate::noise::signals::Signals;

/// Time between two looks at the signals.
const LOOK: Duration = Duration::from_millis(200);

/// A control connection.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    lines: Lines,
    /// The other end.
    pub peer: Peer,
}

impl Control {
    /// A connection with lines of at most `limit` bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn new(stream: TcpStream, peer: SocketAddr, limit: usize) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Control {
            stream,
            lines: Lines::new(limit),
            peer: Peer(peer),
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`NetError::Closed`], [`NetError::Silent`] and the system's.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), NetError> {
        let sent = self.stream.write_all(&line(message));
        sent.map_err(|error| self.peer.error("send to", error))
    }

    /// The next message, within some time.
    ///
    /// # Errors
    /// All kinds but [`NetError::Spent`].
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        within: Duration,
        signals: &Signals,
    ) -> Result<T, NetError> {
        let deadline = Instant::now() + within;
        loop {
            let next = self.lines.next_message();
            if let Some(message) = next.map_err(|error| self.peer.wire(error))? {
                return Ok(message);
            }
            let read = self.read(deadline, signals);
            if let Some(bytes) = read.map_err(|error| error.after(within))? {
                self.lines.push(&bytes);
            }
        }
    }

    /// Bytes that have come; `None` after a short time without any.
    ///
    /// # Errors
    /// As [`Control::receive`].
    pub fn read(
        &mut self,
        deadline: Instant,
        signals: &Signals,
    ) -> Result<Option<Vec<u8>>, NetError> {
        if signals.arrived() {
            return Err(NetError::Interrupted);
        }
        let mut bytes = vec![0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(NetError::Closed { peer: self.peer.0 }),
            Ok(len) => {
                bytes.truncate(len);
                Ok(Some(bytes))
            }
            Err(error) if is_pause(&error) && Instant::now() < deadline => Ok(None),
            Err(error) => Err(self.peer.error("read from", error)),
        }
    }
}

/// Whether a call ended without bytes but may have some later.
pub fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
