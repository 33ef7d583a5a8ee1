//! Users of nodes: uids of the host, a range for each node, that nobody else has.
//!
//! Agents take them from the part of the uids that no convention has given to anybody (see "Users,
//! Groups, UIDs and GIDs on systemd Systems": from 0x7000_0000 on), below one another: each locks
//! its ranges in a file of the host for as long as its nodes live. The lock is of the open file
//! (`F_OFD_SETLK`, fcntl(2)), so that the keeper holds it while there is no agent.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{self, flock};
use serde::{Deserialize, Serialize};

use super::keeper::{Entry, Keeper};
use crate::node::USERS_PER_NODE;

/// The first uid that nodes may have.
const FIRST: u32 = 0x7000_0000;

/// How many nodes can have users. The last uid means nobody at all.
const RANGES: u32 = (u32::MAX - FIRST) / USERS_PER_NODE;

/// Its byte `n` is locked by the agent one of whose nodes has range `n`.
const REGISTER: &str = "/run/toroid.users";

/// What the keeper holds; the open register comes with it.
const KEY: &str = "users";

/// The users of an agent's nodes.
#[derive(Debug)]
pub(super) struct Users {
    record: Record,
    register: File,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Record {
    /// The range of the first node.
    start: u32,
}

impl Users {
    /// The key of what the keeper holds of them.
    pub(super) const KEY: &str = KEY;

    /// Those of the agent before.
    pub(super) fn inherit(kept: Entry) -> Option<Self> {
        let (record, [register]) = kept.parse()?;
        let register = register.into();
        Some(Users { record, register })
    }

    /// Takes ranges for so many nodes, or none if this process's user namespace has not enough
    /// users, as that of a container may.
    pub(super) fn take(nodes: u32) -> io::Result<Option<Self>> {
        let has_enough = |map: &str| {
            let map = fs::read_to_string(format!("/proc/self/{map}"))?;
            Ok::<_, io::Error>(is_mapped(&map, FIRST, nodes.saturating_mul(USERS_PER_NODE)))
        };
        if !has_enough("uid_map")? || !has_enough("gid_map")? {
            return Ok(None);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        options.custom_flags(OFlag::O_NOFOLLOW.bits());
        let register = options.open(REGISTER)?;
        let mut start = 0;
        while start + nodes <= RANGES {
            match lock(&register, start, nodes)? {
                None => {
                    let record = Record { start };
                    return Ok(Some(Users { record, register }));
                }
                Some(next) => start = next,
            }
        }
        Err(io::Error::other("other agents on this host have them all"))
    }

    /// Lets the keeper hold them, too.
    pub(super) fn keep(&self, keeper: &Keeper) {
        keeper.put(KEY, &self.record, &[self.register.as_fd()]);
    }

    /// The first uid, and gid, of a node by its number.
    pub(super) fn of(&self, node: u32) -> u32 {
        FIRST + (self.record.start + node) * USERS_PER_NODE
    }
}

/// Whether a map as in user_namespaces(7) has `count` ids from `first` on.
fn is_mapped(map: &str, first: u32, count: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(start)), Some(_), Some(Ok(len))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        start <= first.into() && u64::from(first) + u64::from(count) <= start + len
    })
}

/// Locks ranges, or says where those end that are in the way.
fn lock(register: &File, start: u32, count: u32) -> io::Result<Option<u32>> {
    loop {
        let mut wanted = flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: start.into(),
            l_len: count.into(),
            l_pid: 0,
        };
        match fcntl(register, FcntlArg::F_OFD_SETLK(&wanted)) {
            Ok(_) => return Ok(None),
            Err(Errno::EAGAIN | Errno::EACCES) => {}
            Err(error) => return Err(error.into()),
        }
        fcntl(register, FcntlArg::F_OFD_GETLK(&mut wanted))?;
        if i32::from(wanted.l_type) != libc::F_UNLCK {
            let end = u32::try_from(wanted.l_start + wanted.l_len);
            return Ok(Some(end.unwrap_or(RANGES)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_ranges_of_one_mapping_count() {
        let all = "         0          0 4294967295\n";
        assert!(is_mapped(all, FIRST, 1024 * USERS_PER_NODE));
        assert!(is_mapped("0 0 1000\n1000 5000 1000\n", 1500, 500));
        assert!(!is_mapped("0 0 1000\n1000 5000 1000\n", 1500, 501));
        assert!(!is_mapped("0 1000 65536\n", FIRST, 1));
        assert!(!is_mapped("", 0, 1));
        assert!(!is_mapped("no map", 0, 1));
    }

    #[test]
    fn locks_of_two_agents_are_side_by_side_and_go_with_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("register");
        let open = || {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            options.open(&path).unwrap()
        };
        let (first, second) = (open(), open());
        assert_eq!(lock(&first, 0, 8).unwrap(), None);
        assert_eq!(lock(&second, 0, 27).unwrap(), Some(8));
        assert_eq!(lock(&second, 8, 27).unwrap(), None);
        let kept = first.try_clone().unwrap();
        drop(first);
        let third = open();
        assert_eq!(lock(&third, 7, 1).unwrap(), Some(8), "a keeper has it");
        drop(kept);
        assert_eq!(lock(&third, 0, 8).unwrap(), None);
    }
}
