//! What adapters have been told of memory.
//!
//! An adapter pins the pages that it is told of, and goes on using them wherever the mapping leads
//! by then. So it has to forget them before the memory moves, or is unmapped, and is told of none
//! that is on its way.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::mem::DropGuard;

/// What adapters have been told of one memory.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    /// Each forgotten by its drop.
    registered: Vec<DropGuard>,
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

    /// Lets the adapter forget one thing, if it has not yet. The drop of that must not wait for
    /// anybody who waits for this memory.
    pub(crate) fn forget(&self, is_it: impl Fn(&DropGuard) -> bool) {
        let mut books = self.lock();
        let found = books.registered.iter().position(is_it);
        let forgotten = found.map(|at| books.registered.swap_remove(at));
        // Before others have the lock: who withdraws meanwhile would find nothing, and say that all
        // is forgotten.
        drop(forgotten);
        drop(books);
    }

    /// Lets the adapter forget all, and adds nothing more until it is permitted.
    pub(super) fn withdraw(&self) {
        let mut books = self.lock();
        books.withdrawn = true;
        let forgotten = std::mem::take(&mut books.registered);
        drop(books);
        // Without the lock: what is of a protection domain's own takes that domain's, whose holder
        // may be about to register.
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
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    /// Takes its time to be forgotten.
    struct Slow {
        begun: Sender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.begun.send(()).unwrap();
            self.go_on.get_mut().unwrap().recv().unwrap();
        }
    }

    /// A move once was acknowledged while the adapter still used the old memory: what was just
    /// being forgotten was in no books any more.
    #[test]
    fn who_withdraws_waits_for_what_is_being_forgotten() {
        let told = Told::default();
        let (begun, has_begun) = channel();
        let (goes_on, go_on) = channel();
        let (withdrawn, has_withdrawn) = channel();
        let go_on = Mutex::new(go_on);
        told.register(|| Ok(Arc::new(Slow { begun, go_on })))
            .unwrap();
        thread::scope(|scope| {
            scope.spawn(|| told.forget(|_| true));
            has_begun.recv().unwrap();
            scope.spawn(|| {
                told.withdraw();
                withdrawn.send(()).unwrap();
            });
            let early = has_withdrawn.recv_timeout(std::time::Duration::from_millis(100));
            goes_on.send(()).unwrap();
            assert!(early.is_err(), "it has not waited");
            has_withdrawn.recv().unwrap();
        });
    }

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
        told.forget(|guard| std::ptr::addr_eq(Arc::as_ptr(guard), weak.as_ptr()));
        assert_eq!(weak.strong_count(), 0);
    }
}
