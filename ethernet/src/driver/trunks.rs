//! The driver's books of its connections to those of other hosts.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use domains::driver_protocol::Answer;
use domains::wire::Writer;
use tracing::warn;

use crate::switch::TrunkId;
use crate::trunk::HostId;

/// The trunks that there are, and the session in which the agent is told of them.
#[derive(Default)]
pub(super) struct Trunks(Mutex<TrunkBooks>);

#[derive(Default)]
struct TrunkBooks {
    up: BTreeMap<HostId, (String, u64)>,
    /// How many there were.
    count: u64,
    agent: Option<Writer>,
}

impl Trunks {
    /// Notes those that have ended by themselves, for as long as there is a data path.
    pub(super) fn watch(
        self: &Arc<Self>,
        ended: mpsc::Receiver<(TrunkId, String)>,
    ) -> io::Result<()> {
        let trunks = Arc::clone(self);
        let watch = move || {
            for (id, why) in ended {
                if let Some(host) = trunks.remove(id) {
                    warn!("the connection to the driver of host {host} has ended: {why}");
                }
            }
        };
        thread::Builder::new()
            .name("trunks".into())
            .spawn(watch)
            .map(drop)
    }

    /// Notes one that is about to be used. It may have ended before this is known to have succeeded.
    pub(super) fn add(&self, host: HostId, name: String) -> TrunkId {
        let mut books = self.lock();
        books.count += 1;
        let number = books.count;
        books.up.insert(host, (name, number));
        books.tell();
        TrunkId { host, number }
    }

    /// It is none any longer; returns whose it was, unless there is another by now.
    pub(super) fn remove(&self, id: TrunkId) -> Option<String> {
        let mut books = self.lock();
        books.up.get(&id.host).filter(|up| up.1 == id.number)?;
        let (name, _) = books.up.remove(&id.host)?;
        books.tell();
        Some(name)
    }

    /// Those to hosts that are not among these.
    pub(super) fn others_than(&self, hosts: &[String]) -> Vec<TrunkId> {
        let books = self.lock();
        let others = books
            .up
            .iter()
            .filter(|(_, (name, _))| !hosts.contains(name));
        others
            .map(|(&host, &(_, number))| TrunkId { host, number })
            .collect()
    }

    /// Lets an agent know, now and from now on.
    pub(super) fn tell(&self, agent: &Writer) {
        let mut books = self.lock();
        books.agent = Some(agent.clone());
        books.tell();
    }

    /// Until there is another agent.
    pub(super) fn tell_nobody(&self) {
        self.lock().agent = None;
    }

    fn lock(&self) -> MutexGuard<'_, TrunkBooks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrunkBooks {
    fn tell(&self) {
        if let Some(agent) = &self.agent {
            let up = self.up.values().map(|(name, _)| name.clone()).collect();
            // If it fails the agent has gone, and the next one asks.
            let _ = agent.send(&Answer::Trunks { up }, &[]);
        }
    }
}
