//! Sources of epoll events, encoded in the 64 bits of data that each event carries.
//!
//! ```text
//!  63  59       58       57       56          24   16   8    0
//!  +---+--------+--------+--------+-----------+----+----+----+
//!  | 0 | stream | tunnel | uplink | partition | x  | y  | z  |
//!  +---+--------+--------+--------+-----------+----+----+----+
//!                                 | 0         | host         |
//! ```

use toroid_fabric::{Partition, Place};

use crate::tunnel::HostId;

/// Source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventSource {
    /// The eventfd that announces tasks.
    Doorbell,
    /// The timer of the delay line and of paused members.
    Timer,
    /// The port of a member.
    Port(Partition, Place),
    /// The uplink of a bridge.
    Uplink(Partition),
    /// The connection of a tunnel.
    Tunnel(HostId),
    /// The RDMA stream of a tunnel.
    Stream(HostId),
}

/// All other sources fit 59 bits.
const DOORBELL: u64 = u64::MAX;
pub(super) const TIMER: u64 = u64::MAX - 1;
const UPLINK: u64 = 1 << 56;
const TUNNEL: u64 = 1 << 57;
const STREAM: u64 = 1 << 58;

impl EventSource {
    /// The data of its events.
    pub(super) fn to_data(self) -> u64 {
        match self {
            EventSource::Doorbell => DOORBELL,
            EventSource::Timer => TIMER,
            EventSource::Port(Partition(partition), Place { x, y, z }) => {
                let [x, y, z] = [x, y, z].map(u64::from);
                u64::from(partition) << 24 | x << 16 | y << 8 | z
            }
            EventSource::Uplink(Partition(partition)) => UPLINK | u64::from(partition) << 24,
            EventSource::Tunnel(HostId(host)) => TUNNEL | u64::from(host),
            EventSource::Stream(HostId(host)) => STREAM | u64::from(host),
        }
    }

    /// The source of an event with this data.
    pub(super) fn from_data(data: u64) -> Self {
        let [_, a, b, c, d, x, y, z] = data.to_be_bytes();
        let partition = Partition(u32::from_be_bytes([a, b, c, d]));
        match data {
            DOORBELL => EventSource::Doorbell,
            TIMER => EventSource::Timer,
            _ if data & STREAM != 0 => EventSource::Stream(HostId(data as u32)),
            _ if data & TUNNEL != 0 => EventSource::Tunnel(HostId(data as u32)),
            _ if data & UPLINK != 0 => EventSource::Uplink(partition),
            _ => EventSource::Port(partition, Place { x, y, z }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_an_event_names_its_source() {
        let (partition, host) = (Partition(u32::MAX), HostId(u32::MAX));
        for source in [
            EventSource::Doorbell,
            EventSource::Timer,
            EventSource::Port(partition, Place { x: 1, y: 2, z: 255 }),
            EventSource::Uplink(partition),
            EventSource::Tunnel(host),
            EventSource::Stream(host),
        ] {
            assert_eq!(EventSource::from_data(source.to_data()), source);
        }
    }
}
