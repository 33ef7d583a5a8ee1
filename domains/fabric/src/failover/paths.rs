//! Which of the two paths was taken.

/// Operations, and batches of reads, by the way that they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// By the devices.
    pub device: u64,
    /// Over the connection.
    pub connection: u64,
    /// Times that a queue pair of the device was connected.
    pub connects: u64,
}
