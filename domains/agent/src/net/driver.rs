//! Supervision of the Ethernet driver: the agent sends it the ports, and sends them again after it
//! has died.
//!
//! The wanted ports are kept here and change under the lock under which they are sent, so a driver
//! that starts meanwhile misses nothing. The driver ends with its liveness socket, and gets
//! requests on a control channel.

mod answers;
mod error;
mod links;
mod tunnels;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use toroid_model::ethernet::OffloadKind;
use toroid_model::rdma::Rdma;
use toroid_netlink::{Netlink, NetlinkError};
use toroid_protocol::driver::{
    DriverRequest, DriverResponse, PlugFailure, Port, PortError, Uplink, outer_device,
};
use toroid_protocol::wire::{Reader, Writer};

use crate::fdstore::child::SupervisedChild;
use crate::fdstore::{Entry, FdStore};
use crate::process::outlast;
use crate::threads;

pub(crate) use answers::Drops;
pub(crate) use error::{DriverError, PlugError};

/// Time for the driver to carry out its requests.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Additional time for each port, all of which may be new: the driver makes an interface in some 20
/// ms.
const TIMEOUT_EACH: Duration = Duration::from_millis(40);

/// Time that a message may wait for the driver to read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the driver to end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Pauses before restarts grow from the first to the second while the driver keeps dying.
const BACKOFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// Drivers in a row that ended without an answer, after which requests no longer wait for the next.
const MAX_FAILURES: u32 = 3;

/// The driver and its wanted state.
#[derive(Debug)]
pub(crate) struct Driver {
    command: Vec<OsString>,
    others: Others,
    /// Network namespace in which frames may pass without the driver.
    kernel: Option<OwnedFd>,
    /// Percent of a core for waiting for due frames.
    precision: u8,
    fd_store: Arc<FdStore>,
    state: Mutex<State>,
    /// Signals a change of the state.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    process: Option<Process>,
    /// Names of the other hosts.
    hosts: BTreeSet<String>,
    ports: BTreeMap<(u32, u32), PlacedPort>,
    /// Ports of members on other hosts.
    remote: BTreeMap<(u32, u32), RemotePort>,
    /// Links that are not all the machine's, by domain.
    links: BTreeMap<u32, links::Sent>,
    /// Hosts to which the driver has tunnels, each with whether frames go over RDMA devices; absent
    /// until it has reported them.
    tunnels: Option<BTreeMap<String, bool>>,
    /// Rises with each change of tunnels, and when watchers are woken.
    pulse: u64,
    /// Absent until the predecessor's gateways have been checked.
    uplinks: Option<Vec<Uplink>>,
    /// Number of the last sync request.
    asked: u64,
    /// Number of the last answered sync.
    answered: u64,
    errors: Vec<PortError>,
    /// Offloads that the driver has found.
    offload: Vec<OffloadKind>,
    /// Why no frames pass without the driver, if that is so.
    without_kernel: Option<String>,
    /// Number of the last request for drops, and answers that have not been taken.
    drops_asked: u64,
    drops: BTreeMap<u64, Drops>,
    /// The same for links of processes.
    plugs_asked: u64,
    plugs: BTreeMap<u64, Option<PlugFailure>>,
    /// Number of the last request for frames over RDMA devices, and the last answer.
    rdma_frames_asked: u64,
    frames_by_rdma: (u64, BTreeMap<String, u64>),
    /// Number of drivers so far, including the present one.
    generation: u32,
    /// Drivers in a row that ended without an answer.
    failures: u32,
    ending: bool,
}

/// Milliseconds for a killed driver to end.
const GONE_MS: u16 = 2000;

#[derive(Debug)]
struct Process {
    its: SupervisedChild,
    /// The present control channel.
    orders: Writer,
}

/// A running driver, and its answers on the present control channel.
#[derive(Debug)]
struct Instance {
    handle: Arc<OwnedFd>,
    answers: Reader,
    /// The child, if this agent started it.
    child: Option<Child>,
}

/// What a driver starts from.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) command: Vec<OsString>,
    pub(crate) fd_store: Arc<FdStore>,
    /// The predecessor's driver.
    pub(crate) kept: Option<Entry>,
    /// Network namespace in which frames may pass without the driver.
    pub(crate) kernel: Option<OwnedFd>,
    /// Processor time for waiting for due frames, in percent of a core.
    pub(crate) precision: u8,
}

/// The other hosts of this host's driver.
#[derive(Clone, Debug, Default)]
pub(crate) struct Others {
    /// Names of the hosts at the start.
    pub(crate) hosts: BTreeSet<String>,
    /// RDMA device for frames to and from them.
    pub(crate) rdma: Option<Rdma>,
    /// Whether tunnels to them are encrypted.
    pub(crate) sealed: bool,
    /// Memory of the deadlines of fenced domains.
    pub(crate) deadlines: Option<Arc<File>>,
}

/// A port and its network namespace.
pub(crate) type PlacedPort = (Port, Arc<OwnedFd>);

/// A port and the host of its node.
pub(crate) type RemotePort = (Port, String);

impl Driver {
    /// Takes over the predecessor's driver, if it lives, or starts one; and starts a thread that
    /// supervises it. `ports` are the wanted ports on this host, `remote` those of members on other
    /// hosts.
    pub(crate) fn start(
        Origin {
            command,
            fd_store,
            kept,
            kernel,
            precision,
        }: Origin,
        ports: impl IntoIterator<Item = PlacedPort>,
        remote: impl IntoIterator<Item = RemotePort>,
        others: Others,
    ) -> Result<Arc<Self>, DriverError> {
        let key = |port: &Port| (port.domain_id, port.node);
        let ports = ports.into_iter().map(|placed| (key(&placed.0), placed));
        let remote = remote.into_iter().map(|remote| (key(&remote.0), remote));
        let state = State {
            hosts: others.hosts.clone(),
            ports: ports.collect(),
            remote: remote.collect(),
            ..State::default()
        };
        let driver = Arc::new(Driver {
            command,
            others,
            kernel,
            precision,
            fd_store,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let failed = |source| DriverError::Start {
            program: driver.command.first().cloned().unwrap_or_default(),
            source,
        };
        let first = match kept.and_then(|kept| driver.take_over(kept)) {
            Some(taken) => taken,
            None => driver.spawn().map_err(failed)?,
        };
        let supervised = Arc::clone(&driver);
        threads::start_named("driver", move || supervised.supervise(first)).map_err(failed)?;
        Ok(driver)
    }

    /// Key of the driver in the fd store.
    pub(crate) const KEY: &str = "driver";

    /// Key of the network namespace of the kernel path.
    pub(crate) const KERNEL_KEY: &str = "kernel";

    /// Puts the driver into the fd store while it runs, and the namespace.
    pub(crate) fn keep(&self) {
        if let Some(kernel) = &self.kernel {
            self.fd_store.put(Self::KERNEL_KEY, &(), &[kernel.as_fd()]);
        }
        if let Some(process) = &self.state.lock().process {
            process.its.keep(&self.fd_store, Self::KEY);
        }
    }

    /// Process id, and number of restarts.
    pub(crate) fn status(&self) -> (Option<u32>, u32) {
        let state = self.state.lock();
        let pid = state.process.as_ref().map(|process| process.its.pid);
        (pid, state.generation.saturating_sub(1))
    }

    /// Offloads in use.
    pub(crate) fn offload(&self) -> Vec<OffloadKind> {
        self.state.lock().offload.clone()
    }

    /// Why no frames pass without the driver, if that is so.
    pub(crate) fn without_kernel(&self) -> Option<String> {
        self.state.lock().without_kernel.clone()
    }

    /// Deletes the interface of a port from the side of the driver, if its frames may pass without
    /// one that lives.
    pub(crate) fn cut(&self, domain_id: u32, node: u32) -> Result<(), NetlinkError> {
        let Some(kernel) = &self.kernel else {
            return Ok(());
        };
        let mut netlink = Netlink::open_in(kernel.as_fd())?;
        match netlink.index(&outer_device(domain_id, node)) {
            Ok(index) => netlink.delete(index),
            Err(NetlinkError::NoSuchLink(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Number of the present driver. Another number after a sync means that requests before it may
    /// have gone to the predecessor.
    pub(crate) fn generation(&self) -> u32 {
        self.state.lock().generation
    }

    /// Adds a port in a network namespace.
    pub(crate) fn add(&self, port: Port, network: Arc<OwnedFd>) {
        let mut state = self.state.lock();
        state.send(&DriverRequest::AddPort(port.clone()), Some(network.as_fd()));
        state
            .ports
            .insert((port.domain_id, port.node), (port, network));
    }

    /// Changes the gateway of a port, if there is this port. Returns whether it had another.
    pub(crate) fn lead(&self, domain_id: u32, node: u32, gateway: Option<Ipv4Addr>) -> bool {
        let mut state = self.state.lock();
        let port = state.ports.get_mut(&(domain_id, node));
        let Some((port, network)) = port.filter(|(port, _)| port.gateway != gateway) else {
            return false;
        };
        port.gateway = gateway;
        let (order, network) = (DriverRequest::AddPort(port.clone()), Arc::clone(network));
        state.send(&order, Some(network.as_fd()));
        true
    }

    /// Sets the members of a domain on other hosts.
    pub(crate) fn set_remote(&self, domain_id: u32, members: Vec<RemotePort>) {
        let mut state = self.state.lock();
        let wanted: BTreeMap<_, _> = members
            .into_iter()
            .map(|remote| ((domain_id, remote.0.node), remote))
            .collect();
        let present = state.remote.range((domain_id, 0)..=(domain_id, u32::MAX));
        let gone: Vec<_> = present.map(|(key, _)| *key).collect();
        for key in gone.into_iter().filter(|key| !wanted.contains_key(key)) {
            state.remote.remove(&key);
            // A port of this host may have taken its place.
            if !state.ports.contains_key(&key) {
                let (domain_id, node) = key;
                state.send(&DriverRequest::RemovePort { domain_id, node }, None);
            }
        }
        for (key, remote) in wanted {
            let before = state.remote.insert(key, remote.clone());
            // A new epoch alone is sent for the whole domain.
            let is_known = |(port, host): &RemotePort| {
                let epoch = remote.0.epoch;
                (
                    &Port {
                        epoch,
                        ..port.clone()
                    },
                    host,
                ) == (&remote.0, &remote.1)
            };
            if !before.as_ref().is_some_and(is_known) {
                let (port, host) = remote;
                state.send(&DriverRequest::AddRemote { host, port }, None);
            }
        }
    }

    /// Sets the uplinks. Sends them even if unchanged, because the driver may have failed to open
    /// one. Returns whether they have changed.
    pub(crate) fn set_uplinks(&self, uplinks: Vec<Uplink>) -> bool {
        let mut state = self.state.lock();
        let order = DriverRequest::Uplinks {
            uplinks: uplinks.clone(),
        };
        state.send(&order, None);
        state.uplinks.replace(uplinks.clone()) != Some(uplinks)
    }

    /// Removes a port.
    pub(crate) fn remove(&self, domain_id: u32, node: u32) {
        let mut state = self.state.lock();
        state.ports.remove(&(domain_id, node));
        state.remote.remove(&(domain_id, node));
        state.send(&DriverRequest::RemovePort { domain_id, node }, None);
    }

    /// Sets the epoch of a domain's ports.
    pub(crate) fn set_epoch(&self, domain_id: u32, epoch: u32) {
        let mut state = self.state.lock();
        let of_domain = state
            .ports
            .range_mut((domain_id, 0)..=(domain_id, u32::MAX));
        for (_, (port, _)) in of_domain {
            port.epoch = epoch;
        }
        let remote = state
            .remote
            .range_mut((domain_id, 0)..=(domain_id, u32::MAX));
        for (_, (port, _)) in remote {
            port.epoch = epoch;
        }
        state.send(&DriverRequest::Epoch { domain_id, epoch }, None);
    }

    /// Moves a node's ports to its new network namespace.
    pub(crate) fn move_node(&self, node: u32, network: &Arc<OwnedFd>) {
        let mut state = self.state.lock();
        let mut moved = Vec::new();
        for (port, place) in state.ports.values_mut() {
            if port.node == node {
                *place = Arc::clone(network);
                moved.push(port.clone());
            }
        }
        for port in moved {
            let (domain_id, node) = (port.domain_id, port.node);
            state.send(&DriverRequest::RemovePort { domain_id, node }, None);
            state.send(&DriverRequest::AddPort(port), Some(network.as_fd()));
        }
    }

    /// Ends the driver for good; returns when its process has ended.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ending = true;
        if let Some(process) = &state.process {
            process.its.let_go();
            process.orders.shut_down();
        }
        self.changed.notify_all();
        for _ in 0..2 {
            let gone = |state: &mut State| state.process.is_some();
            self.changed.wait_while_for(&mut state, gone, LAST_WORDS);
            state.kill();
        }
    }

    fn spawn(&self) -> io::Result<Instance> {
        let (program, arguments) = self.command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        command.args(arguments);
        let (its, child) = SupervisedChild::start(command)?;
        self.talk_to(its, Some(child))
    }

    /// Takes over the predecessor's driver, if it lives.
    fn take_over(&self, kept: Entry) -> Option<Instance> {
        self.talk_to(SupervisedChild::take_over(kept)?, None).ok()
    }

    fn talk_to(&self, its: SupervisedChild, child: Option<Child>) -> io::Result<Instance> {
        let (answers, orders) = its.open_channel(WRITE_TIMEOUT)?;
        let handle = Arc::clone(&its.handle);
        let mut state = self.state.lock();
        state.process = Some(Process { its, orders });
        state.generation += 1;
        state.tunnels = None;
        state.pulse += 1;
        // Until then the kernel may forward frames of former members.
        state.asked += 1;
        state.tell_all(&self.others, self.kernel.as_ref());
        drop(state);
        self.keep();
        Ok(Instance {
            handle,
            answers,
            child,
        })
    }

    fn supervise(&self, first: Instance) {
        let mut instance = Some(first);
        let mut pause = BACKOFF[0];
        loop {
            let answered = match instance.take() {
                Some(instance) => self.attend(instance),
                None => false,
            };
            if answered {
                pause = BACKOFF[0];
            }
            if self.pause(pause) {
                return;
            }
            pause = BACKOFF[1].min(pause * 2);
            match self.spawn() {
                Ok(next) => instance = Some(next),
                Err(error) => self.count_failure(&error),
            }
        }
    }

    /// Counts a failed start, so that requests do not wait for a driver that cannot be started.
    fn count_failure(&self, error: &io::Error) {
        tracing::error!("cannot restart the Ethernet driver: {error}");
        self.state.lock().failures += 1;
        self.changed.notify_all();
    }

    /// Reads a driver's answers until its end; returns whether it ever answered.
    fn attend(&self, instance: Instance) -> bool {
        let Instance {
            handle,
            mut answers,
            child,
        } = instance;
        let mut answered = false;
        while let Ok((answer, _)) = answers.receive() {
            let mut state = self.state.lock();
            if state.note_tunnels(&answer) {
                // The driver reports this unasked, and may fail at every request.
                self.changed.notify_all();
                continue;
            }
            answered = true;
            state.failures = 0;
            match answer {
                DriverResponse::Tunnels { .. } | DriverResponse::NoRdma { .. } => {}
                DriverResponse::Synced {
                    n,
                    errors,
                    offload,
                    without_kernel,
                } => {
                    state.offload = offload;
                    state.without_kernel = without_kernel;
                    state.answered = state.answered.max(n);
                    state.errors.extend(errors);
                }
                DriverResponse::Dropped { n, ports, hosts } => {
                    state.drops.insert(n, Drops { ports, hosts });
                }
                DriverResponse::Plugged { n, failure } => {
                    state.plugs.insert(n, failure);
                }
                DriverResponse::RdmaFrames { n, frames_by_rdma } => {
                    state.frames_by_rdma = (n, frames_by_rdma);
                }
            }
            self.changed.notify_all();
        }
        // The socket may have ended because the driver broke the protocol.
        let ending = self.state.lock().ending;
        if !ending {
            self.state.lock().kill();
        }
        outlast(&handle, child);
        let mut state = self.state.lock();
        state.process = None;
        state.tunnels = None;
        state.pulse += 1;
        self.fd_store.remove(Self::KEY);
        state.failures += u32::from(!answered);
        self.changed.notify_all();
        if !ending {
            tracing::warn!("the Ethernet driver ended; starting it again");
        }
        answered
    }

    /// Waits before a restart; returns whether there will be none.
    fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed
            .wait_while_for(&mut state, |state| !state.ending, time);
        state.ending
    }
}

impl State {
    fn send(&self, order: &DriverRequest, descriptor: Option<BorrowedFd<'_>>) {
        self.send_with(order, descriptor.as_slice());
    }

    fn send_with(&self, order: &DriverRequest, descriptors: &[BorrowedFd<'_>]) {
        if let Some(process) = &self.process {
            // If this fails, the driver has died, and the next one gets everything.
            let _ = process.orders.send(order, descriptors);
        }
    }

    fn tell_all(&self, others: &Others, kernel: Option<&OwnedFd>) {
        let ports = self
            .ports
            .keys()
            .chain(self.remote.keys())
            .copied()
            .collect();
        let retain = DriverRequest::Retain {
            ports,
            hosts: self.hosts.iter().cloned().collect(),
            rdma: others.rdma.clone(),
            sealed: others.sealed,
        };
        self.send(&retain, None);
        if let Some(kernel) = kernel {
            self.send(&DriverRequest::Kernel, Some(kernel.as_fd()));
        }
        if let Some(deadlines) = &others.deadlines {
            self.send(&DriverRequest::Deadlines, Some(deadlines.as_fd()));
        }
        self.send_all_links();
        for (port, network) in self.ports.values() {
            self.send(&DriverRequest::AddPort(port.clone()), Some(network.as_fd()));
        }
        for (port, host) in self.remote.values() {
            let (host, port) = (host.clone(), port.clone());
            self.send(&DriverRequest::AddRemote { host, port }, None);
        }
        if let Some(uplinks) = self.uplinks.clone() {
            self.send(&DriverRequest::Uplinks { uplinks }, None);
        }
        if self.answered < self.asked {
            self.send(&DriverRequest::Sync { n: self.asked }, None);
        }
    }

    fn kill(&self) {
        if let Some(process) = &self.process {
            process.its.kill();
        }
    }
}
