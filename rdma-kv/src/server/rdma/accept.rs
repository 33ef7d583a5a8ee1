//! Listener for the channels of RDMA clients.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use toroid_client::member::{Listener, MemberError};
use toroid_fabric::PacketChannel;
use toroid_fabric::emulation::Channel;

/// Accepts the channels of clients.
pub(crate) trait Accept {
    /// Channel of a client.
    type Channel: PacketChannel;

    /// The next channel, if there is one now.
    ///
    /// # Errors
    /// [`MemberError`] when there will be no more.
    fn accept(&self) -> Result<Option<Self::Channel>, MemberError>;

    /// A descriptor that is readable while there is a channel.
    fn wake_fd(&self) -> BorrowedFd<'_>;
}

impl Accept for Listener {
    type Channel = Channel;

    fn accept(&self) -> Result<Option<Channel>, MemberError> {
        Listener::accept(self, Duration::ZERO)
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        Listener::wake_fd(self)
    }
}
