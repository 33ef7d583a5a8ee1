//! Threads on which other threads depend, and clocks.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::process::abort;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Starts a thread in which no signal handler runs. A handler might touch memory that waits for
/// this very thread, or a lock whose holder does.
///
/// # Errors
/// The system's.
pub fn spawn_undisturbed<T: Send + 'static>(
    builder: Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both calls write the sets that they are given; the second reads the one that the
    // first has filled. They cannot fail with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // The new thread inherits the mask.
    let spawned = builder.spawn(body);
    // SAFETY: `before` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned
}

/// Sleeps until a descriptor is readable or `timeout` has passed; may return early.
pub(crate) fn sleep_on(fd: BorrowedFd<'_>, timeout: Duration) {
    let timeout = Timespec::try_from(timeout).ok();
    // An interrupted sleep is an early wake-up.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
}

/// Runs `work`, whose sleeps end at their time. The kernel otherwise delays the sleeps of a thread by
/// up to 50 us, to wake several threads together (`PR_SET_TIMERSLACK`, prctl(2)).
pub(crate) fn precisely<T>(work: impl FnOnce() -> T) -> T {
    let slack = 1 as libc::c_ulong;
    // SAFETY: both calls concern the calling thread, and take and return numbers.
    let before = unsafe {
        let before = libc::prctl(libc::PR_GET_TIMERSLACK);
        libc::prctl(libc::PR_SET_TIMERSLACK, slack);
        before
    };
    let result = work();
    let before = before.max(0) as libc::c_ulong;
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, before) };
    result
}

/// Runs short `work`, and the threads that it starts, with priority over all ordinary threads of
/// the machine (`SCHED_RR`, sched(7)), or with the usual priority if this process lacks the
/// permission.
pub fn urgently<T>(work: impl FnOnce() -> T) -> T {
    let _urgent = Urgent::start();
    work()
}

/// Keeps the calling thread urgent while it lives. Holds the previous scheduling.
struct Urgent {
    policy: i32,
    priority: libc::sched_param,
}

impl Urgent {
    fn start() -> Option<Self> {
        let mut priority = libc::sched_param { sched_priority: 0 };
        let lowest = libc::sched_param { sched_priority: 1 };
        // SAFETY: all three calls concern the calling thread, and read or fill their arguments.
        let (policy, is_urgent) = unsafe {
            libc::sched_getparam(0, &raw mut priority);
            let policy = libc::sched_getscheduler(0);
            let set = libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest);
            (policy, set == 0)
        };
        is_urgent.then_some(Urgent { policy, priority })
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        // SAFETY: concerns the calling thread, and reads its argument.
        unsafe { libc::sched_setscheduler(0, self.policy, &raw const self.priority) };
    }
}

/// Locks a mutex also after the panic of a holder, for data that no panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Processor time of the calling thread.
pub(crate) fn processor_time() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of the host share.
pub fn monotonic() -> u64 {
    nanoseconds(now())
}

/// Nanoseconds of `CLOCK_BOOTTIME`, which also goes on while the machine is suspended.
pub fn boottime() -> u64 {
    nanoseconds(time_of(libc::CLOCK_BOOTTIME))
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

/// Monotonic time; may be called in a forked child.
pub(crate) fn now() -> Duration {
    time_of(libc::CLOCK_MONOTONIC)
}

fn time_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` can be written. With these clocks it does not fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sleeps for less than a second, in a forked child.
pub(crate) fn pause(time: Duration) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: `time` can be read.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

/// A guard whose drop aborts the process: on a panic, or when a function returns that must not.
#[derive(Debug)]
pub(crate) struct Indispensable;

impl Drop for Indispensable {
    fn drop(&mut self) {
        abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: takes and returns numbers, and concerns the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn urgency_ends_with_the_work_and_with_a_panic() {
        let before = policy();
        let meanwhile = urgently(policy);
        assert!([libc::SCHED_RR, before].contains(&meanwhile));
        assert_eq!(policy(), before);
        let panicked = std::panic::catch_unwind(|| urgently(|| panic!("in the middle")));
        assert!(panicked.is_err());
        assert_eq!(policy(), before);
    }
}
