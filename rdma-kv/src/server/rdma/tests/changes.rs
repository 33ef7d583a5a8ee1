//! Changes by messages, compared with the same changes by memcached's protocol.

use super::*;
use crate::protocol::change::Stored;
use crate::protocol::messages::Refusal;
use crate::text::{Conversation, Next};

/// The server's answer to `input`, which is complete.
fn say(conversation: &mut Conversation, store: &Shared, mut input: &[u8]) -> String {
    let mut replies = Vec::new();
    loop {
        match conversation.run(store, &mut replies).unwrap() {
            Next::Read if input.is_empty() => return String::from_utf8(replies).unwrap(),
            Next::Read => {
                let room = conversation.room();
                let count = room.len().min(input.len());
                room[..count].copy_from_slice(&input[..count]);
                conversation.received(count);
                input = &input[count..];
            }
            Next::Continue => {}
            Next::Close | Next::Watch => panic!("closed after {replies:?}"),
        }
    }
}

/// An operation of both protocols.
#[derive(Debug)]
enum Command {
    Store(&'static str, u64),
    Count(&'static str, u64),
    Delete,
    Touch(i64),
    Gat(i64),
    Gets,
    Flush(i64),
}

/// The operation that a random number selects.
fn any_command(random: u64) -> Command {
    let modes = ["set", "add", "replace", "append", "prepend", "cas"];
    let cas = random >> 40 & 63;
    match random % 16 {
        mode @ 0..6 => Command::Store(modes[mode as usize], cas),
        6 => Command::Count("incr", 7),
        7 => Command::Count("decr", 40),
        8 => Command::Count("incr", u64::MAX),
        9 => Command::Delete,
        10 => Command::Touch([0, 100, -1][cas as usize % 3]),
        11 => Command::Gat([0, 100][cas as usize % 2]),
        12 if cas == 0 => Command::Flush(0),
        12 if cas == 1 => Command::Flush(5),
        _ => Command::Gets,
    }
}

/// The same operation in memcached's words.
fn words(command: &Command, key: &str, flags: u32, value: &[u8]) -> Vec<u8> {
    let len = value.len();
    let line = match command {
        Command::Store("cas", cas) => format!("cas {key} {flags} 0 {len} {cas}\r\n"),
        Command::Store(mode, _) => format!("{mode} {key} {flags} 0 {len}\r\n"),
        Command::Count(name, delta) => format!("{name} {key} {delta}\r\n"),
        Command::Delete => format!("delete {key}\r\n"),
        Command::Touch(exptime) => format!("touch {key} {exptime}\r\n"),
        Command::Gat(exptime) => format!("gats {exptime} {key}\r\n"),
        Command::Gets => format!("gets {key}\r\n"),
        Command::Flush(delay) => format!("flush_all {delay}\r\n"),
    };
    match command {
        Command::Store(..) => [line.as_bytes(), value, b"\r\n"].concat(),
        _ => line.into_bytes(),
    }
}

/// Carries an operation out by messages; returns memcached's answer to it.
fn answer(
    client: &mut crate::Client<TestNetwork>,
    command: &Command,
    key: &str,
    flags: u32,
    value: &[u8],
) -> String {
    let name = key;
    let key = key.as_bytes();
    let shown = |value: Option<crate::Value>| {
        let value = value.map(|crate::Value { flags, cas, data }| {
            let (len, text) = (data.len(), String::from_utf8(data).unwrap());
            format!("VALUE {name} {flags} {len} {cas}\r\n{text}\r\n")
        });
        value.unwrap_or_default() + "END"
    };
    let stored = match *command {
        Command::Store("set", _) => client.set(key, flags, 0, value).map(|()| None),
        Command::Store("add", _) => client.add(key, flags, 0, value).map(Some),
        Command::Store("replace", _) => client.replace(key, flags, 0, value).map(Some),
        Command::Store("append", _) => client.append(key, value).map(Some),
        Command::Store("prepend", _) => client.prepend(key, value).map(Some),
        Command::Store(_, cas) => client.compare_and_set(key, flags, 0, value, cas).map(Some),
        Command::Count(verb, delta) => {
            let counted = match verb {
                "incr" => client.increment(key, delta),
                _ => client.decrement(key, delta),
            };
            return match counted {
                Ok(Some(number)) => format!("{number}\r\n"),
                Ok(None) => "NOT_FOUND\r\n".to_owned(),
                Err(ClientError::Refused(refusal @ Refusal::NotANumber)) => {
                    format!("CLIENT_ERROR {refusal}\r\n")
                }
                Err(error) => panic!("{error}"),
            };
        }
        Command::Delete => {
            let [yes, no] = ["DELETED", "NOT_FOUND"];
            return format!("{}\r\n", if client.delete(key).unwrap() { yes } else { no });
        }
        Command::Touch(exptime) => {
            let [yes, no] = ["TOUCHED", "NOT_FOUND"];
            let touched = client.touch(key, exptime).unwrap();
            return format!("{}\r\n", if touched { yes } else { no });
        }
        Command::Gat(exptime) => {
            return shown(client.get_and_touch(key, exptime).unwrap()) + "\r\n";
        }
        Command::Gets => return shown(client.get(key).unwrap()) + "\r\n",
        Command::Flush(delay) => {
            client.flush_all(delay).unwrap();
            return "OK\r\n".to_owned();
        }
    };
    let word = match stored.unwrap() {
        None | Some(Stored::Stored { .. }) => "STORED",
        Some(Stored::NotStored) => "NOT_STORED",
        Some(Stored::Exists) => "EXISTS",
        Some(Stored::NotFound) => "NOT_FOUND",
    };
    format!("{word}\r\n")
}

/// Counters of commands in `stats`, except those that differ: a reader counts an expired item as
/// absent, and messages are not bytes of a connection.
fn told_of_commands(stats: &str) -> Vec<&str> {
    let counts = [
        "cmd_", "get_", "delete_", "incr_", "decr_", "cas_", "touch_", "store_",
    ];
    let is_one = |line: &&str| counts.iter().any(|count| line[5..].starts_with(count));
    let lines = stats.lines().filter(|line| line.starts_with("STAT "));
    let lines = lines.filter(is_one);
    lines.filter(|line| !line.contains("get_expired")).collect()
}

/// Two stores get the same changes, one by messages and one by memcached's protocol: answers, cas
/// numbers and counters are the same.
#[test]
fn messages_and_commands_have_the_same_effect() {
    let limits = Limits {
        memory: 16 << 20,
        item: 1 << 20,
    };
    let cluster = Cluster::start(limits);
    let other = crate::testing::shared(limits);
    let mut client = cluster.client(1);
    let mut conversation = Conversation::default();
    let mut random = 5u64;
    for n in 0..4000u32 {
        random = crate::protocol::hash::hash(random, b"next");
        let key = ["a", "b", "c", "d"][(random >> 8) as usize % 4];
        let flags = n % 3;
        let value = match random >> 16 & 7 {
            0..4 => (random >> 20 & 0xfff).to_string().into_bytes(),
            4 | 5 => vec![b'v'; (random >> 20 & 0x7f) as usize],
            6 => vec![b'w'; INLINE_LIMIT + (random >> 20 & 0xfff) as usize],
            _ => Vec::new(),
        };
        let command = any_command(random >> 32);
        let said = say(
            &mut conversation,
            &other,
            &words(&command, key, flags, &value),
        );
        let answered = answer(&mut client, &command, key, flags, &value);
        assert!(
            said == answered,
            "{n}: {command:?}: {said:?} != {answered:?}"
        );
        if n % 100 == 0 {
            for store in [&cluster.store, &other] {
                store.tick(n as u64 / 100).unwrap();
            }
        }
    }
    let left = [&cluster.store, &other].map(|store| store.with(|store| store.counters()));
    assert_eq!(left[0].bytes, left[1].bytes);
    assert_eq!(left[0].total_items, left[1].total_items);

    let large = vec![b'x'; limits.item as usize + 1];
    for name in ["set", "append"] {
        let command = Command::Store(name, 0);
        say(&mut conversation, &other, &words(&command, "a", 0, &large));
        let refused = match name {
            "set" => client.set(b"a", 0, 0, &large).map(|()| Stored::NotStored),
            _ => client.append(b"a", &large),
        };
        assert!(matches!(refused, Err(ClientError::TooLarge { .. })));
    }
    client.report().unwrap();
    let mut stats = Vec::new();
    client.say(1, b"stats\r\n", &mut stats).unwrap();
    let by_messages = String::from_utf8(stats).unwrap();
    let by_text = say(&mut conversation, &other, b"stats\r\n");
    let counts = [&by_messages, &by_text].map(|stats| told_of_commands(stats));
    assert_eq!(counts[0], counts[1]);
    let untold = counts[0].iter().filter(|line| line.ends_with(" 0")).count();
    assert_eq!(
        untold, 4,
        "meta commands, flushed items and want of memory apart: {:?}",
        counts[0]
    );
}

#[test]
fn forbidden_messages_are_refused() {
    let rules = Rules {
        flush_all: false,
        ..Rules::default()
    };
    let cluster = Cluster::hosting(Limits::DEFAULT, ServerState::new(rules));
    cluster.store.set(b"key", 0, 0, b"value").unwrap();
    let mut client = cluster.client(1);
    let refused = client.flush_all(0);
    assert!(matches!(
        refused,
        Err(ClientError::Refused(Refusal::Forbidden))
    ));
    assert!(client.get(b"key").unwrap().is_some());
}

/// A value over the limit: a failed set removes the old value, all other changes keep it.
#[test]
fn too_large_values_change_nothing_except_by_a_set() {
    let cluster = Cluster::start(Limits::DEFAULT);
    let mut client = cluster.client(1);
    let too_large = |outcome| matches!(outcome, Err(ClientError::TooLarge { .. }));
    for len in [(1 << 20) - 50, 3 << 20] {
        let value = vec![0; len];
        client.set(b"key", 0, 0, b"old").unwrap();
        let cas = client.get(b"key").unwrap().unwrap().cas;
        assert!(too_large(client.replace(b"key", 0, 0, &value)));
        assert!(too_large(client.compare_and_set(b"key", 0, 0, &value, cas)));
        assert!(too_large(client.add(b"new", 0, 0, &value)));
        assert_eq!(client.get(b"key").unwrap().unwrap().data, b"old");
        assert!(too_large(
            client.set(b"key", 0, 0, &value).map(|()| Stored::NotStored)
        ));
        assert_eq!(client.get(b"key").unwrap(), None);
    }
}

/// Answers a client's greeting correctly, and each later packet with these bytes.
fn answer_with(channel: &mut Channel, store: &Shared, answer: &[u8], done: &AtomicBool) {
    let (mut packet, mut reply) = (Vec::new(), Vec::new());
    let welcome = Reply::Welcome(store.geometry().unwrap());
    crate::protocol::messages::encode_reply(&mut reply, 1, &welcome);
    while !done.load(Ordering::Relaxed) {
        while channel.receive(&mut packet).unwrap() {
            channel.send(&[&reply]).unwrap();
            reply = answer.to_vec();
        }
        std::thread::yield_now();
    }
}

/// An invalid answer to the second request fails this request and all later ones.
#[test]
fn invalid_replies_of_a_server_are_errors() {
    use crate::protocol::messages::{GetValue, encode_reply};
    let network = TestNetwork::new();
    let store = network.store(Limits::DEFAULT);
    let location = store.set(b"key", 0, 0, b"value").unwrap();
    let encoded = |number, reply: Reply<'_>| {
        let mut packet = Vec::new();
        encode_reply(&mut packet, number, &reply);
        packet
    };
    let value = Reply::Value {
        flags: 0,
        cas: 0,
        location,
        value: GetValue::Staged { len: u32::MAX },
    };
    let stored = encoded(2, Reply::Stored(Stored::NotStored));
    let answers = [
        vec![0xff; 100],
        vec![0; 4],
        stored[..stored.len() - 1].to_vec(),
        encoded(1, Reply::Done),
        encoded(3, Reply::Done),
        encoded(2, value),
        encoded(2, Reply::Counted { value: 1, location }),
    ];
    for answer in answers {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let [here, mut there] = network.at(1).channel(&network);
            let (store, done, answer) = (&store, &done, &answer);
            scope.spawn(move || answer_with(&mut there, store, answer, done));
            let mut client = crate::Client::over(network.at(1), here).unwrap();
            let change = Change::set(b"key", false);
            client.post(&change, b"posted").unwrap();
            let outcome = client.wait();
            assert!(
                matches!(outcome, Err(ClientError::Protocol)),
                "{outcome:?} of {answer:?}"
            );
            for _ in 0..2 {
                assert!(client.get_and_touch(b"key", 0).is_err());
                assert!(client.set(b"key", 0, 0, &[1; 10_000]).is_err());
            }
            done.store(true, Ordering::Relaxed);
        });
    }
    assert_eq!(crate::testing::value(&store, b"key").unwrap(), b"value");
}
