//! The nodes of a host as the agent sees them: made at the start, made anew when their first
//! process dies, and asked to run commands.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fabric::{NodeId, Place};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::lifeline;
use crate::node::messages::{Report, Start};
use crate::node::{NodeError, Plan};
use crate::wire::{self, Reader, Writer};

/// How long a node may take to end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long an order may wait for a node to read.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

/// A node of this host.
#[derive(Debug)]
pub(super) struct HostedNode {
    pub(super) id: NodeId,
    pub(super) place: Place,
    plan: Plan,
    life: Mutex<Life>,
    ended: Condvar,
}

/// The node's present life; there may have been others before.
#[derive(Debug)]
struct Life {
    pid: u32,
    /// For killing: a number might be another process's by then. None when it is dead.
    handle: Option<OwnedFd>,
    orders: Writer,
    network: Arc<OwnedFd>,
}

/// What the threads of a node's life need.
#[derive(Debug)]
pub(super) struct Birth {
    pub(super) listener: UnixListener,
    pub(super) reports: Reader,
    pub(super) init: Child,
}

impl HostedNode {
    /// Makes a node.
    pub(super) fn make(
        id: NodeId,
        place: Place,
        hosts: PathBuf,
        open_files: u64,
    ) -> Result<(Self, Birth), NodeError> {
        let plan = Plan {
            place,
            hosts,
            open_files,
        };
        let (life, birth) = give_birth(&plan)?;
        let node = HostedNode {
            id,
            place,
            plan,
            life: Mutex::new(life),
            ended: Condvar::new(),
        };
        Ok((node, birth))
    }

    /// Makes a dead node anew.
    pub(super) fn revive(&self) -> Result<Birth, NodeError> {
        let (life, birth) = give_birth(&self.plan)?;
        *self.lock() = life;
        Ok(birth)
    }

    /// The process that holds its namespaces.
    pub(super) fn pid(&self) -> u32 {
        self.lock().pid
    }

    /// Its network namespace.
    pub(super) fn network(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.lock().network)
    }

    /// The file that is `/etc/hosts` in it.
    pub(super) fn hosts(&self) -> &std::path::Path {
        &self.plan.hosts
    }

    /// Starts a command and returns its session for the caller. When the node has died, the session
    /// has ended.
    pub(super) fn start(&self, order: &Start, stdio: &[OwnedFd]) -> io::Result<OwnedFd> {
        let session = lifeline::open_session(&self.lock().orders)?;
        let (_, orders) = wire::split(session.try_clone()?)?;
        orders.give_up_after(WRITE_PATIENCE)?;
        let stdio: Vec<_> = stdio.iter().map(AsFd::as_fd).collect();
        // If it fails the session has ended, which its holder is about to see.
        let _ = orders.send(order, &stdio);
        session.set_write_timeout(None)?;
        Ok(session.into())
    }

    /// Watches the node until its life has ended, and all its processes with it.
    pub(super) fn attend(&self, mut reports: Reader, mut init: Child) {
        // After its birth it has nothing to say.
        while reports.receive::<Report>().is_ok() {}
        // It broke the protocol, or it is ending anyway.
        self.lock().orders.shut_down();
        // Returns when the kernel has ended all of the node's processes.
        let status = init.wait();
        tracing::debug!(place = %self.place, ?status, "a node has ended");
        // Last: an agent that ends does not wait for this thread any longer.
        self.lock().handle = None;
        self.ended.notify_all();
    }

    /// Tells the node to end.
    pub(super) fn tell_to_end(&self) {
        self.lock().orders.shut_down();
    }

    /// Waits for the node's end, and kills it when it takes too long.
    pub(super) fn wait_for_end(&self) {
        let mut life = self.lock();
        for _ in 0..2 {
            let alive = |life: &mut Life| life.handle.is_some();
            let waiting = self.ended.wait_timeout_while(life, LAST_WORDS, alive);
            life = waiting.unwrap_or_else(PoisonError::into_inner).0;
            if let Some(handle) = &life.handle {
                // It fails when the process has just ended.
                let _ = pidfd_send_signal(handle, Signal::KILL);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn give_birth(plan: &Plan) -> Result<(Life, Birth), NodeError> {
    let node = plan.make()?;
    let watch = || {
        node.orders.give_up_after(WRITE_PATIENCE)?;
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
        handle: Some(handle),
        orders: node.orders,
        network: Arc::new(node.network),
    };
    let birth = Birth {
        listener: node.listener,
        reports: node.reports,
        init: node.init,
    };
    Ok((life, birth))
}
