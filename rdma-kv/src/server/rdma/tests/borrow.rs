//! Borrowing from a server: clients that end, lie, or hold on.

use std::mem;

use super::posting::{served, still_server};
use super::*;
use crate::client::view::ViewError;
use crate::protocol::hazards::{HAZARDS, HAZARDS_ACCESS, HAZARDS_LEN};

const SMALL: Limits = Limits {
    memory: 4 << 20,
    item: 64 << 10,
};

fn is_anything_borrowed(store: &Shared) -> bool {
    store.with(|store| {
        store.borrows().scan();
        store.borrows().any(|_| true)
    })
}

#[test]
fn a_dead_borrower_releases_its_memory() {
    let (mut server, network, mut channel) = still_server();
    let store = server.service.backend.store.clone();
    store.set(b"key", 3, 0, &[1; 5000]).unwrap();
    for _ in 0..100 {
        let client = served(&mut server, || {
            let mut client = crate::Client::over(network.clone(), channel).unwrap();
            for _ in 0..HAZARDS {
                let view = client.borrow(b"key").unwrap().unwrap();
                assert_eq!((view.flags(), view.len()), (3, 5000));
                // A killed process clears no hazard pointer.
                mem::forget(view);
            }
            let more = client.borrow(b"key").map(|_| ());
            assert!(matches!(
                more,
                Err(ClientError::TooManyViews { limit: HAZARDS })
            ));
            client
        });
        drop(client);
        assert!(is_anything_borrowed(&store));
        server.clients.clear();
        assert!(!is_anything_borrowed(&store));
        let [here, there] = network.channel(&network.at(0));
        server.listener.connect(there);
        server.accept().unwrap();
        channel = here;
    }
}

#[test]
fn a_view_that_outlives_its_client_is_recalled() {
    let (mut server, network, channel) = still_server();
    let store = server.service.backend.store.clone();
    store.set(b"key", 0, 0, &[1; 5000]).unwrap();
    let view = served(&mut server, || {
        let mut client = crate::Client::over(network, channel).unwrap();
        assert!(client.borrow(b"absent").unwrap().is_none());
        client.borrow(b"key").unwrap().unwrap()
    });
    store.delete(b"key").unwrap();
    let overwrite = || {
        for n in 0..200u32 {
            let key = n.to_le_bytes();
            store.set(&key, 0, 0, &[2; 900_000]).unwrap();
        }
    };
    overwrite();
    assert!(view.to_vec() == Ok(vec![1; 5000]));
    server.clients.clear();
    assert_eq!(view.to_vec(), Err(ViewError::Recalled));
    overwrite();
    assert_eq!(view.to_vec(), Err(ViewError::Recalled));
}

#[test]
fn hazard_regions_are_validated() {
    let cluster = Cluster::start(SMALL);
    let mut channel = cluster.channel(1);
    request(&mut channel, &Request::Hello { version: VERSION });
    let alloc = |node, len| {
        let network = cluster.network.at(node);
        network.alloc(len, HAZARDS_ACCESS).unwrap()
    };
    let (elsewhere, short, ours) = (alloc(9, HAZARDS_LEN), alloc(1, 512), alloc(1, HAZARDS_LEN));
    let mut unknown = ours.remote_key().unwrap();
    unknown.secret = [1; 16];
    for hazards in [elsewhere.remote_key(), short.remote_key(), Some(unknown)] {
        let hazards = hazards.unwrap();
        let reply = request(&mut channel, &Request::Borrow { hazards });
        assert_eq!(reply, Reply::Refused(Refusal::HazardPointers));
    }
    ours.write(0, &[0xff; HAZARDS_LEN as usize]).unwrap();
    for _ in 0..3 {
        let hazards = ours.remote_key().unwrap();
        let reply = request(&mut channel, &Request::Borrow { hazards });
        assert_eq!(reply, Reply::Done);
    }
    cluster.store.set(b"key", 0, 0, &[1; 5000]).unwrap();
    cluster.store.delete(b"key").unwrap();
    assert!(!is_anything_borrowed(&cluster.store));
}

/// Borrowers that keep views, and writers over few keys and little memory, which would otherwise be
/// reused continually.
#[test]
fn borrowed_values_never_change() {
    let cluster = Cluster::start(Limits {
        memory: 16 << 20,
        item: 128 << 10,
    });
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let mut client = cluster.client(1);
        let writer = scope.spawn(move || {
            for round in 0..4000u32 {
                let key = (round % 5) as u8;
                let len = [8, 100, 1000, 5000, 100_000][(round / 7 % 5) as usize];
                let value = self_describing(key, round, len);
                client.set(&[key], round, 0, &value).unwrap();
                if round % 11 == 0 {
                    client.delete(&[key]).unwrap();
                }
            }
        });
        for node in 2..4 {
            let (mut client, done) = (cluster.client(node), done.clone());
            scope.spawn(move || {
                let mut held = Vec::new();
                let mut borrowed = 0;
                while !done.load(Ordering::Relaxed) {
                    for key in 0..5u8 {
                        let Some(view) = client.borrow(&[key]).unwrap() else {
                            continue;
                        };
                        held.push((key, view));
                    }
                    for (key, view) in &held {
                        match view.to_vec() {
                            Ok(value) => assert_whole(*key, view.flags(), &value),
                            Err(error) => assert_eq!(error, ViewError::Recalled),
                        }
                        borrowed += 1;
                    }
                    held.drain(..held.len().saturating_sub(20));
                }
                assert!(borrowed > 0);
            });
        }
        writer.join().unwrap();
        done.store(true, Ordering::Relaxed);
    });
    assert!(!is_anything_borrowed(&cluster.store));
}
