//! The process that a server becomes: its limits, its user, its terminal.
//!
//! In memcached's order: limits while we may raise them, then the user, then the background, then
//! locked memory. Sockets are bound later, by the user that serves.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::errno::Errno;
use nix::unistd::{User, daemon, geteuid, getuid, setgid, setgroups, setuid};
use rdma_kv::server::Settings;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{EX_NOUSER, Refusal, Serve};

/// Descriptors for what is not a connection: listeners, epolls, regions and the like.
const OTHER_DESCRIPTORS: u64 = 64;

/// Makes this process what the options say.
pub fn prepare(options: &Serve, settings: &Settings) -> Result<()> {
    if options.enable_coredumps {
        allow_core_files()?;
    }
    allow_descriptors(settings)?;
    if let Some(name) = &options.user
        && (getuid().is_root() || geteuid().is_root())
    {
        become_user(name)?;
    }
    if options.daemon {
        // Core files are to be found where it was started, and what is said is to be heard.
        let (stay, keep_output) = (options.enable_coredumps, settings.verbosity > 0);
        let failed = |_| Refusal::one("failed to daemon() in order to daemonize");
        daemon(stay, keep_output).map_err(failed)?;
    }
    if options.lock_memory
        && let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
    {
        eprintln!("warning: -k invalid, mlockall() failed: {error}");
    }
    Ok(())
}

fn allow_core_files() -> Result<(), Refusal> {
    let hard = getrlimit(Resource::Core).maximum;
    let limit = |most| Rlimit {
        current: most,
        maximum: most,
    };
    // No limit at all is `None`.
    let raised = setrlimit(Resource::Core, limit(None));
    let _ = raised.or_else(|_| setrlimit(Resource::Core, limit(hard)));
    match getrlimit(Resource::Core).current {
        Some(0) => Err(Refusal::system("failed to ensure corefile creation")),
        _ => Ok(()),
    }
}

/// The server takes what the hard limit allows; this raises it where it is too low.
fn allow_descriptors(settings: &Settings) -> Result<(), Refusal> {
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
    Err(Refusal::system(
        "failed to set rlimit for open files. \
         Try starting as root or requesting smaller maxconns value.",
    ))
}

fn become_user(name: &str) -> Result<(), Refusal> {
    let unknown = || {
        let text = format!("can't find the user {name} to switch to");
        Refusal::new(EX_NOUSER, text)
    };
    let user = User::from_name(name).ok().flatten().ok_or_else(unknown)?;
    match setgroups(&[]) {
        // We have few privileges already; what is left is dropped below.
        Ok(()) | Err(Errno::EPERM) => {}
        Err(error) => {
            let text = format!("failed to drop supplementary groups: {error}");
            return Err(Refusal::system(text));
        }
    }
    let failed = |_| Refusal::system(format!("failed to assume identity of user {name}"));
    setgid(user.gid)
        .and_then(|()| setuid(user.uid))
        .map_err(failed)
}

/// Adds the ports to the file that MEMCACHED_PORT_FILENAME names, for whoever let the system choose
/// them; serving does not depend on it.
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

/// A file with this process's id, as long as it serves.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes it, complete or not at all; serving does not depend on it.
    pub fn write(path: &Path) -> Option<Self> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".tmp");
        let written = std::fs::write(&draft, format!("{}\n", std::process::id()))
            .and_then(|()| std::fs::rename(&draft, path));
        match written {
            Ok(()) => Some(PidFile(path.to_owned())),
            Err(error) => {
                let path = path.display();
                eprintln!("Could not open the pid file {path}.tmp for writing: {error}");
                None
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            let path = self.0.display();
            eprintln!("Could not remove the pid file {path}: {error}");
        }
    }
}
