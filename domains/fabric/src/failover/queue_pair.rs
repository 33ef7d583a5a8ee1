//! A queue pair to a node of another host that goes by the devices of both where it can, and over
//! the connection with that host otherwise.
//!
//! ```text
//!   this process ──────────── connection ─────────── network card of `tcp` ── region
//!        │                                                   │ registers it
//!        └── our device ═══════════ fabric ═══════════ its device
//! ```
//!
//! The connection is there all the time. By it the two sides tell each other what their devices
//! have to know, and it takes what devices cannot: atomics, because those of a device are none
//! for who uses the processor's on the same words; regions that are not registered at the moment,
//! as while they move; and all from the first operation on that a device has failed to do.
//!
//! Operations execute as posted: what goes one way is handed over when what went the other way has
//! ended. What failed is done once more, from the start, with all after it, and nothing but reads and
//! writes goes by devices. A write that is still on its way must not arrive after another one that
//! was posted later, so the far side is told first to let our queue pair reach nothing any more.
//!
//! That is no harm as long as nobody else writes there. When the region was refused, nothing from
//! the failed operation on has been executed. But when acknowledgements were lost until our device
//! gave up, some may have been, and somebody may have seen them: writes are executed twice, the
//! later ones before the earlier ones are repeated, and what a peer has written there in answer to
//! one meanwhile is overwritten.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::LONGEST;
use super::paths::Paths;
use super::retry::{BACKOFF, LONGEST_PAUSE, Retry};
use crate::core::endpoint::{AsRegion, Completion, Endpoint, Operation, PostError, Read};
use crate::core::region::Region;
use crate::error::OpError;
use crate::key::{Access, Partition};
use crate::tcp;
use crate::tcp::region::Identity;
use crate::topology::NodeId;
use crate::verbs::{self, Counters, ProtectionDomain};

/// How long one sleep for a device lasts at most: it does not hear that access has ended.
const NAP: Duration = Duration::from_millis(20);

/// Regions that are remembered, beyond which those are looked for that nobody uses.
const MANY: usize = 1024;

/// A queue pair with two paths.
///
/// What otherwise never waits may do so here, now and then: a flush connects the devices if they
/// are not, and a flush or a poll that hands over the first operation on a region, or on a buffer,
/// has that registered. Each takes a round trip, and the kernel its time.
#[derive(Debug)]
pub struct QueuePair<R = tcp::RemoteRegion> {
    tcp: tcp::QueuePair<R>,
    domain: Arc<ProtectionDomain>,
    device: DevicePath,
    /// What the far side's device knows, by the address of the region.
    regions: HashMap<usize, Known>,
    /// Buffers of ours that could not be registered, by the address of their memory: to try takes
    /// long. Where another has come to be there, it waits in vain.
    unregistered: HashMap<usize, Retry>,
    depth: usize,
    /// Not handed over yet, oldest first.
    waiting: VecDeque<(u64, Operation<R>)>,
    /// How many of them are flushed.
    flushed: usize,
    /// How many the connection has.
    on_connection: usize,
    /// Those that the device has.
    on_device: VecDeque<(u64, Operation<R>)>,
    completed: VecDeque<Completion>,
    /// How long the device is left alone when it fails next.
    pause: Duration,
    paths: Paths,
}

/// The way through our device.
#[derive(Debug)]
enum DevicePath {
    Up(Box<verbs::QueuePair>),
    Down(Retry),
    /// One of the two sides has none.
    Absent,
}

/// What the far side has said of a region.
#[derive(Debug)]
struct Known {
    /// Under which it is open there. When many are, another region may get it, and with that the far
    /// side forgets this one.
    handle: Option<u32>,
    /// Keeps its address from being another's.
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
    /// A queue pair as `tcp` is, on which nothing has been posted. What is registered here is in
    /// `domain`.
    pub fn new(tcp: tcp::QueuePair<R>, domain: Arc<ProtectionDomain>) -> Self {
        let depth = tcp.depth();
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

    /// Which ways its operations went.
    pub fn paths(&self) -> Paths {
        self.paths
    }

    /// What the present queue pair of the device has done.
    pub fn counters(&self) -> Option<Counters> {
        match &self.device {
            DevicePath::Up(pair) => Some(pair.counters()),
            _ => None,
        }
    }

    /// Hands over what is flushed, until it would have to go the other way than what is under way.
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
            // There is room for as many as here.
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

    /// The region of the next operation, if that can go by the device. It may take a round trip to
    /// know.
    fn region_for_device(&mut self) -> Option<verbs::RemoteRegion> {
        if !matches!(self.device, DevicePath::Up(_)) {
            return None;
        }
        let (_, operation) = self.waiting.front()?;
        let needed = match operation {
            Operation::Read { .. } => Access::REMOTE_READ,
            _ => Access::REMOTE_WRITE,
        };
        let (Operation::Read {
            remote,
            offset,
            into: local,
        }
        | Operation::Write {
            remote,
            offset,
            from: local,
        }) = operation
        else {
            return None;
        };
        // What is wrong with it is for the other way to say.
        local.check().ok()?;
        let remote = remote.as_region().ok()?.clone();
        let (offset, local) = (*offset, local.clone());
        for segment in local.as_slice().iter().filter(|segment| segment.len > 0) {
            self.register(&segment.region)?;
        }
        self.known(&remote, needed, offset, local.len()).cloned()
    }

    /// Has our device know a buffer, unless that has just failed.
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
        let again = failed.map_or(Retry::later(BACKOFF[0]), |again| {
            again.even_later(BACKOFF[1])
        });
        self.unregistered.insert(place, again);
        None
    }

    /// A region as the far side's device knows it, if that lets ours do this. What it has not been
    /// asked yet it is asked.
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

    /// Has the far side register a region, unless it has, or has just refused to.
    fn ask_of(&mut self, remote: &tcp::RemoteRegion) {
        let handle = self.tcp.handle_of(remote);
        let refused = match self.regions.get(&remote.address()) {
            Some(known) if known.answer.is_ok() && known.handle == handle => return,
            Some(Known {
                answer: Err(again), ..
            }) if !again.is_now() => return,
            Some(Known {
                answer: Err(again), ..
            }) => Some(*again),
            _ => None,
        };
        if self.regions.len() >= MANY {
            self.regions.retain(|_, known| !known.identity.is_gone());
        }
        let answer = self.tcp.register(remote).map(verbs::RemoteRegion::open);
        let answer = answer.map_err(|_| match refused {
            Some(again) => again.even_later(BACKOFF[1]),
            None => Retry::later(BACKOFF[0]),
        });
        let known = Known {
            handle: self.tcp.handle_of(remote),
            identity: remote.identity(),
            answer,
        };
        self.regions.insert(remote.address(), known);
    }

    /// Connects our device with the far side's, if it is time for that.
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
                // No device has room for so many operations.
                io::ErrorKind::InvalidInput => libc::EOPNOTSUPP,
                _ => error.raw_os_error().unwrap_or(libc::EIO),
            },
        };
        let prepared = self.domain.prepare(peer, self.depth).map_err(failed)?;
        let theirs = self.tcp.connect(prepared.parameters())?;
        let status = Arc::clone(self.tcp.status());
        prepared.connect(&theirs, status).map_err(failed)
    }

    /// The device has failed: whatever it has not done goes over the connection.
    fn fail_over(&mut self) {
        // Before anything is done again: it asks for nothing more, and the far side answers nothing.
        let pause = LONGEST_PAUSE.min(self.pause * 2);
        self.device = DevicePath::Down(Retry::later(std::mem::replace(&mut self.pause, pause)));
        self.regions.clear();
        self.tcp.disconnect();
        while let Some((id, operation)) = self.on_device.pop_back() {
            self.waiting.push_front((id, operation));
            self.flushed += 1;
        }
    }

    /// Takes what has ended, and hands over what waited for it.
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
                // It is no success if the right has ended meanwhile.
                let right = self.tcp.end_of(&operation);
                let result = right.and(completion.result);
                self.completed.push_back(Completion { id, result });
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.flushed == 0 && self.on_connection == 0 && self.on_device.is_empty()
    }

    /// Waits until `done`, or nothing is under way any more, or `timeout` has passed.
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

    /// Whether they could be read, and all rights last.
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
        let under_way = self.on_connection + self.on_device.len() + self.completed.len();
        if self.waiting.len() + under_way >= self.depth {
            return Err(PostError::QueueFull { depth: self.depth });
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
