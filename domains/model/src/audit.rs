//! Events of the audit log: every change and every denial, with its caller.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// There was no right to it.
    Denied,
    /// It would have passed a limit.
    Exhausted,
    /// The agent or the system failed.
    Failed,
}

/// An audit event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// Increases by 1 from line to line, but for lines that could not be written.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// Uid of the caller, absent for a process in a node.
    pub uid: Option<u32>,
    /// Process of the caller as the agent sees it, if visible.
    pub pid: Option<u32>,
    /// Place of the caller's node, for a process in a node.
    pub node: Option<String>,
    /// Host of a caller on another host; the other host of a `host` event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The kind of the request, as in the agent's protocol; `up` when an agent began, `host` when
    /// something is wrong with another host.
    pub what: String,
    /// The domain that it names.
    pub domain: Option<String>,
    /// Request, unless it is long or a command.
    pub request: Value,
    /// Result.
    pub result: Outcome,
    /// Why it was not carried out.
    pub reason: Option<String>,
    /// Lines like this that were not written before it: denials beyond the burst, or all that a
    /// full disk did not take.
    pub unwritten: u64,
}
