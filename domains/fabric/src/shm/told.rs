//! What adapters have been told of memory.
//!
//! An adapter pins the pages that it is told of, and goes on using them wherever the mapping leads
//! by then. So it has to forget them before the memory moves, or is unmapped, and is told of none
//! that is on its way.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::region::Keep;

/// What adapters have been told of one memory.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    /// Each forgotten by its drop.
    registered: Vec<Keep>,
    /// Whether nothing may be added.
    withdrawn: bool,
}

impl Told {
    /// Adds what `register` makes, whose drop is to let the adapter forget. Nobody else may keep it.
    ///
    /// # Errors
    /// `WouldBlock` while the memory moves, and for ever once it has ended; what `register` fails
    /// with.
    pub(crate) fn register<T: Send + Sync + 'static>(
        &self,
        register: impl FnOnce() -> io::Result<Arc<T>>,
    ) -> io::Result<()> {
        // Held meanwhile: who withdraws has to wait for it.
        let mut books = self.lock();
        if books.withdrawn {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        books.registered.push(register()?);
        Ok(())
    }

    /// Whether something could be added.
    pub(crate) fn is_permitted(&self) -> bool {
        !self.lock().withdrawn
    }

    /// Lets the adapter forget one thing, if it has not yet.
    pub(crate) fn forget(&self, is_it: impl Fn(&Keep) -> bool) {
        let mut books = self.lock();
        let found = books.registered.iter().position(is_it);
        let forgotten = found.map(|at| books.registered.swap_remove(at));
        drop(books);
        // Without the lock, which who forgets may need for something else.
        drop(forgotten);
    }

    /// Lets the adapter forget all, and adds nothing more until it is permitted.
    pub(super) fn withdraw(&self) {
        let mut books = self.lock();
        books.withdrawn = true;
        let forgotten = std::mem::take(&mut books.registered);
        drop(books);
        drop(forgotten);
    }

    pub(super) fn permit(&self) {
        self.lock().withdrawn = false;
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_registered_while_it_is_withdrawn() {
        let told = Told::default();
        let thing = Arc::new(7);
        let weak = Arc::downgrade(&thing);
        told.register(|| Ok(thing)).unwrap();
        assert_eq!(weak.strong_count(), 1);
        told.withdraw();
        assert_eq!(weak.strong_count(), 0);
        assert!(!told.is_permitted());
        let refused = told.register(|| Ok(Arc::new(8))).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        told.permit();
        let other = Arc::new(9);
        let weak = Arc::downgrade(&other);
        told.register(|| Ok(other)).unwrap();
        told.forget(|keep| std::ptr::addr_eq(Arc::as_ptr(keep), weak.as_ptr()));
        assert_eq!(weak.strong_count(), 0);
    }
}
