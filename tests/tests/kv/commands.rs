//! Random commands, mostly well-formed.
//!
//! What depends on the clock, on memory, or on what memcached 1.6.18 gets wrong, is left out:
//! short times to live, `ma` with `T` (lost when the number grows), `N` and additions for keys in
//! base64 (which are then told in plain), delayed flushes (which bring flushed items back), values of
//! white space alone (behind which, in memory that is not theirs, a number is looked for), and values
//! with a minus (for which numbers from 2^63 on are searched likewise).

use tests::random::Random;

const KEYS: [&str; 8] = ["a", "b", "c", "key:1", "key:2", "counter", "n", "k\t\x7f"];

/// In base64; nothing but meta commands names them.
const BINARY_KEYS: [&str; 3] = ["AQID", "AP8=", "/w=="];

const EXPTIMES: [&str; 9] = [
    "0",
    "0",
    "0",
    "1000",
    "100000",
    "-1",
    "2592001",
    "4000000000",
    "2100000000",
];

/// A sequence of commands that are sent together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The commands.
    pub bytes: Vec<u8>,
    /// How many commands.
    pub commands: usize,
    /// The last of them has the server close the connection.
    pub closes: bool,
}

impl Batch {
    /// Of a few commands, or of one that does not bear company.
    pub fn random(random: &mut Random) -> Self {
        let mut batch = Batch::default();
        if random.one_in(40) {
            batch.add(alone(random));
            return batch;
        }
        if random.one_in(300) {
            batch.closes = true;
            batch.add(
                random
                    .pick(&[&b"quit\r\n"[..], b"GET / HTTP/1.1\r\n"])
                    .to_vec(),
            );
            return batch;
        }
        // First, as memcached fills a shorter number up with blanks only if no reply with the
        // item is still to be sent.
        match random.below(4) {
            0 => batch.add(arithmetic(random)),
            1 => batch.add(meta_arithmetic(random)),
            _ => {}
        }
        for _ in 0..=random.below(8) {
            batch.add(command(random));
        }
        batch
    }

    fn add(&mut self, command: Vec<u8>) {
        self.bytes.extend(command);
        self.commands += 1;
    }
}

/// A command whose error makes memcached forget replies that are due, or whose value is large.
fn alone(random: &mut Random) -> Vec<u8> {
    let long = "k".repeat(random.pick(&[250, 251, 400]));
    let key = random.pick(&KEYS);
    match random.below(6) {
        // Memcached counts keys before the one that is too long as used.
        0 => format!("get none {long}\r\n").into_bytes(),
        1 => format!("gat 0 none {long}\r\n").into_bytes(),
        2 => format!(
            "get {key}{}\r\n",
            format!(" {}", random.pick(&KEYS)).repeat(60)
        )
        .into_bytes(),
        _ => {
            let len = random.pick(&[500_000, 1_000_000, 1_048_400, 1_048_576, 1_100_000]);
            let line = match random.below(3) {
                0 => format!("set {key} 0 0 {len}\r\n"),
                1 => format!("add {key} 0 0 {len}\r\n"),
                _ => format!("ms {key} {len} c q\r\n"),
            };
            let mut bytes = line.into_bytes();
            bytes.resize(bytes.len() + len, b'v');
            bytes.extend_from_slice(b"\r\n");
            bytes
        }
    }
}

fn command(random: &mut Random) -> Vec<u8> {
    let mut bytes = match random.below(18) {
        0..4 => update(random),
        4..7 => retrieve(random),
        7 => change(random),
        8..11 => meta_get(random),
        11..14 => meta_set(random),
        14 => meta_delete(random),
        15 => return administer(random).into_bytes(),
        _ => wrong(random),
    };
    if random.one_in(60) && !bytes.contains(&0) {
        let at = random.below(bytes.len());
        let byte = random.pick(b" \r\nx0-");
        // A command that announces a value would take the following commands for it; shorter times
        // would pass.
        let is_line = bytes.iter().filter(|&&byte| byte == b'\n').count() == 1;
        if is_line && !bytes[at].is_ascii_digit() {
            let before = std::mem::replace(&mut bytes[at], byte);
            // Two keys may be one that is too long now, of which see `alone`.
            if bytes
                .split(u8::is_ascii_whitespace)
                .any(|word| word.len() > 250)
            {
                bytes[at] = before;
            }
        }
    }
    bytes
}

fn key(random: &mut Random) -> String {
    match random.below(40) {
        0 => "k".repeat(250),
        1 => format!("unseen{}", random.below(1000)),
        _ => random.pick(&KEYS).to_owned(),
    }
}

fn noreply(random: &mut Random) -> &'static str {
    random.pick(&["", "", "", "", " noreply", " noreply", " x", "  "])
}

fn value(random: &mut Random) -> String {
    match random.below(6) {
        0 => random.below(1000).to_string(),
        1 => random
            .pick(&["18446744073709551615", "9999", " 5", "+1", "7 x", "0"])
            .to_owned(),
        2 => String::new(),
        3 => "v".repeat(random.below(1500)),
        _ => format!("value{}", random.below(100)),
    }
}

/// The bytes that a client announces, which are not always those that come.
fn announced(random: &mut Random, value: &str) -> String {
    match random.below(60) {
        0 => {
            let more = random.below(6);
            // Line ends that follow an empty value would be a value of white space.
            let most = if value.is_empty() { 1 } else { more };
            (value.len() + more.min(most)).to_string()
        }
        1 => value.len().saturating_sub(random.below(6)).to_string(),
        2 => random
            .pick(&["-1", "x", "", "2147483647", "99999999999999999999"])
            .to_owned(),
        _ => value.len().to_string(),
    }
}

fn update(random: &mut Random) -> Vec<u8> {
    let name = random.pick(&[
        "set", "set", "set", "add", "replace", "append", "prepend", "cas",
    ]);
    let (key, value) = (key(random), value(random));
    let flags = random.pick(&["0", "0", "5", "4294967295", "4294967296", "-1", "x"]);
    let exptime = random.pick(&EXPTIMES);
    let len = announced(random, &value);
    let cas = match name {
        "cas" => format!(" {}", cas(random)),
        _ => String::new(),
    };
    let noreply = noreply(random);
    format!("{name} {key} {flags} {exptime} {len}{cas}{noreply}\r\n{value}\r\n").into_bytes()
}

/// Sometimes one that an item has.
fn cas(random: &mut Random) -> String {
    match random.below(10) {
        0 => random
            .pick(&["0", "x", "-1", "18446744073709551615"])
            .to_owned(),
        _ => random.below(300).to_string(),
    }
}

fn retrieve(random: &mut Random) -> Vec<u8> {
    let mut line = match random.below(6) {
        0 => format!("gat {}", random.pick(&EXPTIMES)),
        1 => format!("gats {}", random.pick(&EXPTIMES)),
        2 | 3 => "gets".to_owned(),
        _ => "get".to_owned(),
    };
    for _ in 0..random.pick(&[0, 1, 1, 1, 2, 3, 30]) {
        line += &format!(" {}", key(random));
    }
    line += random.pick(&["\r\n", "\r\n", "\r\n", "\n", " \r\n"]);
    line.into_bytes()
}

fn arithmetic(random: &mut Random) -> Vec<u8> {
    let (key, noreply) = (key(random), noreply(random));
    let name = random.pick(&["incr", "decr"]);
    let delta = random.pick(&["1", "7", "0", "18446744073709551615", "x", "-1"]);
    format!("{name} {key} {delta}{noreply}\r\n").into_bytes()
}

fn change(random: &mut Random) -> Vec<u8> {
    let (key, noreply) = (key(random), noreply(random));
    match random.below(4) {
        0 => format!("touch {key} {}{noreply}\r\n", random.pick(&EXPTIMES)),
        1 => format!("touch {key} x{noreply}\r\n"),
        _ => format!(
            "delete {key}{}{noreply}\r\n",
            random.pick(&["", "", " 0", " 1"])
        ),
    }
    .into_bytes()
}

/// Some of these flags in any order, seldom one of them twice.
fn flags(random: &mut Random, choices: &[&'static str]) -> String {
    flags_with_opaque(random, choices, 33)
}

fn flags_with_opaque(random: &mut Random, choices: &[&'static str], longest: usize) -> String {
    let mut flags = String::new();
    let mut left = choices.to_vec();
    for _ in 0..random.below(6) {
        if left.is_empty() {
            break;
        }
        let at = random.below(left.len());
        let flag = if random.one_in(30) {
            left[at]
        } else {
            left.swap_remove(at)
        };
        flags += " ";
        flags += flag;
    }
    if random.one_in(40) {
        let opaque = "O".repeat(random.pick(&[32, longest]));
        let odd = [
            " !", " S1", " é", " Nx", " T", " Rx", " C", " Mxx", " Fx", " Jx", " Dx",
        ];
        flags += &random.pick(&odd).replace('!', &opaque);
    }
    flags
}

/// Without opaque tokens that are too long: whether these count as a use depends on other flags.
fn meta_get(random: &mut Random) -> Vec<u8> {
    let common = [
        "c", "f", "h", "k", "Oabc", "q", "s", "t", "u", "v", "v", "R30", "R5000", "R-1", "T0",
        "T1000", "T-1", "T100000",
    ];
    if random.one_in(6) {
        let flags = flags_with_opaque(random, &common, 32);
        return format!("mg {} b{flags}\r\n", random.pick(&BINARY_KEYS)).into_bytes();
    }
    let choices = [&common[..], &["N1000", "N0", "l"]].concat();
    let flags = flags_with_opaque(random, &choices, 32);
    format!("mg {}{flags}\r\n", key(random)).into_bytes()
}

fn meta_set(random: &mut Random) -> Vec<u8> {
    let value = value(random);
    let len = announced(random, &value);
    let common = [
        "c", "k", "Oabc", "q", "I", "F7", "F0", "T1000", "T0", "T-1", "ME", "MS", "MR",
    ];
    let compare = format!("C{}", cas(random));
    let compare = if random.one_in(3) {
        format!(" {compare}")
    } else {
        String::new()
    };
    if random.one_in(6) {
        let (flags, key) = (flags(random, &common), random.pick(&BINARY_KEYS));
        return format!("ms {key} {len} b{flags}{compare}\r\n{value}\r\n").into_bytes();
    }
    let choices = [&common[..], &["MA", "MP", "Mx", "b"]].concat();
    let flags = flags(random, &choices);
    let key = if flags.contains(" b") {
        // Not base64.
        "!".to_owned()
    } else {
        key(random)
    };
    format!("ms {key} {len}{flags}{compare}\r\n{value}\r\n").into_bytes()
}

fn meta_delete(random: &mut Random) -> Vec<u8> {
    let compare = format!("C{}", cas(random));
    let compare = if random.one_in(4) {
        format!(" {compare}")
    } else {
        String::new()
    };
    let common = ["k", "Oabc", "q", "I", "I", "T1000", "T0", "x"];
    let (flags, binary) = (flags(random, &common), random.one_in(5));
    if binary {
        format!("md {} b{flags}{compare}\r\n", random.pick(&BINARY_KEYS))
    } else {
        format!("md {}{flags}{compare}\r\n", key(random))
    }
    .into_bytes()
}

fn meta_arithmetic(random: &mut Random) -> Vec<u8> {
    let choices = [
        "c", "k", "Oabc", "q", "t", "v", "v", "N1000", "N0", "J13", "D5", "D100", "MI", "MD", "M-",
        "M+", "Mx",
    ];
    let flags = flags(random, &choices);
    format!("ma {}{flags}\r\n", key(random)).into_bytes()
}

fn administer(random: &mut Random) -> String {
    let lines = [
        "mn",
        "verbosity 0",
        "verbosity",
        "verbosity x",
        "verbosity 0 noreply",
        "flush_all",
        "flush_all 0",
        "flush_all noreply",
        "flush_all -1",
        "flush_all x",
        "flush_all 0 noreply",
        "flush_all 1 2 3",
        "stats reset",
        "stats foo",
        "stats detail",
        "stats detail off",
        "stats cachedump",
        "stats cachedump 99 1",
        "stats cachedump x 1",
        "shutdown",
        "shutdown x",
        "slabs",
        "slabs reassign 1 1",
        "slabs reassign x 1",
        "slabs automove 0",
        "slabs automove 5",
        "slabs automove x",
        "slabs automove ratio 0.5",
        "slabs automove ratio x",
        "slabs automove",
        "lru",
        "lru x",
        "lru mode x",
        "lru temp_ttl x",
        "lru tune 10 20 0.2 2.0",
        "lru tune 50 50 0.2 2.0",
        "lru tune 10 20 0 2.0",
        "lru tune x 20 0.2 2.0",
        "lru tune 1",
        "lru_crawler",
        "lru_crawler tocrawl 1",
        "lru_crawler tocrawl x",
        "lru_crawler sleep 10",
        "lru_crawler sleep 1000001",
        "lru_crawler sleep x",
        "lru_crawler x",
        "lru_crawler metadump",
        "cache_memlimit",
        "cache_memlimit x",
        "cache_memlimit 7",
        "cache_memlimit 64",
        "cache_memlimit 2000000000",
    ];
    // A flush now and then, or there would be nothing to find.
    let line = match random.pick(&lines) {
        line if line.starts_with("flush_all") && !random.one_in(4) => "mn",
        line => line,
    };
    format!("{line}\r\n")
}

fn wrong(random: &mut Random) -> Vec<u8> {
    let lines: [&[u8]; 22] = [
        b"\r\n",
        b"\n",
        b"x\r\n",
        b"get\r\n",
        b"GET a\r\n",
        b"gat\r\n",
        b"gat x a\r\n",
        b"set\r\n",
        b"set a 0 0\r\n",
        b"set a 0 0 noreply\r\n",
        b"set a 0 0 1 noreply x\r\n",
        b"cas a 0 0 1\r\n",
        b"incr a\r\n",
        b"touch a noreply\r\n",
        b"delete\r\n",
        b"delete a 0 noreply x\r\n",
        b"mg\r\n",
        b"ms a\r\n",
        b"mx a\r\n",
        b"me\r\n",
        b"get a\0b\r\n",
        b"ms a x\r\n",
    ];
    if random.one_in(5) {
        let many = " Oabc".repeat(random.pick(&[17, 18, 25]));
        return format!("{} a{many}\r\n", random.pick(&["mg", "md", "ma"])).into_bytes();
    }
    if random.one_in(5) {
        return format!("me {}\r\n", key(random)).into_bytes();
    }
    if random.one_in(5) {
        return format!("mg none c {}\r\n", "O".repeat(33)).into_bytes();
    }
    random.pick(&lines).to_vec()
}
