//! Owner and peers use the region while it migrates.

use std::fs::File;
use std::io::ErrorKind::WouldBlock;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

use toroid_fabric::mem::CHUNK;
use toroid_fabric::shm::RemoteRegion;
use toroid_fabric::{Access, Mapped, OpError, Operation};

use super::rig::*;

const MIGRATIONS: u32 = 300;

fn fold(remote: &RemoteRegion, offset: u64, len: u64) -> Result<Vec<u8>, OpError> {
    remote.fold(offset, len, Vec::new(), |all, block| all.extend(block))
}

/// Offset of a word in each chunk, so that every chunk is needed.
fn word(chunk: u64, n: u64) -> u64 {
    chunk * CHUNK + 128 * n
}

/// Repeats `what` in a thread of its own until `stop`; a failure stops all threads.
fn until<'a>(scope: &'a Scope<'a, '_>, stop: &'a Stop, mut what: impl FnMut() + Send + 'a) {
    scope.spawn(move || {
        let guard = StopAll(stop);
        while !stop.0.load(Ordering::Relaxed) {
            what();
        }
        drop(guard);
    });
}

#[derive(Default)]
struct Stop(AtomicBool);

struct StopAll<'a>(&'a Stop);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_write_is_lost_while_owner_and_peers_use_the_region() {
    let mut exported = Exported::new();
    let owner = exported.owner.clone();
    let (writer, reader) = (exported.writer.clone(), exported.reader.clone());
    let (folded, written) = (exported.reader.clone(), exported.writer.clone());
    let still: Vec<u8> = (0..50_000).map(|n| (n / 7) as u8).collect();
    for chunk in 0..CHUNKS {
        owner.write(word(chunk, 80) + 3, &still).unwrap();
    }
    let (stop, added) = (Stop::default(), AtomicU64::new(0));
    thread::scope(|scope| {
        let (stop, added, owner) = (&stop, &added, &owner);
        // Both add to the same words.
        until(scope, stop, move || {
            for chunk in 0..CHUNKS {
                owner.fetch_add(word(chunk, 0), 1).unwrap();
                added.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut queue = pair();
        until(scope, stop, move || {
            for chunk in 0..CHUNKS {
                let add = Operation::fetch_add(&writer, word(chunk, 0), 1);
                run(&mut queue, add).unwrap();
                added.fetch_add(1, Ordering::Relaxed);
            }
        });
        // The owner reads its last stores.
        let mut round = 0;
        until(scope, stop, move || {
            for chunk in 0..CHUNKS {
                let mut back = [0; 3000];
                owner.read(word(chunk, 8), &mut back).unwrap();
                assert_eq!(back, [round as u8; 3000], "round {round}");
                assert_eq!(owner.load(word(chunk, 1)), Ok(round));
                let next = round + 1;
                owner.write(word(chunk, 8), &[next as u8; 3000]).unwrap();
                owner.store(word(chunk, 1), next).unwrap();
            }
            round += 1;
        });
        // A reader sees words that only grow.
        let mut before = [0; 2 * CHUNKS as usize];
        until(scope, stop, move || {
            for (n, before) in before.iter_mut().enumerate() {
                let mut now = [0; 8];
                read(&reader, word(n as u64 / 2, n as u64 % 2), &mut now).unwrap();
                let now = u64::from_ne_bytes(now);
                assert!(*before <= now, "{before} was followed by {now}");
                *before = now;
            }
        });
        // Blocks that no thread changes.
        until(scope, stop, || {
            for chunk in 0..CHUNKS {
                let all = fold(&folded, word(chunk, 80) + 3, still.len() as u64);
                assert!(all.unwrap() == still, "chunk {chunk}");
            }
            // Valid pieces are not folded twice.
            for view in [&folded, &written] {
                let count = |all: &mut usize, block: &[u8]| *all += block.len();
                assert_eq!(view.fold(0, LEN, 0, count), Ok(LEN as usize));
            }
        });
        let guard = StopAll(stop);
        for _ in 0..MIGRATIONS {
            exported.migrate_once(|_| ());
            thread::sleep(Duration::from_micros(300));
        }
        drop(guard);
    });
    let total: u64 = (0..CHUNKS).map(|n| owner.load(word(n, 0)).unwrap()).sum();
    assert_eq!(total, added.load(Ordering::Relaxed));
    assert!(total > 0);
}

#[test]
fn folded_blocks_equal_a_copy() {
    let exported = Exported::new();
    let bytes: Vec<u8> = (0..LEN).map(|n| (n / 3) as u8).collect();
    exported.owner.write(0, &bytes).unwrap();
    for offset in [0, 1, 8, 63, 4097] {
        for len in [
            0,
            1,
            255,
            256,
            257,
            5000,
            CHUNK - 1,
            CHUNK + 300,
            LEN - offset,
        ] {
            let part = &bytes[offset as usize..(offset + len) as usize];
            let from_peer = fold(&exported.reader, offset, len).unwrap();
            assert!(from_peer == part, "{len} bytes at {offset}");
            let add = |all: &mut Vec<u8>, block: &[u8]| all.extend(block);
            let own = exported.owner.fold(offset, len, Vec::new(), add);
            assert!(own.unwrap() == part, "{len} bytes at {offset} of our own");
        }
        for len in [LEN - offset + 1, u64::MAX] {
            let limit = LEN;
            let outside = Err(OpError::OutOfBounds { offset, len, limit });
            assert_eq!(fold(&exported.reader, offset, len), outside);
        }
    }
    let needed = READ;
    let writer = map(&exported.memory, Access::REMOTE_WRITE);
    assert_eq!(fold(&writer, 0, 1), Err(OpError::MissingRight { needed }));
    // Blocks folded before the end give no result.
    let status = exported.reader.memory().status();
    let sum = |all: &mut u64, block: &[u8]| {
        status.revoke();
        *all += block.len() as u64;
    };
    let revoked = exported.reader.fold(0, 256, 0, sum);
    assert_eq!(revoked, Err(OpError::Revoked));
}

/// Regression: a reader that touched pages of the fresh memory before they were filled destroyed
/// their contents.
#[test]
fn an_early_reader_of_the_fresh_memory_destroys_nothing() {
    let mut exported = Exported::new();
    let bytes: Vec<u8> = (0..LEN).map(|n| (n / 97) as u8).collect();
    exported.owner.write(0, &bytes).unwrap();
    for _ in 0..3 {
        exported.migrate_once(|fresh| {
            let early = map(fresh, READ);
            read(&early, 0, &mut vec![1; LEN as usize]).unwrap();
            touch(fresh);
        });
        let mut back = vec![0; LEN as usize];
        exported.owner.read(0, &mut back).unwrap();
        assert!(back == bytes, "the owner reads its bytes");
        back.fill(0);
        read(&exported.reader, 0, &mut back).unwrap();
        assert!(back == bytes, "a peer reads them, too");
    }
}

/// Makes the kernel touch all pages of read-only memory, in every possible way.
fn touch(fresh: &File) {
    let len = LEN as usize;
    let mut there = vec![1; len];
    fresh.read_exact_at(&mut there, 0).unwrap();
    let descriptor = fresh.as_raw_fd();
    let (pipe, into) = std::io::pipe().unwrap();
    // SAFETY: a new mapping, which is unmapped before the end; only the kernel reads it, and writes
    // the bytes to `there`, whose length it is given.
    unsafe {
        let anywhere = std::ptr::null_mut();
        let pages = libc::mmap(
            anywhere,
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            descriptor,
            0,
        );
        assert_ne!(pages, libc::MAP_FAILED);
        let local = libc::iovec {
            iov_base: there.as_mut_ptr().cast(),
            iov_len: len,
        };
        let remote = libc::iovec {
            iov_base: pages,
            iov_len: len,
        };
        let read = libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0);
        assert_eq!(read, LEN as isize);
        for advice in [libc::MADV_WILLNEED, libc::MADV_POPULATE_READ] {
            assert_eq!(libc::madvise(pages, len, advice), 0);
        }
        // Pages in a pipe are pinned.
        assert!(libc::vmsplice(into.as_raw_fd(), &remote, 1, libc::SPLICE_F_NONBLOCK) > 0);
        let mut at = 0;
        let spliced = libc::splice(
            descriptor,
            &mut at,
            into.as_raw_fd(),
            std::ptr::null_mut(),
            len,
            libc::SPLICE_F_NONBLOCK,
        );
        assert!(spliced > 0 || std::io::Error::last_os_error().kind() == WouldBlock);
        // These would need the right to write.
        assert_eq!(libc::madvise(pages, len, libc::MADV_REMOVE), -1);
        assert_eq!(libc::madvise(pages, len, libc::MADV_POPULATE_WRITE), -1);
        assert_eq!(libc::fallocate(descriptor, 0, 0, len as i64), -1);
        libc::munmap(pages, len);
    }
    drop(pipe);
}

/// Regression: threads whose faults could not be resolved during the change of another region
/// faulted again so fast that the change was never made.
#[test]
fn a_region_migrates_while_threads_wait_for_chunks_of_another() {
    const THREADS: u64 = 8;
    let (mut first, mut second) = (Exported::new(), Exported::new());
    for _ in 0..40 {
        let (copier, _asked) = first.start_migration();
        while copier.fetch_next().unwrap() {}
        let stop = Stop::default();
        thread::scope(|scope| {
            let (owner, stop) = (&first.owner, &stop);
            for n in 0..THREADS {
                until(scope, stop, move || {
                    for page in 0..LEN / 4096 {
                        owner.fetch_add(page * 4096 + n * 8, 1).unwrap();
                    }
                });
            }
            second.migrate_once(|_| ());
            drop(StopAll(stop));
        });
        first
            .views()
            .iter()
            .for_each(|view| view.finish_migration());
    }
}
