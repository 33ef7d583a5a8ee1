//! Experiments on all processors, one per thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;

/// Results of `run`, in the order of `items`; the first error otherwise.
pub fn on_all_processors<T: Sync, U: Send>(
    items: &[T],
    run: impl Fn(&T) -> Result<U> + Sync,
) -> Result<Vec<U>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some((at, item)) = take(&next, items) {
            let result = run(item);
            let mut done = done.lock().unwrap_or_else(|lock| lock.into_inner());
            done.push((at, result));
        }
    };
    let threads = thread::available_parallelism().map_or(1, Into::into);
    thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(|lock| lock.into_inner());
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn take<'a, T>(next: &AtomicUsize, items: &'a [T]) -> Option<(usize, &'a T)> {
    // No other memory depends on the number.
    let at = next.fetch_add(1, Ordering::Relaxed);
    items.get(at).map(|item| (at, item))
}
