//! The agent's part: freezing, copying and dropping the old memory.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use toroid_fabric::Access;
use toroid_fabric::mem::memfd::{
    create_for_peers, create_memory, read_only, read_write, seal_writes,
};
use toroid_fabric::mem::{CHUNK, Copier};
use toroid_fabric::shm::RemoteRegion;

use super::rig::*;

#[test]
fn memory_is_frozen_once_no_writable_mapping_is_left() {
    let memory = create_for_peers(LEN).unwrap();
    let (copier, _fresh) = copier(&memory);
    let reader = map(&read_only(&memory).unwrap(), READ);
    let (owner, writer) = (
        map(&memory, Access::all()),
        map(&read_write(&memory).unwrap(), Access::all()),
    );
    let descriptor = read_write(&memory).unwrap();
    let mut freezing = copier.freeze(KEY.partition).unwrap();
    assert!(!freezing.wait(SOON).unwrap());
    drop(owner);
    assert!(!freezing.wait(SOON).unwrap());
    writer.memory().detach();
    assert!(freezing.wait(TIMEOUT).unwrap());
    descriptor.write_all_at(b"late", 0).unwrap_err();
    let late = RemoteRegion::map(&descriptor, 8, KEY, Access::all(), Arc::default(), None);
    assert!(late.is_err());
    let mut word = [1; 8];
    read(&reader, 0, &mut word).unwrap();
    assert_eq!(word, [0; 8]);
    // Frozen memory stays whole.
    copier.release();
    while copier.fetch_next().unwrap() {}
    assert!(!copier.drop_copied().unwrap());
}

/// Regression: a leaver handed its pages to the kernel (`io_uring`, a pipe), then dropped every
/// mapping and descriptor, and went on writing unseen.
#[test]
fn memory_with_pinned_pages_is_not_frozen() {
    let memory = create_for_peers(LEN).unwrap();
    let (copier, _fresh) = copier(&memory);
    let (pipe, mut into) = std::io::pipe().unwrap();
    // SAFETY: a new mapping, which is unmapped before the end and reached by nothing else.
    unsafe {
        let (rw, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let pages = libc::mmap(
            std::ptr::null_mut(),
            4096,
            rw,
            shared,
            memory.as_raw_fd(),
            0,
        );
        assert_ne!(pages, libc::MAP_FAILED);
        pages.cast::<u8>().write_volatile(1);
        let piece = libc::iovec {
            iov_base: pages,
            iov_len: 4096,
        };
        assert_eq!(libc::vmsplice(into.as_raw_fd(), &piece, 1, 0), 4096);
        libc::munmap(pages, 4096);
    }
    let refused = freeze(&copier).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
    into.flush().unwrap();
    drop((pipe, into));
    assert!(freeze(&copier).unwrap());
}

/// Regression: a chunk could be copied while a process that had not yet changed to the fresh memory
/// still wrote to the old one.
#[test]
fn nothing_is_copied_before_the_release() {
    let memory = create_memory(LEN).unwrap();
    let fresh = create_memory(LEN).unwrap();
    let copier = copier_to(&memory, &fresh, LEN);
    let would_block = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(copier.fetch(0).is_err_and(would_block));
    assert!(copier.fetch_next().is_err_and(would_block));
    memory.write_all_at(&[7; 8], 0).unwrap();
    copier.release();
    copier.fetch(0).unwrap();

    // Another agent resumes; the resident chunk has been written since.
    fresh.write_all_at(&[8; 8], 0).unwrap();
    memory.write_all_at(&[9; 8], CHUNK).unwrap();
    let parts = parts(&copier);
    drop(copier);
    let next = Copier::resume(parts, fresh.try_clone().unwrap(), LEN).unwrap();
    assert!(next.is_released());
    assert_eq!(next.remaining(), LEN - CHUNK);
    while next.fetch_next().unwrap() {}
    for (at, byte) in [(0, 8), (CHUNK, 9)] {
        let mut back = [0; 8];
        fresh.read_exact_at(&mut back, at).unwrap();
        assert_eq!(back, [byte; 8]);
    }
}

/// Returns whether the old memory is frozen.
fn freeze(copier: &Copier) -> std::io::Result<bool> {
    copier.freeze(KEY.partition)?.wait(TIMEOUT)
}

/// The parts of a migration from which the next agent resumes it.
pub fn parts(copier: &Copier) -> [File; 2] {
    let parts = copier.parts();
    parts.map(|part| part.try_clone_to_owned().unwrap().into())
}

#[test]
fn frozen_memory_stays_whole_for_the_next_agent() {
    let old = create_for_peers(LEN).unwrap();
    old.write_all_at(&[7; 8], 0).unwrap();
    let fresh = create_for_peers(LEN).unwrap();
    let copier = copier_to(&old, &fresh, LEN);
    copier.release();
    assert!(freeze(&copier).unwrap());
    let next = Copier::resume(parts(&copier), fresh, LEN).unwrap();
    assert!(freeze(&next).unwrap());
    while next.fetch_next().unwrap() {}
    // Dropping a piece would fail.
    assert!(!next.drop_copied().unwrap());
    assert!(next.leftover().unwrap().is_none());
}

#[test]
fn a_forked_child_drops_the_rest_of_the_old_memory() {
    let len = 2 * (4 << 20) + CHUNK;
    let memory = [
        create_for_peers(len).unwrap(),
        create_for_peers(len).unwrap(),
    ];
    memory[0].write_all_at(&vec![7; len as usize], 0).unwrap();
    let copier = copier_to(&memory[0], &memory[1], len);
    copier.release();
    while copier.fetch_next().unwrap() {}
    copier
        .leftover()
        .unwrap()
        .unwrap()
        .drop_forked(KEY.partition)
        .unwrap();
    assert_eq!(memory[0].metadata().unwrap().blocks(), 0);
    assert_eq!(memory[1].metadata().unwrap().blocks() * 512, len);
    assert!(copier.leftover().unwrap().is_none());
}

/// A process that may write the fresh memory can seal it: an error, not a silent loss.
#[test]
fn sealed_fresh_memory_is_an_error() {
    let old = create_memory(LEN).unwrap();
    old.write_all_at(&[7; 8], 0).unwrap();
    let fresh = create_for_peers(LEN).unwrap();
    let copier = copier_to(&old, &fresh, LEN);
    copier.release();
    seal_writes(&fresh).unwrap();
    let error = copier.fetch(0).unwrap_err();
    assert!(error.to_string().contains("has sealed it"), "{error}");
    assert_eq!(copier.remaining(), LEN);
}

#[test]
fn holes_stay_holes() {
    let len = 1 << 30;
    let (old, fresh) = (create_memory(len).unwrap(), create_memory(len).unwrap());
    old.write_all_at(b"far", len / 2).unwrap();
    let copier = copier_to(&old, &fresh, len);
    copier.release();
    while copier.fetch_next().unwrap() {}
    while copier.drop_copied().unwrap() {}
    let mut back = [0; 3];
    fresh.read_exact_at(&mut back, len / 2).unwrap();
    assert_eq!(&back, b"far");
    assert_eq!(fresh.metadata().unwrap().blocks(), 8, "one page");
    assert_eq!(old.metadata().unwrap().blocks(), 0, "dropped");
}

/// The time that the kernel takes to drop memory with so many mappings depends on the machine. On
/// every machine only copied chunks are dropped, and all of them in the end.
#[test]
fn memory_with_many_mappings_is_dropped_once_it_is_copied() {
    let len = 16 << 20;
    let (old, fresh) = (create_memory(len).unwrap(), create_memory(len).unwrap());
    old.write_all_at(&vec![1; len as usize], 0).unwrap();
    let blocks = || old.metadata().unwrap().blocks();
    let chunk_blocks = CHUNK / 512;
    let copier = copier_to(&old, &fresh, len);
    copier.release();
    let reader = read_only(&old).unwrap();
    let map = || RemoteRegion::map(&reader, len as usize, KEY, READ, Arc::default(), None);
    let greedy: Vec<_> = (0..50_000).map(|_| map().unwrap()).collect();
    let chunks = copier.chunks();
    for copied in [1, 65, chunks - 1, chunks] {
        let full = blocks();
        (0..copied).for_each(|chunk| copier.fetch(chunk).unwrap());
        assert_eq!(blocks(), full, "fetching a chunk drops nothing");
        while copier.drop_copied().unwrap() {}
        assert!(blocks() >= (chunks - copied) * chunk_blocks);
    }
    assert_eq!(blocks(), 0);
    drop(greedy);
}
