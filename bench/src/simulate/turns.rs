//! Simulations on all processors, one per thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;

use crate::causes::without_panic;

/// Results of `run`, in the order of `items`. An error or a panic ends the run.
pub fn on_all_processors<T: Sync, U: Send>(
    items: &[T],
    run: impl Fn(&T) -> Result<U> + Sync,
) -> Result<Vec<U>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some((at, item)) = take(&next, items) {
            let result = without_panic("the simulation", || run(item));
            if result.is_err() {
                next.store(items.len(), Ordering::Relaxed);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_the_error_of_its_item() {
        let run = |item: &u32| match item {
            // Without the message of the panic hook.
            2 => std::panic::resume_unwind(Box::new("odd".to_owned())),
            item => Ok(*item),
        };
        let error = on_all_processors(&[1, 2, 3], run).unwrap_err();
        assert_eq!(error.to_string(), "the simulation panicked: odd");
        assert_eq!(on_all_processors(&[3, 1], run).unwrap(), [3, 1]);
    }
}
