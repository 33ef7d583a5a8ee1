//! The target proxy: one process of a host that plays the RDMA device for connections with other
//! hosts without one.
//!
//! ```text
//!   process of node F ── socket pair ── target proxy of host A ══ TCP ══ target proxy of host B ── memory and
//!                                       (carries bytes)             (serves, as node F)  listeners of node T
//! ```
//!
//! The two proxies encrypt what travels between them, with keys that the agents have agreed on.
//!
//! The proxy attaches to its own agent in the name of each remote node that it serves, like any
//! process of a node. So the end of a node's access ends the remote process's access with the same
//! guarantees: regions are fenced and migrate, channels end, epochs are acknowledged.
//!
//! A process of a node never gets the connection itself: a process with a socket of the host's
//! network could connect and listen there.

mod accounts;
mod carry;
#[cfg(feature = "verbs")]
mod channels;
mod serve;
pub(crate) mod supervisor;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use toroid_client::member::MemberError;
use toroid_fabric::deadlines::Deadlines;
use toroid_fabric::{NodeId, Partition};
use toroid_protocol::liveness::LivenessSocket;
use toroid_protocol::proxy::{ProxyEvent, ProxyRequest};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use crate::process::become_independent;
use crate::threads;
use accounts::{Accounts, CARRIED, Entry, SERVED};

/// Argument of the role: serves processes of other hosts.
pub(crate) const ROLE: &str = "__target-proxy";

/// Least interval of warnings about connections that cannot be served.
const QUIET: Duration = Duration::from_secs(60);

/// State shared by the threads of a target proxy.
#[derive(Debug, Default)]
struct TargetProxy {
    /// Present control channel to the agent.
    agent: Mutex<Option<Writer>>,
    /// Connections of remote processes.
    served: Accounts,
    /// Connections of this host's processes.
    carried: Accounts,
    members: serve::Members,
    open: Accounts,
    /// Deadlines after which members of fenced domains have stopped.
    deadlines: OnceLock<Deadlines>,
    #[cfg(any(feature = "verbs", test))]
    registered: Accounts,
    #[cfg(any(feature = "verbs", test))]
    channels: Accounts,
    #[cfg(feature = "verbs")]
    shared: channels::Shared,
}

/// Runs the target proxy until its liveness socket, standard input, ends.
pub(crate) fn run_role() -> u8 {
    u8::from(run().is_err())
}

fn run() -> Result<(), WireError> {
    become_independent()?;
    let liveness = io::stdin().as_fd().try_clone_to_owned()?;
    let (sessions, _line) = wire::split(liveness.into())?;
    let mut liveness = LivenessSocket::new(sessions);
    let proxy = Arc::new(TargetProxy::default());
    loop {
        let session = match liveness.next_channel() {
            Err(WireError::Closed) => return Ok(()),
            session => session?,
        };
        let (orders, errands) = wire::split(session)?;
        *proxy.agent.lock() = Some(errands);
        proxy.attend(orders);
        *proxy.agent.lock() = None;
    }
}

impl TargetProxy {
    /// Carries out an agent's orders until its end. Connections outlive it.
    fn attend(self: &Arc<Self>, mut orders: Reader) {
        let mut told = None::<Instant>;
        while let Ok((order, descriptors)) = orders.receive::<ProxyRequest>() {
            let Err(error) = self.begin(order, descriptors) else {
                continue;
            };
            // Connections over a limit must not fill the log.
            if told.is_none_or(|told| told.elapsed() > QUIET) {
                told = Some(Instant::now());
                tracing::warn!("cannot serve a connection with another host: {error}");
            }
        }
    }

    /// Starts the thread of a connection.
    fn begin(self: &Arc<Self>, order: ProxyRequest, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let proxy = Arc::clone(self);
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(no_room);
        match order {
            ProxyRequest::Deadlines => {
                let deadlines = Deadlines::map(&next()?.into(), false)?;
                // The next agent has the same.
                let _ = self.deadlines.set(deadlines);
            }
            ProxyRequest::Serve(service) => {
                let socket = next()?;
                let entry = Entry::add(self, SERVED, NodeId(service.from), 0)?;
                threads::start(move || {
                    let _entry = entry;
                    serve::serve(&proxy, &service, socket);
                })?;
            }
            ProxyRequest::Carry(carriage) => {
                let (remote, local) = (next()?, next()?);
                let entry = Entry::add(self, CARRIED, NodeId(carriage.from), 0)?;
                threads::start(move || {
                    let _entry = entry;
                    let partition = Partition(carriage.partition);
                    let await_turn = || proxy.await_turn(partition);
                    carry::carry(&carriage, &remote.into(), &local.into(), await_turn);
                })?;
            }
        }
        Ok(())
    }

    /// Waits until the members of a domain may go on.
    fn await_turn(&self, partition: Partition) {
        if let Some(deadlines) = self.deadlines.get() {
            deadlines.await_extension(partition);
        }
    }

    /// Opens a connection on which the agent serves this process as node `node`.
    fn dial(&self, node: NodeId) -> Result<UnixStream, MemberError> {
        let (ours, theirs) = UnixStream::pair()?;
        let agent = self.agent.lock();
        let gone = || MemberError::Agent("there is none".into());
        let errand = ProxyEvent::Attach { node: node.0 };
        let sent = agent
            .as_ref()
            .ok_or_else(gone)?
            .send(&errand, &[theirs.as_fd()]);
        sent.map_err(|error| MemberError::Agent(error.to_string()))?;
        Ok(ours)
    }
}

fn no_room() -> io::Error {
    io::Error::other("no room for a descriptor; raise the limit of open files (ulimit -n)")
}
