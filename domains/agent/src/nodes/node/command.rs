//! Preparation and start of a command in a node.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use nix::unistd::{AccessFlags, access};
use rustix::io::{FdFlags, fcntl_setfd};
use toroid_fabric::os::inherited;
use toroid_protocol::node::StartCommand;

use super::mounts;

/// Exit status of a command that cannot be executed, as shells have it.
pub(super) const NOT_EXECUTABLE: i32 = 126;

/// Exit status of a command that is not there, as shells have it.
pub(super) const NOT_FOUND: i32 = 127;

/// Failure to start a command.
pub(super) struct Failure {
    pub(super) status: i32,
    /// Message for its standard error.
    pub(super) complaint: Option<(File, String)>,
}

/// A command that can be started.
pub(super) struct Prepared {
    name: String,
    command: Command,
    /// Working directory and program that are reached by descriptor.
    _directory: Option<OwnedFd>,
    program: Option<OwnedFd>,
    /// Node for the message if `PATH` is searched for the program.
    searched_in: Option<String>,
    complaints: File,
}

/// Finds the working directory and the program of a command, by name or by descriptor.
pub(super) fn prepare(order: StartCommand, descriptors: Vec<OwnedFd>) -> Result<Prepared, Failure> {
    let silent = Failure {
        status: NOT_EXECUTABLE,
        complaint: None,
    };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next();
    let (Some(stdin), Some(stdout), Some(stderr)) = (next(), next(), next()) else {
        return Err(silent);
    };
    let directory = order.has_directory.then(&mut next).flatten();
    let file = order.has_file.then(&mut next).flatten();
    let mounts: Vec<_> = descriptors.collect();
    let Ok(complaints) = stderr.try_clone() else {
        return Err(silent);
    };
    let mut complaints = File::from(complaints);
    let fails = |complaints, status: i32, message: String| Failure {
        status,
        complaint: Some((complaints, message)),
    };
    let Some((name, arguments)) = order.argv.split_first() else {
        let message = "no command was given".into();
        return Err(fails(complaints, NOT_FOUND, message));
    };
    if let Err(message) = mounts::borrow(&order.binds, &mounts) {
        return Err(fails(complaints, NOT_EXECUTABLE, message));
    }
    let cwd = &order.cwd;
    let cwd = match reachable(cwd, directory.as_ref()) {
        Some(reachable) => reachable,
        None => {
            // Like ssh(1) with an unreachable home directory. If the message cannot be written, it
            // is lost.
            let reason = if is_missing(Path::new(cwd)) {
                "no such directory in the node"
            } else {
                "the node's root may not go there"
            };
            let _ = writeln!(
                complaints,
                "toroid: {cwd}: {reason}, so the command runs in /"
            );
            "/".into()
        }
    };
    let found = order.program.as_ref();
    let program = match found.map(|path| reachable(path, file.as_ref()).ok_or(path)) {
        None => name.clone(),
        Some(Ok(program)) => program,
        // Another program of that name is not the one that the caller asked for.
        Some(Err(path)) => {
            let message = format!("{path}: the node's root may not execute it");
            return Err(fails(complaints, NOT_EXECUTABLE, message));
        }
    };
    let is_by_descriptor = found.is_some_and(|path| *path != program);
    let mut command = Command::new(program);
    command.arg0(name).args(arguments).current_dir(cwd);
    let node = order.env.iter().rfind(|(name, _)| name == "TOROID_NODE");
    let node = node.map(|(_, place)| place.clone()).unwrap_or_default();
    command.env_clear().envs(order.env);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    match order.terminal {
        Some(_) => inherited::give_terminal(&mut command),
        None => drop(command.process_group(0)),
    }
    Ok(Prepared {
        name: name.clone(),
        command,
        _directory: directory,
        program: file.filter(|_| is_by_descriptor),
        searched_in: (found.is_none() && !name.contains('/')).then_some(node),
        complaints,
    })
}

fn is_missing(directory: &Path) -> bool {
    let found = directory.metadata();
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Path of a directory or a program for a command: its own if the node's root may walk there, or
/// that of its descriptor.
fn reachable(path: &str, descriptor: Option<&OwnedFd>) -> Option<String> {
    let may_walk = |path: &str| access(path, AccessFlags::X_OK).is_ok();
    if may_walk(path) {
        return Some(path.into());
    }
    // This thread has a table of descriptors of its own, which the command inherits.
    let number = descriptor?.as_raw_fd();
    may_walk(&format!("/proc/thread-self/fd/{number}")).then(|| format!("/proc/self/fd/{number}"))
}

impl Prepared {
    /// Starts the command, in a thread that shares its descriptors with no other.
    pub(super) fn start(mut self) -> Result<Child, Failure> {
        if let Some(program) = &self.program {
            // The interpreter of a script opens the script by that name; this thread starts no
            // other command. If this fails, only such scripts fail.
            let _ = fcntl_setfd(program, FdFlags::empty());
        }
        self.command.spawn().map_err(|error| {
            let name = &self.name;
            let (status, message) = match (error.kind(), &self.searched_in) {
                // execvp(3) reports the second when it may not search all of `PATH`.
                (io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied, Some(node)) => {
                    let remedy = "nodes have the host's programs: install it on the host";
                    let message = format!("no program {name} in node {node}; {remedy}");
                    (NOT_FOUND, message)
                }
                (io::ErrorKind::NotFound, None) => (NOT_FOUND, format!("{name}: not found")),
                _ => (NOT_EXECUTABLE, format!("{name}: {error}")),
            };
            Failure {
                status,
                complaint: Some((self.complaints, message)),
            }
        })
    }
}
