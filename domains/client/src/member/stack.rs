//! The link of a process with its own IP stack.

use std::os::fd::OwnedFd;

use toroid_protocol::agent::{ReplyValue, Request, StackInfo};

use super::{Domain, MemberError, unexpected};

impl Domain {
    /// Makes this process the end of the node's link in this domain, until the process closes the
    /// socket. The socket also ends when the node leaves the domain and when the driver ends; after
    /// the latter, ask again.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when the node's interface in the domain is no stack, or another
    /// process has the link; [`MemberError::System`] when this process has no free descriptor.
    pub fn stack(&self) -> Result<(StackInfo, OwnedFd), MemberError> {
        let domain = self.name.to_string();
        let answer = self.member.control.call(Request::Stack { domain })?;
        let info = StackInfo::from_reply(answer.reply).map_err(|other| unexpected(&other))?;
        let socket = answer.descriptors.into_iter().next();
        let no_room = || std::io::Error::other("no descriptor is free for a link");
        Ok((info, socket.ok_or_else(no_room)?))
    }
}
