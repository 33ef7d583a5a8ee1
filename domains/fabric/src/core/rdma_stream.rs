//! RDMA streams: bytes in both directions between two processes that trust each other, beside a
//! socket that they have anyway.
//!
//! An RDMA stream is a pair of byte streams that never blocks: [`Read`] and [`Write`] return
//! [`io::ErrorKind::WouldBlock`] while there is nothing to read or no room. Bytes arrive whole and
//! in order, or the stream ends and loses those in flight. A read returns a copy that no other
//! process can change. The reader validates that copy, because the peer can write anything.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;

use crate::core::parameters::RdmaStreamParameters;

/// One end of an RDMA stream.
pub trait RdmaStream: Read + Write + Debug + Send {
    /// Readable when there may be events to [process](RdmaStream::process_events).
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// Takes note of bytes and room that have come since the last call, and arms the descriptor for
    /// later ones.
    ///
    /// # Errors
    /// How the stream ended.
    fn process_events(&mut self) -> io::Result<()>;

    /// Whether there are bytes to read.
    fn has_bytes(&self) -> bool;

    /// Whether the peer's device has acknowledged the first message, as far as this end knows.
    fn is_confirmed(&self) -> bool;
}

/// One end of an RDMA stream before it is connected.
pub trait PreparedRdmaStream: Debug + Send {
    /// Parameters that the other end needs to connect.
    fn parameters(&self) -> RdmaStreamParameters;

    /// Connects this end to the one that has the parameters `peer`, which does the same. It may
    /// take a second where no route leads to the peer.
    ///
    /// # Errors
    /// The system's.
    fn connect(self: Box<Self>, peer: &RdmaStreamParameters) -> io::Result<Box<dyn RdmaStream>>;
}
