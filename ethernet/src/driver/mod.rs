//! The control path of the driver: executes the commands of the agent, beside a [`Switch`] that
//! moves the frames.

mod rdma_streams;
mod tunnels;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use toroid_client::rdma::prepare_line;
use toroid_fabric::{Epoch, NodeId, Partition, Place, TestKnob};
use toroid_model::ethernet::OffloadKind;
use toroid_model::rdma::Rdma;
use toroid_protocol::driver::{Answer, Command, PlugFailure, Port, PortError, Uplink as Outside};
use toroid_protocol::lifeline::Lifeline;
use toroid_protocol::wire::{self, Reader, WireError, Writer};
use tracing::{debug, warn};

use crate::forward::AttachError;
use crate::interface::offloads;
use crate::interface::reaper::{LoweredInterface, Reaper};
use crate::interface::{self, Interface, InterfaceError, Settling};
use crate::offload::Capabilities;
use crate::port::SwitchPort;
use crate::port::stack_socket::StackSocket;
use crate::port::uplink::{Uplink, UplinkError};
use crate::switch::{JoinError, Switch, SwitchEnded, SwitchHandle, TunnelId};
use crate::tunnel::{HostId, Tunnel};
use rdma_streams::StreamSupervisor;
use tunnels::Tunnels;

/// Reasons why the driver ended before its agent.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The system refused a resource that every driver needs.
    #[error("cannot start the driver: {0}")]
    Start(io::Error),
    /// Waiting for frames failed.
    #[error("cannot wait for frames: {0}")]
    Wait(io::Error),
    /// The data path failed.
    #[error(transparent)]
    Ended(#[from] SwitchEnded),
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
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    #[error("cannot wait for the uplink: {0}")]
    Outside(io::Error),
    #[error("cannot change the offload of its interface: {0}")]
    Offload(io::Error),
}

/// Runs the driver until `lifeline` ends. Agents may come and go meanwhile.
///
/// Interfaces outlive the driver: the next driver takes them over, and they end with their nodes.
///
/// # Errors
/// [`DriverError`]. The failure of a single port is reported to the agent.
pub fn run(lifeline: UnixStream) -> Result<(), DriverError> {
    let (sessions, lifeline) = wire::split(lifeline).map_err(DriverError::Start)?;
    let (sender, events) = mpsc::channel();
    let (switch, handle) = Switch::new(sender).map_err(DriverError::Start)?;
    let tunnels = Arc::new(Tunnels::default());
    tunnels.watch(events).map_err(DriverError::Start)?;
    let stream = Arc::new(Mutex::new(vec![lifeline]));
    let guard = ShutdownGuard(Arc::clone(&stream));
    let frames = thread::Builder::new()
        .name("frames".into())
        .spawn(move || {
            let _hang_up = guard;
            switch.run()
        })
        .map_err(DriverError::Start)?;
    let reaper = Reaper::start().map_err(DriverError::Start)?;
    let served = ControlPath::new(handle, reaper, tunnels).serve(Lifeline::new(sessions), &stream);
    frames
        .join()
        .map_err(|_| SwitchEnded)?
        .map_err(DriverError::Wait)?;
    served
}

/// Writers of the lifeline and the present session; empty after the end of the data path.
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

fn lock(stream: &Connections) -> MutexGuard<'_, Vec<Writer>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers of domain and node.
type PortKey = (u32, u32);

/// Time for the addresses of all nodes that timed out before. The kernel needs less than a
/// millisecond.
const SLOW_TIMEOUT: Duration = Duration::from_millis(200);

/// State of the control path.
struct ControlPath {
    switch: Arc<SwitchHandle>,
    ports: HashMap<PortKey, AttachedPort>,
    /// Members on other hosts.
    remote_members: HashSet<PortKey>,
    /// Names of other hosts, by number.
    hosts: Vec<String>,
    tunnels: Arc<Tunnels>,
    /// The RDMA device for packets between hosts, if one is configured.
    rdma: Option<Rdma>,
    /// Open uplinks by domain number.
    uplinks: HashMap<u32, Outside>,
    /// Interfaces whose kernel may not receive packets yet. [`Command::Sync`] waits for them.
    settling: HashMap<PortKey, Settling>,
    /// Members since the last [`Command::Sync`]; others may have queried their addresses before.
    newcomers: Vec<(Partition, Place)>,
    /// Network namespaces (inodes) whose interfaces have timed out. Root in a node can cause that
    /// at will, and other nodes must not wait for it each time. An honest node needs no more than
    /// [`SLOW_TIMEOUT`].
    slow_namespaces: HashSet<u64>,
    reaper: Reaper,
    failed: Vec<PortError>,
    /// Offloads that this kernel supports.
    kernel_offloads: Capabilities,
}

/// A port with its interface.
struct AttachedPort {
    port: Port,
    /// Inode of the network namespace of the interface.
    namespace_inode: u64,
    /// Index of the interface; `None` for a stack.
    index: Option<u32>,
}

impl ControlPath {
    fn new(handle: SwitchHandle, reaper: Reaper, tunnels: Arc<Tunnels>) -> Self {
        ControlPath {
            switch: Arc::new(handle),
            ports: HashMap::new(),
            remote_members: HashSet::new(),
            hosts: Vec::new(),
            tunnels,
            rdma: None,
            uplinks: HashMap::new(),
            settling: HashMap::new(),
            newcomers: Vec::new(),
            slow_namespaces: HashSet::new(),
            reaper,
            failed: Vec::new(),
            kernel_offloads: offloads::capabilities(),
        }
    }

    fn serve(mut self, mut lifeline: Lifeline, stream: &Connections) -> Result<(), DriverError> {
        loop {
            let session = match lifeline.next_session() {
                Ok(session) => session,
                Err(WireError::Closed) => return Ok(()),
                Err(error) => return Err(DriverError::Agent(error)),
            };
            let (commands, answers) =
                wire::split(session).map_err(|error| DriverError::Agent(error.into()))?;
            let mut writers = lock(stream);
            if writers.is_empty() {
                return Ok(());
            }
            writers.truncate(1);
            writers.push(answers.clone());
            drop(writers);
            self.tunnels.detach_agent();
            self.serve_session(commands, &answers)?;
        }
    }

    /// Serves one agent until its session ends, perhaps within a message.
    fn serve_session(&mut self, mut commands: Reader, answers: &Writer) -> Result<(), DriverError> {
        loop {
            let (command, descriptors) = match commands.receive() {
                Ok(received) => received,
                Err(error @ WireError::Malformed(_)) => return Err(DriverError::Agent(error)),
                Err(_) => return Ok(()),
            };
            let is_first = matches!(command, Command::Retain { .. });
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
        command: Command,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Answer>, SwitchEnded> {
        debug!(?command, "from the agent");
        match command {
            Command::Retain { ports, hosts, rdma } => self.retain(&ports, &hosts, rdma)?,
            Command::AddPort(port) => self.add(port, descriptors.into_iter().next())?,
            Command::AddFar { host, port } => self.add_remote(&host, port)?,
            Command::Trunk { host, asks } => {
                self.connect_tunnel(host, asks, descriptors.into_iter().next())?;
            }
            Command::RemovePort { domain_id, node } => self.remove((domain_id, node))?,
            Command::Epoch { domain_id, epoch } => self.raise_epoch(domain_id, epoch)?,
            Command::Uplinks { uplinks } => self.connect(uplinks)?,
            Command::Sync { n } => return Ok(Some(self.sync(n)?)),
            Command::Drops { n, domain_id } => {
                let partition = Partition(domain_id);
                let dropped = move |switch: &mut Switch| {
                    (switch.drops(partition), switch.remote_drops(partition))
                };
                let (ports, remote) = self.switch.call(dropped)?;
                let named = remote.into_iter().filter_map(|(host, dropped)| {
                    let name = self.hosts.get(host.0 as usize)?;
                    Some((name.clone(), dropped))
                });
                let hosts = named.collect();
                return Ok(Some(Answer::Dropped { n, ports, hosts }));
            }
            Command::Lines { n } => {
                let frames_by_rdma = self.tunnels.by_rdma();
                return Ok(Some(Answer::Lines { n, frames_by_rdma }));
            }
            Command::Plug { n, domain_id, node } => {
                let stack_socket = descriptors.into_iter().next();
                let failure = self.plug((domain_id, node), stack_socket)?;
                return Ok(Some(Answer::Plugged { n, failure }));
            }
        }
        Ok(None)
    }

    fn add(&mut self, port: Port, namespace: Option<OwnedFd>) -> Result<(), SwitchEnded> {
        let key = (port.domain_id, port.node);
        let place = namespace.and_then(|namespace| Some((inode(&namespace)?, namespace)));
        let moved = |member: &AttachedPort| {
            place
                .as_ref()
                .is_some_and(|(namespace_inode, _)| *namespace_inode != member.namespace_inode)
        };
        if self.ports.get(&key).is_some_and(moved) {
            // The node was made anew, and its former interface ended with it.
            self.remove(key)?;
        }
        if self.remote_members.contains(&key) {
            // The node has moved to this host.
            self.remove(key)?;
        }
        let outcome = match (self.ports.get(&key), place) {
            (Some(present), place) if present.port.is_same_interface(&port) => {
                return self.renew(port, place.map(|(_, namespace)| namespace));
            }
            (Some(_), _) => Err(PortFailure::Differs),
            (None, None) => Err(PortFailure::NoNamespace),
            (None, Some((namespace_inode, _))) if port.stack => {
                self.attach(port, namespace_inode, None)?
            }
            (None, Some((namespace_inode, namespace))) => {
                match self.raise(&port, namespace_inode, namespace) {
                    Ok(interface) => self.attach(port, namespace_inode, Some(interface))?,
                    Err(error) => Err(error.into()),
                }
            }
        };
        self.record(key, outcome);
        Ok(())
    }

    fn raise(
        &self,
        port: &Port,
        namespace_inode: u64,
        namespace: OwnedFd,
    ) -> Result<Interface, InterfaceError> {
        let capabilities = self.capabilities(port);
        if let Some(lowered) = self.reaper.take_back(port, namespace_inode) {
            match interface::restore(port, lowered.tap, lowered.index, capabilities) {
                Ok(interface) => return Ok(interface),
                // The node may have changed it in any way.
                Err(error) => debug!("{} of node {}: {error}", port.ifname, port.place),
            }
        }
        interface::raise(port, namespace, capabilities)
    }

    /// Offloads of the interface of a port.
    fn capabilities(&self, port: &Port) -> Capabilities {
        if port.offload {
            self.kernel_offloads
        } else {
            Capabilities::empty()
        }
    }

    /// Adds or changes a member on another host.
    fn add_remote(&mut self, host: &str, port: Port) -> Result<(), SwitchEnded> {
        let key = (port.domain_id, port.node);
        if self.ports.contains_key(&key) {
            // The node has moved to that host.
            self.remove(key)?;
        }
        let host = self.host(host);
        let newcomer = (Partition(port.domain_id), port.place);
        let attached = self
            .switch
            .call(move |switch| switch.attach_remote(port, host))?;
        if attached.is_ok() {
            self.remote_members.insert(key);
            self.newcomers.push(newcomer);
        }
        self.record(key, attached.map_err(PortFailure::from));
        Ok(())
    }

    /// The number of a host.
    fn host(&mut self, name: &str) -> HostId {
        let known = self.hosts.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.hosts.push(name.into());
            self.hosts.len() - 1
        });
        HostId(number as u32)
    }

    fn connect_tunnel(
        &mut self,
        host: String,
        asks: bool,
        socket: Option<OwnedFd>,
    ) -> Result<(), SwitchEnded> {
        let number = self.host(&host);
        let (id, by_rdma) = self.tunnels.add(number, host.clone());
        let connected = match socket.map(|socket| Tunnel::new(socket, by_rdma)) {
            Some(Ok(tunnel)) => self.use_tunnel(id, tunnel, host, asks)?,
            Some(Err(error)) => Err(error),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if let Err(error) = connected {
            warn!("cannot use a connection to another host: {error}");
            self.switch.call(move |switch| switch.cut_tunnel(id.host))?;
            self.tunnels.remove(id);
        }
        Ok(())
    }

    /// Starts using a tunnel, with a supervisor of RDMA streams if a device is configured.
    fn use_tunnel(
        &self,
        id: TunnelId,
        tunnel: Tunnel,
        host: String,
        asks: bool,
    ) -> Result<io::Result<()>, SwitchEnded> {
        let supervisor = self.rdma.clone().map(|rdma| {
            let prepare = Arc::new(move || prepare_line(&rdma));
            let tunnels = Arc::clone(&self.tunnels);
            let report_failure = Box::new(move |why: &str| tunnels.report_failure(&host, why));
            StreamSupervisor::new(id, asks, prepare, &self.switch, report_failure)
        });
        let (supervisor, events) = supervisor.unzip();
        let connected = self
            .switch
            .call(move |switch| switch.connect_tunnel(id, tunnel, events))?;
        // Without the thread packets go over the connection.
        if let Some(Err(error)) = supervisor.map(StreamSupervisor::start) {
            warn!("no thread for a stream to another host: {error}");
        }
        Ok(connected)
    }

    fn retain(
        &mut self,
        wanted: &[PortKey],
        hosts: &[String],
        rdma: Option<Rdma>,
    ) -> Result<(), SwitchEnded> {
        let wanted: HashSet<PortKey> = wanted.iter().copied().collect();
        let present = self.ports.keys().chain(&self.remote_members);
        let extra: Vec<PortKey> = present.filter(|k| !wanted.contains(k)).copied().collect();
        extra.into_iter().try_for_each(|key| self.remove(key))?;
        // All tunnels are made anew for another RDMA device or none.
        let is_same = std::mem::replace(&mut self.rdma, rdma) == self.rdma;
        let stay = if is_same { hosts } else { &[] };
        for id in self.tunnels.except(stay) {
            self.switch.call(move |switch| switch.cut_tunnel(id.host))?;
            self.tunnels.remove(id);
        }
        Ok(())
    }

    /// Opens and closes uplinks; unchanged uplinks stay.
    fn connect(&mut self, wanted: Vec<Outside>) -> Result<(), SwitchEnded> {
        let present: Vec<u32> = self.uplinks.keys().copied().collect();
        for domain_id in present {
            if !wanted
                .iter()
                .any(|uplink| self.uplinks.get(&domain_id) == Some(uplink))
            {
                self.uplinks.remove(&domain_id);
                let partition = Partition(domain_id);
                self.switch
                    .call(move |switch| switch.disconnect(partition))?;
            }
        }
        for uplink in wanted {
            if self.uplinks.contains_key(&uplink.domain_id) {
                continue;
            }
            let key = (uplink.domain_id, uplink.node);
            let outcome = match Uplink::open(uplink.index, &uplink.ifname) {
                Ok(opened) => {
                    let outside = uplink.clone();
                    let connected = move |switch: &mut Switch| switch.connect(&outside, opened);
                    let connected = self.switch.call(connected)?;
                    connected.map_err(PortFailure::Outside)
                }
                Err(error) => Err(error.into()),
            };
            if outcome.is_ok() {
                self.uplinks.insert(uplink.domain_id, uplink);
            }
            self.record(key, outcome);
        }
        Ok(())
    }

    /// Applies changes to a present port.
    fn renew(&mut self, port: Port, namespace: Option<OwnedFd>) -> Result<(), SwitchEnded> {
        let (key, partition, place) = (
            (port.domain_id, port.node),
            Partition(port.domain_id),
            port.place,
        );
        let (epoch, limited) = (Epoch(port.epoch), port.limited);
        let (gateway, forward) = (port.gateway, port.forward);
        let capabilities = self.capabilities(&port);
        if let Some(member) = self.ports.get_mut(&key) {
            let before = std::mem::replace(&mut member.port, port);
            let changed = before.gateway != member.port.gateway;
            if let (true, Some(namespace), Some(index)) = (changed, namespace, member.index) {
                let led = interface::set_gateway(&member.port, &before, index, namespace);
                self.record(key, led.map_err(PortFailure::from));
            }
        }
        let set = self.switch.call(move |switch| {
            switch.raise_epoch(partition, epoch);
            switch.set_limited(partition, place, limited);
            switch.set_gateway(partition, place, gateway);
            switch.set_forward(partition, place, forward);
            switch.set_capabilities(partition, place, capabilities)
        })?;
        self.record(key, set.map_err(PortFailure::Offload));
        Ok(())
    }

    fn attach(
        &mut self,
        port: Port,
        namespace_inode: u64,
        interface: Option<Interface>,
    ) -> Result<Result<(), PortFailure>, SwitchEnded> {
        let (key, member) = ((port.domain_id, port.node), port.clone());
        // A process may have joined groups before, too.
        let joined_before = interface.as_ref().is_none_or(|interface| interface.was_up);
        let (egress, index, settling) = match interface {
            None => (SwitchPort::Stack(None), None, None),
            Some(Interface {
                tap,
                index,
                settling,
                ..
            }) => (SwitchPort::Tap(tap), Some(index), Some(settling)),
        };
        let (partition, place) = (Partition(port.domain_id), port.place);
        let attached = self.switch.call(move |switch| {
            switch.attach(member, egress)?;
            if joined_before {
                switch.receive_all(partition, place);
            }
            Ok::<_, JoinError>(())
        })?;
        if attached.is_ok() {
            self.ports.insert(
                key,
                AttachedPort {
                    port,
                    namespace_inode,
                    index,
                },
            );
            self.newcomers.push((partition, place));
            self.settling
                .extend(settling.map(|settling| (key, settling)));
        }
        Ok(attached.map_err(PortFailure::from))
    }

    /// Connects the stack of a process to a port; returns the reason of a failure.
    fn plug(
        &self,
        key: PortKey,
        socket: Option<OwnedFd>,
    ) -> Result<Option<PlugFailure>, SwitchEnded> {
        let Some(stack_socket) = socket.map(StackSocket::new) else {
            return Ok(Some(PlugFailure::System));
        };
        if let Err(error) = stack_socket.refuse_descriptors() {
            warn!("cannot refuse descriptors of a process: {error}");
            return Ok(Some(PlugFailure::System));
        }
        let (partition, node) = (Partition(key.0), NodeId(key.1));
        let plugged = self
            .switch
            .call(move |switch| switch.plug(partition, node, stack_socket))?;
        Ok(plugged.err())
    }

    /// Ends a membership. Frames are cut here; deleting the interface may take its time.
    fn remove(&mut self, key: PortKey) -> Result<(), SwitchEnded> {
        if TestKnob::WithoutEpochCheck.is_set() {
            return Ok(());
        }
        let (partition, node) = (Partition(key.0), NodeId(key.1));
        let member = self.ports.remove(&key);
        self.remote_members.remove(&key);
        self.settling.remove(&key);
        let egress = self
            .switch
            .call(move |switch| switch.detach(partition, node))?;
        // Dropping the port of a stack ends the connection of its process.
        if let (
            Some(AttachedPort {
                port,
                namespace_inode,
                index,
            }),
            Some(SwitchPort::Tap(tap)),
        ) = (member, egress)
            && let Some(index) = index
        {
            if let Err(error) = interface::lower(&tap, index) {
                warn!("{} of node {}: {error}", port.ifname, port.place);
            }
            self.reaper.add(LoweredInterface {
                port,
                namespace_inode,
                index,
                tap,
            });
        }
        Ok(())
    }

    fn raise_epoch(&mut self, domain_id: u32, epoch: u32) -> Result<(), SwitchEnded> {
        let (partition, epoch) = (Partition(domain_id), Epoch(epoch));
        self.switch
            .call(move |switch| switch.raise_epoch(partition, epoch))
    }

    fn sync(&mut self, n: u64) -> Result<Answer, SwitchEnded> {
        let deadline = Settling::deadline(self.settling.len());
        let is_slow = |(key, _): &(PortKey, Settling)| {
            let member = self.ports.get(key);
            member.is_some_and(|member| self.slow_namespaces.contains(&member.namespace_inode))
        };
        let all = std::mem::take(&mut self.settling).into_iter();
        let (slow_namespaces, prompt): (Vec<_>, Vec<_>) = all.partition(is_slow);
        for (key, settling) in prompt {
            self.settle(key, settling, deadline);
        }
        let deadline = Instant::now() + SLOW_TIMEOUT;
        for (key, settling) in slow_namespaces {
            self.settle(key, settling, deadline);
        }
        let newcomers = std::mem::take(&mut self.newcomers);
        if !newcomers.is_empty() {
            self.switch.call(move |switch| {
                for (partition, place) in newcomers {
                    switch.answer_pending(partition, place);
                }
            })?;
        }
        Ok(Answer::Synced {
            n,
            errors: std::mem::take(&mut self.failed),
            offload: kinds(self.kernel_offloads),
        })
    }

    fn settle(&mut self, key: PortKey, settling: Settling, deadline: Instant) {
        let outcome = settling.wait(deadline);
        if let (Err(InterfaceError::NotLocal(_)), Some(member)) = (&outcome, self.ports.get(&key)) {
            self.slow_namespaces.insert(member.namespace_inode);
        }
        self.record(key, outcome.map_err(PortFailure::from));
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

/// The names of offloads in the protocol.
fn kinds(capabilities: Capabilities) -> Vec<OffloadKind> {
    let kinds = [
        (Capabilities::CHECKSUM, OffloadKind::Checksum),
        (Capabilities::TSO4, OffloadKind::Tso4),
        (Capabilities::TSO6, OffloadKind::Tso6),
        (Capabilities::USO, OffloadKind::Uso),
    ];
    let has = |(capability, _): &(Capabilities, _)| capabilities.contains(*capability);
    kinds
        .into_iter()
        .filter(has)
        .map(|(_, kind)| kind)
        .collect()
}

/// Inode of a namespace, which identifies it while it exists.
fn inode(namespace: &OwnedFd) -> Option<u64> {
    let file = File::from(namespace.try_clone().ok()?);
    Some(file.metadata().ok()?.ino())
}
