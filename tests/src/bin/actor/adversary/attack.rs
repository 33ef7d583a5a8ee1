//! Attempts on other processes by their numbers, as a debugger or a killer would make them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::IoSlice;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;
use tests::actor::{Event, report};

use super::Result;

/// The kernel's default limit of process numbers.
const NUMBERS: i32 = 32_768;

/// An address where nothing is mapped: a write that is permitted fails there with EFAULT.
const NOWHERE: usize = 16;

/// Tries every process but itself and the first of its node; reports the attempts that succeeded.
///
/// It kills every process in reach, so it refuses to run in the PID namespace of its caller.
pub fn attack(outside: &Path) -> Result<()> {
    if fs::read_link("/proc/self/ns/pid")? == outside {
        return Err("this node has no process numbers of its own".into());
    }
    let own = i32::try_from(std::process::id())?;
    let others = (1..=NUMBERS).filter(|number| *number != own && !is_first(*number));
    let through: BTreeSet<_> = others.flat_map(try_all).collect();
    // All other processes in reach; there may be none.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    Ok(report(&Event::Through(through))?)
}

/// Whether this is the first process of the node, or one of its threads.
fn is_first(number: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{number}/status"));
    status.is_ok_and(|status| status.contains("Tgid:\t1\n"))
}

/// Attempts against one process that succeeded.
fn try_all(number: i32) -> Vec<String> {
    let pid = Pid::from_raw(number);
    let open = |file: &str, write: bool| {
        let path = format!("/proc/{number}/{file}");
        File::options().read(true).write(write).open(path).is_ok()
    };
    let remote = RemoteIoVec {
        base: NOWHERE,
        len: 1,
    };
    let written = process_vm_writev(pid, &[IoSlice::new(&[1])], &[remote]);
    let traced = ptrace::seize(pid, ptrace::Options::empty()).is_ok();
    let attempts = [
        ("trace", traced),
        ("write", written == Err(Errno::EFAULT)),
        ("open memory", open("mem", true)),
        ("read maps", open("maps", false)),
        // Last, because nothing is left to try afterwards.
        ("kill", kill(pid, Signal::SIGKILL).is_ok()),
    ];
    let through = attempts.into_iter().filter(|(_, through)| *through);
    through.map(|(what, _)| what.to_owned()).collect()
}
