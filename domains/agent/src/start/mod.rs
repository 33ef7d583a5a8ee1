//! The beginning and the end of an agent.

pub(crate) mod again;
pub mod background;
mod build;
pub(crate) mod data_dir;
mod endings;
mod lead;
pub(crate) mod state_dir;

use std::cell::Cell;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::Torus;
use toroid_model::hosts::HostConfig;
use toroid_model::limits::MAX_NODES;
use toroid_model::rights::Actor;
use toroid_netlink::LinkChanges;
use toroid_protocol::agent::{Message, Reply};

use crate::cluster::Cluster;
use crate::cluster::candidacy::{Legacy, StartAgain};
use crate::config::Config;
use crate::core::gateways::watch;
use crate::core::host::{Ending, Host};
use crate::core::ways;
use crate::error::{AgentError, during, in_data, in_state};
use crate::fdstore::Watch;
use crate::fdstore::takeover::{self, Takeover};
use crate::members::{Changed, RETURN};
use crate::nodes::rootless;
use crate::nodes::{Birth, HostedNode};
use crate::proxy::supervisor;
use crate::server::{SocketKind, serve, serve_target_proxy};
use crate::sessions;
use crate::threads;
use again::{Heritage, Origin};
use build::{build, raise_descriptor_limit};
use data_dir::DataDir;
use endings::{EndNote, catch_signals, watch_lifeline};
use state_dir::StateDir;

/// Pauses before a node is made anew grow from the first to the second while it keeps dying.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Life of a node after which it is made anew soon.
const GOOD_LIFE: Duration = Duration::from_secs(10);

/// Time for requests of clients to end before the agent ends or starts again. Later ones are cut
/// off.
const DRAIN: Duration = Duration::from_secs(3);

/// Runs an agent until [`toroid_protocol::agent::Request::Down`], SIGINT, SIGTERM or SIGHUP, or the
/// end of its liveness socket. Calls `ready` once all nodes are up, and ends if that fails, because
/// then the starter does not wait for the agent any more. Meanwhile it calls `is_awaited` with the
/// same meaning. Threads of the agent do not outlive the process, so the caller should exit
/// afterwards.
///
/// An ordinary user's agent enters a user namespace first, so the process must have a single
/// thread. By SIGUSR1 the agent starts again in this process, as [`crate::roles`] do.
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
    let open_files = raise_descriptor_limit().map_err(during("raise the descriptor limit"))?;
    let origin = Origin {
        identity,
        open_files,
    };
    let state = StateDir::take(&config.state)?;
    live_in(config, origin, state, None, is_awaited, ready)
}

/// Runs the next life of an agent.
fn run_again(heritage: &Heritage) -> Result<(), AgentError> {
    let config = heritage.config.clone();
    let descriptors = toroid_fabric::os::inherited::keep_descriptors();
    descriptors.map_err(during("keep descriptors to itself"))?;
    let lock = heritage.lock.try_clone().map_err(in_state(&config.state))?;
    let state = StateDir::inherited(config.state.clone(), lock);
    let announce = || Ok(());
    live_in(
        config,
        heritage.origin,
        state,
        Some(heritage),
        || true,
        announce,
    )
}

/// Life of an agent in a state directory, which it releases at the end.
fn live_in(
    config: Config,
    origin: Origin,
    state: StateDir,
    heritage: Option<&Heritage>,
    is_awaited: impl Fn() -> bool,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), AgentError> {
    let takeover = Takeover::take(state.path())?;
    let (fd_store, is_inherited) = (Arc::clone(&takeover.fd_store), takeover.is_inherited);
    // A second `toroid down` may ask until the very end, and waits like the first.
    let (ending, endings) = mpsc::channel();
    let endings = (ending, &endings);
    let life = (origin, heritage);
    let result = live(config, life, &state, takeover, endings, is_awaited, ready);
    let goes_on = is_inherited || matches!(result, Err(AgentError::NotAgain(_)));
    if result.is_err() && goes_on {
        // The nodes go on without this agent, and perhaps with its next life.
        if heritage.is_none() {
            state.give_back();
        }
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
    (origin, heritage): (Origin, Option<&Heritage>),
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
    let mut next_config = Config {
        fresh: false,
        ..config.clone()
    };
    // It is said for this start.
    next_config
        .hosts
        .iter_mut()
        .for_each(|file| file.lost = None);
    let former = |error: io::Error| during("take over sockets")(error);
    let bound = heritage.and_then(|heritage| heritage.hosts.as_ref());
    let bound = bound.map(TcpListener::try_clone).transpose();
    let bound = bound.map_err(former)?;
    let legacy = heritage.map(|heritage| heritage.candidacy.clone());
    let known = config.hosts.as_ref().map(|_| data.moved()).transpose()?;
    let known = known.unwrap_or_default();
    let open = |hosts| Cluster::open(hosts, data.path(), known, bound, legacy.unwrap_or_default());
    let (cluster, others) = config.hosts.clone().map(open).transpose()?.unzip();
    let kept_others = others.as_ref().map(TcpListener::try_clone).transpose();
    let kept_others = kept_others.map_err(former)?;
    let is_first_life = heritage.is_none();
    let told = ending.clone();
    // This fails only when the agent is ending anyway.
    let again: StartAgain = Arc::new(move || _ = told.send(Ending::Again));
    let lead = match &cluster {
        Some(cluster) => lead::stand(cluster, &data, Arc::clone(&again), is_first_life)?,
        None => None,
    };
    let candidacy = cluster.as_ref().and_then(|its| its.candidacy.clone());
    let note = heritage.map_or_else(EndNote::new, |heritage| heritage.end.try_clone());
    let note = note.map_err(during("note signals"))?;
    let kept_note = note.try_clone().map_err(former)?;
    catch_signals(&ending, note)?;
    if config.lifeline {
        watch_lifeline(&ending)?;
    }
    // First, because it may fail. Clients that connect already wait for the nodes.
    let control = match heritage {
        Some(heritage) => heritage.control.try_clone().map_err(former)?,
        None => state.listen(!origin.identity.rootless)?,
    };
    let kept_control = control.try_clone().map_err(former)?;
    let is_inherited = takeover.is_inherited;
    let watch = takeover.watch();
    let starts_again = Cell::new(false);
    let goes_on = || match endings.try_recv() {
        Ok(Ending::Again) => {
            starts_again.set(true);
            Ok(())
        }
        Err(_) if is_awaited() => Ok(()),
        _ => Err(AgentError::Interrupted),
    };
    // A next life that ended here would leave its nodes behind.
    let goes_on: &dyn Fn() -> _ = match heritage {
        Some(_) => &|| Ok(()),
        None => &goes_on,
    };
    let (host, births, migrations) = build(
        config, origin, state, &data, takeover, cluster, ending, goes_on,
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
    let begun = opened.and_then(|()| match (&host.cluster, &lead) {
        (Some(cluster), Some(lead)) => {
            let has_begun = lead::begin(&host, cluster, lead, is_inherited)?;
            if has_begun {
                sessions::renewals::renew_own(&host, cluster)?;
            }
            Ok(has_begun)
        }
        _ => Ok(true),
    });
    drop((turn, lead));
    let opened = begun.and_then(|has_begun| match others {
        // This life leads nobody, and the next one follows.
        _ if !has_begun => {
            starts_again.set(true);
            Ok(())
        }
        Some(others) => sessions::begin(&host, others),
        None => Ok(()),
    });
    // Other hosts can report on their gateways now. Until then members keep the predecessor's ways.
    let watching = Arc::clone(&host);
    let opened = opened.and_then(|()| spawn(move || ways::watch(&watching)));
    let opened = opened.and_then(|()| match (&host.cluster, &candidacy) {
        (Some(cluster), Some(candidacy)) if !starts_again.get() => candidacy.watch(cluster, again),
        _ => Ok(()),
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
    let mut ending = announced.map(|()| match starts_again.get() {
        true => Some(Ending::Again),
        false => endings.recv().ok(),
    });
    if let Ok(Some(Ending::Again)) = ending {
        tracing::info!("starting again");
        host.gate.close(DRAIN);
        if let Some(cluster) = &host.cluster {
            cluster.part_from_followers();
        }
        let is_end = |ending: &Ending| !matches!(ending, Ending::Again);
        ending = Ok(endings.try_iter().find(is_end));
        if let Ok(None) = ending {
            let lock = state.lock().try_clone().map_err(former)?;
            let next = Heritage {
                config: next_config,
                origin,
                lock,
                control: kept_control,
                hosts: kept_others,
                end: kept_note,
                candidacy: candidacy.map_or_else(|| next_lead(&host), |its| its.legacy()),
                attempts: 0,
            };
            return Err(next.pass_on());
        }
    }
    take_down(&host);
    ending
}

/// State of the candidacy of a host that becomes a candidate, because the directory moves to etcd.
fn next_lead(host: &Host) -> Legacy {
    let cluster = host.cluster.as_ref();
    let lead = cluster.and_then(|its| its.moves.next_lead.lock().as_ref().map(|its| its.1.lease));
    lead.map_or_else(Legacy::default, Legacy::with)
}

/// Checks that this host can carry its nodes.
fn check_size(torus: Torus, hosts: Option<&HostConfig>) -> Result<(), AgentError> {
    let check = |nodes: u32, hosts: String| {
        if nodes > MAX_NODES {
            Err(AgentError::TooManyNodes { nodes, hosts })
        } else {
            Ok(())
        }
    };
    let Some(config) = hosts else {
        return check(torus.nodes(), "one host".into());
    };
    check(config.nodes.len() as u32, format!("host {}", config.host))
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
    host.leases.release_all();
    let waiting = Arc::clone(host);
    spawn(move || {
        thread::sleep(end.saturating_duration_since(Instant::now()));
        if waiting.leases.stops_within(Duration::ZERO) {
            // Nobody comes back from a frozen node.
            while waiting.leases.stops_within(Duration::ZERO) {
                thread::sleep(RETURN / 10);
            }
            thread::sleep(RETURN);
        }
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

/// Gives the lead up, so that the next leader need not wait, and followers look for it.
fn hand_over(host: &Host, cluster: &Cluster) {
    let Some(candidacy) = &cluster.candidacy else {
        return;
    };
    candidacy.stand_no_more();
    if !host.gate.is_closed() {
        // Changes under way would fail without the lead.
        host.gate.close(DRAIN);
    }
    candidacy.resign();
    cluster.part_from_followers();
}

fn take_down(host: &Host) {
    host.is_ending.store(true, Ordering::SeqCst);
    if let Some(cluster) = &host.cluster {
        hand_over(host, cluster);
    }
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

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), AgentError> {
    threads::start(run)
        .map(drop)
        .map_err(during("start a thread"))
}
