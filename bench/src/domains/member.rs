//! The part that runs inside a node: a process that owns memory, or works on a peer's, or has to
//! leave. It takes orders as a [worker](crate::worker) does.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toroid_client::member::{Domain, Member, MemberError};
use toroid_fabric::key::KeyFormatError;
use toroid_fabric::topology::TopologyError;
use toroid_fabric::{Access, OpError, Region, RemoteKey};
use toroid_protocol::wire::WireError;

use super::hammer::{self, Hammer, InFlight};
use super::hostile::{self, Grant};
use super::traffic::{Ear, Flood};
use crate::stats::Slice;

/// Bytes at the start of a region that its owner alone writes, all of them at a time.
pub const WATCHED: u64 = 64 * 1024;

const WORD: usize = 8;

/// What who has left writes where it must not arrive.
pub const SCRIBBLE: u64 = 0xbad0_bad0_bad0_bad0;

/// What a member is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Attach, in a domain.
    Attach {
        /// The domain.
        domain: String,
    },
    /// Own memory. Answer: its key.
    Export {
        /// Bytes, at least twice [`WATCHED`].
        bytes: u64,
        /// Whether peers may write, too.
        writable: bool,
    },
    /// Write a version to what is watched of the memory owned.
    Fill {
        /// The version.
        version: u64,
    },
    /// Answer: bytes watched of the memory owned that somebody else wrote.
    Foreign,
    /// Work on memory without end: a peer's, or one's own when there is no key.
    Hammer {
        /// The memory.
        key: Option<String>,
        /// Whether to write, too.
        writable: bool,
    },
    /// Answer: [`hammer::Pause`] since the last time.
    Pause,
    /// Stop working.
    Rest,
    /// Map a peer's memory and do nothing with it.
    Map {
        /// The memory.
        key: String,
        /// Whether to be able to write.
        writable: bool,
    },
    /// Measure reads of 64 B. Answer: a [`Slice`].
    Read {
        /// The memory.
        key: String,
    },
    /// Read long stretches until it fails.
    ReadOn {
        /// The memory.
        key: String,
    },
    /// Answer: when that failed with `Revoked`, by the clock of [`hammer::now_ns`].
    Failed,
    /// Get access without our library, and keep the descriptor whatever happens.
    Keep {
        /// The memory.
        key: String,
        /// Whether to be able to write.
        writable: bool,
    },
    /// Through the descriptor kept: write what must not arrive. Answer: bytes read that are of
    /// this version or newer.
    Newer {
        /// The version.
        version: u64,
    },
    /// Listen for datagrams and packets. Answer: the port.
    Listen,
    /// Send both without end.
    Flood {
        /// Where to.
        address: Ipv4Addr,
        /// Where to.
        port: u16,
        /// The place of the same node.
        place: String,
    },
    /// Answer: how many came that were sent after this time; all are forgotten.
    Arrived {
        /// By the clock of [`hammer::now_ns`].
        after: u64,
    },
}

/// Why a member could not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum MemberFailure {
    /// The system's reason.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The agent's.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The agent's, to who speaks to it without our library.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// No operation was possible.
    #[error(transparent)]
    Op(#[from] OpError),
    /// What was read was not timed.
    #[error(transparent)]
    Post(#[from] toroid_fabric::PostError),
    /// No key.
    #[error(transparent)]
    Key(#[from] KeyFormatError),
    /// No place.
    #[error(transparent)]
    Place(#[from] TopologyError),
    /// Not understood.
    #[error("not an order: {0}")]
    Order(#[from] serde_json::Error),
    /// The agent granted something else.
    #[error("the agent refused: {0}")]
    Refused(String),
    /// Asked for too early.
    #[error("{0} was asked for before it was set up")]
    NotSetUp(&'static str),
}

/// A member's state.
#[derive(Default)]
pub struct Process {
    domain: Option<Domain>,
    owned: Option<Region>,
    version: u64,
    hammer: Option<Hammer>,
    mapped: Option<toroid_fabric::provider::RemoteRegion>,
    in_flight: Option<InFlight>,
    kept: Option<(Grant, File, bool)>,
    ear: Option<Ear>,
    flood: Option<Flood>,
}

impl Process {
    /// Does what it is told.
    ///
    /// # Errors
    /// [`MemberFailure`].
    pub fn obey(&mut self, order: Order) -> Result<Value, MemberFailure> {
        match order {
            Order::Attach { domain } => {
                self.domain = Some(Member::attach()?.domain(&domain)?);
                answer(())
            }
            Order::Export { bytes, writable } => self.export(bytes, writable),
            Order::Fill { version } => {
                self.version = version;
                let bytes = version.to_le_bytes().repeat(WATCHED as usize / WORD);
                answer(self.owned()?.write(0, &bytes)?)
            }
            Order::Foreign => self.foreign(),
            Order::Hammer { key, writable } => {
                let key = key.map(|key| key.parse()).transpose()?;
                self.hammer = Some(Hammer::start(self.domain()?, key, writable)?);
                answer(())
            }
            Order::Pause => {
                let hammer = self.hammer.as_ref();
                answer(hammer.ok_or(MemberFailure::NotSetUp("work"))?.pause())
            }
            Order::Rest => {
                self.hammer = None;
                answer(())
            }
            Order::Map { key, writable } => {
                let access = rights(writable);
                self.mapped = Some(self.domain()?.open(key.parse()?, access)?);
                answer(())
            }
            Order::Read { key } => answer(self.read(key.parse()?)?),
            Order::ReadOn { key } => {
                self.in_flight = Some(InFlight::start(self.domain()?, key.parse()?)?);
                answer(())
            }
            Order::Failed => {
                let reading = self.in_flight.take();
                let failed = reading.ok_or(MemberFailure::NotSetUp("reading"))?.failed();
                answer(failed.map_err(MemberFailure::Refused)?)
            }
            Order::Keep { key, writable } => {
                let (grant, file) = hostile::keep(key.parse()?, rights(writable))?;
                self.kept = Some((grant, file, writable));
                answer(())
            }
            Order::Newer { version } => self.newer(version),
            Order::Listen => {
                let ear = Ear::open(self.domain()?)?;
                let port = ear.port();
                self.ear = Some(ear);
                answer(port)
            }
            Order::Flood {
                address,
                port,
                place,
            } => {
                self.flood = None;
                let flood = Flood::start(self.domain()?, (address, port), place.parse()?)?;
                self.flood = Some(flood);
                answer(())
            }
            Order::Arrived { after } => {
                let ear = self.ear.as_ref();
                answer(ear.ok_or(MemberFailure::NotSetUp("an ear"))?.arrived(after))
            }
        }
    }

    fn domain(&self) -> Result<&Domain, MemberFailure> {
        self.domain
            .as_ref()
            .ok_or(MemberFailure::NotSetUp("a domain"))
    }

    fn owned(&self) -> Result<&Region, MemberFailure> {
        self.owned.as_ref().ok_or(MemberFailure::NotSetUp("memory"))
    }

    /// Every page is there afterwards, as in memory that has been in use for a while.
    fn export(&mut self, bytes: u64, writable: bool) -> Result<Value, MemberFailure> {
        self.owned = None;
        let region = self.domain()?.alloc(bytes, rights(writable))?;
        for page in (0..bytes).step_by(4096) {
            region.store(page, 1)?;
        }
        let key = region
            .remote_key()
            .ok_or(MemberFailure::NotSetUp("a key"))?;
        self.owned = Some(region);
        answer(key.to_string())
    }

    fn foreign(&self) -> Result<Value, MemberFailure> {
        let mut bytes = vec![0; WATCHED as usize];
        self.owned()?.read(0, &mut bytes)?;
        let wrong = words(&bytes).filter(|word| *word != self.version).count();
        answer((wrong * WORD) as u64)
    }

    fn newer(&self, version: u64) -> Result<Value, MemberFailure> {
        let kept = self.kept.as_ref();
        let (_, file, writable) = kept.ok_or(MemberFailure::NotSetUp("a descriptor"))?;
        let newer = hostile::words_from(file, WATCHED as usize)?;
        let newer = words(&newer).filter(|word| (version..SCRIBBLE).contains(word));
        let newer = newer.count();
        if *writable {
            hostile::scribble(file, WATCHED as usize, SCRIBBLE);
        }
        answer((newer * WORD) as u64)
    }

    fn read(&self, key: RemoteKey) -> Result<Slice, MemberFailure> {
        hammer::read(self.domain()?, key)
    }
}

/// The words of which there are whole ones.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks::<WORD>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

fn rights(writable: bool) -> Access {
    if writable {
        Access::REMOTE_READ | Access::REMOTE_WRITE
    } else {
        Access::REMOTE_READ
    }
}

fn answer(what: impl Serialize) -> Result<Value, MemberFailure> {
    Ok(serde_json::to_value(what)?)
}
