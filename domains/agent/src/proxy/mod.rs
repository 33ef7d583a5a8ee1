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
mod rates;
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
use toroid_protocol::proxy::{Carriage, ProxyEvent, ProxyRequest, Service};
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
    rates: rates::Rates,
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
    let Err(error) = run() else {
        return 0;
    };
    tracing::error!("the process for connections with other hosts ends: {error}");
    1
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
        proxy.attend(orders)?;
        *proxy.agent.lock() = None;
    }
}

impl TargetProxy {
    /// Carries out an agent's orders until its end. Connections outlive it. Fails if the members of
    /// fenced domains would not stop, which ends the process.
    fn attend(self: &Arc<Self>, mut orders: Reader) -> io::Result<()> {
        let mut told = None::<Instant>;
        while let Ok((order, descriptors)) = orders.receive::<ProxyRequest>() {
            let begun = match order {
                ProxyRequest::Deadlines => {
                    self.map_deadlines(descriptors)?;
                    continue;
                }
                // The drop of the descriptor tells the agent.
                ProxyRequest::Rates { partition, rates } => {
                    self.rates.set(Partition(partition), &rates);
                    continue;
                }
                ProxyRequest::RetainRates { partitions } => {
                    let partitions = partitions.into_iter().map(Partition);
                    self.rates.retain(&partitions.collect());
                    continue;
                }
                ProxyRequest::Serve(service) => self.serve(service, descriptors),
                ProxyRequest::Carry(carriage) => self.carry(carriage, descriptors),
            };
            let Err(error) = begun else {
                continue;
            };
            // Connections over a limit must not fill the log.
            if told.is_none_or(|told| told.elapsed() > QUIET) {
                told = Some(Instant::now());
                tracing::warn!("cannot serve a connection with another host: {error}");
            }
        }
        Ok(())
    }

    /// Maps the deadlines. The next agent has the same.
    fn map_deadlines(&self, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        if self.deadlines.get().is_some() {
            return Ok(());
        }
        let [memory] = take(descriptors).map_err(cannot_stop)?;
        let deadlines = Deadlines::map(&memory.into(), false).map_err(cannot_stop)?;
        // This thread alone sets it.
        let _ = self.deadlines.set(deadlines);
        Ok(())
    }

    /// Starts the thread of a remote process's connection.
    fn serve(self: &Arc<Self>, service: Service, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let [socket] = take(descriptors)?;
        let entry = Entry::add(self, SERVED, NodeId(service.from), 0)?;
        let proxy = Arc::clone(self);
        threads::start(move || {
            let _entry = entry;
            serve::serve(&proxy, &service, socket);
        })
        .map(drop)
    }

    /// Starts the thread of a connection of this host's process.
    fn carry(self: &Arc<Self>, carriage: Carriage, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let [remote, local] = take(descriptors)?;
        let entry = Entry::add(self, CARRIED, NodeId(carriage.from), 0)?;
        let proxy = Arc::clone(self);
        threads::start(move || {
            let _entry = entry;
            let partition = Partition(carriage.partition);
            let await_turn = || proxy.await_turn(partition);
            carry::carry(&carriage, &remote.into(), &local.into(), await_turn);
        })
        .map(drop)
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

/// The descriptors of an order.
fn take<const N: usize>(descriptors: Vec<OwnedFd>) -> io::Result<[OwnedFd; N]> {
    let no_room = "no room for a descriptor; raise the limit of open files (ulimit -n)";
    descriptors
        .try_into()
        .map_err(|_| io::Error::other(no_room))
}

fn cannot_stop(error: io::Error) -> io::Error {
    let message = format!("cannot use the deadlines of fenced domains: {error}");
    io::Error::new(error.kind(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy without them once served members of fenced domains for ever.
    #[test]
    fn a_proxy_that_cannot_map_the_deadlines_ends() {
        let ended = |memory: Option<&OwnedFd>| {
            let (agent, ours) = UnixStream::pair().unwrap();
            let (orders, _) = wire::split(ours).unwrap();
            let (_, agent) = wire::split(agent).unwrap();
            let descriptors: Vec<_> = memory.iter().map(|memory| memory.as_fd()).collect();
            agent.send(&ProxyRequest::Deadlines, &descriptors).unwrap();
            agent.shut_down();
            Arc::new(TargetProxy::default()).attend(orders)
        };
        ended(Some(&Deadlines::create().unwrap().into())).unwrap();
        let short = OwnedFd::from(tempfile::tempfile().unwrap());
        for (memory, reason) in [(Some(&short), "end of file"), (None, "ulimit -n")] {
            let error = ended(memory).unwrap_err().to_string();
            assert!(error.starts_with("cannot use the deadlines"), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }
}
