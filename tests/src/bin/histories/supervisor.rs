//! A supervisor starts the server or a client, kills it on request, starts it again, and reports the
//! calls of a client.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use bench::roles;
use bench::worker;
use serde::{Deserialize, Serialize};
use tests::checks::{Result, now_ns, store_config, task, with_variant};
use tests::linearizability::history::{Call, Operation, Outcome};

use crate::client::Note;
use crate::{CLIENT, DOMAIN};

/// Bytes that the server has for items: no history fills them.
const MEMORY: u64 = 64 << 20;

/// The part of a supervised process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    Server,
    /// A client of memcached's protocol, in the server's node.
    Text,
    /// An RDMA client; they are numbered from 1.
    Rdma {
        number: u8,
    },
}

/// A request to all supervisors; each knows its part.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Round {
    /// Give all keys a value.
    Prepare { history: u32 },
    /// Do random operations, from a moment on.
    Act {
        history: u32,
        seed: u64,
        start_ns: u64,
        /// The server's port for memcached's protocol.
        port: u16,
        kill: Option<Kill>,
    },
}

/// The process to kill, and the time after the begin.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Kill {
    Server { after_us: u64 },
    Client { number: u8, after_us: u64 },
}

/// The calls of a round, and news of the server.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Recording {
    pub calls: Vec<Call>,
    /// The server's port from now on.
    pub port: Option<u16>,
    /// Errors of calls.
    pub failures: Vec<String>,
}

/// Supervises a process of the [`Part`] in the second argument, and answers each [`Round`].
pub fn serve() -> Result<()> {
    let mut supervisor = Supervisor::start(serde_json::from_str(&task())?)?;
    let first: std::result::Result<Recording, String> = Ok(supervisor.ready()?);
    writeln!(io::stdout(), "{}", serde_json::to_string(&first)?)?;
    let mut answer = |round: Round| {
        Ok::<_, Box<dyn std::error::Error>>(serde_json::to_value(supervisor.carry_out(round)?)?)
    };
    let answer = |round| answer(round).map_err(|error| error.to_string());
    Ok(worker::serve(io::stdin().lock(), io::stdout(), answer)?)
}

struct Supervisor {
    part: Part,
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
}

impl Supervisor {
    fn start(part: Part) -> Result<Self> {
        let (first, second) = match part {
            Part::Server => (roles::STORE, store_config(DOMAIN, MEMORY)?),
            _ => (CLIENT, serde_json::to_string(&part)?),
        };
        let mut child = Command::new("/proc/self/exe")
            .args(with_variant(&[first, &second]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        Ok(Supervisor { part, child, says })
    }

    /// Waits until the process can be used.
    fn ready(&mut self) -> Result<Recording> {
        let line = self.says.next().ok_or("it has ended")??;
        let port = match self.part {
            Part::Server => Some(serde_json::from_str::<std::result::Result<u16, String>>(
                &line,
            )??),
            _ => None,
        };
        Ok(Recording {
            port,
            ..Recording::default()
        })
    }

    fn carry_out(&mut self, round: Round) -> Result<Recording> {
        let (start_ns, kill) = match round {
            Round::Act { start_ns, kill, .. } => (start_ns, kill),
            Round::Prepare { .. } => (0, None),
        };
        match (self.part, kill) {
            (Part::Server, Some(Kill::Server { after_us })) => {
                sleep_until(start_ns, after_us);
                self.restart()
            }
            (Part::Server, _) => Ok(Recording::default()),
            (
                Part::Rdma { number },
                Some(Kill::Client {
                    number: n,
                    after_us,
                }),
            ) if n == number => {
                self.tell(&round)?;
                sleep_until(start_ns, after_us);
                self.kill()?;
                let answer = self.hear()?;
                self.begin_again()?;
                Ok(answer)
            }
            _ => {
                self.tell(&round)?;
                self.hear()
            }
        }
    }

    fn tell(&mut self, round: &Round) -> Result<()> {
        let input = self.child.stdin.as_mut().ok_or("no pipe")?;
        Ok(writeln!(input, "{}", serde_json::to_string(round)?)?)
    }

    /// The calls of a client up to its end of the round, or its death.
    fn hear(&mut self) -> Result<Recording> {
        let mut answer = Recording::default();
        for line in self.says.by_ref() {
            match serde_json::from_str(&line?)? {
                Note::Ready => {}
                Note::Begin { operation, at_ns } => answer.calls.push(Call {
                    operation,
                    begin_ns: at_ns,
                    end: None,
                }),
                Note::End { outcome, at_ns } => {
                    if let Some(last) = answer.calls.last_mut() {
                        last.end = Some((at_ns, outcome));
                    }
                }
                Note::Failed { why } => answer.failures.push(why),
                Note::Over => break,
            }
        }
        // A get without an answer has no effect.
        let known =
            |call: &Call| call.end.is_some() || !matches!(call.operation, Operation::Get { .. });
        answer.calls.retain(known);
        Ok(answer)
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn begin_again(&mut self) -> Result<Recording> {
        *self = Supervisor::start(self.part)?;
        self.ready()
    }

    fn restart(&mut self) -> Result<Recording> {
        let begin_ns = now_ns();
        self.kill()?;
        let answer = self.begin_again()?;
        let call = Call {
            operation: Operation::Restart,
            begin_ns,
            end: Some((now_ns(), Outcome::Done)),
        };
        Ok(Recording {
            calls: vec![call],
            ..answer
        })
    }
}

/// Sleeps: spinning would keep the clients from the processors.
fn sleep_until(start_ns: u64, after_us: u64) {
    let at_ns = start_ns + after_us * 1000;
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
}
