//! The control path of the driver: executes the commands of the agent, beside a `Switch` that
//! moves the frames.

mod hosts;
mod links;
mod ports;
mod rdma_streams;
mod tunnels;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use toroid_fabric::deadlines::Deadlines;
use toroid_fabric::{Partition, Place};
use toroid_model::rdma::Rdma;
use toroid_protocol::driver::{
    DriverRequest, DriverResponse, Port, PortError, Uplink as UplinkSpec,
};
use toroid_protocol::liveness::LivenessSocket;
use toroid_protocol::wire::{self, Reader, WireError, Writer};
use tracing::debug;

use crate::forward::AttachError;
use crate::interface::reaper::Reaper;
use crate::interface::{InterfaceError, Outer, Settling, offloads};
use crate::kernel::{KernelPath, KernelPathError};
use crate::offload::Capabilities;
use crate::switch::{JoinError, Switch, SwitchEnded, SwitchHandle};
use crate::tunnel::HostId;
use tunnels::Tunnels;

/// Reasons why the driver ended before its agent.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The system refused a resource that every driver needs.
    #[error("cannot start the driver: {0}")]
    Start(io::Error),
    /// The memory of deadlines was missing or could not be mapped, without which members of fenced
    /// domains would not stop.
    #[error("cannot use the deadlines of fenced domains: {0}")]
    Deadlines(io::Error),
    /// Waiting for frames failed.
    #[error("cannot wait for frames: {0}")]
    Wait(io::Error),
    /// The data path failed.
    #[error(transparent)]
    Ended(#[from] SwitchEnded),
    /// Frames of former members may still pass through the kernel.
    #[error("cannot change what passes through the kernel: {0}")]
    Kernel(#[from] KernelPathError),
    /// A malformed command, or a failure of the connection to the agent.
    #[error("the agent's socket: {0}")]
    Agent(WireError),
}

/// Reasons why a command for one port failed.
#[derive(Debug, thiserror::Error)]
enum PortFailure {
    #[error("the port came without its network namespace")]
    NoNamespace,
    #[error("the port is there already, with other addresses")]
    Differs,
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("cannot open {name}: {source}")]
    Uplink { name: String, source: io::Error },
    #[error("cannot wait for the uplink: {0}")]
    Outside(io::Error),
    #[error("cannot change the offload of its interface: {0}")]
    Offload(io::Error),
    #[error("cannot use the clocks of its domain's links: {0}")]
    Clocks(io::Error),
}

/// Runs the driver until the liveness socket ends. Agents may come and go meanwhile.
///
/// Interfaces outlive the driver: the next driver takes them over, and they end with their nodes.
///
/// # Errors
/// [`DriverError`]. The failure of a single port is reported to the agent.
pub fn run(liveness: UnixStream) -> Result<(), DriverError> {
    let (channels, liveness) = wire::split(liveness).map_err(DriverError::Start)?;
    let (sender, events) = mpsc::channel();
    let (switch, handle) = Switch::new(sender).map_err(DriverError::Start)?;
    let tunnels = Arc::new(Tunnels::default());
    tunnels.watch(events).map_err(DriverError::Start)?;
    let connections = Arc::new(Mutex::new(vec![liveness]));
    let guard = ShutdownGuard(Arc::clone(&connections));
    let frames = thread::Builder::new()
        .name("frames".into())
        .spawn(move || {
            let _guard = guard;
            switch.run()
        })
        .map_err(DriverError::Start)?;
    let reaper = Reaper::start().map_err(DriverError::Start)?;
    let control_path = ControlPath::new(handle, reaper, tunnels);
    let served = control_path.serve(LivenessSocket::new(channels), &connections);
    frames
        .join()
        .map_err(|_| SwitchEnded)?
        .map_err(DriverError::Wait)?;
    served
}

/// Writers of the liveness socket and the present control channel; empty after the end of the data
/// path.
type Connections = Mutex<Vec<Writer>>;

/// Shuts the connections down when the data path ends for any reason, so that the control path does
/// not wait for commands in vain.
struct ShutdownGuard(Arc<Connections>);

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        let writers = std::mem::take(&mut *lock(&self.0));
        writers.iter().for_each(Writer::shut_down);
    }
}

fn lock(connections: &Connections) -> MutexGuard<'_, Vec<Writer>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers of domain and node.
type PortKey = (u32, u32);

/// State of the control path.
struct ControlPath {
    switch: Arc<SwitchHandle>,
    ports: HashMap<PortKey, AttachedPort>,
    /// Members on other hosts.
    remote_members: HashSet<PortKey>,
    /// Names of other hosts, by number.
    hosts: Vec<String>,
    host_numbers: HashMap<String, HostId>,
    tunnels: Arc<Tunnels>,
    /// The RDMA device for packets between hosts, if one is configured.
    rdma: Option<Rdma>,
    /// Open uplinks by domain number.
    uplinks: HashMap<u32, UplinkSpec>,
    /// Interfaces whose kernel may not receive packets yet. [`DriverRequest::Sync`] waits for them.
    settling: HashMap<PortKey, Settling>,
    /// Members since the last [`DriverRequest::Sync`]; others may have queried their addresses before.
    newcomers: Vec<(Partition, Place)>,
    /// Network namespaces (inodes) whose interfaces have timed out. Root in a node can cause that
    /// at will, and other nodes must not wait each time. Honest nodes need less time.
    slow_namespaces: HashSet<u64>,
    reaper: Reaper,
    failed: Vec<PortError>,
    /// Offloads that this kernel supports.
    kernel_offloads: Capabilities,
    /// Frames that do not pass through the driver, or why there are none.
    kernel: Result<KernelPath, String>,
}

/// A port with its interface.
struct AttachedPort {
    port: Port,
    /// Inode of the network namespace of the interface.
    namespace_inode: u64,
    /// Index of the interface; `None` for a stack.
    index: Option<u32>,
    /// Other end of the interface, unless it is a TAP.
    outer: Option<Outer>,
}

impl ControlPath {
    fn new(handle: SwitchHandle, reaper: Reaper, tunnels: Arc<Tunnels>) -> Self {
        ControlPath {
            switch: Arc::new(handle),
            ports: HashMap::new(),
            remote_members: HashSet::new(),
            hosts: Vec::new(),
            host_numbers: HashMap::new(),
            tunnels,
            rdma: None,
            uplinks: HashMap::new(),
            settling: HashMap::new(),
            newcomers: Vec::new(),
            slow_namespaces: HashSet::new(),
            reaper,
            failed: Vec::new(),
            kernel_offloads: offloads::capabilities(),
            kernel: Err("the agent offers no network namespace for it".into()),
        }
    }

    fn serve(
        mut self,
        mut liveness: LivenessSocket,
        connections: &Connections,
    ) -> Result<(), DriverError> {
        loop {
            let channel = match liveness.next_channel() {
                Ok(channel) => channel,
                Err(WireError::Closed) => return Ok(()),
                Err(error) => return Err(DriverError::Agent(error)),
            };
            let (commands, answers) =
                wire::split(channel).map_err(|error| DriverError::Agent(error.into()))?;
            let mut writers = lock(connections);
            if writers.is_empty() {
                return Ok(());
            }
            writers.truncate(1);
            writers.push(answers.clone());
            drop(writers);
            self.tunnels.detach_agent();
            self.serve_channel(commands, &answers)?;
        }
    }

    /// Serves one agent until its control channel ends, perhaps within a message.
    fn serve_channel(&mut self, mut commands: Reader, answers: &Writer) -> Result<(), DriverError> {
        loop {
            let (command, descriptors) = match commands.receive() {
                Ok(received) => received,
                Err(error @ WireError::Malformed(_)) => return Err(DriverError::Agent(error)),
                Err(_) => return Ok(()),
            };
            let is_first = matches!(command, DriverRequest::Retain { .. });
            if let Some(answer) = self.execute(command, descriptors)?
                && answers.send(&answer, &[]).is_err()
            {
                return Ok(());
            }
            if is_first {
                self.tunnels.attach_agent(answers);
            }
        }
    }

    fn execute(
        &mut self,
        command: DriverRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<DriverResponse>, DriverError> {
        debug!(?command, "from the agent");
        match command {
            DriverRequest::Retain {
                ports,
                hosts,
                rdma,
                sealed,
            } => self.retain(&ports, &hosts, rdma, sealed)?,
            DriverRequest::Kernel => self.open_kernel_path(descriptors)?,
            DriverRequest::AddPort(port) => self.add(port, descriptors.into_iter().next())?,
            DriverRequest::AddRemote { host, port } => self.add_remote(&host, port)?,
            DriverRequest::Tunnel { host, asks, keys } => {
                self.connect_tunnel(host, asks, keys, descriptors.into_iter().next())?;
            }
            DriverRequest::EndTunnel { host } => self.end_tunnel(&host)?,
            DriverRequest::RemovePort { domain_id, node } => self.remove((domain_id, node))?,
            DriverRequest::Epoch { domain_id, epoch } => self.raise_epoch(domain_id, epoch)?,
            DriverRequest::Uplinks { uplinks } => self.connect(uplinks)?,
            DriverRequest::Links {
                domain_id,
                model,
                precision,
            } => {
                self.set_links(domain_id, model, descriptors, precision)?;
            }
            DriverRequest::Deadlines => {
                let deadlines = map_deadlines(descriptors).map_err(DriverError::Deadlines)?;
                self.switch
                    .call(move |switch| switch.bridges.set_deadlines(deadlines))?;
            }
            DriverRequest::Sync { n } => return Ok(Some(self.sync(n)?)),
            DriverRequest::Drops { n, domain_id } => {
                let partition = Partition(domain_id);
                let dropped = move |switch: &mut Switch| {
                    let bridges = &switch.bridges;
                    (bridges.drops(partition), bridges.remote_drops(partition))
                };
                let (ports, remote) = self.switch.call(dropped)?;
                let named = remote.into_iter().filter_map(|(host, dropped)| {
                    let name = self.hosts.get(host.0 as usize)?;
                    Some((name.clone(), dropped))
                });
                let hosts = named.collect();
                return Ok(Some(DriverResponse::Dropped { n, ports, hosts }));
            }
            DriverRequest::RdmaFrames { n } => {
                let frames_by_rdma = self.tunnels.by_rdma();
                return Ok(Some(DriverResponse::RdmaFrames { n, frames_by_rdma }));
            }
            DriverRequest::Plug { n, domain_id, node } => {
                let stack_socket = descriptors.into_iter().next();
                let failure = self.plug((domain_id, node), stack_socket)?;
                return Ok(Some(DriverResponse::Plugged { n, failure }));
            }
        }
        Ok(None)
    }

    /// Opens the kernel path, unless it is open. Fails if frames pass there that this driver cannot
    /// stop; without any, all pass through the driver.
    fn open_kernel_path(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), KernelPathError> {
        let (Some(network), true) = (descriptors.into_iter().next(), self.kernel.is_err()) else {
            return Ok(());
        };
        let is_used = KernelPath::is_used(network.as_fd())?;
        self.kernel = match KernelPath::open(network) {
            Err(error) if is_used => return Err(error),
            opened => opened.map_err(|error| error.to_string()),
        };
        Ok(())
    }

    fn record(&mut self, (domain_id, node): PortKey, outcome: Result<(), PortFailure>) {
        if let Err(failure) = outcome {
            self.failed.push(PortError {
                domain_id,
                node,
                message: failure.to_string(),
            });
        }
    }
}

fn map_deadlines(descriptors: Vec<OwnedFd>) -> io::Result<Deadlines> {
    let missing = || io::Error::other("their memory did not arrive");
    let memory = descriptors.into_iter().next().ok_or_else(missing)?;
    Deadlines::map(&memory.into(), false)
}
