//! A process that starts one that is to be killed, kills it, starts it again, and tells what it did.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use bench::roles::{self, StoreConfig};
use bench::worker;
use serde::{Deserialize, Serialize};
use tests::variants::with_what_is_left_out;
use toroid_kv::server::Limits;

use crate::client::Note;
use crate::history::{Call, Operation, Outcome};
use crate::{CLIENT, DOMAIN, Error, now_ns};

/// Bytes that the server has for items: no history fills them.
const MEMORY: u64 = 64 << 20;

/// What somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    Server,
    /// A client by memcached's protocol, in the server's node.
    Text,
    /// A client by RDMA: they are numbered from 1.
    Rdma {
        number: u8,
    },
}

/// What all are told, each of which knows its part in it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Give all keys a value.
    Prepare { history: u32 },
    /// Do something, from a moment on.
    Act {
        history: u32,
        seed: u64,
        start_ns: u64,
        /// Of the server, for memcached's protocol.
        port: u16,
        kill: Option<Kill>,
    },
}

/// Who is killed, and when after the beginning.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Kill {
    Server { after_us: u64 },
    Client { number: u8, after_us: u64 },
}

/// What came of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    pub calls: Vec<Call>,
    /// Where the server is from now on.
    pub port: Option<u16>,
    /// Why calls failed.
    pub failures: Vec<String>,
}

/// Does what the second argument and then the input say.
pub fn obey() -> Result<(), Error> {
    let part = std::env::args().nth(2).unwrap_or_default();
    let mut keeper = Keeper::start(serde_json::from_str(&part)?)?;
    let first: Result<Answer, String> = Ok(keeper.ready()?);
    writeln!(io::stdout(), "{}", serde_json::to_string(&first)?)?;
    let obey = |order: Order| Ok::<_, Error>(serde_json::to_value(keeper.carry_out(order)?)?);
    Ok(worker::serve(io::stdin().lock(), io::stdout(), obey)?)
}

struct Keeper {
    part: Part,
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
}

impl Keeper {
    fn start(part: Part) -> Result<Self, Error> {
        let config = StoreConfig {
            item: Limits::DEFAULT.item,
            domain: DOMAIN.into(),
            memory: MEMORY,
            stack: false,
        };
        let (first, second) = match part {
            Part::Server => (roles::STORE, serde_json::to_string(&config)?),
            _ => (CLIENT, serde_json::to_string(&part)?),
        };
        let mut child = Command::new("/proc/self/exe")
            .args(with_what_is_left_out(&[first, &second]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        Ok(Keeper { part, child, says })
    }

    /// Waits until what was started can be used.
    fn ready(&mut self) -> Result<Answer, Error> {
        let line = self.says.next().ok_or("it has ended")??;
        let port = match self.part {
            Part::Server => Some(serde_json::from_str::<Result<u16, String>>(&line)??),
            _ => None,
        };
        Ok(Answer {
            port,
            ..Answer::default()
        })
    }

    fn carry_out(&mut self, order: Order) -> Result<Answer, Error> {
        let (start_ns, kill) = match order {
            Order::Act { start_ns, kill, .. } => (start_ns, kill),
            Order::Prepare { .. } => (0, None),
        };
        match (self.part, kill) {
            (Part::Server, Some(Kill::Server { after_us })) => {
                sleep_until(start_ns, after_us);
                self.restart()
            }
            (Part::Server, _) => Ok(Answer::default()),
            (
                Part::Rdma { number },
                Some(Kill::Client {
                    number: n,
                    after_us,
                }),
            ) if n == number => {
                self.tell(&order)?;
                sleep_until(start_ns, after_us);
                self.kill()?;
                let answer = self.hear()?;
                self.begin_again()?;
                Ok(answer)
            }
            _ => {
                self.tell(&order)?;
                self.hear()
            }
        }
    }

    fn tell(&mut self, order: &Order) -> Result<(), Error> {
        let input = self.child.stdin.as_mut().ok_or("no pipe")?;
        Ok(writeln!(input, "{}", serde_json::to_string(order)?)?)
    }

    /// What it did until it was over, or was killed.
    fn hear(&mut self) -> Result<Answer, Error> {
        let mut answer = Answer::default();
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
        // A get that was not answered means nothing.
        let known =
            |call: &Call| call.end.is_some() || !matches!(call.operation, Operation::Get { .. });
        answer.calls.retain(known);
        Ok(answer)
    }

    fn kill(&mut self) -> Result<(), Error> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn begin_again(&mut self) -> Result<Answer, Error> {
        *self = Keeper::start(self.part)?;
        self.ready()
    }

    fn restart(&mut self) -> Result<Answer, Error> {
        let begin_ns = now_ns();
        self.kill()?;
        let answer = self.begin_again()?;
        let call = Call {
            operation: Operation::Restart,
            begin_ns,
            end: Some((now_ns(), Outcome::Done)),
        };
        Ok(Answer {
            calls: vec![call],
            ..answer
        })
    }
}

/// It must not keep those from the processors that it waits for.
fn sleep_until(start_ns: u64, after_us: u64) {
    let at_ns = start_ns + after_us * 1000;
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
}
