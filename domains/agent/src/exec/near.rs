//! The near relay of a command, on the host of its caller.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::time::{Duration, Instant};

use nix::libc::SIGWINCH;
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};
use serde::{Deserialize, Serialize};
use toroid_client::credentials::Ids;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Event, Message, Reply, Request, Terminal};
use toroid_protocol::command::{Notice, Start, Stream};
use toroid_protocol::seal::SealKeys;
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use super::frames::{self, Frame, Receiver, Sender, malformed};
use super::streams::{Credit, Sink, pass_on};
use super::{become_user, receive_order};
use crate::nodes::terminal;
use crate::threads;

/// Argument of the role: relays a command to another host.
pub(crate) const ROLE: &str = "__near-relay";

/// Time for a caller to send its descriptors.
const CALLER_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of that message.
const CALLER_BYTES: u32 = 1024;

/// Task of the relay. Descriptors: the data connection, and the caller's session.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The caller, if the relay is to have its rights.
    pub(super) user: Option<Ids>,
    /// Host of the node.
    pub(super) host: String,
    pub(super) keys: Option<SealKeys>,
    pub(super) start: Start,
}

/// Runs the relay.
pub(crate) fn run_role() -> u8 {
    u8::from(run().is_err())
}

fn run() -> Result<(), WireError> {
    let (order, descriptors) = receive_order::<Order>()?;
    let mut descriptors = descriptors.into_iter();
    let (Some(connection), Some(session)) = (descriptors.next(), descriptors.next()) else {
        return Err(WireError::Closed);
    };
    let (caller, answers) = wire::split(UnixStream::from(session))?;
    let last = serve(order, TcpStream::from(connection), caller, &answers);
    let last = last.unwrap_or_else(|error| {
        let message = format!("cannot pass the command on: {error}");
        refused(Refusal::new(RefusalKind::Failed, message, ""))
    });
    answers.send(&last, &[])
}

fn refused(refusal: Refusal) -> Message {
    Message::Reply(Reply::Error(refusal))
}

/// Runs the command; returns the last message for the caller.
fn serve(
    order: Order,
    connection: TcpStream,
    mut caller: Reader,
    answers: &Writer,
) -> Result<Message, WireError> {
    if let Some(caller) = order.user {
        become_user(caller, &[])?;
    }
    let deadline = Instant::now() + CALLER_TIMEOUT;
    let (request, mut theirs): (Request, _) = caller.receive_first(CALLER_BYTES, deadline)?;
    if request != Request::Descriptors || theirs.len() < 3 {
        let needs = "a command needs three descriptors, and those before all else";
        return Err(WireError::Malformed(needs.into()));
    }
    caller.take_no_descriptors();
    // The node finds program and directory on its own host. Closing these may take for ever.
    std::mem::forget(theirs.split_off(3));
    let stdio = Stdio::of(theirs, order.start.terminal.as_ref(), answers)?;
    let (receiver, sender) = frames::split(connection, order.keys.as_ref())?;
    let last = relay(order.start, stdio, caller, receiver, &sender);
    Ok(match last {
        // "Here" is the host that refuses.
        Ok(Notice::Refused(Refusal {
            kind,
            message,
            remedy,
        })) => {
            let message = format!("host {}: {message}", order.host);
            refused(Refusal::new(kind, message, remedy))
        }
        Ok(Notice::Exited(status)) => Message::Event(Event::Exited { status }),
        Ok(_) => refused(lost(&order.host, &malformed("an unknown end"))),
        Err(error) => refused(lost(&order.host, &error)),
    })
}

/// Standard streams of the caller.
struct Stdio {
    input: OwnedFd,
    output: OwnedFd,
    error: OwnedFd,
    /// Terminal between this process and the caller, whose size is that of the command's.
    terminal: Option<OwnedFd>,
}

impl Stdio {
    /// The caller's descriptors, or a terminal in place of the first two, of which it gets the master.
    fn of(
        theirs: Vec<OwnedFd>,
        terminal: Option<&Terminal>,
        caller: &Writer,
    ) -> Result<Self, WireError> {
        let slave = terminal.map(|terminal| give_terminal(terminal, caller));
        let slave = slave.transpose()?;
        let mut theirs = theirs.into_iter();
        let mut next = |replaced: bool| match &slave {
            Some(slave) if replaced => {
                theirs.next();
                slave.try_clone()
            }
            _ => theirs.next().ok_or_else(|| malformed("no descriptor")),
        };
        Ok(Stdio {
            input: next(true)?,
            output: next(true)?,
            error: next(false)?,
            terminal: slave,
        })
    }
}

/// Opens a terminal that passes bytes on as they are, and gives the caller its master.
fn give_terminal(terminal: &Terminal, caller: &Writer) -> Result<OwnedFd, WireError> {
    let (master, slave) = terminal::open(terminal, None, None)?;
    let mut modes = tcgetattr(&slave).map_err(io::Error::from)?;
    modes.make_raw();
    tcsetattr(&slave, OptionalActions::Now, &modes).map_err(io::Error::from)?;
    caller.send(&Message::Reply(Reply::Terminal), &[master.as_fd()])?;
    Ok(slave)
}

/// Relays until the command has ended; returns the last notice.
fn relay(
    start: Start,
    stdio: Stdio,
    caller: Reader,
    mut receiver: Receiver,
    sender: &Sender,
) -> io::Result<Notice> {
    sender.notice(&Notice::Start(start))?;
    let typed = Credit::new();
    let (credit, to, input) = (typed.clone(), sender.clone(), stdio.input);
    threads::start(move || pass_on(input, Stream::Input, &credit, &to, None))?;
    let (to, terminal) = (sender.clone(), stdio.terminal);
    threads::start(move || {
        obey(caller, terminal.as_ref(), &to);
        // The caller has ended, and so does the command.
        exit(0);
    })?;
    let output = Sink::start(stdio.output, Stream::Output, sender.clone())?;
    let error = Sink::start(stdio.error, Stream::Error, sender.clone())?;
    let last = follow(&mut receiver, [&output, &error], &typed);
    // Also the bytes that came before a failure.
    output.finish();
    error.finish();
    last
}

/// Passes the bytes of the far relay on, until its last notice, which is returned.
fn follow(
    receiver: &mut Receiver,
    [output, error]: [&Sink; 2],
    typed: &Credit,
) -> io::Result<Notice> {
    loop {
        match receiver.receive()? {
            Frame::Data(Stream::Output, bytes) => output.take(bytes)?,
            Frame::Data(Stream::Error, bytes) => error.take(bytes)?,
            Frame::Notice(Notice::Passed {
                stream: Stream::Input,
                bytes,
            }) => typed.add(bytes)?,
            Frame::Notice(Notice::Closed(Stream::Input)) => typed.close(),
            Frame::Notice(last @ (Notice::Exited(_) | Notice::Refused(_))) => return Ok(last),
            _ => return Err(malformed("only a near relay sends this")),
        }
    }
}

/// Passes the caller's signals on, until its session ends. After a resize of its terminal it sends
/// `SIGWINCH`.
fn obey(mut caller: Reader, terminal: Option<&OwnedFd>, to: &Sender) {
    while let Ok((Request::Signal { signal }, _)) = caller.receive() {
        let size = terminal.filter(|_| signal == SIGWINCH);
        let notice = match size.map(tcgetwinsize) {
            Some(Ok(size)) => Notice::Resize {
                rows: size.ws_row,
                columns: size.ws_col,
            },
            _ => Notice::Signal(signal),
        };
        if to.notice(&notice).is_err() {
            return;
        }
    }
}

fn lost(host: &str, error: &io::Error) -> Refusal {
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "it closed the connection".into(),
        _ => error.to_string(),
    };
    Refusal::new(
        RefusalKind::Failed,
        format!("lost the command on host {host}: {why}"),
        "if it has begun, it ends; see `toroid status` on both hosts",
    )
}
