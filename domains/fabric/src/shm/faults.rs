//! Threads of this process that touch a chunk which has not arrived: who waits for what, and the
//! one thread that sees to it.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use super::chunks::{CHUNK, Table};
use super::memory::PAGE;
use super::userfault::Userfault;

const STACK_BYTES: usize = 128 * 1024;

/// Asks the agent for a chunk. It must end in [`Memory::arrived`](super::Memory::arrived).
pub type Ask = Box<dyn Fn(u64) + Send + Sync>;

/// The faults of this process.
#[derive(Debug)]
pub(super) struct Faults {
    userfault: Userfault,
    watched: Mutex<Vec<Arc<Watch>>>,
}

/// A moving mapping that is written as well: accesses wait for their chunk.
pub(super) struct Watch {
    range: Range<usize>,
    table: Table,
    ask: Ask,
    /// Addresses that threads wait for.
    waiting: Mutex<Vec<usize>>,
}

/// Says whether this process can take part in the move of a region that it may write.
///
/// # Errors
/// The system's: why not.
pub fn available() -> io::Result<()> {
    faults().map(drop)
}

/// Started when first needed, for the life of the process.
pub(super) fn faults() -> io::Result<&'static Arc<Faults>> {
    static FAULTS: OnceLock<Result<Arc<Faults>, i32>> = OnceLock::new();
    let start = || Faults::start().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO));
    let started = FAULTS.get_or_init(start).as_ref();
    started.map_err(|number| io::Error::from_raw_os_error(*number))
}

impl Faults {
    fn start() -> io::Result<Arc<Self>> {
        let faults = Arc::new(Faults {
            userfault: Userfault::open()?,
            watched: Mutex::default(),
        });
        let serving = Arc::clone(&faults);
        thread::Builder::new()
            .name("toroid-faults".into())
            .stack_size(STACK_BYTES)
            .spawn(move || serving.serve())?;
        Ok(faults)
    }

    fn serve(&self) {
        // It does not fail while the descriptor is open; without it threads would wait for ever.
        while let Ok(news) = self.userfault.wait() {
            if let Some(address) = news {
                self.on_fault(address);
            }
        }
    }

    fn on_fault(&self, address: usize) {
        let watch = lock(&self.watched)
            .iter()
            .find(|watch| watch.range.contains(&address))
            .cloned();
        match watch {
            Some(watch) => self.see_to(&watch, address),
            // The move has ended meanwhile.
            None => self.try_again(address),
        }
    }

    fn see_to(&self, watch: &Watch, address: usize) {
        let chunk = watch.chunk(address);
        if watch.table.has_arrived(chunk) {
            return self.resolve(watch, address);
        }
        let mut waiting = lock(&watch.waiting);
        let is_first = !waiting.iter().any(|other| watch.chunk(*other) == chunk);
        waiting.push(address);
        drop(waiting);
        if is_first {
            (watch.ask)(chunk);
        }
    }

    /// Accesses to `range`, in which the memory `table` tells of is about to be, shall wait.
    pub(super) fn watch(&self, range: Range<usize>, table: Table, ask: Ask) -> Arc<Watch> {
        let watch = Arc::new(Watch {
            range,
            table,
            ask,
            waiting: Mutex::default(),
        });
        lock(&self.watched).push(Arc::clone(&watch));
        watch
    }

    /// Lets accesses to a mapping wait, wherever it will be.
    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        self.userfault.register(range)
    }

    /// Chunks have arrived: those who waited for them go on.
    pub(super) fn arrived(&self, watch: &Watch) {
        let mut waiting = lock(&watch.waiting);
        let has_arrived = |address: &mut usize| watch.table.has_arrived(watch.chunk(*address));
        let arrived: Vec<usize> = waiting.extract_if(.., has_arrived).collect();
        drop(waiting);
        for address in arrived {
            self.resolve(watch, address);
        }
    }

    /// The move has ended, one way or the other: nobody waits any more.
    pub(super) fn unwatch(&self, watch: &Arc<Watch>) {
        lock(&self.watched).retain(|other| !Arc::ptr_eq(other, watch));
        // It fails when something else is mapped there by now.
        let _ = self.userfault.unregister(&watch.range);
        let _ = self.userfault.wake(&watch.range);
    }

    /// Maps the page at `address`, whose chunk has arrived, and what follows of the chunk.
    fn resolve(&self, watch: &Watch, address: usize) {
        let pages = watch.rest_of_chunk(address);
        let page = pages.start..pages.start + PAGE;
        let resolved = loop {
            match self.userfault.map_present(&pages) {
                // A hole: nothing was ever written there.
                Ok(false) => match self.userfault.add_zeroed(&page) {
                    // Somebody else has just added it.
                    Ok(false) => {}
                    Ok(true) => break Ok(()),
                    Err(error) => break Err(error),
                },
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // Mapped before, so that nobody was woken; or it is being moved, or has gone.
        if resolved.is_err() {
            self.try_again(address);
        } else {
            self.wake(page);
        }
    }

    fn try_again(&self, address: usize) {
        let start = address / PAGE * PAGE;
        self.wake(start..start + PAGE);
    }

    fn wake(&self, range: Range<usize>) {
        // It does not fail for a range of whole pages.
        let _ = self.userfault.wake(&range);
    }
}

impl Watch {
    fn chunk(&self, address: usize) -> u64 {
        (address - self.range.start) as u64 / CHUNK
    }

    fn rest_of_chunk(&self, address: usize) -> Range<usize> {
        let end = self.range.start + (self.chunk(address) + 1) as usize * CHUNK as usize;
        address / PAGE * PAGE..end.min(self.range.end)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("range", &self.range)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// A thread that panicked held no half-done change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
