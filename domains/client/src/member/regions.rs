//! The regions that a process has mapped: they end, and they move, when the agent says so.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use toroid_fabric::mem::{Memory, Status};
use toroid_fabric::shm::RemoteRegion;
use toroid_fabric::{NodeId, Partition, Region, RemoteKey};
use toroid_protocol::agent::{Reply, Request};

use super::control::{Control, Release};

/// What the agent granted, mapped.
#[derive(Debug)]
pub(super) enum Mapped {
    Own(Region),
    Remote(RemoteRegion),
}

/// What the agent says of a region that it grants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) key: RemoteKey,
    pub(super) len: u64,
    pub(super) moving: bool,
}

impl Grant {
    /// What a reply grants, and its word on the fence.
    pub(super) fn of(reply: &Reply) -> Option<(Self, u32)> {
        match *reply {
            Reply::Region {
                key,
                len,
                fence,
                moving,
            } => Some((Grant { key, len, moving }, fence)),
            _ => None,
        }
    }
}

impl Mapped {
    fn memory(&self) -> &Arc<Memory> {
        match self {
            Mapped::Own(region) => region.memory(),
            Mapped::Remote(region) => region.memory(),
        }
    }
}

/// All that is mapped, by key; one region may be mapped several times.
#[derive(Debug, Default)]
pub(super) struct Regions(HashMap<RemoteKey, Vec<Booked>>);

/// One mapping of a region.
#[derive(Debug)]
pub(super) struct Booked {
    memory: Weak<Memory>,
    pub(super) is_own: bool,
}

impl Regions {
    pub(super) fn book(&mut self, key: RemoteKey, mapped: &Mapped) {
        let is_mapped = |booked: &Booked| booked.memory.strong_count() > 0;
        self.0.retain(|_, all| all.iter().any(is_mapped));
        let all = self.0.entry(key).or_default();
        all.retain(is_mapped);
        all.push(Booked {
            memory: Arc::downgrade(mapped.memory()),
            is_own: matches!(mapped, Mapped::Own(_)),
        });
    }

    /// All that is mapped of a region.
    pub(super) fn of(&self, key: RemoteKey) -> Vec<Arc<Memory>> {
        let all = self.0.get(&key).into_iter().flatten();
        all.filter_map(|booked| booked.memory.upgrade()).collect()
    }

    pub(super) fn forget(&mut self, key: RemoteKey) -> Vec<Arc<Memory>> {
        let all = self.of(key);
        self.0.remove(&key);
        all
    }

    /// Forgets that of which an access may wait for a chunk, and returns it.
    pub(super) fn forget_awaited(&mut self) -> Vec<Arc<Memory>> {
        self.forget_where(|_, booked| booked.is_awaited())
    }

    /// The keys of regions of this process of which an access may wait for a chunk.
    pub(super) fn own_awaited(&self) -> Vec<RemoteKey> {
        let is_it = |booked: &Booked| booked.is_own && booked.is_awaited();
        let its = self.0.iter().filter(|(_, all)| all.iter().any(is_it));
        its.map(|(key, _)| *key).collect()
    }

    /// What moves.
    pub(super) fn moving(&self) -> Vec<(RemoteKey, Arc<Memory>)> {
        let all = self
            .0
            .iter()
            .flat_map(|(key, all)| all.iter().map(|b| (*key, b)));
        let memories = all.filter_map(|(key, booked)| Some((key, booked.memory.upgrade()?)));
        memories
            .filter(|(_, memory)| memory.is_migrating())
            .collect()
    }

    /// Forgets what peers own that have gone from a partition, and returns it.
    pub(super) fn forget_peers(
        &mut self,
        partition: Partition,
        gone: impl Fn(NodeId) -> bool,
    ) -> Vec<Arc<Memory>> {
        self.forget_where(|key, booked| {
            key.partition == partition && gone(key.node) && !booked.is_own
        })
    }

    /// Forgets all of a partition, and returns it.
    pub(super) fn forget_partition(&mut self, partition: Partition) -> Vec<Arc<Memory>> {
        self.forget_where(|key, _| key.partition == partition)
    }

    /// Forgets what ends, and returns it.
    pub(super) fn forget_where(
        &mut self,
        ends: impl Fn(&RemoteKey, &Booked) -> bool,
    ) -> Vec<Arc<Memory>> {
        let mut ended = Vec::new();
        for (key, all) in &mut self.0 {
            ended.extend(all.extract_if(.., |booked| ends(key, booked)));
        }
        self.0.retain(|_, all| !all.is_empty());
        let ended = ended.into_iter();
        ended.filter_map(|booked| booked.memory.upgrade()).collect()
    }
}

impl Booked {
    /// Whether an access may wait for a chunk. One to a mapping that is only read waits for none.
    pub(super) fn is_awaited(&self) -> bool {
        let waits = |memory: Arc<Memory>| memory.is_writable() && memory.is_migrating();
        self.memory.upgrade().is_some_and(waits)
    }
}

/// Ends regions; accesses that wait for a chunk go on, with an error.
pub(super) fn end(regions: Vec<Arc<Memory>>, how: fn(&Status)) {
    // Of all before the first is let go, so that what is in flight on the last one fails at once.
    regions.iter().for_each(|memory| how(memory.status()));
    regions.iter().for_each(|memory| memory.detach());
}

/// Asks the agent for chunks of a region that moves.
fn ask(control: &Arc<Control>, key: RemoteKey) -> Box<dyn Fn(u64) + Send + Sync> {
    let control = Arc::downgrade(control);
    Box::new(move |chunk| {
        if let Some(control) = control.upgrade() {
            control.tell(&Request::Fetch { key, chunk });
        }
    })
}

/// Asks the next agent for what its predecessor may not have heard of, or not answered.
pub(super) fn ask_again(control: &Arc<Control>, moving: Vec<(RemoteKey, Arc<Memory>)>) {
    for (key, memory) in moving {
        memory.request_again(ask(control, key));
    }
}

/// Maps what was granted. What cannot be mapped is given back.
pub(super) fn map(
    control: &Arc<Control>,
    request: &Request,
    grant: Grant,
    status: Status,
    descriptors: Vec<OwnedFd>,
) -> io::Result<Mapped> {
    let (key, status) = (grant.key, Arc::new(status));
    // First, so that it is given back if anything fails.
    let keep = match request {
        Request::Alloc { .. } => Release::region(control, key),
        _ => Arc::clone(control) as _,
    };
    let mut files = descriptors.into_iter().map(File::from);
    let memory = files.next().ok_or_else(no_room)?;
    let len = usize::try_from(grant.len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let keep = Some(keep);
    let mapped = match *request {
        Request::Open { access, .. } => {
            Mapped::Remote(RemoteRegion::map(&memory, len, key, access, status, keep)?)
        }
        _ => Mapped::Own(Region::exported(&memory, len, key, status, keep)?),
    };
    if grant.moving {
        let (Some(old), Some(table)) = (files.next(), files.next()) else {
            return Err(no_room());
        };
        mapped
            .memory()
            .join_migration(&old, &table, ask(control, key))?;
    }
    Ok(mapped)
}

/// Changes to fresh memory; what cannot is revoked. Returns whether all could.
pub(super) fn start_moving(
    control: &Arc<Control>,
    key: RemoteKey,
    regions: Vec<Arc<Memory>>,
    descriptors: Vec<OwnedFd>,
) -> bool {
    let files: Vec<File> = descriptors.into_iter().map(File::from).collect();
    let mut all_could = true;
    for memory in regions {
        let moved = match &files[..] {
            [fresh, table, to_read @ ..] => {
                let to_read = to_read.first().filter(|_| !memory.is_writable());
                memory.start_migration(to_read.unwrap_or(fresh), table, ask(control, key))
            }
            _ => {
                memory.status().revoke();
                memory.detach();
                Err(no_room())
            }
        };
        match moved {
            Ok(parked) => parked.drop_in_background(),
            Err(error) => {
                tracing::warn!("a region ends, because this process cannot move it: {error}");
                all_could = false;
            }
        }
    }
    all_could
}

/// The agent granted something, and this process has no room for it.
pub(super) fn no_room() -> io::Error {
    let message = "no room for what was granted; raise the limit of open files (ulimit -n)";
    io::Error::other(message)
}
