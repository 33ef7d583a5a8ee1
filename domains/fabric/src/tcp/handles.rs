//! Regions that are open on a connection, as the initiating side knows them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::wire::HANDLES;

/// Handles of a connection, each of a grant `G` that was in use when it was last checked.
#[derive(Debug)]
pub(super) struct Handles<G> {
    /// Handles by address of the grant. A weak reference keeps the address from being reused.
    known: HashMap<usize, u32>,
    slots: Vec<Option<Weak<G>>>,
    /// The slot that is reused next when none is free.
    victim: u32,
}

impl<G> Handles<G> {
    pub(super) fn new() -> Self {
        Handles {
            known: HashMap::new(),
            slots: Vec::new(),
            victim: 0,
        }
    }

    /// The handle of a grant, if it is open.
    pub(super) fn find(&self, grant: &Arc<G>) -> Option<u32> {
        self.known.get(&address(grant)).copied()
    }

    /// A handle for a grant that is about to be opened; calls `close` for handles of dropped grants.
    pub(super) fn vacate(&mut self, mut close: impl FnMut(u32)) -> u32 {
        let is_unused =
            |slot: &Option<Weak<G>>| slot.as_ref().is_some_and(|grant| grant.strong_count() == 0);
        for handle in 0..self.slots.len() {
            if is_unused(&self.slots[handle]) {
                self.forget(handle as u32);
                close(handle as u32);
            }
        }
        if let Some(free) = self.slots.iter().position(Option::is_none) {
            return free as u32;
        }
        if self.slots.len() < HANDLES as usize {
            self.slots.push(None);
            return self.slots.len() as u32 - 1;
        }
        self.victim = (self.victim + 1) % HANDLES;
        self.forget(self.victim);
        self.victim
    }

    /// Makes the handle stand for a grant.
    pub(super) fn assign(&mut self, handle: u32, grant: &Arc<G>) {
        if let Some(slot) = self.slots.get_mut(handle as usize) {
            *slot = Some(Arc::downgrade(grant));
            self.known.insert(address(grant), handle);
        }
    }

    /// Makes the handle stand for no grant.
    pub(super) fn forget(&mut self, handle: u32) {
        let slot = self.slots.get_mut(handle as usize);
        if let Some(grant) = slot.and_then(Option::take) {
            self.known.remove(&(grant.as_ptr() as usize));
        }
    }
}

fn address<G>(grant: &Arc<G>) -> usize {
    Arc::as_ptr(grant) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(handles: &mut Handles<u32>, grant: &Arc<u32>) -> (u32, Vec<u32>) {
        let mut closed = Vec::new();
        let handle = handles.vacate(|handle| closed.push(handle));
        handles.assign(handle, grant);
        (handle, closed)
    }

    #[test]
    fn an_unused_handle_is_closed_by_the_next_open() {
        let mut handles = Handles::new();
        let grants = [0, 1, 2].map(Arc::new);
        for (n, grant) in grants.iter().enumerate() {
            assert_eq!(handles.find(grant), None);
            assert_eq!(open(&mut handles, grant), (n as u32, vec![]));
            assert_eq!(handles.find(grant), Some(n as u32));
        }
        let [first, second, third] = grants;
        drop(second);
        let next = Arc::new(3);
        assert_eq!(open(&mut handles, &next), (1, vec![1]));
        assert_eq!(handles.find(&first), Some(0));
        handles.forget(2);
        assert_eq!(handles.find(&third), None);
    }

    #[test]
    fn an_old_handle_is_reused_when_all_are_in_use() {
        let mut handles = Handles::new();
        let grants: Vec<_> = (0..HANDLES).map(Arc::new).collect();
        for grant in &grants {
            open(&mut handles, grant);
        }
        let more = Arc::new(HANDLES);
        let (handle, closed) = open(&mut handles, &more);
        assert_eq!(closed, []);
        assert_eq!(handles.find(&grants[handle as usize]), None);
        assert_eq!(handles.find(&more), Some(handle));
    }
}
