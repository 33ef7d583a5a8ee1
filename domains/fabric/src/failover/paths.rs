//! Counts by path.

/// Number of operations, batches of reads or packets, by path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// By the devices.
    pub device: u64,
    /// Over the connection.
    pub connection: u64,
    /// Number of connections of a queue pair of the device.
    pub connects: u64,
}
