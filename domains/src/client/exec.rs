//! Commands in nodes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access};

use super::{ClientError, Control, unexpected};
use crate::protocol::{Event, Message, Reply, Request};
use crate::wire::{self, Reader, WireError, Writer};

/// Exit status of commands that ended with their node: killed by SIGKILL.
const KILLED: i32 = 137;

/// Where programs are searched when the environment does not say; that of execvp(3).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

impl Control {
    /// Starts a command in a node, which needs the agent no longer once it runs: `argv[0]` is
    /// searched in `PATH` of `env`, which is its whole environment but for what the agent adds
    /// (`TOROID_NODE`, and `TOROID_DOMAIN` if the node is in exactly one). `stdio` are its standard
    /// input, output and error.
    ///
    /// Program and directory may be where this process gets and the node's users do not, as below a
    /// home directory that is its owner's alone: they are sent along as descriptors.
    pub fn exec(
        &self,
        node: &str,
        argv: &[String],
        env: &[(String, String)],
        cwd: &str,
        stdio: [BorrowedFd<'_>; 3],
    ) -> Result<ExecHandle, ClientError> {
        let mut connection = Self::open(self.address.clone())?;
        let directory = open_path(Path::new(cwd)).ok();
        let mut program = argv.first().and_then(|name| find(name, env, cwd));
        let mut descriptors = stdio.to_vec();
        descriptors.extend(directory.as_ref().map(AsFd::as_fd));
        if directory.is_none() {
            program = None;
        }
        descriptors.extend(program.as_ref().map(|(_, file)| file.as_fd()));
        let request = Request::Exec {
            node: node.into(),
            argv: argv.into(),
            env: env.into(),
            cwd: cwd.into(),
            program: program.as_ref().map(|(path, _)| path.clone()),
        };
        let (reply, session) = connection.call_with(&request, &[])?;
        if reply != Reply::Started {
            return Err(unexpected(&reply));
        }
        let session = session.into_iter().next().ok_or_else(|| {
            io::Error::other("no descriptor is left for the command; raise `ulimit -n`")
        })?;
        let (reader, writer) = wire::split(session.into())?;
        // If it fails the node has died, as who waits for the command is about to see.
        let _ = writer.send(&Request::Descriptors, &descriptors);
        Ok(ExecHandle { reader, writer })
    }
}

/// A program as execvp(3) would find it from here.
fn find(name: &str, env: &[(String, String)], cwd: &str) -> Option<(String, File)> {
    let directories: Vec<PathBuf> = match name.contains('/') {
        true => vec![cwd.into()],
        false => {
            let path = env.iter().rfind(|(name, _)| name == "PATH");
            let path = path.map_or(DEFAULT_PATH, |(_, value)| value);
            let directories = std::env::split_paths(path);
            directories.map(|dir| Path::new(cwd).join(dir)).collect()
        }
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
}

impl ExecHandle {
    /// Waits for the end: the exit status of the command, or 128 + the signal that killed it, as
    /// the end of its node does; 126 when it cannot be executed, 127 when there is no such program.
    ///
    /// # Errors
    /// [`ClientError::Wire`].
    pub fn wait(&mut self) -> Result<i32, ClientError> {
        loop {
            match self.reader.receive() {
                Ok((Message::Event(Event::Exited { status }), _)) => return Ok(status),
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

    /// Sends signals from another thread while one waits.
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
    /// Sends one to the command's process group.
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
        let found = |name: &str, path: Option<&str>, cwd: &str| {
            let env = path.map(|path| ("PATH".to_owned(), path.to_owned()));
            find(name, env.as_slice(), cwd).map(|(path, _)| path)
        };
        let sh = |path: &str| Some(path.to_owned());
        assert_eq!(found("sh", None, "/"), sh("/bin/sh"));
        assert_eq!(
            found("sh", Some("/etc:/usr/bin:/bin"), "/"),
            sh("/usr/bin/sh")
        );
        assert_eq!(found("sh", Some("bin"), "/usr"), sh("/usr/bin/sh"));
        assert_eq!(found("bin/sh", Some("/etc"), "/usr"), sh("/usr/bin/sh"));
        assert_eq!(found("/bin/sh", Some("/etc"), "/"), sh("/bin/sh"));
        assert_eq!(found("sh", Some("/etc"), "/"), None);
        assert_eq!(found("passwd", Some("/etc"), "/"), None, "no program");
        assert_eq!(found("", Some("/usr"), "/"), None, "a directory");
    }
}
