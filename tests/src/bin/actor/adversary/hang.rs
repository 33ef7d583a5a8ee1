//! A file system (FUSE) that answers as little as it can, with descriptors of it for the agent, and
//! callers that stop in the middle of handing descriptors over.
//!
//! ```text
//!  request: 0     4        8        16          40      answer: 0     4       8        16
//!           +-----+--------+--------+-----------+               +-----+-------+--------+------
//!           | len | opcode | unique | who, what | ...           | len | error | unique | ...
//!           +-----+--------+--------+-----------+               +-----+-------+--------+------
//! ```

use std::env;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tests::actor::{Event, report};
use toroid_client::admin::CONTROL_SOCKET;
use toroid_protocol::agent::{Message, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, Writer};

use super::Result;

pub const OPEN: u32 = 14;
const FLUSH: u32 = 25;
pub const INIT: u32 = 26;

/// Version of the FUSE protocol; the kernel's may be newer.
const VERSION_OF_FUSE: [u32; 2] = [7, 31];

/// Bytes of a buffer for requests; the kernel demands more than the longest of them.
const LONGEST: usize = 64 * 1024;

const HEADER: usize = 40;

/// Bytes of answers.
const INITIALIZED: usize = 64;
const OPENED: usize = 16;

/// Mounts the file system on a file in a mount namespace of its own, and serves it. Another process hands
/// descriptors of that file to the agent. Calls that wait for an answer go on when this process ends,
/// because it has the only descriptor of the server's side.
pub fn hang(node: &str, state: &Path, path: &Path) -> Result<()> {
    let device = mount_on(Path::new("/dev/fuse"), path)?;
    let mut hand_over = Command::new(env::current_exe()?);
    hand_over
        .args(["adversary", "hand-over", node])
        .args([state, path]);
    let _until_this_ends = hand_over.stdin(Stdio::piped()).spawn()?;
    serve(device, |opcode| {
        if opcode == FLUSH {
            // Without a reader this process is about to end.
            let _ = report(&Event::Blocked);
        }
        answer(opcode)
    })?;
    Ok(())
}

/// Mounts a file system on a file in a mount namespace of its own; returns the server's side.
pub fn mount_on(device: &Path, path: &Path) -> Result<File> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    let device = File::options().read(true).write(true).open(device)?;
    let options = format!(
        "fd={},rootmode=100600,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("actor"), path, Some("fuse"), flags, Some(&*options))?;
    Ok(device)
}

/// Hands descriptors of the file over in every way that there is.
pub fn hand_over(node: &str, state: &Path, path: &Path) -> Result<()> {
    let file = File::open(path)?;
    let socket = state.join(CONTROL_SOCKET);
    let unasked = [
        Request::Hello { version: VERSION },
        Request::Status,
        exec(node),
    ];
    for request in unasked {
        let (mut reader, writer) = match request {
            Request::Hello { .. } => wire::split(UnixStream::connect(&socket)?)?,
            _ => greet(&socket)?,
        };
        writer.send(&request, &[file.as_fd(); 3])?;
        match reader.receive() {
            Ok((Message::Reply(Reply::Error(_)), _)) | Err(_) => {}
            Ok((answer, _)) => return Err(format!("it takes descriptors: {answer:?}").into()),
        }
    }
    let (_agent, session) = begin(&socket, node)?;
    let (_session, writer) = wire::split(session)?;
    writer.send(&Request::Descriptors, &[file.as_fd(); 3])?;
    // Closing the file hangs while the server runs.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

/// Stops in the middle of handing descriptors over, until the session ends.
pub fn stall(node: &str, state: &Path) -> Result<()> {
    let (_agent, mut session) = begin(&state.join(CONTROL_SOCKET), node)?;
    let header = [64, 0, 0, 0, 3, 0, 0, 0];
    let null = File::open("/dev/null")?;
    let rights = [null.as_raw_fd(); 3];
    let rights = [ControlMessage::ScmRights(&rights)];
    let parts = [IoSlice::new(&header)];
    sendmsg::<()>(
        session.as_raw_fd(),
        &parts,
        &rights,
        MsgFlags::empty(),
        None,
    )?;
    report(&Event::Blocked)?;
    Ok(io::copy(&mut session, &mut io::sink()).map(drop)?)
}

/// A connection to the agent, and a session for a command.
fn begin(socket: &Path, node: &str) -> Result<(Reader, UnixStream)> {
    let (mut reader, writer) = greet(socket)?;
    writer.send(&exec(node), &[])?;
    let (Message::Reply(Reply::Started), session) = reader.receive()? else {
        return Err("it was not started".into());
    };
    let session = session.into_iter().next().ok_or("no session")?;
    Ok((reader, session.into()))
}

fn greet(socket: &Path) -> Result<(Reader, Writer)> {
    let (mut reader, writer) = wire::split(UnixStream::connect(socket)?)?;
    writer.send(&Request::Hello { version: VERSION }, &[])?;
    reader.receive::<Message>()?;
    Ok((reader, writer))
}

fn exec(node: &str) -> Request {
    Request::Exec {
        node: node.into(),
        argv: vec!["true".into()],
        env: vec![],
        // Prevents the start: a process that hangs during exec stops ps(1).
        cwd: "/no/such/directory".into(),
        program: None,
        terminal: None,
        binds: vec![],
    }
}

/// The answer to requests that are needed to open the file; `None` for all others.
pub fn answer(opcode: u32) -> Option<Vec<u8>> {
    let mut answer = match opcode {
        INIT => vec![0; INITIALIZED],
        OPEN => vec![0; OPENED],
        _ => return None,
    };
    if opcode == INIT {
        answer[..4].copy_from_slice(&VERSION_OF_FUSE[0].to_ne_bytes());
        answer[4..8].copy_from_slice(&VERSION_OF_FUSE[1].to_ne_bytes());
    }
    Some(answer)
}

/// Answers requests as `answer` says, and never where that is `None`.
pub fn serve(mut device: File, mut answer: impl FnMut(u32) -> Option<Vec<u8>>) -> io::Result<()> {
    let mut request = vec![0; LONGEST];
    loop {
        if device.read(&mut request)? < HEADER {
            continue;
        }
        let opcode = u32::from_ne_bytes([request[4], request[5], request[6], request[7]]);
        let Some(answer) = answer(opcode) else {
            continue;
        };
        let len = 16 + answer.len() as u32;
        let unique = &request[8..16];
        let answer = [&len.to_ne_bytes()[..], &[0; 4], unique, &answer].concat();
        device.write_all(&answer)?;
    }
}
