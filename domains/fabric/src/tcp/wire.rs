//! What the two sides of a connection say to each other.
//!
//! For one-sided operations: a request, behind a write's its bytes, and a reply for each request
//! but *close* and *disconnect*, in order, behind a read's its bytes, behind a *connect*'s and a
//! *register*'s what they ask for.
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
//! For packets, either way: a frame, behind a packet's its [link header](crate::core::link) and payload,
//! behind an offer and its acceptance the [parameters](ConnectionParameters) of a queue pair.
//!
//! ```text
//!  0      1      4       8
//!  +------+------+-------+-------------+---------+
//!  | kind | zero | value | link header | payload |
//!  +------+------+-------+-------------+---------+
//! ```
//!
//! Packets may also go by RDMA devices. The initiating side offers a queue pair, the other accepts it
//! with one of its own or declines. A mark says that the packets after it come by the device, until
//! both sides have said how many have come by it; those that had not come follow.
//!
//! The other side is another host's, so everything here is an allegation: lengths are bounded, and
//! a value has one form, so that what is not of ours is noticed.

use crate::core::channel::ChannelError;
use crate::core::parameters::ConnectionParameters;
use crate::error::OpError;
use crate::key::{Access, RemoteKey};

/// The most bytes of one read or write; longer operations are made of several. After each the
/// serving side looks at the right again.
pub const CHUNK: usize = 64 * 1024;

/// Regions that a connection may have open at a time.
pub const HANDLES: u32 = 1024;

/// The other side sent what is no message of this protocol. Nothing that follows makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side broke the protocol")]
pub struct Malformed;

/// What the initiating side wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Use a region under this handle, in place of what was there.
    Open {
        /// Chosen by who asks.
        handle: u32,
        /// The rights wanted.
        access: Access,
        /// The region.
        key: RemoteKey,
    },
    /// The handle is no longer used.
    Close {
        /// As in `Open`.
        handle: u32,
    },
    /// Copy bytes out.
    Read {
        /// Which region.
        handle: u32,
        /// First byte.
        offset: u64,
        /// At most [`CHUNK`].
        len: u32,
        /// Only if the request before was done.
        is_linked: bool,
    },
    /// Copy in the bytes that follow.
    Write {
        /// Which region.
        handle: u32,
        /// First byte.
        offset: u64,
        /// At most [`CHUNK`].
        len: u32,
        /// Only if the request before was done.
        is_linked: bool,
    },
    /// Replace a word if it is as expected.
    CompareAndSwap {
        /// Which region.
        handle: u32,
        /// The word.
        offset: u64,
        /// What must be there.
        expected: u64,
        /// What is put there.
        desired: u64,
    },
    /// Add to a word.
    FetchAdd {
        /// Which region.
        handle: u32,
        /// The word.
        offset: u64,
        /// What to add.
        add: u64,
    },
    /// Let this queue pair of an RDMA device reach what is [registered](Request::Register), in place
    /// of the one before. The reply is [`ConnectionParameters`].
    Connect(ConnectionParameters),
    /// Register a region for it. The reply is [`RegionParameters`](crate::core::parameters::RegionParameters).
    Register {
        /// Which region.
        handle: u32,
    },
    /// Let the queue pair reach nothing more: what of its operations has not been executed by now
    /// never will be.
    Disconnect,
}

impl Request {
    /// Bytes of a request without those that follow a write's.
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
            Request::Read {
                handle,
                offset,
                len,
                is_linked,
            } => (3, is_linked.into(), handle, transfer(offset, len)),
            Request::Write {
                handle,
                offset,
                len,
                is_linked,
            } => (4, is_linked.into(), handle, transfer(offset, len)),
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
        let (handle, is_linked) = (u32_at(bytes, 4), bytes[1] == 1);
        let len = second as u32;
        let request = match bytes[0] {
            1 => Request::Open {
                handle,
                access: Access::from_bits(bytes[1]).ok_or(Malformed)?,
                key: RemoteKey::from_bytes(arguments),
            },
            2 => Request::Close { handle },
            3 => Request::Read {
                handle,
                offset,
                len,
                is_linked,
            },
            4 => Request::Write {
                handle,
                offset,
                len,
                is_linked,
            },
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
            Request::Write { len, .. } => *len as usize,
            _ => 0,
        }
    }

    /// Bytes that follow the reply when it was done.
    pub fn wanted(&self) -> usize {
        match self {
            Request::Read { len, .. } => *len as usize,
            _ => 0,
        }
    }

    /// Whether it shall be left out when the one before was not done.
    pub fn is_linked(&self) -> bool {
        match self {
            Request::Read { is_linked, .. } | Request::Write { is_linked, .. } => *is_linked,
            _ => false,
        }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was done.
    Done {
        /// The word before an atomic, the bytes of a region that was opened, otherwise 0.
        value: u64,
        /// Bytes that follow, at most [`CHUNK`].
        len: u32,
    },
    /// It was not done.
    Failed(Failure),
    /// It was linked to one that was not done.
    Skipped,
}

/// An [`OpError`] as it travels: without what who asked knows.
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
    /// What travels of an error.
    pub fn of(error: OpError) -> Self {
        match error {
            OpError::OutOfBounds { limit, .. } => Failure::OutOfBounds { limit },
            OpError::Misaligned { .. } => Failure::Misaligned,
            OpError::MissingRight { needed } => Failure::MissingRight { needed },
            OpError::WrongKey => Failure::WrongKey,
            OpError::Revoked => Failure::Revoked,
            OpError::PeerDead => Failure::PeerDead,
            OpError::Unreachable | OpError::Corrupt | OpError::NotMapped => Failure::Unreachable,
            // Devices have these, and no device answers here.
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

/// What one end of a channel tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A link header and a payload follow.
    Packet,
    /// So many bytes of frames were received: there is room for as many again.
    Credit {
        /// Never 0.
        bytes: u32,
    },
    /// Nothing follows.
    End(End),
    /// Packets could go by the devices: the parameters of a queue pair of ours follow.
    Offer,
    /// They can: the parameters of one of ours, which is connected to the one that was offered.
    Accept,
    /// They cannot.
    Decline {
        /// Nor can they ever.
        for_ever: bool,
    },
    /// The packets after this come by the device.
    ByDevice,
    /// Nothing more is taken from the device.
    Back {
        /// Packets that have come by it.
        arrived: u32,
    },
}

/// How a channel ended at the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// One of the two nodes has left the domain.
    Revoked,
    /// The process has gone.
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

fn transfer(offset: u64, len: u32) -> [u8; 32] {
    words([offset, len.into(), 0, 0])
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
