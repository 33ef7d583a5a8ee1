//! Rules of nftables, through its program `nft`: it is wherever nftables is used, and reads a whole
//! table at once, which then replaces the one before without a gap.

use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::ends_within;

/// How many milliseconds it may take; it takes some 30.
const TIMEOUT_MS: u16 = 5000;

/// Where it is installed, whatever whoever started the agent looks through.
const PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// Why rules were not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    /// There is no such program.
    #[error("the program nft is not installed")]
    Missing,
    /// It could not be run.
    #[error("cannot run nft: {0}")]
    Run(io::Error),
    /// It does not end.
    #[error("nft does not answer")]
    Silent,
    /// It said no.
    #[error("nft refuses the rules: {0}")]
    Refused(String),
}

/// Puts a table into the network namespace of the calling thread, in place of the one with this
/// name.
pub(super) fn put_table(name: &str, chains: &str) -> Result<(), NftError> {
    // Of a table that is not there it can be said that it is, and then that it goes.
    let without = format!("add table inet {name}\ndelete table inet {name}\n");
    run(&format!("{without}table inet {name} {{\n{chains}}}\n"))
}

/// Removes a table, if it is there.
pub(super) fn remove_table(name: &str) -> Result<(), NftError> {
    run(&format!(
        "add table inet {name}\ndelete table inet {name}\n"
    ))
}

fn run(script: &str) -> Result<(), NftError> {
    let mut command = Command::new("nft");
    command.env_clear().env("PATH", PATH).args(["-f", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = match command.stderr(Stdio::piped()).spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NftError::Missing),
        spawned => spawned.map_err(NftError::Run)?,
    };
    let status = converse(&mut child, script).map_err(NftError::Run)?;
    match status {
        None => Err(NftError::Silent),
        Some((true, _)) => Ok(()),
        Some((false, complaint)) => Err(NftError::Refused(complaint)),
    }
}

/// Whether it succeeded and the first line of what it says, or `None` if it takes too long.
fn converse(child: &mut Child, script: &str) -> io::Result<Option<(bool, String)>> {
    if let Some(mut stdin) = child.stdin.take() {
        // It is shorter than a pipe takes. A program that does not read it says why.
        let _ = stdin.write_all(script.as_bytes());
    }
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    if !ends_within(&handle, TIMEOUT_MS) {
        child.kill()?;
        return Ok(None);
    }
    let mut complaint = String::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(4096).read_to_string(&mut complaint)?;
    }
    let first = complaint.lines().next().unwrap_or_default();
    Ok(Some((child.wait()?.success(), first.into())))
}
