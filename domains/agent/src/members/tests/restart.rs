//! An agent is killed in the middle of a shrink, and its successor completes it.

use std::os::unix::fs::FileExt;

use tempfile::TempDir;
use toroid_fabric::mem::CHUNK;
use toroid_fabric::mem::compaction::PIECE;

use super::*;
use crate::fdstore::InThread;
use crate::fdstore::takeover::Takeover;
use crate::members::unfinished::LEAVING;

const BLUE: Partition = Partition(1);
const LEN: u64 = 3 * CHUNK;
const MAX_BYTES: u64 = 2 * PIECE;
const OWNER: u32 = 0;
const STAYER: u32 = 1;
const LEAVER: u32 = 2;

/// Everything that outlives an agent: an fd store, and the descriptors of processes.
struct Fabric {
    state: TempDir,
    _fd_store: InThread,
    directory: Directory,
}

/// An agent after its takeover.
struct Agent {
    members: Arc<Members>,
    migrations: Migrations,
    unfinished: Vec<Changed>,
}

impl Fabric {
    fn new() -> Self {
        let state = TempDir::new().unwrap();
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        let wanted = Wanted {
            name: "blue".into(),
            members: full_members([OWNER, STAYER, LEAVER].map(NodeId)),
            ..Wanted::default()
        };
        directory.create(wanted).unwrap();
        Fabric {
            _fd_store: InThread::start(state.path()),
            state,
            directory,
        }
    }

    /// Starts an agent that takes over. The predecessor must have been dropped, which kills it.
    fn agent(&self) -> Agent {
        let mut takeover = self.takeover();
        let store = Box::new(Memory::holding(&self.directory));
        let (mut members, migrations) =
            Members::new(self.directory.clone(), store, MAX_BYTES, Leases::none());
        members.inherit(Arc::clone(&takeover.fd_store), &mut takeover);
        Agent {
            unfinished: members.take_up(),
            members: Arc::new(members),
            migrations,
        }
    }

    fn takeover(&self) -> Takeover {
        Takeover::take(self.state.path()).unwrap()
    }

    /// Makes the leaver's shrink durable, and does no more.
    fn shrink(&mut self, agent: &Agent) -> Change {
        self.take_out(agent, LEAVER)
    }

    /// Makes the leaver's shrink, up to its announcement; also returns the epoch.
    fn announce(&mut self, agent: &Agent) -> (Changed, u32) {
        let change = self.shrink(agent);
        let epoch = change.domain.epoch;
        let changed = agent.members.change(change, self.directory.clone());
        (changed, epoch)
    }

    /// Makes another node's shrink durable, and does no more.
    fn take_out(&mut self, agent: &Agent, node: u32) -> Change {
        let left = [NodeId(node)].into();
        let planned = agent.members.plan(|plan| plan.shrink("blue", &left));
        let (change, directory) = planned.unwrap();
        agent.members.note_leaving(std::slice::from_ref(&change));
        agent.members.keep(&directory).unwrap();
        self.directory = directory;
        change
    }

    /// Whether the fd store has no migrations and no leavers.
    fn is_settled(&self) -> bool {
        let mut takeover = self.takeover();
        let regions = takeover.inherit_all("region/").into_values();
        let moving = regions.filter(|entry| entry.descriptors.len() > 1).count();
        moving == 0 && takeover.inherit_all(LEAVING).is_empty()
    }
}

impl Agent {
    /// Copies all migrations, as the copying thread does.
    fn carry_all(&self) {
        let (all, to_carry) = mpsc::channel();
        self.migrations
            .try_iter()
            .for_each(|migration| all.send(migration).unwrap());
        drop(all);
        self.members.carry(&to_carry);
    }
}

/// A process that comes back to every agent.
struct Survivor {
    node: u32,
    process: Process,
    ticket: (u64, String),
    owned: Vec<u64>,
    /// Its present memory of the region.
    memory: File,
}

impl Survivor {
    /// Attaches a process that owns a region.
    fn owning(members: &Arc<Members>) -> (Self, RemoteKey) {
        Self::owning_so_much(members, LEN)
    }

    fn owning_so_much(members: &Arc<Members>, len: u64) -> (Self, RemoteKey) {
        let mut process = Process::attach(members, OWNER);
        let ticket = ticket(&process);
        let allocated = members.alloc(process.id, "blue", len, Access::all());
        allocated.unwrap();
        let (key, memory) = process.hears_of_region();
        let owned = vec![key.id.0];
        let survivor = Survivor {
            node: OWNER,
            process,
            ticket,
            owned,
            memory,
        };
        (survivor, key)
    }

    /// Attaches a process that has opened a region.
    fn using(members: &Arc<Members>, node: u32, key: RemoteKey, access: Access) -> Self {
        let mut process = Process::attach(members, node);
        let ticket = ticket(&process);
        process.open(key, access).unwrap();
        let (_, memory) = process.hears_of_region();
        Survivor {
            node,
            process,
            ticket,
            owned: Vec::new(),
            memory,
        }
    }

    /// Changes to fresh memory; returns the table of the migration.
    fn migrates(&mut self) -> File {
        let (message, descriptors) = self.process.hears();
        assert!(
            matches!(message, Message::Event(Event::Move { .. })),
            "{message:?}"
        );
        let mut descriptors = descriptors.into_iter().map(File::from);
        self.memory = descriptors.next().unwrap();
        descriptors.next().unwrap()
    }

    /// Comes back to the next agent; returns its remaining regions.
    fn returns(&mut self, members: &Arc<Members>) -> Vec<u64> {
        self.process = Process::attach(members, self.node);
        let (number, secret) = &self.ticket;
        let known = Known {
            regions: &self.owned,
            channels: &[],
            listeners: &[],
        };
        let back = members.resume(self.process.id, (*number, secret), &known);
        self.process.id = back.unwrap();
        match self.process.hears().0 {
            Message::Reply(Reply::Resumed { regions, .. }) => regions,
            other => panic!("{other:?}"),
        }
    }

    /// Gets its fence page.
    fn fence(&mut self) -> File {
        let members = &self.process.members;
        members.show_fence(self.process.id).unwrap();
        self.process.hears().1.remove(0).into()
    }

    fn acknowledges(&mut self, epoch: u32) {
        let event = self.process.hears_event();
        assert!(
            matches!(event, Event::Epoch { epoch: told, .. } if told == epoch),
            "{event:?}"
        );
        let members = &self.process.members;
        members.acknowledge(self.process.id, BLUE.0, epoch);
    }

    fn reads(&self, at: u64) -> u8 {
        let mut byte = [0];
        self.memory.read_exact_at(&mut byte, at).unwrap();
        byte[0]
    }

    /// First bytes of all chunks.
    fn reads_all(&self) -> [u8; 3] {
        [0, 1, 2].map(|chunk| self.reads(chunk * CHUNK))
    }

    fn fills(&self, byte: u8) {
        (0..3).for_each(|chunk| self.writes(chunk * CHUNK, byte));
    }

    fn writes(&self, at: u64, byte: u8) {
        self.memory.write_all_at(&[byte], at).unwrap();
    }
}

impl Process {
    fn hears_of_region(&mut self) -> (RemoteKey, File) {
        match self.hears() {
            (Message::Reply(Reply::Region { key, .. }), mut memory) => {
                (key, memory.remove(0).into())
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

/// Whether the first word of a fence page is set.
fn is_set(page: &File) -> bool {
    let mut word = [0; 8];
    page.read_exact_at(&mut word, 0).unwrap();
    word != [0; 8]
}

fn ticket(process: &Process) -> (u64, String) {
    match process.members.ticket(process.id).unwrap() {
        Reply::Ticket { attachment, secret } => (attachment, secret),
        other => panic!("{other:?}"),
    }
}

/// Phase of a shrink in which the agent is killed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Phase {
    Durable,
    Told,
    OneChanged,
    AllAcknowledged,
    Released,
}

/// Kills the agent in a shrink of a region that all write.
fn kill_in(phase: Phase) {
    let mut fabric = Fabric::new();
    let mut agent = fabric.agent();
    let (mut owner, key) = Survivor::owning(&agent.members);
    let mut stayer = Survivor::using(&agent.members, STAYER, key, Access::all());
    let mut leaver = Survivor::using(&agent.members, LEAVER, key, Access::all());
    owner.fills(7);
    let change = fabric.shrink(&agent);
    let epoch = change.domain.epoch;
    if phase >= Phase::Told {
        let changed = agent.members.change(change, fabric.directory.clone());
        if phase >= Phase::OneChanged {
            owner.migrates();
        }
        if phase >= Phase::AllAcknowledged {
            owner.acknowledges(epoch);
            stayer.migrates();
            stayer.acknowledges(epoch);
        }
        if phase >= Phase::Released {
            let left = &changed.change.left;
            agent.members.release_migrations(&changed, left);
            owner.writes(0, 8);
        }
    }
    drop(agent);

    agent = fabric.agent();
    let [changed] = &agent.unfinished[..] else {
        panic!("{:?}", agent.unfinished);
    };
    let members = Arc::clone(&agent.members);
    thread::scope(|scope| {
        let completed = scope.spawn(|| members.complete(changed, TIMEOUT, |_| ()));
        assert_eq!(leaver.returns(&members), [0; 0]);
        for (survivor, is_owner) in [(&mut owner, true), (&mut stayer, false)] {
            assert_eq!(survivor.returns(&members), [key.id.0]);
            survivor.migrates();
            assert!(is_owner || !completed.is_finished() || phase == Phase::Released);
            survivor.acknowledges(epoch);
        }
        assert_eq!(completed.join().unwrap(), 0, "nobody was late");
    });
    // The leaver has the old memory, which is sealed or has been copied.
    let _ = leaver.memory.write_all_at(&[9], 2 * CHUNK);
    agent.carry_all();
    let first = if phase == Phase::Released { 8 } else { 7 };
    for survivor in [&mut owner, &mut stayer] {
        assert_eq!(survivor.process.hears_event(), Event::Moved { key });
        assert_eq!(survivor.reads_all(), [first, 7, 7]);
    }
    stayer.writes(CHUNK, 5);
    assert_eq!(owner.reads(CHUNK), 5);
    assert_eq!(leaver.process.open(key, READ), Err(RefusalKind::Denied));
    assert!(fabric.is_settled());
}

#[test]
fn a_shrink_continues_after_a_kill_in_any_phase() {
    let phases = [
        Phase::Durable,
        Phase::Told,
        Phase::OneChanged,
        Phase::AllAcknowledged,
        Phase::Released,
    ];
    phases.into_iter().for_each(kill_in);
}

/// The shrink has returned, and the rest is being copied.
#[test]
fn copying_continues_after_a_takeover_without_waiting() {
    let mut fabric = Fabric::new();
    let mut agent = fabric.agent();
    let (mut owner, key) = Survivor::owning(&agent.members);
    let _leaver = Survivor::using(&agent.members, LEAVER, key, READ);
    owner.fills(7);
    let (changed, epoch) = fabric.announce(&agent);
    owner.migrates();
    owner.acknowledges(epoch);
    assert_eq!(agent.members.complete(&changed, TIMEOUT, |_| ()), 0);
    agent.members.fetch(owner.process.id, key, 0);
    assert_eq!(owner.process.hears_event(), Event::Arrived { key });
    owner.writes(0, 8);
    drop(agent);

    agent = fabric.agent();
    assert!(agent.unfinished.is_empty());
    assert!(!fabric.is_settled(), "it moves");
    owner.returns(&agent.members);
    owner.migrates();
    owner.acknowledges(epoch);
    agent.members.fetch(owner.process.id, key, 1);
    assert_eq!(owner.process.hears_event(), Event::Arrived { key });
    assert_eq!(owner.reads_all(), [8, 7, 0]);
    agent.carry_all();
    assert_eq!(owner.process.hears_event(), Event::Moved { key });
    assert_eq!(owner.reads_all(), [8, 7, 7]);
    assert!(fabric.is_settled());
}

/// A node leaves while the region still migrates because of an earlier leaver. Its process had
/// write access, and disconnected before the first change.
fn second_leaver(is_killed_between: bool) {
    let mut fabric = Fabric::new();
    let mut agent = fabric.agent();
    let (mut owner, key) = Survivor::owning(&agent.members);
    let _reader = Survivor::using(&agent.members, LEAVER, key, READ);
    let second = Survivor::using(&agent.members, STAYER, key, Access::all());
    owner.fills(7);
    agent.members.detach(second.process.id);
    let (changed, first_epoch) = fabric.announce(&agent);
    owner.migrates();
    owner.acknowledges(first_epoch);
    assert_eq!(agent.members.complete(&changed, TIMEOUT, |_| ()), 0);
    if is_killed_between {
        drop(agent);
        agent = fabric.agent();
        owner.returns(&agent.members);
        owner.migrates();
        owner.acknowledges(first_epoch);
    }

    let change = fabric.take_out(&agent, STAYER);
    let epoch = change.domain.epoch;
    agent.members.finish_migrations(&change);
    let changed = agent.members.change(change, fabric.directory.clone());
    owner.acknowledges(epoch);
    assert_eq!(agent.members.complete(&changed, TIMEOUT, |_| ()), 0);
    // The process still has the old memory, which is sealed or has been copied.
    let _ = second.memory.write_all_at(&[9], 2 * CHUNK);
    agent.carry_all();
    assert_eq!(owner.process.hears_event(), Event::Moved { key });
    assert_eq!(owner.reads_all(), [7; 3]);
    assert!(fabric.is_settled());
}

/// The second leaver once wrote to uncopied memory after its shrink had returned.
#[test]
fn a_second_leaver_cannot_write_the_source_of_an_earlier_migration() {
    second_leaver(false);
}

#[test]
fn a_second_leaver_cannot_write_the_source_after_a_takeover() {
    second_leaver(true);
}

#[test]
fn a_process_that_does_not_return_is_fenced_and_the_shrink_completes() {
    let mut fabric = Fabric::new();
    let mut agent = fabric.agent();
    let (mut owner, key) = Survivor::owning(&agent.members);
    let mut stayer = Survivor::using(&agent.members, STAYER, key, Access::all());
    let _leaver = Survivor::using(&agent.members, LEAVER, key, READ);
    let page = stayer.fence();
    owner.writes(0, 7);
    let change = fabric.shrink(&agent);
    let epoch = change.domain.epoch;
    drop(agent);

    agent = fabric.agent();
    owner.returns(&agent.members);
    owner.migrates();
    owner.acknowledges(epoch);
    let late = agent
        .members
        .complete(&agent.unfinished[0], Duration::from_millis(1), |_| ());
    assert_eq!(late, 1);
    assert!(is_set(&page), "it finds out when it goes on");
    agent.carry_all();
    assert_eq!(owner.process.hears_event(), Event::Moved { key });
    assert_eq!(owner.reads(0), 7);
    assert_eq!(stayer.returns(&agent.members), [0; 0]);
}

/// A stopped process once continued in memory that the others might have left meanwhile.
#[test]
fn a_process_that_returns_too_late_is_fenced() {
    let fabric = Fabric::new();
    let mut agent = fabric.agent();
    let (mut owner, key) = Survivor::owning(&agent.members);
    let mut late = Survivor::using(&agent.members, STAYER, key, READ);
    let pages = [owner.fence(), late.fence()];
    drop(agent);

    agent = fabric.agent();
    owner.returns(&agent.members);
    let mut forgotten = BTreeSet::new();
    agent.members.detach_absent(|nodes| {
        assert_eq!(pages.each_ref().map(is_set), [false, false]);
        let record = agent.members.regions.get(&key.id).unwrap();
        assert_eq!(record.openers.len(), 1, "no change would wait for it");
        forgotten.clone_from(nodes);
    });
    assert_eq!(forgotten, [NodeId(STAYER)].into());
    assert_eq!(pages.each_ref().map(is_set), [false, true]);
    agent.members.detach_absent(|_| panic!("there is none"));
}

/// The directory decides.
#[test]
fn a_shrink_that_did_not_become_durable_has_not_happened() {
    let mut fabric = Fabric::new();
    let mut agent = fabric.agent();
    let before = fabric.directory.clone();
    let (mut owner, key) = Survivor::owning(&agent.members);
    let mut leaver = Survivor::using(&agent.members, LEAVER, key, Access::all());
    fabric.shrink(&agent);
    fabric.directory = before;
    drop(agent);

    agent = fabric.agent();
    assert!(agent.unfinished.is_empty());
    assert!(fabric.is_settled());
    for survivor in [&mut owner, &mut leaver] {
        assert_eq!(survivor.returns(&agent.members), [key.id.0]);
        survivor.acknowledges(1);
    }
    leaver.writes(0, 9);
    assert_eq!(owner.reads(0), 9);
}

/// The next agent once reused numbers: a process that released an old channel released a new one,
/// of which the agent then knew nothing.
#[test]
fn no_number_is_given_twice() {
    let fabric = Fabric::new();
    let first = || fabric.agent().members.lock().next;
    let all = [first(), first(), first()];
    let apart = |two: &[u64]| two[1] >= two[0] + NUMBERS_A_SECOND;
    assert!(all.windows(2).all(apart), "{all:?}");
}

/// A region that peers may write is compacted, but not during a migration.
#[test]
fn a_region_that_peers_write_is_compacted_except_during_a_migration() {
    let mut fabric = Fabric::new();
    let mut agent = fabric.agent();
    let due = |agent: &Agent| agent.members.compactor.due_bytes(|node| node.0 == OWNER);
    let (mut owner, key) = Survivor::owning_so_much(&agent.members, PIECE);
    let mut reader = Survivor::using(&agent.members, STAYER, key, READ);
    assert_eq!(due(&agent), 0);
    let mut leaver = Survivor::using(&agent.members, LEAVER, key, Access::all());
    assert_eq!(due(&agent), PIECE);
    let small = owner.process.alloc(Access::all());
    leaver.process.open(small, Access::all()).unwrap();
    leaver.process.hears_of_region();
    assert_eq!(due(&agent), PIECE);
    agent.members.free(owner.process.id, small).unwrap();
    drop(agent);

    agent = fabric.agent();
    assert_eq!(due(&agent), PIECE, "it has taken over");
    for survivor in [&mut owner, &mut reader, &mut leaver] {
        assert_eq!(survivor.returns(&agent.members), [key.id.0]);
        survivor.acknowledges(1);
    }
    let (changed, epoch) = fabric.announce(&agent);
    assert_eq!(due(&agent), 0, "it moves");
    for survivor in [&mut owner, &mut reader] {
        survivor.migrates();
        survivor.acknowledges(epoch);
    }
    assert_eq!(agent.members.complete(&changed, TIMEOUT, |_| ()), 0);
    agent.carry_all();
    assert_eq!(due(&agent), PIECE, "it has arrived");
    agent.members.free(owner.process.id, key).unwrap();
    assert_eq!(due(&agent), 0, "it has ended");
}
