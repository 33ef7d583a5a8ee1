//! Orders of the agent that arrive late, twice, never or too early.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};
use std::thread::{self};
use std::time::Duration;

use toroid_fabric::mem::memfd::{create_memory, read_only};
use toroid_fabric::mem::{CHUNK, Copier};
use toroid_fabric::shm::RemoteRegion;
use toroid_fabric::{Access, OpError, Operation};

use super::copier::parts;
use super::rig::*;

/// No chunk is ever copied: readers go on, writers wait, and their operations end with an error
/// when the memory is detached.
#[test]
fn detached_memory_ends_waiting_accesses_with_an_error() {
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
fn a_late_mapping_joins_the_migration() {
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

/// The next agent repeats the order, because it does not know which processes received it.
#[test]
fn a_repeated_order_changes_nothing() {
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
    // The end of the migration was not announced either.
    for view in exported.views() {
        view.request_again(Box::new(|_| ()));
        assert!(!view.is_migrating());
    }
    assert_eq!(exported.owner.load(0), Ok(8));
}

/// Regression: zeros replaced the memory before its status ended, so loads returned zeros and
/// stores were lost.
#[test]
fn a_failed_migration_revokes_the_memory() {
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

/// Regression: after the end of one view's migration, the others read chunks that were not
/// resident.
#[test]
fn mappings_with_one_status_migrate_one_by_one() {
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

/// Regression: after a migration without an announced end, accesses in the next one met zeros.
#[test]
fn an_incomplete_migration_is_not_followed_by_another() {
    let mut exported = Exported::new();
    exported.owner.store(0, 7).unwrap();
    let (copier, _asked) = exported.start_migration();
    while copier.fetch_next().unwrap() {}
    // All chunks are resident, but the end was not announced.
    exported.migrate_once(|_| ());
    assert_eq!(exported.owner.load(0), Ok(7));
    let (_copier, _asked) = exported.start_migration();
    let (next, fresh) = self::copier(&exported.memory);
    for view in exported.views() {
        let table = next.table().unwrap();
        let failed = view.start_migration(&fresh, &table, Box::new(|_| ()));
        assert!(failed.is_err(), "most chunks are not resident");
        assert_eq!(view.status().check(), Err(OpError::Revoked));
    }
}

#[test]
fn lost_requests_are_repeated() {
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
        // Later requests use the same function.
        assert_eq!(exported.owner.load(0), Ok(0));
    });
}

/// Regression: one message that blocked stopped all migrations of the process.
#[test]
fn a_request_that_blocks_stops_no_other_migration() {
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

/// Regression: a child inherits everything but the memory, and ended the migration of its parent by
/// dropping its own view.
#[test]
fn a_forked_child_ends_no_migration_of_its_parent() {
    let mut exported = Exported::new();
    exported.owner.store(CHUNK, 5).unwrap();
    let (copier, asked) = exported.start_migration();
    // SAFETY: the child only drops its values and ends.
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
