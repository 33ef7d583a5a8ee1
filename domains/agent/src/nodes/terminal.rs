//! Pseudo terminals of nodes, opened from outside.
//!
//! The command gets the slave, its caller the master. The node never gets a descriptor of the
//! caller's terminal, and the caller never one that a process of the node has made.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::fchown;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, open as open_file, openat2, statx,
};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use toroid_protocol::agent::Terminal;

/// Device number of the multiplexer (`Documentation/admin-guide/devices.txt` of Linux).
const MULTIPLEXER: (u32, u32) = (5, 2);

/// Opens a pair, master first, in the node whose root directory `root` is. If the node's terminals
/// cannot be opened, the pair is of the agent's. `owner` becomes the owner of the slave.
pub(crate) fn open(
    terminal: &Terminal,
    root: Option<&OwnedFd>,
    owner: Option<u32>,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = match root.and_then(|root| open_inside(root, flags)) {
        Some(master) => master,
        None => openpt(flags)?,
    };
    unlockpt(&master)?;
    let slave = File::from(ioctl_tiocgptpeer(&master, flags)?);
    fchown(&slave, owner, None)?;
    let mut modes = tcgetattr(&slave)?;
    // Otherwise the line editor of the kernel erases the bytes of a character one by one.
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&slave, OptionalActions::Now, &modes)?;
    let size = Winsize {
        ws_row: terminal.rows,
        ws_col: terminal.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&master, size)?;
    Ok((master, slave.into()))
}

/// Opens the multiplexer of a node.
///
/// The node's root may have mounted something else there. So the place is looked up without a
/// request to any file system, and opened only if it is that device: mounts of a node's root have
/// no device files (`nodev`).
fn open_inside(root: &OwnedFd, flags: OpenptFlags) -> Option<OwnedFd> {
    let (place, none) = (OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let how = ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS | ResolveFlags::IN_ROOT;
    let found = openat2(root, "dev/ptmx", place, none, how).ok()?;
    let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(&found, c"", asked, StatxFlags::TYPE).ok()?;
    let is_device = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::CharacterDevice;
    if !is_device || (stat.stx_rdev_major, stat.stx_rdev_minor) != MULTIPLEXER {
        return None;
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    open_file(path, flags.into(), none).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;

    use rustix::termios::tcgetwinsize;

    use super::*;

    const SIZE: Terminal = Terminal {
        rows: 33,
        columns: 77,
        error: true,
    };

    fn directory(path: &std::path::Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn a_pair_has_the_size_and_carries_bytes() {
        let root = directory("/".as_ref());
        let (master, slave) = open(&SIZE, Some(&root), None).unwrap();
        let size = tcgetwinsize(&slave).unwrap();
        assert_eq!((size.ws_row, size.ws_col), (33, 77));
        let (mut master, mut slave) = (File::from(master), File::from(slave));
        master.write_all(b"one line\n").unwrap();
        let mut line = [0; 64];
        let count = slave.read(&mut line).unwrap();
        assert_eq!(&line[..count], b"one line\n");
    }

    /// Such as the end of a pipe, which blocks its opener.
    #[test]
    fn another_file_than_the_multiplexer_is_not_opened() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("dev")).unwrap();
        let ptmx = place.path().join("dev/ptmx");
        nix::unistd::mkfifo(&ptmx, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // The kernel knows the name by now.
        ptmx.metadata().unwrap();
        let root = directory(place.path());
        assert!(open_inside(&root, OpenptFlags::RDWR).is_none());
        std::fs::remove_file(&ptmx).unwrap();
        std::os::unix::fs::symlink("/dev/null", &ptmx).unwrap();
        assert!(open_inside(&root, OpenptFlags::RDWR).is_none());
        let (_master, slave) = open(&SIZE, Some(&root), None).unwrap();
        let owner = File::from(slave).metadata().unwrap().uid();
        assert_eq!(owner, nix::unistd::Uid::effective().as_raw());
    }
}
