//! Memory that other processes may write at any time.
//!
//! Only this module and [`copy`](super::copy) touch such bytes: words through atomics, bulk copies
//! through one function. No reference to the bytes is ever made, so a peer that writes while we
//! read can give us wrong bytes but no undefined behaviour.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Bytes whose pages are dropped at a time, which takes some 300 us.
const PIECE: usize = 4 << 20;

/// Bytes that one page table maps where pages have the usual size; also the size of a huge page.
pub(super) const TABLE: usize = 2 << 20;

/// Flags of zeroed private memory, without a reservation.
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// A mapped range, shared with other processes or private, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The process that maps it, where forked children do not inherit it.
    only_in: Option<u32>,
    /// Whether this is a Rust allocation of words, and not mapped.
    is_adopted: bool,
    /// Lower half of the inode number of the mapped file, or 0.
    inode: AtomicU32,
}

/// Another thread has mapped memory in the place of a mapping.
#[derive(Debug, PartialEq, Eq)]
struct Taken;

// SAFETY: the mapping belongs to the process, not to a thread; all access to its bytes goes
// through `copy` and atomics, which tolerate concurrent access.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method hands out a reference to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from its start. A shorter file is refused: an access beyond its
    /// end would raise SIGBUS.
    pub(crate) fn of_file(file: &File, len: usize, writable: bool) -> io::Result<Self> {
        Self::whole(file, len, protection(writable))
    }

    /// Maps `len` bytes of `file` without access until [`Mapping::open`]. No page is mapped until
    /// then, even in a process that locks all its memory (`mlockall`), where the kernel populates
    /// new mappings.
    pub(crate) fn closed(file: &File, len: usize) -> io::Result<Self> {
        Self::whole(file, len, libc::PROT_NONE)
    }

    /// Maps an existing part of `file` for reading, and for writing if `writable`.
    pub(super) fn of_part(file: &File, start: u64, len: usize, writable: bool) -> io::Result<Self> {
        Self::shared_part(file, start, len, protection(writable))
    }

    fn whole(file: &File, len: usize, protection: i32) -> io::Result<Self> {
        let inode = inode_of(file, len)?;
        let mut mapping = Self::shared_part(file, 0, len, protection)?;
        mapping.inode = AtomicU32::new(inode);
        Ok(mapping)
    }

    fn shared_part(file: &File, start: u64, len: usize, protection: i32) -> io::Result<Self> {
        let mut mapping = if len < TABLE {
            Self::map(len, protection, libc::MAP_SHARED, file.as_raw_fd(), start)?
        } else {
            Self::room_for(len)?.filled_by(file, start, len, protection)?
        };
        mapping.keep_from_children()?;
        mapping.only_in = Some(std::process::id());
        Ok(mapping)
    }

    /// Reserves addresses in which `len` bytes fit at any offset from the start of a page table.
    fn room_for(len: usize) -> io::Result<Self> {
        let len = len.next_multiple_of(PAGE) + TABLE;
        Self::map(len, libc::PROT_NONE, ANONYMOUS, -1, 0)
    }

    /// Maps a file in reserved addresses, at the start of a page table: only there the kernel maps
    /// huge pages as such. The rest of the reservation is unmapped.
    fn filled_by(self, file: &File, start: u64, len: usize, protection: i32) -> io::Result<Self> {
        let ahead = self.start().next_multiple_of(TABLE) - self.start();
        let after = ahead + len.next_multiple_of(PAGE);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let start = offset(start)?;
        // SAFETY: all three ranges are in the reservation (`room_for`), which is ours alone and in
        // which no other code has an address; the second and third are unmapped for good.
        unsafe {
            let address = self.address().byte_add(ahead);
            let file = file.as_raw_fd();
            let mapped = libc::mmap(address, len, protection, flags, file, start);
            done(mapped != libc::MAP_FAILED)?;
            if ahead > 0 {
                libc::munmap(self.address(), ahead);
            }
            libc::munmap(self.address().byte_add(after), self.len - after);
        }
        // SAFETY: as above.
        let base = unsafe { self.base.byte_add(ahead) };
        // Parts of it are unmapped or belong to the new mapping now.
        std::mem::forget(self);
        Ok(Self::at(base, len))
    }

    /// Permits reading and writing.
    pub(crate) fn open(&self) -> io::Result<()> {
        let protection = protection(true);
        // SAFETY: the range is ours; more access makes no access of others invalid.
        let opened = unsafe { libc::mprotect(self.address(), self.pages(), protection) };
        done(opened == 0)
    }

    /// Unmaps all pages, also locked ones; the file keeps them.
    pub(crate) fn take_out_pages(&self) -> io::Result<()> {
        /// Since Linux 5.18. Earlier kernels cannot unmap locked pages and return an error.
        const DONTNEED_LOCKED: libc::c_int = 24;
        let advise = |advice| {
            // SAFETY: the range is ours, shared and backed by a file that keeps the bytes.
            done(unsafe { libc::madvise(self.address(), self.pages(), advice) } == 0)
        };
        advise(DONTNEED_LOCKED).or_else(|_| advise(libc::MADV_DONTNEED))
    }

    /// Number of its pages that the file has in memory, mapped or not; swapped pages do not count.
    pub(super) fn present_pages(&self) -> io::Result<usize> {
        let mut states = vec![0u8; self.pages() / PAGE];
        let states_of = states.as_mut_ptr();
        // SAFETY: the range is ours, and there is a byte for each of its pages.
        done(unsafe { libc::mincore(self.address(), self.pages(), states_of) } == 0)?;
        Ok(states.iter().filter(|state| **state & 1 != 0).count())
    }

    /// Copies these ranges of `bytes` to the same offsets. Takes no lock of the file's inode. A
    /// page that cannot be allocated is an error, where an ordinary store would end the process.
    pub(super) fn fill(&self, bytes: &[u8], ranges: &[Range<usize>]) -> io::Result<()> {
        assert!(bytes.len() <= self.len);
        let parts = |base: *const u8| -> Vec<libc::iovec> {
            let part = |range: &Range<usize>| libc::iovec {
                iov_base: base.wrapping_add(range.start).cast_mut().cast(),
                iov_len: bytes[range.clone()].len(),
            };
            ranges.iter().map(part).collect()
        };
        let (from, to) = (parts(bytes.as_ptr()), parts(self.base.as_ptr()));
        let count = ranges.len() as libc::c_ulong;
        // SAFETY: the kernel reads parts of `bytes`, and writes parts of the range, which is as
        // long (checked above), mapped, and to which no reference exists.
        let written = unsafe {
            let this = libc::getpid();
            libc::process_vm_writev(this, from.as_ptr(), count, to.as_ptr(), count, 0)
        };
        done(written >= 0)?;
        match ranges.iter().map(ExactSizeIterator::len).sum::<usize>() {
            all if all == written as usize => Ok(()),
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Moves the file's pages into huge pages, wherever they are mapped. No byte and no access is
    /// lost; an access meanwhile waits for as long as the copy of a page takes.
    pub(super) fn collapse(&self) -> io::Result<()> {
        /// `MADV_COLLAPSE`, since Linux 6.1; not every C library has it.
        const COLLAPSE: libc::c_int = 25;
        // SAFETY: the range is ours, and the advice changes no byte of it.
        done(unsafe { libc::madvise(self.address(), self.pages(), COLLAPSE) } == 0)
    }

    /// Keeps the range out of forked children, which have no control thread to migrate it.
    fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: the range is ours; the advice changes nothing for this process.
        let advised = unsafe { libc::madvise(self.address(), self.pages(), libc::MADV_DONTFORK) };
        done(advised == 0)
    }

    /// Whether this process is a forked child, which does not have the mapping.
    fn is_elsewhere(&self) -> bool {
        self.only_in.is_some_and(|id| id != std::process::id())
    }

    /// Maps `len` zero bytes of this process alone, without reserving memory for them.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        Self::map(len, protection(true), ANONYMOUS, -1, 0)
    }

    /// Frees the whole pages of a range of private memory: their bytes are 0 afterwards. Locked
    /// pages stay as they are.
    pub(crate) fn drop_private(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PAGE);
        let end = range.end.min(self.len) / PAGE * PAGE;
        if self.is_adopted || self.only_in.is_some() || start >= end {
            return;
        }
        // SAFETY: whole pages of the range, which is ours, anonymous and private. As with any other
        // write, an access that is under way meets old bytes or new ones.
        unsafe {
            let address = self.address().byte_add(start);
            libc::madvise(address, end - start, libc::MADV_DONTNEED);
        }
    }

    fn map(len: usize, protection: i32, flags: i32, fd: i32, start: u64) -> io::Result<Self> {
        let (anywhere, start) = (std::ptr::null_mut(), offset(start)?);
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let address = unsafe { libc::mmap(anywhere, len, protection, flags, fd, start) };
        done(address != libc::MAP_FAILED)?;
        let base = NonNull::new(address.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self::at(base, len))
    }

    /// A mapping of `len` bytes at `base` that forked children inherit, of no file.
    fn at(base: NonNull<u8>, len: usize) -> Self {
        Mapping {
            base,
            len,
            only_in: None,
            is_adopted: false,
            inode: AtomicU32::default(),
        }
    }

    /// Takes ownership of a buffer, which is aligned for words but not for pages.
    pub(crate) fn adopted(words: Box<[u64]>) -> Self {
        let len = size_of_val::<[u64]>(&words);
        let base = NonNull::from(Box::leak(words)).cast();
        let mut mapping = Self::at(base, len);
        mapping.is_adopted = true;
        mapping
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// The length, rounded up to whole pages.
    pub(crate) fn pages(&self) -> usize {
        self.len.next_multiple_of(PAGE)
    }

    fn address(&self) -> *mut libc::c_void {
        self.base.as_ptr().cast()
    }

    /// Moves the present memory with all its page tables to a second mapping. The file stays mapped
    /// here, and its pages are mapped again as they are touched.
    pub(crate) fn park(&self) -> io::Result<Mapping> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let (from, pages) = (self.address(), self.pages());
        let hint = self.parking_address().unwrap_or(0);
        // SAFETY: the range is ours and stays mapped (DONTUNMAP); the kernel follows the hint only
        // where nothing is mapped, so the second mapping aliases nothing of Rust's. A system call,
        // because not every C library's `mremap` passes the hint on.
        let parked = unsafe { libc::syscall(libc::SYS_mremap, from, pages, pages, flags, hint) };
        let parked = parked as *mut libc::c_void;
        done(parked != libc::MAP_FAILED)?;
        let base = NonNull::new(parked.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut mapping = Self::at(base, self.len);
        mapping.only_in = self.only_in;
        mapping.inode = self.inode().into();
        Ok(mapping)
    }

    /// An address with room for a second mapping, at the same offset in a page table as this one:
    /// there the kernel moves whole page tables. Elsewhere it moves page by page, 3 to 12 ms for a
    /// gigabyte, during which no thread can map memory or touch a page for the first time. If
    /// another thread takes the room meanwhile, the kernel chooses another address.
    fn parking_address(&self) -> Option<usize> {
        if self.pages() < TABLE {
            return None;
        }
        let room = Self::room_for(self.pages()).ok()?;
        let ahead = self.start().wrapping_sub(room.start()) % TABLE;
        Some(room.start() + ahead)
    }

    /// Replaces this mapping by another of the same length in one step: an access of another thread
    /// meets the one or the other.
    ///
    /// After a failure the place has its previous memory, or zeros: the kernel unmaps the place
    /// before it allocates the page tables for it. Without memory for them, a thread that accesses
    /// the place before the zeros are mapped ends the process by SIGSEGV; such a process would soon
    /// have ended for want of memory. If another thread maps memory in the place first, the process
    /// aborts: accesses in flight would change memory that is not ours.
    pub(crate) fn replace_by(&self, other: Mapping) -> io::Result<()> {
        assert_eq!(other.len, self.len, "a region keeps its length");
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, pages) = (other.address(), other.pages());
        // SAFETY: both ranges are ours and equally long. Accesses to the target range go through
        // `copy` or atomics, which may meet any bytes; it stays mapped. The source range is
        // unmapped by this, so `other` is forgotten.
        let moved = unsafe { libc::mremap(from, pages, pages, flags, self.address()) };
        if let Err(error) = done(moved != libc::MAP_FAILED) {
            if self.fill_gap() == Err(Taken) {
                eprintln!("fabric: no memory to move a region, and its place is taken: {error}");
                std::process::abort();
            }
            return Err(error);
        }
        self.now_maps(other.inode());
        std::mem::forget(other);
        Ok(())
    }

    /// Maps zeros in the place of this mapping if nothing is mapped there; never over the mapping
    /// of another thread.
    fn fill_gap(&self) -> Result<(), Taken> {
        let (protection, flags) = (protection(true), ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
        // SAFETY: NOREPLACE: the kernel maps nothing over an existing mapping. Accesses to the
        // place of this mapping may meet any bytes.
        let filled = unsafe { libc::mmap(self.address(), self.pages(), protection, flags, -1, 0) };
        match filled {
            address if address == self.address() => {
                self.now_maps(0);
                Ok(())
            }
            _ if self.is_there() => Ok(()),
            _ => Err(Taken),
        }
    }

    /// Whether the whole place still maps this mapping's file.
    fn is_there(&self) -> bool {
        let place = self.start()..self.start() + self.pages();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let ours = maps.lines().filter_map(parse_map);
        let ours = ours.filter(|(_, inode)| *inode != 0 && *inode == self.inode());
        let overlaps = ours.map(|(range, _)| {
            let (start, end) = (range.start.max(place.start), range.end.min(place.end));
            end.saturating_sub(start)
        });
        overlaps.sum::<usize>() == place.len()
    }

    fn inode(&self) -> u32 {
        self.inode.load(Ordering::Relaxed)
    }

    fn now_maps(&self, inode: u32) {
        self.inode.store(inode, Ordering::Relaxed);
    }

    /// Replaces this mapping by one of `file` for reading, in one step.
    pub(crate) fn replace_by_file(&self, file: &File) -> io::Result<()> {
        let inode = inode_of(file, self.len)?;
        self.map_over(libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())?;
        self.now_maps(inode);
        self.keep_from_children()
    }

    /// Replaces this mapping by zeroed private memory, so that an access in flight ends without a
    /// signal.
    pub(crate) fn detach(&self) -> io::Result<()> {
        self.map_over(protection(true), ANONYMOUS, -1)?;
        self.now_maps(0);
        Ok(())
    }

    fn map_over(&self, protection: i32, flags: i32, fd: i32) -> io::Result<()> {
        let (pages, flags) = (self.pages(), flags | libc::MAP_FIXED);
        // SAFETY: the range is ours and stays mapped; as in `replace_by`, accesses to it may meet
        // any bytes.
        let mapped = unsafe { libc::mmap(self.address(), pages, protection, flags, fd, 0) };
        done(mapped != libc::MAP_FAILED)
    }

    /// The address of `len` bytes at `offset`, or `None` if the range is not inside the mapping.
    pub(crate) fn range(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `offset <= self.len`, so the result is inside the mapping or one past its end.
        Some(unsafe { self.base.add(offset) })
    }

    /// The word at `offset`, or `None` if it is outside or `offset` is no multiple of 8.
    pub(crate) fn word(&self, offset: u64) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        let address = self.range(offset, 8)?.cast::<AtomicU64>();
        // SAFETY: 8 mapped bytes (`range`), aligned because mappings are page-aligned, adopted
        // buffers are made of words, and `offset` is a multiple of 8, alive while `self` is;
        // atomics may be shared with other processes.
        Some(unsafe { address.as_ref() })
    }

    /// The byte at `offset`, or `None` if it is outside.
    pub(crate) fn byte(&self, offset: u64) -> Option<&AtomicU8> {
        let address = self.range(offset, 1)?.cast::<AtomicU8>();
        // SAFETY: a mapped byte (`range`), alive while `self` is; atomics may be shared with
        // other processes.
        Some(unsafe { address.as_ref() })
    }

    /// The atomics at the start of the mapping.
    ///
    /// # Panics
    /// When the mapping is shorter than `T`, which every constructor of rings rules out.
    #[cfg(not(loom))]
    pub(crate) fn atomics<T: Atomics>(&self) -> &T {
        assert!(size_of::<T>() <= self.len && align_of::<T>() <= 4096);
        // SAFETY: inside the mapping and aligned (checked above; mappings are page-aligned),
        // alive while `self` is; `Atomics` promises that any bytes are a valid value and that
        // all access is atomic.
        unsafe { self.base.cast().as_ref() }
    }

    /// Drops the pages piece by piece before the range is unmapped. In one step this takes the
    /// kernel tens of milliseconds for a gigabyte, during which threads wait that map memory, and
    /// behind them all that touch a page for the first time.
    fn drop_pages(&mut self) {
        if self.len <= PIECE {
            return;
        }
        for piece in (0..self.pages()).step_by(PIECE) {
            let len = PIECE.min(self.pages() - piece);
            // SAFETY: a part of the range, which is ours and no longer in use. The call fails for
            // locked pages, which go when the range is unmapped.
            unsafe { libc::madvise(self.address().byte_add(piece), len, libc::MADV_DONTNEED) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_elsewhere() {
            return;
        }
        if self.is_adopted {
            let words = NonNull::slice_from_raw_parts(self.base.cast::<u64>(), self.len / 8);
            // SAFETY: base and length are those of the box that `adopted` leaked, and every pointer
            // derived from them borrows or lives no longer than `self`.
            return drop(unsafe { Box::from_raw(words.as_ptr()) });
        }
        self.drop_pages();
        // SAFETY: base and len are those of a successful mmap, and every pointer derived from
        // them borrows or lives no longer than `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Lower half of the inode number of a file that has at least `len` bytes.
fn inode_of(file: &File, len: usize) -> io::Result<u32> {
    let metadata = file.metadata()?;
    if metadata.len() < len as u64 {
        Err(io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(metadata.ino() as u32)
    }
}

/// Addresses and lower half of the inode number in a line of `/proc/self/maps`
/// (proc_pid_maps(5)).
fn parse_map(line: &str) -> Option<(Range<usize>, u32)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let inode: u64 = words.nth(3)?.parse().ok()?;
    Some((address(start)?..address(end)?, inode as u32))
}

fn offset(start: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(start).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn protection(writable: bool) -> i32 {
    libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 }
}

/// The error number of the last system call unless `well`.
fn done(well: bool) -> io::Result<()> {
    if well {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A type made of atomic integers and nothing else.
///
/// # Safety
/// Every byte string of the type's size must be a valid value, and every field that a peer may
/// write must be an atomic.
#[cfg(not(loom))]
pub(crate) unsafe trait Atomics {}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::mem::memfd::create_memory;

    #[test]
    fn large_mappings_begin_with_a_page_table() {
        let len = 2 * TABLE + PAGE + 8;
        let memory = create_memory(len as u64).unwrap();
        for _ in 0..20 {
            let mapping = Mapping::of_file(&memory, len, true).unwrap();
            assert!(mapping.start().is_multiple_of(TABLE));
            assert_eq!(mapping.len(), len);
            let last = mapping.byte(len as u64 - 1).unwrap();
            last.fetch_add(1, Ordering::Relaxed);
            let again = Mapping::of_file(&memory, len, false).unwrap();
            let seen = again.byte(len as u64 - 1).unwrap();
            assert_eq!(seen.load(Ordering::Relaxed), last.load(Ordering::Relaxed));
        }
        // A mapping smaller than a page table lies anywhere.
        let small = Mapping::of_file(&memory, PAGE, false).unwrap();
        assert_eq!(small.len(), PAGE);
    }

    #[test]
    fn parked_mappings_keep_their_offset_in_page_tables() {
        let len = 2 * TABLE + PAGE;
        let memory = create_memory(len as u64).unwrap();
        let mut room = Vec::new();
        let lies_as_before = |_| {
            let mapping = Mapping::of_file(&memory, len, true).unwrap();
            let parked = mapping.park().unwrap();
            let is_so = parked
                .start()
                .abs_diff(mapping.start())
                .is_multiple_of(TABLE);
            // Kept, so that the kernel chooses another address for the next mapping.
            room.push((mapping, parked, Mapping::private(PAGE).unwrap()));
            is_so
        };
        // A concurrent test may take the room now and then.
        let times = (0..100).map(lies_as_before).filter(|is_so| *is_so).count();
        assert!(times > 50, "{times} times of 100");
    }

    /// Regression: after a migration had failed for want of kernel memory, the mapping over the gap
    /// replaced memory that another thread had mapped there meanwhile.
    #[test]
    fn a_gap_is_filled_but_nothing_is_mapped_over_another_threads_memory() {
        let len = 4 * PAGE;
        let memory = create_memory(len as u64).unwrap();
        let mapping = Mapping::of_file(&memory, len, true).unwrap();
        let byte = |at: usize| mapping.byte(at as u64).unwrap().load(Ordering::Relaxed);
        mapping.byte(5).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(mapping.fill_gap(), Ok(()));
        assert_eq!(byte(5), 7, "there was no gap");

        let map = |address: *mut libc::c_void, len: usize| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: a part of the range of `mapping`, which nothing else here uses.
            let mapped = unsafe { libc::mmap(address, len, protection(true), flags, -1, 0) };
            assert_eq!(mapped, address);
        };
        // As if another thread had mapped a page in the gap.
        let third = mapping.address().wrapping_byte_add(2 * PAGE);
        map(third, PAGE);
        mapping
            .byte(2 * PAGE as u64)
            .unwrap()
            .store(9, Ordering::Relaxed);
        assert_eq!(mapping.fill_gap(), Err(Taken));
        assert_eq!(byte(2 * PAGE), 9, "the page belongs to the other thread");

        // SAFETY: the range of `mapping`, which is not accessed before it is mapped again.
        unsafe { libc::munmap(mapping.address(), len) };
        if mapping.fill_gap() == Ok(()) {
            assert_eq!([5, 2 * PAGE].map(byte), [0, 0]);
            assert!(!mapping.is_there());
        } else {
            // A concurrent test has mapped memory there.
            std::mem::forget(mapping);
        }
    }
}
