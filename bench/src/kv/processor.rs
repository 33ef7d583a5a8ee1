//! One processor for both ends of a connection: whether the scheduler lets them share one decides how
//! fast single requests are, by factors of two and more, whatever the server.

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Threads that are bound to one processor as long as this lives, and may use those that its maker may
/// use afterwards.
#[derive(Debug)]
pub struct Bound {
    threads: Vec<Pid>,
    before: CpuSet,
}

/// The first processor that this thread may use.
///
/// # Errors
/// The system's.
pub fn first() -> io::Result<usize> {
    let usable = sched_getaffinity(Pid::from_raw(0))?;
    let is_usable = |number: &usize| usable.is_set(*number).unwrap_or_default();
    let first = (0..CpuSet::count()).find(is_usable);
    first.ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl Bound {
    /// Binds the calling thread.
    ///
    /// # Errors
    /// The system's.
    pub fn this_thread(to: usize) -> io::Result<Self> {
        Self::new(vec![Pid::from_raw(0)], to)
    }

    /// Binds all threads that a process has, of which this is the directory below `/proc`.
    ///
    /// # Errors
    /// The system's: EPERM for processes of others.
    pub fn process(directory: &Path, to: usize) -> io::Result<Self> {
        let threads = fs::read_dir(directory.join("task"))?.flatten();
        let threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
        Self::new(threads.map(Pid::from_raw).collect(), to)
    }

    fn new(threads: Vec<Pid>, to: usize) -> io::Result<Self> {
        let bound = Bound {
            threads,
            before: sched_getaffinity(Pid::from_raw(0))?,
        };
        let mut one = CpuSet::new();
        one.set(to)?;
        for thread in &bound.threads {
            match sched_setaffinity(*thread, &one) {
                // It has ended meanwhile.
                Err(Errno::ESRCH) => {}
                done => done?,
            }
        }
        Ok(bound)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        for thread in &self.threads {
            // It fails for one that has ended.
            let _ = sched_setaffinity(*thread, &self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_are_bound_for_a_while() {
        let usable = || sched_getaffinity(Pid::from_raw(0)).unwrap();
        let (before, processor) = (usable(), first().unwrap());
        let bound = Bound::this_thread(processor).unwrap();
        let mut one = CpuSet::new();
        one.set(processor).unwrap();
        assert_eq!(usable(), one);
        drop(bound);
        assert_eq!(usable(), before);
        let bound = Bound::process(Path::new("/proc/self"), processor).unwrap();
        assert_eq!(usable(), one);
        assert_eq!(thread::spawn(usable).join().unwrap(), one);
        drop(bound);
        assert_eq!(usable(), before);
        assert!(Bound::process(Path::new("/proc/self/fd"), processor).is_err());
    }
}
