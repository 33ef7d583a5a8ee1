//! The link header of every packet, and the checks that a receiver makes first.
//!
//! ```text
//!  0           4       8        12         14         16       20     24
//!  +-----------+-------+--------+----------+----------+--------+------+
//!  | partition | epoch | source | protocol | reserved | length | hold |   little endian
//!  +-----------+-------+--------+----------+----------+--------+------+
//! ```
//!
//! The ring or connection that a packet came through identifies its sender; the header only
//! confirms it. Between hosts, the hold is a duration from the arrival of the packet on.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::channel::MAX_PAYLOAD;
use crate::core::hold::Hold;
use crate::key::{Epoch, Partition};
use crate::test_knob::TestKnob;
use crate::topology::NodeId;

/// A protocol registered with the link layer, unique per node and partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u16);

/// A decoded link header. Decoding checks nothing; [`LinkCheck::admit`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHeader {
    /// The partition that the packet belongs to.
    pub partition: Partition,
    /// The sender's epoch.
    pub epoch: Epoch,
    /// The sender's node.
    pub source: NodeId,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Bytes of payload.
    pub len: u32,
    /// The time before which the payload is not received.
    pub hold: Hold,
}

impl LinkHeader {
    /// Bytes of the wire form.
    pub const LEN: usize = 24;

    /// Place of the hold.
    #[cfg(not(loom))]
    pub(crate) const HOLD: Range<usize> = 20..24;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&self.partition.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.source.0.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.protocol.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.hold.0.to_le_bytes());
        bytes
    }

    /// The header in these bytes.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        LinkHeader {
            partition: Partition(u32_at(0)),
            epoch: Epoch(u32_at(4)),
            source: NodeId(u32_at(8)),
            protocol: Protocol(u16::from_le_bytes([bytes[12], bytes[13]])),
            len: u32_at(16),
            hold: Hold(u32_at(20)),
        }
    }
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DropReason {
    UnknownPartition,
    OldEpoch,
    WrongSource,
    UnknownProtocol,
    BadLength,
}

/// Packets dropped, by reason.
#[derive(Debug, Default)]
pub struct DropCounters([AtomicU64; 5]);

impl DropCounters {
    /// Counts a dropped packet.
    pub fn count(&self, reason: DropReason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}

/// Expected header fields of the packets of one connection.
#[derive(Clone, Copy, Debug)]
pub struct LinkCheck {
    /// The connection's partition.
    pub partition: Partition,
    /// The node at its other end.
    pub peer: NodeId,
    /// The connection's protocol.
    pub protocol: Protocol,
    /// Epoch in which the connection was made; older packets are those of a former member.
    pub since: Epoch,
}

impl LinkCheck {
    /// Admits a packet whose `header` is as expected.
    ///
    /// Every epoch from `since` on is admitted: two members learn of a new epoch at different
    /// times, and no packet between them may get lost meanwhile. When a member leaves, the
    /// connection ends, and a new one starts with the epoch in which the member is back.
    ///
    /// # Errors
    /// The first expectation that does not hold.
    pub fn admit(&self, header: &LinkHeader) -> Result<(), DropReason> {
        let holds = |condition: bool, otherwise| condition.then_some(()).ok_or(otherwise);
        holds(
            header.partition == self.partition,
            DropReason::UnknownPartition,
        )?;
        holds(
            header.source == self.peer || TestKnob::WithoutSourceCheck.is_set(),
            DropReason::WrongSource,
        )?;
        holds(
            header.epoch >= self.since || TestKnob::WithoutEpochCheck.is_set(),
            DropReason::OldEpoch,
        )?;
        holds(
            header.protocol == self.protocol,
            DropReason::UnknownProtocol,
        )?;
        holds(header.len as usize <= MAX_PAYLOAD, DropReason::BadLength)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> LinkHeader {
        LinkHeader {
            partition: Partition(3),
            epoch: Epoch(7),
            source: NodeId(1),
            protocol: Protocol(9),
            len: 100,
            hold: Hold(0x0102_0304),
        }
    }

    #[test]
    fn the_wire_form_round_trips() {
        assert_eq!(LinkHeader::from_bytes(&header().to_bytes()), header());
    }

    #[test]
    fn each_wrong_field_is_named() {
        let check = LinkCheck {
            partition: Partition(3),
            peer: NodeId(1),
            protocol: Protocol(9),
            since: Epoch(5),
        };
        use DropReason::*;
        type Change = fn(&mut LinkHeader);
        let changes: [(Change, Result<(), DropReason>); 8] = [
            (|_| (), Ok(())),
            (|h| h.epoch = Epoch(5), Ok(())),
            (|h| h.epoch = Epoch(8), Ok(())),
            (|h| h.epoch = Epoch(4), Err(OldEpoch)),
            (|h| h.partition = Partition(4), Err(UnknownPartition)),
            (|h| h.source = NodeId(2), Err(WrongSource)),
            (|h| h.protocol = Protocol(8), Err(UnknownProtocol)),
            (|h| h.len = u32::MAX, Err(BadLength)),
        ];
        for (change, expected) in changes {
            let mut changed = header();
            change(&mut changed);
            assert_eq!(check.admit(&changed), expected, "{changed:?}");
        }
    }
}
