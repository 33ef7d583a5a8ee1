//! Checks of a machine: its fitness for Toroid, and remedies.
//!
//! Nothing is changed, and no agent is needed. The caller passes the result of [making a
//! node](crate::nodes::trial). `host` checks the needs of every node; `rdma` those of RDMA devices
//! only, from sysfs (`Documentation/ABI/stable/sysfs-class-infiniband` of Linux), so missing
//! libibverbs is found without it.

mod host;
mod rdma;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use toroid_model::refusal::Refusal;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In order.
    Ok,
    /// Something does not work for it.
    Limited,
    /// Missing. The message names the features that need it.
    Missing,
}

/// As in `--json`.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Missing => "missing",
        })
    }
}

/// Name of the check whether an agent runs or could run. The caller adds its finding.
pub const AGENT: &str = "agent";

/// Finding of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, one word.
    pub check: &'static str,
    /// Result.
    pub state: State,
    /// Details.
    pub message: String,
    /// Remedy; `None` when nothing is to be done.
    pub remedy: Option<String>,
}

impl Finding {
    /// In order.
    pub fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Finding {
            check,
            state: State::Ok,
            message: message.into(),
            remedy: None,
        }
    }

    /// Finding of something that is limited, with the remedy.
    pub fn limited(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding {
            state: State::Limited,
            remedy: Some(remedy.into()),
            ..Finding::ok(check, message)
        }
    }

    /// Finding of something missing, with the remedy.
    pub fn missing(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding {
            state: State::Missing,
            ..Finding::limited(check, message, remedy)
        }
    }
}

/// Findings of all checks, and the features that work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// All findings.
    pub findings: Vec<Finding>,
    /// Features that work on this machine as it is.
    pub works: Vec<&'static str>,
}

impl Diagnosis {
    /// Whether an agent with nodes can be started here, which everything else needs.
    pub fn is_ready(&self) -> bool {
        is_there(&self.findings, host::NAMESPACES) && is_there(&self.findings, AGENT)
    }
}

/// Process that asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Whether the kernel takes it for root.
    pub is_root: bool,
    /// Bytes of memory that it may lock; `None` without a limit.
    pub memlock: Option<u64>,
}

/// Checks the machine whose file system is at `root`: `/`, except in tests. `trial` is the result
/// of making a node.
pub fn examine(root: &Path, asker: Asker, trial: Result<(), Refusal>) -> Diagnosis {
    let files = Files(root.into());
    let mut findings = host::examine(&files, asker, trial);
    let mut works = Vec::new();
    if is_there(&findings, host::NAMESPACES) {
        works.push("nodes and domains on this host, with RDMA by shared memory");
        works.push(if is_there(&findings, host::TUN) {
            "an Ethernet interface for each member"
        } else {
            "Ethernet for programs that link Toroid's own TCP stack"
        });
    }
    works.push("the store for clients of memcached's protocol");
    findings.extend(rdma::examine(&files, asker));
    Diagnosis { findings, works }
}

fn is_there(findings: &[Finding], check: &str) -> bool {
    let mut of = findings.iter().filter(|finding| finding.check == check);
    of.all(|finding| finding.state != State::Missing)
}

/// Files of the machine.
struct Files(PathBuf);

impl Files {
    /// Real path of an absolute path.
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Text of a file without white space at its ends.
    fn text(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.at(path)).map(|text| text.trim().to_owned())
    }

    /// Names in a directory, sorted; none without the directory.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        // "10" after "9".
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }
}

#[cfg(test)]
mod tests;
