//! What was asked and answered, and when.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Keys that all use.
pub const KEYS: u8 = 3;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Store this version.
    Set { key: u8, version: u32 },
    /// Remove a key.
    Delete { key: u8 },
    /// Get what it is.
    Get { key: u8 },
    /// Remove all keys.
    Flush,
    /// The server was killed, and started again: as a flush.
    Restart,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was done.
    Done,
    /// Whether it was there.
    Deleted(bool),
    /// The version that was found.
    Found(Option<u32>),
    /// No value at all.
    Nonsense(String),
}

/// An operation from its beginning to its end, in nanoseconds of one clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// What was asked.
    pub operation: Operation,
    /// Before it.
    pub begin_ns: u64,
    /// After it, and what was answered; `None` if who asked did not come to know.
    pub end: Option<(u64, Outcome)>,
}

/// How many calls were under way while another one was.
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

/// The calls as text, in the order of their beginnings.
pub fn told(calls: &[Call]) -> String {
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
            None => writeln!(text, "{begin:9} ns: {operation:?}: nobody knows"),
        };
    }
    text
}
