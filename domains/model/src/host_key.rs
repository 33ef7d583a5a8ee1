//! Public keys of hosts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::as_text;

/// Bytes of a key.
const KEY: usize = 32;

/// Public key of a host (X25519). Its text has 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; KEY]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "the key of a host has 64 hexadecimal digits; see `toroid host ls`";
        if text.len() != 2 * KEY || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(WRONG);
        }
        let mut key = [0; KEY];
        for (n, byte) in key.iter_mut().enumerate() {
            let digits = &text[2 * n..2 * n + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| WRONG)?;
        }
        Ok(PublicKey(key))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        as_text::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        as_text::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_round_trips_and_other_texts_are_none() {
        let key = PublicKey([0x5a; KEY]);
        assert_eq!(key.to_string().parse(), Ok(key));
        for text in [
            "",
            "5a",
            &"g0".repeat(KEY),
            &"é".repeat(KEY),
            &"00".repeat(KEY + 1),
        ] {
            text.parse::<PublicKey>().unwrap_err();
        }
    }
}
