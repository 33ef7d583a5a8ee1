//! Compaction of memory in use: no write is lost, sparsely populated memory does not grow, and the
//! memory can be sealed and migrated as before.
//!
//! Needs Linux 6.1 with huge pages.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::mem::compaction::{self, Look, PIECE};
use toroid_fabric::mem::memfd::{create_for_peers, create_memory, read_only};
use toroid_fabric::mem::{CHUNK, Compaction, Copier, Memory};
use toroid_fabric::{NodeId, Partition, Region, RegionId, RemoteKey};

const KEY: RemoteKey = RemoteKey {
    node: NodeId(1),
    partition: Partition(7),
    id: RegionId(3),
    secret: [0; 16],
};

const PIECES: u64 = 4;

/// The last piece is not whole.
const LEN: u64 = PIECES * PIECE + 3 * PAGE;

const PAGE: u64 = 4096;

/// Bound on waiting: a page may be pinned for a moment, and the kernel may have to make a huge one.
const TIMEOUT: Duration = Duration::from_secs(60);

fn map(memory: &File) -> Region {
    Region::exported(memory, LEN as usize, KEY, Arc::default(), None).unwrap()
}

fn populated() -> File {
    let memory = create_for_peers(LEN).unwrap();
    memory.write_all_at(&bytes(), 0).unwrap();
    memory
}

fn bytes() -> Vec<u8> {
    (0..LEN).map(|n| (n / 97) as u8 | 1).collect()
}

fn compaction(memory: &File) -> Compaction {
    compaction::available().expect("these tests need Linux 6.1 with huge pages");
    Compaction::new(memory, LEN).unwrap()
}

/// Looks until the result and the remaining bytes are as wanted.
fn look_until(compaction: &mut Compaction, wanted: Look, remaining: u64) {
    let start = Instant::now();
    loop {
        let found = compaction.look(|_| true).unwrap();
        if (found, compaction.remaining()) == (wanted, remaining) {
            return;
        }
        // A busy machine may take long.
        assert!(start.elapsed() < TIMEOUT, "{found:?}: {compaction:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn used(memory: &File) -> u64 {
    memory.metadata().unwrap().blocks() * 512
}

/// Bytes of this process's mappings of a memory that are mapped as huge pages.
fn huge(memory: &File) -> u64 {
    let inode = memory.metadata().unwrap().ino().to_string();
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_it, mut bytes) = (false, 0);
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["ShmemPmdMapped:", kib, "kB"] if is_it => bytes += kib.parse::<u64>().unwrap() * 1024,
            [range, _, _, _, of, ..] if range.contains('-') => is_it = of == inode,
            _ => {}
        }
    }
    bytes
}

/// A word of each page.
fn words() -> impl Iterator<Item = u64> {
    (0..LEN / PAGE).map(|page| page * PAGE + page % 512 * 8)
}

/// A mapping unknown to the library, for a child to use.
struct Raw(*mut libc::c_void);

impl Raw {
    fn map(memory: &File) -> Self {
        let (rw, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (anywhere, file) = (std::ptr::null_mut(), memory.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let at = unsafe { libc::mmap(anywhere, LEN as usize, rw, shared, file, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Raw(at)
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= LEN);
        // SAFETY: mapped as long as `self` exists, aligned, and accessed only through atomics.
        unsafe { &*self.0.byte_add(at as usize).cast() }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: all references borrow `self`, so none is left.
        unsafe { libc::munmap(self.0, LEN as usize) };
    }
}

#[test]
fn no_addition_is_lost_during_compaction() {
    let memory = create_for_peers(LEN).unwrap();
    let regions = [map(&memory), map(&memory)];
    words().for_each(|at| regions[0].store(at, 0).unwrap());
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for region in &regions {
            let (stop, rounds) = (&stop, &rounds);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    words().for_each(|at| _ = region.fetch_add(at, 1).unwrap());
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        look_until(&mut compaction(&memory), Look::Done, 0);
        let before = rounds.load(Ordering::Relaxed);
        // Afterwards both threads have added to every word.
        while rounds.load(Ordering::Relaxed) < before + 4 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    for at in words() {
        let counted = regions[1].load(at).unwrap();
        assert_eq!(counted, rounds.load(Ordering::Relaxed), "{at}");
    }
}

#[test]
fn compacted_memory_is_mapped_as_huge_pages() {
    let memory = populated();
    let regions = [map(&memory), map(&memory)];
    look_until(&mut compaction(&memory), Look::Done, 0);
    for region in &regions {
        let mut back = vec![0; LEN as usize];
        region.read(0, &mut back).unwrap();
        assert!(back == bytes(), "the bytes are unchanged");
    }
    assert_eq!(huge(&memory), 2 * PIECES * PIECE);
    assert_eq!(used(&memory), LEN);
}

#[test]
fn no_addition_of_another_process_is_lost() {
    let memory = populated();
    let (told, raw) = (create_memory(LEN).unwrap(), Raw::map(&memory));
    let told = Raw::map(&told);
    words().for_each(|at| raw.word(at).store(0, Ordering::Relaxed));
    let [stop, rounds] = [told.word(0), told.word(8)];
    // SAFETY: the child uses nothing but memory that is mapped already, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        while stop.load(Ordering::Relaxed) == 0 {
            for page in 0..LEN / PAGE {
                let at = page * PAGE + page % 512 * 8;
                raw.word(at).fetch_add(1, Ordering::Relaxed);
            }
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: takes a number, and runs nothing of the parent's.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    look_until(&mut compaction(&memory), Look::Done, 0);
    let own = 1000;
    words().for_each(|at| _ = raw.word(at).fetch_add(own, Ordering::Relaxed));
    stop.store(1, Ordering::Relaxed);
    // SAFETY: a child of ours; the status is not needed.
    let ended = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(ended, child);
    let counted = own + rounds.load(Ordering::Relaxed);
    for at in words() {
        assert_eq!(raw.word(at).load(Ordering::Relaxed), counted, "{at}");
    }
}

#[test]
fn sparsely_populated_pieces_do_not_grow() {
    let memory = create_for_peers(LEN).unwrap();
    let fill = |piece: u64, pages: u64| {
        for page in 0..pages {
            memory
                .write_all_at(&[1], piece * PIECE + page * PAGE)
                .unwrap();
        }
    };
    fill(0, 447);
    fill(2, 1);
    let before = used(&memory);
    let mut compaction = compaction(&memory);
    assert_eq!(compaction.look(|_| true).unwrap(), Look::Later);
    assert_eq!(compaction.remaining(), PIECES * PIECE);
    assert_eq!(used(&memory), before);
    // One more page suffices.
    fill(0, 448);
    look_until(&mut compaction, Look::Later, (PIECES - 1) * PIECE);
    assert_eq!(used(&memory), PIECE + PAGE);
}

#[test]
fn a_piece_with_a_pinned_page_is_left_for_later() {
    let (memory, held) = (populated(), PIECE + 5 * PAGE);
    let raw = Raw::map(&memory);
    let (pipe, into) = std::io::pipe().unwrap();
    let page = libc::iovec {
        iov_base: std::ptr::from_ref(raw.word(held)).cast_mut().cast(),
        iov_len: PAGE as usize,
    };
    // SAFETY: the page is mapped; the kernel pins it and changes nothing.
    let taken = unsafe { libc::vmsplice(into.as_raw_fd(), &raw const page, 1, 0) };
    assert_eq!(taken, PAGE as isize);
    let mut compaction = compaction(&memory);
    look_until(&mut compaction, Look::Later, PIECE);
    drop((pipe, into));
    look_until(&mut compaction, Look::Done, 0);
    let word = raw.word(held).load(Ordering::Relaxed).to_ne_bytes();
    assert_eq!(word, bytes()[held as usize..][..8]);
}

#[test]
fn a_look_stops_when_the_caller_says_so() {
    let mut compaction = compaction(&populated());
    let mut left = Vec::new();
    let found = compaction.look(|bytes| {
        left.push(bytes);
        left.len() < 3
    });
    assert_eq!(found.unwrap(), Look::Stopped);
    assert_eq!(left, [PIECES, PIECES - 1, PIECES - 2].map(|n| n * PIECE));
}

/// Compaction does not keep the memory from being frozen and copied.
#[test]
fn compacted_memory_is_sealed_and_copied() {
    let memory = populated();
    let writer = map(&memory);
    let mut compaction = compaction(&memory);
    look_until(&mut compaction, Look::Done, 0);
    writer.write(0, &bytes()).unwrap();
    let fresh = create_for_peers(LEN).unwrap();
    let copies = [&memory, &fresh].map(|file| file.try_clone().unwrap());
    let [old, new] = copies;
    let copier = Copier::new(old, new, LEN).unwrap();
    drop(writer);
    // The compaction's descriptor does not prevent the seal.
    let mut freezing = copier.freeze(KEY.partition).unwrap();
    assert!(freezing.wait(TIMEOUT).unwrap());
    drop(compaction);
    copier.release();
    while copier.fetch_next().unwrap() {}
    let mut back = vec![0; LEN as usize];
    fresh.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes(), "all bytes were copied");
}

/// An agent compacts fresh memory once all chunks are resident. Processes may not know that yet,
/// and still wait for their pages.
#[test]
fn fresh_memory_is_compacted_before_a_process_finishes_its_migration() {
    let memory = populated();
    let region = map(&memory);
    let fresh = create_for_peers(LEN).unwrap();
    let copies = [&memory, &fresh].map(|file| file.try_clone().unwrap());
    let [old, new] = copies;
    let copier = Arc::new(Copier::new(old, new, LEN).unwrap());
    let (migrating, view) = (Arc::clone(&copier), Arc::downgrade(region.memory()));
    let request = Box::new(move |chunk| {
        migrating.fetch(chunk).unwrap();
        let view: Option<Arc<Memory>> = view.upgrade();
        view.iter().for_each(|view| view.wake_resident());
    });
    let table = copier.table().unwrap();
    let parked = region
        .memory()
        .start_migration(&fresh, &table, request)
        .unwrap();
    drop(parked);
    copier.release();
    let chunks: Vec<u64> = (0..LEN).step_by(CHUNK as usize).collect();
    let stop = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                for at in &chunks {
                    region.fetch_add(*at, 1).unwrap();
                }
                rounds += 1;
            }
            rounds
        });
        while copier.fetch_next().unwrap() {}
        look_until(&mut compaction(&fresh), Look::Done, 0);
        region.memory().finish_migration();
        stop.store(true, Ordering::Relaxed);
        counting.join().unwrap()
    });
    let mut wanted = bytes();
    for at in &chunks {
        let word = &mut wanted[*at as usize..][..8];
        let before = u64::from_ne_bytes(word.try_into().unwrap());
        word.copy_from_slice(&(before.wrapping_add(rounds)).to_ne_bytes());
    }
    let mut back = vec![0; LEN as usize];
    region.read(0, &mut back).unwrap();
    assert!(back == wanted, "the region has all bytes and additions");
    read_only(&fresh)
        .unwrap()
        .read_exact_at(&mut back, 0)
        .unwrap();
    assert!(back == wanted, "the fresh memory has them");
}
