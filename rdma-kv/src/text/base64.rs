//! Keys in base64, with memcached's rules for meta commands.

use crate::protocol::layout::MAX_KEY;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A decoded key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoded {
    bytes: [u8; MAX_KEY],
    len: usize,
}

impl Decoded {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Decodes groups of four characters up to the first padded one. As in memcached, characters
/// outside of the alphabet are skipped.
pub(super) fn decode(text: &[u8]) -> Option<Decoded> {
    let digits = || {
        text.iter()
            .filter_map(|&character| Some((character, digit(character)?)))
    };
    let count = digits().count();
    if count == 0 || count % 4 != 0 || count / 4 * 3 > MAX_KEY {
        return None;
    }
    let mut decoded = Decoded {
        bytes: [0; MAX_KEY],
        len: 0,
    };
    let (mut group, mut padding) = (0u32, 0);
    for (number, (character, digit)) in digits().enumerate() {
        group = group << 6 | digit;
        padding += usize::from(character == b'=');
        if number % 4 == 3 {
            let [_, bytes @ ..] = group.to_be_bytes();
            decoded.bytes[decoded.len..][..3].copy_from_slice(&bytes);
            decoded.len += 3;
            group = 0;
            if padding > 0 {
                decoded.len = decoded.len.checked_sub(padding).filter(|_| padding <= 2)?;
                break;
            }
        }
    }
    Some(decoded)
}

fn digit(character: u8) -> Option<u32> {
    match character {
        b'=' => Some(0),
        b'A'..=b'Z' => Some(u32::from(character - b'A')),
        b'a'..=b'z' => Some(u32::from(character - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(character - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Appends the encoding of some bytes.
pub(super) fn encode(bytes: &[u8], text: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let byte = |n: usize| u32::from(group.get(n).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= group.len() { digit } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_base64_is_refused() {
        let decoded = |text: &[u8]| decode(text).map(|key| key.bytes().to_vec());
        assert_eq!(decoded(b"Zm9v"), Some(b"foo".to_vec()));
        assert_eq!(decoded(b"Zm8="), Some(b"fo".to_vec()));
        assert_eq!(decoded(b"Zg=="), Some(b"f".to_vec()));
        assert_eq!(decoded(b"Z-g=="), Some(b"f".to_vec()));
        for text in [&b""[..], b"Zg=", b"foo", b"A===", b"====", b"---"] {
            assert_eq!(decoded(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn keys_round_trip(key in prop::collection::vec(any::<u8>(), 1..=187)) {
            let mut text = Vec::new();
            encode(&key, &mut text);
            prop_assert!(text.len() <= MAX_KEY + 2);
            if text.len() <= MAX_KEY {
                let decoded = decode(&text).unwrap();
                prop_assert_eq!(decoded.bytes(), &key[..]);
            }
        }
    }
}
