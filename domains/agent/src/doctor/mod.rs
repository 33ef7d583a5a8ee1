//! What a machine has for Toroid, and what to do about what it lacks.
//!
//! Nothing is changed, and no agent is needed. Whether nodes can be made the caller tells, who has
//! [tried](crate::nodes::trial). `host`: what every node needs; `rdma`: what only
//! RDMA NICs need, which is looked up in sysfs (`Documentation/ABI/stable/sysfs-class-infiniband` of
//! Linux), so libibverbs is not needed to say that it is not there.

mod host;
mod rdma;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use toroid_model::refusal::Refusal;

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// It is there, and something does not work for it.
    Limited,
    /// It is not there. What needs it is said.
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

/// The check that says whether an agent runs, or could. Its finding is the caller's.
pub const AGENT: &str = "agent";

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in a word.
    pub check: &'static str,
    /// How it is.
    pub state: State,
    /// What was found.
    pub message: String,
    /// What to do about it; `None` when there is nothing to do.
    pub remedy: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Finding {
            check,
            state: State::Ok,
            message: message.into(),
            remedy: None,
        }
    }

    /// Something does not work, and this helps.
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

    /// It is not there, and this brings it.
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

/// What was found, and what works regardless.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Everything that was looked at.
    pub findings: Vec<Finding>,
    /// What works on this machine as it is.
    pub works: Vec<&'static str>,
}

impl Diagnosis {
    /// Whether an agent with nodes can be started here, without which there is nothing.
    pub fn is_ready(&self) -> bool {
        is_there(&self.findings, host::NAMESPACES) && is_there(&self.findings, AGENT)
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Whether it is root, as far as the kernel says.
    pub is_root: bool,
    /// Bytes of memory that it may lock; `None` when there is no limit.
    pub memlock: Option<u64>,
}

/// Looks at the machine whose file system is at `root`: `/`, but for tests. `trial` is what came of
/// making a node.
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

/// The machine's files.
struct Files(PathBuf);

impl Files {
    /// Where an absolute path is.
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file's text without the white space at its ends.
    fn text(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.at(path)).map(|text| text.trim().to_owned())
    }

    /// The names in a directory, sorted; none where there is no directory.
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
