//! Keys in replies for people and scripts, whatever their bytes.

use toroid_fabric::OpError;

use super::input::Arguments;
use super::{Done, ERROR, Turn};
use crate::number;

/// Keys that `stats hotkeys` shows by default.
const HOT: u32 = 20;

impl Turn<'_> {
    /// `stats hotkeys [COUNT]`: the most used keys and their uses per second. Memcached has no
    /// such command.
    pub(super) fn hot_keys(&mut self, arguments: &Arguments<'_>) -> Result<Done, OpError> {
        let count = match arguments.count {
            1 => Some(HOT),
            2 => number::unsigned_int(arguments.at(1)),
            _ => None,
        };
        let Some(count) = count else {
            return Ok(self.say(ERROR));
        };
        let most = self.store.with(|store| store.most_used(count as usize))?;
        for (key, per_ks) in most {
            self.replies.extend_from_slice(b"STAT ");
            append_encoded(self.replies, &key);
            let rate = format!(" {}.{:03}\r\n", per_ks / 1000, per_ks % 1000);
            self.replies.extend_from_slice(rate.as_bytes());
        }
        Ok(self.say(b"END\r\n"))
    }
}

/// Appends a key in the encoding of URIs, as memcached does.
pub(super) fn append_encoded(replies: &mut Vec<u8>, key: &[u8]) {
    for &byte in key {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                replies.push(byte);
            }
            _ => replies.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_keys_are_unambiguous() {
        let mut told = Vec::new();
        append_encoded(&mut told, b"a-Z.0_~ \r\n%\x1b\xff");
        assert_eq!(told, b"a-Z.0_~%20%0D%0A%25%1B%FF");
    }
}
