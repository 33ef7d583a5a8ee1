//! What runs in a node: one that offers its memory and answers messages, or one that measures.

use std::thread;

use serde::{Deserialize, Serialize};
use serde_json::{Value, to_value};
use toroid_client::member::{Domain, Member};
use toroid_fabric::{Access, Region};

use super::atomics::Counter;
use super::libfabric;
use super::messages::{self, Client, Session};
use super::plan::{Measurement, Op, Provider};
use crate::one_sided::{Direction, ExportedKeys, Exports, Peer};
use crate::sampler::Pace;
use crate::stats::Slice;

/// Bytes of memory for reads, and as many for writes: the longest of them.
const MEMORY: usize = 1 << 20;

/// Bytes of memory for atomic operations.
const WORDS: u64 = 4096;

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Offer memory, and answer messages. Answer: [`Offer`].
    Offer {
        /// The domain.
        domain: String,
    },
    /// Look at what the other has written. Answer: how much is missing or wrong.
    CheckWrites {
        /// Bytes of a write.
        bytes: usize,
        /// Writes.
        count: u64,
        /// The version written.
        salt: u64,
    },
    /// Look at the word to which the other has added. Answer: what it holds.
    Word,
    /// Find the version of libfabric. Answer: it.
    Version,
    /// Use what another offers.
    Use {
        /// The domain.
        domain: String,
        /// The place of the other.
        place: String,
        /// What it offers.
        offer: Offer,
    },
    /// Let libfabric's program look at all bytes of some messages. Answer: how many are wrong.
    CheckLibfabric {
        /// Bytes of a message.
        bytes: usize,
    },
    /// Measure. Answer: a [`Slice`].
    Measure {
        /// What.
        measurement: Measurement,
        /// Messages in each direction.
        messages: u32,
        /// A version for what is written.
        salt: u64,
        /// For how long, if not by messages.
        pace: Pace,
    },
    /// Find what the word must hold to which was added. Answer: it.
    Added,
}

/// Keys of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// For reads and writes.
    pub memory: ExportedKeys,
    /// For atomic operations.
    pub word: String,
}

/// Messages of libfabric's program at whose bytes it looks.
const CHECKED: u32 = 100;

type Error = Box<dyn std::error::Error>;

/// One of the two.
#[derive(Default)]
pub struct Process {
    exports: Option<(Exports, Region)>,
    user: Option<User>,
}

/// The one that measures.
struct User {
    client: Client,
    memory: Peer,
    counter: Counter,
}

impl Process {
    /// Carries out an order.
    ///
    /// # Errors
    /// Whatever went wrong.
    pub fn obey(&mut self, order: Order) -> Result<Value, Error> {
        Ok(match order {
            Order::Offer { domain } => {
                let domain = Member::attach()?.domain(&domain)?;
                serve_messages(domain.clone())?;
                to_value(self.offer(&domain)?)?
            }
            Order::CheckWrites { bytes, count, salt } => {
                let (exports, _) = self.exports.as_ref().ok_or("nothing is offered")?;
                to_value(exports.wrong_writes(bytes, count, salt)?)?
            }
            Order::Word => {
                let (_, word) = self.exports.as_ref().ok_or("nothing is offered")?;
                to_value(word.load(0)?)?
            }
            Order::Version => to_value(libfabric::version()?)?,
            Order::Use {
                domain,
                place,
                offer,
            } => {
                let (domain, place) = (Member::attach()?.domain(&domain)?, place.parse()?);
                let (readable, writable) = (&offer.memory.readable, &offer.memory.writable);
                self.user = Some(User {
                    client: Client::connect(&domain, place)?,
                    memory: Peer::open(&domain, readable.parse()?, writable.parse()?)?,
                    counter: Counter::open(&domain, place, offer.word.parse()?)?,
                });
                Value::Null
            }
            Order::CheckLibfabric { bytes } => {
                to_value(libfabric::wrong_messages(bytes, CHECKED)?)?
            }
            Order::Measure {
                measurement,
                messages,
                salt,
                pace,
            } => to_value(self.measure(&measurement, messages, salt, pace)?)?,
            Order::Added => to_value(self.user()?.counter.value())?,
        })
    }

    fn offer(&mut self, domain: &Domain) -> Result<Offer, Error> {
        let exports = Exports::new(domain, MEMORY)?;
        let word = domain.alloc(WORDS, Access::REMOTE_ATOMIC)?;
        let offer = Offer {
            memory: exports.keys().ok_or("memory without keys")?,
            word: word.remote_key().ok_or("memory without a key")?.to_string(),
        };
        self.exports = Some((exports, word));
        Ok(offer)
    }

    fn user(&mut self) -> Result<&mut User, Error> {
        self.user.as_mut().ok_or_else(|| "not connected".into())
    }

    fn measure(
        &mut self,
        measurement: &Measurement,
        messages: u32,
        salt: u64,
        pace: Pace,
    ) -> Result<Slice, Error> {
        let &Measurement {
            provider,
            op,
            bytes,
            depth,
        } = measurement;
        if provider == Provider::LibfabricShm {
            return Ok(libfabric::pingpong(bytes, messages)?);
        }
        let user = self.user()?;
        let copies = |direction| user.memory.measure(direction, depth, bytes, salt, pace);
        Ok(match op {
            Op::Pingpong | Op::Stream => user.client.measure(Session {
                op,
                bytes,
                count: messages,
            })?,
            Op::Read => copies(Direction::Read)?,
            Op::Write => copies(Direction::Write)?,
            Op::Atomic => user.counter.measure(depth, pace)?,
        })
    }
}

/// Whoever measures sees it when this ends.
fn serve_messages(domain: Domain) -> Result<(), Error> {
    let listener = messages::listen(&domain)?;
    let serve = move || {
        if let Err(error) = messages::serve(&domain, &listener) {
            eprintln!("toroid-bench: {error}");
        }
    };
    thread::Builder::new()
        .name("messages".into())
        .spawn(serve)?;
    Ok(())
}
