//! Frames with descriptors over a Unix stream socket: how the messages of [`crate::agent`]
//! and [`crate::driver`] travel.
//!
//! ```text
//!  0        4             6      8
//!  +--------+-------------+------+---------------------+
//!  | length | descriptors | zero | payload (JSON)      |   little endian
//!  +--------+-------------+------+---------------------+
//! ```
//!
//! Descriptors are attached to the first byte of a frame. The kernel may deliver them before the
//! rest of the frame, never later, so a reader keeps them in a queue. One call delivers the
//! descriptors of one frame. A process at its limit of descriptors loses some; that frame is then
//! received without any, so only its grant fails.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest payload of a frame in bytes: a peer that announces more is cut off.
pub const MAX_PAYLOAD: u32 = 16 << 20;

/// The longest payload of a reply on the control socket in bytes: all nodes of the largest torus, with
/// what is known of each.
pub const MAX_REPLY: u32 = 64 << 20;

/// The most descriptors that a frame may carry.
pub const MAX_DESCRIPTORS: u16 = 16;

/// Bytes given to the kernel in one call.
const SENT_AT_ONCE: usize = 64 * 1024;

const HEADER: usize = 8;

/// Room for the descriptors of one message.
const RIGHTS: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS as usize));

/// Maximum number of frames whose descriptors wait for the rest of the frame; well-formed frames
/// need fewer.
const UNTAKEN_GRANTS: usize = 4;

/// Maximum nesting of a message. Messages have some five levels, and the threads that parse them
/// have small stacks.
const MAX_DEPTH: u32 = 16;

/// Why a message could not be sent or received. After any of these the connection is useless.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer sent a malformed frame or an unknown message.
    #[error("malformed message: {0}")]
    Malformed(String),
}

/// Splits a connected socket into its two halves.
///
/// # Errors
/// The system's.
pub fn split(stream: UnixStream) -> io::Result<(Reader, Writer)> {
    let stream = Arc::new(stream);
    let reader = Reader {
        stream: Arc::clone(&stream),
        bytes: Vec::new(),
        grants: VecDeque::new(),
        limit: MAX_PAYLOAD,
        last_len: 0,
        takes_descriptors: true,
        was_reset: false,
    };
    Ok((
        reader,
        Writer {
            stream,
            turn: Arc::default(),
            is_cut: Arc::default(),
            limit: MAX_PAYLOAD,
        },
    ))
}

/// The receiving half.
#[derive(Debug)]
pub struct Reader {
    stream: Arc<UnixStream>,
    bytes: Vec<u8>,
    /// Descriptors of the frames that are not taken yet, in order.
    grants: VecDeque<Grant>,
    /// Maximum length of a payload.
    limit: u32,
    /// Bytes of the frame that was taken last.
    last_len: usize,
    /// Whether the other side may send descriptors.
    takes_descriptors: bool,
    /// Whether the other side has closed before it read everything.
    was_reset: bool,
}

/// The descriptors of one frame.
#[derive(Debug)]
enum Grant {
    Whole(Vec<OwnedFd>),
    /// This process could not take some of them; the others are closed.
    Lost,
}

impl Reader {
    /// Takes no descriptors from now on: a frame with a descriptor is malformed. The kernel drops
    /// such descriptors, so this process need not close them. Closing could block on a file system
    /// in user space (FUSE).
    pub fn take_no_descriptors(&mut self) {
        self.takes_descriptors = false;
    }

    /// Takes payloads of up to [`MAX_REPLY`] from now on.
    pub fn take_long(&mut self) {
        self.limit = MAX_REPLY;
    }

    /// Waits for the next message and the descriptors that came with it: as many as were sent,
    /// or none when this process has no room for them.
    ///
    /// # Errors
    /// [`WireError::Closed`] between messages when the other side has closed; anything else
    /// when it broke off in the middle or sent nonsense.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), WireError> {
        loop {
            if let Some(message) = self.take_frame()? {
                return Ok(message);
            }
            self.fill()?;
        }
    }

    /// Whether the other side has closed the connection before it read all that was sent.
    pub fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// Bytes of the message that was received last.
    pub fn last_len(&self) -> usize {
        self.last_len
    }

    /// Waits until the next message is announced, and returns the bytes of its payload.
    ///
    /// # Errors
    /// As [`Reader::receive`].
    pub fn announced(&mut self) -> Result<u32, WireError> {
        loop {
            if let Some(&[a, b, c, d]) = self.bytes.first_chunk() {
                return Ok(u32::from_le_bytes([a, b, c, d]));
            }
            self.fill()?;
        }
    }

    /// As [`Reader::receive`], but with a payload of at most `limit` bytes, all of it by `deadline`.
    ///
    /// # Errors
    /// As [`Reader::receive`].
    pub fn receive_first<T: DeserializeOwned>(
        &mut self,
        limit: u32,
        deadline: Instant,
    ) -> Result<(T, Vec<OwnedFd>), WireError> {
        let before = std::mem::replace(&mut self.limit, limit);
        let message = loop {
            if let Some(message) = self.take_frame()? {
                break message;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // None at all would mean to wait for ever.
            let left = left.max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left))?;
            self.fill()?;
            if Instant::now() > deadline {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
        };
        self.limit = before;
        self.stream.set_read_timeout(None)?;
        Ok(message)
    }

    fn take_frame<T: DeserializeOwned>(&mut self) -> Result<Option<(T, Vec<OwnedFd>)>, WireError> {
        let Some(&[a, b, c, d, e, f, 0, 0]) = self.bytes.first_chunk::<HEADER>() else {
            return match self.bytes.len() {
                0..HEADER => Ok(None),
                _ => Err(WireError::Malformed("no frame header".into())),
            };
        };
        let len = u32::from_le_bytes([a, b, c, d]);
        let count = usize::from(u16::from_le_bytes([e, f]));
        if len > self.limit || count > usize::from(MAX_DESCRIPTORS) {
            return Err(WireError::Malformed(format!(
                "a frame of {len} bytes and {count} descriptors is over the limit of {} bytes and \
                 {MAX_DESCRIPTORS} descriptors",
                self.limit
            )));
        }
        let end = HEADER + len as usize;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let descriptors = self.take_descriptors(count)?;
        let payload = &self.bytes[HEADER..end];
        if is_too_deep(payload) {
            return Err(WireError::Malformed(format!(
                "it nests more than {MAX_DEPTH} levels"
            )));
        }
        let message = serde_json::from_slice(payload)
            .map_err(|error| WireError::Malformed(error.to_string()))?;
        self.bytes.drain(..end);
        self.last_len = end;
        Ok(Some((message, descriptors)))
    }

    /// Descriptors of the next frame, which announces `count`.
    fn take_descriptors(&mut self, count: usize) -> Result<Vec<OwnedFd>, WireError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        match self.grants.pop_front() {
            Some(Grant::Whole(descriptors)) if descriptors.len() == count => Ok(descriptors),
            Some(Grant::Lost) => {
                tracing::warn!("no room for {count} descriptors that came with a message");
                Ok(Vec::new())
            }
            _ => Err(WireError::Malformed(
                "announced descriptors are missing".into(),
            )),
        }
    }

    fn fill(&mut self) -> Result<(), WireError> {
        let mut chunk = [0; 16 * 1024];
        let mut space = [MaybeUninit::uninit(); RIGHTS];
        let space = &mut space[..RIGHTS * usize::from(self.takes_descriptors)];
        let mut control = RecvAncillaryBuffer::new(space);
        let (received, flags) = loop {
            let mut parts = [IoSliceMut::new(&mut chunk)];
            match recvmsg(
                &*self.stream,
                &mut parts,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => {
                    self.was_reset = true;
                    return Err(WireError::Closed);
                }
                Err(error) => return Err(io::Error::from(error).into()),
                Ok(message) => break (message.bytes, message.flags),
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if flags.contains(ReturnFlags::CTRUNC) && !self.takes_descriptors {
            let message = "it came with descriptors, which nobody takes here";
            return Err(WireError::Malformed(message.into()));
        }
        if flags.contains(ReturnFlags::CTRUNC) {
            self.grants.push_back(Grant::Lost);
        } else if !descriptors.is_empty() {
            self.grants.push_back(Grant::Whole(descriptors));
        }
        if self.grants.len() > UNTAKEN_GRANTS {
            return Err(WireError::Malformed(
                "more descriptors than announced".into(),
            ));
        }
        if received == 0 {
            return Err(if self.bytes.is_empty() {
                WireError::Closed
            } else {
                io::Error::from(io::ErrorKind::UnexpectedEof).into()
            });
        }
        self.bytes.extend_from_slice(&chunk[..received]);
        Ok(())
    }

    /// Whether part of another message has come already, for which polling the socket would wait
    /// in vain.
    pub fn has_more(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The socket, for its peer's credentials and for waiting.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }
}

/// Whether JSON nests too deeply. The result for other bytes is arbitrary.
pub fn is_too_deep(json: &[u8]) -> bool {
    let (mut depth, mut in_string, mut is_escaped) = (0_u32, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}

/// The sending half. Clones share it; messages never interleave.
#[derive(Clone, Debug)]
pub struct Writer {
    stream: Arc<UnixStream>,
    turn: Arc<Mutex<()>>,
    /// Whether this side has ended the connection.
    is_cut: Arc<AtomicBool>,
    /// Maximum length of a payload.
    limit: u32,
}

impl Writer {
    /// Sends payloads of up to [`MAX_REPLY`] from now on, to a reader that takes them.
    pub fn send_long(&mut self) {
        self.limit = MAX_REPLY;
    }

    /// Sends a message with descriptors (at most [`MAX_DESCRIPTORS`]); waits while the socket's
    /// buffer is full, for as long as [`Writer::give_up_after`] says.
    ///
    /// # Errors
    /// [`WireError::Closed`] when the other side has gone; after another error, part of the
    /// message may have been sent and the connection has been shut down.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), WireError> {
        let mut frame = vec![0; HEADER];
        serde_json::to_writer(&mut frame, message)
            .map_err(|error| WireError::Malformed(error.to_string()))?;
        let len = u32::try_from(frame.len() - HEADER).unwrap_or(u32::MAX);
        if len > self.limit || descriptors.len() > usize::from(MAX_DESCRIPTORS) {
            return Err(WireError::Malformed("the message is over the limit".into()));
        }
        frame[..4].copy_from_slice(&len.to_le_bytes());
        frame[4..6].copy_from_slice(&(descriptors.len() as u16).to_le_bytes());
        let _turn = self.turn();
        let sent = self.send_all(&frame, descriptors);
        match sent {
            Ok(()) => {}
            Err(WireError::Closed) => self.end(),
            Err(_) => self.shut_down(),
        }
        sent
    }

    fn send_all(&self, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        let mut space = [MaybeUninit::uninit(); RIGHTS];
        let begun = Instant::now();
        let mut sent = 0;
        while sent < frame.len() {
            // The timeout of the socket applies to each part alone, which a slow reader could
            // exploit.
            if sent > 0
                && self
                    .stream
                    .write_timeout()?
                    .is_some_and(|time| begun.elapsed() > time)
            {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            let mut control = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            // The kernel's timeout applies to each wait within one call, so calls are short.
            let end = frame.len().min(sent + SENT_AT_ONCE);
            let parts = [IoSlice::new(&frame[sent..end])];
            match sendmsg(&*self.stream, &parts, &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(WireError::Closed),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// The socket, for handing it on.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Bounds how long [`Writer::send`] waits for a peer that does not read.
    ///
    /// # Errors
    /// The system's.
    pub fn give_up_after(&self, time: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(time))
    }

    /// Whether this side has ended the connection, and not the other.
    pub fn is_cut(&self) -> bool {
        // Pairs with the Release in `shut_down`: a thread that sees the end also sees this flag.
        self.is_cut.load(Ordering::Acquire)
    }

    /// Ends the connection in both directions.
    pub fn shut_down(&self) {
        // Pairs with `is_cut`.
        self.is_cut.store(true, Ordering::Release);
        self.end();
    }

    fn end(&self) {
        // It fails only when the connection has ended already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
