//! Memory mapped without the library, read and written without any check.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use super::Result;

pub const PAGE: usize = 4096;

/// Shared memory, mapped for reading and writing.
pub struct Mapping {
    address: *mut libc::c_void,
    len: usize,
}

// SAFETY: this process has no reference to the memory, and accesses its words as volatile ones, which
// other processes may write.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first pages of a file.
    pub fn of(memory: &File, pages: usize) -> Result<Self> {
        Self::map(pages * PAGE, libc::MAP_SHARED, memory.as_raw_fd())
    }

    /// A page that this process and its children share.
    pub fn own() -> Result<Self> {
        Self::map(PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    fn map(len: usize, flags: i32, file: i32) -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let address = unsafe { libc::mmap(null_mut(), len, protection, flags, file, 0) };
        let address = mapped(address)?;
        Ok(Mapping { address, len })
    }

    /// Maps the same memory at another address. The old mapping stays, without its page tables.
    pub fn again(&self) -> Result<Self> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let (from, len, anywhere) = (self.address, self.len, null_mut::<libc::c_void>());
        // SAFETY: the mapping is ours and stays mapped, and this process has no reference to the memory.
        let address = mapped(unsafe { libc::mremap(from, len, len, flags, anywhere) })?;
        Ok(Mapping { address, len })
    }

    /// Moves the mapping to another address.
    pub fn move_on(&mut self) -> Result<()> {
        let mut room = Self::map(self.len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, len) = (self.address, self.len);
        // SAFETY: both mappings are ours, and this process has no reference to their memory.
        mapped(unsafe { libc::mremap(from, len, len, flags, room.address) })?;
        // Nothing is mapped at the old address any more.
        self.address = room.address;
        room.len = 0;
        Ok(())
    }

    pub fn address(&self, offset: usize) -> *mut libc::c_void {
        assert!(offset < self.len);
        self.address.wrapping_byte_add(offset)
    }

    pub fn read(&self, offset: u64) -> u64 {
        // SAFETY: `word` says that it is mapped and aligned; any bytes are a number.
        unsafe { self.word(offset).read_volatile() }
    }

    pub fn write(&self, offset: u64, n: u64) {
        // SAFETY: as above.
        unsafe { self.word(offset).write_volatile(n) }
    }

    fn word(&self, offset: u64) -> *mut u64 {
        let offset = offset as usize;
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        self.address(offset).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is ours, and no pointer to it is used afterwards.
            unsafe { libc::munmap(self.address, self.len) };
        }
    }
}

fn mapped(address: *mut libc::c_void) -> io::Result<*mut libc::c_void> {
    match address {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        address => Ok(address),
    }
}
