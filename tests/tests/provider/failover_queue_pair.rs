//! Queue pairs that go by the devices where they can and over a connection otherwise: the rig has
//! a network card of `tcp` that serves regions of `shm`, and registers them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::DropGuard;
use toroid_fabric::failover::{Channel, QueuePair, Target};
use toroid_fabric::mem::Status;
use toroid_fabric::mem::memfd::{create_memory, read_only};
use toroid_fabric::parameters::ConnectionParameters;
use toroid_fabric::tcp::{self, DeviceTarget, Opened, serve, tune};
use toroid_fabric::verbs::Device;
use toroid_fabric::{Access, Endpoint, NodeId, OpError, Operation, Read, Region, RemoteKey, shm};

use crate::errors::results;
use crate::failover_channel::{self, Ends};
use crate::migration::{LEN, bring, copier};
use crate::rig::{Verbs, key_of};
use tests::conformance::{PARTITION, Rig, THERE};

const FOR_EVER: Duration = Duration::from_secs(60);

pub struct Both {
    verbs: Verbs,
    exported: Arc<Exported>,
    /// What the peer's host knows of the membership.
    status: Arc<Status>,
    channels: Mutex<Vec<Ends>>,
}

/// What the network card may open.
struct Exported {
    regions: Mutex<HashMap<RemoteKey, shm::RemoteRegion>>,
    device: Option<Arc<Device>>,
    /// How many may be registered.
    room: usize,
    /// Has another owner for each that is.
    registered: Arc<()>,
}

impl tcp::Regions for Exported {
    fn open(&self, key: RemoteKey, _: Access) -> Result<Opened, OpError> {
        let regions = self.regions.lock().unwrap();
        Ok(regions.get(&key).cloned().ok_or(OpError::WrongKey)?.into())
    }

    fn connect_device(&self, peer: &ConnectionParameters) -> io::Result<Box<dyn DeviceTarget>> {
        let device = self.device.as_ref();
        let device = device.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        Ok(Box::new(Target::new(device, peer)?))
    }

    fn admit(&self, _: &shm::RemoteRegion) -> Option<DropGuard> {
        (self.registered() < self.room).then(|| self.registered.clone() as DropGuard)
    }
}

impl Exported {
    fn registered(&self) -> usize {
        Arc::strong_count(&self.registered) - 1
    }
}

/// A region of the peer: its memory, its owner's view, what the network card has of it, and ours.
struct Shared {
    memory: File,
    owner: Region,
    granted: shm::RemoteRegion,
    remote: tcp::RemoteRegion,
}

impl Both {
    fn with(device: impl FnOnce(&Verbs) -> Option<Arc<Device>>, room: usize) -> Self {
        let verbs = Verbs::new();
        Both {
            exported: Arc::new(Exported {
                regions: Mutex::default(),
                device: device(&verbs),
                room,
                registered: Arc::default(),
            }),
            verbs,
            status: Arc::default(),
            channels: Mutex::default(),
        }
    }

    fn with_room_for(room: usize) -> Self {
        let device = |verbs: &Verbs| Some(Arc::clone(verbs.there.domain.device()));
        Both::with(device, room)
    }

    fn share(&self, node: NodeId, len: u64, rights: Access) -> Shared {
        let key = key_of(node);
        let memory = create_memory(len).unwrap();
        let owner = Region::exported(&memory, len as usize, key, Arc::default(), None).unwrap();
        let granted = if rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
            memory.try_clone().unwrap()
        } else {
            read_only(&memory).unwrap()
        };
        let status = Arc::clone(&self.status);
        let granted = shm::RemoteRegion::map(&granted, len as usize, key, rights, status, None);
        let granted = granted.unwrap();
        let mut regions = self.exported.regions.lock().unwrap();
        regions.insert(key, granted.clone());
        drop(regions);
        let mut pair = self.connection(node, 1);
        let remote = pair.open(key, rights, Arc::default(), None).unwrap();
        Shared {
            memory,
            owner,
            granted,
            remote,
        }
    }

    fn connection(&self, node: NodeId, depth: usize) -> tcp::QueuePair {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs: OwnedFd = listener.accept().unwrap().0.into();
        tune::for_operations(&ours).unwrap();
        tune::for_serving(&theirs).unwrap();
        let exported = Arc::clone(&self.exported);
        thread::spawn(move || serve(theirs, &*exported).unwrap());
        tcp::QueuePair::new(OwnedFd::from(ours), node, PARTITION, depth, Arc::default())
    }

    /// What the control thread of the network card does when access ends.
    fn end(&self) {
        for region in self.exported.regions.lock().unwrap().values() {
            region.memory().detach();
        }
    }
}

impl Rig for Both {
    type Endpoint = QueuePair;
    type Channel = Channel;

    const LOOKS: usize = 2_000;

    fn new() -> Self {
        Both::with_room_for(usize::MAX)
    }

    fn export(&self, len: u64, rights: Access) -> (Region, tcp::RemoteRegion) {
        let shared = self.share(THERE, len, rights);
        (shared.owner, shared.remote)
    }

    fn elsewhere(&self, len: u64) -> tcp::RemoteRegion {
        self.share(NodeId(2), len, Access::all()).remote
    }

    fn endpoint(&self, depth: usize) -> QueuePair {
        let domain = Arc::clone(&self.verbs.here.domain);
        QueuePair::new(self.connection(THERE, depth), domain)
    }

    fn channel(&self) -> (Channel, Channel) {
        let (mut ours, mut theirs, ends) =
            failover_channel::pair(&self.verbs.here, &self.verbs.there);
        failover_channel::warm_up(&mut ours, &mut theirs);
        self.channels.lock().unwrap().push(ends);
        (ours, theirs)
    }

    fn revoke(&self) {
        self.status.revoke();
        self.end();
        self.channels.lock().unwrap().iter().for_each(Ends::revoke);
    }

    fn kill_peer(&self) {
        self.status.peer_died();
        self.end();
        let channels = self.channels.lock().unwrap();
        channels.iter().for_each(Ends::say_that_the_peer_died);
    }
}

tests::conformance!(Both);

mod queued {
    tests::conformance!(@queued super::Both);
}

fn read(pair: &mut QueuePair, remote: &tcp::RemoteRegion) -> Result<u64, OpError> {
    let mut word = [0; 8];
    let read = Read {
        remote,
        offset: 0,
        into: &mut word,
    };
    pair.read_batch(&mut [read])?;
    Ok(u64::from_le_bytes(word))
}

#[test]
fn reads_and_writes_go_by_the_devices_and_atomics_do_not() {
    let rig = Both::new();
    let (owner, remote) = rig.export(4096, Access::all());
    let local = Region::local(4096).unwrap();
    let mut pair = rig.endpoint(8);
    for round in 1..=100u64 {
        local.store(0, round).unwrap();
        let done = results(
            &mut pair,
            &[
                Operation::write(&remote, 0, &local, 0..8),
                Operation::write(&remote, 8, &local, 0..8),
                Operation::fetch_add(&remote, 0, 1000),
                Operation::read(&remote, 0, &local, 8..24),
            ],
        );
        let results = [Ok(8), Ok(8), Ok(round), Ok(16)];
        assert!(done.iter().map(|done| done.result).eq(results), "{done:?}");
        assert_eq!(owner.load(0), Ok(round + 1000));
        assert_eq!(
            (local.load(8), local.load(16)),
            (Ok(round + 1000), Ok(round))
        );
        assert_eq!(read(&mut pair, &remote), Ok(round + 1000));
    }
    let paths = pair.paths();
    assert_eq!(
        (paths.device, paths.connection, paths.connects),
        (400, 100, 1)
    );
    assert!(pair.counters().unwrap().requests >= 400);
}

/// Linux registers only what may be written, before 6.2.
#[test]
fn memory_that_is_only_read_is_read_by_the_devices() {
    let rig = Both::new();
    const LONG: u64 = 17 << 20;
    let (owner, remote) = rig.export(LONG, Access::REMOTE_READ);
    let local = Region::local(8).unwrap();
    let mut pair = rig.endpoint(1);
    for round in 1..=10 {
        owner.store(0, round).unwrap();
        owner.store(LONG - 8, round).unwrap();
        assert_eq!(read(&mut pair, &remote), Ok(round));
        let last = Operation::read(&remote, LONG - 8, &local, 0..8);
        assert_eq!(results(&mut pair, &[last])[0].result, Ok(8));
        assert_eq!(local.load(0), Ok(round));
        let write = Operation::write(&remote, 0, &local, 0..8);
        let needed = Access::REMOTE_WRITE;
        let result = results(&mut pair, &[write])[0].result;
        assert_eq!(result, Err(OpError::MissingRight { needed }));
    }
    assert_eq!(pair.paths().device, 20);
}

/// A far node could once have each of its 1024 handles register the same region, and all of that
/// was taken back, one after another, before a change was acknowledged.
#[test]
fn no_more_is_registered_than_there_is_room_for_and_nothing_twice() {
    let rig = Both::with_room_for(2);
    let [first, second, third] = [(); 3].map(|()| rig.share(THERE, 4096, Access::all()));
    let mut opening = rig.connection(THERE, 1);
    let key = first.owner.remote_key().unwrap();
    let again = opening.open(key, Access::all(), Arc::default(), None);
    let (again, mut pair) = (again.unwrap(), rig.endpoint(1));
    let mut go = |remote: &tcp::RemoteRegion| {
        assert_eq!(read(&mut pair, remote), Ok(0));
        let paths = pair.paths();
        (paths.device, paths.connection)
    };
    assert_eq!(go(&first.remote), (1, 0));
    assert_eq!(go(&again), (1, 1));
    assert_eq!(rig.exported.registered(), 1);
    assert_eq!(go(&second.remote), (2, 1));
    assert_eq!(go(&third.remote), (2, 2));
    assert_eq!(go(&first.remote), (3, 2));
    assert_eq!(rig.exported.registered(), 2);
    // What the device had to forget makes room.
    second.granted.memory().detach();
    assert_eq!(rig.exported.registered(), 1);
    let began = Instant::now();
    while go(&third.remote).0 == 3 {
        assert!(began.elapsed() < FOR_EVER);
    }
    assert_eq!(rig.exported.registered(), 2);
}

/// The handle of a region was given to another one, with which the far side forgot it; the devices
/// were disconnected by the next operation on it.
#[test]
fn a_region_whose_handle_another_got_is_registered_anew() {
    /// How many a connection has.
    const HANDLES: usize = 1024;
    let rig = Both::new();
    let [used, first] = [(); 2].map(|()| rig.share(THERE, 4096, Access::all()));
    let mut pair = rig.endpoint(1);
    for (n, remote) in [&first.remote, &used.remote].into_iter().enumerate() {
        assert_eq!(read(&mut pair, remote), Ok(0));
        assert_eq!(pair.paths().device, n as u64 + 1);
    }
    let (mut opening, key) = (rig.connection(THERE, 1), first.owner.remote_key().unwrap());
    // So many that the last takes the place of the second.
    let others: Vec<_> = (0..HANDLES - 1)
        .map(|_| opening.open(key, Access::all(), Arc::default(), None))
        .collect();
    for other in &others {
        assert_eq!(read(&mut pair, other.as_ref().unwrap()), Ok(0));
    }
    let others = others.len() as u64;
    assert_eq!(read(&mut pair, &used.remote), Ok(0));
    let paths = pair.paths();
    let counted = (paths.device, paths.connection, paths.connects);
    assert_eq!(counted, (3, others, 1));
}

#[test]
fn a_host_without_a_device_is_reached_all_the_same() {
    let rig = Both::with(|_| None, 0);
    let (owner, remote) = rig.export(4096, Access::all());
    let mut pair = rig.endpoint(1);
    for round in 1..=10 {
        owner.store(0, round).unwrap();
        assert_eq!(read(&mut pair, &remote), Ok(round));
    }
    let paths = pair.paths();
    assert_eq!((paths.device, paths.connection, paths.connects), (0, 10, 0));
}

/// Writes and reads go on while the memory moves again and again, each sees what the one before
/// has done, and afterwards they go by the devices again.
#[test]
fn nothing_is_lost_while_memory_moves_and_the_devices_are_used_again() {
    const MIGRATIONS: u64 = 20;
    let rig = Both::new();
    let mut shared = rig.share(THERE, LEN, Access::all());
    let (remote, stop) = (shared.remote.clone(), AtomicBool::new(false));
    thread::scope(|scope| {
        let (rig, stop) = (&rig, &stop);
        let user = scope.spawn(move || {
            let local = Region::local(64).unwrap();
            let mut pair = rig.endpoint(4);
            let (mut round, mut added) = (0u64, 0u64);
            let mut after_moves = None;
            loop {
                round += 1;
                local.store(0, round).unwrap();
                let last = LEN - 8;
                let mut operations = vec![
                    Operation::write(&remote, 0, &local, 0..8),
                    Operation::write(&remote, last, &local, 0..8),
                    Operation::read(&remote, 0, &local, 8..16),
                ];
                if round % 16 == 0 {
                    operations.push(Operation::fetch_add(&remote, 4096, 1));
                    added += 1;
                }
                let done = results(&mut pair, &operations);
                assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
                assert_eq!(local.load(8), Ok(round));
                assert_eq!(read(&mut pair, &remote), Ok(round));
                if !stop.load(Ordering::Acquire) {
                    continue;
                }
                // Another connection and what goes by it are to be seen.
                let began = after_moves.get_or_insert((Instant::now(), pair.paths()));
                if pair.paths().device > began.1.device + 100 {
                    return (round, added, pair.paths());
                }
                assert!(began.0.elapsed() < FOR_EVER, "{:?}", pair.paths());
            }
        });
        for _ in 0..MIGRATIONS {
            // So that the devices are used in between, most of the times.
            thread::sleep(Duration::from_millis(100));
            let copier = copier(&mut shared.memory);
            let views = [shared.owner.memory(), shared.granted.memory()];
            for view in views {
                let (fresh, table) = (&shared.memory, copier.table().unwrap());
                drop(
                    view.start_migration(fresh, &table, Box::new(|_| {}))
                        .unwrap(),
                );
            }
            bring(&copier);
            views.iter().for_each(|view| view.wake_resident());
            views.iter().for_each(|view| view.finish_migration());
        }
        stop.store(true, Ordering::Release);
        let (round, added, paths) = user.join().unwrap();
        assert_eq!(shared.owner.load(0), Ok(round));
        assert_eq!(shared.owner.load(LEN - 8), Ok(round));
        assert_eq!(shared.owner.load(4096), Ok(added));
        assert!(
            paths.connects > 1 && paths.connects <= MIGRATIONS + 1,
            "{paths:?}"
        );
        println!("{round} rounds, {paths:?}");
    });
}

/// A process that keeps what its device knows gets nowhere once its right has ended, and is told.
#[test]
fn who_loses_the_right_is_told_which() {
    let rig = Both::new();
    let shared = rig.share(THERE, LEN, Access::all());
    let mut pair = rig.endpoint(4);
    shared.owner.store(0, 7).unwrap();
    assert_eq!(read(&mut pair, &shared.remote), Ok(7));
    rig.revoke();
    assert_eq!(read(&mut pair, &shared.remote), Err(OpError::Revoked));
    let local = Region::local(64).unwrap();
    let write = Operation::write(&shared.remote, 0, &local, 0..8);
    let done = results(&mut pair, &[write.clone(), write]);
    assert!(done.iter().all(|done| done.result == Err(OpError::Revoked)));
    assert_eq!(shared.owner.load(0), Ok(7));
}
