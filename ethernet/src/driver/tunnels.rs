//! State of the tunnels in the control path.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use toroid_protocol::driver::DriverResponse;
use toroid_protocol::wire::Writer;
use tracing::warn;

use crate::switch::{TunnelEvent, TunnelId};
use crate::tunnel::HostId;

/// The present tunnels, and the agent that is notified of them.
#[derive(Default)]
pub(super) struct Tunnels(Mutex<State>);

#[derive(Default)]
struct State {
    up: BTreeMap<HostId, Up>,
    /// Number of tunnels so far.
    count: u64,
    /// Packets over RDMA to and from each host, since the start of the driver.
    by_rdma: HashMap<String, Arc<AtomicU64>>,
    agent: Option<Writer>,
}

struct Up {
    name: String,
    number: u64,
    by_rdma: bool,
    is_sealed: bool,
}

impl Tunnels {
    /// Records events of tunnels, in a thread that ends with the data path.
    pub(super) fn watch(
        self: &Arc<Self>,
        events: mpsc::Receiver<(TunnelId, TunnelEvent)>,
    ) -> io::Result<()> {
        let tunnels = Arc::clone(self);
        let watch = move || {
            for (id, event) in events {
                tunnels.record(id, event);
            }
        };
        thread::Builder::new()
            .name("tunnels".into())
            .spawn(watch)
            .map(drop)
    }

    fn record(&self, id: TunnelId, event: TunnelEvent) {
        match event {
            TunnelEvent::Ended(why) => {
                if let Some(host) = self.remove(id) {
                    warn!("the connection to the driver of host {host} has ended: {why}");
                }
            }
            TunnelEvent::ByRdma(by_rdma) => self.set_by_rdma(id, by_rdma),
        }
    }

    /// Records a tunnel before its use, because the tunnel may end before the use has succeeded.
    /// Returns its identity and its counter of packets over RDMA.
    pub(super) fn add(
        &self,
        host: HostId,
        name: String,
        is_sealed: bool,
    ) -> (TunnelId, Arc<AtomicU64>) {
        let mut state = self.lock();
        state.count += 1;
        let number = state.count;
        let counter = Arc::clone(state.by_rdma.entry(name.clone()).or_default());
        let up = Up {
            name,
            number,
            by_rdma: false,
            is_sealed,
        };
        state.up.insert(host, up);
        state.notify();
        (TunnelId { host, number }, counter)
    }

    /// Records the end of a tunnel; returns its host unless there is a newer tunnel.
    pub(super) fn remove(&self, id: TunnelId) -> Option<String> {
        let mut state = self.lock();
        state.up.get(&id.host).filter(|up| up.number == id.number)?;
        let up = state.up.remove(&id.host)?;
        state.notify();
        Some(up.name)
    }

    fn set_by_rdma(&self, id: TunnelId, by_rdma: bool) {
        let mut state = self.lock();
        let up = state.up.get_mut(&id.host);
        let Some(up) = up.filter(|up| up.number == id.number && up.by_rdma != by_rdma) else {
            return;
        };
        up.by_rdma = by_rdma;
        state.notify();
    }

    /// Tells the agent why packets do not go over RDMA.
    pub(super) fn report_failure(&self, host: &str, why: &str) {
        if let Some(agent) = &self.lock().agent {
            let (host, why) = (host.into(), why.into());
            // As in `notify`.
            let _ = agent.send(&DriverResponse::NoRdma { host, why }, &[]);
        }
    }

    /// Tunnels to hosts that are not among `hosts`, or not sealed or clear as these must be.
    pub(super) fn except(&self, hosts: &[String], sealed: bool) -> Vec<TunnelId> {
        let state = self.lock();
        let hosts: BTreeSet<&String> = hosts.iter().collect();
        let stays = |up: &Up| hosts.contains(&up.name) && up.is_sealed == sealed;
        let others = state.up.iter().filter(|(_, up)| !stays(up));
        others
            .map(|(&host, &Up { number, .. })| TunnelId { host, number })
            .collect()
    }

    /// The tunnel to a host.
    pub(super) fn to(&self, host: &str) -> Option<TunnelId> {
        let state = self.lock();
        let mut up = state.up.iter();
        let (&host, up) = up.find(|(_, up)| up.name == host)?;
        let number = up.number;
        Some(TunnelId { host, number })
    }

    /// Packets over RDMA to and from each host.
    pub(super) fn by_rdma(&self) -> BTreeMap<String, u64> {
        let state = self.lock();
        let counts = state.by_rdma.iter();
        counts
            .map(|(name, count)| (name.clone(), count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Notifies an agent, now and of every change.
    pub(super) fn attach_agent(&self, agent: &Writer) {
        let mut state = self.lock();
        state.agent = Some(agent.clone());
        state.notify();
    }

    /// Stops notifying the agent.
    pub(super) fn detach_agent(&self) {
        self.lock().agent = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn notify(&self) {
        if let Some(agent) = &self.agent {
            let names = |of: &dyn Fn(&Up) -> bool| {
                let up = self.up.values().filter(|up| of(up));
                up.map(|up| up.name.clone()).collect()
            };
            let answer = DriverResponse::Tunnels {
                up: names(&|_| true),
                by_rdma: names(&|up| up.by_rdma),
            };
            // Fails when the agent has gone; the next agent is notified again.
            let _ = agent.send(&answer, &[]);
        }
    }
}
