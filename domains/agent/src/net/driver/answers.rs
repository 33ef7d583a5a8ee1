//! Requests that wait for an answer of the driver.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::MutexGuard;
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::{DriverRequest, PlugFailure, Port, PortDrops, PortError};

use super::{Driver, DriverError, GONE_MS, MAX_FAILURES, PlugError, State, TIMEOUT, TIMEOUT_EACH};
use crate::net::stack_link;
use crate::process::ends_within;

/// Counts of dropped frames.
#[derive(Debug)]
pub(crate) struct Drops {
    pub(crate) ports: Vec<PortDrops>,
    /// Drops of frames from other hosts.
    pub(crate) hosts: BTreeMap<String, BTreeMap<DropReason, u64>>,
}

impl Driver {
    /// Waits until all requests so far have been carried out; returns the errors.
    pub(crate) fn sync(&self) -> Result<Vec<PortError>, DriverError> {
        self.sync_of(|_| true)
    }

    /// Does the same; leaves errors of other ports to other threads.
    pub(crate) fn sync_of(
        &self,
        is_of: impl Fn(&PortError) -> bool,
    ) -> Result<Vec<PortError>, DriverError> {
        let mut state = self.state.lock();
        state.asked += 1;
        let n = state.asked;
        state.send(&DriverRequest::Sync { n }, None);
        let unanswered = |state: &mut State| {
            state.answered < n && state.failures < MAX_FAILURES && !state.ending
        };
        let ports = state.ports.len().try_into().unwrap_or(u32::MAX);
        let timeout = TIMEOUT + TIMEOUT_EACH * ports;
        let waited = self.changed.wait_while_for(&mut state, unanswered, timeout);
        if waited.timed_out() {
            state.kill();
            if let Some(process) = &state.process {
                // Until its end it may forward frames that it was told to stop.
                ends_within(&process.its.handle, GONE_MS);
            }
            return Err(DriverError::Silent);
        }
        if state.answered < n {
            return Err(DriverError::KeepsEnding);
        }
        Ok(state.errors.extract_if(.., |error| is_of(error)).collect())
    }

    /// Counts of dropped frames of a domain's ports. No other request waits for this one.
    pub(crate) fn drops(&self, domain_id: u32) -> Result<Drops, DriverError> {
        let mut state = self.state.lock();
        state.drops_asked += 1;
        let n = state.drops_asked;
        let order = DriverRequest::Drops { n, domain_id };
        let has_answer = |state: &State| state.drops.contains_key(&n);
        let mut state = self.ask(state, &order, None, TIMEOUT, has_answer);
        // Older answers are of requests that have timed out.
        let answer = state.drops.remove(&n);
        state.drops.retain(|other, _| *other > n);
        answer.ok_or(DriverError::Silent)
    }

    /// Makes a link for a process of a node, at a port with a userspace stack. Returns the port,
    /// and the process's stack socket.
    pub(in crate::net) fn plug(
        &self,
        domain_id: u32,
        node: u32,
    ) -> Result<(Port, OwnedFd), PlugError> {
        let (ours, theirs) = stack_link::stack_socket().map_err(PlugError::System)?;
        let mut state = self.state.lock();
        let port = state.ports.get(&(domain_id, node));
        let Some((port, _)) = port.filter(|(port, _)| port.stack) else {
            return Err(PlugError::Refused(PlugFailure::NoStack));
        };
        let port = port.clone();
        state.plugs_asked += 1;
        let n = state.plugs_asked;
        let order = DriverRequest::Plug { n, domain_id, node };
        let has_answer = |state: &State| state.plugs.contains_key(&n);
        let mut state = self.ask(state, &order, Some(ours.as_fd()), TIMEOUT, has_answer);
        // Older answers are of requests that have timed out.
        let answer = state.plugs.remove(&n);
        state.plugs.retain(|other, _| *other > n);
        match answer {
            None => Err(PlugError::NoDriver),
            Some(Some(failure)) => Err(PlugError::Refused(failure)),
            Some(None) => Ok((port, theirs)),
        }
    }

    /// Sends a request, and waits for its answer, but not beyond the end of the present driver.
    pub(super) fn ask<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        order: &DriverRequest,
        descriptor: Option<BorrowedFd<'_>>,
        timeout: Duration,
        has_answer: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let generation = state.generation;
        state.send(order, descriptor);
        let is_unanswered = |state: &mut State| {
            let is_there = state.process.is_some() && state.generation == generation;
            !has_answer(state) && is_there && !state.ending
        };
        self.changed
            .wait_while_for(&mut state, is_unanswered, timeout);
        state
    }
}
