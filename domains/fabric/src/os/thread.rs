//! Threads that others wait for.

use std::io;
use std::mem::MaybeUninit;
use std::process::abort;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Starts a thread in which no signal handler of the program runs: one might touch memory that
/// waits for this very thread, or a lock that somebody holds who does.
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
    // It inherits the mask.
    let spawned = builder.spawn(body);
    // SAFETY: `before` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned
}

/// Does something short before all else that runs on this machine, as do the threads that it starts,
/// if the system lets this process: sched(7), `SCHED_RR`. Else it takes its turn like any other.
pub fn urgently<T>(work: impl FnOnce() -> T) -> T {
    let _urgent = Urgent::start();
    work()
}

/// The calling thread is urgent while this lives. Kept is how it was scheduled before.
struct Urgent {
    policy: i32,
    priority: libc::sched_param,
}

impl Urgent {
    fn start() -> Option<Self> {
        let mut priority = libc::sched_param { sched_priority: 0 };
        let lowest = libc::sched_param { sched_priority: 1 };
        // SAFETY: all three concern the calling thread, and read or fill what they are given.
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
        // SAFETY: concerns the calling thread, and reads what it is given.
        unsafe { libc::sched_setscheduler(0, self.policy, &raw const self.priority) };
    }
}

/// How long the calling thread has had a processor.
pub(crate) fn processor_time() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// A time that only grows; may be asked for in a forked child.
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

/// Ends the process when it is dropped: by a panic, or by the return of what must not return.
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
    fn what_was_urgent_is_not_so_afterwards() {
        let before = policy();
        let meanwhile = urgently(policy);
        assert!([libc::SCHED_RR, before].contains(&meanwhile));
        assert_eq!(policy(), before);
        let panicked = std::panic::catch_unwind(|| urgently(|| panic!("in the middle")));
        assert!(panicked.is_err());
        assert_eq!(policy(), before);
    }
}
