//! Processes by their descriptors: a number may have been reused, and processes of an earlier agent
//! are no children of this one.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::setsid;

/// A command that takes on a [role](crate::roles) under the name `title`, with nothing of this
/// process's environment.
pub(crate) fn role_command(title: &str, role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(title).arg(role);
    // Each arena of the allocator costs memory.
    command.env_clear().env("MALLOC_ARENA_MAX", "1");
    command
}

/// Makes a process that outlives agents independent of the terminal and the directory of the one
/// that starts it, and lets it have as many descriptors as it may.
pub(crate) fn become_independent() -> io::Result<()> {
    setsid()?;
    std::env::set_current_dir("/")?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Most time for the other threads of a process to end after its first.
const LAST_BREATH: u16 = 1000;

/// Whether a process has ended. The end of one that [is dying](is_dying) is awaited for a second.
pub(crate) fn has_ended(pid: u32, process: &OwnedFd) -> bool {
    let time = if is_dying(pid) { LAST_BREATH } else { 0 };
    ends_within(process, time)
}

/// Waits for the end of a process, a child of this one or not.
pub(crate) fn outlast(process: &OwnedFd, child: Option<Child>) {
    while !ends_within(process, PollTimeout::NONE) {}
    if let Some(mut child) = child {
        // The child has ended, so this only reaps it.
        let _ = child.wait();
    }
}

/// Waits for the end of a killed process, however long it takes, and calls `complain` after each
/// period `each`.
pub(crate) fn outlast_killed(process: &OwnedFd, each: Duration, mut complain: impl FnMut()) {
    let each = PollTimeout::try_from(each).unwrap_or(PollTimeout::MAX);
    while !ends_within(process, each) {
        complain();
    }
}

/// Waits for the end of a process at most for `time`; returns whether it has ended.
pub(crate) fn ends_within(process: &OwnedFd, time: impl Into<PollTimeout>) -> bool {
    let time = time.into();
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut ended, time) {
            Err(Errno::EINTR) => {}
            result => return result.is_ok_and(|count| count > 0),
        }
    }
}

/// Whether a process or its first thread has ended. Its other threads, which end with it, may hold
/// its files for a moment, so that its sockets seem to listen.
pub(crate) fn is_dying(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(true, |status| status.contains("\nState:\tZ"))
}

/// Most generations that are searched. No process has so many ancestors by accident.
const GENERATIONS: usize = 1024;

/// Attempts when an ancestor has ended meanwhile.
const ATTEMPTS: usize = 3;

/// Whether a process is one of `ancestors` or descends from one. Also true of a process that has
/// ended or cannot be traced.
pub(crate) fn descends_from(pid: u32, ancestors: &HashSet<u32>) -> bool {
    for _ in 0..ATTEMPTS {
        let line = std::iter::successors(Some(pid), |pid| parent(*pid));
        for pid in line.take(GENERATIONS) {
            if ancestors.contains(&pid) {
                return true;
            }
            if pid == 0 {
                return false;
            }
        }
    }
    true
}

/// Parent of a process. The outermost process has parent 0, which has none.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// An agent that was killed a moment ago was once taken for a running one.
    #[test]
    fn a_process_that_was_killed_is_dying() {
        assert!(!is_dying(std::process::id()));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        assert!(!is_dying(pid));
        child.kill().unwrap();
        let handle = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        );
        // It has not been reaped, so its number still exists.
        assert!(ends_within(&handle.unwrap(), PollTimeout::NONE));
        assert!(is_dying(pid));
        child.wait().unwrap();
        assert!(is_dying(pid));
    }

    /// Threads of a killed driver once outlived its first one, so the next agent took it over. Here
    /// the first thread and the others are two processes.
    #[test]
    fn the_last_thread_of_a_dying_process_is_awaited() {
        let mut first = Command::new("true").spawn().unwrap();
        let mut others = Command::new("sleep").arg("0.3").spawn().unwrap();
        let handle = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&others),
            rustix::process::PidfdFlags::empty(),
        );
        let handle = handle.unwrap();
        assert!(!has_ended(others.id(), &handle));
        while !is_dying(first.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(has_ended(first.id(), &handle));
        first.wait().unwrap();
        others.wait().unwrap();
    }

    /// A process whose end the kernel holds up once counted as gone after a while.
    #[test]
    fn a_killed_process_is_awaited_until_its_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let handle = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        );
        let handle = handle.unwrap();
        let mut complaints = 0;
        outlast_killed(&handle, Duration::from_millis(1), || {
            complaints += 1;
            if complaints == 3 {
                child.kill().unwrap();
            }
        });
        assert!(complaints >= 3);
        assert!(has_ended(child.id(), &handle));
        child.wait().unwrap();
    }

    #[test]
    fn a_child_descends_from_this_process_and_not_the_other_way_round() {
        let mut child = Command::new("sh")
            .args(["-c", "cat; true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (ours, childs) = (std::process::id(), child.id());
        assert!(descends_from(childs, &[ours].into()));
        assert!(descends_from(childs, &[childs].into()));
        assert!(!descends_from(ours, &[childs].into()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(descends_from(childs, &[ours].into()), "it has ended");
    }
}
