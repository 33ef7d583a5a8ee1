//! Hash of keys, which clients and servers compute alike: a part of the protocol, as the layout is.
//!
//! The construction is that of wyhash: folded 128-bit multiplications, 16 bytes at a time. It differs from
//! published wyhash, rapidhash and xxh3 in one respect, for which it is kept: no factor of any
//! multiplication is known without the seed. With the public constants of those hashes, a key can make a
//! factor 0 and so erase all that came before it, seed and all, and any number of such keys collide. (A
//! test has such keys.) For short keys it needs as few multiplications as they do, so another hash would
//! not make gets faster; and any change raises [`VERSION`](super::messages::VERSION).

const A: u64 = 0xa076_1d64_78bd_642f;
const B: u64 = 0xe703_7ed1_a0b4_28db;
const C: u64 = 0x8ebc_6af0_9c88_c6e3;

/// Hashes a key.
///
/// The server draws `seed` at each start. Without it, keys that share a bucket cannot be chosen.
pub fn hash(seed: u64, key: &[u8]) -> u64 {
    let secret = fold(seed ^ A, !seed ^ B);
    let mut state = fold(secret ^ C, seed ^ A);
    let (chunks, tail) = key.as_chunks::<16>();
    for chunk in chunks {
        state = mix(secret, state, chunk);
    }
    if !tail.is_empty() {
        let mut chunk = [0; 16];
        chunk[..tail.len()].copy_from_slice(tail);
        state = mix(secret, state, &chunk);
    }
    // The length distinguishes a short tail from one padded with zeros.
    fold(state ^ C, key.len() as u64 ^ B)
}

fn mix(secret: u64, state: u64, chunk: &[u8; 16]) -> u64 {
    let both = u128::from_le_bytes(*chunk);
    fold(both as u64 ^ secret, (both >> 64) as u64 ^ state)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn similar_keys_differ_in_bucket_and_tag() {
        let keys = (0..100_000).map(|n| format!("key{n}"));
        let hashes: Vec<u64> = keys.map(|key| hash(1, key.as_bytes())).collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 100_000);
        for shift in [0, 8, 48, 56] {
            let mut counts = [0u32; 256];
            hashes
                .iter()
                .for_each(|h| counts[(h >> shift & 0xff) as usize] += 1);
            assert!(
                counts.iter().all(|n| (280..520).contains(n)),
                "{shift}: {counts:?}"
            );
        }
    }

    #[test]
    fn length_and_seed_change_the_hash() {
        assert_ne!(hash(1, b"a"), hash(1, b"a\0"));
        assert_ne!(hash(1, b""), hash(1, b"\0"));
        assert_ne!(hash(1, b"a"), hash(2, b"a"));
    }

    /// A key's chunk of a public constant once made a factor 0, and all such keys collided.
    #[test]
    fn chunks_of_public_constants_do_not_collide() {
        for constant in [0, A, B, C, !A, !B, !C] {
            let halves = (0..1000u64).flat_map(|n| [[constant, n], [n, constant]]);
            let keys = halves.map(|halves| halves.map(u64::to_le_bytes).concat());
            let keys: HashSet<Vec<u8>> = keys.collect();
            for seed in [0, 1, u64::MAX] {
                let hashes: HashSet<u64> = keys.iter().map(|key| hash(seed, key)).collect();
                assert_eq!(hashes.len(), keys.len(), "{constant:#x}, seed {seed}");
            }
        }
    }
}
