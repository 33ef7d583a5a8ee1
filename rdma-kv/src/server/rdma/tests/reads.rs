//! One-sided gets beside sets, and their reports.

use super::*;

/// Bytes from which [`assert_whole`] detects a torn value.
pub(super) fn self_describing(key: u8, round: u32, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    for (n, chunk) in value.chunks_mut(8).enumerate() {
        let word = u64::from(key) << 56 ^ u64::from(round) << 24 ^ n as u64 ^ len as u64;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    value
}

pub(super) fn assert_whole(key: u8, round: u32, value: &[u8]) {
    assert!(
        value == self_describing(key, round, value.len()),
        "torn value of key {key}"
    );
}

/// Readers and writers over few keys and little memory, so that memory is reused continually.
#[test]
fn readers_never_see_a_torn_value() {
    let cluster = Cluster::start(Limits {
        memory: 2 << 20,
        item: 1 << 20,
    });
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..3u32)
            .map(|node| {
                let mut client = cluster.client(node);
                scope.spawn(move || {
                    for round in 0..3000u32 {
                        let key = (round % 5) as u8;
                        let len = [8, 100, 1000, 5000, 100_000][(round / 7 % 5) as usize];
                        let value = self_describing(key, round, len);
                        client.set(&[key], round, 0, &value).unwrap();
                        if round % 11 == 0 {
                            client.delete(&[key]).unwrap();
                        }
                    }
                })
            })
            .collect();
        for node in 3..5 {
            let (mut client, done) = (cluster.client(node), done.clone());
            scope.spawn(move || {
                let mut into = vec![0; 100_000];
                while !done.load(Ordering::Relaxed) {
                    for key in 0..5u8 {
                        client
                            .get_with(&[key], |v| assert_whole(key, v.flags, v.data))
                            .unwrap();
                        if let Some((round, len)) = client.get_into(&[key], &mut into).unwrap() {
                            assert_whole(key, round, &into[..len]);
                        }
                    }
                }
                assert!(client.stats().cached > 0, "{:?}", client.stats());
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Items with one-sided gets outlive unread items, and the gets are counted.
#[test]
fn one_sided_gets_keep_items() {
    let limits = Limits {
        memory: 4 << 20,
        item: 64 << 10,
    };
    let cluster = Cluster::start(limits);
    let mut client = cluster.client(1);
    let key = |n: u32| format!("used {n}").into_bytes();
    for n in 0..100 {
        client.set(&key(n), 0, 0, &[1; 1000]).unwrap();
    }
    for n in 0..10_000u32 {
        for m in 0..8 {
            assert!(client.get(&key((n * 8 + m) % 100)).unwrap().is_some());
        }
        client.set(&n.to_le_bytes(), 0, 0, &[2; 1000]).unwrap();
    }
    let counters = cluster.store.with(|store| store.counters());
    assert!(counters.evictions > 5000, "{counters:?}");
    let (gets, hits) = (counters.one_sided_gets, counters.one_sided_hits);
    assert!(
        gets == hits && (70_000..=80_000).contains(&gets),
        "{counters:?}"
    );
}

/// One key is read one-sided, one is got by text, and many are read a little.
#[test]
fn most_used_includes_one_sided_and_text_gets() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    for n in 0..2000u32 {
        cluster.store.set(&n.to_le_bytes(), 0, 0, b"value").unwrap();
    }
    for key in [&b"read"[..], b"by text\n"] {
        client.set(key, 0, 0, b"value").unwrap();
    }
    for n in 0..4000u32 {
        assert!(client.get(b"read").unwrap().is_some());
        assert!(client.get(&(n % 2000).to_le_bytes()).unwrap().is_some());
        if n % 4 == 0 {
            assert!(value(&cluster.store, b"by text\n").is_some());
        }
    }
    client.report_and_wait().unwrap();
    let most = client.most_used(2).unwrap();
    let keys: Vec<&str> = most.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["read", "by%20text%0A"]);
    // Counters hold eight seconds of uses, and clients report one of four reads.
    let [read, by_text] = [most[0].1 * 8.0, most[1].1 * 8.0];
    assert!((3000.0..5000.0).contains(&read), "{read}");
    assert!((900.0..=1000.0).contains(&by_text), "{by_text}");
    client.delete(b"read").unwrap();
    assert_eq!(client.most_used(1).unwrap()[0].0, "by%20text%0A");
}

#[test]
fn an_invalid_report_of_uses_is_harmless() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    client.set(b"key", 0, 0, b"value").unwrap();
    let location = cluster.store.set(b"other", 0, 0, b"value").unwrap();
    let mut channel = cluster.channel(2);
    let mut packet = Vec::new();
    let mut send = |request: &Request<'_>| {
        packet.clear();
        encode_request(&mut packet, 0, request);
        channel.send(&[&packet]).unwrap();
    };
    send(&Request::Hello { version: VERSION });
    let slots = (0..16).chain([u32::MAX, u32::MAX / 8, location.slot.0]);
    let words = [0, 1, u64::MAX, location.word.0];
    let uses = slots.flat_map(|slot| {
        words.map(|word| {
            let (slot, word) = (Slot(slot), SlotWord(word));
            let times = u32::MAX;
            Use { slot, times, word }.pack()
        })
    });
    let uses: Vec<PackedUse> = uses.collect();
    let (gets, hits) = (1, u32::MAX);
    send(&Request::Used {
        gets,
        hits,
        uses: &uses,
    });
    // Without gets, which the client would report as well.
    while cluster.store.with(|store| store.counters()).one_sided_gets == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        cluster.store.with(|store| store.counters()).one_sided_hits,
        1
    );
    assert_eq!(client.get(b"key").unwrap().unwrap().data, b"value");
}
