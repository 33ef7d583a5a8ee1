//! Flags of a meta command.

use super::super::BAD_FORMAT;
use super::super::base64::{self, Decoded};
use super::super::input::Tokens;
use crate::number;

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";

/// Parsed flags.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    /// `N`: create an item on a miss, with this time to live.
    pub(super) vivify: Option<i32>,
    /// `T`: new expiry.
    pub(super) exptime: Option<i32>,
    /// `R`: recache below this time to live.
    pub(super) recache: Option<i32>,
    /// `v`: return the value.
    pub(super) value: bool,
    /// `u`: no use is noted.
    pub(super) no_update: bool,
    /// `q`: quiet.
    pub(super) quiet: bool,
    /// `b`: the key is in base64.
    pub(super) binary: bool,
    /// `I`: declare stale, or accept an older cas.
    pub(super) stale: bool,
    /// `F`: flags of the client.
    pub(super) client_flags: u32,
    /// `C`: cas to compare.
    pub(super) cas: Option<u64>,
    /// `M`: mode.
    pub(super) mode: Option<u8>,
    /// `D`: amount.
    pub(super) delta: Option<u64>,
    /// `J`: initial number.
    pub(super) initial: u64,
}

/// A key in the form of the store.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for the time of one command, which is to allocate nothing"
)]
pub(super) enum Key<'a> {
    Plain(&'a [u8]),
    Decoded(Decoded),
}

impl<'a> Key<'a> {
    pub(super) fn of(key: &'a [u8], is_base64: bool) -> Option<Self> {
        if is_base64 {
            base64::decode(key).map(Key::Decoded)
        } else {
            Some(Key::Plain(key))
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Key::Plain(key) => key,
            Key::Decoded(key) => key.bytes(),
        }
    }
}

impl Flags {
    /// Checks all flags.
    ///
    /// # Errors
    /// The reply; where several flags are wrong, the last one's, as memcached goes on.
    pub(super) fn parse<'a>(
        key: &'a [u8],
        tokens: Tokens<'a>,
    ) -> Result<(Self, Key<'a>), &'static [u8]> {
        let mut flags = Flags::default();
        let (mut key_read, mut seen) = (Some(Key::Plain(key)), 0u128);
        let (mut failed, mut error) = (false, BAD_FORMAT);
        for token in tokens {
            let (letter, value) = (token[0], &token[1..]);
            if letter >= 127 || seen >> letter & 1 != 0 {
                return Err(b"CLIENT_ERROR duplicate flag\r\n");
            }
            seen |= 1 << letter;
            let wrong: Option<&'static [u8]> = match letter {
                b'b' => {
                    flags.binary = true;
                    key_read = Key::of(key, true);
                    told(key_read, b"CLIENT_ERROR error decoding key\r\n")
                }
                b'N' => {
                    flags.vivify = number::int(value);
                    told(flags.vivify, BAD_TOKEN)
                }
                b'T' => {
                    flags.exptime = number::int(value);
                    told(flags.exptime, BAD_TOKEN)
                }
                b'R' => {
                    flags.recache = number::int(value);
                    told(flags.recache, BAD_TOKEN)
                }
                b'F' => {
                    let client_flags = number::unsigned_int(value);
                    flags.client_flags = client_flags.unwrap_or_default();
                    // Memcached has no message for this error.
                    told(client_flags, error)
                }
                b'C' => {
                    flags.cas = number::unsigned(value);
                    told(flags.cas, BAD_TOKEN)
                }
                b'M' => {
                    flags.mode = value.first().copied().filter(|_| value.len() == 1);
                    told(flags.mode, b"CLIENT_ERROR incorrect length for M token\r\n")
                }
                b'J' => {
                    let initial = number::unsigned(value);
                    flags.initial = initial.unwrap_or_default();
                    told(initial, b"CLIENT_ERROR invalid numeric initial value\r\n")
                }
                b'D' => {
                    flags.delta = number::unsigned(value);
                    told(flags.delta, b"CLIENT_ERROR invalid numeric delta value\r\n")
                }
                b'v' => set(&mut flags.value),
                b'u' => set(&mut flags.no_update),
                b'q' => set(&mut flags.quiet),
                b'I' => set(&mut flags.stale),
                b'l' | b'h' | b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' => None,
                _ => return Err(b"CLIENT_ERROR invalid flag\r\n"),
            };
            if let Some(wrong) = wrong {
                (failed, error) = (true, wrong);
            }
        }
        match key_read {
            Some(key) if !failed => Ok((flags, key)),
            _ => Err(error),
        }
    }
}

/// The error, if the value of the flag is malformed.
fn told<T>(value: Option<T>, error: &'static [u8]) -> Option<&'static [u8]> {
    match value {
        Some(_) => None,
        None => Some(error),
    }
}

fn set(flag: &mut bool) -> Option<&'static [u8]> {
    *flag = true;
    None
}
