//! The beginning and the end of an agent.

pub mod background;
pub(crate) mod data_dir;
pub(crate) mod state_dir;

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use toroid_fabric::{NodeId, Torus};
use toroid_model::hosts::{Encryption, HostConfig};
use toroid_model::info::Limits;
use toroid_model::limits::MAX_NODES;
use toroid_model::refusal::Refusal;
use toroid_model::rights::Actor;
use toroid_netlink::LinkChanges;
use toroid_protocol::agent::{Message, Reply};
use toroid_protocol::driver::PortError;

use crate::cluster::Cluster;
use crate::config::Config;
use crate::control::Control;
use crate::core::audit::Audit;
use crate::core::base::Base;
use crate::core::fair_queue::FairQueue;
use crate::core::gateways::watch;
use crate::core::host::{Ending, Host};
use crate::core::hosts_file;
use crate::core::ports::{log_errors, ports, remote_ports};
use crate::emulation::Emulation;
use crate::error::{AgentError, during, in_data, in_state};
use crate::fdstore::Watch;
use crate::fdstore::takeover::{self, Takeover};
use crate::interfaces::Interfaces;
use crate::members::migration::Migrations;
use crate::members::{Changed, Members, RETURN};
use crate::net::driver::{Driver, Others};
use crate::net::gateways::Gateways;
use crate::nodes::cgroups::Cgroups;
use crate::nodes::node::Plan;
use crate::nodes::rootless;
use crate::nodes::users::Users;
use crate::nodes::{Birth, HostedNode};
use crate::proxy::supervisor::{self, ProxySupervisor};
use crate::server::{SocketKind, serve, serve_target_proxy};
use crate::sessions;
use crate::store::events::Log;
use crate::threads;
use data_dir::DataDir;
use state_dir::StateDir;

/// Pauses before a node is made anew grow from the first to the second while it keeps dying.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Life of a node after which it is made anew soon.
const GOOD_LIFE: Duration = Duration::from_secs(10);

/// Limit of registered bytes of one node if the size of memory is unknown.
const FALLBACK_BYTES: u64 = 4 << 30;

/// Runs an agent until [`toroid_protocol::agent::Request::Down`], SIGINT, SIGTERM or SIGHUP, or the
/// end of its liveness socket. Calls `ready` once all nodes are up, and ends if that fails, because
/// then the starter does not wait for the agent any more. Meanwhile it calls `is_awaited` with the
/// same meaning. Threads of the agent do not outlive the process, so the caller should exit
/// afterwards.
///
/// An ordinary user's agent enters a user namespace first, so the process must have a single
/// thread.
///
/// # Errors
/// [`AgentError`]: the agent did not start, and the state before it is unchanged.
pub fn run(
    config: Config,
    is_awaited: impl Fn() -> bool,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), AgentError> {
    let hosts = config.hosts.as_ref();
    if let Some(torus) = hosts.map(|hosts| hosts.torus).or(config.torus) {
        check_size(torus, hosts)?;
    }
    toroid_fabric::os::inherited::keep_descriptors()
        .map_err(during("keep descriptors to itself"))?;
    // Before the user namespace: in it every owner looks like root.
    state_dir::make(&config.state).map_err(in_state(&config.state))?;
    data_dir::make(&config.data).map_err(in_data(&config.data))?;
    let identity = rootless::enter(takeover::user_namespace(&config.state)?)?;
    let state = StateDir::take(&config.state)?;
    let takeover = Takeover::take(state.path())?;
    let (fd_store, is_inherited) = (Arc::clone(&takeover.fd_store), takeover.is_inherited);
    // A second `toroid down` may ask until the very end, and waits like the first.
    let (ending, endings) = mpsc::channel();
    let endings = (ending, &endings);
    let result = live(
        config, identity, &state, takeover, endings, is_awaited, ready,
    );
    if result.is_err() && is_inherited {
        // The predecessor's nodes go on without this agent.
        state.give_back();
        return result.map(drop);
    }
    fd_store.end();
    state.release();
    if let Some(Ending::Asked(writer)) = result? {
        // The client may have ended.
        let _ = writer.send(&Message::Reply(Reply::Done), &[]);
    }
    Ok(())
}

/// Life of an agent, from its directories to its end.
fn live(
    config: Config,
    identity: rootless::Identity,
    state: &StateDir,
    mut takeover: Takeover,
    (ending, endings): (mpsc::Sender<Ending>, &mpsc::Receiver<Ending>),
    is_awaited: impl Fn() -> bool,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<Option<Ending>, AgentError> {
    let data = DataDir::take(&config.data, state.path())?;
    if takeover.is_inherited && config.fresh {
        return Err(takeover.misfit("the directory that --fresh would move aside"));
    }
    if !takeover.is_inherited {
        // The log of a killed agent may have the reason.
        state.begin_log()?;
    }
    if config.fresh
        && let Some(aside) = data.set_aside()?
    {
        tracing::info!("the directory before is kept as {}", aside.display());
    }
    if let Some(rdma) = config.hosts.as_ref().and_then(|hosts| hosts.rdma.as_ref()) {
        let chosen = toroid_client::rdma::check(rdma)?;
        tracing::info!("between hosts: {chosen}");
    }
    let open = |hosts| Cluster::open(hosts, data.path());
    let (cluster, others) = config.hosts.clone().map(open).transpose()?.unzip();
    catch_signals(&ending)?;
    if config.lifeline {
        watch_lifeline(&ending)?;
    }
    // First, because it may fail. Clients that connect already wait for the nodes.
    let control = state.listen(!identity.rootless)?;
    let is_inherited = takeover.is_inherited;
    let watch = takeover.watch();
    let goes_on = || match endings.try_recv() {
        Err(_) if is_awaited() => Ok(()),
        _ => Err(AgentError::Interrupted),
    };
    let (host, births, migrations) = build(
        config, identity, state, &data, takeover, cluster, ending, &goes_on,
    )?;
    let host = Arc::new(host);
    if host.can_have_gateways().is_ok() {
        watch_uplinks(&host)?;
    }
    host.settle_gateways();
    let unfinished = host.members.take_up();
    if !is_inherited {
        // The driver is new, and emulates no links yet.
        host.measure_ethernet_once();
    }
    host.tell_all_links();
    let carrying = Arc::clone(&host);
    threads::start(move || carrying.members.carry(&migrations))
        .map_err(during("start the thread that moves regions"))?;
    let compacting = Arc::clone(&host);
    spawn(move || compacting.members.compactor.run())?;
    let watched = watch.map_or(Ok(()), |watch| watch_fd_store(&host, watch));
    // No change is made before the predecessor's changes are complete.
    let turn = host.changes.take(Actor::Administrator(host.identity.uid));
    let opened = watched.and_then(|()| open_for_business(&host, births, control));
    let opened = opened.and_then(|()| await_those_who_return(&host, &unfinished));
    drop(turn);
    let opened = opened.and_then(|()| match others {
        Some(others) => sessions::begin(&host, others),
        None => Ok(()),
    });
    if let (Ok(()), Some(cluster)) = (&opened, &host.cluster) {
        cluster.await_directory();
    }
    let announced = opened.and_then(|()| {
        tracing::info!(torus = %host.torus, state = %host.state.display(), "ready");
        ready().map_err(during("say that it is ready"))
    });
    if announced.is_err() && is_inherited {
        return announced.map(|()| None);
    }
    // The host has a sender, so an end arrives.
    let ending = announced.map(|()| endings.recv().ok());
    take_down(&host);
    ending
}

/// Checks that this host can carry its nodes, and all hosts together the torus.
fn check_size(torus: Torus, hosts: Option<&HostConfig>) -> Result<(), AgentError> {
    let check = |nodes: u32, count: u32, hosts: String| {
        if nodes > count * MAX_NODES {
            Err(AgentError::TooManyNodes { nodes, hosts })
        } else {
            Ok(())
        }
    };
    let Some(config) = hosts else {
        return check(torus.nodes(), 1, "one host".into());
    };
    check(
        config.nodes.len() as u32,
        1,
        format!("host {}", config.host),
    )?;
    let count = config.hosts.len() as u32 + 1;
    check(torus.nodes(), count, format!("{count} hosts"))
}

/// Makes nodes and driver, as long as `goes_on` succeeds. On failure everything made ends with this
/// process.
#[allow(clippy::too_many_arguments)]
fn build(
    config: Config,
    identity: rootless::Identity,
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
    let users = take_users(&identity, &mut takeover)?;
    let (groups, no_limits) = take_groups(state, &takeover, config.limits)?;
    // All file systems of a node together leave a quarter for its processes.
    let temporary_bytes = groups.limits.memory.map_or(memory / 2, |limit| limit / 4);
    let open_files = raise_descriptor_limit().map_err(during("raise the descriptor limit"))?;
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
    let start_driver = |command| {
        let kept = takeover.inherit(Driver::KEY);
        let ports = ports(&directory, &nodes, interfaces);
        let (remote, others) = match &cluster {
            Some(cluster) => (
                remote_ports(&directory, cluster, interfaces),
                Others {
                    hosts: cluster.others_in(&directory),
                    rdma: cluster.config.rdma.clone(),
                    sealed: cluster.config.encryption == Encryption::On,
                },
            ),
            None => Default::default(),
        };
        Driver::start(
            command,
            Arc::clone(&takeover.fd_store),
            kept,
            ports,
            remote,
            others,
            emulation.precision,
        )
    };
    let driver = config.driver_command.map(start_driver).transpose()?;
    if let Some(driver) = &driver {
        check_ports(&driver.sync()?, takeover.is_inherited)?;
    }
    let log = Log::open(data.path()).map_err(in_data(data.path()))?;
    let audit = Audit::new(data.path().into(), log);
    audit.note_start(identity.uid, &directory);
    let (mut members, migrations) = Members::new(directory, store, memory);
    members.inherit(Arc::clone(&takeover.fd_store), &mut takeover);
    members
        .inherit_links(emulation.torus(torus), &mut takeover)
        .map_err(during("make the clocks of links"))?;
    let base = Base::inherit(&mut takeover);
    let proxy = cluster
        .as_ref()
        .map(|cluster| ProxySupervisor::new(&mut takeover, &cluster.config));
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
        base,
        no_taps,
        limits: groups.limits,
        no_limits,
        gateways: Gateways::new(state.path()),
        members,
        ending,
        is_ending: AtomicBool::new(false),
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

/// Watches uplinks from now on: changes during the settling of gateways are handled afterwards.
fn watch_uplinks(host: &Arc<Host>) -> Result<(), AgentError> {
    let failed = |error| during("watch the interfaces of the host")(io::Error::other(error));
    let changes = LinkChanges::open().map_err(failed)?;
    let host = Arc::clone(host);
    spawn(move || watch(&host, &changes))
}

/// Watches the fd store: if it dies, the next one gets everything that this agent holds.
fn watch_fd_store(host: &Arc<Host>, watch: Watch) -> Result<(), AgentError> {
    let held = Arc::clone(host);
    let watching = host
        .fd_store
        .watch(watch, host.state.clone(), move || held.keep_all());
    watching.map_err(during("watch the fd store"))
}

/// Starts the threads that serve clients, and those that keep the nodes alive.
fn open_for_business(
    host: &Arc<Host>,
    births: Vec<Birth>,
    control: UnixListener,
) -> Result<(), AgentError> {
    for (n, birth) in births.into_iter().enumerate() {
        let host = Arc::clone(host);
        spawn(move || keep_alive(&host, n, birth))?;
    }
    if let Some(proxy) = &host.proxy {
        let attached = Arc::clone(host);
        let attach = move |node, stream| serve_target_proxy(&attached, node, stream);
        supervisor::begin(proxy, Box::new(attach))
            .map_err(during("start the process for other hosts"))?;
    }
    let host = Arc::clone(host);
    spawn(move || serve(&host, &control, SocketKind::Control))
}

/// Completes the predecessor's changes. A process that has not come back in time is fenced from
/// their domains, and then detached.
fn await_those_who_return(host: &Arc<Host>, unfinished: &[Changed]) -> Result<(), AgentError> {
    let end = Instant::now() + RETURN;
    host.complete(unfinished, RETURN);
    let waiting = Arc::clone(host);
    spawn(move || {
        thread::sleep(end.saturating_duration_since(Instant::now()));
        let forget = |nodes: &_| waiting.invalidate_inherited_registrations(nodes);
        waiting.members.detach_absent(forget);
    })
}

/// Serves a node, and makes it anew when it dies.
fn keep_alive(host: &Arc<Host>, n: usize, mut birth: Birth) {
    let node = &host.nodes[n];
    let mut pause = BACKOFF[0];
    loop {
        let born = Instant::now();
        let listener = Arc::new(birth.listener);
        let (server, socket) = (
            Arc::clone(&listener),
            SocketKind::Node(node.id, node.generation.number()),
        );
        let served = Arc::clone(host);
        let serving = spawn(move || serve(&served, &server, socket));
        node.attend(birth.reports, birth.init);
        // Ends the accepting thread; without one there is nothing to end.
        let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        // Connections may have left the node.
        node.generation.end();
        host.members.expel(node.id);
        if host.is_ending() {
            return;
        }
        if let Err(error) = serving {
            tracing::error!("node {}: {error}", node.place);
        }
        let is_renewal = node.take_renewal();
        if is_renewal {
            tracing::info!("making node {} anew", node.place);
        } else {
            tracing::warn!(
                "the first process of node {} died; making it anew",
                node.place
            );
        }
        if is_renewal || born.elapsed() > GOOD_LIFE {
            pause = BACKOFF[0];
        }
        let mut is_hurried = is_renewal;
        birth = loop {
            if !std::mem::take(&mut is_hurried) {
                thread::sleep(pause);
            }
            pause = BACKOFF[1].min(pause * 2);
            if host.is_ending() {
                return;
            }
            match node.revive() {
                Ok(birth) => break birth,
                Err(error) => tracing::error!("node {}: {error}", node.place),
            }
        };
        if let Some(driver) = &host.driver {
            driver.move_node(node.id.0, &node.network());
        }
        host.reopen_gateways();
        if host.is_ending() {
            node.tell_to_end();
        }
    }
}

fn take_down(host: &Host) {
    host.is_ending.store(true, Ordering::SeqCst);
    // Waits for a change under way. None begins any more, because the agent is ending.
    drop(host.gateways.settle());
    for node in &host.nodes {
        node.tell_to_end();
    }
    if let Some(proxy) = &host.proxy {
        proxy.end();
    }
    if let Some(driver) = &host.driver {
        driver.end();
    }
    HostedNode::wait_for_ends(&host.nodes);
}

fn catch_signals(ending: &mpsc::Sender<Ending>) -> Result<(), AgentError> {
    let failed = during("catch signals");
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let ending = ending.clone();
    spawn(move || {
        if signals.forever().next().is_some() {
            // This fails only when the agent is ending anyway.
            let _ = ending.send(Ending::Told);
        }
    })
}

fn watch_lifeline(ending: &mpsc::Sender<Ending>) -> Result<(), AgentError> {
    let ending = ending.clone();
    spawn(move || {
        // Only its end is of interest.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = ending.send(Ending::Told);
    })
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), AgentError> {
    threads::start(run)
        .map(drop)
        .map_err(during("start a thread"))
}

/// Raises this process's limit of descriptors to the hard one; returns the soft limit before.
fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(soft)
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
