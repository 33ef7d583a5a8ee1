//! Regions that move in processes with habits of their own: each in a process by itself.

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

/// Runs the body of a test in a process of its own, and returns how that ended.
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

/// A copier from `old`, and the memory that it leads to.
fn copier(old: &File) -> (Copier, File) {
    let fresh = create_memory(LEN).unwrap();
    let copies = (old.try_clone().unwrap(), fresh.try_clone().unwrap());
    let copier = Copier::new(copies.0, copies.1, LEN).unwrap();
    copier.release();
    (copier, fresh)
}

/// Brings what is asked for.
fn fetch_from(copier: Copier, view: &Arc<Memory>) -> Box<dyn Fn(u64) + Send + Sync> {
    let view = Arc::downgrade(view);
    Box::new(move |chunk| {
        copier.fetch(chunk).unwrap();
        if let Some(view) = view.upgrade() {
            view.wake_resident();
        }
    })
}

/// The kernel fills the mappings of such a process as they are made, and where a page is, nobody
/// waits: loads once saw zeros, and stores were lost.
#[test]
fn a_process_that_locks_its_memory_waits_for_what_moves() {
    let ended = alone(
        "a_process_that_locks_its_memory_waits_for_what_moves",
        || {
            let memory = create_memory(LEN).unwrap();
            let region = owner(&memory);
            region.store(0, 7).unwrap();
            region.store(CHUNK, 8).unwrap();
            // Started before, because its stack would be more than an ordinary user may lock.
            faults::available().unwrap();
            // SAFETY: it changes how mappings are made, not what they hold.
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

/// Whoever waits for a region would wait for ever.
#[test]
fn without_its_faults_a_process_ends() {
    let ended = alone("without_its_faults_a_process_ends", || {
        let memory = create_memory(LEN).unwrap();
        let region = owner(&memory);
        let (copier, fresh) = copier(&memory);
        let (view, table) = (region.memory(), copier.table().unwrap());
        let request = Box::new(|_| panic!("nobody to ask"));
        drop(view.start_migration(&fresh, &table, request).unwrap());
        let (done, waiting) = mpsc::channel();
        thread::spawn(move || done.send(region.load(0)));
        let _ = waiting.recv_timeout(Duration::from_secs(20));
    });
    if let Some(status) = ended {
        assert_eq!(status.signal(), Some(libc::SIGABRT));
    }
}

/// A handler may touch what waits for the thread that it would run in.
#[test]
fn no_signal_is_handled_where_faults_are() {
    let ended = alone("no_signal_is_handled_where_faults_are", || {
        faults::available().unwrap();
        // A thread gives itself its name.
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

/// A process that had no descriptor left once lost all that ever moved.
#[test]
fn a_passing_failure_is_not_kept() {
    let ended = alone("a_passing_failure_is_not_kept", || {
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
    });
    assert_well(ended);
}
