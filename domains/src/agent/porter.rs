//! Who carries a caller's descriptors to a node: a process for each command.
//!
//! ```text
//!   caller ── descriptors ──> porter ── order, descriptors, the caller's session ──> node
//! ```
//!
//! To close a descriptor may take as long as whoever serves its file system (FUSE) likes, and a
//! process in the middle of that cannot even be killed. So the agent never holds one of a caller's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};

use crate::node::messages::Start;
use crate::protocol::Request;
use crate::roles;
use crate::wire::{self, WireError, Writer};

/// How long a caller may take to hand over its descriptors.
const CALLER_PATIENCE: Duration = Duration::from_secs(10);

/// How long a caller's message may be.
const CALLER_BYTES: u32 = 1024;

/// How long an order may wait for who is to read it.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

/// A process that carries descriptors.
#[derive(Debug)]
pub(super) struct Porter(Child);

impl Porter {
    /// Lets one wait for what comes with [`Request::Descriptors`] from a caller, and take it with an
    /// order to a node whose root directory this is.
    pub(super) fn send(
        order: &Start,
        caller: UnixStream,
        node: UnixStream,
        root: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("toroid-porter").arg(roles::PORTER);
        command.env_clear().env("MALLOC_ARENA_MAX", "1");
        command.stdin(OwnedFd::from(theirs));
        // It may be left when the agent has ended, whose output somebody may wait for.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let porter = Porter(command.spawn()?);
        drop(command);
        let (_, errands) = wire::split(ours)?;
        errands.give_up_after(WRITE_PATIENCE)?;
        let sessions = [caller.as_fd(), node.as_fd()];
        let descriptors: Vec<_> = sessions
            .into_iter()
            .chain(root.as_ref().map(AsFd::as_fd))
            .collect();
        // If it fails the porter ends, and so do the sessions.
        let _ = errands.send(order, &descriptors);
        Ok(porter)
    }

    /// Waits until it has done its work, or has been kept from it: the thread of a connection,
    /// which may wait for ever, and so has no more than one porter at a time.
    pub(super) fn wait(mut self) {
        // It is a child, so there is nothing that could fail.
        let _ = self.0.wait();
    }
}

/// Runs an errand.
pub(crate) fn run_role() -> u8 {
    u8::from(run().is_err())
}

fn run() -> Result<(), WireError> {
    // To close these may take for ever. They are dropped last: while anything of the session was still
    // open here, its caller would not see it end with the node.
    let mut theirs = Vec::new();
    carry(&mut theirs)
}

/// Takes a caller's descriptors, which are left in `theirs`, to a node.
fn carry(theirs: &mut Vec<OwnedFd>) -> Result<(), WireError> {
    let errands = io::stdin().as_fd().try_clone_to_owned()?;
    let (mut errands, _) = wire::split(errands.into())?;
    let (order, descriptors) = errands.receive::<Start>()?;
    let mut descriptors = descriptors.into_iter();
    let (Some(caller), Some(node)) = (descriptors.next(), descriptors.next()) else {
        return Err(WireError::Closed);
    };
    let (mut from, _) = wire::split(UnixStream::from(caller.try_clone()?))?;
    let deadline = Instant::now() + CALLER_PATIENCE;
    let request: Request;
    (request, *theirs) = from.receive_first(CALLER_BYTES, deadline)?;
    // What came with them was for the node, and is lost to it.
    if request != Request::Descriptors || from.has_more() {
        return Err(WireError::Malformed(
            "only descriptors are asked for".into(),
        ));
    }
    let (_, orders) = wire::split(node.into())?;
    orders.give_up_after(WRITE_PATIENCE)?;
    deliver(order, theirs, descriptors.next().as_ref(), &caller, &orders)
}

/// Sends an order with a caller's standard input, output and error, its directory and its program
/// as the node sees them, and its session.
fn deliver(
    mut order: Start,
    theirs: &[OwnedFd],
    root: Option<&OwnedFd>,
    session: &OwnedFd,
    orders: &Writer,
) -> Result<(), WireError> {
    let count = theirs.len();
    if !(3..=5).contains(&count) || order.program.is_some() != (count == 5) {
        let needs = "three descriptors, with its directory four, with its program five";
        return Err(WireError::Malformed(format!("a command needs {needs}")));
    }
    let place = |n: usize, path: Option<&String>| {
        let theirs = theirs.get(n)?;
        Some((theirs, open_inside(root?, path?, theirs)))
    };
    let directory = place(3, Some(&order.cwd)).and_then(|(_, ours)| ours);
    let program = place(4, order.program.as_ref());
    let file = program.as_ref().map(|(theirs, ours)| match ours {
        Some(ours) => ours.as_fd(),
        None => theirs.as_fd(),
    });
    order.has_directory = directory.is_some();
    order.has_file = file.is_some();
    let stdio = theirs.iter().take(3).map(AsFd::as_fd);
    let places = directory.iter().map(AsFd::as_fd).chain(file);
    let all: Vec<_> = stdio.chain(places).chain([session.as_fd()]).collect();
    orders.send(&order, &all)
}

/// Opens a file that a caller has open by its path in a node, so that it is one of the node's own
/// mounts and has a name there. Only if it is the same file: a porter gets further than the caller.
///
/// What is mounted in the node may be its root's, who need not answer: only what the kernel knows
/// already is looked at.
fn open_inside(root: &OwnedFd, path: &str, theirs: &OwnedFd) -> Option<OwnedFd> {
    let (place, none) = (OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let how = ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS | ResolveFlags::IN_ROOT;
    let ours = openat2(root, path.trim_start_matches('/'), place, none, how).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let identity = |file: &OwnedFd| {
        let found = statx(file, c"", flags, StatxFlags::INO).ok()?;
        Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
    };
    let (theirs, found) = (identity(theirs)?, identity(&ours)?);
    (theirs == found).then_some(ours)
}
