//! Posted changes: many at a time, over full rings, and by clients that die.

use super::*;
use crate::client::{Outcome, WINDOW};
use crate::protocol::change::{Mode, Stored};
use crate::store::Store;

fn change(mode: Mode, key: &[u8]) -> Change<'_> {
    Change {
        mode,
        ..Change::set(key, false)
    }
}

fn is_stored(outcome: &Result<Stored, ClientError>) -> bool {
    matches!(outcome, Ok(Stored::Stored { .. }))
}

/// Lengths of inline and staged values; several staged ones outgrow the first staging region.
const LENGTHS: [usize; 6] = [0, 100, INLINE_LIMIT, INLINE_LIMIT + 1, 60_000, 300_000];

fn bytes(n: usize) -> Vec<u8> {
    vec![n as u8; LENGTHS[n % LENGTHS.len()]]
}

#[test]
fn posted_changes_take_effect_and_are_polled_in_order() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    let (mut posted, mut polled) = (Vec::new(), Vec::new());
    let poll = |outcome: Option<Outcome>, polled: &mut Vec<_>| {
        if let Some((ticket, outcome)) = outcome {
            assert!(is_stored(&outcome), "{outcome:?}");
            polled.push(ticket);
        }
    };
    for n in 0..500 {
        let key = [n as u8 % 7];
        let ticket = loop {
            match client.post(&change(Mode::Set, &key), &bytes(n)) {
                Err(ClientError::WindowFull) => poll(client.wait().unwrap(), &mut polled),
                ticket => break ticket.unwrap(),
            }
        };
        posted.push(ticket);
        // Other operations in between lose no outcome.
        match n % 50 {
            10 => poll(client.poll().unwrap(), &mut polled),
            20 => client.set(b"other", 0, 0, b"value").unwrap(),
            30 => assert!(client.delete(b"other").unwrap()),
            40 => assert!(client.get(b"other").unwrap().is_none()),
            41 => assert!(client.get_and_touch(b"other", 0).unwrap().is_none()),
            _ => {}
        }
    }
    while let Some(outcome) = client.wait().unwrap() {
        poll(Some(outcome), &mut polled);
    }
    assert!(posted == polled && client.poll().unwrap().is_none());
    for n in 493..500 {
        let value = client.get(&[n as u8 % 7]).unwrap().unwrap();
        assert!(value.data == bytes(n), "{n}");
    }
    // Each outcome has the location of the value.
    let stats = client.stats();
    assert_eq!(stats.asked, 0);
    assert!(stats.cached >= 7, "{stats:?}");
}

/// The time-out once began at the posting, so a client gave up a server before it had sent the
/// request.
#[test]
fn an_unsent_change_does_not_time_out() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    client.post(&change(Mode::Set, b"key"), b"value").unwrap();
    client.backdate(std::time::Duration::from_secs(60));
    let outcome = loop {
        if let Some((_, outcome)) = client.poll().unwrap() {
            break outcome;
        }
    };
    assert!(is_stored(&outcome), "{outcome:?}");
}

#[test]
fn a_relaxed_client_sees_its_own_changes() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let (mut client, mut other) = (cluster.client(1), cluster.client(2));
    client.set_consistency(crate::client::reader::Consistency::Relaxed);
    let value_of = |value: Option<crate::client::Value>| value.map(|value| value.data);
    let (first, second) = (b"first".to_vec(), b"second".to_vec());
    // A flush of its own.
    client.set(b"key", 0, 0, &first).unwrap();
    assert_eq!(value_of(client.get(b"key").unwrap()), Some(first.clone()));
    client.flush_all(0).unwrap();
    assert_eq!(client.get(b"key").unwrap(), None);
    // A delete, behind a set that was posted.
    client.post(&change(Mode::Set, b"key"), &first).unwrap();
    assert!(client.delete(b"key").unwrap());
    assert_eq!(client.get(b"key").unwrap(), None);
    client.wait().unwrap();
    // A value that the client has seen is newer than a location that arrives later. A quick server
    // replies before the other client's set, which a relaxed client may then miss.
    loop {
        client.post(&change(Mode::Set, b"key"), &first).unwrap();
        let Some((_, outcome)) = client.poll().unwrap() else {
            break;
        };
        assert!(is_stored(&outcome), "{outcome:?}");
        assert!(client.delete(b"key").unwrap());
    }
    while other.get(b"key").unwrap().is_none() {
        std::hint::spin_loop();
    }
    other.set(b"key", 0, 0, &second).unwrap();
    assert_eq!(value_of(client.get(b"key").unwrap()), Some(second.clone()));
    while client.wait().unwrap().is_some() {}
    assert_eq!(value_of(client.get(b"key").unwrap()), Some(second));
}

#[test]
fn a_failed_change_does_not_stop_the_others() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    client.set(b"there", 0, 0, b"old").unwrap();
    let (huge, most) = (vec![1; 2 << 20], vec![1; (1 << 20) - 50]);
    let values: Vec<Vec<u8>> = (0..3).map(|n| vec![n; 50_000]).collect();
    let changes: Vec<(Change<'_>, &[u8])> = vec![
        (change(Mode::Set, b"a"), &values[0]),
        (change(Mode::Set, b""), b""),
        (change(Mode::Add, b"there"), &values[1]),
        (change(Mode::Replace, b"a"), &huge),
        (change(Mode::Compare, b"none"), b""),
        (change(Mode::Set, b"there"), &most),
        (change(Mode::Set, &[b'k'; 251]), b""),
        (change(Mode::Append, b"a"), &values[1]),
        (change(Mode::Set, b"there"), &huge),
        (change(Mode::Prepend, b"a"), &values[2]),
    ];
    // A change that was posted before stays for the caller to poll.
    let before = client.post(&change(Mode::Set, b"before"), b"1").unwrap();
    let mut outcomes = Vec::new();
    client
        .store_many(&changes, |n, outcome| {
            assert_eq!(n, outcomes.len());
            outcomes.push(outcome);
        })
        .unwrap();
    let (ticket, outcome) = client.wait().unwrap().unwrap();
    assert!(ticket == before && is_stored(&outcome));
    assert!(client.wait().unwrap().is_none());
    let expected = [
        "stored", "key", "not", "large", "found", "large", "key", "stored", "large", "stored",
    ];
    let what = |outcome: &Result<Stored, ClientError>| match outcome {
        Ok(Stored::Stored { .. }) => "stored",
        Ok(Stored::NotStored) => "not",
        Ok(Stored::Exists) => "exists",
        Ok(Stored::NotFound) => "found",
        Err(ClientError::Key(_)) => "key",
        Err(ClientError::TooLarge { .. }) => "large",
        Err(error) => panic!("{error}"),
    };
    assert_eq!(outcomes.iter().map(what).collect::<Vec<_>>(), expected);
    let all = [&values[2][..], &values[0], &values[1]].concat();
    assert!(client.get(b"a").unwrap().unwrap().data == all);
    assert_eq!(client.get(b"there").unwrap(), None);
}

#[test]
fn store_many_makes_all_changes_in_one_batch() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    let keys: Vec<String> = (0..700).map(|n| format!("key {n}")).collect();
    let values: Vec<Vec<u8>> = (0..700).map(bytes).collect();
    let changes: Vec<_> = (0..700)
        .map(|n| (change(Mode::Set, keys[n].as_bytes()), &values[n][..]))
        .collect();
    let mut told = 0;
    let each = |n, outcome| {
        assert!(n == told && is_stored(&outcome), "{n}: {outcome:?}");
        told += 1;
    };
    client.store_many(&changes, each).unwrap();
    assert_eq!(told, 700);
    for (change, value) in changes.iter().rev().take(50) {
        assert!(client.get(change.key).unwrap().unwrap().data == *value);
    }
    client.store_many(&[], |_, _| panic!("none")).unwrap();
}

/// A server that the calling thread runs, and an accepted channel to it.
pub(super) fn still_server() -> (Server<TestNetwork, TestListener>, TestNetwork, Channel) {
    let (network, listener) = (TestNetwork::new(), TestListener::new());
    let store = network.store(Limits::DEFAULT);
    let mut server = Server::new(network.clone(), listener.clone(), alone(store));
    let [here, there] = network.at(1).channel(&network);
    listener.connect(there);
    server.accept().unwrap();
    (server, network.at(1), here)
}

/// Runs `act` on another thread while this one serves; returns its result.
pub(super) fn served<T: Send>(
    server: &mut Server<TestNetwork, TestListener>,
    act: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(act);
        while !acting.is_finished() {
            server.serve_all();
        }
        acting.join().unwrap()
    })
}

/// Posts more than the ring holds to an idle server, which then serves all.
#[test]
fn neither_side_waits_for_a_full_ring() {
    let (mut server, network, channel) = still_server();
    let mut client = served(&mut server, || {
        crate::Client::over(network, channel).unwrap()
    });
    for round in 0..5u8 {
        let mut posted = 0;
        let value = vec![round; INLINE_LIMIT];
        while client.post(&change(Mode::Set, &[posted]), &value).is_ok() {
            posted += 1;
        }
        // Requests beyond the ring wait in the client.
        assert!((20..=WINDOW).contains(&posted.into()), "{posted}");
        assert!(client.poll().unwrap().is_none());
        for _ in 0..posted {
            let outcome = loop {
                match client.poll().unwrap() {
                    Some((_, outcome)) => break outcome,
                    None => drop(server.serve_all()),
                }
            };
            assert!(is_stored(&outcome));
        }
        assert!(client.poll().unwrap().is_none());
        assert!(client.get(&[posted - 1]).unwrap().unwrap().data == value);
    }
}

/// A client that does not poll fills its window only, and does not block the server.
#[test]
fn unpolled_outcomes_fill_only_the_window() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    let mut posted = 0;
    while client.post(&change(Mode::Set, b"key"), b"value").is_ok() {
        posted += 1;
    }
    assert_eq!(posted, WINDOW);
    client.set(b"key", 0, 0, b"other").unwrap();
    assert!(matches!(
        client.post(&change(Mode::Set, b"key"), b"value"),
        Err(ClientError::WindowFull)
    ));
    for _ in 0..WINDOW {
        assert!(is_stored(&client.poll().unwrap().unwrap().1));
    }
    assert!(client.poll().unwrap().is_none());
    assert_eq!(client.get(b"key").unwrap().unwrap().data, b"other");
}

/// A client dies with requests in flight, before the server answers all. The store loses no memory.
#[test]
fn a_client_that_dies_with_requests_in_flight_leaks_no_memory() {
    let (mut server, network, mut channel) = still_server();
    for round in 0..100usize {
        let mut client = served(&mut server, || {
            let mut client = crate::Client::over(network.clone(), channel).unwrap();
            // Enlarges the staging region for all later values.
            let large = vec![1; 60_000];
            let changes = [(change(Mode::Set, b"large"), &large[..]); 9];
            client.store_many(&changes, |_, _| {}).unwrap();
            client
        });
        for n in 0..round % WINDOW {
            let mode = [Mode::Set, Mode::Add, Mode::Append, Mode::Replace][(round + n) % 4];
            let value = vec![n as u8; [10, 3000, 20_000, 60_000][n * round % 4]];
            if client.post(&change(mode, &[n as u8 % 10]), &value).is_err() {
                break;
            }
        }
        let _ = client.poll().unwrap();
        drop(client);
        match round % 3 {
            // The server learns of the death before it reads a request.
            0 => {}
            1 => drop(server.serve_all()),
            _ => while server.serve_all() {},
        }
        server.clients.clear();
        let [here, there] = network.channel(&network.at(0));
        server.listener.connect(there);
        server.accept().unwrap();
        channel = here;
    }
    let store = server.service.backend.store.clone();
    store.with(Store::flush).unwrap();
    store.with(|store| store.set_may_evict(false));
    // One or two segments are kept for cleaning.
    let memory = Limits::DEFAULT.memory as u32;
    for n in 0..memory * 9 / 10 / 11_000 {
        store.set(&n.to_le_bytes(), 0, 0, &[1; 10_000]).unwrap();
    }
}
