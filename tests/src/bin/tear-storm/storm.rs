//! Who writes, and who reads.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bench::worker;
use domains::member::Member;
use rdma_kv::Client;
use serde::{Deserialize, Serialize};
use tests::value;

use crate::Error;

/// Room for the longest value.
const ROOM: usize = 1 << 20;

/// What a process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The domain.
    pub domain: String,
    /// The server's place.
    pub server: String,
    /// Keys.
    pub keys: u32,
    /// Where its random numbers start.
    pub seed: u64,
    /// What part it has.
    pub part: Part,
}

/// What part a process has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Part {
    /// It sets and deletes until it is asked for anything.
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
    let client = Client::connect(&domain, Some(orders.server.parse()?))?;
    let random = Random(value::mix(orders.seed));
    match orders.part {
        Part::Write => {
            let answer: Result<Tally, String> = Ok(write(client, random, orders.keys)?);
            Ok(writeln!(
                io::stdout(),
                "{}",
                serde_json::to_string(&answer)?
            )?)
        }
        Part::Read => {
            let mut reader = Reader::new(client, random, orders.keys);
            let read = |gets: u64| Ok::<_, Error>(serde_json::to_value(reader.read(gets)?)?);
            Ok(worker::serve(io::stdin().lock(), io::stdout(), read)?)
        }
    }
}

/// Sets and deletes until there is a line on standard input, or its end.
fn write(mut client: Client, mut random: Random, keys: u32) -> Result<Tally, Error> {
    static STOP: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        // Whatever comes, also an error, ends it.
        let _ = io::stdin().read_line(&mut String::new());
        STOP.store(true, Ordering::Relaxed);
    });
    let mut tally = Tally::default();
    let mut versions = vec![0u32; keys as usize];
    let mut value = Vec::new();
    while !STOP.load(Ordering::Relaxed) {
        let key = random.below(keys.into()) as u32;
        if random.below(8) == 0 {
            client.delete(&key.to_le_bytes())?;
            tally.deletes += 1;
            continue;
        }
        versions[key as usize] += 1;
        value::write(&mut value, key, versions[key as usize]);
        client.set(&key.to_le_bytes(), 0, 0, &value)?;
        tally.sets += 1;
    }
    Ok(tally)
}

/// Gets and checks. The keys of a moment are few, so that places are known, and now and then any.
struct Reader {
    client: Client,
    random: Random,
    keys: u64,
    /// The newest version of each key so far.
    seen: Vec<u32>,
    room: Vec<u8>,
    gets: u64,
}

impl Reader {
    /// Gets of the same few keys.
    const MOMENT: u64 = 4096;

    fn new(client: Client, random: Random, keys: u32) -> Self {
        Reader {
            client,
            random,
            keys: keys.into(),
            seen: vec![0; keys as usize],
            room: vec![0; ROOM],
            gets: 0,
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
                None => tally.missed += 1,
            }
        }
        let stats = self.client.stats();
        tally.reads = stats.reads - before.reads;
        tally.asked = stats.unsettled - before.unsettled;
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

    /// In either of the two ways.
    fn get(&mut self, key: u32) -> Result<Option<Result<u32, String>>, Error> {
        let name = key.to_le_bytes();
        Ok(match self.random.below(2) {
            0 => self
                .client
                .get_with(&name, |value| value::check(value.data, key))?,
            _ => {
                let found = self.client.get_into(&name, &mut self.room)?;
                found.map(|(_, len)| value::check(&self.room[..len], key))
            }
        })
    }

    fn judge(&mut self, tally: &mut Tally, key: u32, checked: Result<u32, String>) {
        tally.found += 1;
        let newest = &mut self.seen[key as usize];
        match checked {
            Ok(version) if version < *newest => {
                tally.complain(key, &format!("version {version} after {newest}"));
            }
            Ok(version) => *newest = version,
            Err(what) => tally.complain(key, &what),
        }
    }
}
