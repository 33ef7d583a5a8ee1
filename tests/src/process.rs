//! Commands that cannot hang a test: all waiting has a limit.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Limit of all waiting: a process that reaches it has hung.
pub const FOR_EVER: Duration = Duration::from_secs(120);

/// Time between two checks of a condition.
const GLANCE: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not hold within [`FOR_EVER`].
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(FOR_EVER, what, condition);
}

/// Waits until `condition` holds, which must happen within `limit`.
///
/// # Panics
/// When it does not hold in time.
pub fn within(limit: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(
        holds_within(limit, condition),
        "not within {limit:?}: {what}"
    );
}

/// Whether `condition` comes true within `limit`.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(GLANCE);
    }
    true
}

/// Runs a command to its end, without input unless the caller has set some up.
#[must_use = "say whether it should have succeeded"]
pub fn run(command: &mut Command) -> Outcome {
    command.stdin(Stdio::null());
    Running::start(command).wait()
}

/// The same for destructors: a panic in one, while a test panics, ends all tests.
///
/// # Errors
/// When the command cannot be started, or does not end.
fn try_run(command: &mut Command) -> io::Result<Outcome> {
    command.stdin(Stdio::null());
    Running::try_start(command)?.try_wait(FOR_EVER)
}

/// Runs a command in a destructor; it may fail. One that hangs or is missing fails the test, unless the
/// test fails already.
pub(crate) fn clean_up(command: &mut Command) {
    if let Err(error) = try_run(command) {
        assert!(thread::panicking(), "{command:?}: {error}");
        eprintln!("{command:?}: {error}");
    }
}

/// Runs a command to its end with `input`.
#[must_use = "say whether it should have succeeded"]
pub fn run_with(command: &mut Command, input: &[u8]) -> Outcome {
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    let mut stdin = running.stdin();
    let input = input.to_vec();
    // A command may end without having read all of it.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let outcome = running.wait();
    writer.join().expect("the writer does not panic");
    outcome
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    what: String,
    /// Exit status, or 128 + the signal that ended it.
    pub status: i32,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// All of its standard error.
    pub stderr: String,
}

impl Outcome {
    /// Asserts that it succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(self.status == 0, "should have succeeded: {self}");
        self
    }

    /// Asserts that it failed with `status`, and that its error names all of `words`.
    #[track_caller]
    pub fn fails(self, status: i32, words: &[&str]) -> Self {
        assert!(
            self.status == status,
            "should have ended with {status}: {self}"
        );
        for word in words {
            assert!(
                self.stderr.contains(word),
                "the error should name \"{word}\": {self}"
            );
        }
        self
    }

    /// Asserts that it failed with any status, as for programs whose statuses mean nothing.
    #[track_caller]
    pub fn fails_somehow(self) -> Self {
        assert!(self.status != 0, "should have failed: {self}");
        self
    }

    /// Its standard output as text, without white space around it.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout)
            .unwrap_or("(not UTF-8)")
            .trim()
    }

    /// Its standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome {
            what,
            status,
            stderr,
            ..
        } = self;
        let stdout = String::from_utf8_lossy(&self.stdout);
        let shown: String = stdout.chars().take(4000).collect();
        write!(
            f,
            "{what}\nstatus {status}\nstdout: {shown}\nstderr: {stderr}"
        )
    }
}

/// A command that runs. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    what: String,
    child: Child,
    stdout: Gathered,
    stderr: Gathered,
    /// Bytes of `stdout` that [`Running::line`] has returned.
    taken: usize,
}

impl Running {
    /// Starts a command and gathers its output.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        Self::try_start(command).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_start(command: &mut Command) -> io::Result<Self> {
        let what = describe(command);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {what}: {error}"))
        })?;
        let stdout = Gathered::start(child.stdout.take().expect("it is piped"));
        let stderr = Gathered::start(child.stderr.take().expect("it is piped"));
        Ok(Running {
            what,
            child,
            stdout,
            stderr,
            taken: 0,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input, if the command was given a pipe. Dropping it is the end of the input.
    ///
    /// # Panics
    /// When it was not, or was taken already.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child
            .stdin
            .take()
            .expect("standard input is a pipe, taken once")
    }

    /// Waits until its standard output contains `text`.
    #[track_caller]
    pub fn says(&self, text: &str) {
        self.waits(&self.stdout, &format!("it says \"{text}\""), || {
            self.stdout.text().contains(text)
        });
    }

    /// Waits until its standard error contains `text`.
    #[track_caller]
    pub fn warns(&self, text: &str) {
        self.waits(&self.stderr, &format!("it warns of \"{text}\""), || {
            self.stderr.text().contains(text)
        });
    }

    /// The next line of its standard output, waited for.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let rest = |running: &Running| running.stdout.text().split_off(running.taken);
        self.waits(&self.stdout, "it says a line", || rest(self).contains('\n'));
        let rest = rest(self);
        let line = rest.lines().next().unwrap_or_default();
        self.taken += line.len() + 1;
        line.to_owned()
    }

    /// Waits for a condition on what comes from a pipe, at most until its end.
    #[track_caller]
    fn waits(&self, pipe: &Gathered, what: &str, mut condition: impl FnMut() -> bool) {
        let came = holds_within(FOR_EVER, || condition() || pipe.is_closed());
        assert!(
            came && condition(),
            "{what}, never: {}\nstdout: {}\nstderr: {}",
            self.what,
            self.stdout.text(),
            self.stderr.text(),
        );
    }

    /// Its standard output so far.
    pub fn so_far(&self) -> String {
        self.stdout.text()
    }

    /// Its standard error so far.
    pub fn complaints_so_far(&self) -> String {
        self.stderr.text()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it has ended and was waited for.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn wait(self) -> Outcome {
        let outcome = self.try_wait(FOR_EVER);
        outcome.unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_wait(mut self, limit: Duration) -> io::Result<Outcome> {
        if !holds_within(limit, || self.has_ended()) {
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                format!(
                    "{} does not end\nstdout: {}\nstderr: {}",
                    self.what,
                    self.stdout.text(),
                    self.stderr.text()
                ),
            ));
        }
        self.outcome()
    }

    /// Kills it, and returns its output.
    ///
    /// # Panics
    /// When another process keeps its output open.
    #[track_caller]
    pub fn kill(mut self) -> Outcome {
        // Fails when the process has ended already.
        let _ = self.child.kill();
        self.outcome().unwrap_or_else(|error| panic!("{error}"))
    }

    fn outcome(mut self) -> io::Result<Outcome> {
        let status = self.child.wait()?;
        Ok(Outcome {
            what: self.what.clone(),
            status: code(status),
            stdout: self.stdout.finish(&self.what)?,
            stderr: String::from_utf8_lossy(&self.stderr.finish(&self.what)?).into_owned(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Appends a command to one that executes it, with its changes of the environment.
pub(crate) fn append(outer: &mut Command, command: &Command) {
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Exit status, or 128 + the signal.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(-1)
}

/// Sends a signal to a process.
///
/// # Panics
/// When there is no such process.
pub fn send(pid: u32, signal: Signal) {
    let to = Pid::from_raw(pid.try_into().expect("a process id"));
    kill(to, signal).unwrap_or_else(|error| panic!("{signal} to process {pid}: {error}"));
}

/// Stops a process; returns once none of its threads runs.
pub fn stop(pid: u32) {
    send(pid, Signal::SIGSTOP);
    let is_stopped = |task: PathBuf| {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .unwrap_or_default()
            .starts_with(" T")
    };
    eventually("all its threads are stopped", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it is there");
        tasks.flatten().all(|task| is_stopped(task.path()))
    });
}

/// The output of a pipe, gathered by a thread.
#[derive(Debug)]
struct Gathered {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Gathered {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let gathered = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut some = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = pipe.read(&mut some) {
                lock(&gathered).extend_from_slice(&some[..count]);
            }
        });
        Gathered { bytes, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.bytes)).into_owned()
    }

    fn is_closed(&self) -> bool {
        self.reader.is_finished()
    }

    /// All of it. Fails when another process keeps the pipe open after the command's end.
    fn finish(&self, what: &str) -> io::Result<Vec<u8>> {
        if !holds_within(FOR_EVER, || self.is_closed()) {
            let open = "has ended, but something that it started keeps its output open";
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                format!("{what} {open}"),
            ));
        }
        Ok(std::mem::take(&mut lock(&self.bytes)))
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> std::sync::MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since 1970, as in datagrams of `actor flood`.
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanoseconds = now.expect("it is after 1970").as_nanos();
    nanoseconds.try_into().expect("it is before 2554")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A destructor that panicked on one of these during a panic ended all tests.
    #[test]
    fn a_command_that_does_not_start_or_end_is_an_error() {
        let error = try_run(&mut Command::new("/no/such")).expect_err("it cannot be started");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let cat = Running::try_start(Command::new("cat").stdin(Stdio::piped()));
        let error = cat.and_then(|cat| cat.try_wait(Duration::ZERO));
        let error = error.expect_err("its input does not end");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }

    /// The wait ended when standard output was closed.
    #[test]
    fn a_warning_is_waited_for_without_standard_output() {
        let script = "exec >&-; sleep 0.2; echo late >&2";
        let running = Running::start(Command::new("sh").args(["-c", script]));
        eventually("it says no more", || running.stdout.is_closed());
        running.warns("late");
    }
}
