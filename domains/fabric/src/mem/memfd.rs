//! Memory of regions and rings for `shm`: created by the agent and passed on as descriptors.
//!
//! The memory is a memfd of mode 0600 with the seals SHRINK and GROW. A holder under another uid
//! can neither reopen the memory for writing, as with memfd's default mode 0777, nor change its
//! size. Most memory also has the seal SEAL, so no holder can obstruct the agent by a seal. Memory
//! that peers may write lacks SEAL, because the agent ends their writes by a seal
//! ([`seal_writes`]). So these peers can add seals, too, which [`is_spoiled`] detects.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// Creates sealed, zeroed memory of `len` bytes.
///
/// # Errors
/// The system's: no descriptor left, no memory, `len` of 0 or beyond `i64`.
pub fn create_memory(len: u64) -> io::Result<File> {
    let memory = create_for_peers(len)?;
    fcntl_add_seals(&memory, SealFlags::SEAL)?;
    Ok(memory)
}

/// Creates memory that peers may write: as [`create_memory`], but writes can be
/// [sealed](seal_writes).
///
/// # Errors
/// As [`create_memory`].
pub fn create_for_peers(len: u64) -> io::Result<File> {
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    if len == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = File::from(memfd_create("toroid", flags)?);
    memory.set_permissions(Permissions::from_mode(0o600))?;
    memory.set_len(len as u64)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(memory)
}

/// Seals the memory against writes and against dropping parts of it, for every holder.
///
/// # Errors
/// EBUSY while a process has the memory mapped for writing, or has handed pages of it to the
/// kernel, which may still write them (`io_uring`, direct I/O); the check for such pages takes the
/// kernel up to 150 ms. EPERM if the memory has the seal SEAL, from its creation or from a holder.
pub fn seal_writes(memory: &File) -> io::Result<()> {
    match fcntl_add_seals(memory, SealFlags::WRITE) {
        // The memory may have been sealed before.
        Err(error) if !fcntl_get_seals(memory)?.contains(SealFlags::WRITE) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether writes are sealed, for all mappings or for future ones. A process that may write memory
/// created [for peers](create_for_peers) can add such a seal.
///
/// # Errors
/// The system's.
pub fn is_spoiled(memory: &File) -> io::Result<bool> {
    Ok(fcntl_get_seals(memory)?.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE))
}

/// A second, read-only descriptor of memory that this process created.
///
/// # Errors
/// The system's; `/proc` must be mounted.
pub fn read_only(memory: &File) -> io::Result<File> {
    reopen(memory, false)
}

/// A second descriptor for reading and writing, with an open file description of its own.
///
/// # Errors
/// The system's; `/proc` must be mounted.
pub fn read_write(memory: &File) -> io::Result<File> {
    reopen(memory, true)
}

fn reopen(memory: &File, writable: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(writable)
        .open(format!("/proc/self/fd/{}", memory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::mapping::Mapping;

    #[test]
    fn memory_keeps_its_size_and_its_seals() {
        let memory = create_memory(8192).unwrap();
        assert!(memory.set_len(4096).is_err());
        assert!(memory.set_len(16_384).is_err());
        assert!(seal_writes(&memory).is_err());
        assert!(!is_spoiled(&memory).unwrap());
        assert_eq!(
            memory.metadata().unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn writes_are_sealed_once_no_writable_mapping_is_left() {
        let memory = create_for_peers(8192).unwrap();
        assert!(memory.set_len(4096).is_err());
        let reader = Mapping::of_file(&read_only(&memory).unwrap(), 8192, false).unwrap();
        let writer = Mapping::of_file(&memory, 8192, true).unwrap();
        let error = seal_writes(&memory).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        assert!(!is_spoiled(&memory).unwrap());
        drop(writer);
        seal_writes(&memory).unwrap();
        seal_writes(&memory).unwrap();
        assert!(is_spoiled(&memory).unwrap());
        assert!(Mapping::of_file(&memory, 8192, true).is_err());
        assert_eq!(reader.len(), 8192);
    }

    /// A holder that may write can add SEAL before the agent needs a seal.
    #[test]
    fn sealed_seals_are_an_error() {
        let memory = create_for_peers(8192).unwrap();
        fcntl_add_seals(&memory, SealFlags::SEAL).unwrap();
        let error = seal_writes(&memory).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        // A read-only descriptor permits no seal.
        let memory = create_for_peers(8192).unwrap();
        let reader = read_only(&memory).unwrap();
        assert!(fcntl_add_seals(&reader, SealFlags::WRITE).is_err());
    }

    #[test]
    fn a_read_only_descriptor_cannot_be_mapped_writable() {
        let memory = create_memory(4096).unwrap();
        let reader = read_only(&memory).unwrap();
        assert!(Mapping::of_file(&reader, 4096, true).is_err());
        assert!(Mapping::of_file(&reader, 4096, false).is_ok());
    }

    #[test]
    fn lengths_of_zero_and_beyond_an_offset_are_refused() {
        assert!(create_memory(0).is_err());
        assert!(create_memory(u64::MAX).is_err());
    }
}
