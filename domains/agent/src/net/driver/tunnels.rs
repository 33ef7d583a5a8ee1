//! Tunnels: the driver's connections to the drivers of other hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use toroid_model::hosts::Provider;
use toroid_protocol::driver::{DriverRequest, DriverResponse};
use toroid_protocol::seal::SealKeys;

use super::{Driver, State};

/// Time to wait for a number that is only displayed.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Driver {
    /// Gives the driver a tunnel to another host. The driver of one of the two hosts `asks` for
    /// RDMA.
    pub(crate) fn add_tunnel(
        &self,
        host: &str,
        asks: bool,
        keys: Option<SealKeys>,
        socket: OwnedFd,
    ) {
        let mut state = self.state.lock();
        let order = DriverRequest::Tunnel {
            host: host.into(),
            asks,
            keys,
        };
        state.send(&order, Some(socket.as_fd()));
        // Until the driver says otherwise.
        if let Some(tunnels) = &mut state.tunnels {
            tunnels.insert(host.into(), false);
        }
        state.pulse += 1;
        self.changed.notify_all();
    }

    /// Ends the tunnel to another host: no frame passes after the next [`Driver::sync`].
    pub(crate) fn end_tunnel(&self, host: &str) {
        let order = DriverRequest::EndTunnel { host: host.into() };
        self.state.lock().send(&order, None);
    }

    /// Whether the driver has a tunnel to another host.
    pub(crate) fn has_tunnel(&self, host: &str) -> bool {
        self.state.lock().has_tunnel(host)
    }

    /// Does the same; `None` if the driver has not reported its tunnels yet.
    pub(crate) fn passes_to(&self, host: &str) -> Option<bool> {
        let state = self.state.lock();
        let tunnels = state.tunnels.as_ref()?;
        Some(tunnels.contains_key(host))
    }

    /// Lets [`Driver::await_pulse`] return.
    pub(crate) fn wake_watchers(&self) {
        self.state.lock().pulse += 1;
        self.changed.notify_all();
    }

    /// Waits for a change of tunnels after the pulse that was `seen` last, or until this time.
    /// Returns the present pulse; `None` when the driver ends.
    pub(crate) fn await_pulse(&self, seen: u64, until: Option<Instant>) -> Option<u64> {
        let is_same = |state: &mut State| state.pulse == seen && !state.ending;
        let mut state = self.state.lock();
        match until {
            None => self.changed.wait_while(&mut state, is_same),
            Some(until) => {
                let time = until.saturating_duration_since(Instant::now());
                self.changed.wait_while_for(&mut state, is_same, time);
            }
        }
        (!state.ending).then_some(state.pulse)
    }

    /// Provider of frames to and from another host, with a tunnel.
    pub(crate) fn tunnel_provider(&self, host: &str) -> Option<Provider> {
        let state = self.state.lock();
        let by_rdma = state.tunnels.as_ref()?.get(host)?;
        Some(if *by_rdma {
            Provider::Verbs
        } else {
            Provider::Tcp
        })
    }

    /// Sets the names of the other hosts.
    pub(crate) fn set_others(&self, hosts: BTreeSet<String>) {
        let mut state = self.state.lock();
        if state.hosts != hosts {
            state.hosts = hosts;
            self.changed.notify_all();
        }
    }

    /// Whether there is another host of this name.
    pub(crate) fn is_other(&self, host: &str) -> bool {
        self.state.lock().hosts.contains(host)
    }

    /// Waits for a driver without tunnels to some of the other hosts whose names come after `ours`,
    /// and returns these; `None` when tunnels are of no use any more.
    pub(crate) fn await_missing_tunnels(&self, ours: &str) -> Option<Vec<String>> {
        let after = (Bound::Excluded(ours), Bound::Unbounded);
        let has_all = |state: &mut State| {
            let is_known = state.tunnels.is_some();
            let mut others = state.hosts.range::<str, _>(after);
            !state.ending && (!is_known || others.all(|host| state.has_tunnel(host)))
        };
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, has_all);
        let others = state.hosts.range::<str, _>(after);
        let missing = others.filter(|host| !state.has_tunnel(host));
        (!state.ending).then(|| missing.cloned().collect())
    }

    /// Frames to and from other hosts over RDMA devices, by host; `None` without a prompt answer.
    pub(crate) fn frames_by_rdma(&self) -> Option<BTreeMap<String, u64>> {
        let mut state = self.state.lock();
        state.rdma_frames_asked += 1;
        let n = state.rdma_frames_asked;
        let has_answer = |state: &State| state.frames_by_rdma.0 >= n;
        let state = self.ask(
            state,
            &DriverRequest::RdmaFrames { n },
            None,
            TIMEOUT,
            has_answer,
        );
        let (answered, frames) = &state.frames_by_rdma;
        (*answered >= n).then(|| frames.clone())
    }
}

impl State {
    fn has_tunnel(&self, host: &str) -> bool {
        let tunnels = self.tunnels.as_ref();
        tunnels.is_some_and(|all| all.contains_key(host))
    }

    /// Notes an unasked report about tunnels; returns whether the answer is one.
    pub(super) fn note_tunnels(&mut self, answer: &DriverResponse) -> bool {
        match answer {
            DriverResponse::Tunnels { up, by_rdma } => self.set_tunnels(up, by_rdma),
            DriverResponse::NoRdma { host, why } => {
                tracing::warn!("frames to host {host} go over tcp, not by RDMA devices: {why}");
            }
            _ => return false,
        }
        true
    }

    fn set_tunnels(&mut self, up: &[String], by_rdma: &[String]) {
        let rdma: BTreeSet<&String> = by_rdma.iter().collect();
        let all = up.iter().map(|host| (host.clone(), rdma.contains(host)));
        let all: BTreeMap<String, bool> = all.collect();
        let before = self.tunnels.replace(all.clone());
        self.pulse += u64::from(before.as_ref() != Some(&all));
        let before = before.unwrap_or_default();
        for host in before.keys().filter(|host| !all.contains_key(*host)) {
            tracing::warn!("the connection to the driver of host {host} has ended");
        }
        let new = |host: &&String| !before.get(*host).copied().unwrap_or_default();
        for host in by_rdma.iter().filter(new) {
            tracing::info!("frames to host {host} go by RDMA devices");
        }
    }
}
