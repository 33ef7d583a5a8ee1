//! Calls of a history: operations, answers and times.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Keys that all clients use.
pub const KEYS: u8 = 3;

/// An operation on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Store a version of a key.
    Set {
        /// The key, below [`KEYS`].
        key: u8,
        /// The version, which no other set has.
        version: u32,
    },
    /// Remove a key.
    Delete {
        /// The key, below [`KEYS`].
        key: u8,
    },
    /// Get the version of a key.
    Get {
        /// The key, below [`KEYS`].
        key: u8,
    },
    /// Remove all keys.
    Flush,
    /// Kill the server and start another one, which removes all keys.
    Restart,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The operation was done.
    Done,
    /// The key was removed, and was there before or not.
    Deleted(bool),
    /// The version found.
    Found(Option<u32>),
    /// The error of a value that is no version of the key.
    Nonsense(String),
}

/// An operation from its begin to its end, in nanoseconds of one clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The operation.
    pub operation: Operation,
    /// A time before it.
    pub begin_ns: u64,
    /// A time after it, and the answer; `None` if the client did not receive one.
    pub end: Option<(u64, Outcome)>,
}

/// Calls that overlapped another one.
pub fn overlapped(calls: &[Call]) -> usize {
    let span = |call: &Call| {
        (
            call.begin_ns,
            call.end.as_ref().map_or(u64::MAX, |end| end.0),
        )
    };
    let meets = |(n, call): &(usize, &Call)| {
        let (begin, end) = span(call);
        let mut others = calls.iter().enumerate().filter(|(other, _)| other != n);
        others.any(|(_, other)| span(other).0 < end && begin < span(other).1)
    };
    calls.iter().enumerate().filter(meets).count()
}

/// The calls as text, in the order of their begins.
pub fn to_text(calls: &[Call]) -> String {
    let mut calls: Vec<&Call> = calls.iter().collect();
    calls.sort_by_key(|call| call.begin_ns);
    let first = calls.first().map_or(0, |call| call.begin_ns);
    let mut text = String::new();
    for Call {
        operation,
        begin_ns,
        end,
    } in calls
    {
        let begin = begin_ns - first;
        let _ = match end {
            Some((end, outcome)) => {
                writeln!(
                    text,
                    "{begin:9} to {:9} ns: {operation:?}: {outcome:?}",
                    end - first
                )
            }
            None => writeln!(text, "{begin:9} ns: {operation:?}: no answer"),
        };
    }
    text
}
