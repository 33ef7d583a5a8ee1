//! Nodes of a host: made at the start or taken over from the predecessor, made anew when their
//! first process dies, and asked to run commands.

pub(crate) mod bind;
pub(crate) mod cgroups;
pub(crate) mod courier;
pub(crate) mod generation;
pub(crate) mod node;
pub(crate) mod rootless;
pub(crate) mod subordinate;
pub(crate) mod terminal;
pub mod trial;
pub(crate) mod users;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use toroid_client::credentials::Ids;
use toroid_fabric::{NodeId, Place};
use toroid_protocol::liveness;
use toroid_protocol::node::{NodeEvent, StartCommand};
use toroid_protocol::wire::{self, Reader, Writer};

use crate::fdstore::{Entry, FdStore, freezer};
use crate::process::{has_ended, outlast};
use bind::Lender;
use courier::{Couriers, FdCourier};
use generation::NodeGeneration;
use node::{NodeError, Plan};
use users::Users;

/// Time for a node to end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Time that an order may wait for a node to read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// A node of this host.
#[derive(Debug)]
pub(crate) struct HostedNode {
    pub(crate) id: NodeId,
    pub(crate) place: Place,
    plan: Plan,
    /// Name of its network namespace, for tools on the host.
    network: PathBuf,
    /// Source of its users, if it has users of its own: in each life others.
    users: Option<Arc<Users>>,
    fd_store: Arc<FdStore>,
    life: Mutex<Life>,
    /// Signals the end or the begin of a life.
    ended: Condvar,
    /// Whether the present end is a renewal.
    is_renewing: AtomicBool,
    couriers: Arc<Couriers>,
    pub(crate) generation: NodeGeneration,
}

/// Record of a node in the fd store. Liveness socket, listener, network and process are its
/// descriptors.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
    users: Option<u32>,
    /// Group by which the fd store freezes all processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    freezer: Option<PathBuf>,
}

/// Present life of a node; others may have preceded it.
#[derive(Debug)]
struct Life {
    pid: u32,
    /// First uid of its own users.
    users: Option<u32>,
    /// For killing: another process may have got the number. `None` when it is dead.
    handle: Option<Arc<OwnedFd>>,
    orders: Writer,
    network: Arc<OwnedFd>,
    listener: Arc<UnixListener>,
}

/// Sockets and child of a new life, for its threads.
#[derive(Debug)]
pub(crate) struct Birth {
    pub(crate) listener: Arc<UnixListener>,
    pub(crate) reports: Reader,
    /// The first process, if this agent made it.
    pub(crate) init: Option<Child>,
}

impl HostedNode {
    /// Takes over a node of the predecessor, if it lives, or makes it.
    pub(crate) fn make(
        id: NodeId,
        plan: Plan,
        network: PathBuf,
        users: Option<Arc<Users>>,
        fd_store: Arc<FdStore>,
        kept: Option<Entry>,
    ) -> Result<(Self, Birth), NodeError> {
        let (life, birth) = match kept.and_then(take_over) {
            Some(taken) => taken,
            None => give_birth(&plan, users.as_deref())?,
        };
        let node = HostedNode {
            id,
            place: plan.place,
            plan,
            network,
            users,
            fd_store,
            life: Mutex::new(life),
            ended: Condvar::new(),
            is_renewing: AtomicBool::new(false),
            couriers: Arc::default(),
            generation: NodeGeneration::default(),
        };
        node.keep();
        node.name_network();
        Ok((node, birth))
    }

    /// Prefix of the keys under which the fd store holds nodes.
    pub(crate) const KEYS: &str = "node/";

    /// Key of a node in the fd store.
    pub(crate) fn key(id: NodeId) -> String {
        format!("{}{}", Self::KEYS, id.0)
    }

    /// Puts the node into the fd store while it lives.
    pub(crate) fn keep(&self) {
        let life = self.life.lock();
        if let Some(handle) = &life.handle {
            let (pid, users) = (life.pid, life.users);
            let freezer = freezer::group_of(&self.plan.groups);
            let record = Record {
                pid,
                users,
                freezer,
            };
            let liveness = life.orders.stream().as_fd();
            let (listener, network) = (life.listener.as_fd(), life.network.as_fd());
            let descriptors = [liveness, listener, network, handle.as_fd()];
            self.fd_store
                .put(&Self::key(self.id), &record, &descriptors);
        }
    }

    /// Makes a dead node anew.
    pub(crate) fn revive(&self) -> Result<Birth, NodeError> {
        let (life, birth) = give_birth(&self.plan, self.users.as_deref())?;
        *self.life.lock() = life;
        self.keep();
        self.name_network();
        self.ended.notify_all();
        Ok(birth)
    }

    /// Points the name of its network namespace to that of the present life.
    fn name_network(&self) {
        let next = self.network.with_extension("next");
        let target = format!("/proc/{}/ns/net", self.pid());
        let named = symlink(target, &next).and_then(|()| fs::rename(&next, &self.network));
        if let Err(error) = named {
            tracing::warn!("{}: {error}", self.network.display());
        }
    }

    /// Process id of its first process.
    pub(crate) fn pid(&self) -> u32 {
        self.life.lock().pid
    }

    /// Its network namespace.
    pub(crate) fn network(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.life.lock().network)
    }

    /// Its hosts file.
    pub(crate) fn hosts(&self) -> &std::path::Path {
        &self.plan.hosts
    }

    /// Starts a command as soon as its caller has sent the descriptors for it. Returns the session
    /// for the caller, and the courier. If the node has died, the session has ended.
    pub(crate) fn start(
        &self,
        order: &StartCommand,
        caller: Ids,
    ) -> io::Result<(OwnedFd, FdCourier)> {
        let (root, session, owner) = {
            let life = self.life.lock();
            let place = OFlags::PATH | OFlags::CLOEXEC;
            let root = open(format!("/proc/{}/root", life.pid), place, Mode::empty());
            let session = liveness::open_channel(&life.orders)?;
            (root.ok(), session, life.users)
        };
        let (theirs, ours) = UnixStream::pair()?;
        let lender = owner.map(|to| Lender { from: caller, to });
        let courier = self
            .couriers
            .send(order, owner, lender, ours, session, root)?;
        Ok((theirs.into(), courier))
    }

    /// Watches the node until all its processes have ended.
    pub(crate) fn attend(&self, mut reports: Reader, init: Option<Child>) {
        // After its birth the node has nothing to report, and other processes write there if the
        // node's root lets them.
        reports.take_no_descriptors();
        while reports.receive::<NodeEvent>().is_ok() {}
        let life = self.life.lock();
        // The node broke the protocol, or is ending anyway.
        life.orders.shut_down();
        let handle = life.handle.clone();
        drop(life);
        if let Some(handle) = handle {
            // Returns when the kernel has ended all of the node's processes.
            outlast(&handle, init);
        }
        tracing::debug!(place = %self.place, "a node has ended");
        // Last, because an ending agent does not wait for this thread any longer.
        let mut life = self.life.lock();
        life.handle = None;
        if let (Some(users), Some(first)) = (&self.users, life.users.take()) {
            users.give_back(first);
        }
        // From now on another process may get its number.
        let _ = fs::remove_file(&self.network);
        self.fd_store.remove(&Self::key(self.id));
        self.ended.notify_all();
    }

    /// Tells the node to end.
    pub(crate) fn tell_to_end(&self) {
        self.life.lock().orders.shut_down();
    }

    /// Begins a renewal: ends all processes of the node, which is then made anew. Returns the
    /// process id of the ending life.
    pub(crate) fn begin_renewal(&self) -> u32 {
        self.is_renewing.store(true, Ordering::SeqCst);
        let life = self.life.lock();
        life.orders.shut_down();
        life.pid
    }

    /// Whether its life ended for a renewal; clears the mark.
    pub(crate) fn take_renewal(&self) -> bool {
        self.is_renewing.swap(false, Ordering::SeqCst)
    }

    /// Waits for the life after `old`, and kills the old one when it takes too long. Returns
    /// whether the old one has ended at least.
    pub(crate) fn await_renewal(&self, old: u32) -> bool {
        let mut life = self.life.lock();
        for _ in 0..2 {
            let same = |life: &mut Life| life.pid == old;
            self.ended.wait_while_for(&mut life, same, LAST_WORDS);
            if life.pid == old
                && let Some(handle) = &life.handle
            {
                // This fails only after the process has ended.
                let _ = pidfd_send_signal(handle, Signal::KILL);
            }
        }
        self.is_renewing.store(false, Ordering::SeqCst);
        life.pid != old || life.handle.is_none()
    }

    /// Waits for the ends of nodes that were told to end, and kills slow ones. A process in a
    /// system call that never returns delays no other node.
    pub(crate) fn wait_for_ends(nodes: &[HostedNode]) {
        for _ in 0..2 {
            let deadline = Instant::now() + LAST_WORDS;
            for node in nodes {
                node.end_by(deadline);
            }
            // Couriers end with their nodes.
            for node in nodes {
                node.couriers.arrive_by(deadline);
            }
        }
    }

    fn end_by(&self, deadline: Instant) {
        let alive = |life: &mut Life| life.handle.is_some();
        let left = deadline.saturating_duration_since(Instant::now());
        let mut life = self.life.lock();
        self.ended.wait_while_for(&mut life, alive, left);
        if let Some(handle) = &life.handle {
            // This fails only after the process has ended.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

fn give_birth(plan: &Plan, users: Option<&Users>) -> Result<(Life, Birth), NodeError> {
    let range = users.map(Users::take).transpose();
    let range = range.map_err(|source| NodeError {
        action: "take users for it".into(),
        source,
    })?;
    let born = give_birth_with(plan, range);
    if let (Err(_), Some(users), Some(first)) = (&born, users, range) {
        users.give_back(first);
    }
    born
}

fn give_birth_with(plan: &Plan, users: Option<u32>) -> Result<(Life, Birth), NodeError> {
    // A former life may have ended there while it was frozen.
    freezer::thaw(&plan.groups);
    let node = plan.make(users)?;
    let watch = || {
        node.orders.give_up_after(WRITE_TIMEOUT)?;
        let pid = Pid::from_raw(node.init.id().cast_signed());
        let pid = pid.ok_or(std::io::ErrorKind::NotFound)?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    };
    let handle = watch().map_err(|source| NodeError {
        action: "watch its first process".into(),
        source,
    })?;
    let life = Life {
        pid: node.init.id(),
        users,
        handle: Some(Arc::new(handle)),
        orders: node.orders,
        network: Arc::new(node.network),
        listener: Arc::new(node.listener),
    };
    let birth = Birth {
        listener: Arc::clone(&life.listener),
        reports: node.reports,
        init: Some(node.init),
    };
    Ok((life, birth))
}

/// Takes over a node of the predecessor, if it lives.
fn take_over(kept: Entry) -> Option<(Life, Birth)> {
    let (Record { pid, users, .. }, [liveness, listener, network, handle]) = kept.parse()?;
    if has_ended(pid, &handle) {
        return None;
    }
    let (reports, orders) = wire::split(liveness.into()).ok()?;
    orders.give_up_after(WRITE_TIMEOUT).ok()?;
    let life = Life {
        pid,
        users,
        handle: Some(Arc::new(handle)),
        orders,
        network: Arc::new(network),
        listener: Arc::new(listener.into()),
    };
    let birth = Birth {
        listener: Arc::clone(&life.listener),
        reports,
        init: None,
    };
    Some((life, birth))
}
