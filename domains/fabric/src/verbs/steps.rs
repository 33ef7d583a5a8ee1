//! Division of an operation into requests.

use std::io;
use std::sync::{Arc, Weak};

use super::chain::{Action, Target};
use super::control::ProtectionDomain;
use super::objects::{Local, Locals};
use super::region::{RemoteRegion, Route};
use crate::core::endpoint::Operation;
use crate::core::region::{self, Region};
use crate::core::segments::Segments;
use crate::error::OpError;
use crate::key::Access;
use crate::mem::memory::Memory;

/// The next request of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) action: Action,
    pub(super) local: Locals,
    /// The right that the request needs.
    pub(super) needed: Access,
    /// Whether the operation ends with this request.
    pub(super) is_last: bool,
}

/// The parameters of a queue pair that determine steps.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) route: Route,
    pub(super) keys: Keys,
    /// The most segments of local memory of a request.
    pub(super) most_locals: usize,
    /// Bytes of the longest message.
    pub(super) longest: u64,
}

impl Steps {
    /// The step of `operation` after its first `done` bytes; `None` if the operation has no bytes.
    /// The result of an atomic arrives at `word`.
    pub(super) fn next(
        &mut self,
        operation: &Operation<RemoteRegion>,
        done: u64,
        word: Local,
    ) -> Result<Option<Step>, OpError> {
        match operation {
            Operation::Read {
                remote,
                offset,
                into,
            } => self.transfer((remote, *offset), into, done, Access::REMOTE_READ),
            Operation::Write {
                remote,
                offset,
                from,
            } => self.transfer((remote, *offset), from, done, Access::REMOTE_WRITE),
            Operation::CompareAndSwap {
                remote,
                offset,
                expected,
                desired,
            } => {
                let target = self.word(remote, *offset)?;
                let (expected, desired) = (*expected, *desired);
                let action = Action::CompareAndSwap {
                    target,
                    expected,
                    desired,
                };
                Ok(Some(atomic(action, word)))
            }
            Operation::FetchAdd {
                remote,
                offset,
                add,
            } => {
                let (target, add) = (self.word(remote, *offset)?, *add);
                Ok(Some(atomic(Action::FetchAdd { target, add }, word)))
            }
        }
    }

    fn transfer(
        &mut self,
        (remote, offset): (&RemoteRegion, u64),
        segments: &Segments,
        done: u64,
        needed: Access,
    ) -> Result<Option<Step>, OpError> {
        if done == 0 && segments.as_slice().len() > 1 {
            // All segments are checked before the first request.
            segments.check()?;
            for (region, offset, len) in segments.part(0, segments.len()) {
                self.keys.place(region, offset, len)?;
            }
        }
        let len = segments.len();
        let whole = self.route.leads_to(remote)?.target(needed, offset, len)?;
        let mut local = Locals::default();
        let part = len.saturating_sub(done).min(self.longest);
        for (region, offset, len) in segments.part(done, part).take(self.most_locals) {
            local.push(self.keys.place(region, offset, len)?);
        }
        let target = Target {
            address: whole.address.wrapping_add(done),
            ..whole
        };
        let action = match needed {
            Access::REMOTE_READ => Action::Read(target),
            _ => Action::Write(target),
        };
        Ok((local.len() > 0).then_some(Step {
            action,
            local,
            needed,
            is_last: done + u64::from(local.len()) == len,
        }))
    }

    /// The target of an atomic.
    fn word(&self, remote: &RemoteRegion, offset: u64) -> Result<Target, OpError> {
        let remote = self.route.leads_to(remote)?;
        if offset.is_multiple_of(8) {
            remote.target(Access::REMOTE_ATOMIC, offset, 8)
        } else {
            Err(OpError::Misaligned { offset })
        }
    }
}

fn atomic(action: Action, word: Local) -> Step {
    Step {
        action,
        local: word.into(),
        needed: Access::REMOTE_ATOMIC,
        is_last: true,
    }
}

/// Local keys of memory of this process.
#[derive(Debug)]
pub(super) struct Keys {
    domain: Arc<ProtectionDomain>,
    /// The key used last. The weak reference keeps its address from being reused.
    last: Option<(Weak<Memory>, u32)>,
    /// Look-ups of keys other than the last one.
    pub(super) lookups: u64,
}

impl Keys {
    pub(super) fn new(domain: &Arc<ProtectionDomain>) -> Self {
        Keys {
            domain: Arc::clone(domain),
            last: None,
            lookups: 0,
        }
    }

    /// The segment of `len` bytes at `offset` of `region`, which is registered if necessary.
    fn place(&mut self, region: &Region, offset: u64, len: u64) -> Result<Local, OpError> {
        let memory = region.memory();
        let address = region::address(memory, offset, len)? as u64;
        memory.status().check()?;
        let local = |lkey| Local {
            address,
            len: len as u32,
            lkey,
        };
        if let Some((last, lkey)) = &self.last
            && last.as_ptr() == Arc::as_ptr(memory)
        {
            return Ok(local(*lkey));
        }
        self.lookups += 1;
        let lkey = self.domain.register(region).map_err(|e| system(&e))?;
        self.last = Some((Arc::downgrade(memory), lkey));
        Ok(local(lkey))
    }
}

/// The system's error as that of an operation.
pub(super) fn system(error: &io::Error) -> OpError {
    OpError::System {
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    }
}
