//! The user, group and process at the other end of a Unix socket.

use std::io;
use std::os::unix::net::UnixStream;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::Uid;
use serde::{Deserialize, Serialize};

/// The user and group that own the files of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The user at the other end, as seen from this user namespace.
///
/// # Errors
/// The system's.
///
/// Not with rustix: its credentials always have a process id, and there is none where the other
/// end is outside of this PID namespace, as an agent is for its nodes.
pub fn peer_uid(stream: &UnixStream) -> io::Result<Uid> {
    let credentials = getsockopt(stream, PeerCredentials)?;
    Ok(Uid::from_raw(credentials.uid()))
}

/// The user and the group at the other end.
///
/// # Errors
/// The system's.
pub fn peer_ids(stream: &UnixStream) -> io::Result<Ids> {
    let credentials = getsockopt(stream, PeerCredentials)?;
    Ok(Ids {
        uid: credentials.uid(),
        gid: credentials.gid(),
    })
}

/// The process that connected at the other end, if it is in this PID namespace or below.
pub fn peer_pid(stream: &UnixStream) -> Option<u32> {
    let credentials = getsockopt(stream, PeerCredentials).ok()?;
    u32::try_from(credentials.pid())
        .ok()
        .filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_the_same_user() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(peer_uid(&ours).unwrap(), Uid::effective());
    }
}
