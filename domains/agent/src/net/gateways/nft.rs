//! Rules of nftables, by its program `nft`. The program is present wherever nftables is used, and
//! replaces a whole table without a gap.

use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::ends_within;

/// Milliseconds that nft may take. It takes some 30.
const TIMEOUT_MS: u16 = 5000;

/// Directories where nft is installed, independent of the environment of the agent's starter.
const PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// Rejection of rules.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    /// The program is missing.
    #[error("the program nft is not installed")]
    Missing,
    /// The program could not be run.
    #[error("cannot run nft: {0}")]
    Run(io::Error),
    /// The program does not end.
    #[error("nft does not answer")]
    Silent,
    /// The program reported an error.
    #[error("nft refuses the rules: {0}")]
    Refused(String),
}

/// Replaces a table in the network namespace of the calling thread.
pub(super) fn put_table(name: &str, chains: &str) -> Result<(), NftError> {
    // Adding the table first makes its deletion valid if it does not exist.
    let without = format!("add table inet {name}\ndelete table inet {name}\n");
    run(&format!("{without}table inet {name} {{\n{chains}}}\n"))
}

/// Removes a table, if it exists.
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

/// Success, and the first line of its error output; `None` if it takes too long.
fn converse(child: &mut Child, script: &str) -> io::Result<Option<(bool, String)>> {
    if let Some(mut stdin) = child.stdin.take() {
        // The script fits into a pipe. A program that does not read it reports an error.
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
