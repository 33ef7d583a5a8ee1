//! Regions move to fresh memory while they are used: nothing is lost, nobody reads what never
//! was, and nobody waits for ever.

use std::fs::File;
use std::io::ErrorKind::WouldBlock;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, mpsc};
use std::thread::{self, Scope};
use std::time::Duration;

use toroid_fabric::mem::memfd::{
    create_for_peers, create_memory, read_only, read_write, seal_writes,
};
use toroid_fabric::mem::{CHUNK, Copier, Memory};
use toroid_fabric::shm::{QueuePair, RemoteRegion};
use toroid_fabric::{
    Access, Completion, Endpoint, Mapped, NodeId, OpError, Operation, Partition, Read, Region,
    RegionId, RemoteKey,
};

const KEY: RemoteKey = RemoteKey {
    node: NodeId(1),
    partition: Partition(7),
    id: RegionId(3),
    secret: [0; 16],
};

const READ: Access = Access::REMOTE_READ;

/// Chunks of the region, the last of them not whole.
const CHUNKS: u64 = 5;
const LEN: u64 = CHUNKS * CHUNK - 4096 - 8;

const MIGRATIONS: u32 = 300;

/// How long to wait for what is to come, and for what must not.
const PATIENCE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(5);

/// A region, its owner, one peer that writes and one that reads.
struct Exported {
    memory: File,
    owner: Region,
    writer: RemoteRegion,
    reader: RemoteRegion,
}

impl Exported {
    fn new() -> Self {
        let memory = create_memory(LEN).unwrap();
        Exported {
            owner: Region::exported(&memory, LEN as usize, KEY, Arc::default(), None).unwrap(),
            writer: map(&memory, Access::all()),
            reader: map(&read_only(&memory).unwrap(), READ),
            memory,
        }
    }

    fn views(&self) -> [&Arc<Memory>; 3] {
        let (owner, writer, reader) = (&self.owner, &self.writer, &self.reader);
        [owner.memory(), writer.memory(), reader.memory()]
    }

    /// Lets all change to fresh memory; returns what they then ask for.
    fn start_migration(&mut self) -> (Arc<Copier>, Receiver<u64>) {
        let (asking, asked) = mpsc::channel();
        // Nobody listens any more after the test has failed.
        let copier = self.start_migration_requesting(move |chunk| _ = asking.send(chunk));
        copier.release();
        (copier, asked)
    }

    fn start_migration_requesting(
        &mut self,
        request: impl Fn(u64) + Clone + Send + Sync + 'static,
    ) -> Arc<Copier> {
        let copier = copier(&self.memory);
        self.memory = copier.1;
        for view in self.views() {
            let request = Box::new(request.clone());
            let table = copier.0.table().unwrap();
            let fresh = if view.is_writable() {
                self.memory.try_clone().unwrap()
            } else {
                read_only(&self.memory).unwrap()
            };
            drop(view.start_migration(&fresh, &table, request).unwrap());
        }
        copier.0
    }

    /// Moves the region; what is waited for first, and then the rest.
    fn migrate_once(&mut self, meanwhile: impl FnOnce(&File)) {
        let (copier, asked) = self.start_migration();
        meanwhile(&read_only(&self.memory).unwrap());
        let wake_resident = || self.views().iter().for_each(|view| view.wake_resident());
        loop {
            while let Ok(chunk) = asked.recv_timeout(Duration::from_micros(200)) {
                copier.fetch(chunk).unwrap();
                wake_resident();
            }
            if !copier.fetch_next().unwrap() {
                break;
            }
        }
        wake_resident();
        assert_eq!(copier.remaining(), 0);
        self.views().iter().for_each(|view| view.finish_migration());
        assert!(self.views().iter().all(|view| !view.is_migrating()));
    }
}

fn map(memory: &File, access: Access) -> RemoteRegion {
    RemoteRegion::map(memory, LEN as usize, KEY, access, Arc::default(), None).unwrap()
}

/// A copier from `old`, and the memory that it leads to.
fn copier(old: &File) -> (Arc<Copier>, File) {
    let fresh = create_memory(LEN).unwrap();
    let copies = (old.try_clone().unwrap(), fresh.try_clone().unwrap());
    let copier = Copier::new(copies.0, copies.1, LEN).unwrap();
    (copier.into(), fresh)
}

fn pair() -> QueuePair {
    QueuePair::new(KEY.node, KEY.partition, 1)
}

fn run(pair: &mut QueuePair, operation: Operation<RemoteRegion>) -> Result<u64, OpError> {
    pair.post(0, operation).unwrap();
    pair.flush();
    let mut done = [Completion::default()];
    assert_eq!(pair.poll(&mut done), 1);
    done[0].result
}

fn read(remote: &RemoteRegion, offset: u64, into: &mut [u8]) -> Result<(), OpError> {
    pair().read_batch(&mut [Read {
        remote,
        offset,
        into,
    }])
}

fn fold(remote: &RemoteRegion, offset: u64, len: u64) -> Result<Vec<u8>, OpError> {
    remote.fold(offset, len, Vec::new(), |all, block| all.extend(block))
}

/// A word of each chunk, so that all of them are needed.
fn word(chunk: u64, n: u64) -> u64 {
    chunk * CHUNK + 128 * n
}

/// Does something again and again in a thread of its own; a failure stops all.
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
fn nothing_is_lost_while_all_use_what_moves() {
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
        // What the owner stored last, it reads next.
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
        // Blocks of what nobody changes.
        until(scope, stop, || {
            for chunk in 0..CHUNKS {
                let all = fold(&folded, word(chunk, 80) + 3, still.len() as u64);
                assert!(all.unwrap() == still, "chunk {chunk}");
            }
            // Pieces that were right are not folded again.
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
fn blocks_have_what_a_copy_has() {
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
    // What was given before the end is no result.
    let status = exported.reader.memory().status();
    let sum = |all: &mut u64, block: &[u8]| {
        status.revoke();
        *all += block.len() as u64;
    };
    let revoked = exported.reader.fold(0, 256, 0, sum);
    assert_eq!(revoked, Err(OpError::Revoked));
}

/// A mere reader that touched the pages of the fresh memory before they were filled once
/// destroyed what belonged there.
#[test]
fn a_reader_that_touches_too_early_does_no_harm() {
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
        assert!(back == bytes, "the owner's bytes are whole");
        back.fill(0);
        read(&exported.reader, 0, &mut back).unwrap();
        assert!(back == bytes, "a peer reads them, too");
    }
}

/// Makes the kernel touch all pages of memory that may only be read, in every way that there is.
fn touch(fresh: &File) {
    let len = LEN as usize;
    let mut there = vec![1; len];
    fresh.read_exact_at(&mut there, 0).unwrap();
    let descriptor = fresh.as_raw_fd();
    let (pipe, into) = std::io::pipe().unwrap();
    // SAFETY: a new mapping, which is unmapped before the end; the kernel alone reads it, and writes
    // what it reads to `there`, of which it is told the length.
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

/// Nothing is ever copied: readers read on, writers wait, and when the memory is detached they
/// end with an error.
#[test]
fn who_waits_for_what_never_comes_ends_with_an_error() {
    let mut exported = Exported::new();
    exported.owner.store(0, 5).unwrap();
    let (_copier, asked) = exported.start_migration();
    let mut word = [0; 8];
    read(&exported.reader, 0, &mut word).unwrap();
    assert_eq!(word, 5u64.to_ne_bytes());
    thread::scope(|scope| {
        let store = scope.spawn(|| exported.owner.store(8, 1));
        let writer = exported.writer.clone();
        let add = scope.spawn(move || run(&mut pair(), Operation::fetch_add(&writer, 0, 1)));
        assert_eq!([asked.recv(), asked.recv()], [Ok(0), Ok(0)]);
        for view in exported.views() {
            view.status().revoke();
            view.detach();
        }
        assert_eq!(store.join().unwrap(), Err(OpError::Revoked));
        assert_eq!(add.join().unwrap(), Err(OpError::Revoked));
    });
}

#[test]
fn who_comes_during_a_move_takes_part_in_it() {
    let exported = Exported::new();
    let last = LEN - 8;
    exported.owner.store(last, 7).unwrap();
    let (copier, fresh) = copier(&exported.memory);
    copier.release();
    let join = |file: &File, access| {
        let remote = map(file, access);
        let (migrating, view) = (Arc::clone(&copier), Arc::downgrade(remote.memory()));
        let request = Box::new(move |chunk| {
            migrating.fetch(chunk).unwrap();
            view.upgrade().unwrap().wake_resident();
        });
        let (old, table) = (copier.old().unwrap(), copier.table().unwrap());
        remote
            .memory()
            .join_migration(&old, &table, request)
            .unwrap();
        remote
    };
    let mut word = [0; 8];
    let reader = join(&read_only(&fresh).unwrap(), READ);
    read(&reader, last, &mut word).unwrap();
    assert_eq!(word, 7u64.to_ne_bytes());
    let writer = join(&fresh, Access::all());
    let add = Operation::fetch_add(&writer, last, 1);
    assert_eq!(run(&mut pair(), add), Ok(7));
    read(&reader, last, &mut word).unwrap();
    assert_eq!(word, 8u64.to_ne_bytes());
}

#[test]
fn memory_is_frozen_when_nobody_can_write_it() {
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
    assert!(freezing.wait(PATIENCE).unwrap());
    descriptor.write_all_at(b"late", 0).unwrap_err();
    let late = RemoteRegion::map(&descriptor, 8, KEY, Access::all(), Arc::default(), None);
    assert!(late.is_err());
    let mut word = [1; 8];
    read(&reader, 0, &mut word).unwrap();
    assert_eq!(word, [0; 8]);
    // What is frozen stays as a whole.
    copier.release();
    while copier.fetch_next().unwrap() {}
    assert!(!copier.drop_copied().unwrap());
}

/// A leaver once handed its pages to the kernel (`io_uring`, a pipe) and then dropped every
/// mapping and descriptor: nothing of it was to be seen, and it wrote on.
#[test]
fn memory_of_which_pages_are_pinned_is_not_frozen() {
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

/// A chunk once could be copied while a process that had not yet changed still wrote to it.
#[test]
fn nothing_is_copied_before_all_have_changed() {
    let memory = create_memory(LEN).unwrap();
    let fresh = create_memory(LEN).unwrap();
    let files = || (memory.try_clone().unwrap(), fresh.try_clone().unwrap());
    let (old, new) = files();
    let copier = Copier::new(old, new, LEN).unwrap();
    let would_block = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(copier.fetch(0).is_err_and(would_block));
    assert!(copier.fetch_next().is_err_and(would_block));
    memory.write_all_at(&[7; 8], 0).unwrap();
    copier.release();
    copier.fetch(0).unwrap();

    // Another agent goes on: what has arrived was written since.
    fresh.write_all_at(&[8; 8], 0).unwrap();
    memory.write_all_at(&[9; 8], CHUNK).unwrap();
    let parts = parts(&copier);
    drop(copier);
    let next = Copier::resume(parts, files().1, LEN).unwrap();
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
    copier.freeze(KEY.partition)?.wait(PATIENCE)
}

/// What the next agent is given of a move.
fn parts(copier: &Copier) -> [File; 2] {
    let parts = copier.parts();
    parts.map(|part| part.try_clone_to_owned().unwrap().into())
}

#[test]
fn what_an_agent_has_frozen_stays_whole_for_the_next() {
    let old = create_for_peers(LEN).unwrap();
    old.write_all_at(&[7; 8], 0).unwrap();
    let fresh = create_for_peers(LEN).unwrap();
    let copier = Copier::new(old, fresh.try_clone().unwrap(), LEN).unwrap();
    copier.release();
    assert!(freeze(&copier).unwrap());
    let next = Copier::resume(parts(&copier), fresh, LEN).unwrap();
    assert!(freeze(&next).unwrap());
    while next.fetch_next().unwrap() {}
    // To drop it would fail.
    assert!(!next.drop_copied().unwrap());
    assert!(next.leftover().unwrap().is_none());
}

#[test]
fn what_is_left_of_old_memory_is_dropped_at_once() {
    let len = 2 * (4 << 20) + CHUNK;
    let memory = [
        create_for_peers(len).unwrap(),
        create_for_peers(len).unwrap(),
    ];
    memory[0].write_all_at(&vec![7; len as usize], 0).unwrap();
    let [old, fresh] = [&memory[0], &memory[1]].map(|file| file.try_clone().unwrap());
    let copier = Copier::new(old, fresh, len).unwrap();
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

/// The next agent tells of a move again, because it cannot know who heard.
#[test]
fn who_has_changed_already_does_not_change_again() {
    let mut exported = Exported::new();
    exported.owner.store(0, 7).unwrap();
    let (copier, _asked) = exported.start_migration();
    copier.fetch(0).unwrap();
    exported
        .views()
        .iter()
        .for_each(|view| view.wake_resident());
    assert_eq!(exported.owner.fetch_add(0, 1), Ok(7));
    let next = Copier::resume(parts(&copier), exported.memory.try_clone().unwrap(), LEN);
    let (next, table) = (next.unwrap(), copier.table().unwrap());
    for view in exported.views() {
        let request = Box::new(|_| ());
        drop(
            view.start_migration(&exported.memory, &table, request)
                .unwrap(),
        );
    }
    assert_eq!(exported.owner.load(0), Ok(8));
    while next.fetch_next().unwrap() {}
    // Whose end was not heard either.
    for view in exported.views() {
        view.request_again(Box::new(|_| ()));
        assert!(!view.is_migrating());
    }
    assert_eq!(exported.owner.load(0), Ok(8));
}

/// Who may write the fresh memory can seal it: that is an error and no loss without a word.
#[test]
fn sealed_fresh_memory_is_an_error() {
    let old = create_memory(LEN).unwrap();
    old.write_all_at(&[7; 8], 0).unwrap();
    let fresh = create_for_peers(LEN).unwrap();
    let copier = Copier::new(old, fresh.try_clone().unwrap(), LEN).unwrap();
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
    let copy = |file: &File| file.try_clone().unwrap();
    let copier = Copier::new(copy(&old), copy(&fresh), len).unwrap();
    copier.release();
    while copier.fetch_next().unwrap() {}
    while copier.drop_copied().unwrap() {}
    let mut back = [0; 3];
    fresh.read_exact_at(&mut back, len / 2).unwrap();
    assert_eq!(&back, b"far");
    assert_eq!(fresh.metadata().unwrap().blocks(), 8, "one page");
    assert_eq!(old.metadata().unwrap().blocks(), 0, "dropped");
}

/// The memory once turned to zeros before its status ended, so that loads took them for the
/// region's and stores were lost.
#[test]
fn a_move_that_fails_ends_the_status() {
    let exported = Exported::new();
    exported.owner.store(0, 7).unwrap();
    let fresh = create_memory(LEN).unwrap();
    let too_short = create_memory(1).unwrap();
    for view in exported.views() {
        let failed = view.start_migration(&fresh, &too_short, Box::new(|_| ()));
        assert!(failed.is_err());
        assert_eq!(view.status().check(), Err(OpError::Revoked));
    }
    assert_eq!(exported.owner.load(0), Err(OpError::Revoked));
    let late = map(&fresh, Access::all());
    let joined = late.memory();
    let failed = joined.join_migration(&exported.memory, &too_short, Box::new(|_| ()));
    assert!(failed.is_err());
    assert_eq!(joined.status().check(), Err(OpError::Revoked));
}

/// The end of one view's move once let the others read what had not arrived.
#[test]
fn views_with_one_status_move_by_themselves() {
    let memory = create_memory(LEN).unwrap();
    memory.write_all_at(&[9; 8], 0).unwrap();
    let (copier, fresh) = copier(&memory);
    let (status, reader) = (Arc::default(), read_only(&memory).unwrap());
    let open = || {
        let status = Arc::clone(&status);
        RemoteRegion::map(&reader, LEN as usize, KEY, READ, status, None).unwrap()
    };
    let views = [open(), open()];
    for view in &views {
        let (fresh, table) = (read_only(&fresh).unwrap(), copier.table().unwrap());
        let request = Box::new(|_| ());
        drop(view.memory().start_migration(&fresh, &table, request));
    }
    views[1].memory().finish_migration();
    let mut word = [0; 8];
    read(&views[0], 0, &mut word).unwrap();
    assert_eq!(word, [9; 8]);
}

/// A move whose end was not heard once left accesses of the next to zeros.
#[test]
fn a_move_over_one_that_has_not_ended() {
    let mut exported = Exported::new();
    exported.owner.store(0, 7).unwrap();
    let (copier, _asked) = exported.start_migration();
    while copier.fetch_next().unwrap() {}
    // All has arrived, and nobody was told.
    exported.migrate_once(|_| ());
    assert_eq!(exported.owner.load(0), Ok(7));
    let (_copier, _asked) = exported.start_migration();
    let (next, fresh) = self::copier(&exported.memory);
    for view in exported.views() {
        let table = next.table().unwrap();
        let failed = view.start_migration(&fresh, &table, Box::new(|_| ()));
        assert!(failed.is_err(), "most of it has not arrived");
        assert_eq!(view.status().check(), Err(OpError::Revoked));
    }
}

#[test]
fn what_was_not_heard_is_asked_again() {
    let exported = Exported::new();
    let (copier, fresh) = copier(&exported.memory);
    let (asking, asked) = mpsc::channel();
    let deaf = Box::new(move |chunk| asking.send(chunk).unwrap());
    let table = copier.table().unwrap();
    let view = exported.owner.memory();
    drop(view.start_migration(&fresh, &table, deaf).unwrap());
    thread::scope(|scope| {
        let add = scope.spawn(|| exported.owner.fetch_add(CHUNK, 1));
        assert_eq!(asked.recv(), Ok(1));
        let again = Arc::clone(view);
        copier.release();
        view.request_again(Box::new(move |chunk| {
            copier.fetch(chunk).unwrap();
            again.wake_resident();
        }));
        assert_eq!(add.join().unwrap(), Ok(0));
        // And so it is from now on.
        assert_eq!(exported.owner.load(0), Ok(0));
    });
}

/// One message that could not be sent once stopped all moves of the process.
#[test]
fn an_ask_that_hangs_does_not_keep_others_from_moving() {
    let (mut hanging, mut exported) = (Exported::new(), Exported::new());
    hanging.start_migration_requesting({
        let (hold, held) = mpsc::channel::<()>();
        std::mem::forget(hold);
        let held = Arc::new(std::sync::Mutex::new(held));
        move |_| {
            _ = held
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_millis(200))
        }
    });
    thread::scope(|scope| {
        let owner = &hanging.owner;
        let waiting = scope.spawn(move || owner.load(0));
        exported.owner.store(0, 3).unwrap();
        exported.migrate_once(|_| ());
        assert_eq!(exported.owner.load(0), Ok(3));
        hanging.views().iter().for_each(|view| {
            view.status().revoke();
            view.detach();
        });
        assert_eq!(waiting.join().unwrap(), Err(OpError::Revoked));
    });
}

/// Threads that could not be helped while another region changed its memory once came back so
/// fast that the change was never made.
#[test]
fn regions_move_while_threads_wait_for_another() {
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

/// A child has what its parent has, but for the memory, and once ended the parent's move when it
/// dropped its own view.
#[test]
fn a_forked_child_changes_nothing() {
    let mut exported = Exported::new();
    exported.owner.store(CHUNK, 5).unwrap();
    let (copier, asked) = exported.start_migration();
    // SAFETY: the child drops what is its own and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(exported);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: the child is ours, and a null status is allowed.
    let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(waited, child);
    thread::scope(|scope| {
        let add = scope.spawn(|| exported.owner.fetch_add(CHUNK, 1));
        assert_eq!(asked.recv_timeout(Duration::from_secs(20)), Ok(1));
        copier.fetch(1).unwrap();
        exported.owner.memory().wake_resident();
        assert_eq!(add.join().unwrap(), Ok(5));
    });
}

/// Whether it takes the kernel long to drop what is mapped so often depends on the machine, but
/// nothing may go that has not been copied, and all of it in the end.
#[test]
fn memory_that_is_mapped_very_often_is_dropped_when_it_is_copied() {
    let len = 16 << 20;
    let (old, fresh) = (create_memory(len).unwrap(), create_memory(len).unwrap());
    old.write_all_at(&vec![1; len as usize], 0).unwrap();
    let blocks = || old.metadata().unwrap().blocks();
    let chunk_blocks = CHUNK / 512;
    let copier = Copier::new(old.try_clone().unwrap(), fresh, len).unwrap();
    copier.release();
    let reader = read_only(&old).unwrap();
    let map = || RemoteRegion::map(&reader, len as usize, KEY, READ, Arc::default(), None);
    let greedy: Vec<_> = (0..50_000).map(|_| map().unwrap()).collect();
    let chunks = copier.chunks();
    for copied in [1, 65, chunks - 1, chunks] {
        let full = blocks();
        (0..copied).for_each(|chunk| copier.fetch(chunk).unwrap());
        assert_eq!(blocks(), full, "who asked does not wait for that");
        while copier.drop_copied().unwrap() {}
        assert!(blocks() >= (chunks - copied) * chunk_blocks);
    }
    assert_eq!(blocks(), 0);
    drop(greedy);
}
