//! Values that describe themselves.
//!
//! The first word has a version, and a check of key and version; each that follows comes from the one
//! before. The length follows from key and version, too. So a value that is mixed of two, is another
//! key's, has another's length, or is older than one seen before is noticed.

use crate::random::mix;

/// The shortest and the longest value, in bytes.
const SHORTEST: usize = 8;
const LONGEST: usize = 1 << 20;

/// One key of so many has long values.
const LONG_EVERY: u32 = 512;

fn first(key: u32, version: u32) -> u64 {
    let check = mix(u64::from(key) << 32 | u64::from(version)) as u32;
    u64::from(version) << 32 | u64::from(check)
}

/// Bytes of a version of a key: of most keys up to a KiB, of some up to a MiB; as many short ones as
/// long ones of either.
fn len(key: u32, version: u32) -> usize {
    let random = mix(first(key, version));
    let most = if key.is_multiple_of(LONG_EVERY) {
        LONGEST
    } else {
        1 << 10
    };
    let doublings = (most / SHORTEST).ilog2();
    let base = SHORTEST << (random % u64::from(doublings));
    base + (random >> 32) as usize % (base + 1)
}

/// Replaces `value` by a version of a key.
pub fn write(value: &mut Vec<u8>, key: u32, version: u32) {
    let len = len(key, version);
    value.clear();
    let mut word = first(key, version);
    while value.len() < len {
        value.extend_from_slice(&word.to_le_bytes());
        word = mix(word);
    }
    value.truncate(len);
}

/// The version of a key that a value is.
///
/// # Errors
/// The reason for which the value is no version of the key.
pub fn check(value: &[u8], key: u32) -> Result<u32, String> {
    let (words, rest) = value.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let found = words.next().ok_or("it is too short")?;
    let version = (found >> 32) as u32;
    if found != first(key, version) {
        return Err("its first word is no version of the key".into());
    }
    if value.len() != len(key, version) {
        return Err(format!("version {version} with {} bytes", value.len()));
    }
    let mut word = found;
    for (number, found) in (1..).zip(words) {
        word = mix(word);
        if found != word {
            return Err(format!("version {version} up to word {number} of it"));
        }
    }
    if mix(word).to_le_bytes().starts_with(rest) {
        Ok(version)
    } else {
        Err(format!("version {version} but for its last bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_tell_their_version_and_nothing_else_passes() {
        let mut value = Vec::new();
        let mut lens = vec![];
        for (key, version) in (0..1200).map(|n| (n % 600, n)) {
            write(&mut value, key, version);
            lens.push(value.len());
            assert_eq!(check(&value, key), Ok(version));
            assert!(check(&value, key + 1).is_err());
            let at = version as usize % value.len();
            value[at] ^= 1;
            assert!(check(&value, key).is_err());
            value[at] ^= 1;
            value.push(0);
            assert!(check(&value, key).is_err());
            value.truncate(value.len() - 2);
            assert!(check(&value, key).is_err());
        }
        assert!(lens.contains(&8) && lens.iter().all(|len| (8..=LONGEST).contains(len)));
    }
}
