//! The program `actor` as stories use it.
//!
//! A story starts `actor ROLE ARGUMENT...` in a node, writes one [`Request`] a line to its standard
//! input, and reads one [`Event`] a line from its standard output, both as JSON. The end of the
//! input ends most roles. A role that fails ends with status 1 and a message on standard error.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::ops::{Deref, DerefMut};
use std::process::{ChildStdin, Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::leftovers::processes_with;
use crate::process::{Outcome, Running};

/// Occurrences by kind; a kind without occurrences is left out.
pub type Tally = BTreeMap<String, u64>;

/// A request to an actor, with the event that answers it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// `fill`: compare all words but the first with the ones written. [`Event::Compared`].
    Compare,
    /// `stack talk`: send a line. [`Event::Line`], the line that comes back.
    Say(String),
    /// `guard`: watch memory, channels and frames for 10 ms. `leave`: watch everything that was kept.
    /// [`Event::Tally`], the changes by the way of their arrival.
    Look,
    /// `guard`: [`Event::Tally`] of packets, frames and drops since the last `Heard` or `Look`.
    Heard,
    /// `guard`: [`Event::Count`], the first word of the region.
    Sum,
    /// `guard`: [`Event::Count`] of chunks with a mark, which are removed.
    Marks,
    /// `linger`: write a mark to each chunk, from the last to the first. [`Event::Done`].
    Mark,
    /// `leave`: open region and channels again. [`Event::Open`], or [`Event::Failed`].
    Open,
    /// `leave`: take a descriptor for writing for one for reading. [`Event::Done`].
    Mistake,
    /// `leave`: try more on each descriptor than was granted. [`Event::Through`].
    Abuse,
    /// `leave`: [`Event::Done`] where the system allows io_uring, otherwise [`Event::Failed`].
    Rings,
    /// `leave`: make longer pauses from now on. [`Event::Done`].
    Retire,
    /// `store`: connect to the only server of the only domain. [`Event::Done`].
    Connect,
    /// `store`: set a key. [`Event::Done`].
    Set {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// `store`: set a key twice in one batch. [`Event::Done`].
    SetTwice {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// `store`: set keys `fill0`, `fill1` and so on to 10,000 bytes `f` each. [`Event::Done`].
    Fill(u32),
    /// `store`: [`Event::Value`] of a key.
    Get(String),
    /// `store`: borrow the value of a key and keep the view. [`Event::Done`], or [`Event::Value`] of
    /// `None`.
    Borrow(String),
    /// `store`: [`Event::Value`], the values of all views, concatenated.
    Views,
    /// `store`: [`Event::Ready`], then borrow the values of that many `Fill` keys for ever, 60 at a time.
    Hoard(u32),
    /// `store`: [`Event::Ready`], then set a key for ever, each time to many bytes of one letter.
    Hammer(String),
}

/// An event that an actor reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The role can be used.
    Ready,
    /// The first datagram or marked frame has come.
    First,
    /// Memory is exported under this key.
    Key(String),
    /// The region is open, or the connection established.
    Open,
    /// So many rounds are over.
    Round(u64),
    /// The request was carried out.
    Done,
    /// The request failed.
    Failed(String),
    /// A system call that is not to be answered has begun to wait.
    Blocked,
    /// A number of the request's.
    Count(u64),
    /// The role has ended.
    Ended {
        /// Operations that succeeded, or the first word of the own memory.
        count: u64,
        /// The error that ended it; `None` after the end of the input.
        error: Option<String>,
    },
    /// `watch` has ended.
    Watched {
        /// Additions that succeeded.
        count: u64,
        /// Begin of the newest read that succeeded, in nanoseconds since 1970.
        newest_ns: u64,
        /// The errors of reading and of adding.
        errors: [String; 2],
    },
    /// `listen` has ended.
    Datagrams {
        /// Datagrams received.
        count: u64,
        /// Time of sending of the newest, in nanoseconds since 1970.
        newest_ns: u64,
    },
    /// `sniff` has ended.
    Frames {
        /// Frames with the mark.
        marked: u64,
        /// Source addresses of all frames.
        sources: BTreeSet<String>,
    },
    /// Words that differ from the ones written.
    Compared {
        /// How many.
        wrong: usize,
        /// Offset of the first.
        first: Option<u64>,
    },
    /// Occurrences.
    Tally(Tally),
    /// Attempts that should have failed and did not.
    Through(BTreeSet<String>),
    /// A line from the peer.
    Line(String),
    /// The peer or the domain has ended a connection.
    Closed {
        /// Whether the domain has.
        revoked: bool,
    },
    /// The answer to a datagram.
    Answer {
        /// Whether it equals the datagram.
        same: bool,
    },
    /// The agent's answer on each connection, `None` where the agent closed it.
    Answers(Vec<Option<Value>>),
    /// A value of the store.
    Value(Option<String>),
}

impl Event {
    /// The event in a line.
    ///
    /// # Panics
    /// When the line has none.
    #[track_caller]
    pub fn parse(line: &str) -> Self {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The last event of an actor that has ended with success.
    #[track_caller]
    pub fn last(outcome: Outcome) -> Self {
        let outcome = outcome.ok();
        Event::parse(outcome.text().lines().last().unwrap_or_default())
    }

    fn line(&self) -> String {
        serde_json::to_string(self).expect("an event has a form in JSON") + "\n"
    }
}

/// Reports an event, as an actor. The line is written at once.
///
/// # Errors
/// When standard output is closed.
pub fn report(event: &Event) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(event.line().as_bytes())?;
    output.flush()
}

/// Answers each request, as an actor, until the input ends.
///
/// # Errors
/// That of an answer, or of a line without a request.
pub fn serve(
    mut answer: impl FnMut(Request) -> Result<Event, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    for line in io::stdin().lock().lines() {
        report(&answer(serde_json::from_str(&line?)?)?)?;
    }
    Ok(())
}

/// An actor that a story has started. Dropping it kills it.
#[derive(Debug)]
pub struct Actor {
    running: Running,
    input: Option<ChildStdin>,
    /// Role and arguments, as they are in the command line.
    words: String,
}

impl Actor {
    /// Starts a command that becomes an actor; `words` are role and arguments in its command line.
    #[track_caller]
    pub fn start(command: &mut Command, words: &str) -> Self {
        let mut running = Running::start(command.stdin(Stdio::piped()));
        Actor {
            input: Some(running.stdin()),
            running,
            words: words.to_owned(),
        }
    }

    /// The next event, waited for.
    #[track_caller]
    pub fn event(&mut self) -> Event {
        Event::parse(&self.running.line())
    }

    /// Waits until an event was reported, possibly with others before and after it.
    #[track_caller]
    pub fn reports(&self, event: &Event) {
        self.running.says(&event.line());
    }

    /// Sends a request.
    ///
    /// # Panics
    /// When the actor has ended.
    #[track_caller]
    pub fn tell(&mut self, request: &Request) {
        let line = serde_json::to_string(request).expect("a request has a form in JSON");
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{line}").expect("it reads");
    }

    /// Sends a request and waits for the next event.
    #[track_caller]
    pub fn ask(&mut self, request: &Request) -> Event {
        self.tell(request);
        self.event()
    }

    /// Asserts that a request is answered with an event.
    #[track_caller]
    pub fn answers(&mut self, request: &Request, expected: &Event) {
        assert_eq!(self.ask(request), *expected, "{request:?}");
    }

    /// Asks for a number.
    #[track_caller]
    pub fn number(&mut self, request: &Request) -> u64 {
        match self.ask(request) {
            Event::Count(count) => count,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Asks for a tally.
    #[track_caller]
    pub fn tally(&mut self, request: &Request) -> Tally {
        match self.ask(request) {
            Event::Tally(tally) => tally,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// The actor's own process: the one that was started is `toroid exec`.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn pid_in_node(&self) -> u32 {
        let outside = self.running.pid();
        let words = [&*self.words];
        let mut all = processes_with(&words);
        all.find(|pid| *pid != outside).expect("it runs")
    }

    /// Ends the input.
    pub fn close(&mut self) {
        self.input = None;
    }

    /// Waits for the end, without ending the input.
    #[track_caller]
    pub fn wait(self) -> Outcome {
        let Actor { running, input, .. } = self;
        let outcome = running.wait();
        drop(input);
        outcome
    }

    /// Ends the input and waits for the end.
    #[track_caller]
    pub fn end(mut self) -> Outcome {
        self.close();
        self.wait()
    }

    /// Kills it, and returns its output.
    pub fn kill(self) -> Outcome {
        self.running.kill()
    }

    /// Waits for the error that ends its operations; returns how many had succeeded.
    #[track_caller]
    pub fn failure(self) -> (u64, String) {
        match Event::last(self.wait()) {
            Event::Ended {
                count,
                error: Some(error),
            } => (count, error),
            other => panic!("it has not failed: {other:?}"),
        }
    }

    /// Waits until it is revoked; returns how many operations had succeeded.
    #[track_caller]
    pub fn revoked(self) -> u64 {
        let (count, error) = self.failure();
        assert_eq!(error, "Revoked");
        count
    }

    /// Ends the input; returns how many operations have succeeded, or the first word of its memory.
    #[track_caller]
    pub fn counted(self) -> u64 {
        match Event::last(self.end()) {
            Event::Ended { count, error: None } => count,
            other => panic!("it did not end with its input: {other:?}"),
        }
    }

    /// Ends a `listen` that has received nothing.
    #[track_caller]
    pub fn heard_nothing(self) {
        let heard = Event::last(self.end());
        let (count, newest_ns) = (0, 0);
        assert_eq!(heard, Event::Datagrams { count, newest_ns });
    }

    /// Ends a `listen` that has received something, but nothing sent since `then_ns`.
    #[track_caller]
    pub fn heard_nothing_since(self, then_ns: u64) {
        let Event::Datagrams { count, newest_ns } = Event::last(self.end()) else {
            panic!("it does not listen");
        };
        assert!(count > 0, "there was no traffic before");
        let late = newest_ns.saturating_sub(then_ns);
        assert!(late == 0, "sent {late} ns later, and it arrived");
    }
}

impl Deref for Actor {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl DerefMut for Actor {
    fn deref_mut(&mut self) -> &mut Running {
        &mut self.running
    }
}

/// Actors of a cluster. The domain is `blue` where none is named.
impl Cluster {
    /// Starts an actor in a node; `words` are its role and arguments.
    #[track_caller]
    pub fn actor(&self, node: &str, words: &str) -> Actor {
        let argv: Vec<&str> = ["actor"].into_iter().chain(words.split(' ')).collect();
        Actor::start(&mut self.in_node(node, &argv), words)
    }

    /// The same, once the actor is ready.
    #[track_caller]
    pub fn ready_actor(&self, node: &str, words: &str) -> Actor {
        let mut actor = self.actor(node, words);
        assert_eq!(actor.event(), Event::Ready);
        actor
    }

    /// An actor that exports memory, as `own blue` does, and the key.
    #[track_caller]
    pub fn exporter(&self, node: &str, words: &str) -> (Actor, String) {
        let mut actor = self.actor(node, words);
        match actor.event() {
            Event::Key(key) => (actor, key),
            other => panic!("no key: {other:?}"),
        }
    }

    /// An actor that exports a page, and its key.
    #[track_caller]
    pub fn owner(&self, node: &str) -> (Actor, String) {
        self.exporter(node, "own blue")
    }

    /// An actor that uses memory of `owner` in some role, and has it open.
    #[track_caller]
    pub fn peer(&self, node: &str, role: &str, owner: &str, key: &str) -> Actor {
        let actor = self.actor(node, &format!("{role} blue {owner} {key}"));
        actor.reports(&Event::Open);
        actor
    }

    /// An actor that adds to memory of `owner` until that fails.
    #[track_caller]
    pub fn counter(&self, node: &str, owner: &str, key: &str) -> Actor {
        self.peer(node, "count", owner, key)
    }

    /// Opens memory for reading, and ends.
    #[must_use = "say whether it should have succeeded"]
    pub fn open(&self, node: &str, key: &str) -> Outcome {
        self.exec(node, &format!("actor open blue {key}"))
    }

    /// An actor that listens for datagrams.
    #[track_caller]
    pub fn listener(&self, node: &str, port: u16) -> Actor {
        self.ready_actor(node, &format!("listen {port}"))
    }

    /// An actor that sends datagrams until its input ends, and some more.
    #[track_caller]
    pub fn flood(&self, node: &str, address: &str, port: u16) -> Actor {
        self.actor(node, &format!("flood {address} {port}"))
    }
}

/// An actor that is a client of the store of the only domain.
#[derive(Debug)]
pub struct StoreClient(Actor);

impl StoreClient {
    /// Starts one in a node, and connects it.
    #[track_caller]
    pub fn connect(cluster: &Cluster, node: &str) -> Self {
        let mut client = StoreClient(cluster.actor(node, &format!("store {node}")));
        client.reconnect();
        client
    }

    /// Connects it to the server that there is now.
    #[track_caller]
    pub fn reconnect(&mut self) {
        self.answers(&Request::Connect, &Event::Done);
    }

    /// Sets a key.
    #[track_caller]
    pub fn set(&mut self, key: &str, value: &str) {
        assert_eq!(self.try_set(key, value), Ok(()));
    }

    /// Sets a key, and returns the error of the store if it fails.
    #[track_caller]
    pub fn try_set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let (key, value) = (key.to_owned(), value.to_owned());
        match self.ask(&Request::Set { key, value }) {
            Event::Done => Ok(()),
            Event::Failed(why) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    /// Sets a key twice in one batch.
    #[track_caller]
    pub fn set_twice(&mut self, key: &str, value: &str) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.answers(&Request::SetTwice { key, value }, &Event::Done);
    }

    /// Sets `fill0`, `fill1` and so on to 10,000 bytes each.
    #[track_caller]
    pub fn fill(&mut self, count: u32) {
        self.answers(&Request::Fill(count), &Event::Done);
    }

    /// The value of a key.
    #[track_caller]
    pub fn get(&mut self, key: &str) -> Option<String> {
        self.try_get(key).expect("the store answers")
    }

    /// The value of a key, or the error of the store.
    #[track_caller]
    pub fn try_get(&mut self, key: &str) -> Result<Option<String>, String> {
        self.tell(&Request::Get(key.to_owned()));
        self.value()
    }

    /// Borrows the value of a key, which is there, and keeps the view.
    #[track_caller]
    pub fn borrow(&mut self, key: &str) {
        self.answers(&Request::Borrow(key.to_owned()), &Event::Done);
    }

    /// The values of all views, concatenated.
    #[track_caller]
    pub fn views(&mut self) -> Result<String, String> {
        self.tell(&Request::Views);
        self.told_views()
    }

    /// The answer to [`Request::Views`].
    #[track_caller]
    pub fn told_views(&mut self) -> Result<String, String> {
        Ok(self.value()?.expect("views have values"))
    }

    /// Begins a request that never ends.
    #[track_caller]
    pub fn begin(&mut self, request: &Request) {
        self.answers(request, &Event::Ready);
    }

    /// Kills it.
    pub fn kill(self) {
        self.0.kill();
    }

    #[track_caller]
    fn value(&mut self) -> Result<Option<String>, String> {
        match self.event() {
            Event::Value(value) => Ok(value),
            Event::Failed(why) => Err(why),
            other => panic!("{other:?}"),
        }
    }
}

impl Deref for StoreClient {
    type Target = Actor;

    fn deref(&self) -> &Actor {
        &self.0
    }
}

impl DerefMut for StoreClient {
    fn deref_mut(&mut self) -> &mut Actor {
        &mut self.0
    }
}
