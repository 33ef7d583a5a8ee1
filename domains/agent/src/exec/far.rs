//! The far relay of a command, on the host of its node: a client of the agent there.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::unistd::{Gid, Uid, User, getgrouplist};
use rustix::termios::{Winsize, tcsetwinsize};
use serde::{Deserialize, Serialize};
use toroid_client::admin::{self, ClientError, Control, ExecHandle, Signals};
use toroid_client::credentials::Ids;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::command::{Notice, Start, Stream};
use toroid_protocol::seal::SealKeys;
use toroid_protocol::wire::WireError;

use super::frames::{self, Frame, Receiver, Sender, malformed};
use super::streams::{Credit, Sink, pass_on};
use super::{become_user, receive_order};
use crate::threads;

/// Argument of the role: relays a command of another host to a node.
pub(crate) const ROLE: &str = "__far-relay";

/// Time for the near relay to name the command, and for that to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Group of users that are not known here.
const NO_GROUP: u32 = 65534;

/// Task of the relay. Descriptor: the data connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// The caller, if the relay is to have its rights.
    pub(super) user: Option<u32>,
    /// State directory of the agent.
    pub(super) state: PathBuf,
    pub(super) keys: Option<SealKeys>,
}

/// Runs the relay.
pub(crate) fn run_role() -> u8 {
    u8::from(run().is_err())
}

fn run() -> Result<(), WireError> {
    let (order, descriptors) = receive_order::<Order>()?;
    let connection = descriptors.into_iter().next().ok_or(WireError::Closed)?;
    let has_begun = end_unless_begun()?;
    let connection = TcpStream::from(connection);
    let (mut receiver, sender) = frames::split(connection, order.keys.as_ref())?;
    let command = match begin(&order, &mut receiver) {
        Ok(command) => command,
        Err(error) => {
            sender.notice(&Notice::Refused(refusal(error)))?;
            // The kernel discards the notice if it closes a socket with unread bytes.
            while receiver.receive().is_ok() {}
            return Ok(());
        }
    };
    has_begun.store(true, Ordering::SeqCst);
    let last = match serve(command, receiver, &sender) {
        Ok(status) => Notice::Exited(status),
        Err(error) => Notice::Refused(refusal(error)),
    };
    sender.notice(&last)?;
    // The other side closes the connection, by which another thread ends this process.
    loop {
        thread::park();
    }
}

/// Ends this process after some time, unless the returned value is true by then.
fn end_unless_begun() -> io::Result<Arc<AtomicBool>> {
    let has_begun = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&has_begun);
    threads::start(move || {
        thread::sleep(START_TIMEOUT);
        if !seen.load(Ordering::SeqCst) {
            exit(1);
        }
    })?;
    Ok(has_begun)
}

/// Takes on the rights that a user has on this host.
fn log_in(uid: u32) -> io::Result<()> {
    let known = User::from_uid(Uid::from_raw(uid))?;
    let gid = known.as_ref().map_or(NO_GROUP, |user| user.gid.as_raw());
    let groups = match known.map(|user| std::ffi::CString::new(user.name)) {
        Some(Ok(name)) => getgrouplist(&name, Gid::from_raw(gid))?,
        _ => vec![],
    };
    become_user(Ids { uid, gid }, &groups)
}

/// Starts the command that the near relay names.
fn begin(order: &Order, receiver: &mut Receiver) -> Result<Command, ClientError> {
    if let Some(uid) = order.user {
        log_in(uid)?;
    }
    match receiver.receive()? {
        Frame::Notice(Notice::Start(start)) => Command::start(&order.state, start),
        _ => Err(malformed("the first message names a command").into()),
    }
}

/// Relays for the command; returns its exit status.
fn serve(
    mut command: Command,
    mut receiver: Receiver,
    sender: &Sender,
) -> Result<i32, ClientError> {
    let credits = [Credit::new(), Credit::new()];
    let input = Sink::start(command.input, Stream::Input, sender.clone())?;
    let listener = Listener {
        input,
        credits: credits.clone(),
        signals: command.handle.signals(),
        terminal: command.terminal,
    };
    threads::start(move || {
        // The node ends the command when its session does.
        let _ = listener.obey(&mut receiver);
        exit(0);
    })?;
    let (over, ours) = io::pipe()?;
    let over = Arc::new(OwnedFd::from(over));
    let streams = [Stream::Output, Stream::Error];
    let mut passing = Vec::new();
    for ((from, stream), credit) in command.outputs.into_iter().zip(streams).zip(credits) {
        let (to, over) = (sender.clone(), Arc::clone(&over));
        let pass = move || pass_on(from, stream, &credit, &to, Some(&over));
        passing.push(threads::start(pass)?);
    }
    let status = command.handle.wait();
    drop(ours);
    for thread in passing {
        // A failure of the connection ends this process anyway.
        let _ = thread.join();
    }
    status
}

/// A command that runs.
struct Command {
    handle: ExecHandle,
    input: OwnedFd,
    /// Its output, and its error unless that is its terminal.
    outputs: Vec<OwnedFd>,
    /// Master of its terminal.
    terminal: Option<OwnedFd>,
}

impl Command {
    fn start(state: &std::path::Path, start: Start) -> Result<Self, ClientError> {
        let (stdin, input) = io::pipe()?;
        let (output, stdout) = io::pipe()?;
        let (error, stderr) = io::pipe()?;
        let mut handle = Control::connect(state)?.exec(&admin::Order {
            node: &start.node,
            argv: &start.argv,
            env: &start.env,
            search: &start.search,
            cwd: &start.cwd,
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            terminal: start.terminal,
            binds: &[],
        })?;
        let terminal = handle.take_terminal();
        let (input, output) = match &terminal {
            Some(master) => (master.try_clone()?, master.try_clone()?),
            None => (input.into(), output.into()),
        };
        Ok(Command {
            handle,
            input,
            outputs: vec![output, error.into()],
            terminal,
        })
    }
}

/// Receiver of the near relay's frames.
struct Listener {
    input: Sink,
    /// Of output and error.
    credits: [Arc<Credit>; 2],
    signals: Signals,
    terminal: Option<OwnedFd>,
}

impl Listener {
    /// Obeys until the connection ends.
    fn obey(&self, receiver: &mut Receiver) -> io::Result<()> {
        let [output, error] = &self.credits;
        let credit = |stream| match stream {
            Stream::Output => Ok(output),
            Stream::Error => Ok(error),
            Stream::Input => Err(malformed("the input goes the other way")),
        };
        loop {
            match receiver.receive()? {
                Frame::Data(Stream::Input, bytes) => self.input.take(bytes)?,
                Frame::Notice(Notice::Passed { stream, bytes }) => credit(stream)?.add(bytes)?,
                Frame::Notice(Notice::Closed(stream)) => credit(stream)?.close(),
                // It fails when the command has ended.
                Frame::Notice(Notice::Signal(signal)) => drop(self.signals.send(signal)),
                Frame::Notice(Notice::Resize { rows, columns }) => self.resize(rows, columns),
                _ => return Err(malformed("only a far relay sends this")),
            }
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        if let Some(terminal) = &self.terminal {
            // It fails when all is over.
            let _ = tcsetwinsize(terminal, size);
        }
    }
}

fn refusal(error: ClientError) -> Refusal {
    match error {
        ClientError::Refused(refusal) => refusal,
        error => Refusal::new(RefusalKind::Failed, error.to_string(), ""),
    }
}
