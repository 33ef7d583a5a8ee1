//! Tests of grants without node sockets.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use rustix::fs::OFlags;
use toroid_fabric::shm::ChannelEnds;
use toroid_model::directory::{Change, DirectoryError, Wanted, full_members};
use toroid_protocol::agent::{Event, Message};
use toroid_protocol::wire::{self, Reader};

use super::outbox::CAPACITY;
use super::*;
use crate::store::memory::Memory;

mod links;
mod restart;

const READ: Access = Access::REMOTE_READ;
const PROTOCOL: u16 = 7;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Members of a fabric of 2x2x2 nodes with a domain `blue` of nodes 0 and 1.
pub(crate) fn members() -> Arc<Members> {
    let directory = Directory::new("2x2x2".parse().unwrap());
    let store = Box::new(Memory::holding(&directory));
    let (members, _) = Members::new(directory, store, 1 << 20, Leases::none());
    create(&members, "blue", &[0, 1]);
    Arc::new(members)
}

fn create(members: &Members, name: &str, nodes: &[u32]) {
    let wanted = Wanted {
        name: name.into(),
        members: full_members(nodes.iter().copied().map(NodeId)),
        ..Wanted::default()
    };
    change(members, |directory| directory.create(wanted));
}

fn shrink(members: &Members, node: u32) -> Changed {
    let left = [NodeId(node)].into();
    change(members, |directory| directory.shrink("blue", &left))
}

fn change(
    members: &Members,
    change: impl FnOnce(&mut Directory) -> Result<Change, DirectoryError>,
) -> Changed {
    let (change, directory) = members.plan(change).unwrap();
    members.keep(&directory).unwrap();
    members.change(change, directory)
}

/// Number of remaining processes that have not acknowledged a change in time.
fn late(members: &Members, changed: &Changed, timeout: Duration) -> usize {
    let epoch = changed.change.domain.epoch;
    let late = members.await_epoch(&changed.waiting_for, Partition(1), epoch, timeout);
    late.len()
}

/// Process at the other end of an attachment.
pub(crate) struct Process {
    pub(crate) id: AttachmentId,
    reader: Reader,
    members: Arc<Members>,
}

impl Process {
    pub(crate) fn attach(members: &Arc<Members>, node: u32) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (_, writer) = wire::split(theirs).unwrap();
        let outbox = Outbox::start(writer).unwrap();
        Process {
            id: members.attach(NodeId(node), outbox).unwrap(),
            reader: wire::split(ours).unwrap().0,
            members: Arc::clone(members),
        }
    }

    fn hears(&mut self) -> (Message, Vec<OwnedFd>) {
        self.reader.receive().unwrap()
    }

    fn hears_event(&mut self) -> Event {
        match self.hears().0 {
            Message::Event(event) => event,
            other => panic!("{other:?} is no event"),
        }
    }

    pub(crate) fn alloc(&mut self, access: Access) -> RemoteKey {
        self.members.alloc(self.id, "blue", 4096, access).unwrap();
        match self.hears() {
            (Message::Reply(Reply::Region { key, len: 4096, .. }), memory) if memory.len() == 1 => {
                key
            }
            other => panic!("{other:?} is no region"),
        }
    }

    fn open(&self, key: RemoteKey, access: Access) -> Result<(), RefusalKind> {
        let opened = self.members.open(self.id, key, access);
        opened.map_err(|refusal| refusal.kind)
    }

    /// Connects to `peer`, which listens; returns the channel.
    fn connect(&mut self, peer: &mut Process, place: &str) -> u64 {
        let place = place.parse().unwrap();
        let connected = self.members.connect(self.id, "blue", place, PROTOCOL);
        connected.unwrap();
        let (Message::Reply(Reply::Channel(ours)), ends) = self.hears() else {
            panic!("no channel");
        };
        assert_eq!(ends.len(), ChannelEnds::COUNT);
        let Event::Incoming(theirs) = peer.hears_event() else {
            panic!("no channel at the other end");
        };
        assert_eq!(ours.id, theirs.id);
        ours.id
    }

    fn listen(&self) -> Result<(), RefusalKind> {
        let listening = self.members.listen(self.id, "blue", PROTOCOL);
        listening.map_err(|refusal| refusal.kind)
    }
}

/// A process with write access can keep all others from ever mapping the region for writing again.
#[test]
fn a_region_that_a_writer_has_sealed_ends() {
    let members = members();
    let mut owner = Process::attach(&members, 0);
    let mut peer = Process::attach(&members, 1);
    let key = owner.alloc(READ | Access::REMOTE_WRITE);
    assert_eq!(peer.open(key, Access::REMOTE_WRITE), Ok(()));
    let memory = File::from(peer.hears().1.remove(0));
    toroid_fabric::mem::memfd::seal_writes(&memory).unwrap();

    assert_eq!(owner.open(key, READ), Err(RefusalKind::NotFound));
    for process in [&mut owner, &mut peer] {
        assert_eq!(process.hears_event(), Event::RegionGone { key });
    }
    assert!(members.regions.is_empty());

    // A region that peers only read cannot be sealed by them.
    let key = owner.alloc(READ);
    assert_eq!(peer.open(key, READ), Ok(()));
    let memory = File::from(peer.hears().1.remove(0));
    assert!(toroid_fabric::mem::memfd::seal_writes(&memory).is_err());
}

#[test]
fn a_region_is_opened_by_members_with_its_key_and_the_rights_given() {
    let members = members();
    let mut owner = Process::attach(&members, 0);
    let mut peer = Process::attach(&members, 1);
    let outsider = Process::attach(&members, 2);
    let key = owner.alloc(READ | Access::REMOTE_ATOMIC);

    for access in [READ, Access::REMOTE_ATOMIC] {
        assert_eq!(peer.open(key, access), Ok(()));
        let (_, memory) = peer.hears();
        let mut memory = File::from(memory.into_iter().next().unwrap());
        let written = io::Write::write(&mut memory, b"x").is_ok();
        assert_eq!(written, access == Access::REMOTE_ATOMIC);
    }
    for access in [Access::REMOTE_WRITE, Access::all(), Access::empty()] {
        assert_eq!(peer.open(key, access), Err(RefusalKind::Denied));
    }
    assert_eq!(outsider.open(key, READ), Err(RefusalKind::Denied));
    let mut guess = key;
    guess.secret[15] ^= 1;
    assert_eq!(peer.open(guess, READ), Err(RefusalKind::NotFound));
    let mut elsewhere = key;
    elsewhere.node = NodeId(1);
    assert_eq!(peer.open(elsewhere, READ), Err(RefusalKind::NotFound));

    assert!(members.free(peer.id, key).is_err(), "it is not the peer's");
    members.free(owner.id, key).unwrap();
    assert_eq!(peer.hears_event(), Event::RegionGone { key });
    assert_eq!(peer.open(key, READ), Err(RefusalKind::NotFound));
    assert_eq!(members.totals(|_| true).1, 0);
}

#[test]
fn a_node_registers_no_more_than_its_share() {
    let members = members();
    let mut process = Process::attach(&members, 0);
    let alloc = |process: &Process, len| {
        let allocated = members.alloc(process.id, "blue", len, READ);
        allocated.map_err(|refusal| refusal.kind)
    };
    assert_eq!(alloc(&process, 0), Err(RefusalKind::Invalid));
    assert_eq!(alloc(&process, u64::MAX), Err(RefusalKind::Exhausted));
    process.alloc(READ);
    assert_eq!(alloc(&process, 1 << 20), Err(RefusalKind::Exhausted));
    assert_eq!(alloc(&process, (1 << 20) - 4096), Ok(()));
    members.detach(process.id);
    assert_eq!(members.totals(|_| true).1, 0);
}

/// A connection that had left its node once spoke for it under the node's next owner.
#[test]
fn processes_of_a_node_are_expelled_with_all_grants() {
    let members = members();
    let mut stays = Process::attach(&members, 0);
    let mut expelled = [Process::attach(&members, 1), Process::attach(&members, 1)];
    let key = expelled[0].alloc(READ);
    stays.open(key, READ).unwrap();
    stays.hears();
    expelled[1].listen().unwrap();
    members.expel(NodeId(1));
    assert_eq!(stays.hears_event(), Event::RegionGone { key });
    for mut process in expelled {
        assert!(process.reader.receive::<Message>().is_err());
        assert_eq!(process.listen(), Err(RefusalKind::Failed));
    }
    Process::attach(&members, 1).listen().unwrap();
    stays.alloc(READ);
}

#[test]
fn grants_of_a_leaver_end_and_the_others_are_awaited() {
    let members = members();
    let mut stays = Process::attach(&members, 0);
    let mut leaves = Process::attach(&members, 1);
    leaves.listen().unwrap();
    assert_eq!(leaves.listen(), Err(RefusalKind::Exists));
    stays.connect(&mut leaves, "1,0,0");
    let (theirs, ours) = (leaves.alloc(READ), stays.alloc(READ));
    stays.open(theirs, READ).unwrap();
    stays.hears();

    let changed = shrink(&members, 1);
    let epoch = Event::Epoch {
        partition: 1,
        epoch: 2,
        left: vec![1],
    };
    assert_eq!(stays.hears_event(), epoch);
    assert_eq!(leaves.hears_event(), epoch);
    assert_eq!(leaves.open(ours, READ), Err(RefusalKind::Denied));
    assert_eq!(stays.open(theirs, READ), Err(RefusalKind::NotFound));
    assert_eq!(leaves.listen(), Err(RefusalKind::Denied));

    let soon = Duration::from_millis(1);
    assert_eq!(late(&members, &changed, soon), 1);
    members.acknowledge(stays.id, 1, 1);
    assert_eq!(late(&members, &changed, soon), 1, "older");
    let waiting = Arc::clone(&members);
    let waiter = thread::spawn(move || late(&waiting, &changed, TIMEOUT));
    members.acknowledge(stays.id, 1, 2);
    assert_eq!(waiter.join().unwrap(), 0);

    let back = [NodeId(1)].into();
    change(&members, |directory| directory.grow("blue", &back));
    stays.hears_event();
    assert_eq!(
        stays.open(theirs, READ),
        Err(RefusalKind::NotFound),
        "it stays gone"
    );
    let place = "1,0,0".parse().unwrap();
    let connected = members.connect(stays.id, "blue", place, PROTOCOL);
    assert_eq!(connected.unwrap_err().kind, RefusalKind::NotFound);
}

/// A region that a leaver opened during its migration was once copied to its end under the lock of
/// the state.
#[test]
fn a_node_that_is_about_to_leave_opens_nothing() {
    let members = members();
    let mut owner = Process::attach(&members, 0);
    let leaver = Process::attach(&members, 1);
    let key = owner.alloc(READ);
    let left = [NodeId(1)].into();
    let (change, _) = members.plan(|plan| plan.shrink("blue", &left)).unwrap();
    members.note_leaving(std::slice::from_ref(&change));
    assert_eq!(leaver.open(key, READ), Err(RefusalKind::Leaving));
    assert_eq!(owner.open(key, READ), Ok(()), "it stays");
    members.note_staying(&[change]);
    assert_eq!(leaver.open(key, READ), Ok(()));
}

#[test]
fn an_ended_process_is_not_awaited() {
    let members = members();
    let stays = Process::attach(&members, 0);
    let changed = shrink(&members, 1);
    members.detach(stays.id);
    assert_eq!(late(&members, &changed, TIMEOUT), 0);
}

#[test]
fn peers_hear_of_the_end_of_a_channel_and_of_a_process() {
    let members = members();
    let mut server = Process::attach(&members, 0);
    let mut client = Process::attach(&members, 1);
    server.listen().unwrap();
    let (partition, node) = members.lock().membership(client.id, "blue").unwrap();
    let listening = members.listening(partition, node, PROTOCOL);
    assert_eq!(listening, [NodeId(0)].into());
    let own = "0,0,0".parse().unwrap();
    let itself = members.connect(server.id, "blue", own, PROTOCOL);
    assert_eq!(itself.unwrap_err().kind, RefusalKind::Invalid);
    let first = client.connect(&mut server, "0,0,0");
    let second = client.connect(&mut server, "0,0,0");
    members.disconnect(client.id, first).unwrap();
    members.disconnect(client.id, first).unwrap();
    assert_eq!(server.hears_event(), Event::ChannelGone { id: first });

    let key = server.alloc(READ);
    client.open(key, READ).unwrap();
    client.hears();
    members.detach(server.id);
    let heard = [client.hears_event(), client.hears_event()];
    assert!(
        heard.contains(&Event::ChannelGone { id: second }),
        "{heard:?}"
    );
    assert!(heard.contains(&Event::RegionGone { key }), "{heard:?}");
    assert!(members.listening(partition, node, PROTOCOL).is_empty());
    members.detach(client.id);
    assert_eq!(members.totals(|_| true).0, 0);
}

/// A queue shorter than the messages about one peer's end once cut off processes that were only not
/// scheduled for a moment.
#[test]
fn a_slow_reader_gets_a_burst_of_events() {
    let members = members();
    let mut server = Process::attach(&members, 0);
    let mut client = Process::attach(&members, 1);
    let keys: Vec<_> = (0..200).map(|_| server.alloc(READ)).collect();
    for key in &keys {
        client.open(*key, READ).unwrap();
        client.hears();
    }
    let none = BTreeSet::new();
    for _ in 0..3000 {
        change(&members, |directory| directory.grow("blue", &none));
    }
    members.detach(server.id);
    for _ in 0..3000 {
        assert!(matches!(client.hears_event(), Event::Epoch { .. }));
    }
    for _ in &keys {
        assert!(matches!(client.hears_event(), Event::RegionGone { .. }));
    }
}

#[test]
fn a_process_that_does_not_read_is_cut_off_and_blocks_no_other() {
    let members = members();
    let mut process = Process::attach(&members, 0);
    process.listen().unwrap();
    let more_than_the_socket_takes = CAPACITY + 10_000;
    for _ in 0..more_than_the_socket_takes {
        members.acknowledge(process.id, 1, 1);
        let none = BTreeSet::new();
        change(&members, |directory| directory.grow("blue", &none));
    }
    let end = loop {
        if let Err(error) = process.reader.receive::<Message>() {
            break error;
        }
    };
    assert!(!matches!(end, wire::WireError::Malformed(_)), "{end}");
}

/// A read-only mapping of a writable descriptor would keep the agent from sealing that memory.
#[test]
fn a_reader_and_writer_gets_fresh_memory_for_both() {
    let members = members();
    let [mut owner, mut user] = [0; 2].map(|node| Process::attach(&members, node));
    let mut leaver = Process::attach(&members, 1);
    let key = owner.alloc(Access::all());
    for (process, access) in [(&mut user, Access::all()), (&mut leaver, READ)] {
        process.open(key, access).unwrap();
        process.hears();
    }
    shrink(&members, 1);
    let may_write = |process: &mut Process| {
        let (message, descriptors) = process.hears();
        assert_eq!(message, Message::Event(Event::Move { key }));
        let mode = |memory| rustix::fs::fcntl_getfl(memory).unwrap() & OFlags::RWMODE;
        let [memory, _table, to_read @ ..] = &descriptors[..] else {
            panic!("there are {} descriptors", descriptors.len());
        };
        let memories = std::iter::once(memory).chain(to_read);
        memories
            .map(|memory| mode(memory) == OFlags::RDWR)
            .collect::<Vec<_>>()
    };
    assert_eq!(may_write(&mut owner), [true]);
    assert_eq!(may_write(&mut user), [true, false]);
}
