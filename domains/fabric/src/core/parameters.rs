//! Parameters that two sides exchange before they can communicate, and their wire forms.
//!
//! The code that sets up a connection transports the parameters. They come from the other side, so
//! every byte is checked before it reaches a driver.

use crate::key::{Access, RemoteKey};

/// Why bytes are not valid parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the parameters of a {of}: {why}")]
pub struct ParameterError {
    of: &'static str,
    why: &'static str,
}

/// Parameters of one end of a connection, which the other end needs.
///
/// ```text
///  0        4      8      10    11      12           16    32
///  +--------+------+------+-----+-------+------------+-----+
///  | number | psn  | lid  | mtu | depth | reserved   | gid |   little endian
///  +--------+------+------+-----+-------+------------+-----+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// The queue pair's number, 24 bits.
    pub number: u32,
    /// Packet sequence number of the first packet sent, 24 bits.
    pub psn: u32,
    /// The port's local identifier on InfiniBand; 0 elsewhere.
    pub lid: u16,
    /// Path MTU as `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Reads and atomics that this end answers at a time.
    pub depth: u8,
    /// The port's global identifier.
    pub gid: [u8; 16],
}

impl ConnectionParameters {
    /// Bytes of the wire form.
    pub const LEN: usize = 32;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_le_bytes());
        bytes[10] = self.mtu;
        bytes[11] = self.depth;
        bytes[16..32].copy_from_slice(&self.gid);
        bytes
    }

    /// The parameters with this wire form.
    ///
    /// # Errors
    /// A number that no queue pair has.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, ParameterError> {
        let parameters = ConnectionParameters {
            number: u32::from_le_bytes(field(bytes, 0)),
            psn: u32::from_le_bytes(field(bytes, 4)),
            lid: u16::from_le_bytes(field(bytes, 8)),
            mtu: bytes[10],
            depth: bytes[11],
            gid: field(bytes, 16),
        };
        let refuse = |why| ParameterError {
            of: "connection",
            why,
        };
        match parameters {
            _ if parameters.number >> 24 != 0 => Err(refuse("numbers have 24 bits")),
            _ if parameters.psn >> 24 != 0 => Err(refuse("packet numbers have 24 bits")),
            _ if !(1..=5).contains(&parameters.mtu) => Err(refuse("the MTU is from 1 to 5")),
            _ => Ok(parameters),
        }
    }
}

/// Parameters of one end of an [RDMA stream](crate::rdma_stream), which the other end needs.
///
/// ```text
///  0            32        40     44         48
///  +------------+---------+------+----------+
///  | connection | address | rkey | reserved |   little endian
///  +------------+---------+------+----------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaStreamParameters {
    /// The queue pair.
    pub connection: ConnectionParameters,
    /// Address of the ring in which this end receives.
    pub address: u64,
    /// Key for writing that ring, checked by this end's device.
    pub rkey: u32,
}

impl RdmaStreamParameters {
    /// Bytes of the wire form.
    pub const LEN: usize = 48;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..32].copy_from_slice(&self.connection.to_bytes());
        bytes[32..40].copy_from_slice(&self.address.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.rkey.to_le_bytes());
        bytes
    }

    /// The parameters with this wire form.
    ///
    /// # Errors
    /// As [`ConnectionParameters::from_bytes`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, ParameterError> {
        Ok(RdmaStreamParameters {
            connection: ConnectionParameters::from_bytes(&field(bytes, 0))?,
            address: u64::from_le_bytes(field(bytes, 32)),
            rkey: u32::from_le_bytes(field(bytes, 40)),
        })
    }
}

/// Parameters of an exported region, which a peer needs to use it.
///
/// ```text
///  0     32      36       37         40        48       56
///  +-----+-------+--------+----------+---------+--------+
///  | key | rkey  | access | reserved | address | length |   little endian
///  +-----+-------+--------+----------+---------+--------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionParameters {
    /// The region's remote key.
    pub key: RemoteKey,
    /// Key that the owner's device checks.
    pub rkey: u32,
    /// Rights of a peer. The owner's device checks them, too.
    pub access: Access,
    /// Address of the region in the owner's memory.
    pub address: u64,
    /// Bytes of the region.
    pub len: u64,
}

impl RegionParameters {
    /// Bytes of the wire form.
    pub const LEN: usize = 56;

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..32].copy_from_slice(&self.key.to_bytes());
        bytes[32..36].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[36] = self.access.bits();
        bytes[40..48].copy_from_slice(&self.address.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The parameters with this wire form.
    ///
    /// # Errors
    /// An unknown right, or a region that ends beyond all memory.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, ParameterError> {
        let refuse = |why| ParameterError { of: "region", why };
        let parameters = RegionParameters {
            key: RemoteKey::from_bytes(&field(bytes, 0)),
            rkey: u32::from_le_bytes(field(bytes, 32)),
            access: Access::from_bits(bytes[36]).ok_or_else(|| refuse("an unknown right"))?,
            address: u64::from_le_bytes(field(bytes, 40)),
            len: u64::from_le_bytes(field(bytes, 48)),
        };
        match parameters.address.checked_add(parameters.len) {
            Some(_) => Ok(parameters),
            None => Err(refuse("it ends beyond all memory")),
        }
    }
}

/// The `N` bytes at `at` of a wire form.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Partition, RegionId};
    use crate::topology::NodeId;

    fn connection() -> ConnectionParameters {
        ConnectionParameters {
            number: 0x12_3456,
            psn: 0xff_ffff,
            lid: 7,
            mtu: 5,
            depth: 16,
            gid: [9; 16],
        }
    }

    fn region() -> RegionParameters {
        RegionParameters {
            key: RemoteKey {
                node: NodeId(1),
                partition: Partition(2),
                id: RegionId(3),
                secret: [4; 16],
            },
            rkey: 0xdead_beef,
            access: Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            address: 0x7fff_0000_1000,
            len: 1 << 40,
        }
    }

    #[test]
    fn the_wire_forms_round_trip() {
        let bytes = connection().to_bytes();
        assert_eq!(ConnectionParameters::from_bytes(&bytes), Ok(connection()));
        let bytes = region().to_bytes();
        assert_eq!(RegionParameters::from_bytes(&bytes), Ok(region()));
        let stream = RdmaStreamParameters {
            connection: connection(),
            address: 0x7fff_0000_1000,
            rkey: 0xdead_beef,
        };
        assert_eq!(
            RdmaStreamParameters::from_bytes(&stream.to_bytes()),
            Ok(stream)
        );
    }

    #[test]
    fn impossible_parameters_are_refused() {
        let changes: [fn(&mut ConnectionParameters); 4] = [
            |p| p.number = 1 << 24,
            |p| p.psn = 1 << 24,
            |p| p.mtu = 0,
            |p| p.mtu = 6,
        ];
        for change in changes {
            let mut changed = connection();
            change(&mut changed);
            let read = ConnectionParameters::from_bytes(&changed.to_bytes());
            assert!(read.is_err(), "{changed:?}");
        }
        let mut bytes = region().to_bytes();
        bytes[36] = 8;
        assert!(RegionParameters::from_bytes(&bytes).is_err());
        let endless = RegionParameters {
            len: u64::MAX,
            ..region()
        };
        assert!(RegionParameters::from_bytes(&endless.to_bytes()).is_err());
    }
}
