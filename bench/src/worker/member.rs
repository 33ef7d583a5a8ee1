//! A member of a changing domain: the owner of memory, a remaining member that works on the memory,
//! or the leaver.

use std::fs::File;
use std::net::SocketAddrV4;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toroid_client::member::{Domain, Member};
use toroid_fabric::provider::RemoteRegion;
use toroid_fabric::{Access, Region};

use super::answer;
use super::hammer::{self, Hammer, InFlight};
use super::hostile::{self, Grant};
use super::stamps;
use super::traffic::{self, Ear, Repeating};

/// Bytes at the start of a region that only the owner writes, all at once.
pub const WATCHED: u64 = 64 * 1024;

const WORD: usize = 8;

/// Word written by a former member, which must not arrive.
pub const SCRIBBLE: u64 = 0xbad0_bad0_bad0_bad0;

/// An order to a member. Times are those of [`hammer::now_ns`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Attach to a domain.
    Attach { domain: String },
    /// Export memory of at least twice [`WATCHED`] bytes. Answer: its key.
    Export { bytes: u64, writable: bool },
    /// Write a version to the watched bytes of the own memory.
    Fill { version: u64 },
    /// Answer: the number of watched bytes of the own memory that another process wrote.
    Foreign,
    /// Work endlessly on the peer's memory of a key, or on local memory without a key.
    Hammer { key: Option<String>, writable: bool },
    /// Answer: [`hammer::Pause`] since the last order of this kind.
    Pause,
    /// Stop working.
    Rest,
    /// Map a peer's memory without using it.
    Map { key: String, writable: bool },
    /// Measure reads of 64 B. Answer: [`Samples`](crate::samples::Samples).
    Read { key: String },
    /// Start long reads until a read fails.
    ReadOn { key: String },
    /// Answer: the time at which a long read failed with `Revoked`.
    Failed,
    /// Get access without the client library, and keep the descriptor.
    Keep { key: String, writable: bool },
    /// Read through the kept descriptor, then write bytes that must not arrive. Answer: the number
    /// of bytes read of this version or a newer one.
    Newer { version: u64 },
    /// Write times endlessly to a peer's memory: by a descriptor of memory on this host, or by
    /// one-sided operations.
    Stamp { key: String, by_descriptor: bool },
    /// Answer: the newest time in the watched bytes of the own memory.
    Newest,
    /// Answer: the number of watched bytes of the own memory with a time after this one.
    Stamped { after: u64 },
    /// Listen for datagrams and packets. Answer: the port.
    Listen,
    /// Send datagrams and packets endlessly to a node at its address and place.
    Flood(SocketAddrV4, String),
    /// Answer: the number of received packets and datagrams that were sent after this time. Forgets
    /// all of them.
    Arrived { after: u64 },
}

#[derive(Default)]
pub struct Process {
    domain: Option<Domain>,
    owned: Option<Region>,
    version: u64,
    hammer: Option<Hammer>,
    mapped: Option<RemoteRegion>,
    in_flight: Option<InFlight>,
    kept: Option<(Grant, File, bool)>,
    ear: Option<Ear>,
    flood: Option<Repeating>,
    stamps: Option<Repeating>,
}

impl Process {
    pub fn obey(&mut self, order: Order) -> Result<Value> {
        match order {
            Order::Attach { domain } => {
                answer(self.domain = Some(Member::attach()?.domain(&domain)?))
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
                answer(self.hammer = Some(Hammer::start(self.domain()?, key, writable)?))
            }
            Order::Pause => answer(self.hammer.as_ref().context("no work")?.pause()),
            Order::Rest => answer(self.hammer = None),
            Order::Map { key, writable } => {
                let mapped = self.domain()?.open(key.parse()?, rights(writable))?;
                answer(self.mapped = Some(mapped))
            }
            Order::Read { key } => answer(hammer::read(self.domain()?, key.parse()?)?),
            Order::ReadOn { key } => {
                answer(self.in_flight = Some(InFlight::start(self.domain()?, key.parse()?)?))
            }
            Order::Failed => answer(self.in_flight.take().context("no reads")?.failed()?),
            Order::Keep { key, writable } => {
                let (grant, file) = hostile::keep(key.parse()?, rights(writable))?;
                answer(self.kept = Some((grant, file, writable)))
            }
            Order::Newer { version } => self.newer(version),
            Order::Stamp { key, by_descriptor } => {
                let key = key.parse()?;
                let stamps = match by_descriptor {
                    true => stamps::write_by_descriptor(key)?,
                    false => stamps::write_by_operations(self.domain()?, key)?,
                };
                answer(self.stamps = Some(stamps))
            }
            Order::Newest => answer(stamps::newest(self.owned()?)?),
            Order::Stamped { after } => answer(stamps::bytes_after(self.owned()?, after)?),
            Order::Listen => {
                let ear = Ear::open(self.domain()?)?;
                answer(self.ear.insert(ear).port())
            }
            Order::Flood(datagrams_to, place) => {
                self.flood = None;
                let flood = traffic::flood(self.domain()?, datagrams_to, place.parse()?)?;
                answer(self.flood = Some(flood))
            }
            Order::Arrived { after } => answer(self.ear.as_ref().context("no ear")?.arrived(after)),
        }
    }

    fn domain(&self) -> Result<&Domain> {
        self.domain.as_ref().context("no domain")
    }

    fn owned(&self) -> Result<&Region> {
        self.owned.as_ref().context("no memory")
    }

    /// Exports a region and touches every page, as in memory in use.
    fn export(&mut self, bytes: u64, writable: bool) -> Result<Value> {
        self.owned = None;
        let region = self.domain()?.alloc(bytes, rights(writable))?;
        for page in (0..bytes).step_by(4096) {
            region.store(page, 1)?;
        }
        let key = region.remote_key().context("no key")?;
        self.owned = Some(region);
        answer(key.to_string())
    }

    fn foreign(&self) -> Result<Value> {
        let mut bytes = vec![0; WATCHED as usize];
        self.owned()?.read(0, &mut bytes)?;
        let wrong = words(&bytes).filter(|word| *word != self.version).count();
        answer((wrong * WORD) as u64)
    }

    fn newer(&self, version: u64) -> Result<Value> {
        let kept = self.kept.as_ref();
        let (_, file, writable) = kept.context("no descriptor")?;
        let newer = hostile::words_from(file, WATCHED as usize)?;
        let newer = words(&newer).filter(|word| (version..SCRIBBLE).contains(word));
        let newer = newer.count();
        if *writable {
            hostile::scribble(file, WATCHED as usize, SCRIBBLE);
        }
        answer((newer * WORD) as u64)
    }
}

/// All whole words of `bytes`.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks::<WORD>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

/// Access rights of peers: reading and, if writable, writing.
pub fn rights(writable: bool) -> Access {
    if writable {
        Access::REMOTE_READ | Access::REMOTE_WRITE
    } else {
        Access::REMOTE_READ
    }
}
