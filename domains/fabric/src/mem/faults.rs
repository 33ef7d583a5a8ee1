//! Page faults of this process on chunks that are not resident: the waiting threads, and the thread
//! that serves them.

use std::io;
use std::ops::Range;
use std::process;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::mem::mapping::PAGE;
use crate::mem::migration_table::{CHUNK, MigrationTable};
use crate::mem::userfaultfd::Userfault;
use crate::os::thread::{Indispensable, lock, spawn_undisturbed};

const STACK_BYTES: usize = 128 * 1024;

/// Requests a chunk from the agent. [`Memory::wake_resident`](crate::mem::Memory::wake_resident)
/// must follow. If the request is lost,
/// [`Memory::request_again`](crate::mem::Memory::request_again) or the end of the memory must
/// follow. A panic in the closure aborts the process.
pub type RequestChunk = Box<dyn Fn(u64) + Send + Sync>;

/// The page faults of this process.
#[derive(Debug)]
pub(super) struct Faults {
    userfault: Userfault,
    process: u32,
    watched: Mutex<Vec<Arc<Watch>>>,
    postponed: Mutex<Postponed>,
    asking: Sender<(Arc<Watch>, u64)>,
}

/// A writable mapping during a migration: accesses wait for their chunk.
pub(super) struct Watch {
    range: Range<usize>,
    table: MigrationTable,
    ask: Mutex<Arc<RequestChunk>>,
    /// Addresses at which threads wait.
    waiting: Mutex<Vec<usize>>,
}

/// Faults that cannot be resolved while a mapping is being replaced.
#[derive(Debug, Default)]
struct Postponed {
    remapping: u32,
    addresses: Vec<usize>,
}

/// Checks whether this process can take part in the migration of a region that it may write.
///
/// # Errors
/// The system's.
pub fn available() -> io::Result<()> {
    faults().map(drop)
}

/// The faults of this process, started at the first call for the life of the process. A forked
/// child starts its own, because the inherited descriptor acts on the parent.
pub(super) fn faults() -> io::Result<Arc<Faults>> {
    /// Process, and its faults or an error number.
    type Started = (u32, Result<Arc<Faults>, i32>);
    static STARTED: Mutex<Option<Started>> = Mutex::new(None);
    let mut started = lock(&STARTED);
    let process = process::id();
    if let Some((_, started)) = started.as_ref().filter(|(of, _)| *of == process) {
        return started.clone().map_err(io::Error::from_raw_os_error);
    }
    let result = Faults::start();
    match &result {
        Ok(faults) => *started = Some((process, Ok(Arc::clone(faults)))),
        Err(error) => {
            if let Some(number) = error.raw_os_error().filter(is_for_ever) {
                *started = Some((process, Err(number)));
            }
        }
    }
    result
}

/// Whether an error is permanent, unlike a lack of descriptors.
fn is_for_ever(number: &i32) -> bool {
    [libc::ENOSYS, libc::EPERM, libc::EINVAL].contains(number)
}

impl Faults {
    fn start() -> io::Result<Arc<Self>> {
        let userfault = Userfault::open()?;
        let (asking, asked) = mpsc::channel();
        let faults = Arc::new(Faults {
            userfault,
            process: process::id(),
            watched: Mutex::default(),
            postponed: Mutex::default(),
            asking,
        });
        let serving = Arc::clone(&faults);
        // Started first: if the other thread cannot start, this one ends with `asking`.
        start("toroid-asks", move || ask_all(&asked))?;
        start("toroid-faults", move || serving.serve())?;
        Ok(faults)
    }

    fn serve(&self) {
        // Without this thread, other threads would wait for ever.
        let _guard = Indispensable;
        // The wait does not fail while the descriptor is open.
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
            // The migration has ended meanwhile.
            None => self.try_again(address),
        }
    }

    fn see_to(&self, watch: &Arc<Watch>, address: usize) {
        let chunk = watch.chunk(address);
        if watch.table.is_resident(chunk) {
            return self.resolve(watch, address);
        }
        let mut waiting = lock(&watch.waiting);
        let is_first = !waiting.iter().any(|other| watch.chunk(*other) == chunk);
        waiting.push(address);
        drop(waiting);
        if is_first {
            self.ask(watch, chunk);
        }
    }

    /// Requests a chunk from the thread of requests: a message that blocks must delay neither
    /// threads whose chunk is resident, nor the replacement of a mapping.
    fn ask(&self, watch: &Arc<Watch>, chunk: u64) {
        // A failure means that the thread has ended, which aborts the process.
        let _ = self.asking.send((Arc::clone(watch), chunk));
    }

    /// Requests all chunks that threads wait for, with `ask` from now on: earlier requests may have
    /// been lost.
    pub(super) fn request_again(&self, watch: &Arc<Watch>, ask: RequestChunk) {
        *lock(&watch.ask) = Arc::new(ask);
        let waiting = lock(&watch.waiting);
        let mut chunks: Vec<u64> = waiting.iter().map(|a| watch.chunk(*a)).collect();
        drop(waiting);
        chunks.sort_unstable();
        chunks.dedup();
        chunks.into_iter().for_each(|chunk| self.ask(watch, chunk));
    }

    /// Makes accesses to `range` wait for their chunks; memory with this table is about to be
    /// mapped there.
    pub(super) fn watch(
        &self,
        range: Range<usize>,
        table: MigrationTable,
        ask: RequestChunk,
    ) -> Arc<Watch> {
        let watch = Arc::new(Watch {
            range,
            table,
            ask: Mutex::new(Arc::new(ask)),
            waiting: Mutex::default(),
        });
        let mut watched = lock(&self.watched);
        // A previous mapping in this range no longer exists.
        watched.retain(|other| !other.overlaps(&watch));
        watched.push(Arc::clone(&watch));
        drop(watched);
        watch
    }

    /// Makes accesses to a mapping wait, also after the mapping has moved to other addresses.
    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        self.userfault.register(range)
    }

    /// Runs `replace`, which replaces a mapping by a [registered](Faults::register) one.
    ///
    /// Until the remap event has been read, the kernel maps no page (EAGAIN), and it delivers
    /// faults before that event. A thread that is woken to retry would fault at once, and with a
    /// few such threads the event would never be read. So these threads wait until the end.
    pub(super) fn while_remapping<T>(&self, replace: impl FnOnce() -> T) -> T {
        lock(&self.postponed).remapping += 1;
        let result = replace();
        let mut postponed = lock(&self.postponed);
        postponed.remapping -= 1;
        let addresses = match postponed.remapping {
            0 => std::mem::take(&mut postponed.addresses),
            _ => Vec::new(),
        };
        drop(postponed);
        addresses
            .into_iter()
            .for_each(|address| self.try_again(address));
        result
    }

    /// Wakes threads whose chunk is resident now.
    pub(super) fn wake_resident(&self, watch: &Watch) {
        let mut waiting = lock(&watch.waiting);
        let is_resident = |address: &mut usize| watch.table.is_resident(watch.chunk(*address));
        let resident: Vec<usize> = waiting.extract_if(.., is_resident).collect();
        drop(waiting);
        for address in resident {
            self.resolve(watch, address);
        }
    }

    /// Ends the watch at the end of a migration, and wakes all threads that wait.
    pub(super) fn unwatch(&self, watch: &Arc<Watch>) {
        if self.process != process::id() {
            // The handle of the parent, dropped in a forked child.
            return;
        }
        lock(&self.watched).retain(|other| !Arc::ptr_eq(other, watch));
        // The call fails when another mapping has taken the place.
        let _ = self.userfault.unregister(&watch.range);
        let _ = self.userfault.wake(&watch.range);
    }

    /// Maps the page at `address`, whose chunk is resident, and the rest of the chunk.
    fn resolve(&self, watch: &Watch, address: usize) {
        let pages = watch.rest_of_chunk(address);
        let page = pages.start..pages.start + PAGE;
        match self.map_or_add(&pages, &page) {
            // A page that was mapped already wakes no thread.
            Ok(()) => self.wake(page),
            // The mapping is being replaced, or gone.
            Err(_) => self.try_again(address),
        }
    }

    /// Maps `pages` as far as they are present; adds the first `page` if it is a hole.
    fn map_or_add(&self, pages: &Range<usize>, page: &Range<usize>) -> io::Result<()> {
        // Both return false when another process adds the page between the two calls.
        while !self.userfault.map_present(pages)? && !self.userfault.add_zeroed(page)? {}
        Ok(())
    }

    fn try_again(&self, address: usize) {
        let mut postponed = lock(&self.postponed);
        if postponed.remapping > 0 {
            return postponed.addresses.push(address);
        }
        drop(postponed);
        let start = address / PAGE * PAGE;
        self.wake(start..start + PAGE);
    }

    fn wake(&self, range: Range<usize>) {
        // The call does not fail for whole pages.
        let _ = self.userfault.wake(&range);
    }
}

impl Watch {
    pub(super) fn table(&self) -> &MigrationTable {
        &self.table
    }

    fn chunk(&self, address: usize) -> u64 {
        (address - self.range.start) as u64 / CHUNK
    }

    fn overlaps(&self, other: &Watch) -> bool {
        self.range.start < other.range.end && other.range.start < self.range.end
    }

    fn rest_of_chunk(&self, address: usize) -> Range<usize> {
        let end = self.range.start + (self.chunk(address) + 1) as usize * CHUNK as usize;
        address / PAGE * PAGE..end.min(self.range.end)
    }
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = thread::Builder::new().name(name.into());
    spawn_undisturbed(builder.stack_size(STACK_BYTES), body).map(drop)
}

fn ask_all(asked: &Receiver<(Arc<Watch>, u64)>) {
    for (watch, chunk) in asked {
        let guard = Indispensable;
        let ask = Arc::clone(&lock(&watch.ask));
        ask(chunk);
        std::mem::forget(guard);
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
