//! Mounts of a caller's directories for a command in a node. There, the caller's files belong to
//! the node's root, and files made by the node's root belong to the caller.
//!
//! ```text
//!   courier: root of the host                      binder
//!   copies the mount
//!   makes a mount namespace ─────── starts ─────▶ makes a user namespace
//!   ◀──────────────────── ready ─────────────────
//!   maps the caller to the node's root in it
//!   gives the copy that map, and its limits
//!   mounts it ───────────────────── go on ──────▶ makes a mount namespace from the courier's
//!   ◀─────────────── a copy of the copy ─────────
//! ```
//!
//! The map needs a user namespace, which is the binder's. The root of the receiving node could lift
//! a mount's limits (`ro`), unless the mount came from the mount namespace of a more privileged
//! user namespace: then the kernel locks them (mount_namespaces(7)). So the binder makes the copy
//! for the node.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use serde::{Deserialize, Serialize};
use toroid_client::credentials::Ids;
use toroid_fabric::os::mounts;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::Bind;
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use crate::process::role_command;

/// Argument of the role: makes a mount of a caller's directory for a node.
pub(crate) const ROLE: &str = "__binder";

/// Directory where mounts are passed on. Every host has it, and it is covered only in the mount
/// namespaces of courier and binder.
const STAGE: &str = "/proc";

/// Owners of lent files: outside and in the node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Lender {
    /// The caller.
    pub(crate) from: Ids,
    /// Uid and gid of the node's root on the host.
    pub(crate) to: u32,
}

impl Lender {
    /// Makes the mounts for `binds`, whose directories the caller has opened. Afterwards this thread
    /// has a mount namespace of its own.
    pub(super) fn lend(
        self,
        binds: &[Bind],
        directories: &[OwnedFd],
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let copies = binds.iter().zip(directories);
        // In the mount namespace in which the caller has opened them.
        let copies = copies.map(|(bind, directory)| copy(bind, directory));
        let copies = copies.collect::<Result<Vec<_>, _>>()?;
        if !binds.is_empty() {
            separate().map_err(|error| failed(&binds[0], &error))?;
        }
        let lent = binds.iter().zip(&copies);
        lent.map(|(bind, copy)| self.lend_one(bind, copy)).collect()
    }

    fn lend_one(self, bind: &Bind, copy: &OwnedFd) -> Result<OwnedFd, Refusal> {
        let mut binder = Binder::start().map_err(|error| failed(bind, &error))?;
        let users = binder.map(self).map_err(|error| failed(bind, &error))?;
        mounts::lend(copy.as_fd(), users.as_fd(), bind.read_only)
            .map_err(|error| unsupported(bind, &error))?;
        binder
            .copy_from(copy.as_fd())
            .map_err(|error| failed(bind, &error))
    }
}

/// Copies the mount of a directory. A caller that has opened a directory for reading may use it;
/// `O_PATH` also opens directories that their user may not enter.
fn copy(bind: &Bind, directory: &OwnedFd) -> Result<OwnedFd, Refusal> {
    let flags = fcntl_getfl(directory).map_err(|error| failed(bind, &error.into()))?;
    if flags.contains(OFlags::PATH) {
        return Err(Refusal::new(
            RefusalKind::Denied,
            format!("{} was not opened for reading", bind.directory),
            "use `toroid` or the library of this release",
        ));
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(directory, c"", flags).map_err(|error| match error {
        Errno::INVAL => Refusal::new(
            RefusalKind::Denied,
            format!(
                "cannot bind {}: its mount is in another mount namespace than the agent",
                bind.directory
            ),
            "run `toroid exec` outside of the container, sandbox or `unshare` that mounts it, or \
             start the agent there (systemd: without PrivateTmp= and the like)",
        ),
        error => failed(bind, &error.into()),
    })
}

fn unsupported(bind: &Bind, error: &io::Error) -> Refusal {
    Refusal::new(
        RefusalKind::Failed,
        format!(
            "cannot bind {}: its file system, or one mounted below it, allows the agent no idmapped \
             mounts ({error})",
            bind.directory
        ),
        "bind a directory of ext4, XFS, Btrfs or tmpfs with no other file systems below it",
    )
}

fn failed(bind: &Bind, error: &io::Error) -> Refusal {
    Refusal::new(
        RefusalKind::Failed,
        format!("cannot bind {}: {error}", bind.directory),
        "see the limits in /proc/sys/user",
    )
}

/// Moves this thread to a mount namespace whose changes no other sees.
fn separate() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let (none, private) = (None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
    Ok(mount(none, "/", none, private, none)?)
}

/// A process with a user namespace of its own.
struct Binder {
    process: Child,
    orders: Writer,
    reports: Reader,
}

impl Binder {
    fn start() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = role_command("toroid-binder", ROLE);
        command.stdin(OwnedFd::from(theirs));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn()?;
        let (reports, orders) = wire::split(ours)?;
        Ok(Binder {
            process,
            orders,
            reports,
        })
    }

    /// Maps the lender's uid and gid in its user namespace, which is returned.
    fn map(&mut self, lender: Lender) -> io::Result<File> {
        self.reports.receive::<()>().map_err(io::Error::other)?;
        let place = format!("/proc/{}", self.process.id());
        for (map, id) in [("gid_map", lender.from.gid), ("uid_map", lender.from.uid)] {
            fs::write(format!("{place}/{map}"), format!("{id} {} 1", lender.to))?;
        }
        File::open(format!("{place}/ns/user"))
    }

    fn copy_from(&mut self, mount: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(mount, c"", CWD, STAGE, whole)?;
        let mut copy = || {
            self.orders.send(&(), &[])?;
            let ((), descriptors) = self.reports.receive()?;
            descriptors.into_iter().next().ok_or(WireError::Closed)
        };
        let copied = copy().map_err(io::Error::other);
        // The binder has a copy, and the next one needs the directory below.
        umount2(STAGE, MntFlags::MNT_DETACH)?;
        copied
    }
}

impl Drop for Binder {
    fn drop(&mut self) {
        // The binder ends with its orders, and is a child.
        self.orders.shut_down();
        let _ = self.process.wait();
    }
}

/// Runs a binder.
pub(crate) fn run_role() -> u8 {
    u8::from(hand_on().is_err())
}

fn hand_on() -> Result<(), WireError> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let (mut orders, reports) = wire::split(socket.into())?;
    unshare(CloneFlags::CLONE_NEWUSER).map_err(io::Error::from)?;
    reports.send(&(), &[])?;
    orders.receive::<()>()?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let copy = open_tree(CWD, STAGE, flags).map_err(io::Error::from)?;
    reports.send(&(), &[copy.as_fd()])
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, open};

    use super::*;

    /// `O_PATH` also opens a directory that is closed to its user.
    #[test]
    fn a_directory_that_was_not_opened_for_reading_is_not_copied() {
        let bind = Bind {
            directory: "/".into(),
            place: "/run/x".into(),
            read_only: true,
        };
        let closed = open("/", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let refusal = copy(&bind, &closed).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Denied);
        assert!(refusal.message.contains("not opened for reading"));
    }
}
