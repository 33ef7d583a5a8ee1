//! Liveness sockets, for processes that outlive the agent that started them.
//!
//! A process ends when its liveness socket ends, which is when the last holder of the other end has
//! closed it. Few bytes pass over the socket itself, because an agent killed in the middle of a
//! message would leave the rest to its successor. Requests pass over *control channels*: separate
//! connections, one end of which is sent over the liveness socket. That message is so short that
//! the kernel takes all of it or nothing.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use crate::wire::{Reader, WireError, Writer};

/// The only message on a liveness socket. One descriptor comes with it: an end of a control channel.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
enum Order {
    #[serde(rename = "session")]
    Channel,
}

/// The end of the process that ends with the socket.
#[derive(Debug)]
pub struct LivenessSocket(Reader);

impl LivenessSocket {
    /// The liveness socket with this end.
    pub fn new(end: Reader) -> Self {
        LivenessSocket(end)
    }

    /// Waits for the next control channel. A channel whose descriptor this process cannot take is
    /// skipped; its other end then sees the end of the connection.
    ///
    /// # Errors
    /// [`WireError::Closed`] when no process holds the other end any more.
    pub fn next_channel(&mut self) -> Result<UnixStream, WireError> {
        loop {
            let (Order::Channel, descriptors) = self.0.receive()?;
            if let Some(channel) = descriptors.into_iter().next() {
                return Ok(channel.into());
            }
        }
    }
}

/// Opens a control channel to the process behind a liveness socket; returns the near end.
///
/// # Errors
/// The system's. When the process has ended, the channel has an end already.
pub fn open_channel(liveness: &Writer) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    // A failure closes `theirs`, which the caller sees as the end of the channel.
    let _ = liveness.send(&Order::Channel, &[theirs.as_fd()]);
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::wire;

    #[test]
    fn channels_arrive_in_order_until_the_last_holder_has_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let kept = ours.try_clone().unwrap();
        let mut socket = LivenessSocket::new(wire::split(theirs).unwrap().0);
        let (reader, writer) = wire::split(ours).unwrap();
        for text in ["one", "two"] {
            let mut channel = open_channel(&writer).unwrap();
            channel.write_all(text.as_bytes()).unwrap();
            drop(channel);
            let mut read = String::new();
            let mut channel = socket.next_channel().unwrap();
            channel.read_to_string(&mut read).unwrap();
            assert_eq!(read, text);
        }
        drop((reader, writer));
        let (_, writer) = wire::split(kept).unwrap();
        let channel = open_channel(&writer).unwrap();
        drop(socket.next_channel().unwrap());
        drop((channel, writer));
        let end = socket.next_channel();
        assert!(matches!(end, Err(WireError::Closed)), "{end:?}");
    }

    #[test]
    fn a_channel_with_no_process_has_ended() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_, writer) = wire::split(ours).unwrap();
        drop(theirs);
        let mut channel = open_channel(&writer).unwrap();
        assert_eq!(channel.read(&mut [0]).unwrap(), 0);
    }
}
