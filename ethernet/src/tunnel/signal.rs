//! Signals about the [RDMA stream](super::rdma_stream) of a tunnel, on the connection beside it.
//!
//! ```text
//!  0      1      4        8            56
//!  +------+------+--------+------------+
//!  | kind | zero | number | parameters |   little endian; the parameters are zero if there are none
//!  +------+------+--------+------------+
//! ```
//!
//! One side offers streams and numbers them. The other side prepares its end, connects it and answers. Then
//! the first side connects its end and waits for a begin signal over the stream itself. From a begin signal
//! over the connection on, the packets of its sender go over the stream; from an end signal on, over the
//! connection again. No packet therefore overtakes another.

use toroid_fabric::parameters::RdmaStreamParameters;

use super::header::{ProtocolViolation, SIGNAL_HEADER, TunnelHeader};

/// A signal about one RDMA stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Number of the stream.
    pub(crate) number: u32,
    /// Content.
    pub(crate) kind: SignalKind,
}

/// Content of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalKind {
    /// Parameters of the sender's end, to which the receiver connects a new stream.
    Offer(RdmaStreamParameters),
    /// Parameters of the sender's end, which is connected to the offered one.
    Answer(RdmaStreamParameters),
    /// The next packets of the sender go over the stream.
    Begin,
    /// There is no stream, or it has ended.
    End,
}

impl Signal {
    /// Bytes of a signal without its header.
    pub const LEN: usize = 56;

    /// The bytes, with a header.
    pub(crate) fn to_message(self) -> [u8; TunnelHeader::LEN + Self::LEN] {
        let mut bytes = [0; TunnelHeader::LEN + Self::LEN];
        bytes[..TunnelHeader::LEN].copy_from_slice(&SIGNAL_HEADER);
        bytes[TunnelHeader::LEN..].copy_from_slice(&self.to_bytes());
        bytes
    }

    /// The bytes, without a header.
    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let none = [0; RdmaStreamParameters::LEN];
        let (kind, parameters) = match self.kind {
            SignalKind::Offer(parameters) => (1, parameters.to_bytes()),
            SignalKind::Answer(parameters) => (2, parameters.to_bytes()),
            SignalKind::Begin => (3, none),
            SignalKind::End => (4, none),
        };
        let mut bytes = [0; Self::LEN];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&parameters);
        bytes
    }

    /// Reads a signal.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub(super) fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, ProtocolViolation> {
        let [kind, 0, 0, 0, a, b, c, d, parameters @ ..] = bytes else {
            return Err(ProtocolViolation);
        };
        let has_none = parameters.iter().all(|byte| *byte == 0);
        let read = || RdmaStreamParameters::from_bytes(parameters).map_err(|_| ProtocolViolation);
        let kind = match kind {
            1 => SignalKind::Offer(read()?),
            2 => SignalKind::Answer(read()?),
            3 if has_none => SignalKind::Begin,
            4 if has_none => SignalKind::End,
            _ => return Err(ProtocolViolation),
        };
        let number = u32::from_le_bytes([*a, *b, *c, *d]);
        Ok(Signal { number, kind })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use toroid_fabric::parameters::ConnectionParameters;

    use super::*;

    /// Parameters of some stream.
    pub(crate) fn parameters() -> RdmaStreamParameters {
        RdmaStreamParameters {
            connection: ConnectionParameters {
                number: 0x11,
                psn: 0x22,
                lid: 0,
                mtu: 5,
                depth: 1,
                gid: [9; 16],
            },
            address: 0x7fff_0000_0000,
            rkey: 0x33,
        }
    }

    #[test]
    fn signals_have_the_documented_layout() {
        let kinds = [
            SignalKind::Offer(parameters()),
            SignalKind::Answer(parameters()),
            SignalKind::Begin,
            SignalKind::End,
        ];
        for (kind, first) in kinds.into_iter().zip(1..) {
            let number = 0x0102_0304;
            let signal = Signal { number, kind };
            let bytes = signal.to_bytes();
            assert_eq!(bytes[..8], [first, 0, 0, 0, 4, 3, 2, 1]);
            assert_eq!(Signal::from_bytes(&bytes), Ok(signal));
        }
    }

    #[test]
    fn anything_else_is_a_violation() {
        let begin = Signal {
            number: 1,
            kind: SignalKind::Begin,
        };
        for (at, byte) in [(0, 0), (0, 5), (0, 1), (1, 1), (3, 1), (8, 1), (55, 1)] {
            let mut bytes = begin.to_bytes();
            bytes[at] = byte;
            assert_eq!(
                Signal::from_bytes(&bytes),
                Err(ProtocolViolation),
                "{at}: {byte}"
            );
        }
    }
}
