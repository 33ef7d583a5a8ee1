//! RDMA streams on `verbs`: each end writes into a ring in the other's memory.
//!
//! ```text
//!   write ── copy ── staging ring ══ write with immediate ══> ring of the peer ── copy ── read
//! ```
//!
//! Both rings have the same length, and a byte has the same place in both. The immediate value of
//! each message returns credits ([`flow`](crate::verbs::flow)). A stream has a protection domain of
//! its own, so no other queue pair reaches its memory.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ibverbs_sys as ffi;

use crate::core::parameters::RdmaStreamParameters;
use crate::core::rdma_stream;
use crate::error::OpError;
use crate::key::Access;
use crate::verbs::buffer::Buffer;
use crate::verbs::chain::{Action, Chain, Target, WorkRequest};
use crate::verbs::completion::{Counters, status_of};
use crate::verbs::connection::{Connection, Room};
use crate::verbs::device::Device;
use crate::verbs::flow::{Incoming, Outgoing, REQUESTS, RING, Sent};
use crate::verbs::objects::{CompletionQueue, Local, Protection, SharedReceive};

/// Flag of `wr_id` for sends.
const SENT: u64 = 1 << 63;

/// Bytes of the longest message that is sent inline, if the device can.
const INLINE: u32 = 192;

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmaStreamError {
    /// Device: the peer does not answer, or the device has gone.
    #[error("the RDMA devices do not reach each other any more (status {status})")]
    Device {
        /// `enum ibv_wc_status`.
        status: u32,
    },
    /// Peer: it has exceeded its credits or sent an empty message.
    #[error("the other end of the stream does not keep to the rules")]
    Corrupt,
    /// System: the device refuses requests.
    #[error("the RDMA device refuses requests (error {errno})")]
    Refused {
        /// The system's error.
        errno: i32,
    },
}

/// Queues and rings of a stream.
#[derive(Debug)]
struct Ends {
    /// First: the device uses no memory when the rest is dropped.
    connection: Connection,
    completions: CompletionQueue,
    receive: Arc<SharedReceive>,
    /// The ring that the peer writes.
    arrivals: Buffer,
    /// Bytes that the device sends, or repeats.
    staging: Buffer,
}

/// One end of an RDMA stream that is not connected yet.
#[derive(Debug)]
pub struct PreparedRdmaStream {
    ends: Ends,
    device: Arc<Device>,
}

impl PreparedRdmaStream {
    /// An end at a device.
    ///
    /// # Errors
    /// The system's: the limit of locked memory (`ulimit -l`, 2 MiB are needed); `Unsupported` if
    /// the limits of the device are too low.
    pub fn new(device: &Arc<Device>) -> io::Result<Self> {
        let is_enough = device.most_requests.min(device.most_buffers) >= REQUESTS
            && device.longest_message >= RING as u64;
        if !is_enough {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let protection = Arc::new(Protection::allocate(&device.context)?);
        // One entry for each message and each request: the queue cannot overrun.
        let completions = CompletionQueue::new(&device.context, 2 * REQUESTS)?;
        let receive = Arc::new(SharedReceive::create(&protection, REQUESTS as u32)?);
        let room = Room {
            requests: REQUESTS,
            locals: 1,
            inline: INLINE,
        };
        let arrivals = Buffer::new(&protection, RING, Access::REMOTE_WRITE)?;
        let staging = Buffer::new(&protection, RING, Access::empty())?;
        // Last: an error drops the connection before all that it uses.
        let connection = Connection::new(&protection, &completions, Some(&receive), room)?;
        let ends = Ends {
            connection,
            completions,
            receive,
            arrivals,
            staging,
        };
        (0..REQUESTS).try_for_each(|_| ends.expect_message())?;
        Ok(PreparedRdmaStream {
            ends,
            device: Arc::clone(device),
        })
    }

    /// Connects the stream, as [`rdma_stream::PreparedRdmaStream::connect`].
    ///
    /// # Errors
    /// The system's, also when no route leads to the peer.
    pub fn connect(self, peer: &RdmaStreamParameters) -> io::Result<RdmaStream> {
        self.ends.completions.request_event()?;
        self.ends
            .connection
            .connect(&self.device, &peer.connection)?;
        Ok(RdmaStream {
            ends: self.ends,
            peer: Target {
                address: peer.address,
                rkey: peer.rkey,
            },
            outgoing: Outgoing::new(),
            incoming: Incoming::default(),
            chain: Chain::with_capacity(REQUESTS, 1),
            end: None,
            counters: Counters::default(),
        })
    }
}

impl rdma_stream::PreparedRdmaStream for PreparedRdmaStream {
    fn parameters(&self) -> RdmaStreamParameters {
        RdmaStreamParameters {
            connection: self.ends.connection.parameters(&self.device),
            address: self.ends.arrivals.local(0, 0).address,
            rkey: self.ends.arrivals.rkey(),
        }
    }

    fn connect(
        self: Box<Self>,
        peer: &RdmaStreamParameters,
    ) -> io::Result<Box<dyn rdma_stream::RdmaStream>> {
        Ok(Box::new((*self).connect(peer)?))
    }
}

impl Ends {
    /// Adds an empty receive: the bytes of a message are written to the ring.
    fn expect_message(&self) -> io::Result<()> {
        // SAFETY: the buffer is empty and names no memory.
        unsafe { self.receive.post(0, &Local::default()) }
    }
}

/// One end of an RDMA stream.
#[derive(Debug)]
pub struct RdmaStream {
    ends: Ends,
    /// The peer's ring.
    peer: Target,
    outgoing: Outgoing,
    incoming: Incoming,
    chain: Chain,
    end: Option<RdmaStreamError>,
    counters: Counters,
}

impl RdmaStream {
    /// Counters since the beginning.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn alive(&self) -> Result<(), RdmaStreamError> {
        self.end.map_or(Ok(()), Err)
    }

    fn end(&mut self, how: RdmaStreamError) {
        self.ends.connection.close();
        self.end.get_or_insert(how);
    }

    /// Takes completions.
    fn take_completions(&mut self) {
        let mut some = [ffi::ibv_wc::default(); 16];
        loop {
            let Ok(count) = self.ends.completions.poll(&mut some) else {
                return self.end(RdmaStreamError::Refused { errno: libc::EIO });
            };
            for completion in &some[..count] {
                self.take(completion);
            }
            // The loop ends: a peer that exceeds its credits has been disconnected.
            if count < some.len() {
                return;
            }
        }
    }

    fn take(&mut self, completion: &ffi::ibv_wc) {
        if !completion.is_valid() {
            let status = status_of(completion);
            return self.end(RdmaStreamError::Device { status });
        }
        match completion.wr_id() {
            number if number & SENT != 0 => self.outgoing.have_left(number & !SENT),
            _ => self.has_arrived(completion),
        }
    }

    fn has_arrived(&mut self, completion: &ffi::ibv_wc) {
        if let Err(error) = self.ends.expect_message() {
            return self.end(refused(&error));
        }
        let number = completion.imm_data().map_or(0, u32::from_be);
        let len = completion.len();
        // Empty messages could go on for ever.
        let is_something = len > 0 || number > 0;
        let kept = self.outgoing.given_back(number).and_then(|()| match len {
            0 => Ok(()),
            _ => self.incoming.arrived(len),
        });
        if kept.is_err() || !is_something {
            self.end(RdmaStreamError::Corrupt);
        }
    }

    /// Returns credits by a message of their own, if many are owed.
    fn give_back(&mut self) {
        if self.incoming.owes_much() && self.outgoing.may_return() && self.end.is_none() {
            let immediate = self.incoming.give_back();
            let sent = self.outgoing.send_return();
            self.ask(sent, Action::Send { immediate }, Local::default());
            self.ring();
        }
    }

    /// Adds a message with `len` staged bytes to the chain.
    fn send(&mut self, place: usize, len: usize) {
        let target = Target {
            address: self.peer.address.wrapping_add(place as u64),
            ..self.peer
        };
        let immediate = self.incoming.give_back();
        let local = self.ends.staging.local(place, len);
        let sent = self.outgoing.send(len);
        let action = Action::WriteWithImmediate { target, immediate };
        self.ask(sent, action, local);
    }

    fn ask(&mut self, sent: Sent, action: Action, local: Local) {
        let inline = local.len > 0 && local.len <= self.ends.connection.inline_bytes();
        self.chain.push(&WorkRequest {
            number: sent.number | SENT,
            action,
            local: local.into(),
            inline,
            signalled: sent.signalled,
        });
        self.counters.requests += 1;
        self.counters.signalled += u64::from(sent.signalled);
        self.counters.inline += u64::from(inline);
    }

    fn ring(&mut self) {
        if self.chain.is_empty() {
            return;
        }
        self.counters.doorbells += 1;
        if let Err(error) = self.chain.post(&self.ends.connection) {
            self.end(refused(&error.error));
        }
    }
}

impl Read for RdmaStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.alive().map_err(io::Error::other)?;
        let len = into.len().min(self.incoming.len);
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let place = self.incoming.place();
        let copied = copy_out(&self.ends.arrivals, place, &mut into[..len]);
        copied.map_err(io::Error::other)?;
        self.incoming.read(len);
        self.give_back();
        Ok(len)
    }
}

impl Write for RdmaStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// All parts as one message, or two where the ring ends in between.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.alive().map_err(io::Error::other)?;
        let mut written = 0;
        let (mut place, mut len) = (self.outgoing.place(), 0);
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                let now = rest.len().min(self.outgoing.room() - len);
                if now == 0 && len == 0 {
                    break;
                }
                let staged = self.ends.staging.write(place + len, &rest[..now]);
                staged.map_err(io::Error::other)?;
                (len, rest) = (len + now, &rest[now..]);
                if len == self.outgoing.room() {
                    self.send(place, len);
                    written += len;
                    (place, len) = (self.outgoing.place(), 0);
                }
            }
        }
        if len > 0 {
            self.send(place, len);
            written += len;
        }
        self.ring();
        self.alive().map_err(io::Error::other)?;
        match written {
            0 if parts.iter().any(|part| !part.is_empty()) => Err(io::ErrorKind::WouldBlock.into()),
            written => Ok(written),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl rdma_stream::RdmaStream for RdmaStream {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.ends.completions.fd()
    }

    fn process_events(&mut self) -> io::Result<()> {
        self.ends.completions.take_events()?;
        // Earlier completions raise no event, so the queue is polled afterwards.
        self.ends.completions.request_event()?;
        self.take_completions();
        self.give_back();
        self.alive().map_err(io::Error::other)
    }

    fn has_bytes(&self) -> bool {
        self.incoming.len > 0
    }

    fn is_confirmed(&self) -> bool {
        self.outgoing.has_sent()
    }
}

/// Copies bytes out of a ring, which continue at its start behind its end.
fn copy_out(ring: &Buffer, place: usize, into: &mut [u8]) -> Result<(), OpError> {
    let (first, second) = into.split_at_mut(into.len().min(RING - place));
    ring.read(place, first)?;
    ring.read(0, second)
}

fn refused(error: &io::Error) -> RdmaStreamError {
    RdmaStreamError::Refused {
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    }
}
