//! Patterns of bytes that a receiver can verify.

/// An odd constant with well-spread bits (the golden ratio), as in splitmix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes of key and version at the start of a value.
pub const HEADER: usize = 16;

/// A hash of `seed` (splitmix64's finalizer): neighbours give unrelated numbers.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `bytes` with the pattern of `seed`.
pub fn fill(seed: u64, bytes: &mut [u8]) {
    let mut word = mix(seed);
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
}

/// Whether `bytes` are the pattern of `seed`.
pub fn matches(seed: u64, bytes: &[u8]) -> bool {
    let mut word = mix(seed);
    let chunks = bytes.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        if chunk != word.to_le_bytes() {
            return false;
        }
        word = word.wrapping_add(STEP);
    }
    rest == &word.to_le_bytes()[..rest.len()]
}

/// Fills `bytes` (at least [`HEADER`]) with the value of key `index` in version `salt`.
pub fn fill_value(index: u64, salt: u64, bytes: &mut [u8]) {
    bytes[..8].copy_from_slice(&index.to_le_bytes());
    bytes[8..HEADER].copy_from_slice(&salt.to_le_bytes());
    fill(index ^ mix(salt), &mut bytes[HEADER..]);
}

/// Whether `bytes` are a whole value of key `index`, of version `salt` or of any version.
pub fn is_value(index: u64, salt: Option<u64>, bytes: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let Some((found_index, found_salt)) = word(0).zip(word(8)) else {
        return false;
    };
    found_index == index
        && salt.is_none_or(|salt| salt == found_salt)
        && matches(index ^ mix(found_salt), &bytes[HEADER..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_noticed() {
        for len in [1, 7, 8, 9, 200, 1000] {
            let mut bytes = vec![0; len];
            fill(3, &mut bytes);
            assert!(matches(3, &bytes));
            assert!(!matches(4, &bytes));
            for at in 0..len {
                bytes[at] ^= 1;
                assert!(!matches(3, &bytes), "byte {at} of {len}");
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn values_carry_key_and_version() {
        let mut bytes = vec![0; 1024];
        fill_value(7, 2, &mut bytes);
        assert!(is_value(7, Some(2), &bytes));
        assert!(is_value(7, None, &bytes));
        assert!(!is_value(8, None, &bytes));
        assert!(!is_value(7, Some(3), &bytes));
        for at in [0, 8, 16, 1023] {
            bytes[at] ^= 1;
            assert!(!is_value(7, None, &bytes), "byte {at}");
            bytes[at] ^= 1;
        }
        for len in [0, 8, 15] {
            assert!(!is_value(7, None, &bytes[..len]));
        }
    }
}
