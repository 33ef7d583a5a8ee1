//! Members that stay.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use tests::actor::{Event, Request, report, serve};
use toroid_client::member::{Domain, Listener, Member};
use toroid_fabric::channel::ChannelError;
use toroid_fabric::emulation::Channel;
use toroid_fabric::link::DropReason;
use toroid_fabric::{Access, PacketChannel, Place, Region};

use super::super::memory::report_key;
use super::{
    COUNTED, FILED, FORGED, FORKED, FROM_DISK, LEAVER, LOOK, MOVED, OWN, PINNED, Result, SCRIBBLED,
    STAYER, Tally, event, faulted, growth, lock, marked,
};

/// Channels of leavers that are still read, at most.
const REMEMBERED: usize = 16;

/// Packets or frames read at a time from one source, at most.
const BATCH: usize = 4096;

/// Pause between two rounds of listening.
const PAUSE: Duration = Duration::from_millis(1);

/// Offset of the payload in a frame.
const PAYLOAD: usize = 14;

/// Words of a packet between members that stay; each is the packet's number.
const WORDS: usize = 128;

/// Reasons for which forged packets are dropped.
const REASONS: [(DropReason, &str); 4] = [
    (DropReason::UnknownPartition, "dropped for the partition"),
    (DropReason::OldEpoch, "dropped for the epoch"),
    (DropReason::WrongSource, "dropped for the source"),
    (DropReason::UnknownProtocol, "dropped for the protocol"),
];

pub fn guard(domain: &str, bytes: u64) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    let region = domain.alloc(bytes, Access::all())?;
    // All of it is written, so that all of it has to move.
    let chunk = vec![7; 4096];
    for page in 1..bytes / 4096 {
        region.write(page * 4096, &chunk)?;
    }
    let ears = Arc::new(Mutex::new(Ears::open(&domain)?));
    let listening = Arc::clone(&ears);
    thread::spawn(move || {
        loop {
            lock(&listening).listen();
            thread::sleep(PAUSE);
        }
    });
    report_key(&region)?;
    let mut asked = Tally::new();
    serve(|request| match request {
        Request::Sum => Ok(Event::Count(region.load(COUNTED)?)),
        Request::Marks => Ok(Event::Count(marks(&region, &chunk)?)),
        Request::Heard => {
            let now = lock(&ears).heard(&domain);
            let since = growth(&asked, &now);
            asked = now;
            Ok(event(&since))
        }
        Request::Look => {
            let found = look(&region, &ears, &chunk)?;
            asked = lock(&ears).heard(&domain);
            Ok(event(&found))
        }
        other => Err(format!("{other:?} is not for a guard").into()),
    })
}

/// Changes of memory, and packets and frames heard meanwhile, and all that should never be heard.
fn look(region: &Region, ears: &Mutex<Ears>, page: &[u8]) -> Result<Tally> {
    // Earlier packets and frames are still in queues.
    let before = lock(ears).listen();
    let changes = changes(region, page)?;
    let now = lock(ears).listen();
    let mut found = growth(&before, &now);
    found.remove("pair");
    let never = |what: &str| what.starts_with("forged") || what == "strange";
    found.extend(now.into_iter().filter(|(what, _)| never(what)));
    found.extend(changes);
    Ok(found)
}

/// Chunks with anything else than the owner wrote, which it then writes again.
fn marks(region: &Region, page: &[u8]) -> Result<u64> {
    let mut there = vec![0; page.len()];
    let mut marks = 0;
    for at in marked(region.len()) {
        region.read(at, &mut there)?;
        if there != page {
            marks += 1;
            region.write(at, page)?;
        }
    }
    Ok(marks)
}

/// Changes of the words that leavers write during a look, and changes of anything else.
fn changes(region: &Region, page: &[u8]) -> Result<Tally> {
    let len = region.len();
    let words = [
        ("memory", SCRIBBLED),
        ("memory", len - 8),
        ("pins", PINNED),
        ("files", FILED),
        ("child", FORKED),
        ("moved", MOVED),
        ("disk", FROM_DISK),
        ("faults", faulted(len)),
    ];
    let mut before = [0; 8];
    for (word, (_, at)) in before.iter_mut().zip(words) {
        *word = region.load(at)?;
    }
    let (start, mut changes) = (Instant::now(), Tally::new());
    while start.elapsed() < LOOK {
        for (before, (what, at)) in before.iter_mut().zip(words) {
            let now = region.load(at)?;
            if now != *before {
                *changes.entry(what).or_default() += 1;
            }
            *before = now;
        }
    }
    let mut there = vec![0; page.len()];
    for n in [1, len / 4096 / 2] {
        region.read(n * 4096, &mut there)?;
        if there != page {
            *changes.entry("memory").or_default() += 1;
        }
    }
    Ok(changes)
}

/// Every way by which a leaver could be heard.
struct Ears {
    leavers: Listener,
    stayers: Listener,
    /// Ended ones as well: an end is no proof that nothing more comes.
    channels: VecDeque<Channel>,
    pair: Option<Channel>,
    /// Number of the next packet from the member that stays.
    next: u64,
    /// Sees all frames of the node.
    frames: OwnedFd,
    tally: Tally,
}

impl Ears {
    fn open(domain: &Domain) -> Result<Self> {
        Ok(Ears {
            leavers: domain.listen(LEAVER)?,
            stayers: domain.listen(STAYER)?,
            channels: VecDeque::new(),
            pair: None,
            next: 0,
            frames: socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_NONBLOCK,
                SockProtocol::EthAll,
            )?,
            tally: Tally::new(),
        })
    }

    /// Reads all sources; returns the tally from the beginning.
    fn listen(&mut self) -> Tally {
        self.accept();
        self.hear_leavers();
        self.hear_pair();
        self.hear_frames();
        self.tally.clone()
    }

    fn heard(&mut self, domain: &Domain) -> Tally {
        let mut heard = self.listen();
        heard.extend(REASONS.map(|(reason, name)| (name, domain.dropped(reason))));
        heard
    }

    fn accept(&mut self) {
        while let Ok(Some(channel)) = self.leavers.accept(Duration::ZERO) {
            self.channels.push_back(channel);
        }
        self.channels
            .drain(..self.channels.len().saturating_sub(REMEMBERED));
        if let Ok(Some(channel)) = self.stayers.accept(Duration::ZERO) {
            self.pair = Some(channel);
        }
    }

    fn hear_leavers(&mut self) {
        let mut packet = Vec::new();
        for channel in &mut self.channels {
            // Its peer wakes it again and again.
            if channel.arm() {
                channel.disarm();
            }
            for _ in 0..BATCH {
                match channel.receive(&mut packet) {
                    Ok(true) => {}
                    Ok(false) | Err(_) => break,
                }
                let what = if packet.starts_with(&FORGED) {
                    "forged packets"
                } else {
                    "packets"
                };
                *self.tally.entry(what).or_default() += 1;
            }
            // The channel may be full or broken.
            let _ = channel.send(&[b"hello"]);
        }
    }

    fn hear_pair(&mut self) {
        let mut packet = Vec::new();
        let Some(channel) = &mut self.pair else {
            return;
        };
        for _ in 0..BATCH {
            let Ok(true) = channel.receive(&mut packet) else {
                return;
            };
            let what = if packet == numbered(self.next) {
                "pair"
            } else {
                "strange"
            };
            *self.tally.entry(what).or_default() += 1;
            self.next += 1;
        }
    }

    fn hear_frames(&mut self) {
        let mut frame = [0; 2048];
        for _ in 0..BATCH {
            let received = recv(self.frames.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT);
            let Ok(len) = received else {
                return;
            };
            let what = match frame.get(PAYLOAD..len).unwrap_or_default() {
                payload if payload.starts_with(&OWN) => "frames",
                payload if payload.starts_with(&FORGED) => "forged frames",
                _ => continue,
            };
            *self.tally.entry(what).or_default() += 1;
        }
    }
}

/// A packet between members that stay.
fn numbered(n: u64) -> Vec<u8> {
    [n; WORDS]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

/// Sends as a member that stays, until that fails; reports the number of packets and the error.
pub fn speak(domain: &str, place: Place) -> Result<()> {
    let mut channel = Member::attach()?.domain(domain)?.connect(place, STAYER)?;
    for n in 0.. {
        let packet = numbered(n);
        loop {
            match channel.send(&[&packet]) {
                Ok(()) => break,
                Err(ChannelError::Full) => channel.wait(LOOK),
                Err(error) => {
                    return Ok(report(&Event::Ended {
                        count: n,
                        error: Some(format!("{error:?}")),
                    })?);
                }
            }
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
