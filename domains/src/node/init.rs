//! The first process of a node: starts its commands, and reaps whatever ends there.
//!
//! One thread waits for sessions until the lifeline ends, one for children, and one attends each
//! session. When the process ends, the kernel kills everything else in the node.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process_group, wait, waitid,
};

use super::birth;
use super::command::{self, Failure, NOT_EXECUTABLE};
use super::messages::{InitConfig, Report, Start};
use crate::lifeline::Lifeline;
use crate::protocol::{Event, Message, Request};
use crate::wire::{self, WireError, Writer};

/// How long a command that nobody wants any more may take to clean up.
const GRACE: Duration = Duration::from_millis(500);

const STACK_BYTES: usize = 128 * 1024;

/// Is the first process of a node until its lifeline ends.
pub(crate) fn run_role(config: &str) -> u8 {
    match serde_json::from_str(config).map_err(io::Error::from) {
        Ok(config) => u8::from(run(&config).is_err()),
        Err(_) => 1,
    }
}

fn run(config: &InitConfig) -> Result<(), WireError> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let (mut orders, reports) = wire::split(UnixStream::from(socket))?;
    let born = match birth::be_born(config, &mut orders, &reports) {
        Ok(born) => born,
        Err(error) => return reports.send(&Report::from(&error), &[]),
    };
    let init = Arc::new(Init {
        commands: Mutex::default(),
        started: Condvar::new(),
    });
    let reaper = Arc::clone(&init);
    thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || reaper.reap())?;
    let ready = Report::Ready {
        warnings: born.warnings,
    };
    reports.send(&ready, &[born.network.as_fd(), born.listener.as_fd()])?;
    drop((born.network, born.listener));
    init.obey(Lifeline::new(orders))
}

struct Init {
    commands: Mutex<Commands>,
    started: Condvar,
}

#[derive(Default)]
struct Commands {
    /// By process id, which is also that of the process group.
    running: HashMap<Pid, Running>,
    /// Commands so far.
    count: u64,
    /// Whether a child was started since the reaper last looked.
    fresh: bool,
}

struct Running {
    exec: u64,
    caller: Writer,
    unwanted: bool,
}

impl Init {
    fn obey(self: &Arc<Self>, mut lifeline: Lifeline) -> Result<(), WireError> {
        loop {
            let session = match lifeline.next_session() {
                Ok(session) => session,
                Err(WireError::Closed) => return Ok(()),
                Err(error) => return Err(error),
            };
            let init = Arc::clone(self);
            // It ends when either side has broken off, which is all that there is to know. Without
            // a thread the caller sees the session end.
            let attend = move || drop(init.attend(session));
            let _ = thread::Builder::new().stack_size(STACK_BYTES).spawn(attend);
        }
    }

    /// Runs a command for a caller, and ends it when that has gone.
    fn attend(&self, session: UnixStream) -> Result<(), WireError> {
        let (order, mut descriptors) = wire::split(session)?.0.receive()?;
        let caller = descriptors.pop().ok_or(WireError::Closed)?;
        let (mut caller, answers) = wire::split(caller.into())?;
        let exec = match self.start(order, descriptors, answers.clone()) {
            Ok(exec) => exec,
            Err(failure) => return complain(&answers, failure),
        };
        let end = loop {
            match caller.receive() {
                Ok((Request::Signal { signal }, _)) => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        self.lock().signal(exec, signal);
                    }
                }
                Ok(_) => break WireError::Malformed("only signals are for commands".into()),
                Err(error) => break error,
            }
        };
        self.end(exec);
        Err(end)
    }

    /// Starts a command and gives it a number.
    fn start(
        &self,
        order: Start,
        descriptors: Vec<OwnedFd>,
        caller: Writer,
    ) -> Result<u64, Failure> {
        let prepared = command::prepare(order, descriptors)?;
        let mut commands = self.lock();
        let child = prepared.start()?;
        commands.count += 1;
        let exec = commands.count;
        if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
            let running = Running {
                exec,
                caller,
                unwanted: false,
            };
            commands.running.insert(pid, running);
        }
        commands.fresh = true;
        self.started.notify_one();
        Ok(exec)
    }

    /// Asks a command to end, if it still runs, and kills it when it does not.
    fn end(&self, exec: u64) {
        let mut commands = self.lock();
        let mut wanted = commands.running.values_mut().filter(|r| r.exec == exec);
        let Some(running) = wanted.next() else {
            return;
        };
        running.unwanted = true;
        commands.signal(exec, Signal::TERM);
        drop(commands);
        thread::sleep(GRACE);
        self.lock().signal(exec, Signal::KILL);
    }

    /// Waits for children, those included that were orphaned in the node.
    fn reap(&self) {
        loop {
            // Only looks: the child is taken under the lock, so that no signal can go to a
            // process that has its number meanwhile.
            match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Err(Errno::CHILD) => self.wait_for_children(),
                Err(_) => {}
                Ok(_) => self.take_ended(),
            }
        }
    }

    fn wait_for_children(&self) {
        let commands = self.lock();
        let waiting = self
            .started
            .wait_while(commands, |commands| !commands.fresh);
        let mut commands = waiting.unwrap_or_else(PoisonError::into_inner);
        commands.fresh = false;
    }

    fn take_ended(&self) {
        let mut commands = self.lock();
        let mut ended = Vec::new();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(running) = commands.running.remove(&pid) {
                if running.unwanted {
                    // What is left of its group; it fails when nothing is.
                    let _ = kill_process_group(pid, Signal::KILL);
                }
                ended.push((running.caller, exit_status(status)));
            }
        }
        drop(commands);
        for (caller, status) in ended {
            // It fails when the caller has gone.
            let _ = report(&caller, status);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Commands {
    fn signal(&self, exec: u64, signal: Signal) {
        let groups = self.running.iter().filter(|(_, r)| r.exec == exec);
        for (group, _) in groups {
            // It fails when the last process of the group has just ended.
            let _ = kill_process_group(*group, signal);
        }
    }
}

/// Says on its standard error why a command was not started, and then reports that. Only the
/// session's own thread waits if nobody reads there.
fn complain(caller: &Writer, failure: Failure) -> Result<(), WireError> {
    if let Some((mut stderr, message)) = failure.complaint {
        // Where it cannot be said, the status has to do.
        let _ = writeln!(stderr, "toroid: {message}");
    }
    report(caller, failure.status)
}

/// The last word of a session. It is the only one in this direction, so it finds room.
fn report(caller: &Writer, status: i32) -> Result<(), WireError> {
    let reported = caller.send(&Message::Event(Event::Exited { status }), &[]);
    caller.shut_down();
    reported
}

fn exit_status(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => status,
        (None, Some(signal)) => 128 + signal,
        (None, None) => NOT_EXECUTABLE,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::command::NOT_FOUND;
    use super::*;
    use crate::lifeline;

    /// The thread that carries out orders once wrote complaints itself, and one caller that did
    /// not read its standard error stopped the whole node.
    #[test]
    fn a_complaint_that_nobody_reads_holds_up_only_its_own_report() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_, lifeline) = wire::split(ours).unwrap();
        let init = Arc::new(Init {
            commands: Mutex::default(),
            started: Condvar::new(),
        });
        let orders = Lifeline::new(wire::split(theirs).unwrap().0);
        thread::spawn(move || init.obey(orders));
        let (mut reader, mut stderr) = UnixStream::pair().unwrap();
        stderr.set_nonblocking(true).unwrap();
        let mut filler = 0;
        while let Ok(count) = stderr.write(&[b'x'; 4096]) {
            filler += count;
        }
        stderr.set_nonblocking(false).unwrap();
        let start = |stderr: OwnedFd| {
            let session = lifeline::open_session(&lifeline).unwrap();
            let (_, orders) = wire::split(session).unwrap();
            let (caller, theirs) = UnixStream::pair().unwrap();
            let order = Start {
                argv: vec!["/no/such/program".into()],
                env: Vec::new(),
                cwd: "/".into(),
                program: None,
                has_directory: false,
                has_file: false,
            };
            let null = File::open("/dev/null").unwrap();
            let stdio = [null.as_fd(), null.as_fd(), stderr.as_fd(), theirs.as_fd()];
            orders.send(&order, &stdio).unwrap();
            wire::split(caller).unwrap().0
        };
        let ended = |mut session: wire::Reader| match session.receive().unwrap().0 {
            Event::Exited { status } => status,
            other => panic!("{other:?} is no end"),
        };

        let stopped = start(stderr.into());
        let other = start(File::create("/dev/null").unwrap().into());
        assert_eq!(ended(other), NOT_FOUND);
        reader.read_exact(&mut vec![0; filler]).unwrap();
        assert_eq!(ended(stopped), NOT_FOUND);
        let mut complaint = String::new();
        reader.read_to_string(&mut complaint).unwrap();
        assert_eq!(complaint, "toroid: /no/such/program: not found\n");
    }
}
