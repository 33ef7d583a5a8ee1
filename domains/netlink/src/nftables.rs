//! Tables of nftables for the ingress of devices (family `netdev`), without the program `nft`.
//!
//! A [`Batch`] of changes is a transaction: all of them take effect at once, or none does. Names and
//! numbers are those of linux/netfilter/nf_tables.h. Registers are numbered in words of 4 bytes, and
//! the parts of a longer key lie side by side, each padded to whole words.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use netlink_packet_core::{
    DefaultNla, Emitable, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

use crate::{NetlinkError, namespace};

/// Time for the kernel to answer, which it does before the request returns.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a register.
const WORD: usize = 4;

/// Bytes of a batch: elements for tens of thousands of members.
const BATCH: usize = 1 << 25;

/// Nested attributes have this bit (`NLA_F_NESTED`).
const NESTED: u16 = 1 << 15;

/// `NFTA_LIST_ELEM`.
const ELEMENT: u16 = 1;

/// `NFTA_DATA_VALUE` and `NFTA_DATA_VERDICT`.
const VALUE: u16 = 1;
const VERDICT: u16 = 2;

/// Part of a frame, from which an offset counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The Ethernet header.
    Link = 0,
    /// The header of IPv4 or IPv6.
    Network = 1,
}

/// A step of a rule. A step that fails ends the rule, and the next rule follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads the index of the device by which the frame came in.
    Input {
        /// The register.
        to: u8,
    },
    /// Loads bytes of the frame; fails behind its end.
    Load {
        /// Where the offset counts from.
        base: Base,
        /// Bytes.
        offset: u8,
        /// Bytes.
        len: u8,
        /// The first register.
        to: u8,
    },
    /// Fails unless registers have this value.
    Equals {
        /// The first register.
        register: u8,
        /// The value.
        value: Vec<u8>,
    },
    /// Fails unless a set has the key in registers. Loads the value of the key from a map.
    Lookup {
        /// Name of the set or map.
        set: String,
        /// First register of the key.
        key: u8,
        /// Register for the value.
        to: Option<u8>,
    },
    /// Loads a number in the byte order of the machine.
    Number {
        /// The number.
        value: u32,
        /// The register.
        to: u8,
    },
    /// Goes through the rules of a chain, and comes back.
    Jump {
        /// Name of the chain.
        chain: String,
    },
    /// Sends the frame out of the device whose index is in a register. No rule follows.
    Forward {
        /// The register.
        device: u8,
    },
}

/// An element of a set, or of a map if it has a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// The key, each part padded to whole words.
    pub key: Vec<u8>,
    /// The value in a map.
    pub value: Option<[u8; WORD]>,
}

/// Changes of one table that take effect together.
#[derive(Clone, Debug)]
pub struct Batch {
    table: String,
    messages: Vec<Message>,
}

/// A message to or from the kernel.
#[derive(Clone, Debug)]
struct Message {
    kind: u16,
    flags: u16,
    bytes: Vec<u8>,
}

/// A connection to nftables in one network namespace.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
    sequence: u32,
}

impl Nftables {
    /// Connects to a network namespace.
    ///
    /// # Errors
    /// The system's.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            let timeout = TimeVal::new(TIMEOUT.as_secs().cast_signed(), 0);
            setsockopt(&socket, sockopt::ReceiveTimeout, &timeout).map_err(io::Error::from)?;
            // Its owner may not raise it where it lacks the right, and sends small batches.
            let _ = setsockopt(&socket, sockopt::SndBufForce, &BATCH);
            Ok(Nftables {
                socket,
                sequence: 0,
            })
        };
        namespace::inside(namespace, open)?
    }

    /// Carries out all changes, or none.
    ///
    /// # Errors
    /// [`NetlinkError`]: the kernel refuses one of them, or knows no nftables.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), NetlinkError> {
        let refused = |source| NetlinkError::Refused {
            action: "change",
            target: format!("table {} of nftables", batch.table),
            source,
        };
        let first = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        self.append(&mut bytes, Message::boundary(libc::NFNL_MSG_BATCH_BEGIN), 0);
        let last = batch.messages.len().saturating_sub(1);
        for (at, message) in batch.messages.iter().enumerate() {
            let ack = if at == last { NLM_F_ACK } else { 0 };
            self.append(&mut bytes, message.clone(), ack);
        }
        let awaited = self.sequence;
        self.append(&mut bytes, Message::boundary(libc::NFNL_MSG_BATCH_END), 0);
        self.socket.send(&bytes, 0)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let answer = NetlinkMessage::<Message>::deserialize(&datagram)
                .map_err(|error| NetlinkError::Malformed(error.to_string()))?;
            let number = answer.header.sequence_number;
            // Answers after the first error of an earlier batch were not read.
            let is_ours = number.wrapping_sub(first) <= awaited.wrapping_sub(first) + 1;
            match answer.payload {
                NetlinkPayload::Error(error) if is_ours && error.code.is_some() => {
                    return Err(refused(error.to_io()));
                }
                NetlinkPayload::Error(_) if number == awaited => return Ok(()),
                _ => {}
            }
        }
    }

    fn append(&mut self, bytes: &mut Vec<u8>, message: Message, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | message.flags | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let start = bytes.len();
        bytes.resize(start + message.buffer_len(), 0);
        message.serialize(&mut bytes[start..]);
    }
}

impl Batch {
    /// Changes of a table, which is made if there is none.
    pub fn new(table: &str) -> Self {
        let mut batch = Batch {
            table: table.into(),
            messages: Vec::new(),
        };
        batch.push(libc::NFT_MSG_NEWTABLE, NLM_F_CREATE, &[text(1, table)]);
        batch
    }

    /// Makes a set, unless it exists: of keys with this many bytes, and of a value each in a map.
    pub fn set(&mut self, name: &str, key: usize, is_map: bool) {
        // Of the transaction.
        let id = self.messages.len() as u32;
        let mut attributes = vec![
            self.table_name(),
            text(2, name),
            // NFT_SET_MAP
            number(3, if is_map { 8 } else { 0 }),
            // A type of key, for programs that list sets.
            number(4, 0),
            number(5, key as u32),
            number(10, id),
        ];
        if is_map {
            attributes.extend([number(6, 0), number(7, WORD as u32)]);
        }
        self.push(libc::NFT_MSG_NEWSET, NLM_F_CREATE, &attributes);
    }

    /// Adds elements to a set.
    pub fn add(&mut self, set: &str, elements: &[Element]) {
        self.elements(libc::NFT_MSG_NEWSETELEM, NLM_F_CREATE, set, elements);
    }

    /// Removes elements, all of which are in the set.
    pub fn remove(&mut self, set: &str, elements: &[Element]) {
        self.elements(libc::NFT_MSG_DELSETELEM, 0, set, elements);
    }

    /// Removes all elements of a set.
    pub fn clear(&mut self, set: &str) {
        let attributes = [self.table_name(), text(2, set)];
        self.push(libc::NFT_MSG_DELSETELEM, 0, &attributes);
    }

    /// Makes a chain without rules, or removes its rules. The chain of a device sees each frame that
    /// comes in there, and accepts those that no rule forwards.
    pub fn chain(&mut self, name: &str, device: Option<&str>) {
        let mut attributes = vec![self.table_name(), text(3, name)];
        if let Some(device) = device {
            // NF_NETDEV_INGRESS at priority 0.
            let hook = [number(1, 0), number(2, 0), text(3, device)];
            attributes.extend([nested(4, &hook), text(7, "filter")]);
        }
        self.push(libc::NFT_MSG_NEWCHAIN, NLM_F_CREATE, &attributes);
        let attributes = [self.table_name(), text(2, name)];
        self.push(libc::NFT_MSG_DELRULE, 0, &attributes);
    }

    /// Removes a chain, which must exist, with its rules.
    pub fn remove_chain(&mut self, name: &str) {
        let attributes = [self.table_name(), text(3, name)];
        self.push(libc::NFT_MSG_DELCHAIN, 0, &attributes);
    }

    /// Adds a rule at the end of a chain.
    pub fn rule(&mut self, chain: &str, steps: &[Expression]) {
        let steps: Vec<_> = steps.iter().map(Expression::attribute).collect();
        let attributes = [self.table_name(), text(2, chain), nested(4, &steps)];
        let flags = NLM_F_CREATE | NLM_F_APPEND;
        self.push(libc::NFT_MSG_NEWRULE, flags, &attributes);
    }

    fn elements(&mut self, kind: libc::c_int, flags: u16, set: &str, elements: &[Element]) {
        // An attribute has at most 64 KiB.
        for some in elements.chunks(256) {
            let some: Vec<_> = some.iter().map(Element::attribute).collect();
            let attributes = [self.table_name(), text(2, set), nested(3, &some)];
            self.push(kind, flags, &attributes);
        }
    }

    fn table_name(&self) -> Vec<u8> {
        text(1, &self.table)
    }

    fn push(&mut self, kind: libc::c_int, flags: u16, attributes: &[Vec<u8>]) {
        let header = [libc::NFPROTO_NETDEV as u8, 0, 0, 0];
        self.messages.push(Message {
            kind: ((libc::NFNL_SUBSYS_NFTABLES << 8) | kind) as u16,
            flags,
            bytes: [&header[..], &attributes.concat()].concat(),
        });
    }
}

impl Message {
    /// Begin or end of a batch.
    fn boundary(kind: libc::c_int) -> Self {
        Message {
            kind: kind as u16,
            flags: 0,
            bytes: vec![0, 0, 0, libc::NFNL_SUBSYS_NFTABLES as u8],
        }
    }
}

impl Element {
    fn attribute(&self) -> Vec<u8> {
        let mut parts = vec![data(1, &self.key)];
        parts.extend(self.value.map(|value| data(2, &value)));
        nested(ELEMENT, &parts)
    }
}

impl Expression {
    fn attribute(&self) -> Vec<u8> {
        let (name, parts) = match self {
            // NFT_META_IIF
            Expression::Input { to } => ("meta", vec![register(1, *to), number(2, 4)]),
            Expression::Load {
                base,
                offset,
                len,
                to,
            } => (
                "payload",
                vec![
                    register(1, *to),
                    number(2, *base as u32),
                    number(3, (*offset).into()),
                    number(4, (*len).into()),
                ],
            ),
            Expression::Equals {
                register: first,
                value,
            } => (
                "cmp",
                vec![register(1, *first), number(2, 0), data(3, value)],
            ),
            Expression::Lookup { set, key, to } => {
                let mut parts = vec![text(1, set), register(2, *key)];
                parts.extend(to.map(|to| register(3, to)));
                ("lookup", parts)
            }
            Expression::Number { value, to } => {
                let value = data(2, &value.to_ne_bytes());
                ("immediate", vec![register(1, *to), value])
            }
            Expression::Jump { chain } => {
                let jump = [number(1, libc::NFT_JUMP.cast_unsigned()), text(2, chain)];
                let verdict = nested(2, &[nested(VERDICT, &jump)]);
                let to = number(1, libc::NFT_REG_VERDICT.cast_unsigned());
                ("immediate", vec![to, verdict])
            }
            Expression::Forward { device } => ("fwd", vec![register(1, *device)]),
        };
        nested(ELEMENT, &[text(1, name), nested(2, &parts)])
    }
}

fn attribute(kind: u16, value: Vec<u8>) -> Vec<u8> {
    let attribute = DefaultNla::new(kind, value);
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    bytes
}

fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, parts.concat())
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, value.to_be_bytes().into())
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, [value.as_bytes(), &[0]].concat())
}

fn data(kind: u16, value: &[u8]) -> Vec<u8> {
    nested(kind, &[attribute(VALUE, value.into())])
}

fn register(kind: u16, word: u8) -> Vec<u8> {
    number(kind, libc::NFT_REG32_00.cast_unsigned() + u32::from(word))
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Message {
    type Error = io::Error;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, io::Error> {
        Ok(Message {
            kind: header.message_type,
            flags: header.flags,
            bytes: payload.into(),
        })
    }
}
