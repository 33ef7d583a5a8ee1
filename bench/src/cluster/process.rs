//! Processes of this program in nodes and outside, which take orders in lines of JSON.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::process::Child;
use std::sync::mpsc::Sender;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use toroid_client::admin::ExecHandle;

use super::{ClusterError, News};

/// A process of this program in a node or outside, which ends when this is dropped.
#[derive(Debug)]
pub struct Process {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) input: PipeWriter,
    /// Whether an order found no reader. The end itself may have been told while another process was
    /// waited for.
    pub(super) has_ended: bool,
    pub(super) _running: Running,
}

/// The end of a process comes with this value.
#[derive(Debug)]
pub(super) enum Running {
    /// A process that the agent has started.
    InNode { _command: ExecHandle },
    /// A child of this process.
    Outside(Child),
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Running::Outside(child) = self {
            // Both fail only if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Process {
    /// Sends a line of JSON. The wait for the answer tells whether the process has ended.
    pub(super) fn tell(&mut self, order: &impl Serialize) {
        let mut line = serde_json::to_vec(order).unwrap_or_default();
        line.push(b'\n');
        self.has_ended |= self.input.write_all(&line).is_err();
    }

    pub(super) fn understand<A: DeserializeOwned>(&self, line: &str) -> Result<A, ClusterError> {
        let answer: Result<A, String> = serde_json::from_str(line)
            .map_err(|error| self.failed(format!("unknown answer: {error}")))?;
        answer.map_err(|message| self.failed(message))
    }

    /// The error in an answer.
    pub(super) fn error_in(&self, line: &str) -> Option<ClusterError> {
        match serde_json::from_str(line) {
            Ok(Err::<IgnoredAny, String>(message)) => Some(self.failed(message)),
            _ => None,
        }
    }

    /// Names this process in errors, by its place among others.
    pub(crate) fn call(&mut self, name: String) {
        self.name = name;
    }

    pub(super) fn lost(&self, what: &'static str) -> ClusterError {
        ClusterError::Lost {
            process: self.name.clone(),
            what,
        }
    }

    /// An error of this process.
    pub(crate) fn failed(&self, message: impl Into<String>) -> ClusterError {
        ClusterError::Failed {
            process: self.name.clone(),
            message: message.into(),
        }
    }
}

/// Forwards the lines of a process, and their end.
pub(super) fn forward_lines(process: u32, output: PipeReader, sender: &Sender<News>) {
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else { break };
        if sender.send(News::Line { process, line }).is_err() {
            return;
        }
    }
    // The receiver is gone at the end of the run.
    let _ = sender.send(News::Closed { process });
}
