//! Supervision of the target proxy by the agent. See [`crate::proxy`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use toroid_fabric::NodeId;
use toroid_model::directory::{Directory, Domain, by_rate};
use toroid_model::hosts::{Encryption, HostConfig};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::proxy::{MemberRates, ProxyEvent, ProxyRequest};
use toroid_protocol::wire::{Reader, WireError, Writer};

use crate::fdstore::FdStore;
use crate::fdstore::child::SupervisedChild;
use crate::fdstore::takeover::Takeover;

use crate::process::{ends_within, has_ended, outlast, outlast_killed};
use crate::threads;

/// Pauses before restarts grow from the first to the second while the proxy keeps dying.
const BACKOFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// Life after which the next restart is soon.
const GOOD_LIFE: Duration = Duration::from_secs(10);

/// Time that an order may wait to be read: others wait behind it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for rates to come into effect, which takes the proxy microseconds.
const RATES_TIMEOUT: Duration = Duration::from_secs(1);

/// Milliseconds that the proxy may take to end.
const LAST_WORDS_MS: u16 = 2000;

/// Interval of log entries about a killed proxy that has not ended.
const COMPLAINT: Duration = Duration::from_secs(5);

/// The target proxy of this host.
#[derive(Debug)]
pub(crate) struct ProxySupervisor {
    fd_store: Arc<FdStore>,
    kept: Mutex<Option<SupervisedChild>>,
    /// Whether new proxies have an RDMA device.
    has_rdma: bool,
    encryption: Encryption,
    /// Memory of the deadlines of fenced domains.
    deadlines: Arc<File>,
    /// Rates of members. Locked before `state`.
    rates: Mutex<Rates>,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    process: Option<(SupervisedChild, Writer)>,
    /// Whether the predecessor started it.
    is_inherited: bool,
    /// Whether the proxy may have registered memory with an RDMA device.
    may_have_registrations: bool,
    ending: bool,
}

/// Rates of members, by the numbers of domains.
#[derive(Debug, Default)]
struct Rates {
    wanted: BTreeMap<u32, MemberRates>,
    /// Domains whose rates a running proxy has not acknowledged.
    unsettled: BTreeSet<u32>,
}

impl Rates {
    /// Sets the rates of a domain; returns whether the proxy does not have them.
    fn set(&mut self, partition: u32, rates: MemberRates) -> bool {
        let before = if rates.is_empty() {
            self.wanted.remove(&partition)
        } else {
            self.wanted.insert(partition, rates.clone())
        };
        if before.unwrap_or_default() != rates {
            self.unsettled.insert(partition);
        }
        self.unsettled.contains(&partition)
    }

    /// Orders that bring all rates into effect at a proxy with unknown ones.
    fn orders(&self) -> Vec<ProxyRequest> {
        let retain = ProxyRequest::RetainRates {
            partitions: self.wanted.keys().copied().collect(),
        };
        let set = self.wanted.keys().map(|partition| self.order(*partition));
        [retain].into_iter().chain(set).collect()
    }

    /// The order that brings the rates of a domain into effect.
    fn order(&self, partition: u32) -> ProxyRequest {
        let rates = self.wanted.get(&partition).cloned().unwrap_or_default();
        ProxyRequest::Rates { partition, rates }
    }
}

/// Handler of connections in the name of a remote node.
pub(crate) type Attach = Box<dyn Fn(NodeId, UnixStream) -> io::Result<()> + Send>;

/// A running proxy.
struct Instance {
    handle: Arc<OwnedFd>,
    errands: Reader,
    /// The child, if this agent started it.
    child: Option<Child>,
}

impl ProxySupervisor {
    /// Key of the proxy in the fd store.
    pub(crate) const KEY: &str = "adapter";

    /// Key in the fd store of the mark for registered memory. The next agent's configuration may
    /// not name the device any more.
    const RDMA: &str = "rdma";

    /// Makes a supervisor without a proxy. The predecessor's is taken over later, or ended if it
    /// may have clear connections that the configuration forbids.
    pub(crate) fn new(takeover: &mut Takeover, config: &HostConfig, deadlines: Arc<File>) -> Self {
        let may_have_registrations = takeover.inherit(Self::RDMA).is_some();
        let kept = takeover.inherit(Self::KEY);
        let mut kept = kept.and_then(SupervisedChild::take_over);
        // The predecessor may have had encryption off, or be of a release without.
        if config.encryption == Encryption::On {
            kept.take_if(|process| !process.is_sealed)
                .iter()
                .for_each(end_clear);
        }
        ProxySupervisor {
            fd_store: Arc::clone(&takeover.fd_store),
            kept: Mutex::new(kept),
            has_rdma: config.rdma.is_some(),
            encryption: config.encryption,
            deadlines,
            rates: Mutex::default(),
            state: Mutex::new(State {
                may_have_registrations,
                ..State::default()
            }),
            ended: Condvar::new(),
        }
    }

    /// Puts the proxy into the fd store while it runs.
    pub(crate) fn keep(&self) {
        let state = self.state.lock();
        if let Some((process, _)) = &state.process {
            self.keep_mark(state.may_have_registrations);
            process.keep(&self.fd_store, Self::KEY);
        }
    }

    /// Process id.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.state
            .lock()
            .process
            .as_ref()
            .map(|(process, _)| process.pid)
    }

    /// Whether the proxy may have registered memory with an RDMA device.
    pub(crate) fn may_have_registrations(&self) -> bool {
        self.state.lock().may_have_registrations
    }

    fn keep_mark(&self, may_have_registrations: bool) {
        if may_have_registrations {
            self.fd_store.put(Self::RDMA, &(), &[])
        } else {
            self.fd_store.remove(Self::RDMA)
        }
    }

    /// Whether the present proxy is the predecessor's.
    pub(crate) fn is_inherited(&self) -> bool {
        let state = self.state.lock();
        state.is_inherited && state.process.is_some()
    }

    /// Sends an order.
    ///
    /// # Errors
    /// A refusal when no proxy runs at this moment.
    pub(crate) fn order(
        &self,
        order: &ProxyRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Refusal> {
        let orders = self
            .state
            .lock()
            .process
            .as_ref()
            .map(|(_, orders)| orders.clone());
        let sent = match orders {
            Some(orders) => orders.send(order, descriptors),
            None => Err(WireError::Closed),
        };
        sent.map_err(|error| {
            let message = format!("the process for connections with other hosts is away: {error}");
            Refusal::new(RefusalKind::Failed, message, "try again")
        })
    }

    /// Takes over the rates of a directory, for a proxy that starts later.
    pub(crate) fn include(&self, directory: &Directory) {
        let rates = directory.domains();
        let rates = rates.map(|domain| (domain.id.into(), rates_of(domain)));
        let rates = rates.filter(|(_, rates)| !rates.is_empty());
        self.rates.lock().wanted = rates.collect();
    }

    /// Brings the rates of the members of these domains into effect, unless they are. A proxy that is
    /// away gets them when it starts.
    ///
    /// # Errors
    /// A refusal when the proxy does not answer. The next call tries again.
    pub(crate) fn set_rates<'d>(
        &self,
        domains: impl IntoIterator<Item = &'d Domain>,
    ) -> Result<(), Refusal> {
        let mut all = self.rates.lock();
        let mut changed = domains.into_iter().collect::<Vec<_>>();
        changed.retain(|domain| all.set(domain.id.into(), rates_of(domain)));
        if changed.is_empty() || self.pid().is_none() {
            return Ok(());
        }
        let names: Vec<&str> = changed.iter().map(|domain| &*domain.name).collect();
        let away = |error: io::Error| {
            let message = format!(
                "the process for connections with other hosts has not taken the rates of domain \
                 {}: {error}",
                names.join(", ")
            );
            Refusal::new(RefusalKind::Failed, message, "try again")
        };
        let (mut ours, theirs) = UnixStream::pair().map_err(away)?;
        for domain in &changed {
            self.order(&all.order(domain.id.into()), &[theirs.as_fd()])?;
        }
        drop(theirs);
        ours.set_read_timeout(Some(RATES_TIMEOUT)).map_err(away)?;
        // The end, once the proxy has executed the last order.
        ours.read(&mut [0]).map_err(away)?;
        for domain in &changed {
            all.unsettled.remove(&domain.id.into());
        }
        Ok(())
    }

    /// Ends the proxy for good. Kills it if it does not end soon.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ending = true;
        self.ended.notify_all();
        if let Some((process, orders)) = &state.process {
            process.let_go();
            orders.shut_down();
            if !ends_within(&process.handle, LAST_WORDS_MS) {
                process.kill();
            }
        }
    }

    /// Kills the proxy, so that another replaces it, and returns after its end. Until then an RDMA
    /// device may use registered memory, so this waits however long the kernel takes.
    pub(crate) fn kill(&self) {
        let handle = self.state.lock().process.as_ref().map(|(process, _)| {
            process.kill();
            Arc::clone(&process.handle)
        });
        if let Some(handle) = handle {
            await_end(&handle);
        }
    }

    fn start(&self) -> io::Result<Instance> {
        let kept = self.kept.lock().take();
        let kept = kept.filter(|process| !has_ended(process.pid, &process.handle));
        let (mut process, child) = match kept {
            Some(process) => (process, None),
            None => {
                let mut command = Command::new("/proc/self/exe");
                command.arg0("toroid-proxy").arg(super::ROLE);
                let (process, child) = SupervisedChild::start(command)?;
                (process, Some(child))
            }
        };
        // One that this agent gives clear connections is not sealed any more.
        process.is_sealed = self.encryption == Encryption::On;
        let (errands, orders) = process.open_channel(WRITE_TIMEOUT)?;
        let deadlines = [self.deadlines.as_fd()];
        let sent = orders.send(&ProxyRequest::Deadlines, &deadlines);
        sent.map_err(io::Error::other)?;
        // A change waits until the process is known.
        let mut rates = self.rates.lock();
        for order in rates.orders() {
            orders.send(&order, &[]).map_err(io::Error::other)?;
        }
        // Before any later order.
        rates.unsettled.clear();
        let handle = Arc::clone(&process.handle);
        let mut state = self.state.lock();
        state.is_inherited = child.is_none();
        // A new proxy has none of the predecessor's registrations.
        state.may_have_registrations =
            self.has_rdma || state.is_inherited && state.may_have_registrations;
        // First, because a later agent may take over the process at any time.
        self.keep_mark(state.may_have_registrations);
        process.keep(&self.fd_store, Self::KEY);
        state.process = Some((process, orders));
        drop(state);
        drop(rates);
        Ok(Instance {
            handle,
            errands,
            child,
        })
    }

    /// Serves a proxy until its end.
    fn attend(&self, attach: &Attach, instance: Instance) {
        let Instance {
            handle,
            mut errands,
            child,
        } = instance;
        while let Ok((ProxyEvent::Attach { node }, descriptors)) = errands.receive() {
            let Some(stream) = descriptors.into_iter().next() else {
                continue;
            };
            // On failure the proxy sees the end of the connection.
            if let Err(error) = attach(NodeId(node), stream.into()) {
                tracing::warn!("no thread for a process of another host: {error}");
            }
        }
        let state = self.state.lock();
        if let (Some((process, _)), false) = (&state.process, state.ending) {
            process.kill();
        }
        drop(state);
        outlast(&handle, child);
        self.fd_store.remove(Self::KEY);
        self.state.lock().process = None;
    }

    /// Waits before a restart; returns whether there will be none.
    fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        self.ended
            .wait_while_for(&mut state, |state| !state.ending, time);
        state.ending
    }
}

/// Rates of the members of a domain.
fn rates_of(domain: &Domain) -> MemberRates {
    let members = domain.members.iter();
    by_rate(members.map(|(node, spec)| (node.0, spec.rate)))
}

/// Ends a predecessor's proxy whose connections may be clear.
fn end_clear(process: &SupervisedChild) {
    tracing::warn!("connections with other hosts are made anew, because encryption is on now");
    process.kill();
    await_end(&process.handle);
}

/// Waits for the end of a killed proxy.
fn await_end(handle: &OwnedFd) {
    let begun = Instant::now();
    let complain = || {
        let seconds = begun.elapsed().as_secs();
        tracing::error!(
            "the process for other hosts was killed and has not ended for {seconds} s; what \
             was shared with them waits for that"
        );
    };
    outlast_killed(handle, COMPLAINT, complain);
}

/// Starts the target proxy of a host among several, and supervises it. `attach` gets its
/// connections in the name of remote nodes.
pub(crate) fn begin(proxy: &Arc<ProxySupervisor>, attach: Attach) -> io::Result<()> {
    let first = proxy.start()?;
    let proxy = Arc::clone(proxy);
    let supervise = move || supervise(&proxy, &attach, first);
    threads::start_named("target-proxy", supervise).map(drop)
}

fn supervise(proxy: &ProxySupervisor, attach: &Attach, first: Instance) {
    let mut instance = Ok(first);
    let mut pause = BACKOFF[0];
    loop {
        let began = Instant::now();
        match instance {
            Ok(instance) => proxy.attend(attach, instance),
            Err(error) => tracing::error!("cannot start the process for other hosts: {error}"),
        }
        if began.elapsed() > GOOD_LIFE {
            pause = BACKOFF[0];
        }
        if proxy.pause(pause) {
            return;
        }
        tracing::warn!("the process for connections with other hosts ended; starting it again");
        pause = BACKOFF[1].min(pause * 2);
        instance = proxy.start();
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::link::Rate;

    use super::*;

    /// A repetition once succeeded without a word to the proxy.
    #[test]
    fn rates_without_an_acknowledgement_are_sent_again() {
        let mut rates = Rates::default();
        assert!(!rates.set(7, MemberRates::new()));
        let slow: MemberRates = [(Rate(8_000), vec![3])].into();
        assert!(rates.set(7, slow.clone()));
        assert!(rates.set(7, slow.clone()));
        rates.unsettled.remove(&7);
        assert!(!rates.set(7, slow));
        assert!(rates.set(7, MemberRates::new()));
        assert!(rates.set(7, MemberRates::new()));
        let none = MemberRates::new();
        let order = ProxyRequest::Rates {
            partition: 7,
            rates: none,
        };
        assert_eq!(rates.order(7), order);
    }
}
