//! Client and server over the fabric, without an agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use toroid_fabric::shm::Channel;

use super::*;
use crate::client::ClientError;
use crate::protocol::change::Change;
use crate::protocol::layout::{Slot, SlotWord};
use crate::protocol::messages::{
    Awaiting, INLINE_LIMIT, PackedUse, Piece, Refusal, Reply, Request, STAGING_ACCESS, SetValue,
    Use, VERSION, decode_reply, encode_request, split_message,
};
use crate::store::shared::Shared;
use crate::store::{Limits, Store};
use crate::testing::{TestListener, TestNetwork, value};
use crate::text::{Rules, ServerState};

/// A server on its own thread.
pub(crate) struct Cluster {
    network: TestNetwork,
    listener: TestListener,
    pub(crate) store: Shared,
    stop: Stop,
    thread: Option<std::thread::JoinHandle<Result<(), ServeError>>>,
}

impl Cluster {
    pub(crate) fn start(limits: Limits) -> Self {
        Self::hosting(limits, ServerState::default())
    }

    fn hosting(limits: Limits, host: ServerState) -> Self {
        Self::within(limits, limits, host)
    }

    /// A server in regions large enough for the limits `most`.
    fn within(most: Limits, limits: Limits, host: ServerState) -> Self {
        let (network, listener, stop) = (
            TestNetwork::new(),
            TestListener::new(),
            Stop::new().unwrap(),
        );
        let store = network.store_within(most, limits);
        let backend = Backend {
            store: store.clone(),
            server: Arc::new(host),
        };
        let server = Server::new(network.clone(), listener.clone(), backend);
        let stopped = stop.clone();
        let thread = Some(std::thread::spawn(move || server.run(&stopped)));
        Cluster {
            network,
            listener,
            store,
            stop,
            thread,
        }
    }

    fn channel(&self, node: u32) -> Channel {
        let [here, there] = self.network.at(node).channel(&self.network);
        self.listener.connect(there);
        here
    }

    pub(crate) fn client(&self, node: u32) -> crate::Client<TestNetwork> {
        crate::Client::over(self.network.at(node), self.channel(node)).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
        self.network.end();
    }
}

/// A backend with fresh counters and rules.
fn alone(store: Shared) -> Backend {
    Backend {
        store,
        server: Arc::default(),
    }
}

#[test]
fn values_of_all_sizes_round_trip() {
    let cluster = Cluster::start(Limits {
        memory: 16 << 20,
        item: 2 << 20,
    });
    let (mut writer, mut reader) = (cluster.client(1), cluster.client(2));
    for len in [
        0,
        1,
        100,
        INLINE_LIMIT,
        INLINE_LIMIT + 1,
        70_000,
        1_000_000,
        2_000_000,
    ] {
        let data: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
        writer.set(b"key", len as u32, 0, &data).unwrap();
        for client in [&mut writer, &mut reader] {
            let value = client.get(b"key").unwrap().unwrap();
            assert!(
                value.data == data && value.flags == len as u32,
                "{len} bytes"
            );
            let mut into = vec![0; len];
            assert_eq!(
                client.get_into(b"key", &mut into).unwrap(),
                Some((len as u32, len))
            );
            assert!(into == data);
        }
    }
    assert!(reader.delete(b"key").unwrap());
    assert!(!writer.delete(b"key").unwrap());
    assert_eq!(writer.get(b"key").unwrap(), None);
    // The reply to a set has the location, so the next get needs no lookup.
    assert_eq!(writer.stats().asked, 0);
    assert_eq!(writer.stats().gets, writer.stats().cached + 1);
}

#[test]
fn invalid_operations_are_refused_with_the_reason() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    assert!(matches!(client.get(b""), Err(ClientError::Key(0))));
    assert!(matches!(
        client.set(&[0; 251], 0, 0, b""),
        Err(ClientError::Key(251))
    ));
    for len in [(1 << 20) - 50, 3 << 20] {
        client.set(b"key", 0, 0, b"old").unwrap();
        let refused = client.set(b"key", 0, 0, &vec![0; len]);
        let limit = 1 << 20;
        assert!(
            matches!(refused, Err(ClientError::TooLarge { len: l, limit: m }) if (l, m) == (len, limit))
        );
        assert_eq!(client.get(b"key").unwrap(), None);
    }
    client.set(b"key", 0, 0, b"value").unwrap();
    let small = client.get_into(b"key", &mut [0; 4]);
    assert!(matches!(
        small,
        Err(ClientError::BufferTooSmall { len: 5, room: 4 })
    ));
}

#[test]
fn the_server_answers_gets_by_message() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    for len in [10, INLINE_LIMIT + 1, 1_000_000] {
        cluster.store.set(b"key", 6, 0, &vec![b'v'; len]).unwrap();
        let value = client.ask(b"key").unwrap().unwrap();
        assert!(value.flags == 6 && value.data == vec![b'v'; len]);
    }
    assert_eq!(client.ask(b"absent").unwrap(), None);
}

#[test]
fn a_malformed_packet_ends_only_its_sender() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    client.set(b"key", 0, 0, b"value").unwrap();
    let mut delete = Vec::new();
    encode_request(&mut delete, 1, &Request::Delete { key: b"key" });
    let mut hello = Vec::new();
    encode_request(&mut hello, 1, &Request::Hello { version: VERSION });
    let nonsense = [
        vec![],
        vec![0xff; 100],
        delete.clone(), // without a greeting
        vec![5, 0, 0, 0, 1, 0, 0, 0, 2],
        [&hello[..], &delete[..delete.len() - 1]].concat(),
        [&hello[..], &[0; 3]].concat(),
    ];
    for packet in nonsense {
        let mut channel = cluster.channel(2);
        channel.send(&[&packet]).unwrap();
        drop(channel);
    }
    client.set(b"key", 0, 0, b"changed").unwrap();
    assert_eq!(client.get(b"key").unwrap().unwrap().data, b"changed");
}

/// Requests a value until the ring is full, and reads no reply.
fn ask_and_never_listen(channel: &mut Channel) {
    let mut packet = Vec::new();
    let (hello, get) = (
        Request::Hello { version: VERSION },
        Request::Get {
            key: b"key",
            touch: None,
            room: Piece::default(),
        },
    );
    encode_request(&mut packet, 1, &hello);
    while channel.send(&[&packet]).is_ok() {
        packet.clear();
        encode_request(&mut packet, 2, &get);
    }
}

/// One node with many channels and long values once took as many turns as it had channels, each of 64 values:
/// another node's set of 100 bytes then took half a second.
#[test]
fn turns_of_a_node_do_not_grow_with_channels_or_values() {
    const CHANNELS: u32 = 16;
    const VALUES: u32 = 4;
    const LEN: u32 = 1_000_000;
    let (network, listener) = (TestNetwork::new(), TestListener::new());
    let store = network.store(Limits {
        memory: 256 << 20,
        item: 1 << 20,
    });
    let mut server = Server::new(network.clone(), listener.clone(), alone(store.clone()));
    let send = |channel: &mut Channel, request: &Request<'_>| {
        let mut packet = Vec::new();
        encode_request(&mut packet, 0, request);
        channel.send(&[&packet]).unwrap();
    };
    let connect = |node: u32| {
        let [mut here, there] = network.at(node).channel(&network);
        listener.connect(there);
        send(&mut here, &Request::Hello { version: VERSION });
        here
    };
    let staging = network.at(1).alloc(LEN.into(), STAGING_ACCESS).unwrap();
    let busy: Vec<Channel> = (0..CHANNELS)
        .map(|number| {
            let mut channel = connect(1);
            let key = staging.remote_key().unwrap();
            send(&mut channel, &Request::Stage { key });
            for value in 0..VALUES {
                let key = (number * VALUES + value).to_le_bytes();
                let piece = Piece {
                    offset: 0,
                    len: LEN,
                };
                let set = Request::Store {
                    change: Change::set(&key, false),
                    value: SetValue::Staged(piece),
                };
                send(&mut channel, &set);
            }
            channel
        })
        .collect();
    server.accept().unwrap();
    let stored = || store.with(|store| store.counters().total_items) as u32;
    let mut other = connect(2);
    server.accept().unwrap();
    for round in 1..CHANNELS * VALUES {
        let set = Request::Store {
            change: Change::set(b"other", false),
            value: SetValue::Inline(&[7; 100]),
        };
        send(&mut other, &set);
        // One round serves one long value and the short one.
        assert!(server.serve_all());
        assert_eq!(stored(), 2 * round);
        assert!(value(&store, b"other").is_some());
    }
    // Each channel had turns.
    for number in 0..CHANNELS {
        let first = (number * VALUES).to_le_bytes();
        assert!(value(&store, &first).is_some(), "{number}");
    }
    drop(busy);
    network.end();
}

/// The requests of a client that reads no replies once kept the server awake for good.
#[test]
fn a_client_that_reads_no_replies_lets_the_server_sleep_and_is_dropped() {
    let (network, listener, stop) = (
        TestNetwork::new(),
        TestListener::new(),
        Stop::new().unwrap(),
    );
    let store = network.store(Limits::DEFAULT);
    store.set(b"key", 0, 0, &[1; INLINE_LIMIT]).unwrap();
    let mut server = Server::new(network.clone(), listener.clone(), alone(store));
    let channels = [1, 2].map(|node| network.at(node).channel(&network));
    let [mut deaf, mut slow] = channels.map(|[here, there]| {
        listener.connect(there);
        here
    });
    server.accept().unwrap();
    for channel in [&mut deaf, &mut slow] {
        ask_and_never_listen(channel);
    }
    let serve = |server: &mut Server<_, _>| while server.serve_all() {};
    serve(&mut server);
    assert!(server.clients.iter().all(|c| c.is_stuck()));
    let start = Instant::now();
    assert!(!server.sleep(&stop).unwrap());
    assert!(start.elapsed() >= PATIENT_SLEEP);

    // The slow client reads its replies and is served on; the other one has used up its time.
    let mut packet = Vec::new();
    assert!(slow.receive(&mut packet).unwrap());
    while slow.receive(&mut packet).unwrap() {}
    serve(&mut server);
    assert!(slow.receive(&mut packet).unwrap());
    let mut clients = server.clients.iter_mut();
    let deaf = clients.find(|client| client.channel().peer() == NodeId(1));
    deaf.unwrap().has_been_stuck_for_too_long();
    serve(&mut server);
    let left: Vec<_> = server
        .clients
        .iter()
        .map(|c| c.channel().peer().0)
        .collect();
    assert_eq!(left, [2]);
}

fn request(channel: &mut Channel, request: &Request<'_>) -> Reply<'static> {
    let mut packet = Vec::new();
    encode_request(&mut packet, 7, request);
    channel.send(&[&packet]).unwrap();
    while !channel.receive(&mut packet).unwrap() {
        channel.wait(Duration::from_secs(10));
    }
    let message = split_message(&mut &packet[..]).unwrap();
    match decode_reply(message).unwrap().1 {
        Reply::Refused(refusal) => Reply::Refused(refusal),
        Reply::Done => Reply::Done,
        Reply::Missing => Reply::Missing,
        Reply::Welcome(geometry) => Reply::Welcome(geometry),
        Reply::Stored(stored) => Reply::Stored(stored),
        Reply::Counted { value, location } => Reply::Counted { value, location },
        Reply::Value { .. } | Reply::Said { .. } => panic!("not expected here"),
    }
}

#[test]
fn staging_regions_are_validated() {
    let cluster = Cluster::start(Limits {
        memory: 4 << 20,
        item: 1 << 20,
    });
    let mut channel = cluster.channel(1);
    let version = VERSION + 1;
    let refused = |refusal| Reply::Refused(refusal);
    assert_eq!(
        request(&mut channel, &Request::Hello { version }),
        refused(Refusal::Version)
    );
    request(&mut channel, &Request::Hello { version: VERSION });
    let set = |offset, len| Request::Store {
        change: Change::set(b"key", false),
        value: SetValue::Staged(Piece { offset, len }),
    };
    assert_eq!(request(&mut channel, &set(0, 1)), refused(Refusal::Staging));
    let elsewhere = cluster.network.at(9).alloc(4096, STAGING_ACCESS).unwrap();
    let ours = cluster.network.at(1).alloc(4096, STAGING_ACCESS).unwrap();
    let mut unknown = ours.remote_key().unwrap();
    unknown.secret = [1; 16];
    for key in [elsewhere.remote_key().unwrap(), unknown] {
        assert_eq!(
            request(&mut channel, &Request::Stage { key }),
            refused(Refusal::Staging)
        );
    }
    // Each failure gives the memory back: there is room for three items of this size.
    for _ in 0..20 {
        let key = ours.remote_key().unwrap();
        assert_eq!(request(&mut channel, &Request::Stage { key }), Reply::Done);
        for (offset, len) in [(0, 1_000_000), (u64::MAX, 1_000_000), (4096, 1)] {
            assert_eq!(
                request(&mut channel, &set(offset, len)),
                refused(Refusal::Staging)
            );
            assert_eq!(request(&mut channel, &Request::Stage { key }), Reply::Done);
        }
        assert_eq!(
            request(&mut channel, &set(0, 2 << 20)),
            refused(Refusal::TooLarge)
        );
    }
    assert_eq!(value(&cluster.store, b"key"), None);
    assert!(matches!(
        request(&mut channel, &set(0, 4096)),
        Reply::Stored(_)
    ));
    assert_eq!(value(&cluster.store, b"key"), Some(vec![0; 4096]));
}

mod borrow;
mod changes;
mod far;
mod limit;
mod posting;
mod reads;

use self::reads::{assert_whole, self_describing};

#[test]
fn sessions_of_a_client_are_separate_and_bounded() {
    let rules = Rules {
        connections: 2,
        shutdown: Some(Box::new(|| panic!("it is not theirs to end"))),
        ..Rules::default()
    };
    let cluster = Cluster::hosting(Limits::DEFAULT, ServerState::new(rules));
    let mut client = cluster.client(1);
    let mut say = |session, text: &str| {
        let mut replies = Vec::new();
        let then = client.say(session, text.as_bytes(), &mut replies).unwrap();
        (then, String::from_utf8(replies).unwrap())
    };
    let nothing = String::new;
    assert_eq!(say(7, "set a 0 0 5\r\non"), (Awaiting::Bytes(5), nothing()));
    assert_eq!(say(8, "get a\r\nget"), (Awaiting::Line, "END\r\n".into()));
    assert_eq!(say(7, "e t\r\n"), (Awaiting::Command, "STORED\r\n".into()));
    let value = "VALUE a 0 5\r\none t\r\nEND\r\n";
    assert_eq!(say(8, " a\r\n"), (Awaiting::Command, value.into()));
    let refused = "ERROR Too many open connections\r\n";
    assert_eq!(say(9, "get a\r\n"), (Awaiting::End, refused.into()));
    assert_eq!(say(8, "quit\r\n"), (Awaiting::End, nothing()));
    assert_eq!(say(9, "get a\r\n"), (Awaiting::Command, value.into()));
    let refused = "ERROR: shutdown not enabled\r\n";
    assert_eq!(say(9, "shutdown\r\n"), (Awaiting::Command, refused.into()));
    client.leave(9);
    assert_eq!(
        client.say(10, b"mn\r\n", &mut Vec::new()).unwrap(),
        Awaiting::Command
    );
}

/// A set of 64 KiB into fresh memory took three times as long as the same set into memory that had
/// been in use.
#[test]
fn an_idle_server_populates_the_memory_of_the_next_segment_and_no_more() {
    let limits = Limits {
        memory: 64 << 20,
        item: 512 << 10,
    };
    let cluster = Cluster::start(limits);
    let [_, items] = cluster.store.regions();
    let allocated = || cluster.network.allocated(&items);
    let mut client = cluster.client(1);
    assert_eq!(client.get(b"key").unwrap(), None);
    while cluster.store.populate_ahead() {}
    assert_eq!(allocated(), 0, "for an empty store");
    let (value_len, segment) = (64 << 10, 1 << 20);
    client.set(b"key", 0, 0, &vec![7; value_len]).unwrap();
    // A server that sleeps at once, because of other threads, is asked again.
    let ahead = segment + value_len as u64;
    let populated = (0..20_000).any(|_| {
        client.delete(b"other").unwrap();
        std::thread::sleep(Duration::from_millis(1));
        allocated() >= ahead
    });
    assert!(populated, "{} of {ahead} bytes", allocated());
    while cluster.store.populate_ahead() {}
    // The header and the key take another page.
    assert!(allocated() <= ahead + 2 * 4096);
    let value = client.get(b"key").unwrap().unwrap();
    assert!(value.data == vec![7; value_len]);
}
