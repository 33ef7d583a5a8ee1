//! One processor for both ends of a connection. Single requests of any server differ by a factor of
//! two and more, depending on whether the scheduler lets both ends share a processor.

use std::fs;
use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Threads bound to one processor until drop, including threads that they start meanwhile. Drop
/// gives them the processors of the thread that bound them.
#[derive(Debug)]
pub struct Bound {
    /// Directory below `/proc` of a process; `None` for the calling thread.
    process: Option<PathBuf>,
    before: CpuSet,
}

/// The first processor allowed for this thread.
pub fn first() -> io::Result<usize> {
    nth(0)
}

/// The last processor allowed for this thread.
pub fn last() -> io::Result<usize> {
    usable()?
        .last()
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Processor `number` of those allowed for this thread, from 0.
pub fn nth(number: usize) -> io::Result<usize> {
    usable()?
        .nth(number)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn usable() -> io::Result<impl Iterator<Item = usize>> {
    let usable = sched_getaffinity(Pid::from_raw(0))?;
    let is_usable = move |number: &usize| usable.is_set(*number).unwrap_or_default();
    Ok((0..CpuSet::count()).filter(is_usable))
}

impl Bound {
    /// Binds all threads of a process, given by its directory below `/proc`, or the calling thread.
    pub fn new(process: Option<PathBuf>, to: usize) -> io::Result<Self> {
        let before = sched_getaffinity(Pid::from_raw(0))?;
        let mut one = CpuSet::new();
        one.set(to)?;
        let bound = Bound { process, before };
        bound.allow(&one)?;
        Ok(bound)
    }

    fn allow(&self, processors: &CpuSet) -> io::Result<()> {
        let Some(directory) = &self.process else {
            return Ok(sched_setaffinity(Pid::from_raw(0), processors)?);
        };
        for thread in fs::read_dir(directory.join("task"))? {
            let name = thread?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match sched_setaffinity(Pid::from_raw(id), processors) {
                // The thread has ended meanwhile.
                Err(Errno::ESRCH) => {}
                done => done?,
            }
        }
        Ok(())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.allow(&self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn threads_are_bound_for_a_while() {
        let usable = || sched_getaffinity(Pid::from_raw(0)).unwrap();
        let (before, processor) = (usable(), first().unwrap());
        let bound = Bound::new(None, processor).unwrap();
        let mut one = CpuSet::new();
        one.set(processor).unwrap();
        assert_eq!(usable(), one);
        drop(bound);
        assert_eq!(usable(), before);
        let bound = Bound::new(Some("/proc/self".into()), processor).unwrap();
        assert_eq!(usable(), one);
        let (saying, said) = mpsc::channel();
        let (end, ending) = mpsc::channel::<()>();
        let started = thread::spawn(move || {
            saying.send(usable()).unwrap();
            // The error at the sender's end ends the wait.
            let _ = ending.recv();
            usable()
        });
        assert_eq!(said.recv().unwrap(), one);
        drop(bound);
        assert_eq!(usable(), before);
        drop(end);
        assert_eq!(
            started.join().unwrap(),
            before,
            "a thread started meanwhile is free, too"
        );
        assert!(Bound::new(Some("/proc/self/fd".into()), processor).is_err());
    }
}
