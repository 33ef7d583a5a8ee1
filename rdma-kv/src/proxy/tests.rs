//! A proxy over a real server, without an agent.

use std::sync::Mutex;

use proptest::prelude::*;

use super::getting::{Getting, get};
use super::*;
use crate::protocol::layout::ItemHeader;
use crate::server::Cluster;
use crate::store::Limits;
use crate::testing::{self, TestNetwork};
use crate::text;
use crate::text::input::Tokens;

/// A server, and a pool of clients to it.
struct Proxied {
    cluster: Arc<Mutex<Option<Cluster>>>,
    pool: Arc<ClientPool<TestNetwork>>,
}

impl Proxied {
    fn new(threads: usize) -> Self {
        let cluster = Cluster::start(LIMITS);
        let first = cluster.client(1);
        let cluster = Arc::new(Mutex::new(Some(cluster)));
        let server = Arc::clone(&cluster);
        let connect = move || match &*server.lock().unwrap() {
            Some(cluster) => Ok(cluster.client(1)),
            None => Err(ClientError::NoServer("blue".to_owned()).into()),
        };
        let pool = Arc::new(ClientPool::new(threads, connect, first));
        Proxied { cluster, pool }
    }

    fn conversation(&self, thread: usize) -> ProxyConversation<UpstreamSession<TestNetwork>> {
        ProxyConversation::new(UpstreamSession::new(Arc::clone(&self.pool), thread))
    }

    fn store(&self) -> crate::store::shared::Shared {
        self.cluster.lock().unwrap().as_ref().unwrap().store.clone()
    }

    /// Ends the server, and starts another one if `again`.
    fn replace(&self, again: bool) {
        let mut cluster = self.cluster.lock().unwrap();
        *cluster = None;
        *cluster = again.then(|| Cluster::start(LIMITS));
    }
}

const LIMITS: Limits = Limits {
    memory: 16 << 20,
    item: 1 << 20,
};

/// Sends `text` in pieces of these lengths; returns the replies, and whether the conversation has
/// ended.
fn say(
    conversation: &mut impl Converse,
    text: &[u8],
    mut pieces: impl Iterator<Item = usize>,
) -> (String, bool) {
    let (mut replies, mut rest) = (Vec::new(), text);
    let mut batch = Vec::new();
    loop {
        let next = conversation.run(&mut batch).unwrap();
        replies.append(&mut batch);
        match next {
            Next::Close | Next::Watch => {
                return (String::from_utf8_lossy(&replies).into_owned(), true);
            }
            Next::Continue => continue,
            Next::Read if rest.is_empty() => {
                return (String::from_utf8_lossy(&replies).into_owned(), false);
            }
            Next::Read => {}
        }
        let room = conversation.room();
        let most = pieces.next().unwrap_or(usize::MAX);
        let len = most.clamp(1, room.len()).min(rest.len());
        let (now, later) = rest.split_at(len);
        room[..len].copy_from_slice(now);
        conversation.received(len);
        rest = later;
    }
}

fn say_at_once(conversation: &mut impl Converse, text: &str) -> String {
    say(conversation, text.as_bytes(), std::iter::empty()).0
}

/// A conversation without a proxy.
struct Direct {
    conversation: text::Conversation,
    store: crate::store::shared::Shared,
}

impl Converse for Direct {
    fn logged_in(&self, _: bool) {}

    fn is_idle(&self) -> bool {
        true
    }

    fn input(&mut self) -> &mut Input {
        self.conversation.input()
    }

    fn room(&mut self) -> &mut [u8] {
        self.conversation.room()
    }

    fn received(&mut self, count: usize) {
        self.conversation.received(count);
    }

    fn run(&mut self, replies: &mut Vec<u8>) -> io::Result<Next> {
        Ok(self.conversation.run(&self.store, replies).unwrap())
    }
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (0..6u8).prop_map(|n| format!("k{n}")),
        1 => Just("k".repeat(251)),
        1 => Just("  k1".to_owned()),
    ]
}

/// Valid and invalid commands.
fn command() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        4 => (0..40usize).prop_map(|len| vec![b'1'; len]),
        // If no value is stored, these bytes are a line. Whether a line between these lengths ends
        // the connection depends on its pieces.
        1 => prop_oneof![0..1900usize, 17_000..70_000usize].prop_map(|len| vec![b'v'; len]),
        1 => Just(b"get k1\r\nquit".to_vec()),
    ];
    let update = (key(), value, -2..3i64, any::<bool>(), 0..8usize);
    let update = update.prop_map(|(key, value, more, noreply, kind)| {
        let len = value.len() as i64 + more.min(0);
        let noreply = if noreply { " noreply" } else { "" };
        let verbs = ["set", "set", "set", "add", "append", "replace", "ms", "cas"];
        let line = match verbs[kind] {
            "ms" => format!("ms {key} {len} F5 c\r\n"),
            "cas" => format!("cas {key} 0 0 {len} 3{noreply}\r\n"),
            verb => format!("{verb} {key} 7 0 {len}{noreply}\r\n"),
        };
        [line.as_bytes(), &value, b"\r\n"].concat()
    });
    let get = (
        prop::collection::vec(key(), 0..40),
        prop::sample::select(vec!["get", "gets", "gat 0", "bget"]),
    );
    let get = get.prop_map(|(keys, verb)| {
        let most = if verb.starts_with("get") { 40 } else { 7 };
        let keys = &keys[..keys.len().min(most)];
        format!("{verb} {}\r\n", keys.join(" ")).into_bytes()
    });
    let flags = prop::sample::subsequence(
        vec![
            "v", "f", "k", "s", "q", "O77", "c", "t", "v", "N0", "b", "x",
        ],
        0..6,
    );
    let meta = (key(), flags);
    let meta =
        meta.prop_map(|(key, flags)| format!("mg {key} {}\r\n", flags.join(" ")).into_bytes());
    let other = prop::sample::select(vec![
        "delete k1\r\n",
        "incr k2 5\r\n",
        "md k3 I T30\r\n",
        "mn\r\n",
        "version\r\n",
        "flush_all\r\n",
        "touch k1 0 noreply\r\n",
        "set\r\n",
        "set k1 0 0 -1\r\n",
        "set k1 0 0 2000000000 noreply\r\n",
        "\r\n",
        "get\0 k1\r\n",
        "get k1\0 k2\n",
        "stats detail on\r\n",
        "stats reset\r\n",
        "nonsense\r\n",
    ]);
    prop_oneof![
        4 => update,
        4 => get,
        2 => meta,
        2 => other.prop_map(|line| line.as_bytes().to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn replies_equal_those_of_the_server(
        commands in prop::collection::vec(command(), 1..30),
        pieces in prop::collection::vec(prop_oneof![1..20usize, 1..20_000usize], 0..60),
    ) {
        let text = commands.concat();
        let mut direct = Direct {
            conversation: text::Conversation::default(),
            store: testing::shared(LIMITS),
        };
        let expected = say(&mut direct, &text, pieces.iter().copied());
        let proxied = Proxied::new(1);
        let mut conversation = proxied.conversation(0);
        let said = say(&mut conversation, &text, pieces.into_iter());
        prop_assert_eq!(said, expected);
    }
}

/// A faulty server: the input that it claims to wait for, and its replies.
#[derive(Clone, Copy)]
struct Wrong(Awaiting, &'static [u8]);

impl Upstream for Wrong {
    fn look(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), UpstreamError> {
        (0..keys.len()).for_each(|number| each(number, Lookup::Retry));
        Ok(())
    }

    fn say(&mut self, _: bool, _: &[u8], replies: &mut Vec<u8>) -> Result<Awaiting, UpstreamError> {
        replies.extend_from_slice(self.1);
        Ok(self.0)
    }

    fn report(&mut self) {}
}

#[test]
fn a_faulty_server_occupies_no_thread() {
    let begin = |wrong, text: &[u8]| {
        let mut conversation = ProxyConversation::new(wrong);
        conversation.room()[..text.len()].copy_from_slice(text);
        conversation.received(text.len());
        conversation
    };
    let mut replies = Vec::new();
    let mut conversation = begin(Wrong(Awaiting::More, b""), b"version\r\n");
    for _ in 0..10 {
        assert_eq!(conversation.run(&mut replies), Next::Continue);
    }
    let mut conversation = begin(Wrong(Awaiting::Bytes(u64::MAX), b""), b"version\r\nabc");
    assert_eq!(conversation.run(&mut replies), Next::Read);
    assert!(conversation.room().len() < 100_000);
    let mut conversation = begin(Wrong(Awaiting::Bytes(0), b""), b"version\r\nabc");
    assert_eq!(conversation.run(&mut replies), Next::Close);
    for wrong in [
        Wrong(Awaiting::Command, b"VALUE a 0 9\r\n"),
        Wrong(Awaiting::More, b""),
    ] {
        replies.clear();
        begin(wrong, b"get a\r\n").run(&mut replies);
        assert_eq!(replies, UpstreamError::Gone.text());
    }
    // A full server refuses the session.
    replies.clear();
    let full = Wrong(Awaiting::End, b"ERROR Too many open connections\r\n");
    let next = begin(full, b"get a\r\nget b\r\n").run(&mut replies);
    assert_eq!((&*replies, next), (full.1, Next::Close));
}

/// A server that has a large value for each key.
struct Large {
    /// Answers the last key first.
    backwards: bool,
    /// Keys that were looked for.
    looked: usize,
}

impl Large {
    const VALUE: &[u8] = &[b'v'; 1 << 20];
}

impl Upstream for Large {
    fn look(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), UpstreamError> {
        self.looked += keys.len();
        for count in 0..keys.len() {
            let header = ItemHeader::default();
            let data = Large::VALUE;
            let number = if self.backwards {
                keys.len() - 1 - count
            } else {
                count
            };
            each(number, Lookup::Found(ItemRef { header, data }));
        }
        Ok(())
    }

    fn say(&mut self, _: bool, _: &[u8], _: &mut Vec<u8>) -> Result<Awaiting, UpstreamError> {
        Err(UpstreamError::Gone)
    }

    fn report(&mut self) {}
}

#[test]
fn large_values_are_sent_one_by_one_and_read_once() {
    for backwards in [false, true] {
        let mut large = Large {
            backwards,
            looked: 0,
        };
        let line = b"a ".repeat(40);
        let (mut keys, mut getting) = (Tokens(&line), Getting::new(false));
        let (mut replies, mut batches) = (Vec::new(), 0);
        while !keys.is_empty() {
            replies.clear();
            keys = get(&mut large, keys, &mut getting, &mut replies).unwrap();
            assert!(replies.len() < Large::VALUE.len() + 100);
            batches += 1;
        }
        assert_eq!(batches, 40);
        // Except for the first lookup, when the lengths are still unknown.
        assert!(large.looked < 40 + 16, "{}", large.looked);
    }
}

#[test]
fn gets_are_one_sided_and_counted() {
    let proxied = Proxied::new(2);
    let mut conversation = proxied.conversation(0);
    let text = "set a 1 0 1\r\nx\r\nset b 2 0 2\r\nyy\r\n";
    assert_eq!(say_at_once(&mut conversation, text), "STORED\r\nSTORED\r\n");
    let text = "get a\r\ngets b none a\r\nmg a v\r\nmg none\r\n";
    let expected = "VALUE a 1 1\r\nx\r\nEND\r\n\
        VALUE b 2 2 2\r\nyy\r\nVALUE a 1 1 1\r\nx\r\nEND\r\nVA 1\r\nx\r\nEN\r\n";
    assert_eq!(say_at_once(&mut conversation, text), expected);
    // The counters are the same on another thread, which has read nothing.
    let stats = say_at_once(&mut proxied.conversation(1), "stats\r\n");
    for told in ["one_sided_gets 6", "cmd_get 6", "get_misses 2", "cmd_set 2"] {
        assert!(
            stats.contains(&format!("STAT {told}\r\n")),
            "{told}: {stats}"
        );
    }
}

#[test]
fn gets_are_reported_when_a_client_disconnects() {
    let proxied = Proxied::new(1);
    say_at_once(&mut proxied.conversation(0), "get a\r\n");
    while proxied
        .store()
        .with(|store| store.counters())
        .one_sided_gets
        < 1
    {
        std::thread::yield_now();
    }
}

#[test]
fn large_values_round_trip() {
    let proxied = Proxied::new(1);
    let mut conversation = proxied.conversation(0);
    let value = "v".repeat(1_000_000);
    let text = format!("set a 0 0 1000000\r\n{value}\r\n");
    assert_eq!(say_at_once(&mut conversation, &text), "STORED\r\n");
    let expected = format!("VALUE a 0 1000000\r\n{value}\r\n").repeat(3) + "END\r\n";
    for text in ["get a a none a\r\n", "gat 0 a a a\r\n"] {
        assert!(say_at_once(&mut conversation, text) == expected, "{text}");
    }
}

#[test]
fn a_restarted_server_is_reconnected() {
    let proxied = Proxied::new(1);
    let mut conversation = proxied.conversation(0);
    let set = "set a 0 0 1\r\nx\r\n";
    assert_eq!(say_at_once(&mut conversation, set), "STORED\r\n");
    assert!(say_at_once(&mut conversation, "get a\r\n").contains("VALUE"));
    // Meanwhile each command gets the error, and no value is taken for a command.
    proxied.replace(false);
    let gone = String::from_utf8_lossy(UpstreamError::Gone.text()).into_owned();
    let text = "get a\r\nset a 0 0 12\r\ndelete b\r\nno\r\nset a 0 0 1 noreply\r\nx\r\nmg a v\r\n";
    assert_eq!(say_at_once(&mut conversation, text), gone.repeat(3));
    proxied.replace(true);
    // The next attempt to connect comes after a pause.
    while say_at_once(&mut conversation, "get a\r\n") == gone {
        std::thread::yield_now();
    }
    assert_eq!(say_at_once(&mut conversation, "get a\r\n"), "END\r\n");
    // In the middle of a value.
    say_at_once(&mut conversation, "set a 0 0 10\r\nhalf");
    proxied.replace(true);
    let text = "delete\r\nget a\r\nset a 0 0 1\r\ny\r\nget a\r\n";
    let expected = gone.clone() + "END\r\nSTORED\r\nVALUE a 0 1\r\ny\r\nEND\r\n";
    assert_eq!(say_at_once(&mut conversation, text), expected);
    // In the middle of a value that was refused already: another reply would be taken for that to
    // the next command.
    let refused = "SERVER_ERROR object too large for cache\r\n";
    let mut other = proxied.conversation(0);
    let text = "set a 0 0 2000000\r\nhalf";
    assert_eq!(say_at_once(&mut other, text), refused);
    say_at_once(&mut conversation, "set a 0 0 2000000 noreply\r\nhalf");
    proxied.replace(true);
    let text = "v".repeat(2_000_000 - 4) + "\r\nget a\r\n";
    let (said, over) = say(&mut other, text.as_bytes(), std::iter::empty());
    assert_eq!((said.as_str(), over), ("", true));
    assert_eq!(say_at_once(&mut conversation, &text), "END\r\n");
    // `quit` without a server.
    proxied.replace(false);
    let (said, over) = say(&mut conversation, b"quit\r\nget a\r\n", std::iter::empty());
    assert_eq!((said.as_str(), over), ("", true));
}
