//! Regions that a process has mapped. The agent ends and migrates them.

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

/// Mapped grant.
#[derive(Debug)]
pub(super) enum Mapped {
    Own(Region),
    Remote(RemoteRegion),
}

/// Description of a granted region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) key: RemoteKey,
    pub(super) len: u64,
    pub(super) is_migrating: bool,
}

impl Grant {
    /// Grant in a reply, and its slot on the fence page.
    pub(super) fn of(reply: &Reply) -> Option<(Self, u32)> {
        match *reply {
            Reply::Region {
                key,
                len,
                fence,
                moving,
            } => Some((
                Grant {
                    key,
                    len,
                    is_migrating: moving,
                },
                fence,
            )),
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

/// Mappings by key; a region may have several.
#[derive(Debug, Default)]
pub(super) struct Regions(HashMap<RemoteKey, Vec<Mapping>>);

/// One mapping of a region.
#[derive(Debug)]
pub(super) struct Mapping {
    memory: Weak<Memory>,
    pub(super) is_own: bool,
}

impl Regions {
    pub(super) fn insert(&mut self, key: RemoteKey, mapped: &Mapped) {
        let is_mapped = |mapping: &Mapping| mapping.memory.strong_count() > 0;
        self.0.retain(|_, all| all.iter().any(is_mapped));
        let all = self.0.entry(key).or_default();
        all.retain(is_mapped);
        all.push(Mapping {
            memory: Arc::downgrade(mapped.memory()),
            is_own: matches!(mapped, Mapped::Own(_)),
        });
    }

    /// Mappings of a region.
    pub(super) fn of(&self, key: RemoteKey) -> Vec<Arc<Memory>> {
        let all = self.0.get(&key).into_iter().flatten();
        all.filter_map(|mapping| mapping.memory.upgrade()).collect()
    }

    pub(super) fn forget(&mut self, key: RemoteKey) -> Vec<Arc<Memory>> {
        let all = self.of(key);
        self.0.remove(&key);
        all
    }

    /// Removes and returns the mappings of which an access may wait for a chunk.
    pub(super) fn forget_awaited(&mut self) -> Vec<Arc<Memory>> {
        self.forget_where(|_, mapping| mapping.is_awaited())
    }

    /// Keys of regions of this process of which an access may wait for a chunk.
    pub(super) fn own_awaited(&self) -> Vec<RemoteKey> {
        let is_it = |mapping: &Mapping| mapping.is_own && mapping.is_awaited();
        let its = self.0.iter().filter(|(_, all)| all.iter().any(is_it));
        its.map(|(key, _)| *key).collect()
    }

    /// Mappings that migrate.
    pub(super) fn migrating(&self) -> Vec<(RemoteKey, Arc<Memory>)> {
        let all = self
            .0
            .iter()
            .flat_map(|(key, all)| all.iter().map(|b| (*key, b)));
        let memories = all.filter_map(|(key, mapping)| Some((key, mapping.memory.upgrade()?)));
        memories
            .filter(|(_, memory)| memory.is_migrating())
            .collect()
    }

    /// Removes and returns the mappings of regions of former members of a partition.
    pub(super) fn forget_peers(
        &mut self,
        partition: Partition,
        gone: impl Fn(NodeId) -> bool,
    ) -> Vec<Arc<Memory>> {
        self.forget_where(|key, mapping| {
            key.partition == partition && gone(key.node) && !mapping.is_own
        })
    }

    /// Removes and returns all mappings of a partition.
    pub(super) fn forget_partition(&mut self, partition: Partition) -> Vec<Arc<Memory>> {
        self.forget_where(|key, _| key.partition == partition)
    }

    /// Removes and returns the mappings for which `ends` is true.
    pub(super) fn forget_where(
        &mut self,
        ends: impl Fn(&RemoteKey, &Mapping) -> bool,
    ) -> Vec<Arc<Memory>> {
        let mut ended = Vec::new();
        for (key, all) in &mut self.0 {
            ended.extend(all.extract_if(.., |mapping| ends(key, mapping)));
        }
        self.0.retain(|_, all| !all.is_empty());
        let ended = ended.into_iter();
        ended
            .filter_map(|mapping| mapping.memory.upgrade())
            .collect()
    }
}

impl Mapping {
    /// Whether an access may wait for a chunk. Accesses to a read-only mapping do not wait.
    pub(super) fn is_awaited(&self) -> bool {
        let waits = |memory: Arc<Memory>| memory.is_writable() && memory.is_migrating();
        self.memory.upgrade().is_some_and(waits)
    }
}

/// Ends regions; accesses that wait for a chunk return with an error.
pub(super) fn end(regions: Vec<Arc<Memory>>, how: fn(&Status)) {
    // All statuses before the first detach, so operations on the last region fail at once.
    regions.iter().for_each(|memory| how(memory.status()));
    regions.iter().for_each(|memory| memory.detach());
}

/// Function that requests chunks of a migrating region from the agent.
fn ask(control: &Arc<Control>, key: RemoteKey) -> Box<dyn Fn(u64) + Send + Sync> {
    let control = Arc::downgrade(control);
    Box::new(move |chunk| {
        if let Some(control) = control.upgrade() {
            control.tell(&Request::Fetch { key, chunk });
        }
    })
}

/// Repeats the requests for chunks that the previous agent may not have received or answered.
pub(super) fn ask_again(control: &Arc<Control>, migrating: Vec<(RemoteKey, Arc<Memory>)>) {
    for (key, memory) in migrating {
        memory.request_again(ask(control, key));
    }
}

/// Maps a grant, or releases it if it cannot be mapped.
pub(super) fn map(
    control: &Arc<Control>,
    request: &Request,
    grant: Grant,
    status: Status,
    descriptors: Vec<OwnedFd>,
) -> io::Result<Mapped> {
    let (key, status) = (grant.key, Arc::new(status));
    // First, so that any failure releases the grant.
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
    if grant.is_migrating {
        let (Some(old), Some(table)) = (files.next(), files.next()) else {
            return Err(no_room());
        };
        mapped
            .memory()
            .join_migration(&old, &table, ask(control, key))?;
    }
    Ok(mapped)
}

/// Starts the migration of regions to fresh memory, and revokes those that cannot migrate. Returns
/// whether all could.
pub(super) fn start_migration(
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

/// The error of a grant whose descriptors this process could not take.
pub(super) fn no_room() -> io::Error {
    let message = "no room for what was granted; raise the limit of open files (ulimit -n)";
    io::Error::other(message)
}
