//! Limits, user and terminal of a server's process.
//!
//! In memcached's order: limits while root may raise them, then the user, then the background, then
//! locked memory. Sockets are bound later, by the user that serves.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::errno::Errno;
use nix::unistd::{User, daemon, geteuid, getuid, setgid, setgroups, setuid};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use toroid_kv::server::Settings;

use super::{EX_NOUSER, Serve, StartError};

/// Descriptors other than connections: listeners, epolls, regions.
const OTHER_DESCRIPTORS: u64 = 64;

/// Prepares the process as the options say; returns the open pid file, if there is one.
pub fn prepare(options: &Serve, settings: &Settings) -> Result<Option<PidFile>> {
    if options.enable_coredumps {
        allow_core_files()?;
    }
    allow_descriptors(settings)?;
    let path = options.pidfile.as_deref();
    let mut pid_file = None;
    if let Some(name) = &options.user
        && (getuid().is_root() || geteuid().is_root())
    {
        pid_file = path.and_then(PidFile::open_in_own_directory);
        become_user(name)?;
    }
    // Before the process goes to the background, where errors are invisible.
    let pid_file = pid_file.or_else(|| path.and_then(PidFile::open));
    if options.daemon {
        // Core files need the directory of the start, and verbose messages its terminal.
        let (stay, keep_output) = (options.enable_coredumps, settings.verbosity > 0);
        let failed = |_| StartError::one("failed to daemon() in order to daemonize");
        daemon(stay, keep_output).map_err(failed)?;
    }
    if options.lock_memory
        && let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
    {
        eprintln!("warning: -k invalid, mlockall() failed: {error}");
    }
    Ok(pid_file)
}

fn allow_core_files() -> Result<(), StartError> {
    let hard = getrlimit(Resource::Core).maximum;
    let limit = |most| Rlimit {
        current: most,
        maximum: most,
    };
    // No limit at all is `None`.
    let raised = setrlimit(Resource::Core, limit(None));
    let _ = raised.or_else(|_| setrlimit(Resource::Core, limit(hard)));
    match getrlimit(Resource::Core).current {
        Some(0) => Err(StartError::system("failed to ensure corefile creation")),
        _ => Ok(()),
    }
}

/// Raises the hard limit of descriptors where it is too low; the server raises the soft limit.
fn allow_descriptors(settings: &Settings) -> Result<(), StartError> {
    let wanted = settings.connections as u64;
    let Some(allowed) = getrlimit(Resource::Nofile).maximum else {
        return Ok(());
    };
    let enough = wanted + OTHER_DESCRIPTORS + 2 * settings.threads as u64;
    let more = Rlimit {
        current: Some(enough),
        maximum: Some(enough),
    };
    if allowed >= enough || setrlimit(Resource::Nofile, more).is_ok() || allowed >= wanted {
        return Ok(());
    }
    Err(StartError::system(
        "failed to set rlimit for open files. \
         Try starting as root or requesting smaller maxconns value.",
    ))
}

fn become_user(name: &str) -> Result<(), StartError> {
    let unknown = || {
        let text = format!("can't find the user {name} to switch to");
        StartError::new(EX_NOUSER, text)
    };
    let user = User::from_name(name).ok().flatten().ok_or_else(unknown)?;
    match setgroups(&[]) {
        // The process has few privileges already; the rest is dropped below.
        Ok(()) | Err(Errno::EPERM) => {}
        Err(error) => {
            let text = format!("failed to drop supplementary groups: {error}");
            return Err(StartError::system(text));
        }
    }
    let failed = |_| StartError::system(format!("failed to assume identity of user {name}"));
    setgid(user.gid)
        .and_then(|()| setuid(user.uid))
        .map_err(failed)
}

/// Writes the ports to the file that MEMCACHED_PORT_FILENAME names, for tests that let the system choose
/// them. A failure is reported and ignored.
pub fn tell_ports(addresses: &[SocketAddr]) {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME") else {
        return;
    };
    let mut draft = path.clone();
    draft.push(".lck");
    let told = write_ports(Path::new(&draft), addresses);
    if let Err(error) = told.and_then(|()| std::fs::rename(&draft, &path)) {
        let draft = Path::new(&draft).display();
        eprintln!("Failed to open \"{draft}\": {error}");
    }
}

fn write_ports(path: &Path, addresses: &[SocketAddr]) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let lines = addresses.iter().map(|address| match address {
        SocketAddr::V4(_) => format!("TCP INET: {}\n", address.port()),
        SocketAddr::V6(_) => format!("TCP INET6: {}\n", address.port()),
    });
    file.write_all(lines.collect::<String>().as_bytes())
}

/// A file with the process id while the server serves. It is opened before the process changes its user,
/// so that it can be in a directory like `/run`.
pub struct PidFile {
    path: PathBuf,
    file: File,
    /// This process created the file, or has written its id.
    is_ours: bool,
}

impl PidFile {
    /// Opens the file in a directory where no other user can place a link; `None` in any other.
    fn open_in_own_directory(path: &Path) -> Option<Self> {
        let directory = match path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        let directory = directory.metadata().ok()?;
        let is_own = directory.uid() == geteuid().as_raw() && directory.mode() & 0o022 == 0;
        is_own.then(|| PidFile::open(path)).flatten()
    }

    /// Opens the file and keeps its content; a failure is reported and does not end the server.
    fn open(path: &Path) -> Option<Self> {
        let mut options = OpenOptions::new();
        options.write(true).mode(0o644);
        options.custom_flags(nix::libc::O_NOFOLLOW);
        let new = options.clone().create_new(true).open(path);
        let opened = match new {
            Ok(file) => Ok((file, true)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                options.open(path).map(|file| (file, false))
            }
            Err(error) => Err(error),
        };
        match opened {
            Ok((file, is_ours)) => Some(PidFile {
                path: path.to_owned(),
                file,
                is_ours,
            }),
            Err(error) => {
                let path = path.display();
                eprintln!(
                    "Could not open the pid file {path} for writing: {error}: \
                     name one in a directory that the server's user can write to"
                );
                None
            }
        }
    }

    /// Writes the id, once the server serves.
    pub fn write(&mut self) {
        let text = format!("{}\n", std::process::id());
        let written = self
            .file
            .write_all_at(text.as_bytes(), 0)
            .and_then(|()| self.file.set_len(text.len() as u64));
        self.is_ours = true;
        if let Err(error) = written {
            let path = self.path.display();
            eprintln!("Could not write the pid file {path}: {error}");
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A server that did not start leaves the file of another server alone.
        if !self.is_ours {
            return;
        }
        // A user who cannot remove the file can still empty it.
        let gone = std::fs::remove_file(&self.path).or_else(|_| self.file.set_len(0));
        if let Err(error) = gone {
            let path = self.path.display();
            eprintln!("Could not remove the pid file {path}: {error}");
        }
    }
}
