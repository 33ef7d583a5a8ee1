//! System calls that may never return, made by a forked child.
//!
//! A process that may write memory can keep the lock of its inode for ever: by a write(2) of a page
//! from a file whose server (FUSE) never answers. Sealing and punching the memory take this lock. A
//! thread that waits for the lock cannot even be killed, so its process could not end and would
//! keep all its resources. Therefore a child makes the call, with no descriptor but that of the
//! memory. A hanging child stays until the holder of the lock has ended, so a domain may have at
//! most [`MOST`] children.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::key::Partition;
use crate::os::thread::lock;

/// The work of a child on the memory: system calls only. The function must not allocate, because
/// the child may have been forked while other threads held locks.
pub(super) type Work = fn(&File, u64) -> io::Result<()>;

/// Time that a drop waits for a killed child before a thread of its own does.
const KILL_TIMEOUT: Duration = Duration::from_millis(10);

const STACK_BYTES: usize = 64 * 1024;

/// Most children of this process at a time for memory of one domain: more than ever run unless some
/// hang.
const MOST: usize = 16;

/// Number of children by domain; domains without children have no entry.
static CHILDREN: Mutex<BTreeMap<Partition, usize>> = Mutex::new(BTreeMap::new());

/// A child at work. The child is killed when this is dropped or when the thread that started it
/// ends.
#[derive(Debug)]
pub(super) struct ForkedSyscall {
    pid: libc::pid_t,
    /// A pidfd, readable when the child has ended.
    end: OwnedFd,
    /// `None` once the child has been reaped.
    slot: Option<ChildSlot>,
}

/// The permission of a domain to have one child.
#[derive(Debug)]
struct ChildSlot(Partition);

impl ForkedSyscall {
    /// Starts a child for memory of the domain `of`; `argument` is passed to `work`.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): the domain has [`MOST`] children. The system's:
    /// no further process.
    pub(super) fn start(
        of: Partition,
        memory: &File,
        work: Work,
        argument: u64,
    ) -> io::Result<Self> {
        let slot = ChildSlot::take(of)?;
        let (fd, parent) = (memory.as_raw_fd(), std::process::id());
        // SAFETY: the child makes system calls with numbers only, and never returns.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => return Err(io::Error::last_os_error()),
            0 => be_child(parent, fd, work, argument),
            _ => {}
        }
        // SAFETY: takes numbers, and returns a new descriptor or -1.
        let end = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if end < 0 {
            let error = io::Error::last_os_error();
            wait_elsewhere(pid, slot);
            return Err(error);
        }
        Ok(ForkedSyscall {
            pid,
            // SAFETY: a new descriptor that nothing else owns.
            end: unsafe { OwnedFd::from_raw_fd(end as RawFd) },
            slot: Some(slot),
        })
    }

    /// Waits for the result, at most for `timeout` if there is one. Returns `None` if the child
    /// goes on.
    ///
    /// # Errors
    /// The child's; [`Interrupted`](io::ErrorKind::Interrupted) if the child was killed.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Option<()>> {
        if !self.has_ended(timeout)? {
            return Ok(None);
        }
        let mut status = 0;
        // SAFETY: a child of ours that no other code waits for; `status` can be written.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        self.slot = None;
        match libc::WEXITSTATUS(status) {
            _ if waited != self.pid || !libc::WIFEXITED(status) => {
                Err(io::ErrorKind::Interrupted.into())
            }
            0 => Ok(Some(())),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn has_ended(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map_or(-1, |timeout| timeout.as_millis() as i32);
        let mut end = libc::pollfd {
            fd: self.end.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        loop {
            // SAFETY: one structure, which can be written.
            match unsafe { libc::poll(&raw mut end, 1, timeout) } {
                -1 => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
                ready => return Ok(ready > 0),
            }
        }
    }
}

impl Drop for ForkedSyscall {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        // SAFETY: a child of ours that has not been waited for, so the number is its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        match self.has_ended(Some(KILL_TIMEOUT)) {
            Ok(true) => wait_for(self.pid),
            _ => wait_elsewhere(self.pid, slot),
        }
    }
}

impl ChildSlot {
    fn take(of: Partition) -> io::Result<Self> {
        let mut children = lock(&CHILDREN);
        let count = children.entry(of).or_default();
        if *count == MOST {
            let message = format!(
                "{MOST} processes of the agent work on memory of domain {} or wait for its lock, which \
                 a process that could write it may keep",
                of.0
            );
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        *count += 1;
        Ok(ChildSlot(of))
    }
}

impl Drop for ChildSlot {
    fn drop(&mut self) {
        let mut children = lock(&CHILDREN);
        if let Some(count) = children.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                children.remove(&self.0);
            }
        }
    }
}

/// The body of the child. All other descriptors are closed first, so that no process waits for
/// them.
fn be_child(parent: u32, memory: RawFd, work: Work, argument: u64) -> ! {
    // SAFETY: takes numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: takes nothing.
    if unsafe { libc::getppid() } as u32 != parent {
        // SAFETY: takes a number, and runs nothing of the parent's.
        unsafe { libc::_exit(libc::ESRCH) };
    }
    let close = |first: libc::c_uint, last: libc::c_uint| {
        // SAFETY: takes numbers; nothing of this process uses any descriptor but the one left out.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
    };
    let number = memory as libc::c_uint;
    let closed = (number == 0 || close(0, number - 1)) && close(number + 1, libc::c_uint::MAX);
    let result = if closed {
        // SAFETY: the descriptor is open; the parent's `File` is neither used nor dropped here.
        work(
            &ManuallyDrop::new(unsafe { File::from_raw_fd(memory) }),
            argument,
        )
    } else {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    };
    let result = match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    // SAFETY: takes a number, and runs nothing of the parent's.
    unsafe { libc::_exit(result) }
}

/// Reaps the child in a thread of its own, so that its process number is free again.
fn wait_elsewhere(pid: libc::pid_t, slot: ChildSlot) {
    let builder = thread::Builder::new().stack_size(STACK_BYTES);
    let wait = move || {
        wait_for(pid);
        drop(slot);
    };
    // Without a thread the child stays until this process ends.
    let _ = builder.spawn(wait);
}

fn wait_for(pid: libc::pid_t) {
    // SAFETY: a child of ours; the status is not needed.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::mem::memfd::create_memory;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn the_only_descriptor_of_a_child_is_the_memory() {
        let (memory, other) = (create_memory(4096).unwrap(), create_memory(4096).unwrap());
        let work: Work = |memory, other| {
            // SAFETY: the calls take numbers.
            let has = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
            if has(memory.as_raw_fd()) && !has(other as RawFd) {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(libc::EBADF))
            }
        };
        let number = other.as_raw_fd() as u64;
        let mut child = ForkedSyscall::start(Partition(1), &memory, work, number).unwrap();
        assert_eq!(child.wait(Some(TIMEOUT)).unwrap(), Some(()));
    }

    #[test]
    fn the_error_of_the_child_is_returned() {
        let memory = create_memory(4096).unwrap();
        let mut child = ForkedSyscall::start(
            Partition(1),
            &memory,
            |_, _| Err(io::Error::from_raw_os_error(libc::EBUSY)),
            0,
        )
        .unwrap();
        let error = child.wait(None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    }

    fn for_ever(_: &File, _: u64) -> io::Result<()> {
        loop {
            // SAFETY: takes nothing.
            unsafe { libc::pause() };
        }
    }

    #[test]
    fn the_limit_of_children_is_per_domain() {
        let memory = create_memory(4096).unwrap();
        let start = |of| ForkedSyscall::start(Partition(of), &memory, for_ever, 0);
        let mut all: Vec<_> = (0..MOST).map(|_| start(2).unwrap()).collect();
        assert_eq!(start(2).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        start(3).unwrap();
        all.pop();
        // Another thread may have to reap the child.
        while start(2).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let work: Work = |memory, _| {
            memory.write_all_at(&[1], 0)?;
            for_ever(memory, 0)
        };
        let start = move || {
            let memory = create_memory(4096).unwrap();
            let child = ForkedSyscall::start(Partition(4), &memory, work, 0).unwrap();
            let has_begun = || {
                let mut byte = [0];
                memory.read_exact_at(&mut byte, 0).unwrap();
                byte == [1]
            };
            while !has_begun() {
                thread::sleep(Duration::from_millis(1));
            }
            let pid = child.pid;
            // As if the process had been killed.
            std::mem::forget(child);
            pid
        };
        wait_for(thread::spawn(start).join().unwrap());
    }

    #[test]
    fn neither_wait_nor_drop_blocks_on_a_child_that_goes_on() {
        let memory = create_memory(4096).unwrap();
        let mut child = ForkedSyscall::start(Partition(1), &memory, for_ever, 0).unwrap();
        assert_eq!(child.wait(Some(Duration::ZERO)).unwrap(), None);
        assert_eq!(child.wait(Some(Duration::from_millis(1))).unwrap(), None);
        let pid = child.pid;
        drop(child);
        // SAFETY: takes numbers. The child has been reaped, or will be.
        while unsafe { libc::kill(pid, 0) } == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
