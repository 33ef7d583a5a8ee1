//! The header of a packet in a tunnel.
//!
//! ```text
//!  0        4       8        10      13     14
//!  +--------+-------+--------+-------+------+--------+
//!  | length | epoch | domain | place | zero | packet |   little endian; the length is the packet's
//!  +--------+-------+--------+-------+------+--------+
//! ```
//!
//! With a one in place of the zero, a [signal](super::signal) follows instead of a packet, and all other
//! fields but the length are zero.

use toroid_fabric::{Epoch, Partition, Place};

use super::signal::Signal;
use crate::headers::frame;
use crate::offload::{MAX_PACKET, Offload};

/// Domain, epoch and sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelHeader {
    /// The domain.
    pub partition: Partition,
    /// Epoch of the domain, as the sender's driver knows it.
    pub epoch: Epoch,
    /// Place of the member that sent the packet.
    pub place: Place,
}

/// The bytes are no message of this protocol. The messages behind them are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no message of a driver")]
pub struct ProtocolViolation;

/// A message that has arrived over a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A packet and its header.
    Packet(TunnelHeader, &'a [u8]),
    /// A signal about the RDMA stream.
    Signal(Signal),
}

impl TunnelHeader {
    /// Bytes of a header.
    pub const LEN: usize = 14;

    /// The header of a packet of `len` bytes.
    pub fn to_bytes(self, len: usize) -> [u8; Self::LEN] {
        let [a, b, c, d] = (len as u32).to_le_bytes();
        let [e, f, g, h] = self.epoch.0.to_le_bytes();
        let [i, j, ..] = self.partition.0.to_le_bytes();
        let Place { x, y, z } = self.place;
        [a, b, c, d, e, f, g, h, i, j, x, y, z, 0]
    }

    /// The header, and the checked length of its packet.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<(Self, usize), ProtocolViolation> {
        let [a, b, c, d, e, f, g, h, i, j, x, y, z, zero] = *bytes;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let possible = Offload::LEN + frame::HEADER_LEN..=MAX_PACKET;
        if zero != 0 || !possible.contains(&len) {
            return Err(ProtocolViolation);
        }
        let header = TunnelHeader {
            partition: Partition(u16::from_le_bytes([i, j]).into()),
            epoch: Epoch(u32::from_le_bytes([e, f, g, h])),
            place: Place { x, y, z },
        };
        Ok((header, len))
    }
}

/// Header of a signal.
pub(super) const SIGNAL_HEADER: [u8; TunnelHeader::LEN] = {
    let mut bytes = [0; TunnelHeader::LEN];
    bytes[0] = Signal::LEN as u8;
    bytes[TunnelHeader::LEN - 1] = 1;
    bytes
};

/// Header of a message.
pub(super) enum MessageHeader {
    /// Header of a packet and the length of the packet.
    Packet(TunnelHeader, usize),
    Signal,
}

impl MessageHeader {
    pub(super) fn read(bytes: &[u8; TunnelHeader::LEN]) -> Result<Self, ProtocolViolation> {
        if *bytes == SIGNAL_HEADER {
            Ok(MessageHeader::Signal)
        } else {
            let (header, len) = TunnelHeader::from_bytes(bytes)?;
            Ok(MessageHeader::Packet(header, len))
        }
    }

    /// Bytes behind the header.
    pub(super) fn body_len(&self) -> usize {
        match self {
            MessageHeader::Packet(_, len) => *len,
            MessageHeader::Signal => Signal::LEN,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::tunnel) const HEADER: TunnelHeader = TunnelHeader {
        partition: Partition(7),
        epoch: Epoch(0x01020304),
        place: Place { x: 1, y: 2, z: 3 },
    };

    #[test]
    fn a_header_has_the_documented_layout() {
        let bytes = HEADER.to_bytes(0x0a0b);
        assert_eq!(bytes, [0x0b, 0x0a, 0, 0, 4, 3, 2, 1, 7, 0, 1, 2, 3, 0]);
        assert_eq!(TunnelHeader::from_bytes(&bytes), Ok((HEADER, 0x0a0b)));
        for len in [0, 23, MAX_PACKET + 1, u32::MAX as usize] {
            assert_eq!(
                TunnelHeader::from_bytes(&HEADER.to_bytes(len)),
                Err(ProtocolViolation),
                "{len}"
            );
        }
        let mut other = bytes;
        other[13] = 1;
        assert_eq!(TunnelHeader::from_bytes(&other), Err(ProtocolViolation));
    }
}
