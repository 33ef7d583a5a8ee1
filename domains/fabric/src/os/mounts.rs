//! Attributes of mounts.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::checked;

/// Limits a detached mount and all mounts below it: no devices, no set-user-ID programs, no
/// propagation, no writing if it is `read_only`, and owners as the user namespace `users` maps them
/// (mount_setattr(2)).
///
/// # Errors
/// The system's; `EINVAL` if one of the file systems does not support idmapped mounts.
pub fn lend(mount: BorrowedFd<'_>, users: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
    let write = if read_only {
        libc::MOUNT_ATTR_RDONLY
    } else {
        0
    };
    let limits = libc::MOUNT_ATTR_IDMAP | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSUID;
    let attributes = libc::mount_attr {
        attr_set: limits | write,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: u64::from(users.as_raw_fd().unsigned_abs()),
    };
    // SAFETY: the path is an empty C string, the attributes are read up to the size that follows
    // them, and both live until the call returns. Both descriptors are open, as they are borrowed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    checked(result)
}
