//! What clients and servers of the store say to each other by RDMA, and what a client reads in the
//! server's memory.

use std::time::Duration;

use toroid_fabric::{
    Completion, Endpoint, NodeId, OpError, Operation, Partition, Pending, PostError, Read, Region,
    RegionId, RemoteKey,
};
use toroid_kv::Change;
use toroid_kv::internals::geometry::Geometry;
use toroid_kv::internals::layout::{Location, Slot, SlotWord};
use toroid_kv::internals::messages::{
    decode_reply, decode_request, encode_reply, encode_request, split_message,
};
use toroid_kv::internals::operations;
use toroid_kv::internals::reader::{Lookup, Reader, ValueRef};
use toroid_kv::server::Shared;
use toroid_kv::{internals::Store, server::Limits};

/// A packet of requests. One that was understood says the same when it is sent on.
pub fn store_requests(mut packet: &[u8]) -> bool {
    let mut again = Vec::new();
    while !packet.is_empty() {
        let Ok((number, request)) = split_message(&mut packet).and_then(decode_request) else {
            return false;
        };
        again.clear();
        encode_request(&mut again, number, &request);
        let message = split_message(&mut &again[..]).expect("our own form");
        assert_eq!(decode_request(message), Ok((number, request)));
    }
    !again.is_empty()
}

/// A packet of replies; as [`store_requests`].
pub fn store_replies(mut packet: &[u8]) -> bool {
    let mut again = Vec::new();
    while !packet.is_empty() {
        let Ok((number, reply)) = split_message(&mut packet).and_then(decode_reply) else {
            return false;
        };
        again.clear();
        encode_reply(&mut again, number, &reply);
        let message = split_message(&mut &again[..]).expect("our own form");
        assert_eq!(decode_reply(message), Ok((number, reply)));
    }
    !again.is_empty()
}

const LIMITS: Limits = Limits {
    memory: 64 << 10,
    item: 1 << 10,
};

/// What is written to the index goes to its start, where it is in use.
const INDEX: u64 = 8 << 10;

const KEYS: [&[u8]; 3] = [b"one", b"two", b"three"];

/// The memory of a server that writes into it whatever it likes, and says whatever it likes about
/// it, while a client gets.
///
/// ```text
///  0      1        5      6
///  +------+--------+------+-------+   little endian, again and again; what: 0 writes to the index, 1 to
///  | what | offset | len  | bytes |   the items, 2 says that a key is where the bytes say
///  +------+--------+------+-------+
/// ```
pub fn store_memory(bytes: &[u8]) -> bool {
    let (index, items) = LIMITS.regions();
    let [index, items] = [index, items].map(|len| Region::local(len as usize).expect("memory"));
    fill(&index, &items);
    let mut reader = Reader::new(
        Local,
        (index.clone(), index.len()),
        (items.clone(), items.len()),
        &geometry(),
    )
    .expect("an index")
    .read_apart_beyond(0);
    let mut rest = bytes;
    while let Some((&[what, a, b, c, d, len], behind)) = rest.split_first_chunk() {
        let offset = u64::from(u32::from_le_bytes([a, b, c, d]));
        let (patch, behind) = behind.split_at_checked(len.into()).unwrap_or((behind, &[]));
        rest = behind;
        match what % 3 {
            0 => write(&index, offset % INDEX, patch),
            1 => write(&items, offset % items.len(), patch),
            _ => reader.remember(KEYS[offset as usize % KEYS.len()], location(patch)),
        }
        get_all(&mut reader);
    }
    get_all(&mut reader) > 0
}

fn write(region: &Region, offset: u64, patch: &[u8]) {
    let len = patch.len().min((region.len() - offset) as usize);
    region.write(offset, &patch[..len]).expect("it fits");
}

/// Gets all keys, in each of the ways; returns how many were found at last.
fn get_all(reader: &mut Reader<Local>) -> usize {
    let mut into = [0; 100];
    let mut found = 0;
    for key in KEYS {
        let lookup = reader.get_into(key, &mut into).expect("it is there");
        if let Lookup::Found((_, len)) = lookup {
            assert!(len <= LIMITS.item as usize, "out of nothing");
        }
        let lookup = reader.get(key).expect("it is there");
        found += usize::from(matches!(lookup, Lookup::Found(_)));
    }
    let each = |number: usize, _: Lookup<ValueRef<'_>>| assert!(number < KEYS.len());
    reader.get_many(&KEYS, each).expect("they are there");
    found
}

fn fill(index: &Region, items: &Region) {
    LIMITS.check().expect("possible limits");
    let store = Store::new(index.clone(), items.clone(), LIMITS, [1, 2], 1_700_000_000);
    let store = Shared::new(store.expect("they are large enough"));
    for key in KEYS {
        let stored = operations::store(&store, &Change::set(key, false), &[7; 100]);
        stored.expect("there is room");
    }
}

fn geometry() -> Geometry {
    let key = RemoteKey {
        node: NodeId(0),
        partition: Partition(1),
        id: RegionId(1),
        secret: [0; 16],
    };
    Geometry {
        index: key,
        items: key,
        seed: 2,
        boot_id: 1,
        max_item: LIMITS.item,
    }
}

/// Made of as many bytes as there are.
fn location(bytes: &[u8]) -> Location {
    let mut all = [0; 24];
    let len = bytes.len().min(all.len());
    all[..len].copy_from_slice(&bytes[..len]);
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| all[at + n]));
    Location {
        slot: Slot(word(0) as u32),
        len: (word(0) >> 32) as u32,
        word: SlotWord(word(8)),
        generation: word(16),
    }
}

/// Reads memory of this process.
struct Local;

impl Endpoint for Local {
    type Remote = Region;

    fn peer(&self) -> NodeId {
        NodeId(0)
    }

    fn partition(&self) -> Partition {
        Partition(1)
    }

    fn post(&mut self, _: u64, _: Operation<Region>) -> Result<(), PostError> {
        Err(PostError::QueueFull { depth: 0 })
    }

    fn flush(&mut self) {}

    fn poll(&mut self, _: &mut [Completion]) -> usize {
        0
    }

    fn wait(&mut self, _: Duration) -> bool {
        false
    }

    fn pending(&mut self, _: bool) -> Pending {
        Pending::Nothing
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, Region>]) -> Result<(), OpError> {
        let mut reads = reads.iter_mut();
        reads.try_for_each(|read| read.remote.read(read.offset, read.into))
    }
}
