//! Conversations with a fresh server, byte by byte.

mod commands;

use super::*;
use crate::store::Limits;
use crate::testing;
use proptest::prelude::*;

/// Answers of a fresh server to `input` in pieces of these sizes, in turn.
fn converse(input: &[u8], pieces: &[usize]) -> (Vec<u8>, bool) {
    let store = testing::shared(Limits {
        memory: 2 << 20,
        item: 1 << 20,
    });
    let mut conversation = Conversation::default();
    let (mut replies, mut rest) = (Vec::new(), input);
    let mut pieces = pieces.iter().cycle();
    loop {
        let mut batch = Vec::new();
        let next = conversation.run(&store, &mut batch).unwrap();
        replies.extend(batch);
        match next {
            Next::Close | Next::Watch => return (replies, true),
            Next::Read if rest.is_empty() => return (replies, false),
            Next::Read => {
                let room = conversation.room();
                let count = room.len().min(rest.len()).min(*pieces.next().unwrap());
                assert!(count > 0);
                room[..count].copy_from_slice(&rest[..count]);
                conversation.received(count);
                rest = &rest[count..];
            }
            Next::Continue => {}
        }
    }
}

fn answers(input: &[u8]) -> String {
    String::from_utf8_lossy(&converse(input, &[usize::MAX]).0).into_owned()
}

#[test]
fn set_get_delete() {
    let input = b"set a 7 0 3\r\none\r\nget a\r\nget b a a b\r\ndelete a\r\ndelete a\r\nget a\r\n";
    let a = "VALUE a 7 3\r\none\r\n";
    let expected = format!("STORED\r\n{a}END\r\n{a}{a}END\r\nDELETED\r\nNOT_FOUND\r\nEND\r\n");
    assert_eq!(answers(input), expected);
}

#[test]
fn noreply_is_silent() {
    let input = b"set a 0 0 1 noreply\r\n1\r\nset a 0 0 1 noreply\r\n123\r\ndelete a noreply\r\n\
                  get a\r\ndelete a 0 noreply\r\n";
    // The bad chunk ends after three bytes; its rest is a command.
    assert_eq!(answers(input), "ERROR\r\nEND\r\n");
}

#[test]
fn errors_match_memcached() {
    let long = "k".repeat(251);
    let cases = [
        ("", ""),
        ("\r\n", "ERROR\r\n"),
        ("\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("get   \r\n", "ERROR\r\n"),
        ("GET a\r\n", "ERROR\r\n"),
        ("nonsense a b\r\n", "ERROR\r\n"),
        (
            &format!("get a {long}\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            &format!("set {long} 0 0 1\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            &format!("delete {long}\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("set a 0 0\r\n", "ERROR\r\n"),
        ("set a 0 0 1 noreply x\r\n", "ERROR\r\n"),
        (
            "set a x 0 1\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a -1 0 1\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a 0 0 -1\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a 0 0 2147483646\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("set a 0 0 1\r\n12\n", "CLIENT_ERROR bad data chunk\r\n"),
        (
            "set a 0 0 1x\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("delete\r\n", "ERROR\r\n"),
        ("delete a b c d\r\n", "ERROR\r\n"),
        (
            "delete a 1\r\n",
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
        ),
        ("delete a 0\r\n", "NOT_FOUND\r\n"),
        ("version\n", std::str::from_utf8(VERSION).unwrap()),
        ("get a\0b\r\n", "END\r\n"),
    ];
    for (input, expected) in cases {
        assert_eq!(answers(input.as_bytes()), expected, "{input:?}");
    }
}

#[test]
fn a_value_over_the_limit_is_dropped_and_the_old_value_removed() {
    let mut input = b"set a 0 0 1\r\n1\r\nset a 0 0 2000000\r\n".to_vec();
    input.resize(input.len() + 2_000_000, b'\n');
    input.extend_from_slice(b"\r\nget a\r\n");
    let expected = "STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n";
    assert_eq!(answers(&input), expected);
}

/// Sends `text` to a conversation; returns the answer.
fn say(store: &Shared, conversation: &mut Conversation, mut text: &[u8]) -> String {
    let mut replies = Vec::new();
    while !text.is_empty() {
        let room = conversation.room();
        let count = room.len().min(text.len());
        room[..count].copy_from_slice(&text[..count]);
        conversation.received(count);
        text = &text[count..];
        while conversation.run(store, &mut replies).unwrap() == Next::Continue {}
    }
    String::from_utf8(replies).unwrap()
}

/// Values of 64 KiB were once copied under the store's lock. On a busy machine a thread was
/// descheduled during the copy, and all others waited.
#[test]
fn long_values_are_copied_without_the_lock() {
    let store = testing::shared(Limits::DEFAULT);
    let (long, short) = (vec![b'l'; 65_536], vec![b's'; 1000]);
    store.set(b"long", 0, 0, &long).unwrap();
    store.set(b"short", 0, 0, &short).unwrap();
    let mut conversation = Conversation::default();
    let mut replies = Vec::new();
    let mut turn = Turn {
        store: &store,
        slot: &conversation.slot,
        rest: b"",
        permit: &mut None,
        replies: &mut replies,
        noreply: false,
    };
    let mut keys = Tokens(b"short long short");
    let getting = GetOptions::default();
    let pinned = store.with(|store| turn.get_to_long(store, &mut keys, getting).unwrap());
    let pinned = pinned.expect("a long value");
    assert_eq!(keys.0, b" short");
    assert!(turn.replies.ends_with(b"VALUE long 0 65536\r\n"));
    assert!(turn.replies.len() < 1100);
    // The pinned value stays unchanged when its key is set.
    store.set(b"long", 0, 0, b"other").unwrap();
    classic::append_pinned(&pinned, &store, turn.replies).unwrap();
    assert!(turn.replies.ends_with(&[&long[..], b"\r\n"].concat()));
    store.set(b"long", 0, 0, &long).unwrap();
    let text = b"get long short\r\nmg long v\r\nmg short v\r\n";
    let [long, short] = [long, short].map(|value| String::from_utf8(value).unwrap());
    let expected = format!(
        "VALUE long 0 65536\r\n{long}\r\nVALUE short 0 1000\r\n{short}\r\nEND\r\n\
         VA 65536\r\n{long}\r\nVA 1000\r\n{short}\r\n"
    );
    assert!(say(&store, &mut conversation, text) == expected);
}

/// A thousand connections, each with most of a value, once took nearly a thousand megabytes,
/// regardless of `-m`.
#[test]
fn incomplete_values_are_refused_beyond_the_receive_budget() {
    const LEN: usize = 1_000_000;
    let store = testing::shared(Limits {
        memory: 16 << 20,
        item: 1 << 20,
    });
    store.set(b"k", 0, 0, b"old").unwrap();
    let part = vec![b'v'; LEN * 9 / 10];
    let mut open: Vec<_> = (0..100).map(|_| Conversation::default()).collect();
    for (number, conversation) in open.iter_mut().enumerate() {
        let line = match number % 2 {
            0 => format!("set k 0 0 {LEN}\r\n"),
            _ => format!("ms k {LEN}\r\n"),
        };
        let answer = say(&store, conversation, line.as_bytes());
        // A quarter of the memory has room for four.
        let refused = "SERVER_ERROR out of memory storing object\r\n";
        assert_eq!(answer, if number < 4 { "" } else { refused });
        assert_eq!(say(&store, conversation, &part), "");
    }
    let kept = open
        .iter_mut()
        .map(|conversation| conversation.input().capacity());
    let kept = kept.sum::<usize>();
    assert!(kept < (4 << 20) + 100 * (32 << 10), "{kept}");
    // A refused set removes the old value, which its client believes replaced.
    let mut other = Conversation::default();
    assert_eq!(say(&store, &mut other, b"get k\r\n"), "END\r\n");
    // Short values need no permit, and a refused value is dropped to its end.
    let rest = [&part[..LEN / 10], b"\r\nset s 0 0 1\r\n1\r\n"].concat();
    assert_eq!(say(&store, &mut open[99], &rest), "STORED\r\n");
    assert_eq!(say(&store, &mut open[0], &rest), "STORED\r\nSTORED\r\n");
    // One value is stored and one connection ends, which frees two permits.
    open.remove(1);
    for (conversation, answer) in [(50, ""), (51, ""), (52, "SERVER")] {
        let rest = [&part[..LEN / 10], b"\r\nset k 0 0 1000000\r\n"].concat();
        let said = say(&store, &mut open[conversation], &rest);
        assert_eq!(said.get(..6).unwrap_or_default(), answer);
    }
}

#[test]
fn large_values_round_trip_and_the_buffer_shrinks() {
    let value = vec![b'v'; 1_000_000];
    let mut input = b"set a 0 0 1000000\r\n".to_vec();
    input.extend_from_slice(&value);
    input.extend_from_slice(b"\r\nget a\r\n");
    let (replies, _) = converse(&input, &[1460, 9000]);
    let expected = [
        b"STORED\r\nVALUE a 0 1000000\r\n",
        &value[..],
        b"\r\nEND\r\n",
    ]
    .concat();
    assert!(replies == expected);
}

/// A line of a megabyte that names a value of a megabyte again and again once made a reply
/// of half a terabyte, in memory.
#[test]
fn replies_of_a_long_get_come_in_batches() {
    let store = testing::shared(Limits {
        memory: 2 << 20,
        item: 1 << 20,
    });
    for (value_len, gets) in [(500_000, 40), (10, 100_000)] {
        store.set(b"k", 0, 0, &vec![b'v'; value_len]).unwrap();
        let mut conversation = Conversation::default();
        let input = format!("get{}\r\nversion\r\n", " k".repeat(gets));
        let mut input = input.as_bytes();
        let (mut batch, mut len, mut batches) = (Vec::new(), 0, 0);
        loop {
            let next = conversation.run(&store, &mut batch).unwrap();
            assert!(batch.len() < REPLIES + value_len + 100);
            (len, batches) = (len + batch.len(), batches + 1);
            match next {
                Next::Continue => batch.clear(),
                Next::Close | Next::Watch => panic!("closed"),
                Next::Read if input.is_empty() => break,
                Next::Read => {
                    batch.clear();
                    let count = std::io::Read::read(&mut input, conversation.room()).unwrap();
                    conversation.received(count);
                }
            }
        }
        let one = format!("VALUE k 0 {value_len}\r\n\r\n").len() + value_len;
        assert_eq!(len, one * gets + b"END\r\n".len() + VERSION.len());
        assert!(batch.ends_with(VERSION));
        assert!(batches > len / (REPLIES + value_len + 100));
    }
}

#[test]
fn a_dump_lists_each_item_in_batches_before_the_next_command() {
    let store = testing::shared(Limits::DEFAULT);
    let count = 20_000;
    for n in 0..count {
        let key = format!("{n} {}", "k".repeat(100));
        store.set(key.as_bytes(), 0, 0, b"").unwrap();
    }
    let mut conversation = Conversation::default();
    let input = b"lru_crawler metadump hash\r\nlru_crawler metadump 2,3\r\nversion\r\n";
    conversation.room()[..input.len()].copy_from_slice(input);
    conversation.received(input.len());
    let (mut batch, mut told) = (Vec::new(), Vec::new());
    while conversation.run(&store, &mut batch).unwrap() == Next::Continue {
        assert!(batch.len() < REPLIES + 20_000);
        told.append(&mut batch);
    }
    assert!(!told.is_empty() && batch.ends_with(VERSION));
    told.append(&mut batch);
    let told = String::from_utf8(told).unwrap();
    let (lines, rest) = told.split_once("END\r\n").unwrap();
    assert!(
        rest.starts_with("END\r\n"),
        "nothing is of the second class"
    );
    let numbers = lines.lines().map(|line| {
        let number = line.strip_prefix("key=").unwrap().split_once("%20k");
        number.unwrap().0.parse().unwrap()
    });
    let numbers: std::collections::BTreeSet<u32> = numbers.collect();
    assert_eq!(lines.lines().count(), count as usize);
    assert!(numbers.into_iter().eq(0..count));
}

#[test]
fn a_dump_shows_times_of_live_items_only() {
    let told = answers(
        b"set a 0 0 1\r\n1\r\nset b%c 0 2000000000 2\r\n12\r\nset d 0 -1 0\r\n\r\n\
          get a\r\nlru_crawler metadump 1\r\n",
    );
    let (_, dump) = told.split_once("END\r\n").unwrap();
    let mut lines: Vec<&str> = dump.strip_suffix("END\r\n").unwrap().lines().collect();
    lines.sort();
    let expected = [
        "key=a exp=-1 la=1700000000 cas=1 fetch=yes cls=1 size=61",
        "key=b%25c exp=2000000000 la=1700000000 cas=2 fetch=no cls=1 size=64",
    ];
    assert_eq!(lines, expected);
    let invalid = "BADCLASS invalid class id";
    commands::dialogue(&[
        ("lru_crawler metadump all", "END"),
        ("lru_crawler metadump", "ERROR"),
        ("lru_crawler metadump all x", "ERROR"),
        ("lru_crawler metadump x", invalid),
        ("lru_crawler metadump 64", invalid),
        ("lru_crawler disable", "OK"),
        (
            "lru_crawler metadump all",
            "CLIENT_ERROR lru crawler disabled",
        ),
    ]);
}

#[test]
fn quit_and_endless_lines_close_but_long_gets_are_refused() {
    assert_eq!(converse(b"quit\r\nversion\r\n", &[100]), (vec![], true));
    assert_eq!(converse(&[b'x'; 2049], &[100]), (vec![], true));
    assert_eq!(converse(&[b'x'; 2048], &[100]), (vec![], false));
    let mut keys = b"get ".to_vec();
    keys.resize(500_000, b' ');
    keys.extend_from_slice(b"a\r\n");
    assert_eq!(converse(&keys, &[4000]), (b"END\r\n".to_vec(), false));
    keys.truncate(400_000);
    keys.resize(2 << 20, b' ');
    keys.extend_from_slice(b"\nmn\r\n");
    let refused = b"SERVER_ERROR out of memory writing get response\r\nMN\r\n";
    assert_eq!(converse(&keys, &[4000]), (refused.to_vec(), false));
}

fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&'static [u8]> = vec![
        b"get ",
        b"set ",
        b"delete ",
        b"quit",
        b"version",
        b"a",
        b" b ",
        b" 0 0 ",
        b"1",
        b"3",
        b"\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"noreply",
        b"\0",
        b"-1",
        b"99999999999999999999",
        b"set a 1 0 3\r\nabc\r\n",
        b"set b 0 0 0\r\n\r\n",
        b"get a b\r\n",
        b"delete a\r\n",
        b"set a 0 0 2000000 noreply\r\n",
        b"set b 0 -1 1\r\nx\r\n",
    ];
    let word = prop_oneof![
        8 => prop::sample::select(words).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..8),
        1 => (0usize..300).prop_map(|n| vec![b'k'; n]),
    ];
    prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn replies_do_not_depend_on_the_pieces_of_the_input(
        input in fragments(),
        pieces in prop::collection::vec(1usize..50, 1..20),
    ) {
        prop_assert_eq!(converse(&input, &pieces), converse(&input, &[usize::MAX]));
    }
}
