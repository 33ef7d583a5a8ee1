//! Migrations in processes with unusual properties: each test runs in a process of its own.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use toroid_fabric::mem::memfd::create_memory;
use toroid_fabric::mem::{CHUNK, Copier, Memory, faults};
use toroid_fabric::{NodeId, Partition, Region, RegionId, RemoteKey};

const KEY: RemoteKey = RemoteKey {
    node: NodeId(1),
    partition: Partition(7),
    id: RegionId(3),
    secret: [0; 16],
};

const LEN: u64 = 2 * CHUNK;

const ALONE: &str = "TOROID_TEST_ALONE";

/// Runs the body of a test in a process of its own, and returns the status of that process.
fn alone(test: &str, body: impl FnOnce()) -> Option<ExitStatus> {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        body();
        return None;
    }
    let mut itself = Command::new(std::env::current_exe().unwrap());
    let itself = itself.args(["--exact", test, "--nocapture"]);
    Some(itself.env(ALONE, test).status().unwrap())
}

fn assert_well(ended: Option<ExitStatus>) {
    assert!(ended.is_none_or(|status| status.success()), "{ended:?}");
}

fn owner(memory: &File) -> Region {
    Region::exported(memory, LEN as usize, KEY, Arc::default(), None).unwrap()
}

/// A copier from `old`, and the fresh memory.
fn copier(old: &File) -> (Copier, File) {
    let fresh = create_memory(LEN).unwrap();
    let copies = (old.try_clone().unwrap(), fresh.try_clone().unwrap());
    let copier = Copier::new(copies.0, copies.1, LEN).unwrap();
    copier.release();
    (copier, fresh)
}

/// Requests that fetch the chunk at once.
fn fetch_from(copier: Copier, view: &Arc<Memory>) -> Box<dyn Fn(u64) + Send + Sync> {
    let view = Arc::downgrade(view);
    Box::new(move |chunk| {
        copier.fetch(chunk).unwrap();
        if let Some(view) = view.upgrade() {
            view.wake_resident();
        }
    })
}

/// Regression: the kernel populates new mappings of such a process, and no access waits for a page
/// that is mapped. So loads saw zeros, and stores were lost.
#[test]
fn a_process_that_locks_its_memory_waits_for_migrating_chunks() {
    let ended = alone(
        "a_process_that_locks_its_memory_waits_for_migrating_chunks",
        || {
            let memory = create_memory(LEN).unwrap();
            let region = owner(&memory);
            region.store(0, 7).unwrap();
            region.store(CHUNK, 8).unwrap();
            // Started before, because an ordinary user may not lock as much as the thread's stack.
            faults::available().unwrap();
            // SAFETY: changes how mappings are made, not their contents.
            assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
            let (first, fresh) = copier(&memory);
            let table = first.table().unwrap();
            let view = region.memory();
            let request = fetch_from(first, view);
            drop(view.start_migration(&fresh, &table, request).unwrap());
            assert_eq!(region.load(0), Ok(7));
            assert_eq!(region.fetch_add(CHUNK, 1), Ok(8));

            let (second, fresh) = copier(&memory);
            let (old, table) = (second.old().unwrap(), second.table().unwrap());
            let late = owner(&fresh);
            let request = fetch_from(second, late.memory());
            late.memory().join_migration(&old, &table, request).unwrap();
            assert_eq!(late.load(0), Ok(7));
            assert_eq!(late.fetch_add(CHUNK, 1), Ok(8));
        },
    );
    assert_well(ended);
}

/// Without the abort, threads that wait for a region would wait for ever.
#[test]
fn a_failed_request_for_a_chunk_aborts_the_process() {
    let ended = alone("a_failed_request_for_a_chunk_aborts_the_process", || {
        let memory = create_memory(LEN).unwrap();
        let region = owner(&memory);
        let (copier, fresh) = copier(&memory);
        let (view, table) = (region.memory(), copier.table().unwrap());
        let request = Box::new(|_| panic!("there is no agent"));
        drop(view.start_migration(&fresh, &table, request).unwrap());
        let (done, waiting) = mpsc::channel();
        thread::spawn(move || done.send(region.load(0)));
        let _ = waiting.recv_timeout(Duration::from_secs(20));
    });
    if let Some(status) = ended {
        assert_eq!(status.signal(), Some(libc::SIGABRT));
    }
}

/// A handler may touch memory that waits for the thread in which the handler would run.
#[test]
fn threads_that_serve_faults_block_all_signals() {
    let ended = alone("threads_that_serve_faults_block_all_signals", || {
        faults::available().unwrap();
        // A thread sets its name itself, after its start.
        let threads = loop {
            match threads_of_toroid() {
                found if found.len() < 2 => thread::yield_now(),
                found => break found,
            }
        };
        for status in threads {
            let blocked = u64::from_str_radix(field(&status, "SigBlk:\t"), 16).unwrap();
            assert_ne!(blocked & (1 << (libc::SIGTERM - 1)), 0, "{status}");
        }
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(status.contains("SigBlk:\t0000000000000000"), "{status}");
    });
    assert_well(ended);
}

/// The `status` files of the threads that serve faults.
fn threads_of_toroid() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap();
    let all = tasks.map(|task| status(task.unwrap()));
    all.filter(|status| field(status, "Name:\t").starts_with("toroid-"))
        .collect()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap()
}

/// Regression: a process without a free descriptor lost every region that migrated later.
#[test]
fn a_temporary_failure_to_serve_faults_is_not_remembered() {
    let ended = alone(
        "a_temporary_failure_to_serve_faults_is_not_remembered",
        || {
            let limit = |to: u64| {
                let limit = libc::rlimit {
                    rlim_cur: to,
                    rlim_max: 1024,
                };
                // SAFETY: the call reads the limit.
                assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
            };
            limit(0);
            let error = faults::available().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
            limit(1024);
            faults::available().unwrap();
        },
    );
    assert_well(ended);
}
