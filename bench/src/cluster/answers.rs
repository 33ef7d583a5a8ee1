//! Answers of several processes, and the error that tells why one is missing.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::{ClusterError, News, Process, check_signals};

/// Longest delay between the error of a process and the end of the peer that caused it.
const END_DELAY: Duration = Duration::from_millis(100);

/// Waits for a line from each process, or for the first that fails.
pub(super) fn lines_of(
    news: &Receiver<News>,
    from: &[&Process],
    patience: Duration,
) -> Result<Vec<String>, ClusterError> {
    if let Some(ended) = from.iter().find(|process| process.has_ended) {
        // A signal to the whole group has ended the process.
        check_signals()?;
        return Err(ended.lost("has ended"));
    }
    let mut lines = vec![None; from.len()];
    let of = |id| from.iter().position(|process| process.id == id);
    while lines.iter().any(Option::is_none) {
        match news.recv_timeout(patience) {
            Ok(News::Signal(signal)) => return Err(ClusterError::Interrupted(signal)),
            Ok(News::Line { process, line }) => {
                if let Some(at) = of(process) {
                    if let Some(error) = from[at].error_in(&line) {
                        return Err(cause(news, from).unwrap_or(error));
                    }
                    lines[at] = Some(line);
                }
            }
            Ok(News::Closed { process }) => {
                if let Some(at) = of(process) {
                    check_signals()?;
                    return Err(from[at].lost("has ended"));
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let silent = from.iter().zip(&lines).filter(|(_, line)| line.is_none());
                return Err(silence(silent.map(|(process, _)| *process)));
            }
        }
    }
    Ok(lines.into_iter().map(Option::unwrap_or_default).collect())
}

/// The reason of an error among several processes, if one of them has ended: its peers may notice
/// first.
fn cause(news: &Receiver<News>, from: &[&Process]) -> Option<ClusterError> {
    let end = Instant::now() + END_DELAY;
    let left = || end.saturating_duration_since(Instant::now());
    while from.len() > 1
        && let Ok(news) = news.recv_timeout(left())
    {
        match news {
            News::Signal(signal) => return Some(ClusterError::Interrupted(signal)),
            News::Closed { process } => {
                let ended = from.iter().find(|known| known.id == process);
                if let Some(ended) = ended {
                    return Some(ended.lost("has ended"));
                }
            }
            News::Line { .. } => {}
        }
    }
    None
}

/// The error of processes without an answer.
fn silence<'a>(processes: impl Iterator<Item = &'a Process>) -> ClusterError {
    let names: Vec<&str> = processes.map(|process| process.name.as_str()).collect();
    let what = match names.len() {
        1 => "does not answer",
        _ => "do not answer: one of them hangs, or they wait for each other",
    };
    ClusterError::Lost {
        process: names.join(", "),
        what,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::super::process::Running;
    use super::*;

    /// Processes with the numbers 1, 2 and 3.
    fn processes() -> [Process; 3] {
        [(1, "one"), (2, "two"), (3, "three")].map(|(id, name)| {
            let (stdin, input) = io::pipe().unwrap();
            let mut command = Command::new("cat");
            let child = command.stdin(stdin).stdout(Stdio::null()).spawn().unwrap();
            Process {
                id,
                name: name.into(),
                input,
                has_ended: false,
                _running: Running::Outside(child),
            }
        })
    }

    /// The error after these lines and ends of processes, without further ones.
    fn error(told: Vec<News>) -> String {
        let (sender, news) = mpsc::channel();
        told.into_iter().for_each(|one| sender.send(one).unwrap());
        let processes = processes();
        let found = lines_of(&news, &processes.each_ref(), Duration::ZERO);
        found.unwrap_err().to_string()
    }

    fn line(process: u32, line: &str) -> News {
        let line = line.into();
        News::Line { process, line }
    }

    #[test]
    fn the_first_failed_process_is_named_and_the_others_are_not_waited_for() {
        let told = vec![
            line(1, r#"{"Ok":null}"#),
            line(3, r#"{"Err":"sums are wrong"}"#),
        ];
        assert_eq!(error(told), "three: sums are wrong");
    }

    #[test]
    fn an_ended_process_is_named_even_if_its_peers_fail_first() {
        let closed = News::Closed { process: 2 };
        let told = vec![line(1, r#"{"Err":"the peer has ended"}"#), closed];
        assert_eq!(error(told), "two has ended");
    }

    #[test]
    fn a_process_that_ended_before_its_order_is_named() {
        let (_sender, news) = mpsc::channel();
        let mut processes = processes();
        if let Running::Outside(child) = &mut processes[1]._running {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // A child of another test has all pipes of this process until it executes its program.
        let mut input = [PollFd::new(processes[1].input.as_fd(), PollFlags::empty())];
        poll(&mut input, PollTimeout::NONE).unwrap();
        processes.iter_mut().for_each(|process| process.tell(&()));
        let found = lines_of(&news, &processes.each_ref(), Duration::ZERO);
        assert_eq!(found.unwrap_err().to_string(), "two has ended");
    }

    #[test]
    fn all_processes_without_an_answer_are_named() {
        assert_eq!(
            error(vec![line(1, r#"{"Ok":1}"#)]),
            "two, three do not answer: one of them hangs, or they wait for each other"
        );
        let told = [1, 3].map(|process| line(process, r#"{"Ok":1}"#));
        assert_eq!(error(told.into()), "two does not answer");
    }
}
