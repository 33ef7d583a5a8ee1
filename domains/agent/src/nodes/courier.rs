//! Exec fd couriers: a process for each command carries its caller's descriptors to a node.
//!
//! ```text
//!   caller ── descriptors ──> courier ── order, descriptors, the caller's session ──> node
//! ```
//!
//! Closing a descriptor may take as long as the server of its file system (FUSE) likes, and a
//! process in the middle of that cannot even be killed. So the agent never holds a caller's
//! descriptor.
//!
//! A courier ends with its node, independent of its caller and of the agent.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio, exit};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Message, Reply, Request, Terminal};
use toroid_protocol::node::StartCommand;
use toroid_protocol::wire::{self, WireError, Writer};

use super::bind::Lender;
use super::terminal;
use crate::process::role_command;
use crate::threads;

/// Argument of the role: carries a caller's descriptors to a node.
pub(crate) const ROLE: &str = "__fd-courier";

/// Time for a caller to send its descriptors.
const CALLER_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of a caller's message.
const CALLER_BYTES: u32 = 1024;

/// Time that an order may wait to be read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Couriers to one node.
#[derive(Debug, Default)]
pub(crate) struct Couriers {
    under_way: Mutex<usize>,
    arrived: Condvar,
}

impl Couriers {
    /// Starts a courier. It waits for [`Request::Descriptors`] from a caller, and takes the
    /// descriptors with an order to the node, whose root directory is `root`. `owner` is the uid of
    /// the node's root if the node has users of its own; then the node gets `lender`'s directories.
    pub(crate) fn send(
        self: &Arc<Self>,
        order: &StartCommand,
        owner: Option<u32>,
        lender: Option<Lender>,
        caller: UnixStream,
        node: UnixStream,
        root: Option<OwnedFd>,
    ) -> io::Result<FdCourier> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = role_command("toroid-courier", ROLE);
        command.stdin(OwnedFd::from(theirs));
        // It may outlive the agent, whose output another process may wait for.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let courier = FdCourier::begin(command.spawn()?, self);
        drop(command);
        let (_, errands) = wire::split(ours)?;
        errands.give_up_after(WRITE_TIMEOUT)?;
        let sessions = [caller.as_fd(), node.as_fd()];
        let descriptors: Vec<_> = sessions
            .into_iter()
            .chain(root.as_ref().map(AsFd::as_fd))
            .collect();
        // If this fails, the courier ends, and so do the sessions.
        let _ = errands.send(&(order, owner, lender), &descriptors);
        Ok(courier)
    }

    /// Waits until all have finished, but not for those that close a descriptor for ever.
    pub(super) fn arrive_by(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        // Late couriers are left behind.
        let mut under_way = self.under_way.lock();
        self.arrived
            .wait_while_for(&mut under_way, |under_way| *under_way > 0, left);
    }
}

/// A running courier.
#[derive(Debug)]
pub(crate) struct FdCourier {
    process: Child,
    all: Arc<Couriers>,
}

impl FdCourier {
    fn begin(process: Child, all: &Arc<Couriers>) -> Self {
        *all.under_way.lock() += 1;
        FdCourier {
            process,
            all: Arc::clone(all),
        }
    }
}

/// Waits for the courier's end: in the thread of a connection, which may wait for ever, and so has
/// one courier at a time.
impl Drop for FdCourier {
    fn drop(&mut self) {
        // Waiting for a child does not fail.
        let _ = self.process.wait();
        *self.all.under_way.lock() -= 1;
        self.all.arrived.notify_all();
    }
}

/// Runs a courier.
pub(crate) fn run_role() -> u8 {
    u8::from(run().is_err())
}

fn run() -> Result<(), WireError> {
    // Closing these may take for ever. They are dropped last: while anything of the session was
    // still open here, its caller would not see the session end with the node.
    let mut theirs = Vec::new();
    let errand = Errand::receive()?;
    errand.end_with_node()?;
    errand.run(&mut theirs)
}

/// Order, sessions and owners of one delivery.
struct Errand {
    order: StartCommand,
    /// Uid of the node's root.
    owner: Option<u32>,
    /// Owners of lent directories.
    lender: Option<Lender>,
    /// Control channels of caller and node.
    caller: OwnedFd,
    node: OwnedFd,
    /// Root directory of the node.
    root: Option<OwnedFd>,
}

impl Errand {
    fn receive() -> Result<Self, WireError> {
        let agent = io::stdin().as_fd().try_clone_to_owned()?;
        let (mut agent, _) = wire::split(agent.into())?;
        let ((order, owner, lender), descriptors) = agent.receive()?;
        let mut descriptors = descriptors.into_iter();
        let (Some(caller), Some(node)) = (descriptors.next(), descriptors.next()) else {
            return Err(WireError::Closed);
        };
        Ok(Errand {
            order,
            owner,
            lender,
            caller,
            node,
            root: descriptors.next(),
        })
    }

    /// Ends this process when the node closes its session: the node has ended, or has everything
    /// that it needs.
    fn end_with_node(&self) -> io::Result<()> {
        let node = self.node.try_clone()?;
        let watch = move || {
            let mut closed = [PollFd::new(node.as_fd(), PollFlags::empty())];
            while poll(&mut closed, PollTimeout::NONE) == Err(Errno::EINTR) {}
            exit(0);
        };
        threads::start(watch).map(drop)
    }

    /// Takes the caller's descriptors to the node. They are left in `theirs`.
    fn run(self, theirs: &mut Vec<OwnedFd>) -> Result<(), WireError> {
        let (mut from, answers) = wire::split(UnixStream::from(self.caller.try_clone()?))?;
        let deadline = Instant::now() + CALLER_TIMEOUT;
        let request: Request;
        (request, *theirs) = from.receive_first(CALLER_BYTES, deadline)?;
        // Bytes after them were meant for the node, and would be lost.
        if request != Request::Descriptors || from.has_more() {
            return Err(WireError::Malformed(
                "only descriptors are asked for".into(),
            ));
        }
        let (_, orders) = wire::split(self.node.into())?;
        orders.give_up_after(WRITE_TIMEOUT)?;
        let root = self.root.as_ref();
        let own = count_own(&self.order, theirs.len())?;
        let (theirs, directories) = theirs.split_at(own);
        let mounts = match self.lender {
            Some(lender) => lender.lend(&self.order.binds, directories),
            None => Ok(vec![]),
        };
        let mounts = mounts.map_err(|refusal| refuse(refusal, &answers))?;
        let slave = match &self.order.terminal {
            Some(terminal) => Some(give_terminal(terminal, root, self.owner, &answers)?),
            None => None,
        };
        deliver(
            self.order,
            theirs,
            slave.as_ref(),
            root,
            &mounts,
            &self.caller,
            &orders,
        )
    }
}

/// Number of a command's descriptors without its directories: three or, with its working directory,
/// four, with its program five.
fn count_own(order: &StartCommand, count: usize) -> Result<usize, WireError> {
    let own = count.checked_sub(order.binds.len());
    own.filter(|own| (3..=5).contains(own) && order.program.is_some() == (*own == 5))
        .ok_or_else(|| {
            let needs = "three descriptors, with its directory four, with its program five, and \
                         one for each bind";
            WireError::Malformed(format!("a command needs {needs}"))
        })
}

/// Sends a refusal to the caller.
fn refuse(refusal: Refusal, caller: &Writer) -> WireError {
    // If this fails, the caller has ended.
    let _ = caller.send(&Message::Reply(Reply::Error(refusal)), &[]);
    WireError::Closed
}

/// Opens a terminal of the node, sends its master to the caller, and returns its slave.
fn give_terminal(
    terminal: &Terminal,
    root: Option<&OwnedFd>,
    owner: Option<u32>,
    caller: &Writer,
) -> Result<OwnedFd, WireError> {
    match terminal::open(terminal, root, owner) {
        Ok((master, slave)) => {
            caller.send(&Message::Reply(Reply::Terminal), &[master.as_fd()])?;
            Ok(slave)
        }
        Err(error) => {
            let refusal = Refusal::new(
                RefusalKind::Exhausted,
                format!("cannot open a terminal for the command: {error}"),
                "run it without one by `toroid exec -T`",
            );
            Err(refuse(refusal, caller))
        }
    }
}

/// Sends an order to the node, with a caller's standard input, output and error, or a terminal
/// instead, its directory and its program as the node sees them, mounts, and its session.
fn deliver(
    mut order: StartCommand,
    theirs: &[OwnedFd],
    slave: Option<&OwnedFd>,
    root: Option<&OwnedFd>,
    mounts: &[OwnedFd],
    session: &OwnedFd,
    orders: &Writer,
) -> Result<(), WireError> {
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
    let error = order.terminal.is_some_and(|terminal| terminal.error);
    let stdio = theirs.iter().take(3).enumerate();
    let stdio = stdio.map(|(n, theirs)| match slave {
        Some(slave) if n < 2 || error => slave.as_fd(),
        _ => theirs.as_fd(),
    });
    let places = directory.iter().map(AsFd::as_fd).chain(file);
    let last = mounts.iter().chain([session]).map(AsFd::as_fd);
    let all: Vec<_> = stdio.chain(places).chain(last).collect();
    orders.send(&order, &all)
}

/// Opens a caller's file by its path in a node, so that it is on one of the node's own mounts and
/// has a name there. Returns only the same file: a courier has more access than the caller.
///
/// A mount in the node may belong to its root, whose server need not answer. So only data in the
/// kernel's caches is used.
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::IoSlice;
    use std::mem::MaybeUninit;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use toroid_protocol::agent::Bind;

    use super::*;

    /// Sends requests in one piece. The first announces `count` descriptors.
    fn say(caller: &UnixStream, requests: &[Request], count: u8) {
        let mut bytes = Vec::new();
        for request in requests {
            let json = serde_json::to_vec(request).unwrap();
            let announced = if bytes.is_empty() { count } else { 0 };
            bytes.extend([json.len() as u8, 0, 0, 0, announced, 0, 0, 0]);
            bytes.extend(json);
        }
        let file = File::open("/").unwrap();
        let rights = vec![file.as_fd(); count.into()];
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if count > 0 {
            assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
        }
        let parts = [IoSlice::new(&bytes)];
        sendmsg(caller, &parts, &mut control, SendFlags::empty()).unwrap();
    }

    /// Runs a courier for a caller that sends these requests; returns the number of descriptors for
    /// the node, if it gets any.
    fn carry(program: Option<&str>, requests: &[Request], count: u8) -> Option<usize> {
        carry_with(vec![], program, requests, count)
    }

    fn carry_with(
        binds: Vec<Bind>,
        program: Option<&str>,
        requests: &[Request],
        count: u8,
    ) -> Option<usize> {
        let (ours, caller) = UnixStream::pair().unwrap();
        let (node, theirs) = UnixStream::pair().unwrap();
        say(&ours, requests, count);
        // The caller sends nothing more.
        drop(ours);
        let errand = Errand {
            order: StartCommand {
                argv: vec!["true".into()],
                env: vec![],
                cwd: "/".into(),
                program: program.map(str::to_owned),
                has_directory: false,
                has_file: false,
                terminal: None,
                binds,
            },
            owner: None,
            lender: None,
            caller: caller.into(),
            node: node.into(),
            root: None,
        };
        let carried = errand.run(&mut Vec::new());
        let received = wire::split(theirs).unwrap().0.receive::<StartCommand>();
        assert_eq!(carried.is_ok(), received.is_ok(), "{carried:?}");
        received.ok().map(|(_, descriptors)| descriptors.len())
    }

    /// Without the node's root directory nothing is found in it, so directory and program are left
    /// out.
    #[test]
    fn a_node_gets_a_command_with_the_right_descriptors_or_none() {
        let ask = [Request::Descriptors];
        let program = Some("/bin/true");
        for count in 0..=8 {
            let with_session = 3 + 1;
            let plain = (count == 3 || count == 4).then_some(with_session);
            assert_eq!(carry(None, &ask, count), plain, "{count}");
            let with_program = (count == 5).then_some(with_session);
            assert_eq!(carry(program, &ask, count), with_program, "{count}");
        }
    }

    /// Without a lender there are no mounts.
    #[test]
    fn a_command_comes_with_one_directory_for_each_bind() {
        let bind = Bind {
            directory: ".".into(),
            place: "/run/x".into(),
            read_only: false,
        };
        for count in 0..=10 {
            let binds = vec![bind.clone(); 3];
            let carried = carry_with(binds, Some("/bin/true"), &[Request::Descriptors], count);
            assert_eq!(carried, (count == 8).then_some(4), "{count}");
        }
    }

    #[test]
    fn a_caller_with_other_requests_gets_no_command() {
        let (ask, signal) = (Request::Descriptors, Request::Signal { signal: 15 });
        for requests in [
            vec![],
            vec![signal.clone()],
            vec![Request::Status],
            vec![signal.clone(), ask.clone()],
            vec![ask.clone(), signal],
        ] {
            let count = if requests.is_empty() { 0 } else { 3 };
            assert_eq!(carry(None, &requests, count), None, "{requests:?}");
        }
        assert!(carry(None, &[ask], 3).is_some());
    }
}
