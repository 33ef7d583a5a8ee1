//! The link of a process that brings its own IP stack.

use std::os::fd::OwnedFd;

use toroid_protocol::agent::{Reply, Request, StackInfo};

use super::{Domain, MemberError, unexpected};

impl Domain {
    /// Makes this process the end of the node's link in this domain, until it closes the socket.
    /// The socket ends when the node leaves, and when the driver does; then ask again.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when the node's interface there is no stack, or another process has
    /// it; [`MemberError::System`] when the socket could not be taken.
    pub fn stack(&self) -> Result<(StackInfo, OwnedFd), MemberError> {
        let domain = self.name.to_string();
        let answer = self.member.control.call(Request::Stack { domain })?;
        let Reply::Stack(info) = answer.reply else {
            return Err(unexpected(&answer.reply));
        };
        let socket = answer.descriptors.into_iter().next();
        let no_room = || std::io::Error::other("no descriptor is free for a link");
        Ok((info, socket.ok_or_else(no_room)?))
    }
}
