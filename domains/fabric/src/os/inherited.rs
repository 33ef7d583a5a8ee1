//! What a process has from whoever started it and shall not pass on, and what it shall.
//!
//! It is here, and not where it is used, because it takes system calls that no library wraps, and
//! `unsafe` is this crate's.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Closes all descriptors but standard input, output and error in programs that this process
/// executes from now on (close_range(2)).
///
/// # Errors
/// The system's.
pub fn keep_descriptors() -> io::Result<()> {
    // SAFETY: the call takes three numbers and touches no memory of this process. It closes
    // nothing here, so no owner of a descriptor is deceived.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    checked(result)
}

/// Leaves the session keyring, which gives whoever has it the keys in it, for an empty one
/// (session-keyring(7)). On a kernel without keys there is nothing to leave.
///
/// # Errors
/// The system's.
pub fn leave_session_keyring() -> io::Result<()> {
    // SAFETY: the name of the keyring is null, which means an anonymous one; nothing else is
    // passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    };
    match checked(result) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result,
    }
}

/// Lets signals do what they do by default, whichever the starter ignored; but for SIGPIPE, which
/// Rust programs ignore, and which the standard library restores in what they execute.
pub fn restore_signals() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: it installs no handler. It fails for SIGKILL, SIGSTOP and those that the C
        // library keeps for itself, whose actions nobody can have changed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Lets a command begin a session of its own (setsid(2)), whose controlling terminal is its standard
/// input.
pub fn give_terminal(command: &mut Command) {
    let begin = || {
        // SAFETY: both calls take numbers and touch no memory of this process. Descriptor 0 is open:
        // it is the command's standard input.
        let begun = unsafe { libc::setsid() != -1 && libc::ioctl(0, libc::TIOCSCTTY, 0) != -1 };
        if begun {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: between fork(2) and execve(2) of a process with threads only what is
    // async-signal-safe may run. `begin` makes two system calls and reads errno; it allocates
    // nothing and takes no lock.
    unsafe { command.pre_exec(begin) };
}

fn checked(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
