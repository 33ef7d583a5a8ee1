//! The same random commands to a real memcached and to the store, directly or through a proxy. The
//! replies are the same, byte by byte, except values that depend on the clock or on the layout of
//! memory.

use tests::cluster::is_nightly;
use tests::random::Random;

use crate::commands::Batch;
use crate::servers::{Connection, Memcached, Proxied, Server, Toroid};

const COMMANDS: usize = 20_000;
const NIGHTLY_COMMANDS: usize = 2_000_000;

/// Commands after which both servers start anew.
const STREAM: usize = 4_000;

/// Long enough for any value whose announced length was a little too long.
const FILLER: &[u8] = b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n";

#[test]
fn random_commands_are_answered_as_by_memcached() {
    let commands = if is_nightly() {
        NIGHTLY_COMMANDS
    } else {
        COMMANDS
    };
    for seed in seeds(commands) {
        stream(seed, &Toroid::start(), timeless);
    }
}

#[test]
fn random_commands_are_answered_so_by_a_proxy() {
    let commands = if is_nightly() { COMMANDS } else { STREAM };
    for seed in seeds(commands) {
        stream(seed, &Proxied::start(), |line| unread(&timeless(line)));
    }
}

fn seeds(commands: usize) -> std::ops::Range<u64> {
    let first = std::env::var("TOROID_TEST_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    first..first + (commands / STREAM) as u64
}

fn stream(seed: u64, toroid: &impl Server, plain: fn(&str) -> String) {
    let memcached = Memcached::start();
    let mut connections = [memcached.connect(), toroid.connect()];
    let mut random = Random(seed);
    let (mut commands, mut number) = (0, 0);
    while commands < STREAM {
        let batch = Batch::random(&mut random);
        let [theirs, ours] = connections
            .each_mut()
            .map(|connection| answers(connection, &batch, number, &mut random, plain));
        if theirs != ours {
            let at = theirs.iter().zip(&ours).take_while(|(a, b)| a == b).count();
            let show = |lines: &[String]| format!("{:#?}", &lines[at.min(lines.len())..]);
            panic!(
                "seed {seed}, after {commands} commands\nsent: {}\nreplies alike: {at}\n\
                 then memcached: {:.1500}\nthen toroid-kv: {:.1500}",
                shown(&batch.bytes),
                show(&theirs),
                show(&ours)
            );
        }
        if batch.closes {
            connections = [memcached.connect(), toroid.connect()];
        }
        commands += batch.commands;
        number += 1;
    }
}

/// The lines of the replies to a batch that is sent in random pieces.
fn answers(
    connection: &mut Connection,
    batch: &Batch,
    number: usize,
    random: &mut Random,
    plain: fn(&str) -> String,
) -> Vec<String> {
    let mut bytes = batch.bytes.clone();
    let end = (!batch.closes).then(|| {
        bytes.extend_from_slice(FILLER);
        bytes.extend_from_slice(format!("mg no-such-key Oend{number}\r\n").as_bytes());
        format!("EN Oend{number}\r\n").into_bytes()
    });
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let most = if random.one_in(4) { 20 } else { 100_000 };
        let (piece, left) = rest.split_at(rest.len().min(1 + random.below(most)));
        connection.send(piece).expect("it reads");
        rest = left;
    }
    let said = connection.receive(end.as_deref());
    let text = String::from_utf8_lossy(&said);
    text.split_inclusive('\n').map(plain).collect()
}

/// A line without values that depend on the clock or on the layout of memory.
fn timeless(line: &str) -> String {
    let words = line.split(' ').map(|word| {
        let (digits, ending) = match word.strip_suffix("\r\n") {
            Some(digits) => (digits, "\r\n"),
            None => (word, ""),
        };
        let number = |letter| {
            digits
                .strip_prefix(letter)
                .and_then(|n| n.parse::<i64>().ok())
        };
        if let Some(left) = number("t").or(number("exp=-")) {
            let about = match left {
                900..=1000 => 1000,
                99_900..=100_000 => 100_000,
                1_000_000.. => 1_000_000,
                exact => exact,
            };
            return format!("t{about}{ending}");
        }
        let vague = ["l", "la=", "cls="];
        match vague.into_iter().find(|name| number(name).is_some()) {
            Some(name) => format!("{name}?{ending}"),
            None => word.to_owned(),
        }
    });
    let is_meta = ["HD", "VA", "ME", "EN", "EX", "NF", "NS"]
        .iter()
        .any(|code| line.starts_with(code));
    if is_meta {
        words.collect::<Vec<_>>().join(" ")
    } else {
        line.to_owned()
    }
}

/// A line without the flag of fetched items: a client with one-sided gets reports them later, and
/// not each of them.
fn unread(line: &str) -> String {
    if line.starts_with("VALUE") {
        line.to_owned()
    } else {
        line.replace(" h1", " h0").replace("fetch=yes", "fetch=no")
    }
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]);
    format!("{text:?}").replace("\\r\\n", "\\r\\n\n      ")
}
