//! Names of regions, which an owner publishes so that peers can ask for access.

use std::fmt;
use std::str::FromStr;

use crate::topology::NodeId;

/// A domain as the fabric sees it: an opaque number in packets and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u32);

/// The age of a partition's membership. It grows whenever a member leaves and never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// A region, unique for the life of the agent that allocated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u64);

bitflags::bitflags! {
    /// Rights of peers to a region, as with the access flags of verbs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Peers may read.
        const REMOTE_READ = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may compare-and-swap and fetch-and-add. On `shm` this right and
        /// `REMOTE_WRITE` are one mapping: where only one is granted, the library alone withholds
        /// the other.
        const REMOTE_ATOMIC = 1 << 2;
    }
}

/// The name of a region that its owner publishes.
///
/// A key is an allegation until the peer's agent has checked it against membership and rights. The
/// 128-bit secret keeps keys from being guessed. The text form is 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    /// The owner's node.
    pub node: NodeId,
    /// The partition that the region belongs to.
    pub partition: Partition,
    /// The region.
    pub id: RegionId,
    /// Random bytes, known to the owner and to the peers that it gave the key.
    pub secret: [u8; 16],
}

/// A text or byte string that is no [`RemoteKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a remote key: expected 64 hexadecimal digits")]
pub struct KeyFormatError;

/// ```text
///  0      4           8        16       32
///  +------+-----------+--------+--------+
///  | node | partition |   id   | secret |   little endian
///  +------+-----------+--------+--------+
/// ```
impl RemoteKey {
    /// Bytes of the wire form.
    pub const LEN: usize = 32;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&self.node.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.partition.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.secret);
        bytes
    }

    /// The key with this wire form. Every byte string of the right length is some key.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut id = [0; 8];
        id.copy_from_slice(&bytes[8..16]);
        let mut secret = [0; 16];
        secret.copy_from_slice(&bytes[16..32]);
        RemoteKey {
            node: NodeId(u32_at(0)),
            partition: Partition(u32_at(4)),
            id: RegionId(u64::from_le_bytes(id)),
            secret,
        }
    }
}

impl fmt::Display for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Leaves the secret out, so that logs may show keys.
impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKey")
            .field("node", &self.node.0)
            .field("partition", &self.partition.0)
            .field("id", &self.id.0)
            .finish_non_exhaustive()
    }
}

impl FromStr for RemoteKey {
    type Err = KeyFormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.as_bytes();
        if digits.len() != 2 * Self::LEN {
            return Err(KeyFormatError);
        }
        let mut bytes = [0; Self::LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).ok_or(KeyFormatError);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Self::from_bytes(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_round_trip() {
        let key = RemoteKey {
            node: NodeId(7),
            partition: Partition(0x0102_0304),
            id: RegionId(u64::MAX),
            secret: *b"0123456789abcdef",
        };
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(RemoteKey::from_bytes(&key.to_bytes()), key);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "00", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            assert_eq!(text.parse::<RemoteKey>(), Err(KeyFormatError));
        }
    }

    #[test]
    fn debug_keeps_the_secret() {
        let key = RemoteKey::from_bytes(&[0xab; 32]);
        assert!(!format!("{key:?}").contains("171"));
    }
}
