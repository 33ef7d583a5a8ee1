//! The first process of a node: starts its commands, and reaps orphans.
//!
//! The first thread reaps orphans, because the kernel gives them to it. One thread waits for
//! sessions until the liveness socket ends, and one serves each [`session`]. When the process ends,
//! the kernel kills everything else in the node.
//!
//! Closing a descriptor may take as long as the server of its file system (FUSE) likes. So each
//! session has a table of descriptors of its own: one that hangs there stops no other command, and
//! no other command has its descriptors.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::Signals;
use toroid_protocol::liveness::LivenessSocket;
use toroid_protocol::node::{InitConfig, NodeEvent};
use toroid_protocol::wire::{self, WireError};

use super::{birth, session};
use crate::threads;

/// Argument of the role: the first process of a node; the configuration follows as JSON.
pub(crate) const ROLE: &str = "__node-init";

/// Runs the first process of a node until its liveness socket ends.
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
        Err(error) => return reports.send(&NodeEvent::from(&error), &[]),
    };
    let mut ends = Signals::new([SIGCHLD])?;
    let last = ends.handle();
    let ready = NodeEvent::Ready {
        warnings: born.warnings,
    };
    reports.send(&ready, &[born.network.as_fd(), born.listener.as_fd()])?;
    drop((born.network, born.listener));
    let liveness = LivenessSocket::new(orders);
    let obeying = threads::start(move || {
        let end = obey(liveness);
        last.close();
        end
    })?;
    reap_orphans(&mut ends);
    let panicked = || io::Error::other("the thread panicked");
    obeying.join().map_err(|_| panicked())?
}

/// Serves sessions until the liveness socket ends.
fn obey(liveness: LivenessSocket) -> Result<(), WireError> {
    let liveness = Arc::new(Mutex::new(liveness));
    loop {
        let (tell, told) = channel();
        let next = Arc::clone(&liveness);
        let received = match threads::start(move || attend_next(&next, &tell)) {
            Ok(_) => told.recv().unwrap_or(Ok(())),
            // Without a thread the caller sees the session end.
            Err(_) => receive(&liveness).map(drop),
        };
        match received {
            Ok(()) => {}
            Err(WireError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Waits for a session, reports the result, and serves the session.
fn attend_next(liveness: &Mutex<LivenessSocket>, tell: &Sender<Result<(), WireError>>) {
    // First, so that other sessions get none of its descriptors. As they do the same, it has only
    // the liveness socket of theirs.
    let is_alone = unshare(CloneFlags::CLONE_FILES).is_ok();
    let (session, received) = match receive(liveness) {
        Ok(session) => (Some(session), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // This fails only when the node ends.
    let _ = tell.send(received);
    if let Some(session) = session.filter(|_| is_alone) {
        // A session ends when either side closes it; there is nothing to report.
        let _ = session::attend(session);
    }
}

fn receive(liveness: &Mutex<LivenessSocket>) -> Result<UnixStream, WireError> {
    let mut liveness = liveness.lock();
    liveness.next_channel()
}

/// Reaps orphans in the node after each SIGCHLD, until there are no more signals.
///
/// Commands are children of the threads of their sessions, which wait for them and would miss one
/// that this thread has reaped.
fn reap_orphans(ends: &mut Signals) {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WNOTHREAD;
    for _ in ends.forever() {
        while waitpid(Pid::from_raw(-1), Some(flags)).is_ok_and(|end| end != WaitStatus::StillAlive)
        {
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::process::Command;
    use std::thread;

    use toroid_protocol::agent::Event;
    use toroid_protocol::liveness;
    use toroid_protocol::node::StartCommand;

    use super::*;
    use crate::nodes::node::command::NOT_FOUND;

    /// The thread for orders once wrote complaints itself, and one caller that did not read its
    /// standard error stopped the whole node.
    ///
    /// The threads of sessions keep copies of their process's descriptors, so the test runs in a
    /// child process of its own.
    #[test]
    fn an_unread_complaint_delays_only_its_own_report() {
        const CHILD: &str = "INIT_TEST_CHILD";
        const NAME: &str =
            "nodes::node::init::tests::an_unread_complaint_delays_only_its_own_report";
        if env::var_os(CHILD).is_none() {
            let mut child = Command::new(env::current_exe().unwrap());
            let child = child.args([NAME, "--exact", "--test-threads=1"]);
            let output = child.env(CHILD, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && said.contains("1 passed"),
                "{said}"
            );
            return;
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_, liveness) = wire::split(ours).unwrap();
        let orders = LivenessSocket::new(wire::split(theirs).unwrap().0);
        thread::spawn(move || obey(orders));
        let (mut reader, mut stderr) = UnixStream::pair().unwrap();
        stderr.set_nonblocking(true).unwrap();
        let mut filler = 0;
        while let Ok(count) = stderr.write(&[b'x'; 4096]) {
            filler += count;
        }
        stderr.set_nonblocking(false).unwrap();
        let start = |stderr: OwnedFd| {
            let session = liveness::open_channel(&liveness).unwrap();
            let (_, orders) = wire::split(session).unwrap();
            let (caller, theirs) = UnixStream::pair().unwrap();
            let order = StartCommand {
                argv: vec!["/no/such/program".into()],
                env: Vec::new(),
                cwd: "/".into(),
                program: None,
                has_directory: false,
                has_file: false,
                terminal: None,
                binds: vec![],
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
