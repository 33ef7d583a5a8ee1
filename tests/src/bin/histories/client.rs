//! What a client does, until it is killed: it says what it is about to do, does it, and says what came
//! of it.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tests::random::Random;
use tests::value;
use toroid_client::member::{Domain, Member};
use toroid_kv::Client;

use crate::history::{KEYS, Operation, Outcome};
use crate::keeper::{Order, Part};
use crate::text::Text;
use crate::{DOMAIN, Error, SERVER, now_ns};

/// Operations of a client in a history.
const OPERATIONS: u32 = 10;

/// Room for the longest value.
const ROOM: usize = 1 << 20;

/// Between operations a client waits so long at most.
const PAUSE_NS: usize = 20_000;

/// A server that was killed is back within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client says, each in a line.
#[derive(Serialize, Deserialize)]
pub enum Note {
    /// It can be told what to do.
    Ready,
    /// It asks for this.
    Begin { operation: Operation, at_ns: u64 },
    /// What was answered to the oldest thing that was not answered before.
    End { outcome: Outcome, at_ns: u64 },
    /// There will be no answer to that.
    Failed { why: String },
    /// It has done what it was told.
    Over,
}

fn say(note: &Note) -> Result<(), Error> {
    let mut line = serde_json::to_vec(note)?;
    line.push(b'\n');
    // At once, so that who is killed has said it, or not.
    Ok(io::stdout().write_all(&line)?)
}

/// Does what the second argument and then the input say.
pub fn obey() -> Result<(), Error> {
    let part = std::env::args().nth(2).unwrap_or_default();
    let mut actor = Actor::new(serde_json::from_str(&part)?)?;
    say(&Note::Ready)?;
    for line in io::stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            Order::Prepare { history } => actor.prepare(history)?,
            Order::Act {
                history,
                seed,
                start_ns,
                port,
                ..
            } => {
                actor.act(history, seed, start_ns, port)?;
            }
        }
        say(&Note::Over)?;
    }
    Ok(())
}

/// A way to the server.
enum Door {
    Rdma(Box<Client>),
    Text(Text),
    Closed,
}

struct Actor {
    /// 0 is the client by memcached's protocol.
    number: u8,
    domain: Domain,
    door: Door,
    value: Vec<u8>,
    room: Vec<u8>,
}

impl Actor {
    fn new(part: Part) -> Result<Self, Error> {
        let mut actor = Actor {
            number: match part {
                Part::Rdma { number } => number,
                _ => 0,
            },
            domain: Member::attach()?.domain(DOMAIN)?,
            door: Door::Closed,
            value: Vec::new(),
            room: vec![0; ROOM],
        };
        if actor.number > 0 {
            actor.connect(0)?;
        }
        Ok(actor)
    }

    /// Also to a server that is only about to be there.
    fn connect(&mut self, port: u16) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let door: Result<Door, Error> = match self.number {
                0 => Text::connect(port).map(Door::Text).map_err(Error::from),
                _ => Client::connect(&self.domain, Some(SERVER.parse()?))
                    .map(|client| Door::Rdma(Box::new(client)))
                    .map_err(Error::from),
            };
            match door {
                Ok(door) => {
                    self.door = door;
                    return Ok(());
                }
                Err(error) if start.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// One client gives all keys a value before the others begin.
    fn prepare(&mut self, history: u32) -> Result<(), Error> {
        if self.number == 1 {
            for key in 0..KEYS {
                let version = version(history, 7, key.into());
                let set = Operation::Set { key, version };
                // It may be the first to notice that the server was killed.
                if !self.call(set, false)? {
                    self.connect(0)?;
                    self.call(set, false)?;
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, history: u32, seed: u64, start_ns: u64, port: u16) -> Result<(), Error> {
        let mut random = Random(seed ^ u64::from(self.number) << 56);
        if matches!(self.door, Door::Closed) {
            self.connect(port)?;
        }
        wait_until(start_ns);
        for number in 0..OPERATIONS {
            let key = random.below(KEYS.into()) as u8;
            let operation = match random.below(20) {
                0..=10 => Operation::Get { key },
                11..=15 => Operation::Set {
                    key,
                    version: version(history, self.number, number),
                },
                16..=18 => Operation::Delete { key },
                _ => Operation::Flush,
            };
            if !self.call(operation, random.one_in(2))? {
                // The server was killed. Where it is then, by memcached's protocol, is said later.
                self.door = Door::Closed;
                match self.number {
                    0 => return Ok(()),
                    _ => self.connect(port)?,
                }
            }
            wait_until(now_ns() + random.below(PAUSE_NS) as u64);
        }
        Ok(())
    }

    /// Returns whether the server answered. There are two ways to get a value.
    fn call(&mut self, operation: Operation, other_way: bool) -> Result<bool, Error> {
        if let Operation::Set { key, version } = operation {
            value::write(&mut self.value, number_of(key), version);
        }
        let at_ns = now_ns();
        say(&Note::Begin { operation, at_ns })?;
        let outcome = self.carry_out(operation, other_way);
        let at_ns = now_ns();
        let answered = outcome.is_ok();
        say(&match outcome {
            Ok(outcome) => Note::End { outcome, at_ns },
            Err(error) => Note::Failed {
                why: format!("{operation:?}: {error}"),
            },
        })?;
        Ok(answered)
    }

    fn carry_out(&mut self, operation: Operation, other_way: bool) -> Result<Outcome, Error> {
        Ok(match (&mut self.door, operation) {
            (Door::Rdma(client), Operation::Set { key, .. }) => {
                client.set(name(key).as_bytes(), 0, 0, &self.value)?;
                Outcome::Done
            }
            (Door::Rdma(client), Operation::Delete { key }) => {
                Outcome::Deleted(client.delete(name(key).as_bytes())?)
            }
            (Door::Rdma(client), Operation::Get { key }) if other_way => {
                let found = client.get_into(name(key).as_bytes(), &mut self.room)?;
                found_in(key, found.map(|(_, len)| &self.room[..len]))
            }
            (Door::Rdma(client), Operation::Get { key }) => {
                let found = client.get(name(key).as_bytes())?;
                found_in(key, found.as_ref().map(|value| &value.data[..]))
            }
            (Door::Rdma(client), Operation::Flush) => {
                client.flush_all(0)?;
                Outcome::Done
            }
            (Door::Text(text), Operation::Set { key, .. }) => {
                text.set(&name(key), &self.value)?;
                Outcome::Done
            }
            (Door::Text(text), Operation::Delete { key }) => {
                Outcome::Deleted(text.delete(&name(key))?)
            }
            (Door::Text(text), Operation::Get { key }) => {
                found_in(key, text.get(&name(key))?.as_deref())
            }
            (Door::Text(text), Operation::Flush) => {
                text.flush()?;
                Outcome::Done
            }
            (_, operation) => return Err(format!("{operation:?} is not possible here").into()),
        })
    }
}

fn found_in(key: u8, value: Option<&[u8]>) -> Outcome {
    match value.map(|value| value::check(value, number_of(key))) {
        None => Outcome::Found(None),
        Some(Ok(version)) => Outcome::Found(Some(version)),
        Some(Err(what)) => Outcome::Nonsense(what),
    }
}

/// No two sets have the same.
fn version(history: u32, client: u8, number: u32) -> u32 {
    history << 8 | u32::from(client) << 5 | number
}

/// The values of one key are long ones, too.
fn number_of(key: u8) -> u32 {
    key.into()
}

fn name(key: u8) -> String {
    format!("key-{key}")
}

fn wait_until(at_ns: u64) {
    while now_ns() < at_ns {
        std::hint::spin_loop();
    }
}
