//! Messages between the two sides of a connection.
//!
//! One-sided operations: a request, followed by its bytes for a write. Each request but *close* and
//! *disconnect* has a reply, in order, followed by the bytes of a read or by the parameters that a
//! *connect* or *register* asks for.
//!
//! ```text
//!  0      1        2      4        8           40
//!  +------+--------+------+--------+-----------+-------+
//!  | kind | detail | zero | handle | arguments | bytes |   little endian
//!  +------+--------+------+--------+-----------+-------+
//!
//!  0      1      4        8       16
//!  +------+------+--------+-------+-------+
//!  | kind | zero | length | value | bytes |
//!  +------+------+--------+-------+-------+
//! ```
//!
//! Packets, in both directions: a frame, followed by the [link header](crate::link) and payload of a packet,
//! or by the [parameters](ConnectionParameters) of a queue pair for an offer and its acceptance.
//!
//! ```text
//!  0      1      4       8
//!  +------+------+-------+-------------+---------+
//!  | kind | zero | value | link header | payload |
//!  +------+------+-------+-------------+---------+
//! ```
//!
//! RDMA devices may carry packets, too. The initiating side offers a queue pair. The other side accepts
//! with one of its own or declines. A mark says that later packets come by the device. After a failure
//! both sides say how many packets have come by it, and the missing ones follow on the connection.
//!
//! Everything here is an allegation of another host: lengths are bounded, and every value has one form,
//! so that foreign bytes are noticed.

use crate::core::channel::ChannelError;
use crate::core::parameters::ConnectionParameters;
use crate::error::OpError;
use crate::key::{Access, RemoteKey};

/// The most bytes of one read or write; longer operations take several requests. The serving side
/// checks the right for each.
pub const CHUNK: usize = 64 * 1024;

/// Regions that a connection may have open at a time.
pub const HANDLES: u32 = 1024;

/// The other side sent bytes that are no message of this protocol. Later bytes have no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side broke the protocol")]
pub struct Malformed;

/// A request of the initiating side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens a region under a handle, in place of the region that had it.
    Open {
        /// The handle, which the initiating side chooses.
        handle: u32,
        /// The rights wanted.
        access: Access,
        /// The region.
        key: RemoteKey,
    },
    /// Closes the region under a handle.
    Close {
        /// The handle.
        handle: u32,
    },
    /// Reads bytes.
    Read(Transfer),
    /// Writes the bytes that follow.
    Write(Transfer),
    /// Compares and swaps a word.
    CompareAndSwap {
        /// Handle of the region.
        handle: u32,
        /// Offset of the word.
        offset: u64,
        /// The value to compare with.
        expected: u64,
        /// The value to store.
        desired: u64,
    },
    /// Adds to a word.
    FetchAdd {
        /// Handle of the region.
        handle: u32,
        /// Offset of the word.
        offset: u64,
        /// The summand.
        add: u64,
    },
    /// Connects a device with this queue pair, in place of the one before. The reply is
    /// [`ConnectionParameters`].
    Connect(ConnectionParameters),
    /// Registers a region with that device. The reply is [`RegionParameters`](crate::core::parameters::RegionParameters).
    Register {
        /// Handle of the region.
        handle: u32,
    },
    /// Disconnects the device. Operations of the queue pair that have not been executed never will
    /// be.
    Disconnect,
}

/// The bytes of a region that a request reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Handle of the region.
    pub handle: u32,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes, at most [`CHUNK`].
    pub len: u32,
    /// Whether the request is skipped if the one before failed.
    pub is_linked: bool,
}

impl Request {
    /// Bytes of a request without the data of a write.
    pub const LEN: usize = 40;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let (kind, detail, handle, arguments) = match *self {
            Request::Open {
                handle,
                access,
                key,
            } => (1, access.bits(), handle, key.to_bytes()),
            Request::Close { handle } => (2, 0, handle, words([0; 4])),
            Request::Read(transfer) => transfer.fields(3),
            Request::Write(transfer) => transfer.fields(4),
            Request::CompareAndSwap {
                handle,
                offset,
                expected,
                desired,
            } => (5, 0, handle, words([offset, expected, desired, 0])),
            Request::FetchAdd {
                handle,
                offset,
                add,
            } => (6, 0, handle, words([offset, add, 0, 0])),
            Request::Connect(parameters) => (7, 0, 0, parameters.to_bytes()),
            Request::Register { handle } => (8, 0, handle, words([0; 4])),
            Request::Disconnect => (9, 0, 0, words([0; 4])),
        };
        let mut bytes = [0; Self::LEN];
        bytes[0] = kind;
        bytes[1] = detail;
        bytes[4..8].copy_from_slice(&handle.to_le_bytes());
        bytes[8..].copy_from_slice(&arguments);
        bytes
    }

    /// The request with this wire form.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let arguments: &[u8; 32] = bytes.last_chunk().ok_or(Malformed)?;
        let [offset, second, third, _] = [0, 8, 16, 24].map(|at| u64_at(arguments, at));
        let handle = u32_at(bytes, 4);
        let transfer = Transfer {
            handle,
            offset,
            len: second as u32,
            is_linked: bytes[1] == 1,
        };
        let request = match bytes[0] {
            1 => Request::Open {
                handle,
                access: Access::from_bits(bytes[1]).ok_or(Malformed)?,
                key: RemoteKey::from_bytes(arguments),
            },
            2 => Request::Close { handle },
            3 => Request::Read(transfer),
            4 => Request::Write(transfer),
            5 => Request::CompareAndSwap {
                handle,
                offset,
                expected: second,
                desired: third,
            },
            6 => Request::FetchAdd {
                handle,
                offset,
                add: second,
            },
            7 => Request::Connect(
                ConnectionParameters::from_bytes(arguments).map_err(|_| Malformed)?,
            ),
            8 => Request::Register { handle },
            9 => Request::Disconnect,
            _ => return Err(Malformed),
        };
        let is_bounded = handle < HANDLES && request.data_len().max(request.wanted()) <= CHUNK;
        let has_one_form = request.to_bytes() == *bytes;
        (is_bounded && has_one_form)
            .then_some(request)
            .ok_or(Malformed)
    }

    /// Bytes that follow.
    pub fn data_len(&self) -> usize {
        match self {
            Request::Write(transfer) => transfer.len as usize,
            _ => 0,
        }
    }

    /// Bytes that follow a successful reply.
    pub fn wanted(&self) -> usize {
        match self {
            Request::Read(transfer) => transfer.len as usize,
            _ => 0,
        }
    }

    /// Whether it is skipped if the request before failed.
    pub fn is_linked(&self) -> bool {
        match self {
            Request::Read(transfer) | Request::Write(transfer) => transfer.is_linked,
            _ => false,
        }
    }
}

impl Transfer {
    /// Kind, detail, handle and arguments of a request.
    fn fields(self, kind: u8) -> (u8, u8, u32, [u8; 32]) {
        let arguments = words([self.offset, self.len.into(), 0, 0]);
        (kind, self.is_linked.into(), self.handle, arguments)
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success.
    Done {
        /// The previous word for an atomic, the length for an open, otherwise 0.
        value: u64,
        /// Bytes that follow, at most [`CHUNK`].
        len: u32,
    },
    /// Failure.
    Failed(Failure),
    /// Not executed: linked to a request that failed.
    Skipped,
}

/// An [`OpError`] on the wire, without the fields that the initiating side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Failure {
    OutOfBounds { limit: u64 },
    Misaligned,
    MissingRight { needed: Access },
    WrongKey,
    Revoked,
    PeerDead,
    Unreachable,
    System { errno: i32 },
}

impl Reply {
    /// Bytes of a reply without those that follow.
    pub const LEN: usize = 16;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let (kind, len, value) = match *self {
            Reply::Done { value, len } => (1, len, value),
            Reply::Skipped => (2, 0, 0),
            Reply::Failed(Failure::OutOfBounds { limit }) => (3, 0, limit),
            Reply::Failed(Failure::Misaligned) => (4, 0, 0),
            Reply::Failed(Failure::MissingRight { needed }) => (5, 0, needed.bits().into()),
            Reply::Failed(Failure::WrongKey) => (6, 0, 0),
            Reply::Failed(Failure::Revoked) => (7, 0, 0),
            Reply::Failed(Failure::PeerDead) => (8, 0, 0),
            Reply::Failed(Failure::Unreachable) => (9, 0, 0),
            Reply::Failed(Failure::System { errno }) => (10, 0, u64::from(errno.cast_unsigned())),
        };
        let mut bytes = [0; Self::LEN];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..].copy_from_slice(&u64::to_le_bytes(value));
        bytes
    }

    /// The reply with this wire form.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let (len, value) = (u32_at(bytes, 4), u64_at(bytes, 8));
        let reply = match bytes[0] {
            1 => Reply::Done { value, len },
            2 => Reply::Skipped,
            3 => Reply::Failed(Failure::OutOfBounds { limit: value }),
            4 => Reply::Failed(Failure::Misaligned),
            5 => Reply::Failed(Failure::MissingRight {
                needed: Access::from_bits(bytes[8]).ok_or(Malformed)?,
            }),
            6 => Reply::Failed(Failure::WrongKey),
            7 => Reply::Failed(Failure::Revoked),
            8 => Reply::Failed(Failure::PeerDead),
            9 => Reply::Failed(Failure::Unreachable),
            10 => Reply::Failed(Failure::System {
                errno: (value as u32).cast_signed(),
            }),
            _ => return Err(Malformed),
        };
        let is_sound = len as usize <= CHUNK && reply.to_bytes() == *bytes;
        is_sound.then_some(reply).ok_or(Malformed)
    }

    /// Bytes that follow.
    pub fn data_len(&self) -> usize {
        match self {
            Reply::Done { len, .. } => *len as usize,
            _ => 0,
        }
    }
}

impl Failure {
    /// The wire form of an error.
    pub fn of(error: OpError) -> Self {
        match error {
            OpError::OutOfBounds { limit, .. } => Failure::OutOfBounds { limit },
            OpError::Misaligned { .. } => Failure::Misaligned,
            OpError::MissingRight { needed } => Failure::MissingRight { needed },
            OpError::WrongKey => Failure::WrongKey,
            OpError::Revoked => Failure::Revoked,
            OpError::PeerDead => Failure::PeerDead,
            OpError::Unreachable | OpError::Corrupt | OpError::NotMapped => Failure::Unreachable,
            // Errors of devices, which execute nothing here.
            OpError::Flushed | OpError::Device { .. } => Failure::Unreachable,
            OpError::System { errno } => Failure::System { errno },
        }
    }

    /// The error of an operation on `len` bytes at `offset`.
    pub fn error(self, offset: u64, len: u64) -> OpError {
        match self {
            Failure::OutOfBounds { limit } => OpError::OutOfBounds { offset, len, limit },
            Failure::Misaligned => OpError::Misaligned { offset },
            Failure::MissingRight { needed } => OpError::MissingRight { needed },
            Failure::WrongKey => OpError::WrongKey,
            Failure::Revoked => OpError::Revoked,
            Failure::PeerDead => OpError::PeerDead,
            Failure::Unreachable => OpError::Unreachable,
            Failure::System { errno } => OpError::System { errno },
        }
    }
}

/// A message of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A link header and a payload follow.
    Packet,
    /// Returns credit: the bytes of frames that were taken.
    Credit {
        /// Number of bytes, never 0.
        bytes: u32,
    },
    /// The end of the channel.
    End(End),
    /// Offers a queue pair of a device, whose parameters follow.
    Offer,
    /// Accepts the offer; the parameters of the queue pair that is connected with it follow.
    Accept,
    /// Declines the offer.
    Decline {
        /// Whether every later offer would be declined, too.
        for_ever: bool,
    },
    /// The mark: later packets come by the device.
    ByDevice,
    /// The device has failed: no more packets are taken from it.
    Back {
        /// Number of packets that have come by it.
        arrived: u32,
    },
}

/// How a channel ended at the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// One of the two nodes has left the domain.
    Revoked,
    /// The process has ended.
    PeerDead,
}

impl Frame {
    /// Bytes of a frame without those that follow.
    pub const LEN: usize = 8;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let (kind, value) = match *self {
            Frame::Packet => (1, 0),
            Frame::Credit { bytes } => (2, bytes),
            Frame::End(End::Revoked) => (3, 0),
            Frame::End(End::PeerDead) => (4, 0),
            Frame::Offer => (5, 0),
            Frame::Accept => (6, 0),
            Frame::Decline { for_ever } => (7, for_ever.into()),
            Frame::ByDevice => (8, 0),
            Frame::Back { arrived } => (9, arrived),
        };
        let mut bytes = [0; Self::LEN];
        bytes[0] = kind;
        bytes[4..].copy_from_slice(&u32::to_le_bytes(value));
        bytes
    }

    /// The frame with this wire form.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let frame = match (bytes[0], u32_at(bytes, 4)) {
            (1, 0) => Frame::Packet,
            (2, bytes @ 1..) => Frame::Credit { bytes },
            (3, 0) => Frame::End(End::Revoked),
            (4, 0) => Frame::End(End::PeerDead),
            (5, 0) => Frame::Offer,
            (6, 0) => Frame::Accept,
            (7, value @ 0..=1) => Frame::Decline {
                for_ever: value == 1,
            },
            (8, 0) => Frame::ByDevice,
            (9, arrived) => Frame::Back { arrived },
            _ => return Err(Malformed),
        };
        let has_one_form = frame.to_bytes() == *bytes;
        has_one_form.then_some(frame).ok_or(Malformed)
    }
}

impl From<End> for ChannelError {
    fn from(end: End) -> Self {
        match end {
            End::Revoked => ChannelError::Revoked,
            End::PeerDead => ChannelError::PeerDead,
        }
    }
}

fn words(words: [u64; 4]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests;
