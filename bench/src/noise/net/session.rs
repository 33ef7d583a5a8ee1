//! The server's side of a conversation, without I/O: bytes of a stranger in, checked steps out.

use super::key::{End, Key};
use super::wire::{
    Answer, Digest, LARGEST, LARGEST_DATAGRAM, LONGEST_ORDER, Lines, MOST_ROUND_TRIPS, MOST_SLICES,
    MOST_STREAMS, Order, Protocol, Request, Streams, VERSION, WireError,
};

/// Longest slice of time, in milliseconds.
const LONGEST_SLICE: u32 = 10_000;

/// Longest session in seconds.
pub const LONGEST_SESSION: u64 = 1_000_000;

/// Limits of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time in seconds.
    pub seconds: u64,
    /// Bytes of messages in both directions.
    pub bytes: u64,
}

/// A step that a client's message allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Answer the client.
    Answer(Answer),
    /// The client knows the key; this is the answer if the server has time.
    Authenticated(Answer),
    /// Carry out an order within all limits.
    Work(Order),
    /// The connection belongs to another session's order, if the token is right.
    Data {
        /// The claimed token.
        token: Digest,
        /// Whether the server sends on this connection.
        sends: bool,
    },
}

#[derive(Debug)]
enum State {
    New,
    Challenged { client: Digest },
    Open,
    Ended,
}

/// A conversation with a stranger, who becomes a client with a proof of the key.
pub struct Session {
    key: Key,
    nonce: Digest,
    limits: Limits,
    lines: Lines,
    state: State,
}

impl Session {
    /// A conversation with a nonce of its own.
    pub fn new(key: Key, nonce: Digest, limits: Limits) -> Self {
        Session {
            key,
            nonce,
            limits,
            lines: Lines::new(LONGEST_ORDER),
            state: State::New,
        }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.lines.push(bytes);
    }

    /// The next step; `None` until the stranger sends more.
    ///
    /// # Errors
    /// All kinds of [`WireError`]; the conversation is then over.
    pub fn next_step(&mut self) -> Result<Option<Step>, WireError> {
        if matches!(self.state, State::Ended) {
            return Ok(None);
        }
        let step = self.lines.next_message().and_then(|request| match request {
            Some(request) => self.step(request).map(Some),
            None => Ok(None),
        });
        if step.is_err() {
            self.state = State::Ended;
        }
        step
    }

    fn step(&mut self, request: Request) -> Result<Step, WireError> {
        match (request, &self.state) {
            (Request::Hello { version, nonce }, State::New) => self.challenge(version, nonce),
            (Request::Data { token, sends }, State::New) => {
                self.state = State::Ended;
                Ok(Step::Data { token, sends })
            }
            (Request::Proof(proof), &State::Challenged { client }) => self.open(proof, client),
            (Request::Order(order), State::Open) => {
                check(&order, self.limits)?;
                Ok(Step::Work(order))
            }
            (Request::Hello { .. }, _) => Err(WireError::OutOfTurn("a greeting")),
            (Request::Data { .. }, _) => Err(WireError::OutOfTurn("a token")),
            (Request::Proof(_), _) => Err(WireError::OutOfTurn("a proof")),
            (Request::Order(_), _) => Err(WireError::OutOfTurn("an order")),
        }
    }

    fn challenge(&mut self, version: u32, client: Digest) -> Result<Step, WireError> {
        if version != VERSION {
            return Err(WireError::Version { theirs: version });
        }
        self.state = State::Challenged { client };
        Ok(Step::Answer(Answer::Challenge { nonce: self.nonce }))
    }

    fn open(&mut self, proof: Digest, client: Digest) -> Result<Step, WireError> {
        if proof != self.key.proof(End::Client, client, self.nonce) {
            return Err(WireError::WrongKey);
        }
        self.state = State::Open;
        Ok(Step::Authenticated(Answer::Welcome {
            proof: self.key.proof(End::Server, client, self.nonce),
            seconds: self.limits.seconds,
            bytes: self.limits.bytes,
        }))
    }
}

fn check(order: &Order, limits: Limits) -> Result<(), WireError> {
    match *order {
        Order::Echo {
            protocol,
            bytes,
            connections,
            count,
        } => {
            within("bytes of a message", bytes, 1, largest(protocol))?;
            within("connections", connections, 1, most_streams(protocol))?;
            within("round trips", count, 1, MOST_ROUND_TRIPS)
        }
        Order::Poll { count } => within("round trips", count, 1, MOST_ROUND_TRIPS),
        Order::Streams(streams) => check_streams(&streams, limits),
        Order::Export => Ok(()),
    }
}

fn check_streams(streams: &Streams, limits: Limits) -> Result<(), WireError> {
    within(
        "streams",
        streams.streams,
        1,
        most_streams(streams.protocol),
    )?;
    within(
        "bytes of a message",
        streams.bytes,
        1,
        largest(streams.protocol),
    )?;
    within(
        "milliseconds of a slice",
        streams.slice_ms,
        1,
        LONGEST_SLICE,
    )?;
    within("slices", streams.slices, 1, MOST_SLICES)?;
    if streams.protocol == Protocol::Udp && streams.direction == super::wire::Direction::Both {
        return Err(WireError::OutOfTurn("datagrams in both directions"));
    }
    let seconds = u64::from(streams.slice_ms) * u64::from(streams.slices) / 1000;
    let limit = limits.seconds;
    if seconds > limit {
        let (what, asked) = ("seconds", seconds);
        return Err(WireError::Limit { what, asked, limit });
    }
    Ok(())
}

fn most_streams(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Tcp => MOST_STREAMS,
        Protocol::Udp => 1,
    }
}

fn largest(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Tcp => LARGEST,
        Protocol::Udp => LARGEST_DATAGRAM,
    }
}

fn within(what: &'static str, asked: u32, least: u32, limit: u32) -> Result<(), WireError> {
    if (least..=limit).contains(&asked) {
        return Ok(());
    }
    let [asked, limit] = [asked, limit].map(u64::from);
    Err(WireError::Limit { what, asked, limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::net::wire::{Direction, line};

    const LIMITS: Limits = Limits {
        seconds: 100,
        bytes: 1 << 30,
    };

    fn digest(text: &str) -> Digest {
        Digest(blake3::hash(text.as_bytes()))
    }

    fn session() -> Session {
        Session::new(Key::of("key of the tests"), digest("server"), LIMITS)
    }

    fn say(session: &mut Session, request: &Request) -> Result<Option<Step>, WireError> {
        session.push(&line(request));
        session.next_step()
    }

    fn hello() -> Request {
        Request::Hello {
            version: VERSION,
            nonce: digest("client"),
        }
    }

    fn proof(key: &str) -> Request {
        let key = Key::of(key);
        Request::Proof(key.proof(End::Client, digest("client"), digest("server")))
    }

    fn streams() -> Streams {
        Streams {
            protocol: Protocol::Tcp,
            streams: 16,
            direction: Direction::Both,
            bytes: 1 << 20,
            slice_ms: 100,
            slices: 300,
        }
    }

    #[test]
    fn orders_follow_a_proof() {
        let mut session = session();
        let challenge = Answer::Challenge {
            nonce: digest("server"),
        };
        assert_eq!(
            say(&mut session, &hello()),
            Ok(Some(Step::Answer(challenge)))
        );
        let welcome = say(&mut session, &proof("key of the tests")).unwrap();
        let Some(Step::Authenticated(Answer::Welcome { proof, seconds, .. })) = welcome else {
            panic!("{welcome:?}");
        };
        assert_eq!(seconds, 100);
        let key = Key::of("key of the tests");
        assert_eq!(
            proof,
            key.proof(End::Server, digest("client"), digest("server"))
        );
        let order = Order::Streams(streams());
        assert_eq!(
            say(&mut session, &Request::Order(order)),
            Ok(Some(Step::Work(order)))
        );
    }

    #[test]
    fn nothing_is_done_without_the_key() {
        let order = Request::Order(Order::Poll { count: 1 });
        assert_eq!(
            say(&mut session(), &order),
            Err(WireError::OutOfTurn("an order"))
        );
        let mut session = session();
        say(&mut session, &hello()).unwrap();
        assert_eq!(
            say(&mut session, &proof("key of another user")),
            Err(WireError::WrongKey)
        );
        // There is no second attempt.
        assert_eq!(say(&mut session, &proof("key of the tests")), Ok(None));
        let old = Request::Hello {
            version: 9,
            nonce: digest("client"),
        };
        assert_eq!(
            say(&mut super::tests::session(), &old),
            Err(WireError::Version { theirs: 9 })
        );
    }

    #[test]
    fn orders_beyond_a_limit_are_named() {
        let limit = |what, asked, limit| Err(WireError::Limit { what, asked, limit });
        let echo_on = |protocol, bytes, connections, count| {
            let order = Order::Echo {
                protocol,
                bytes,
                connections,
                count,
            };
            check(&order, LIMITS)
        };
        let echo = |protocol, bytes, count| echo_on(protocol, bytes, 1, count);
        assert_eq!(echo(Protocol::Tcp, 4 << 20, 1), Ok(()));
        assert_eq!(echo_on(Protocol::Tcp, 1, 64, 1), Ok(()));
        assert_eq!(
            echo_on(Protocol::Tcp, 1, 65, 1),
            limit("connections", 65, 64)
        );
        assert_eq!(echo_on(Protocol::Udp, 1, 2, 1), limit("connections", 2, 1));
        let over = u64::from(LARGEST) + 1;
        assert_eq!(
            echo(Protocol::Tcp, LARGEST + 1, 1),
            limit("bytes of a message", over, u64::from(LARGEST))
        );
        assert_eq!(
            echo(Protocol::Udp, 65_536, 1),
            limit("bytes of a message", 65_536, 32_768)
        );
        assert_eq!(
            echo(Protocol::Udp, 1, 0),
            limit("round trips", 0, 1_000_000)
        );
        let long = Streams {
            slices: 1010,
            ..streams()
        };
        assert_eq!(check_streams(&long, LIMITS), limit("seconds", 101, 100));
        let wide = Streams {
            streams: 65,
            ..streams()
        };
        assert_eq!(check_streams(&wide, LIMITS), limit("streams", 65, 64));
    }
}
