//! A program that is run again and again.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cluster::ClusterError;

/// Time in which the program ends after a signal, before it is killed.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Pause between two looks at an ending program.
const LOOK: Duration = Duration::from_millis(10);

/// Bytes of the program's last messages in an error.
const SHOWN: u64 = 2000;

/// A program with its arguments. It gets no input.
#[derive(Debug)]
pub struct Program {
    arguments: Vec<OsString>,
    signals: Signals,
}

impl Program {
    /// A program that is not yet started. From now on a signal that would end this process ends the
    /// next or current run, with [`ClusterError::Interrupted`].
    ///
    /// # Errors
    /// The system's.
    pub fn new(arguments: &[OsString]) -> Result<Self, ClusterError> {
        Self::ended_by(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT], arguments)
    }

    fn ended_by(signals: &[i32], arguments: &[OsString]) -> Result<Self, ClusterError> {
        let all = signals.iter().chain(&[SIGCHLD]);
        Ok(Program {
            arguments: arguments.into(),
            signals: Signals::new(all).map_err(ClusterError::ours)?,
        })
    }

    /// Runs the program once. Returns its output.
    ///
    /// # Errors
    /// [`ClusterError::Interrupted`], after the end of the program and its process group;
    /// [`ClusterError::Failed`] if the program cannot be started or fails, with its last messages.
    pub fn run(&mut self) -> Result<Vec<u8>, ClusterError> {
        let (program, arguments) = self.arguments.split_first().ok_or_else(|| {
            ClusterError::ours("no program was given; name it after the options and `--`")
        })?;
        let [mut output, mut messages] = [memory("stdout")?, memory("stderr")?];
        let [stdout, stderr] = [&output, &messages].map(File::try_clone);
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(stdout.map_err(ClusterError::ours)?)
            .stderr(stderr.map_err(ClusterError::ours)?)
            // Signals of a terminal come to this process alone, which passes them on.
            .process_group(0)
            .spawn()
            .map_err(|error| self.failed(format!("cannot be started: {error}")))?;
        let status = wait(&mut self.signals, &mut child)?;
        if status.success() {
            return tail(&mut output, u64::MAX).map_err(ClusterError::ours);
        }
        let last = last_lines(&mut messages).unwrap_or_default();
        let colon = if last.is_empty() { "" } else { ":\n" };
        Err(self.failed(format!(
            "{status}; it must succeed alone first{colon}{last}"
        )))
    }

    /// Runs the program once. Returns the time from its start to its end.
    ///
    /// # Errors
    /// Those of [`Program::run`].
    pub fn time(&mut self) -> Result<Duration, ClusterError> {
        let start = Instant::now();
        self.run()?;
        Ok(start.elapsed())
    }

    fn failed(&self, message: String) -> ClusterError {
        ClusterError::Failed {
            process: words(&self.arguments).join(" "),
            message,
        }
    }
}

/// Arguments as text.
pub fn words(arguments: &[OsString]) -> Vec<Cow<'_, str>> {
    let words = arguments.iter();
    words.map(|word| word.to_string_lossy()).collect()
}

/// A file in memory.
fn memory(name: &str) -> Result<File, ClusterError> {
    let file = memfd_create(name, MFdFlags::MFD_CLOEXEC).map_err(ClusterError::ours)?;
    Ok(File::from(file))
}

/// Waits for the end of `child`, or for a signal that ends the run.
fn wait(signals: &mut Signals, child: &mut Child) -> Result<ExitStatus, ClusterError> {
    loop {
        for signal in signals.wait() {
            if signal != SIGCHLD {
                end(child, signal);
                return Err(ClusterError::Interrupted(signal));
            }
        }
        if let Some(status) = child.try_wait().map_err(ClusterError::ours)? {
            return Ok(status);
        }
    }
}

/// Ends the process group of `child` with `signal`, and with `SIGKILL` what is left of the group
/// after its first process, or after some time.
fn end(child: &mut Child, signal: i32) {
    let group = Pid::from_raw(child.id().cast_signed());
    let deadline = Instant::now() + LAST_WORDS;
    // Fails if the whole group has ended.
    let _ = killpg(group, Signal::try_from(signal).unwrap_or(Signal::SIGTERM));
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        thread::sleep(LOOK);
    }
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
}

/// The last messages in a file, in whole lines if possible.
fn last_lines(file: &mut File) -> io::Result<String> {
    let bytes = tail(file, SHOWN)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = match text.split_once('\n') {
        Some((_, whole)) if bytes.len() as u64 == SHOWN => whole,
        _ => &text,
    };
    Ok(text.trim_end().into())
}

/// The last bytes of a file, at most `len`.
fn tail(file: &mut File, len: u64) -> io::Result<Vec<u8>> {
    let all = file.metadata()?.len();
    file.seek(SeekFrom::Start(all.saturating_sub(len)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGUSR1;
    use signal_hook::low_level::raise;

    use super::*;

    fn shell(script: &str) -> Program {
        let words = ["sh", "-c", script].map(OsString::from);
        Program::new(&words).unwrap()
    }

    fn error(script: &str) -> String {
        shell(script).run().unwrap_err().to_string()
    }

    #[test]
    fn each_run_returns_its_own_output() {
        let mut program = shell("echo of this run; echo a message >&2");
        for _ in 0..2 {
            assert_eq!(program.run().unwrap(), b"of this run\n");
        }
    }

    #[test]
    fn a_failed_run_names_status_and_last_messages() {
        assert_eq!(
            error("echo no such host >&2; exit 3"),
            "sh -c echo no such host >&2; exit 3: exit status: 3; it must succeed alone first:\n\
             no such host"
        );
        assert!(error("kill -9 $$").contains("signal: 9"));
        let long =
            error("i=0; while [ $i -lt 999 ]; do i=$((i+1)); echo line $i; done >&2; exit 1");
        assert!(long.len() < 2500 && long.ends_with("\nline 999"), "{long}");
        let mut missing = Program::new(&["/no/such".into()]).unwrap();
        let missing = missing.run().unwrap_err().to_string();
        assert!(
            missing.starts_with("/no/such: cannot be started: "),
            "{missing}"
        );
        assert!(Program::new(&[]).unwrap().run().is_err());
    }

    #[test]
    fn a_signal_ends_the_run_and_the_whole_group() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let script = format!("sleep 1000 & echo $! > {}; wait", pids.display());
        let words = ["sh", "-c", &script].map(OsString::from);
        // A signal that no other test receives.
        let mut program = Program::ended_by(&[SIGUSR1], &words).unwrap();
        let looking = pids.clone();
        let signal = thread::spawn(move || {
            while !std::fs::read_to_string(&looking).is_ok_and(|text| text.ends_with('\n')) {
                thread::yield_now();
            }
            raise(SIGUSR1).unwrap();
        });
        let ended = program.run().unwrap_err();
        assert!(
            matches!(ended, ClusterError::Interrupted(SIGUSR1)),
            "{ended}"
        );
        signal.join().unwrap();
        let child = std::fs::read_to_string(&pids).unwrap();
        let child = Pid::from_raw(child.trim().parse().unwrap());
        // An orphan is reaped by another process, later.
        while nix::sys::signal::kill(child, None).is_ok() {
            thread::yield_now();
        }
    }
}
