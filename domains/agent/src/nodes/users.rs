//! Users of nodes: an exclusive range of the host's uids for each life of a node.
//!
//! Agents take ranges from uids that no convention assigns (see "Users, Groups, UIDs and GIDs on
//! systemd Systems"; directory services choose theirs below), one after another. A file of the host
//! has the next one, so a range is reused last, when files of its users are long gone. While the
//! node lives, the agent locks a byte of that file. The lock is of the open file (`F_OFD_SETLK`,
//! fcntl(2)), so the fd store holds it while there is no agent.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{self, flock};
use parking_lot::Mutex;

use super::node::USERS_PER_NODE;
use crate::fdstore::{Entry, FdStore};

/// First uid of nodes.
const FIRST: u32 = 0x7800_0000;

/// Number of ranges. The last uid means nobody at all.
const RANGES: u32 = (u32::MAX - FIRST) / USERS_PER_NODE;

/// Range that systemd has for files of other systems.
const FOREIGN: u32 = (0x7ffe_0000 - FIRST) / USERS_PER_NODE;

/// File whose byte `n` is locked by the agent of the node with range `n`. It begins with the number
/// of the next range to try, as text.
const REGISTER: &str = "/run/toroid.users";

/// Byte behind all ranges, locked while a range is chosen.
const TURN: u32 = RANGES;

/// Source of users for the nodes of an agent.
#[derive(Debug)]
pub(crate) struct Users {
    path: PathBuf,
    /// Open file with the locks. The mutex is held while locks change.
    register: Mutex<File>,
}

impl Users {
    /// Key under which the fd store holds the open register.
    pub(crate) const KEY: &str = "users";

    /// Takes over the predecessor's register.
    pub(crate) fn inherit(kept: Entry) -> Option<Self> {
        let ((), [register]) = kept.parse()?;
        let register = Mutex::new(register.into());
        Some(Users {
            path: REGISTER.into(),
            register,
        })
    }

    /// First uid of the last range.
    pub(super) const LAST: u32 = FIRST + (RANGES - 1) * USERS_PER_NODE;

    /// Opens the register, if nodes can have users.
    pub(crate) fn open() -> io::Result<Option<Self>> {
        if Self::are_mapped()? {
            Self::open_at(Path::new(REGISTER)).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Whether this process's user namespace has all users, which that of a container may lack.
    pub(super) fn are_mapped() -> io::Result<bool> {
        let has_all = |map: &str| {
            let map = fs::read_to_string(format!("/proc/self/{map}"))?;
            Ok::<_, io::Error>(is_mapped(&map, FIRST, RANGES * USERS_PER_NODE))
        };
        Ok(has_all("uid_map")? && has_all("gid_map")?)
    }

    fn open_at(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        options.custom_flags(OFlag::O_NOFOLLOW.bits());
        Ok(Users {
            path: path.into(),
            register: Mutex::new(options.open(path)?),
        })
    }

    /// Puts the register into the fd store.
    pub(crate) fn keep(&self, fd_store: &FdStore) {
        let register = self.register.lock();
        fd_store.put(Self::KEY, &(), &[register.as_fd()]);
    }

    /// Takes a range and returns its first uid.
    pub(crate) fn take(&self) -> io::Result<u32> {
        let register = self.register.lock();
        // Locks of this agent do not conflict with its own open file, but with another one.
        let others = OpenOptions::new().read(true).write(true).open(&self.path)?;
        set_lock(&others, libc::F_WRLCK, TURN, true)?;
        let mut text = [0; 16];
        let read = register.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..read]);
        let next: u32 = text.trim().parse().unwrap_or_default();
        for n in (0..RANGES).map(|n| (next % RANGES + n) % RANGES) {
            if n != FOREIGN && is_free(&others, n)? {
                set_lock(&register, libc::F_WRLCK, n, false)?;
                register.write_all_at(format!("{:10}\n", n + 1).as_bytes(), 0)?;
                return Ok(FIRST + n * USERS_PER_NODE);
            }
        }
        Err(io::Error::other("nodes of this host have them all"))
    }

    /// Releases a range whose node has ended.
    pub(crate) fn give_back(&self, first: u32) {
        let register = self.register.lock();
        let n = first.saturating_sub(FIRST) / USERS_PER_NODE;
        if let Err(error) = set_lock(&register, libc::F_UNLCK, n, false) {
            tracing::warn!("cannot give users of a node back: {error}");
        }
    }
}

/// Whether a uid of the host belongs to nodes, and to no person.
pub(crate) fn is_of_nodes(uid: u32) -> bool {
    (FIRST..FIRST + RANGES * USERS_PER_NODE).contains(&uid)
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

fn byte(kind: i32, n: u32) -> flock {
    flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: n.into(),
        l_len: 1,
        l_pid: 0,
    }
}

/// Locks or unlocks a byte, and waits for it if `waits`.
fn set_lock(register: &File, kind: i32, n: u32, waits: bool) -> io::Result<()> {
    let lock = byte(kind, n);
    loop {
        let set = if waits {
            FcntlArg::F_OFD_SETLKW(&lock)
        } else {
            FcntlArg::F_OFD_SETLK(&lock)
        };
        match fcntl(register, set) {
            Err(Errno::EINTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

/// Whether a byte is not locked through another open file.
fn is_free(register: &File, n: u32) -> io::Result<bool> {
    let mut lock = byte(libc::F_WRLCK, n);
    fcntl(register, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) == libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_ranges_of_one_mapping_count() {
        let all = "         0          0 4294967295\n";
        assert!(is_mapped(all, FIRST, RANGES * USERS_PER_NODE));
        assert!(is_mapped("0 0 1000\n1000 5000 1000\n", 1500, 500));
        assert!(!is_mapped("0 0 1000\n1000 5000 1000\n", 1500, 501));
        assert!(!is_mapped("0 1000 65536\n", FIRST, 1));
        assert!(!is_mapped("", 0, 1));
        assert!(!is_mapped("no map", 0, 1));
    }

    #[test]
    fn ranges_are_taken_in_turn_by_all_agents_and_used_again_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("register");
        let range = |n: u32| FIRST + n * USERS_PER_NODE;
        let (first, second) = (
            Users::open_at(&path).unwrap(),
            Users::open_at(&path).unwrap(),
        );
        assert_eq!(first.take().unwrap(), range(0));
        assert_eq!(first.take().unwrap(), range(1));
        assert_eq!(second.take().unwrap(), range(2));
        first.give_back(range(0));
        assert_eq!(first.take().unwrap(), range(3), "that was the last one");
        // After the last range the search begins again with free ones.
        fs::write(&path, format!("{:10}\n", RANGES - 1)).unwrap();
        assert_eq!(second.take().unwrap(), range(RANGES - 1));
        assert_eq!(second.take().unwrap(), range(0));
        assert_eq!(second.take().unwrap(), range(4), "the others are in use");
        // An fd store's copy of the open file holds the locks, too.
        let kept = first.register.lock().try_clone().unwrap();
        drop(first);
        fs::write(&path, "0").unwrap();
        assert_eq!(second.take().unwrap(), range(5));
        drop(kept);
        fs::write(&path, "0").unwrap();
        assert_eq!(second.take().unwrap(), range(1));
        fs::write(&path, format!("{FOREIGN}")).unwrap();
        assert_eq!(second.take().unwrap(), range(FOREIGN + 1));
        fs::write(&path, "nonsense").unwrap();
        assert_eq!(second.take().unwrap(), range(3));
    }

    #[test]
    fn uids_of_persons_are_not_of_nodes() {
        assert!(!is_of_nodes(0) && !is_of_nodes(1000) && !is_of_nodes(u32::MAX));
        assert!(!is_of_nodes(2_000_200_000), "what directory services give");
        assert!(is_of_nodes(FIRST) && is_of_nodes(FIRST + 65_535));
    }
}
