//! Framing: which commands a proxy answers, and roughly how many bytes belong to each of the
//! others.
//!
//! Roughly, because the server decides: after each message it states the input that it waits for. A
//! line that only looks like a set has no value behind it for the server, which then reads the next
//! line, as on a connection of its own.

use crate::number;
use crate::protocol::layout::MAX_KEY;
use crate::protocol::messages::TEXT_LIMIT;
use crate::text::input::{Arguments, Tokens, line};
use crate::text::value_len;

/// A command line.
#[derive(Clone, Debug)]
pub(super) enum Command<'a> {
    /// `get` or `gets`, with valid keys.
    Get {
        /// Whether the reply has the cas.
        cas: bool,
        /// Keys; at least one.
        keys: Tokens<'a>,
    },
    /// `mg` that changes nothing, and asks only for content of the item.
    MetaGet {
        /// The key.
        key: &'a [u8],
        /// Flags.
        flags: Tokens<'a>,
    },
    /// Any other command, which is forwarded.
    Other,
}

impl<'a> Command<'a> {
    /// The command of a line without its end.
    pub(super) fn of(line: &'a [u8]) -> Self {
        let mut tokens = Tokens(line);
        let command = tokens.next().unwrap_or_default();
        match command {
            b"get" | b"gets" if are_keys(tokens.clone()) => Command::Get {
                cas: command == b"gets",
                keys: tokens,
            },
            b"mg" => match tokens.next() {
                Some(key) if key.len() <= MAX_KEY && are_plain(tokens.clone()) => {
                    Command::MetaGet { key, flags: tokens }
                }
                _ => Command::Other,
            },
            _ => Command::Other,
        }
    }
}

fn are_keys(mut tokens: Tokens<'_>) -> bool {
    !tokens.is_empty() && tokens.all(|key| key.len() <= MAX_KEY)
}

/// Whether a reader can answer these flags of `mg`. Not the cas: a reader could meet the new cas of
/// an item that was declared stale, with its old marks.
fn are_plain(flags: Tokens<'_>) -> bool {
    /// The longest opaque token, with its letter.
    const LONGEST_OPAQUE: usize = 32;
    let mut seen = 0u32;
    for flag in flags {
        let is_plain = match flag {
            [b'v' | b'f' | b'k' | b's' | b'q'] => true,
            [b'O', ..] => flag.len() <= LONGEST_OPAQUE,
            _ => false,
        };
        let bit = 1 << (flag[0] & 31);
        if !is_plain || seen & bit != 0 {
            return false;
        }
        seen |= bit;
    }
    true
}

/// Commands that are forwarded in one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    /// Bytes of the message.
    pub(super) len: usize,
    /// Commands that want a reply.
    pub(super) answers: usize,
    /// Whether the last command wants no reply.
    pub(super) is_quiet: bool,
    /// Bytes of the last command that are probably missing.
    pub(super) missing: u64,
    /// Whether one of them is `quit`.
    pub(super) ends: bool,
    /// Whether one of them is `stats`.
    pub(super) counts: bool,
}

impl Batch {
    /// The batch at the beginning of `bytes`, whose first command is forwarded.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut batch = Batch::default();
        while let Some(newline) = memchr::memchr(b'\n', &bytes[batch.len..]) {
            let line = line(&bytes[batch.len..][..newline]);
            if !matches!(Command::of(line), Command::Other) {
                break;
            }
            let end = batch.len as u64 + newline as u64 + 1 + announced(line);
            let is_whole = end <= bytes.len().min(TEXT_LIMIT) as u64;
            if !is_whole && batch.len > 0 && end > TEXT_LIMIT as u64 {
                break;
            }
            batch.note(line);
            if !is_whole {
                batch.len = bytes.len().min(TEXT_LIMIT);
                batch.missing = end - batch.len as u64;
                break;
            }
            batch.len = end as usize;
        }
        batch
    }

    fn note(&mut self, line: &[u8]) {
        let mut tokens = Tokens(line);
        let command = tokens.next().unwrap_or_default();
        self.is_quiet = match command {
            b"quit" => true,
            // The last word may be a key of this name.
            [b'm', _] | b"get" | b"gets" | b"bget" | b"gat" | b"gats" => false,
            _ => Arguments::of(tokens).noreply(),
        };
        self.answers += usize::from(!self.is_quiet);
        self.ends |= command == b"quit";
        self.counts |= command == b"stats";
    }
}

/// Bytes of the value of a command with its line end, if it has a value.
fn announced(line: &[u8]) -> u64 {
    let mut tokens = Tokens(line);
    let at = match tokens.next() {
        Some(b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas") => 3,
        Some(b"ms") => 1,
        _ => return 0,
    };
    let announced = tokens.nth(at).and_then(number::int).and_then(value_len);
    announced.map_or(0, |len| len as u64 + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_own(line: &str) -> bool {
        !matches!(Command::of(line.as_bytes()), Command::Other)
    }

    #[test]
    fn only_plain_gets_are_answered_by_the_proxy() {
        let long = "k".repeat(MAX_KEY + 1);
        for own in ["get a", " gets a b  c", "mg a", "mg a v f k s q Oabc"] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "",
            "get",
            "gat 0 a",
            "GET a",
            "set a 0 0 1",
            "mg",
            "mg a v v",
            "mg a c",
            "mg a t",
            "mg a N30",
            "mg a b",
            "mg a vx",
            "mg a O123456789012345678901234567890123",
            &format!("get a {long}"),
            &format!("mg {long}"),
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn only_the_last_word_is_noreply() {
        for (line, is_quiet) in [
            ("delete a noreply", true),
            ("touch noreply 0  noreply ", true),
            ("quit", true),
            ("delete a", false),
            ("touch noreply 0", false),
            ("set noreply 0 0 1", false),
            ("noreply", false),
            ("md noreply", false),
            ("gat 0 noreply", false),
            ("bget noreply", false),
        ] {
            let batch = Batch::of(format!("{line}\r\n").as_bytes());
            assert_eq!(batch.is_quiet, is_quiet, "{line}");
            assert_eq!(batch.answers, usize::from(!is_quiet), "{line}");
        }
    }

    #[test]
    fn received_commands_are_forwarded_in_one_batch() {
        let of = |text: &str| Batch::of(text.as_bytes());
        let all = "set a 0 0 1\r\nx\r\ndelete a noreply\r\nms b 1\r\nx\r\n";
        let batch = of(&format!("{all}get a\r\n"));
        assert_eq!((batch.len, batch.answers, batch.missing), (all.len(), 2, 0));
        let batch = of("version\r\nset a 0 0 10\r\n01234");
        assert_eq!((batch.len, batch.answers, batch.missing), (28, 2, 7));
        let batch = of("delete a\r\nversi");
        assert_eq!((batch.len, batch.missing), (10, 0));
        let batch = of("stats\r\nquit\r\n");
        assert!(batch.counts && batch.ends);
        let large = format!("set a 0 0 100000\r\n{}", "x".repeat(50_000));
        let batch = of(&large);
        assert_eq!(batch.len, TEXT_LIMIT);
        assert_eq!(batch.missing, 18 + 100_002 - TEXT_LIMIT as u64);
        let batch = of(&format!("version\r\n{large}"));
        assert_eq!((batch.len, batch.missing), (9, 0));
    }
}
