//! A client reports each operation before it begins, and its outcome, until it is killed.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tests::checks::{Result, now_ns, task};
use tests::linearizability::history::{KEYS, Operation, Outcome};
use tests::random::Random;
use tests::value;
use toroid_client::member::{Domain, Member};
use toroid_kv::Client;

use crate::supervisor::{Part, Round};
use crate::text::Text;
use crate::{DOMAIN, SERVER};

/// Operations of a client in a history.
const OPERATIONS: u32 = 10;

/// Bytes of a buffer for the longest value.
const ROOM: usize = 1 << 20;

/// Pause between operations, at most.
const PAUSE_NS: usize = 20_000;

/// A server that was killed is back within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A report of a client, one a line.
#[derive(Serialize, Deserialize)]
pub enum Note {
    /// The client is connected.
    Ready,
    /// An operation is about to begin.
    Begin { operation: Operation, at_ns: u64 },
    /// The outcome of the last operation.
    End { outcome: Outcome, at_ns: u64 },
    /// The last operation has no outcome.
    Failed { why: String },
    /// The round is over.
    Over,
}

fn say(note: &Note) -> Result<()> {
    let mut line = serde_json::to_vec(note)?;
    line.push(b'\n');
    // In one call, so that a client that is killed has reported it, or not.
    Ok(io::stdout().write_all(&line)?)
}

/// Takes the [`Part`] in the second argument, and plays each [`Round`] of the input.
pub fn serve() -> Result<()> {
    let mut participant = Participant::new(serde_json::from_str(&task())?)?;
    say(&Note::Ready)?;
    for line in io::stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            Round::Prepare { history } => participant.prepare(history)?,
            Round::Act {
                history,
                seed,
                start_ns,
                port,
                ..
            } => {
                participant.act(history, seed, start_ns, port)?;
            }
        }
        say(&Note::Over)?;
    }
    Ok(())
}

/// A connection to the server.
enum Connection {
    Rdma(Box<Client>),
    Text(Text),
    Closed,
}

struct Participant {
    /// 0 is the client of memcached's protocol.
    number: u8,
    domain: Domain,
    connection: Connection,
    value: Vec<u8>,
    room: Vec<u8>,
}

impl Participant {
    fn new(part: Part) -> Result<Self> {
        let mut participant = Participant {
            number: match part {
                Part::Rdma { number } => number,
                _ => 0,
            },
            domain: Member::attach()?.domain(DOMAIN)?,
            connection: Connection::Closed,
            value: Vec::new(),
            room: vec![0; ROOM],
        };
        if participant.number > 0 {
            participant.connect(0)?;
        }
        Ok(participant)
    }

    /// Connects, also to a server that is about to start.
    fn connect(&mut self, port: u16) -> Result<()> {
        let start = Instant::now();
        loop {
            let connection: Result<Connection> = match self.number {
                0 => Text::connect(port)
                    .map(Connection::Text)
                    .map_err(Into::into),
                _ => Client::connect(&self.domain, Some(SERVER.parse()?))
                    .map(|client| Connection::Rdma(Box::new(client)))
                    .map_err(Into::into),
            };
            match connection {
                Ok(connection) => {
                    self.connection = connection;
                    return Ok(());
                }
                Err(error) if start.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// One client gives all keys a value before the others begin.
    fn prepare(&mut self, history: u32) -> Result<()> {
        if self.number == 1 {
            for key in 0..KEYS {
                let version = version(history, 7, key.into());
                let set = Operation::Set { key, version };
                // This may be the first call after the server was killed.
                if !self.call(set, false)? {
                    self.connect(0)?;
                    self.call(set, false)?;
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, history: u32, seed: u64, start_ns: u64, port: u16) -> Result<()> {
        let mut random = Random(seed ^ u64::from(self.number) << 56);
        if matches!(self.connection, Connection::Closed) {
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
                // The server was killed. Its next port for memcached's protocol comes with the next round.
                self.connection = Connection::Closed;
                match self.number {
                    0 => return Ok(()),
                    _ => self.connect(port)?,
                }
            }
            wait_until(now_ns() + random.below(PAUSE_NS) as u64);
        }
        Ok(())
    }

    /// Returns whether the server answered. `other_way` chooses between two ways to get a value.
    fn call(&mut self, operation: Operation, other_way: bool) -> Result<bool> {
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

    fn carry_out(&mut self, operation: Operation, other_way: bool) -> Result<Outcome> {
        Ok(match (&mut self.connection, operation) {
            (Connection::Rdma(client), Operation::Set { key, .. }) => {
                client.set(name(key).as_bytes(), 0, 0, &self.value)?;
                Outcome::Done
            }
            (Connection::Rdma(client), Operation::Delete { key }) => {
                Outcome::Deleted(client.delete(name(key).as_bytes())?)
            }
            (Connection::Rdma(client), Operation::Get { key }) if other_way => {
                let found = client.get_into(name(key).as_bytes(), &mut self.room)?;
                found_in(key, found.map(|(_, len)| &self.room[..len]))
            }
            (Connection::Rdma(client), Operation::Get { key }) => {
                let found = client.get(name(key).as_bytes())?;
                found_in(key, found.as_ref().map(|value| &value.data[..]))
            }
            (Connection::Rdma(client), Operation::Flush) => {
                client.flush_all(0)?;
                Outcome::Done
            }
            (Connection::Text(text), Operation::Set { key, .. }) => {
                text.set(&name(key), &self.value)?;
                Outcome::Done
            }
            (Connection::Text(text), Operation::Delete { key }) => {
                Outcome::Deleted(text.delete(&name(key))?)
            }
            (Connection::Text(text), Operation::Get { key }) => {
                found_in(key, text.get(&name(key))?.as_deref())
            }
            (Connection::Text(text), Operation::Flush) => {
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
