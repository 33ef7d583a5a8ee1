//! Tasks and reports of writers and readers, and the readers.

use std::collections::VecDeque;
use std::io::{self, Write};

use bench::worker;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tests::checks::{Result, task};
use tests::random::{Random, mix};
use tests::value;
use toroid_client::member::Member;
use toroid_kv::{Client, View, ViewError};

use crate::writer::{self, Change};

/// Bytes of a buffer for the longest value.
const ROOM: usize = 1 << 20;

/// The task of a process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    /// The domain.
    pub domain: String,
    /// The node of the server.
    pub server: String,
    /// Its port for memcached's protocol.
    pub port: u16,
    /// Bytes that the server has for items.
    pub memory: u64,
    /// The changes.
    pub storm: Kind,
    /// Keys.
    pub keys: u32,
    /// Seed of its random numbers.
    pub seed: u64,
    /// Its part.
    pub part: Part,
}

/// The changes while values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Kind {
    /// Values are overwritten, resized, deleted and evicted.
    Changes,
    /// Keys are added, and none is removed: a reader that has found a key finds it for ever.
    Growth,
    /// All keys are set and then flushed, again and again: once one is gone, all that were set before it
    /// are.
    Flushes,
}

/// The part of a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Part {
    /// A writer, up to the first line of its input.
    Write,
    /// A reader, of as many values as each line of its input says.
    Read,
}

/// Totals of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Values read and checked.
    pub found: u64,
    /// Gets of absent keys.
    pub missed: u64,
    /// Wrong values.
    pub wrong: u64,
    /// The error of one of them.
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
    /// Adds the totals of another process.
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

/// Carries out the [`Task`] in the second argument, and reports a [`Tally`].
pub fn serve() -> Result<()> {
    let task: Task = serde_json::from_str(&task())?;
    let domain = Member::attach()?.domain(&task.domain)?;
    let connect = || Result::Ok(Client::connect(&domain, Some(task.server.parse()?))?);
    let random = Random(mix(task.seed));
    match task.part {
        Part::Write => {
            let tally = match task.storm {
                Kind::Changes => writer::change(connect()?, task.keys)?,
                Kind::Growth => writer::grow(connect()?, task.keys, task.memory)?,
                Kind::Flushes => writer::flush(task.port, task.keys)?,
            };
            let answer: std::result::Result<Tally, String> = Ok(tally);
            Ok(writeln!(
                io::stdout(),
                "{}",
                serde_json::to_string(&answer)?
            )?)
        }
        Part::Read => {
            let mut reader = Reader::new(connect()?, random, &task);
            let mut read = |gets: u64| Result::Ok(serde_json::to_value(reader.read(gets)?)?);
            let read = |gets| read(gets).map_err(|error| error.to_string());
            Ok(worker::serve(io::stdin().lock(), io::stdout(), read)?)
        }
    }
}

/// The name of a key, also by memcached's protocol.
pub fn name(key: u32) -> [u8; 8] {
    let digit = |n: u32| b'a' + (key >> (4 * n) & 15) as u8;
    [7, 6, 5, 4, 3, 2, 1, 0].map(digit)
}

/// The version of a value, or its error.
type Checked = std::result::Result<u32, String>;

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
    /// Gets from the same few keys.
    const MOMENT: u64 = 4096;

    /// Borrowed values: more of the longest would take too much of the server's memory.
    const HELD: usize = 2;

    fn new(client: Client, random: Random, task: &Task) -> Self {
        Reader {
            client,
            random,
            storm: task.storm,
            keys: task.keys.into(),
            seen: vec![0; task.keys as usize],
            known: 0,
            flushed: 0,
            room: vec![0; ROOM],
            gets: 0,
            held: VecDeque::new(),
        }
    }

    /// Reads so many values, and returns the totals of these.
    fn read(&mut self, count: u64) -> Result<Tally> {
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
            0 => self.keys as usize,
            _ => 64,
        };
        ((near + self.random.below(spread) as u64) % self.keys) as u32
    }

    /// In one of three ways.
    fn get(&mut self, key: u32) -> Result<Option<Checked>> {
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
    fn borrow(&mut self, key: u32) -> Result<Option<Checked>> {
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
    fn check_view(&mut self, key: u32, view: &View) -> Result<Option<Checked>> {
        let into = &mut self.room[..view.len()];
        match view.read(0, into) {
            Ok(()) => Ok(Some(value::check(into, key))),
            Err(ViewError::Recalled) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn judge(&mut self, tally: &mut Tally, key: u32, checked: Checked) {
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

    /// A writer finishes each change before it begins the next.
    fn learn(&mut self, version: u32) {
        if self.storm == Kind::Changes {
            for number in self.known + 1..version {
                let Change { key, is_delete } = Change::of(number, self.keys as u32);
                let newest = &mut self.seen[key as usize];
                // A deleted key is found in a later version only.
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
