//! What an agent does for `shm`: create the memory of regions and rings, and hand it out.
//!
//! The memory is a memfd of mode 0600 with the seals SHRINK, GROW and SEAL. A holder under
//! another uid can neither reopen it writable, change its size, nor add a seal that would keep
//! the agent from punching abandoned pages; without SEAL it could add `F_SEAL_FUTURE_WRITE`, and
//! with memfd's default mode 0777 it could reopen a read-only descriptor for writing.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::PermissionsExt;

/// Creates sealed, zeroed memory of `len` bytes.
///
/// # Errors
/// The system's: no descriptor left, no memory, `len` of 0 or beyond `i64`.
pub fn create_memory(len: u64) -> io::Result<File> {
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    if len == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a NUL-terminated literal; the call touches no other memory.
    let fd = unsafe { libc::memfd_create(c"toroid".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    let memory = unsafe { File::from_raw_fd(fd) };
    memory.set_permissions(Permissions::from_mode(0o600))?;
    memory.set_len(len as u64)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: F_ADD_SEALS takes an integer and touches no memory of ours.
    match unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(memory),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A second, read-only descriptor of memory that this process created.
///
/// # Errors
/// The system's; `/proc` must be mounted.
pub fn read_only(memory: &File) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .open(format!("/proc/self/fd/{}", memory.as_raw_fd()))
}

/// A second descriptor for reading and writing, of a description of its own. Unlike duplicates
/// of what [`create_memory`] returned, the kernel counts it among those that can write (see
/// [`Transfer::is_frozen`](super::transfer::Transfer::is_frozen)).
///
/// # Errors
/// The system's; `/proc` must be mounted.
pub fn read_write(memory: &File) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", memory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::memory::Mapping;

    #[test]
    fn memory_keeps_its_size_and_its_seals() {
        let memory = create_memory(8192).unwrap();
        assert!(memory.set_len(4096).is_err());
        assert!(memory.set_len(16_384).is_err());
        // SAFETY: fcntl with an integer argument.
        let added =
            unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        assert_eq!(added, -1);
        assert_eq!(
            memory.metadata().unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn a_read_only_descriptor_cannot_be_mapped_writable() {
        let memory = create_memory(4096).unwrap();
        let reader = read_only(&memory).unwrap();
        assert!(Mapping::of_file(&reader, 4096, true).is_err());
        assert!(Mapping::of_file(&reader, 4096, false).is_ok());
    }

    #[test]
    fn no_memory_of_zero_or_absurd_length() {
        assert!(create_memory(0).is_err());
        assert!(create_memory(u64::MAX).is_err());
    }
}
