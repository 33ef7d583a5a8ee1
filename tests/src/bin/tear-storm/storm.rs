//! What each process is told and tells, and who reads.

use std::collections::VecDeque;
use std::io::{self, Write};

use bench::worker;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tests::value;
use toroid_client::member::Member;
use toroid_kv::{Client, View, ViewError};

use crate::Error;
use crate::writer::{self, Change};

/// Room for the longest value.
const ROOM: usize = 1 << 20;

/// What a process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The domain.
    pub domain: String,
    /// The server's place.
    pub server: String,
    /// Its port for memcached's protocol.
    pub port: u16,
    /// Bytes that it has for items.
    pub memory: u64,
    /// What happens.
    pub storm: Kind,
    /// Keys.
    pub keys: u32,
    /// Where its random numbers start.
    pub seed: u64,
    /// What part it has.
    pub part: Part,
}

/// What happens while values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Kind {
    /// Values are overwritten, resized, deleted and evicted.
    Changes,
    /// Keys are added, and none goes: who has found one finds it for ever.
    Growth,
    /// All keys are set and then flushed, again and again: when one is gone, so are all that were set
    /// before.
    Flushes,
}

/// What part a process has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Part {
    /// It changes things until it is asked for anything.
    Write,
    /// It reads as many values as it is asked for.
    Read,
}

/// What it did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Values that were read and checked.
    pub found: u64,
    /// Gets of keys that were not there.
    pub missed: u64,
    /// Values that were not what they should be.
    pub wrong: u64,
    /// What was wrong with one.
    pub example: Option<String>,
    /// Values stored.
    pub sets: u64,
    /// Keys removed.
    pub deletes: u64,
    /// Reads of the server's memory.
    pub reads: u64,
    /// Gets that the server had to answer.
    pub asked: u64,
}

impl Tally {
    /// Adds what another did.
    pub fn add(&mut self, other: &Tally) {
        self.found += other.found;
        self.missed += other.missed;
        self.wrong += other.wrong;
        self.sets += other.sets;
        self.deletes += other.deletes;
        self.reads += other.reads;
        self.asked += other.asked;
        if self.example.is_none() {
            self.example.clone_from(&other.example);
        }
    }

    fn complain(&mut self, key: u32, what: &str) {
        self.wrong += 1;
        self.example
            .get_or_insert_with(|| format!("key {key}: {what}"));
    }
}

/// Random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        value::mix(self.0) % limit
    }
}

/// Does what the second argument says, and answers with what was done.
pub fn obey() -> Result<(), Error> {
    let orders = std::env::args().nth(2).unwrap_or_default();
    let orders: Orders = serde_json::from_str(&orders)?;
    let domain = Member::attach()?.domain(&orders.domain)?;
    let connect = || Ok::<_, Error>(Client::connect(&domain, Some(orders.server.parse()?))?);
    let random = Random(value::mix(orders.seed));
    match orders.part {
        Part::Write => {
            let tally = match orders.storm {
                Kind::Changes => writer::change(connect()?, orders.keys)?,
                Kind::Growth => writer::grow(connect()?, orders.keys, orders.memory)?,
                Kind::Flushes => writer::flush(orders.port, orders.keys)?,
            };
            let answer: Result<Tally, String> = Ok(tally);
            Ok(writeln!(
                io::stdout(),
                "{}",
                serde_json::to_string(&answer)?
            )?)
        }
        Part::Read => {
            let mut reader = Reader::new(connect()?, random, &orders);
            let read = |gets: u64| Ok::<_, Error>(serde_json::to_value(reader.read(gets)?)?);
            Ok(worker::serve(io::stdin().lock(), io::stdout(), read)?)
        }
    }
}

/// The name of a key, also by memcached's protocol.
pub fn name(key: u32) -> [u8; 8] {
    let digit = |n: u32| b'a' + (key >> (4 * n) & 15) as u8;
    [7, 6, 5, 4, 3, 2, 1, 0].map(digit)
}

/// Gets and checks. The keys of a moment are few, so that places are known, and now and then any.
struct Reader {
    client: Client,
    random: Random,
    storm: Kind,
    keys: u64,
    /// The newest version that each key is known to have had.
    seen: Vec<u32>,
    /// In a storm of changes, the last one that is known to have happened.
    known: u32,
    /// The newest version that is known to be flushed.
    flushed: u32,
    room: Vec<u8>,
    gets: u64,
    /// Values that are borrowed, with their keys and versions.
    held: VecDeque<(u32, u32, View)>,
}

impl Reader {
    /// Gets of the same few keys.
    const MOMENT: u64 = 4096;

    /// Values that are held: more of the longest would be too much of the server's memory.
    const HELD: usize = 2;

    fn new(client: Client, random: Random, orders: &Orders) -> Self {
        Reader {
            client,
            random,
            storm: orders.storm,
            keys: orders.keys.into(),
            seen: vec![0; orders.keys as usize],
            known: 0,
            flushed: 0,
            room: vec![0; ROOM],
            gets: 0,
            held: VecDeque::new(),
        }
    }

    /// Reads so many values, and returns what was new.
    fn read(&mut self, count: u64) -> Result<Tally, Error> {
        let before = self.client.stats();
        let mut tally = Tally::default();
        while tally.found < count {
            let key = self.next_key();
            match self.get(key)? {
                Some(checked) => self.judge(&mut tally, key, checked),
                None => self.judge_miss(&mut tally, key),
            }
        }
        let stats = self.client.stats();
        tally.reads = stats.reads - before.reads;
        tally.asked = stats.asked - before.asked;
        Ok(tally)
    }

    fn next_key(&mut self) -> u32 {
        self.gets += 1;
        let near = self.gets / Self::MOMENT;
        let spread = match self.random.below(4) {
            0 => self.keys,
            _ => 64,
        };
        ((near + self.random.below(spread)) % self.keys) as u32
    }

    /// In one of three ways.
    fn get(&mut self, key: u32) -> Result<Option<Result<u32, String>>, Error> {
        let name = name(key);
        Ok(match self.random.below(3) {
            0 => self
                .client
                .get_with(&name, |value| value::check(value.data, key))?,
            1 => self.borrow(key)?,
            _ => {
                let found = self.client.get_into(&name, &mut self.room)?;
                found.map(|(_, len)| value::check(&self.room[..len], key))
            }
        })
    }

    /// Borrows and checks a value, and checks once more one that was borrowed before.
    fn borrow(&mut self, key: u32) -> Result<Option<Result<u32, String>>, Error> {
        let checked = loop {
            let Some(view) = self.client.borrow(&name(key))? else {
                return Ok(None);
            };
            match self.check_view(key, &view)? {
                Some(Ok(version)) => {
                    self.held.push_back((key, version, view));
                    break Ok(version);
                }
                Some(wrong) => break wrong,
                // It was taken back already.
                None => {}
            }
        };
        if self.held.len() <= Self::HELD {
            return Ok(Some(checked));
        }
        let Some((key, version, view)) = self.held.pop_front() else {
            return Ok(Some(checked));
        };
        Ok(Some(match self.check_view(key, &view)? {
            Some(Ok(now)) if now != version => Err(format!(
                "key {key} was borrowed in version {version} and became {now}"
            )),
            Some(Err(what)) => Err(format!("key {key} was borrowed and changed: {what}")),
            _ => checked,
        }))
    }

    /// `None` when the server has taken it back.
    fn check_view(&mut self, key: u32, view: &View) -> Result<Option<Result<u32, String>>, Error> {
        let into = &mut self.room[..view.len()];
        match view.read(0, into) {
            Ok(()) => Ok(Some(value::check(into, key))),
            Err(ViewError::Recalled) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn judge(&mut self, tally: &mut Tally, key: u32, checked: Result<u32, String>) {
        tally.found += 1;
        let newest = &mut self.seen[key as usize];
        match checked {
            Ok(version) if version < *newest => {
                tally.complain(key, &format!("version {version} after {newest}"));
            }
            Ok(version) if version <= self.flushed => {
                tally.complain(key, &format!("version {version} after it was flushed"));
            }
            Ok(version) => {
                *newest = version;
                self.learn(version);
            }
            Err(what) => tally.complain(key, &what),
        }
    }

    /// Who changes begins with nothing before the last change is done.
    fn learn(&mut self, version: u32) {
        if self.storm == Kind::Changes {
            for number in self.known + 1..version {
                let Change { key, is_delete } = Change::of(number, self.keys as u32);
                let newest = &mut self.seen[key as usize];
                // What is deleted can be found in a later version only.
                *newest = (*newest).max(number + u32::from(is_delete));
            }
            self.known = self.known.max(version.saturating_sub(1));
        }
    }

    fn judge_miss(&mut self, tally: &mut Tally, key: u32) {
        tally.missed += 1;
        let newest = self.seen[key as usize];
        match self.storm {
            Kind::Changes => {}
            Kind::Growth if newest > 0 => tally.complain(key, "it is gone"),
            Kind::Growth => {}
            // The whole round was set before it was flushed.
            Kind::Flushes => self.flushed = self.flushed.max(newest),
        }
    }
}
