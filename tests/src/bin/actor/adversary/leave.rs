//! A member that keeps everything it was ever granted, and uses it after it has left.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tests::actor::{self, Event, serve};
use toroid_fabric::{Access, NodeId, Place, RemoteKey};
use toroid_protocol::agent::{ChannelInfo, Message, NODE_SOCKET, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, Writer};

use super::forger::{Forger, Manner};
use super::grips::Grips;
use super::pins::Pins;
use super::scribe::Scribe;
use super::sender::Sender;
use super::{COUNTED, LEAVER, LOOK, Result, SCRIBBLED, Tally, event, lock};

/// Kept items that each round uses: the newest, and some of the older ones in turn.
const NEWEST: usize = 3;
const OLDER: usize = 8;

/// Regions with pages pinned by the kernel, at most. The kernel limits pinned memory per user, and counts
/// huge pages whole, which allows [fewer](Kept::pin).
const PINS: usize = 16;

/// Regions that are held in all other ways, at most.
const HELD: usize = 2;

/// Pauses between rounds, before and after [`actor::Request::Retire`].
const BREATH: Duration = Duration::from_micros(50);
const REST: Duration = Duration::from_millis(20);

/// A disk that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn leave(key: RemoteKey, other: Place) -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let mut agent = Agent::greet()?;
    let kept = Arc::new(Mutex::new(Kept::default()));
    let is_retired = Arc::new(AtomicBool::new(false));
    let (used, slowly) = (Arc::clone(&kept), Arc::clone(&is_retired));
    thread::spawn(move || use_all(&used, &slowly));
    serve(|request| match request {
        actor::Request::Open => agent.open(key, other, &mut lock(&kept)),
        actor::Request::Mistake => {
            let (_, mut files) = agent.ask(&Request::Open {
                key,
                access: Access::all(),
            })?;
            lock(&kept).add(files.swap_remove(0), Access::REMOTE_READ)?;
            Ok(Event::Done)
        }
        actor::Request::Abuse => Ok(Event::Through(abuse(&lock(&kept)))),
        actor::Request::Rings => Ok(match Pins::missing() {
            None => Event::Done,
            Some(error) => Event::Failed(error.to_string()),
        }),
        actor::Request::Retire => {
            is_retired.store(true, Ordering::Relaxed);
            Ok(Event::Done)
        }
        actor::Request::Look => Ok(event(&lock(&kept).look()?)),
        other => Err(format!("{other:?} is not for a leaver").into()),
    })
}

/// Uses everything that was kept, for ever.
fn use_all(kept: &Mutex<Kept>, slowly: &AtomicBool) {
    for n in 0.. {
        lock(kept).go_on(n);
        // A request may wait for the lock.
        thread::sleep(if slowly.load(Ordering::Relaxed) {
            REST
        } else {
            BREATH
        });
    }
}

fn is_full(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory)
}

/// A connection to the agent without the library's manners.
pub struct Agent {
    reader: Reader,
    writer: Writer,
    own: Place,
    node: NodeId,
}

impl Agent {
    pub fn greet() -> Result<Self> {
        let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
        let (reader, writer) = wire::split(UnixStream::connect_addr(&address)?)?;
        let mut agent = Agent {
            reader,
            writer,
            own: Place { x: 0, y: 0, z: 0 },
            node: NodeId(0),
        };
        agent.ask_once(&Request::Hello { version: VERSION })?;
        let (Reply::Whoami { node, place, .. }, _) = agent.ask_once(&Request::Whoami)? else {
            return Err("who am I?".into());
        };
        (agent.own, agent.node) = (place, NodeId(node));
        Ok(agent)
    }

    pub fn ask(&mut self, request: &Request) -> Result<(Reply, Vec<File>)> {
        self.ask_once(request).or_else(|_| {
            // The agent was killed, and another one runs.
            *self = Agent::greet()?;
            self.ask_once(request)
        })
    }

    fn ask_once(&mut self, request: &Request) -> Result<(Reply, Vec<File>)> {
        self.say(request)?;
        loop {
            // Events are not acknowledged.
            if let (Message::Reply(reply), files) = self.hear()? {
                return Ok((reply, files));
            }
        }
    }

    pub fn say(&mut self, request: &Request) -> Result<()> {
        Ok(self.writer.send(request, &[])?)
    }

    pub fn hear(&mut self) -> Result<(Message, Vec<File>)> {
        let (message, files) = self.reader.receive()?;
        Ok((message, files.into_iter().map(File::from).collect()))
    }

    /// Opens the region for reading and for writing, and three channels to its owner.
    fn open(&mut self, key: RemoteKey, other: Place, kept: &mut Kept) -> Result<Event> {
        for access in [Access::REMOTE_READ, Access::all()] {
            let (reply, mut files) = self.ask(&Request::Open { key, access })?;
            if !matches!(reply, Reply::Region { .. }) {
                return Ok(Event::Failed(format!("{reply:?}")));
            }
            kept.add(files.swap_remove(0), access)?;
        }
        let domain = self.domain()?;
        for manner in [Manner::Forge, Manner::Ruin] {
            let (_, forger) = self.connect(&domain, manner)?;
            kept.forgers.push(forger);
        }
        // A disconnected channel is used as well.
        let (info, forger) = self.connect(&domain, Manner::Forge)?;
        self.ask(&Request::Disconnect { id: info.id })?;
        kept.forgers.push(forger);
        if kept.sender.is_none() {
            let sender = Sender::open(&domain, info.partition, self.own, info.place, other)?;
            kept.sender = Some(sender);
        }
        Ok(Event::Open)
    }

    fn domain(&mut self) -> Result<String> {
        match self.ask(&Request::Whoami)?.0 {
            Reply::Whoami { domains, .. } => Ok(domains.into_iter().next().ok_or("no domain")?),
            other => Err(format!("{other:?}").into()),
        }
    }

    fn connect(&mut self, domain: &str, manner: Manner) -> Result<(ChannelInfo, Forger)> {
        let connect = Request::Connect {
            domain: domain.to_owned(),
            place: Place { x: 0, y: 0, z: 0 },
            protocol: LEAVER.0,
        };
        match self.ask(&connect)? {
            (Reply::Channel(info), files) => {
                let forger = Forger::new(&info, self.node, manner, files)?;
                Ok((info, forger))
            }
            (other, _) => Err(format!("{other:?}").into()),
        }
    }
}

/// Everything that it was ever granted.
#[derive(Default)]
struct Kept {
    regions: Vec<KeptRegion>,
    forgers: Vec<Forger>,
    sender: Option<Sender>,
}

struct KeptRegion {
    file: File,
    access: Access,
    /// `None` for some: memory that is mapped nowhere is revoked in another way.
    mapped: Option<Scribe>,
    /// `None` for some: memory without pinned pages is revoked in another way.
    pins: Option<Pins>,
    grips: Option<Grips>,
}

impl Kept {
    fn add(&mut self, file: File, access: Access) -> Result<()> {
        // Mapped in every way and held by the kernel, only held, or neither.
        let writable = (access != Access::REMOTE_READ).then_some(self.regions.len() / 2 % 3);
        let mapped = (writable == Some(0)).then(|| Scribe::map(&file));
        let grips = (writable == Some(0)).then(|| Grips::new(&file));
        let pins = writable.is_some_and(|n| n < 2).then(|| self.pin(&file));
        self.regions.push(KeptRegion {
            mapped: mapped.transpose()?,
            grips: grips.transpose()?,
            pins: pins.transpose()?,
            file,
            access,
        });
        self.keep_pins(PINS);
        let held = self.regions.iter_mut().rev();
        if let Some(oldest) = held.filter(|region| region.grips.is_some()).nth(HELD) {
            oldest.grips = None;
        }
        Ok(())
    }

    /// Pins a page. At the kernel's limit it first unpins older ones. The kernel counts them until it has
    /// ended their rings, in its own time; until then a page is only held by a pipe.
    fn pin(&mut self, file: &File) -> Result<Pins> {
        for held in (0..PINS).rev() {
            match Pins::new(file, true) {
                Err(error) if is_full(&*error) => self.keep_pins(held),
                result => return result,
            }
        }
        Pins::new(file, false)
    }

    fn keep_pins(&mut self, most: usize) {
        let pinned = self.regions.iter_mut().rev();
        if let Some(oldest) = pinned.filter(|region| region.pins.is_some()).nth(most) {
            oldest.pins = None;
        }
    }

    fn go_on(&mut self, round: usize) {
        for n in some(round, self.regions.len()) {
            self.regions[n].scribble(round as u64);
            if let Some(pins) = &mut self.regions[n].pins {
                // Fails after writing was revoked.
                let _ = pins.go_on(round as u64);
            }
            if let Some(grips) = &mut self.regions[n].grips {
                grips.go_on(round as u64).expect("its mappings are its own");
            }
        }
        for n in some(round, self.forgers.len()) {
            // Its own mapping does not fail.
            self.forgers[n].go_on().expect("it may write there");
        }
        if let Some(sender) = &mut self.sender {
            sender.go_on();
        }
    }

    /// Changes by others during a look, by the way in which they are seen.
    fn look(&mut self) -> Result<Tally> {
        const WAYS: [&str; 7] = [
            "memory", "packets", "pins", "pipes", "disk", "child", "moved",
        ];
        self.settle()?;
        let (start, mut changes) = (Instant::now(), Tally::new());
        let mut before = self.seen()?;
        while start.elapsed() < LOOK {
            let now = self.seen()?;
            for (what, (before, now)) in WAYS.iter().zip(before.iter().zip(&now)) {
                let newer = newer(before, now);
                if newer > 0 {
                    *changes.entry(what).or_default() += newer;
                }
            }
            before = now;
        }
        Ok(changes)
    }

    /// Waits for the rounds of disks and children that are under way, which may still report older
    /// values. A value newer than those is seen in the look that follows.
    fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let rounds = || {
            let grips = self
                .regions
                .iter()
                .filter_map(|region| region.grips.as_ref());
            grips.flat_map(Grips::rounds).collect::<Vec<_>>()
        };
        let began = rounds();
        let has_ended = |(before, now): (&[u64; 2], &[u64; 2])| now[1] >= before[0];
        while !began.iter().zip(&rounds()).all(has_ended) {
            if Instant::now() > deadline {
                return Err("a disk or a child does not go on".into());
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Counted words, in the order of the ways in [`Kept::look`].
    fn seen(&mut self) -> Result<[Vec<u64>; 7]> {
        let (counted, said) = (self.counted()?, self.said()?);
        let (mut pinned, mut piped) = (vec![], vec![]);
        for pins in self
            .regions
            .iter_mut()
            .filter_map(|region| region.pins.as_mut())
        {
            pinned.extend(pins.pinned()?);
            piped.push(pins.piped()?);
        }
        let (mut disk, mut child, mut moved) = (vec![], vec![], vec![]);
        for grips in self
            .regions
            .iter()
            .filter_map(|region| region.grips.as_ref())
        {
            let counted = grips.counted();
            disk.push(counted.0);
            child.push(counted.1);
            moved.extend(counted.2);
        }
        Ok([counted, said, pinned, piped, disk, child, moved])
    }

    fn counted(&self) -> Result<Vec<u64>> {
        let word = |region: &KeptRegion| {
            let mut word = [0; 8];
            region.file.read_exact_at(&mut word, COUNTED)?;
            Ok(u64::from_le_bytes(word))
        };
        self.regions.iter().map(word).collect()
    }

    fn said(&self) -> Result<Vec<u64>> {
        self.forgers.iter().map(Forger::said).collect()
    }
}

/// Words that have grown. Old memory may have been dropped, and then reads as zeros.
fn newer(before: &[u64], now: &[u64]) -> u64 {
    before.iter().zip(now).filter(|(b, n)| b < n).count() as u64
}

/// Indices of the items that a round uses.
fn some(round: usize, len: usize) -> impl Iterator<Item = usize> {
    let older = len.saturating_sub(NEWEST);
    let in_turn = (0..OLDER.min(older)).map(move |n| (round * OLDER + n) % older.max(1));
    in_turn.chain(older..len)
}

impl KeptRegion {
    /// Writes wherever it may.
    fn scribble(&mut self, n: u64) {
        let end = self.file.metadata().map_or(4096, |metadata| metadata.len());
        for at in [SCRIBBLED, end - 8] {
            // Fails where only reading was granted, and after writing was revoked.
            let _ = self.file.write_at(&n.to_le_bytes(), at);
            if let Some(scribe) = &mut self.mapped {
                scribe
                    .write(at, &n.to_le_bytes())
                    .expect("it may write there");
            }
        }
    }
}

/// Attempts beyond the rights of a descriptor that succeeded.
fn abuse(kept: &Kept) -> BTreeSet<String> {
    let mut through = BTreeSet::new();
    let identity = |file: &Metadata| (file.dev(), file.ino());
    let kept_files = kept
        .regions
        .iter()
        .flat_map(|region| region.file.metadata());
    let kept_files: BTreeSet<_> = kept_files.map(|file| identity(&file)).collect();
    let is_kept = |file: &Metadata| kept_files.contains(&identity(file));
    for KeptRegion { file, access, .. } in &kept.regions {
        let mut note =
            |what: &str, done: bool| _ = done.then(|| through.insert(String::from(what)));
        let end = file.metadata().map_or(4096, |metadata| metadata.len());
        for len in [0, end - 4096, end + 4096] {
            note("truncate", file.set_len(len).is_ok());
        }
        // Allowed with a descriptor for writing.
        if *access == Access::REMOTE_READ {
            let seal = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
            note("seal", fcntl(file, seal).is_ok());
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            note("punch", fallocate(file, punch, 0, 4096).is_ok());
            note("write", file.write_at(&[1], SCRIBBLED).is_ok());
        }
        // Up to the user, not to the descriptor: the agent and the host's root may reopen it.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        note("open once more", File::open(&path).is_ok());
        let reopened = File::options().write(true).open(path);
        note("open for writing", reopened.is_ok());
    }
    let mappings = fs::read_dir("/proc/self/map_files").into_iter().flatten();
    for mapping in mappings.flatten() {
        let reopened = File::open(mapping.path()).and_then(|file| file.metadata());
        if reopened.is_ok_and(|file| is_kept(&file)) {
            through.insert("open a mapping".into());
        }
    }
    // The interface is the node's own: its root may set it up again.
    let _ = Command::new("ip")
        .args(["link", "set", "blue", "up"])
        .output();
    through
}
