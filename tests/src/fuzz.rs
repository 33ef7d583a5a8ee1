//! Everything that reads what a stranger wrote, as functions of bytes: none may panic, hang, or
//! take nonsense for more than it is.
//!
//! `tests/tests/fuzz.rs` replays `tests/corpus` and thousands of changes of it with a stable
//! compiler; `tests/fuzz` lets cargo-fuzz look for more with a nightly one. A target returns
//! whether it accepted its input, so that a corpus that is no longer understood is noticed.

mod connection;
mod noise;
mod proxied;
mod remote;

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use serde::de::DeserializeOwned;
use toroid_agent::store::Store;
use toroid_agent::store::file::FileStore;
use toroid_ethernet::headers::frame::Frame;
use toroid_ethernet::headers::igmp_mld;
use toroid_ethernet::offload::Offload;
use toroid_ethernet::offload::segmentation::Segmenter;
use toroid_fabric::Membership;
use toroid_fabric::channel::{ChannelError, MAX_PAYLOAD};
use toroid_fabric::link::{LinkCheck, LinkHeader};
use toroid_fabric::shm::RING_BYTES;
use toroid_fabric::shm::{Channel, ChannelEnds};
use toroid_fabric::{
    Epoch, NodeId, PacketChannel, Partition, Place, Protocol, Region, RemoteKey, Torus,
};
use toroid_kv::internals::{self, Conversation, Next};
use toroid_kv::server::Limits;
use toroid_kv::server::Shared;
use toroid_model::addressing::Subnet;
use toroid_model::declare::{self, Surroundings};
use toroid_model::directory::Directory;
use toroid_model::directory::records::Records;
use toroid_protocol::agent::{Message, Request};
use toroid_protocol::driver::{DriverRequest, DriverResponse};
use toroid_protocol::wire::{self, WireError};

use crate::forged::{FarHost, Neighbours};
pub use connection::{connection_packets, connection_replies, connection_requests};
pub use noise::noise;
pub use proxied::proxy;
pub use remote::{store_memory, store_replies, store_requests};

/// A function of bytes that a stranger may choose; returns whether it accepted them.
pub type Target = fn(&[u8]) -> bool;

/// All targets with their names, which are also those of the corpus directories.
pub const TARGETS: [(&str, Target); 22] = [
    ("request", request),
    ("message", message),
    ("driver", driver),
    ("stream", stream),
    ("link", link),
    ("ring", ring),
    ("connection_requests", connection_requests),
    ("connection_replies", connection_replies),
    ("connection_packets", connection_packets),
    ("records", records),
    ("directory_file", directory_file),
    ("declaration", declaration),
    ("frame", frame),
    ("segment", segment),
    ("conversation", conversation),
    ("proxy", proxy),
    ("igmp_mld", igmp_mld),
    ("tunnel", tunnel),
    ("store_requests", store_requests),
    ("store_replies", store_replies),
    ("store_memory", store_memory),
    ("noise", noise),
];

/// A request of a client to the agent, through either socket.
pub fn request(bytes: &[u8]) -> bool {
    json::<Request>(bytes)
}

/// A message of the agent to a client or a member.
pub fn message(bytes: &[u8]) -> bool {
    json::<Message>(bytes)
}

/// Messages between agent and driver.
pub fn driver(bytes: &[u8]) -> bool {
    json::<DriverRequest>(bytes) || json::<DriverResponse>(bytes)
}

/// A message that was understood says the same when it is sent on.
fn json<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let Ok(message) = serde_json::from_slice::<T>(bytes) else {
        return false;
    };
    let text = serde_json::to_vec(&message).expect("what was read can be written");
    let again: T = serde_json::from_slice(&text).expect("what was written can be read");
    assert_eq!(again, message);
    true
}

/// A connection to the agent from its first byte to its last, of which descriptors are missing.
pub fn stream(bytes: &[u8]) -> bool {
    // As much as a socket holds without a reader.
    let bytes = &bytes[..bytes.len().min(64 * 1024)];
    let (mut stranger, ours) = UnixStream::pair().expect("a socket");
    let (mut reader, _writer) = wire::split(ours).expect("two halves");
    stranger.write_all(bytes).expect("it fits");
    drop(stranger);
    let mut requests = 0;
    loop {
        match reader.receive::<Request>() {
            Ok((_, descriptors)) => assert!(descriptors.is_empty(), "out of nothing"),
            Err(WireError::Closed) => return requests > 0,
            Err(_) => return false,
        }
        requests += 1;
    }
}

/// The header of a packet, and whether it is admitted.
pub fn link(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.first_chunk() else {
        return false;
    };
    let header = LinkHeader::from_bytes(bytes);
    assert_eq!(LinkHeader::from_bytes(&header.to_bytes()), header);
    CHECK.admit(&header).is_ok()
}

const CHECK: LinkCheck = LinkCheck {
    partition: Partition(7),
    peer: NodeId(1),
    protocol: Protocol(9),
    since: Epoch(1),
};

/// Bytes of a ring's memory before its data.
const RING_HEADER: u64 = 4096;

/// Two rings into which the peer writes any bytes, at any place and time.
///
/// ```text
///  0        4      6
///  +--------+------+--------+   little endian, again and again; between any two the one is read
///  | offset | len  | bytes  |   and the other, whose offsets have the highest bit, written to
///  +--------+------+--------+
/// ```
pub fn ring(bytes: &[u8]) -> bool {
    let (ours, theirs) = ChannelEnds::create(RING_BYTES).expect("memory");
    let [to_us, from_us, ..] = theirs.into_fds().map(File::from);
    let membership = Membership::at(CHECK.since);
    let channel = Channel::open(ours, NodeId(0), CHECK, membership, Arc::default(), None);
    let mut channel = channel.expect("a channel");
    let (mut rest, mut packet, mut received) = (bytes, Vec::new(), 0);
    while let Some((&[a, b, c, d, e, f], behind)) = rest.split_first_chunk() {
        let (memory, offset) = match u32::from_le_bytes([a, b, c, d]) {
            offset @ 0x8000_0000.. => (&from_us, offset & 0x7fff_ffff),
            offset => (&to_us, offset),
        };
        let offset = u64::from(offset) % (RING_HEADER + RING_BYTES as u64);
        let (patch, behind) = behind
            .split_at_checked(usize::from(u16::from_le_bytes([e, f])))
            .unwrap_or((behind, &[]));
        rest = behind;
        let room = RING_HEADER + RING_BYTES as u64 - offset;
        let patch = &patch[..patch.len().min(room as usize)];
        memory.write_all_at(patch, offset).expect("it fits");
        match channel.receive(&mut packet) {
            Ok(true) => received += 1,
            Ok(false) => {}
            Err(ChannelError::Corrupt) => break,
            Err(other) => panic!("{other}"),
        }
        // After anything the peer does, our end is usable, full or ended.
        match channel.send(&[&[7; MAX_PAYLOAD]]) {
            Ok(()) | Err(ChannelError::Full) => {}
            Err(ChannelError::Corrupt) => break,
            Err(other) => panic!("{other}"),
        }
    }
    received > 0
}

/// The records of a directory, as lines of key, tab and value.
pub fn records(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else {
        return false;
    };
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    let records: Records = pairs
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    is_directory(&records)
}

/// A directory that was read can be written, and is then read as the same.
fn is_directory(records: &Records) -> bool {
    let Ok(directory) = Directory::from_records(records) else {
        return false;
    };
    let kept = directory.records();
    let again = Directory::from_records(&kept).expect("what was kept can be read");
    assert_eq!(again.records(), kept);
    true
}

/// The file of a directory after something wrote into it.
///
/// ```text
///  0        4      5
///  +--------+------+-------+
///  | offset | len  | bytes |   little endian, again and again
///  +--------+------+-------+
/// ```
pub fn directory_file(bytes: &[u8]) -> bool {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("directory");
    let mut file = a_directory_file().to_vec();
    let mut rest = bytes;
    while let Some((&[a, b, c, d, len], behind)) = rest.split_first_chunk() {
        let offset = u32::from_le_bytes([a, b, c, d]) as usize % file.len();
        let (patch, behind) = behind.split_at_checked(len.into()).unwrap_or((behind, &[]));
        rest = behind;
        let spot = &mut file[offset..];
        let len = patch.len().min(spot.len());
        spot[..len].copy_from_slice(&patch[..len]);
    }
    fs::write(&path, file).expect("room on the disk");
    let opened = FileStore::open(&path);
    let loaded = opened.and_then(|store| store.expect("it is there").load());
    loaded.is_ok_and(|records| is_directory(&records))
}

/// One in which there is something, and without what the disk has for nothing.
fn a_directory_file() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("directory");
        let text = include_str!("../corpus/records/valid");
        let pairs = text.lines().filter_map(|line| line.split_once('\t'));
        let records = pairs
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        FileStore::create(&path, &records).expect("a file");
        fs::read(&path).expect("it is there")
    })
}

/// A file for `toroid apply`, and the words in it that have a form of their own.
pub fn declaration(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else {
        return false;
    };
    for word in text.split(['"', '\n', ' ']) {
        in_one_form::<Torus>(word);
        in_one_form::<Place>(word);
        in_one_form::<Subnet>(word);
        in_one_form::<RemoteKey>(word);
    }
    let around = Surroundings {
        hosts: BTreeMap::new(),
        torus: Torus::new(4, 4, 4).expect("a torus"),
        aliases: BTreeMap::from([("head".into(), place(0))]),
        user: &|name| (name == "alice").then_some(1000),
    };
    match declare::parse(text, &around) {
        Ok(_) => true,
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            false
        }
    }
}

/// A message that was understood is written in a form that is understood as the same.
fn in_one_form<T: FromStr<Err: Debug> + Display>(word: &str) {
    if let Ok(value) = word.parse::<T>() {
        let text = value.to_string();
        let again = text.parse::<T>().expect("our own form");
        assert_eq!(again.to_string(), text);
    }
}

/// A packet from a node's interface, with the header before its frame.
pub fn frame(bytes: &[u8]) -> bool {
    Neighbours::default().send(bytes)
}

/// The same with any source and destination.
pub fn segment(bytes: &[u8]) -> bool {
    let Some((offload, frame)) = Offload::split(bytes) else {
        return false;
    };
    let (longest, mut grown) = (offload.longest(frame.len()), 0);
    let mut segmenter = Segmenter::default();
    let mut frames = segmenter.frames(&offload, frame);
    while let Some(frame) = frames.next() {
        assert!(frame.len() <= longest, "{} bytes", frame.len());
        grown += frame.len();
    }
    assert!(grown >= frame.len(), "something is missing");
    true
}

/// An IGMP or MLD frame: the other members receive no less because of it.
pub fn igmp_mld(bytes: &[u8]) -> bool {
    let mut neighbours = Neighbours::default();
    neighbours.listen();
    neighbours.send(&[&Offload::NONE, bytes].concat());
    assert!(neighbours.is_heard(), "who has joined a group hears it");
    let message = Frame::new(bytes).and_then(igmp_mld::read);
    if let Some(igmp_mld::GroupMessage::Report(report)) = &message {
        assert!(
            report.records().count() <= report.stated_len(),
            "out of nothing"
        );
    }
    message.is_some()
}

/// All bytes from the driver of another host over a tunnel.
pub fn tunnel(bytes: &[u8]) -> bool {
    FarHost::default().send(bytes)
}

fn place(x: u8) -> Place {
    Place { x, y: 0, z: 0 }
}

/// A conversation of a client with the store by memcached's protocol, in pieces of a few bytes.
pub fn conversation(bytes: &[u8]) -> bool {
    let store = cache();
    store.with(internals::Store::flush).expect("it is ours");
    let (mut conversation, mut replies) = (Conversation::default(), Vec::new());
    let (mut rest, mut accepted) = (bytes, true);
    loop {
        replies.clear();
        let next = conversation.run(store, &mut replies).expect("it is ours");
        let mut lines = replies.split(|&byte| byte == b'\n');
        accepted &= !lines.any(|line| line.starts_with(b"ERROR") || line.starts_with(b"CLIENT_"));
        match next {
            Next::Close | Next::Watch => return accepted && rest.is_empty(),
            Next::Read if rest.is_empty() => return accepted,
            Next::Read => {
                let count = give(conversation.room(), &mut rest);
                conversation.received(count);
            }
            Next::Continue => {}
        }
    }
}

/// Moves a piece of the rest into the buffer; returns its bytes.
fn give(room: &mut [u8], rest: &mut &[u8]) -> usize {
    let count = room.len().min(rest.len()).min(1 + rest.len() % 13);
    assert!(count > 0, "nothing can be read any more");
    let (piece, left) = rest.split_at(count);
    room[..count].copy_from_slice(piece);
    *rest = left;
    count
}

/// A small store in local memory.
fn cache() -> &'static Shared {
    static STORE: OnceLock<Shared> = OnceLock::new();
    STORE.get_or_init(make_cache)
}

fn make_cache() -> Shared {
    let limits = Limits {
        memory: 4 << 20,
        item: 1 << 10,
    };
    limits.check().expect("possible limits");
    let (index, items) = limits.regions();
    let [index, items] = [index, items].map(|len| Region::local(len as usize).expect("memory"));
    let store = internals::Store::new(index, items, limits, [1, 2], 1_700_000_000);
    Shared::new(store.expect("they are large enough"))
}
