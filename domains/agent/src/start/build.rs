//! Nodes and driver of an agent: made anew, or taken over from the predecessor.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use toroid_fabric::NodeId;
use toroid_model::hosts::Encryption;
use toroid_model::info::Limits;
use toroid_model::refusal::Refusal;
use toroid_netlink::namespace;
use toroid_protocol::driver::PortError;

use super::again::Origin;
use super::check_size;
use super::data_dir::DataDir;
use super::state_dir::StateDir;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::control::Control;
use crate::core::audit::Audit;
use crate::core::base::Base;
use crate::core::fair_queue::FairQueue;
use crate::core::host::{Ending, Host};
use crate::core::hosts_file;
use crate::core::ports::{log_errors, ports, remote_ports};
use crate::emulation::Emulation;
use crate::error::{AgentError, during, in_data};
use crate::exec::Relays;
use crate::fdstore::Entry;
use crate::fdstore::takeover::{self, Takeover};
use crate::gate::Gate;
use crate::interfaces::Interfaces;
use crate::leases::Leases;
use crate::members::migration::Migrations;
use crate::members::{Members, RETURN};
use crate::net::driver::{self, Driver, Others};
use crate::net::gateways::Gateways;
use crate::nodes::cgroups::Cgroups;
use crate::nodes::node::Plan;
use crate::nodes::rootless;
use crate::nodes::users::Users;
use crate::nodes::{Birth, HostedNode};
use crate::proxy::supervisor::ProxySupervisor;
use crate::store::events::Log;

/// Limit of registered bytes of one node if the size of memory is unknown.
const FALLBACK_BYTES: u64 = 4 << 30;

/// Makes nodes and driver, as long as `goes_on` succeeds. On failure everything made ends with this
/// process.
#[allow(clippy::too_many_arguments)]
pub(super) fn build(
    config: Config,
    Origin {
        identity,
        open_files,
    }: Origin,
    state: &StateDir,
    data: &DataDir,
    mut takeover: Takeover,
    cluster: Option<Cluster>,
    ending: mpsc::Sender<Ending>,
    goes_on: &dyn Fn() -> Result<(), AgentError>,
) -> Result<(Host, Vec<Birth>, Migrations), AgentError> {
    let cluster = cluster.map(Arc::new);
    let (mut directory, store) = data.directory_among(config.torus, cluster.as_deref())?;
    let memory = memory_bytes();
    directory.administer(identity.uid, memory);
    let torus = directory.torus();
    check_size(torus, cluster.as_ref().map(|cluster| &cluster.config))?;
    let kind = takeover::Kind {
        torus,
        ethernet: config.driver_command.is_some(),
        carries: cluster.as_ref().map(|c| c.config.nodes.clone()),
        share_tmp: config.share_tmp,
    };
    let (interfaces, emulation) = takeover.check(&kind)?;
    let (interfaces, no_taps) = Interfaces::of(&config, interfaces)?;
    let emulation = Emulation::of(&config, emulation, &directory)?;
    // The emulation of a torus has all frames.
    let interfaces = Interfaces {
        kernel: !identity.rootless && emulation.fabric.is_none(),
        ..interfaces
    };
    if let Some(Refusal { message, .. }) = &no_taps {
        tracing::warn!("nodes have no interfaces in domains: {message}");
    }
    let carries = kind.carries.clone();
    takeover::keep_host(
        &takeover.fd_store,
        kind,
        interfaces,
        emulation.clone(),
        config.lifeline,
    );
    let decides = cluster
        .as_ref()
        .is_none_or(|cluster| cluster.config.holds_directory());
    let leases = Leases::new(&mut takeover, decides, carries.clone());
    let leases = Arc::new(leases.map_err(during("share the deadlines of fenced domains"))?);
    let users = take_users(&identity, &mut takeover)?;
    let (groups, no_limits) = take_groups(state, &takeover, config.limits)?;
    // All file systems of a node together leave a quarter for its processes.
    let temporary_bytes = groups.limits.memory.map_or(memory / 2, |limit| limit / 4);
    let (mut nodes, mut births) = (Vec::new(), Vec::new());
    let mut texts = hosts_file::Texts::new(&directory);
    let is_ours = |id: &NodeId| carries.as_ref().is_none_or(|nodes| nodes.contains(&id.0));
    for id in (0..torus.nodes()).map(NodeId).filter(is_ours) {
        let Some(place) = torus.place(id) else {
            continue;
        };
        goes_on()?;
        let failed = |action: String, source| AgentError::Node {
            place,
            action,
            source,
        };
        let network = state.network(place);
        let network = network.map_err(|e| failed("name its network".into(), e))?;
        let hosts_file = state.hosts(id).and_then(|path| {
            hosts_file::write(&path, &texts.of(id))?;
            Ok(path)
        });
        let hosts_file = hosts_file.map_err(|e| failed("write its hosts file".into(), e))?;
        let its_groups = groups.of(place);
        let its_groups = its_groups.map_err(|e| failed("limit what it takes".into(), e))?;
        let plan = Plan {
            place,
            hosts: hosts_file,
            open_files,
            shares_tmp: config.share_tmp,
            temporary_bytes,
            groups: its_groups,
        };
        let kept = takeover.inherit(&HostedNode::key(id));
        let fd_store = Arc::clone(&takeover.fd_store);
        let made = HostedNode::make(id, plan, network, users.clone(), fd_store, kept);
        let (node, birth) = made.map_err(|error| failed(error.action, error.source))?;
        nodes.push(node);
        births.push(birth);
    }
    // Kept after the nodes: limits that they cannot have are not stored as theirs.
    groups.keep(state.path())?;
    let gateways = Gateways::new(state.path());
    let kernel = match interfaces.kernel {
        true => take_network(&mut takeover),
        false => None,
    };
    let start_driver = |command| {
        let kept = takeover.inherit(Driver::KEY);
        let ports = ports(&directory, &nodes, interfaces, &gateways.ways());
        let (remote, others) = match &cluster {
            Some(cluster) => (
                remote_ports(&directory, cluster, interfaces),
                Others {
                    hosts: cluster.others_in(&directory),
                    rdma: cluster.config.rdma.clone(),
                    sealed: cluster.config.encryption == Encryption::On,
                    deadlines: Some(leases.memory()),
                },
            ),
            None => Default::default(),
        };
        let origin = driver::Origin {
            command,
            fd_store: Arc::clone(&takeover.fd_store),
            kept,
            kernel,
            precision: emulation.precision,
        };
        Driver::start(origin, ports, remote, others)
    };
    let driver = config.driver_command.map(start_driver).transpose()?;
    if let Some(driver) = &driver {
        check_ports(&driver.sync()?, takeover.is_inherited)?;
    }
    let log = Log::open(data.path()).map_err(in_data(data.path()))?;
    let audit = Audit::new(data.path().into(), log);
    audit.note_start(identity.uid, &directory);
    let (mut members, migrations) = Members::new(directory, store, memory, Arc::clone(&leases));
    members.inherit(Arc::clone(&takeover.fd_store), &mut takeover);
    // Before deadlines of nodes end that the directory has in no fenced domain any more.
    leases.hold_stopped(&members.leavers(), RETURN * 2);
    members.directory(|directory| leases.include(directory));
    members
        .inherit_links(emulation.torus(torus), &mut takeover)
        .map_err(during("make the clocks of links"))?;
    let base = Base::inherit(&mut takeover);
    let proxy = cluster
        .as_ref()
        .map(|cluster| ProxySupervisor::new(&mut takeover, &cluster.config, leases.memory()));
    if let Some(proxy) = &proxy {
        members.directory(|directory| proxy.include(directory));
    }
    let control = match &cluster {
        Some(cluster) => Arc::clone(&cluster.control),
        None => Arc::new(Control::new(None)),
    };
    let host = Host {
        proxy: proxy.map(Arc::new),
        control,
        audit,
        state: state.path().into(),
        data: data.path().into(),
        fd_store: takeover.fd_store,
        share_tmp: config.share_tmp,
        lifeline: config.lifeline,
        ack_timeout: Duration::from_millis(config.ack_timeout_ms),
        identity,
        cluster,
        users,
        torus,
        nodes,
        driver,
        interfaces,
        emulation,
        relays: Relays::new(state.path(), !identity.rootless),
        base,
        no_taps,
        limits: groups.limits,
        no_limits,
        gateways,
        members,
        leases,
        ending,
        is_ending: AtomicBool::new(false),
        gate: Gate::default(),
        changes: FairQueue::default(),
    };
    Ok((host, births, migrations))
}

/// Checks the ports. In new nodes every port can be made. In the predecessor's, their roots may
/// have spoiled some of their own, which must not stop the agent.
fn check_ports(errors: &[PortError], is_inherited: bool) -> Result<(), AgentError> {
    match errors.first() {
        Some(error) if !is_inherited => Err(AgentError::DriverFailed(error.message.clone())),
        _ => {
            log_errors(errors);
            Ok(())
        }
    }
}

/// Network namespace in which frames pass without the driver: the predecessor's, or a new one. Without
/// one, all pass through the driver.
fn take_network(takeover: &mut Takeover) -> Option<OwnedFd> {
    let kept = takeover.inherit(Driver::KERNEL_KEY);
    if let Some(((), [network])) = kept.and_then(Entry::parse) {
        return Some(network);
    }
    match namespace::create() {
        Ok(network) => Some(network.into()),
        Err(error) => {
            tracing::warn!("all frames pass through the driver: no network namespace: {error}");
            None
        }
    }
}

/// Source of users for the nodes of a root agent. Existing nodes keep the predecessor's choice.
fn take_users(
    identity: &rootless::Identity,
    takeover: &mut Takeover,
) -> Result<Option<Arc<Users>>, AgentError> {
    if let Some(users) = takeover.inherit(Users::KEY).and_then(Users::inherit) {
        return Ok(Some(Arc::new(users)));
    }
    if identity.rootless || takeover.has(HostedNode::KEYS) {
        return Ok(None);
    }
    let users = Users::open().map_err(AgentError::Users)?;
    if let Some(users) = &users {
        users.keep(&takeover.fd_store);
    }
    Ok(users.map(Arc::new))
}

/// Control groups of nodes, and the reason if they lack default limits. Existing nodes are in
/// theirs already.
fn take_groups(
    state: &StateDir,
    takeover: &Takeover,
    asked: Limits,
) -> Result<(Cgroups, Option<Refusal>), AgentError> {
    let (groups, missing) = if takeover.has(HostedNode::KEYS) {
        Cgroups::inherit(state.path(), asked)?
    } else {
        Cgroups::make(state.path(), asked)?
    };
    let missing = missing.map(|error| error.refusal());
    if let Some(Refusal { message, .. }) = &missing {
        tracing::warn!("{message}");
    }
    Ok((groups, missing))
}

/// Memory of this host, the limit of registered bytes of one node.
fn memory_bytes() -> u64 {
    let total = |text: String| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let text = fs::read_to_string("/proc/meminfo").ok();
    text.and_then(total).unwrap_or(FALLBACK_BYTES)
}

/// Raises this process's limit of descriptors to the hard one; returns the soft limit before.
pub(super) fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(soft)
}
