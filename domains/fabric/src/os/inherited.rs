//! Inherited state of a process: descriptors, session keyring, signal actions, terminal.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::checked;

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

/// Replaces the session keyring, which gives access to its keys, by an empty one
/// (session-keyring(7)). Does nothing on a kernel without keys.
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

/// Restores the default action of every signal that the parent may have ignored. SIGPIPE is left
/// out: Rust programs ignore it, and the standard library restores it in programs that they
/// execute.
pub fn restore_signals() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: the call installs no handler. It fails for SIGKILL, SIGSTOP and the signals that
        // the C library reserves, whose actions cannot have been changed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Makes a command begin a session of its own (setsid(2)) with its standard input as the
/// controlling terminal.
pub fn give_terminal(command: &mut Command) {
    let begin = || {
        // SAFETY: both calls take numbers and touch no memory of this process. Descriptor 0 is
        // open: it is the command's standard input.
        let begun = unsafe { libc::setsid() != -1 && libc::ioctl(0, libc::TIOCSCTTY, 0) != -1 };
        if begun {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: between fork(2) and execve(2) of a process with threads, only async-signal-safe code
    // may run. `begin` makes two system calls and reads errno; it allocates nothing and takes no
    // lock.
    unsafe { command.pre_exec(begin) };
}
