//! A queue pair to a node of another host that uses the RDMA devices of both hosts where they work, and
//! fails over to the connection otherwise.
//!
//! ```text
//!   this process ──────────── connection ─────────── server of `tcp` ── region
//!        │                                                   │ registers it
//!        └── our device ═══════════ fabric ═══════════ its device
//! ```
//!
//! The connection exists all the time. The two sides exchange the parameters of their devices on it,
//! and it executes the operations that devices cannot: atomics, because the atomics of a device are
//! not atomic with those of a processor; operations on regions that are not registered, as during a
//! migration; and, after a device has failed, that operation and all later ones.
//!
//! Operations execute in posted order: an operation takes one path when those on the other path have
//! ended. A failed operation is repeated from its start, with all after it. Devices execute reads and
//! writes only. A write in flight must not arrive after one that was posted later, so the peer's host
//! first disconnects its device from our queue pair.
//!
//! Repetition is harmless while no other process writes the same bytes. When the device refused the
//! region, no operation from the failed one on has been executed. When acknowledgements were lost until
//! our device gave up, some may have been executed and seen. Then writes execute twice, later ones
//! before the earlier are repeated, and bytes that a peer wrote there in answer are overwritten.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::LONGEST;
use super::paths::Paths;
use super::retry::{BACKOFF, LONGEST_PAUSE, Retry};
use crate::core::endpoint::{AsRegion, Completion, Endpoint, Operation, Pending, PostError, Read};
use crate::core::region::Region;
use crate::error::OpError;
use crate::key::{Access, Partition};
use crate::model::Nanos;
use crate::os::thread::monotonic;
use crate::tcp;
use crate::tcp::region::Identity;
use crate::topology::NodeId;
use crate::verbs::{self, Counters, ProtectionDomain};

/// The longest sleep on a device, which is not woken when access ends.
const NAP: Duration = Duration::from_millis(20);

/// Known regions, above which those without a handle are dropped.
const MANY: usize = 1024;

/// A queue pair with two paths.
///
/// Calls that otherwise never wait may wait here: a flush connects the devices, and a flush or a poll
/// registers a region or a buffer at its first operation. Each takes a round trip and a system call.
#[derive(Debug)]
pub struct QueuePair<R = tcp::RemoteRegion> {
    tcp: tcp::QueuePair<R>,
    domain: Arc<ProtectionDomain>,
    device: DevicePath,
    /// Regions that the peer's device may reach, by the address of their identity.
    regions: HashMap<usize, Known>,
    /// Local buffers whose registration failed, by the address of their memory: an attempt takes long.
    /// A new buffer at the same address waits for the retry, too.
    unregistered: HashMap<usize, Retry>,
    depth: usize,
    /// Operations that no path has, oldest first.
    waiting: VecDeque<(u64, Operation<R>)>,
    /// The number of them that are flushed.
    flushed: usize,
    /// Number of operations on the connection.
    on_connection: usize,
    /// Operations on the device, oldest first.
    on_device: VecDeque<(u64, Operation<R>)>,
    completed: VecDeque<Completion>,
    /// The pause after the next failure of the device.
    pause: Duration,
    paths: Paths,
}

/// The path by the devices.
#[derive(Debug)]
enum DevicePath {
    Up(Box<verbs::QueuePair>),
    Down(Retry),
    /// One of the two sides has no device.
    Absent,
}

/// The answer of the peer's host about a region.
#[derive(Debug)]
struct Known {
    /// The handle of the region on the connection. A connection with many regions reuses handles, and
    /// the peer's host then ends the registration.
    handle: Option<u32>,
    /// Keeps the address from being reused.
    identity: Identity,
    answer: Result<verbs::RemoteRegion, Retry>,
}

fn find<'a>(
    regions: &'a HashMap<usize, Known>,
    remote: &tcp::RemoteRegion,
) -> Option<&'a verbs::RemoteRegion> {
    regions.get(&remote.address())?.answer.as_ref().ok()
}

impl<R: AsRegion<tcp::RemoteRegion>> QueuePair<R> {
    /// A queue pair over `tcp`, on which no operation has been posted. Local buffers are registered in
    /// `domain`.
    pub fn new(tcp: tcp::QueuePair<R>, domain: Arc<ProtectionDomain>) -> Self {
        let (depth, _) = tcp.room();
        QueuePair {
            tcp,
            domain,
            device: DevicePath::Down(Retry::at_once()),
            regions: HashMap::new(),
            unregistered: HashMap::new(),
            depth,
            waiting: VecDeque::with_capacity(depth),
            flushed: 0,
            on_connection: 0,
            on_device: VecDeque::with_capacity(depth),
            completed: VecDeque::with_capacity(depth),
            pause: BACKOFF[0],
            paths: Paths::default(),
        }
    }

    /// Operations that the queue holds at most, and now.
    pub(crate) fn room(&self) -> (usize, usize) {
        let under_way = self.on_connection + self.on_device.len() + self.completed.len();
        (self.depth, self.waiting.len() + under_way)
    }

    /// Counts of operations by path.
    pub fn paths(&self) -> Paths {
        self.paths
    }

    /// Counters of the present queue pair of the device.
    pub fn counters(&self) -> Option<Counters> {
        match &self.device {
            DevicePath::Up(pair) => Some(pair.counters()),
            _ => None,
        }
    }

    /// Hands flushed operations over, until one needs the other path than those in flight.
    fn hand_over(&mut self) {
        while self.flushed > 0 {
            let known = self.region_for_device();
            let other_is_busy = match known {
                Some(_) => self.on_connection > 0,
                None => !self.on_device.is_empty(),
            };
            if other_is_busy {
                break;
            }
            let Some((id, operation)) = self.waiting.pop_front() else {
                break;
            };
            self.flushed -= 1;
            // Both paths have room for `depth` operations.
            let _ = match (&mut self.device, operation, known) {
                (DevicePath::Up(pair), operation, Some(known)) => {
                    self.paths.device += 1;
                    self.on_device.push_back((id, operation.clone()));
                    operation
                        .on(|_| Ok(known))
                        .map(|known| pair.post(id, known))
                        .ok()
                }
                (_, operation, _) => {
                    self.paths.connection += 1;
                    self.on_connection += 1;
                    Some(self.tcp.post(id, operation))
                }
            };
        }
        if let (DevicePath::Up(pair), false) = (&mut self.device, self.on_device.is_empty()) {
            pair.flush();
        }
        self.tcp.flush();
    }

    /// The region of the next operation, if the device can execute that. May take a round trip.
    fn region_for_device(&mut self) -> Option<verbs::RemoteRegion> {
        if !matches!(self.device, DevicePath::Up(_)) {
            return None;
        }
        let (_, operation) = self.waiting.front()?;
        let (needed, remote, offset, local) = match operation {
            Operation::Read {
                remote,
                offset,
                into,
            } => (Access::REMOTE_READ, remote, *offset, into.clone()),
            Operation::Write {
                remote,
                offset,
                from,
            } => (Access::REMOTE_WRITE, remote, *offset, from.clone()),
            _ => return None,
        };
        // The other path reports errors of the local side.
        local.check().ok()?;
        let remote = remote.as_region().ok()?.clone();
        for segment in local.as_slice().iter().filter(|segment| segment.len > 0) {
            self.register(&segment.region)?;
        }
        self.known(&remote, needed, offset, local.len()).cloned()
    }

    /// Registers a local buffer, unless that has just failed.
    fn register(&mut self, local: &Region) -> Option<()> {
        let place = Arc::as_ptr(local.memory()) as usize;
        let failed = self.unregistered.get(&place).copied();
        if local.len() > LONGEST || failed.is_some_and(|again| !again.is_now()) {
            return None;
        }
        if self.domain.register(local).is_ok() {
            self.unregistered.remove(&place);
            return Some(());
        }
        if self.unregistered.len() >= MANY {
            self.unregistered.clear();
        }
        self.unregistered.insert(place, Retry::after(failed));
        None
    }

    /// The region as the peer's device has it registered, if the operation is permitted there. The
    /// first use of a region asks the peer's host to register it.
    fn known(
        &mut self,
        remote: &tcp::RemoteRegion,
        needed: Access,
        offset: u64,
        len: u64,
    ) -> Option<&verbs::RemoteRegion> {
        let key = remote.key();
        let is_ours = (key.node, key.partition) == self.tcp.peer_and_partition();
        if !is_ours || remote.status().check().is_err() {
            return None;
        }
        self.ask_of(remote);
        let known = find(&self.regions, remote)?;
        known.check(needed, offset, len).ok().map(|()| known)
    }

    /// Has the peer's host register a region, unless it has, or has just refused.
    fn ask_of(&mut self, remote: &tcp::RemoteRegion) {
        let handle = self.tcp.handle_of(remote);
        let known = self.regions.get(&remote.address());
        let refused = match known.map(|known| (&known.answer, known.handle)) {
            Some((Ok(_), registered)) if registered == handle => return,
            Some((Err(again), _)) if !again.is_now() => return,
            Some((Err(again), _)) => Some(*again),
            _ => None,
        };
        if self.regions.len() >= MANY {
            self.regions.retain(|_, known| !known.identity.is_gone());
        }
        let answer = self.tcp.register(remote).map(verbs::RemoteRegion::open);
        let known = Known {
            handle: self.tcp.handle_of(remote),
            identity: remote.identity(),
            answer: answer.map_err(|_| Retry::after(refused)),
        };
        self.regions.insert(remote.address(), known);
    }

    /// Connects the two devices, if a retry is due.
    fn connect(&mut self) {
        let DevicePath::Down(again) = self.device else {
            return;
        };
        if !again.is_now() || self.tcp.end().is_err() {
            return;
        }
        self.device = match self.try_to_connect() {
            Ok(pair) => {
                self.paths.connects += 1;
                DevicePath::Up(Box::new(pair))
            }
            Err(OpError::System {
                errno: libc::EOPNOTSUPP,
            }) => DevicePath::Absent,
            Err(_) => DevicePath::Down(again.even_later(LONGEST_PAUSE)),
        };
    }

    fn try_to_connect(&mut self) -> Result<verbs::QueuePair, OpError> {
        let (peer, _) = self.tcp.peer_and_partition();
        let failed = |error: io::Error| OpError::System {
            errno: match error.kind() {
                // The device has no room for `depth` operations.
                io::ErrorKind::InvalidInput => libc::EOPNOTSUPP,
                _ => error.raw_os_error().unwrap_or(libc::EIO),
            },
        };
        let prepared = self.domain.prepare(peer, self.depth).map_err(failed)?;
        let theirs = self.tcp.connect(prepared.parameters())?;
        let status = Arc::clone(self.tcp.status());
        prepared.connect(&theirs, status).map_err(failed)
    }

    /// Fails over: operations that the device has not completed are repeated on the connection.
    fn fail_over(&mut self) {
        // Before any repetition: our device sends nothing more, and the peer's answers nothing.
        let pause = LONGEST_PAUSE.min(self.pause * 2);
        self.device = DevicePath::Down(Retry::later(std::mem::replace(&mut self.pause, pause)));
        self.regions.clear();
        self.tcp.disconnect();
        while let Some((id, operation)) = self.on_device.pop_back() {
            self.waiting.push_front((id, operation));
            self.flushed += 1;
        }
    }

    /// Takes completions, and hands over operations that waited for them.
    fn progress(&mut self) {
        loop {
            let before = self.completed.len();
            self.take_from_connection();
            self.take_from_device();
            let waited = self.flushed;
            if waited > 0 {
                self.hand_over();
            }
            if self.completed.len() == before && self.flushed == waited {
                return;
            }
        }
    }

    fn take_from_connection(&mut self) {
        let mut some = [Completion::default(); 16];
        while self.on_connection > 0 {
            let count = self.tcp.poll(&mut some);
            if count == 0 {
                return;
            }
            self.on_connection -= count;
            self.completed.extend(&some[..count]);
        }
    }

    fn take_from_device(&mut self) {
        let mut some = [Completion::default(); 16];
        while let (DevicePath::Up(pair), false) = (&mut self.device, self.on_device.is_empty()) {
            let count = pair.poll(&mut some);
            if count == 0 {
                return;
            }
            for completion in &some[..count] {
                if completion.result.is_err() {
                    return self.fail_over();
                }
                let Some((id, operation)) = self.on_device.pop_front() else {
                    return;
                };
                self.pause = BACKOFF[0];
                // No success if the right has ended meanwhile.
                let right = self.tcp.end_of(&operation);
                let result = right.and(completion.result);
                self.completed.push_back(Completion { id, result });
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.flushed == 0 && self.on_connection == 0 && self.on_device.is_empty()
    }

    /// Waits until `done`, nothing is in flight, or `timeout` has passed.
    fn wait_until(&mut self, timeout: Duration, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        loop {
            self.progress();
            let left = timeout.saturating_sub(start.elapsed());
            if done(self) || self.is_idle() || left.is_zero() {
                return;
            }
            match &mut self.device {
                DevicePath::Up(pair) if !self.on_device.is_empty() => {
                    pair.wait(left.min(NAP));
                }
                _ => {
                    self.tcp.wait(left);
                }
            }
        }
    }

    fn all_lead_by_device(&mut self, reads: &[Read<'_, R>]) -> bool {
        matches!(self.device, DevicePath::Up(_))
            && reads.iter().all(|read| {
                let len = read.into.len() as u64;
                let right = Access::REMOTE_READ;
                read.remote
                    .as_region()
                    .is_ok_and(|remote| self.known(remote, right, read.offset, len).is_some())
            })
    }

    /// Whether all reads succeeded and all rights still hold.
    fn read_by_device(&mut self, reads: &mut [Read<'_, R>]) -> bool {
        let DevicePath::Up(pair) = &mut self.device else {
            return false;
        };
        let regions = &self.regions;
        let read = pair.read_each(reads, |remote| {
            find(regions, remote.as_region()?)
                .cloned()
                .ok_or(OpError::WrongKey)
        });
        if read.is_err() {
            self.fail_over();
            return false;
        }
        self.paths.device += 1;
        self.pause = BACKOFF[0];
        let lasts = |read: &Read<'_, R>| {
            let remote = read.remote.as_region();
            remote.is_ok_and(|remote| remote.status().check().is_ok())
        };
        reads.iter().all(lasts)
    }
}

impl<R: AsRegion<tcp::RemoteRegion>> Endpoint for QueuePair<R> {
    type Remote = R;

    fn peer(&self) -> NodeId {
        self.tcp.peer()
    }

    fn partition(&self) -> Partition {
        self.tcp.partition()
    }

    fn post(&mut self, id: u64, operation: Operation<R>) -> Result<(), PostError> {
        let (depth, used) = self.room();
        if used >= depth {
            return Err(PostError::QueueFull { depth });
        }
        self.waiting.push_back((id, operation));
        Ok(())
    }

    fn flush(&mut self) {
        self.connect();
        self.flushed = self.waiting.len();
        self.hand_over();
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        if self.completed.is_empty() {
            self.progress();
        }
        let count = into.len().min(self.completed.len());
        for (slot, completion) in into.iter_mut().zip(self.completed.drain(..count)) {
            *slot = completion;
        }
        count
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.wait_until(timeout, |pair| !pair.completed.is_empty());
        !self.completed.is_empty()
    }

    fn pending(&mut self, sleeps: bool) -> Pending {
        if !self.completed.is_empty() {
            return Pending::Look;
        }
        if self.is_idle() {
            return Pending::Nothing;
        }
        let pending = match &mut self.device {
            DevicePath::Up(pair) if !self.on_device.is_empty() => match pair.pending(sleeps) {
                // The end of access wakes no sleeper on a device.
                Pending::Event { fd, until } => Pending::Event {
                    fd,
                    until: until.min(monotonic() + NAP.as_nanos() as Nanos),
                },
                pending => pending,
            },
            _ => self.tcp.pending(sleeps),
        };
        match pending {
            // The other path may have the next one.
            Pending::Nothing => Pending::Look,
            pending => pending,
        }
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, R>]) -> Result<(), OpError> {
        self.flush();
        self.wait_until(Duration::MAX, |_| false);
        if self.all_lead_by_device(reads) && self.read_by_device(reads) {
            return self.tcp.end();
        }
        self.paths.connection += 1;
        self.tcp.read_batch(reads)
    }
}
