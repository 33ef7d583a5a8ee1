//! Commands in nodes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access};
use toroid_protocol::agent::{Bind, Event, Message, Reply, Request, Terminal};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use super::{ClientError, Control, unexpected};

/// Exit status of commands that ended with their node: killed by SIGKILL.
const KILLED: i32 = 137;

/// A command for a node.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The node.
    pub node: &'a str,
    /// Program and arguments.
    pub argv: &'a [String],
    /// Whole environment, to which the agent adds `TOROID_NODE`, and `TOROID_DOMAIN` if the node is
    /// in exactly one domain.
    pub env: &'a [(String, String)],
    /// Directories, as in `PATH`, where the program is searched from here. If it is not there it is
    /// searched in the node, in `PATH` of `env`.
    pub search: &'a str,
    /// Working directory.
    pub cwd: &'a str,
    /// Standard input, output and error. None should be a terminal: a process of the node could
    /// keep it and read later input.
    pub stdio: [BorrowedFd<'a>; 3],
    /// A terminal of the node's that it gets instead of standard input and output.
    pub terminal: Option<Terminal>,
    /// Directories that it gets, opened for reading.
    pub binds: &'a [(Bind, OwnedFd)],
}

impl Control {
    /// Starts a command in a node, which needs the agent no longer once it runs.
    ///
    /// Program and directory may be where this process gets and the node's users do not, as below a
    /// home directory that is its owner's alone: they are sent along as descriptors.
    pub fn exec(&self, order: &Order<'_>) -> Result<ExecHandle, ClientError> {
        let mut connection = Self::open(self.address.clone())?;
        let directory = open_path(Path::new(order.cwd)).ok();
        let name = order.argv.first();
        let mut program = name.and_then(|name| find(name, order.search, order.cwd));
        let mut descriptors = order.stdio.to_vec();
        descriptors.extend(directory.as_ref().map(AsFd::as_fd));
        if directory.is_none() {
            program = None;
        }
        descriptors.extend(program.as_ref().map(|(_, file)| file.as_fd()));
        descriptors.extend(order.binds.iter().map(|(_, directory)| directory.as_fd()));
        let request = Request::Exec {
            node: order.node.into(),
            argv: order.argv.into(),
            env: order.env.into(),
            cwd: order.cwd.into(),
            program: program.as_ref().map(|(path, _)| path.clone()),
            terminal: order.terminal,
            binds: order.binds.iter().map(|(bind, _)| bind.clone()).collect(),
        };
        let (reply, session) = connection.call_with_descriptors(&request)?;
        if reply != Reply::Started {
            return Err(unexpected(&reply));
        }
        let session = session.into_iter().next().ok_or_else(no_room)?;
        let (mut reader, writer) = wire::split(session.into())?;
        // A failure means that the node has ended, which the caller sees when it waits for the
        // command.
        let _ = writer.send(&Request::Descriptors, &descriptors);
        let terminal = match order.terminal {
            Some(_) => receive_terminal(&mut reader)?,
            None => None,
        };
        // The other end now belongs to the node, which is not trusted.
        reader.take_no_descriptors();
        Ok(ExecHandle {
            reader,
            writer,
            terminal,
        })
    }
}

/// The master of the command's terminal; none when the node has died.
fn receive_terminal(session: &mut Reader) -> Result<Option<OwnedFd>, ClientError> {
    match session.receive() {
        Ok((Message::Reply(Reply::Terminal), descriptors)) => {
            let master = descriptors.into_iter().next();
            Ok(Some(master.ok_or_else(no_room)?))
        }
        Ok((Message::Reply(Reply::Error(refusal)), _)) => Err(refusal.into()),
        Ok((other, _)) => Err(ClientError::Unexpected(format!("{other:?}"))),
        Err(WireError::Closed) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn no_room() -> io::Error {
    io::Error::other("no descriptor is left for the command; raise `ulimit -n`")
}

/// A program as execvp(3) would find it from here.
fn find(name: &str, search: &str, cwd: &str) -> Option<(String, File)> {
    let directories: Vec<PathBuf> = if name.contains('/') {
        vec![cwd.into()]
    } else if search.is_empty() {
        return None;
    } else {
        let directories = std::env::split_paths(search);
        directories.map(|dir| Path::new(cwd).join(dir)).collect()
    };
    let mut programs = directories.iter().map(|directory| directory.join(name));
    let program =
        programs.find(|path| path.is_file() && access(path, AccessFlags::X_OK).is_ok())?;
    let file = open_path(&program).ok()?;
    Some((program.into_os_string().into_string().ok()?, file))
}

/// Opens a file as a place, which needs no right to read it.
fn open_path(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_PATH.bits());
    options.open(path)
}

/// A command in a node. Dropping the handle ends the command.
#[derive(Debug)]
pub struct ExecHandle {
    reader: Reader,
    writer: Writer,
    terminal: Option<OwnedFd>,
}

impl ExecHandle {
    /// Waits for the end: the exit status of the command, or 128 + the signal that killed it, as
    /// the end of its node does; 126 when it cannot be executed, 127 when there is no such program.
    ///
    /// # Errors
    /// [`ClientError::Wire`]; the agent's refusal to give the command a directory.
    pub fn wait(&mut self) -> Result<i32, ClientError> {
        loop {
            match self.reader.receive() {
                Ok((Message::Event(Event::Exited { status }), _)) => return Ok(status),
                Ok((Message::Reply(Reply::Error(refusal)), _)) => return Err(refusal.into()),
                Ok(_) => {}
                Err(WireError::Closed) => return Ok(KILLED),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// [`ClientError::Wire`] when the command has ended.
    pub fn signal(&self, signal: i32) -> Result<(), ClientError> {
        self.signals().send(signal)
    }

    /// Master of the command's terminal, on the first call. Closing it sends SIGHUP to the command.
    pub fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.terminal.take()
    }

    /// A handle that sends signals from other threads.
    pub fn signals(&self) -> Signals {
        Signals(self.writer.clone())
    }
}

impl Drop for ExecHandle {
    fn drop(&mut self) {
        self.writer.shut_down();
    }
}

/// Sends signals to a command in a node.
#[derive(Clone, Debug)]
pub struct Signals(Writer);

impl Signals {
    /// Sends a signal to the command's process group.
    ///
    /// # Errors
    /// [`ClientError::Wire`] when the command has ended or the handle has gone.
    pub fn send(&self, signal: i32) -> Result<(), ClientError> {
        Ok(self.0.send(&Request::Signal { signal }, &[])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let found = |name: &str, path: &str, cwd: &str| find(name, path, cwd).map(|(path, _)| path);
        let sh = |path: &str| Some(path.to_owned());
        assert_eq!(found("sh", "/bin:/usr/bin", "/"), sh("/bin/sh"));
        assert_eq!(found("sh", "/etc:/usr/bin:/bin", "/"), sh("/usr/bin/sh"));
        assert_eq!(found("sh", "bin", "/usr"), sh("/usr/bin/sh"));
        assert_eq!(found("bin/sh", "/etc", "/usr"), sh("/usr/bin/sh"));
        assert_eq!(found("/bin/sh", "/etc", "/"), sh("/bin/sh"));
        assert_eq!(found("sh", "/etc", "/"), None);
        assert_eq!(found("passwd", "/etc", "/"), None, "no program");
        assert_eq!(found("", "/usr", "/"), None, "a directory");
        assert_eq!(found("sh", "", "/bin"), None, "nowhere to search");
    }
}
