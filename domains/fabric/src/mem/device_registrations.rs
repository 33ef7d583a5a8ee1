//! Registrations of memory with RDMA devices.
//!
//! A device pins the pages of registered memory and uses them even when the mapping leads to other
//! pages. So registrations end before the memory migrates or is unmapped, and none is added during
//! a migration.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::mem::DropGuard;
use crate::os::thread::lock;

/// The registrations of one memory.
#[derive(Debug, Default)]
pub struct DeviceRegistrations(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Guards, each of which ends its registration when dropped.
    registered: Vec<DropGuard>,
    /// Whether registrations are forbidden at present.
    invalid: bool,
}

impl DeviceRegistrations {
    /// Adds the registration that `register` returns. The registration ends when dropped, so it
    /// must have no other owner.
    ///
    /// # Errors
    /// `WouldBlock` during a migration, and for ever once the memory has ended; the error of
    /// `register`.
    pub fn register<T: Send + Sync + 'static>(
        &self,
        register: impl FnOnce() -> io::Result<Arc<T>>,
    ) -> io::Result<()> {
        // The lock is held meanwhile: an invalidation waits for the registration.
        let mut state = self.lock();
        if state.invalid {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.registered.push(register()?);
        Ok(())
    }

    /// Whether a registration may be added.
    pub fn are_allowed(&self) -> bool {
        !self.lock().invalid
    }

    /// Ends the registration that `is_it` finds, if any. The drop of the registration must not wait
    /// for a thread that waits for this memory.
    pub fn forget(&self, is_it: impl Fn(&DropGuard) -> bool) {
        let mut state = self.lock();
        let found = state.registered.iter().position(is_it);
        let forgotten = found.map(|at| state.registered.swap_remove(at));
        // Dropped with the lock held: an invalidation meanwhile would find no registration, and
        // report that all have ended.
        drop(forgotten);
        drop(state);
    }

    /// Ends all registrations; none is added until they are allowed again.
    pub(super) fn invalidate(&self) {
        let mut state = self.lock();
        state.invalid = true;
        let forgotten = std::mem::take(&mut state.registered);
        drop(state);
        // Dropped without the lock: local registrations of a protection domain take its lock, whose
        // holder may be about to register.
        drop(forgotten);
    }

    pub(super) fn allow(&self) {
        self.lock().invalid = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    /// A registration whose drop waits for the test.
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

    /// Regression: a migration was acknowledged while the device still used the old memory, because
    /// a registration in the middle of its drop was no longer listed.
    #[test]
    fn invalidation_waits_for_a_registration_that_is_being_dropped() {
        let registrations = DeviceRegistrations::default();
        let (begun, has_begun) = channel();
        let (goes_on, go_on) = channel();
        let (invalidated, has_invalidated) = channel();
        let go_on = Mutex::new(go_on);
        registrations
            .register(|| Ok(Arc::new(Slow { begun, go_on })))
            .unwrap();
        thread::scope(|scope| {
            scope.spawn(|| registrations.forget(|_| true));
            has_begun.recv().unwrap();
            scope.spawn(|| {
                registrations.invalidate();
                invalidated.send(()).unwrap();
            });
            let early = has_invalidated.recv_timeout(std::time::Duration::from_millis(100));
            goes_on.send(()).unwrap();
            assert!(early.is_err(), "the invalidation has not waited");
            has_invalidated.recv().unwrap();
        });
    }

    #[test]
    fn registration_is_refused_between_invalidation_and_permission() {
        let registrations = DeviceRegistrations::default();
        let thing = Arc::new(7);
        let weak = Arc::downgrade(&thing);
        registrations.register(|| Ok(thing)).unwrap();
        assert_eq!(weak.strong_count(), 1);
        registrations.invalidate();
        assert_eq!(weak.strong_count(), 0);
        assert!(!registrations.are_allowed());
        let refused = registrations.register(|| Ok(Arc::new(8))).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        registrations.allow();
        let other = Arc::new(9);
        let weak = Arc::downgrade(&other);
        registrations.register(|| Ok(other)).unwrap();
        registrations.forget(|guard| std::ptr::addr_eq(Arc::as_ptr(guard), weak.as_ptr()));
        assert_eq!(weak.strong_count(), 0);
    }
}
