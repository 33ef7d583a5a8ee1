//! Counts of a policy's decisions.

use super::{Outgoing, Policy};
use crate::routes::counters::Counters;
use crate::routes::mode::Mode;

/// A policy with counts of its decisions.
#[derive(Clone, Debug)]
pub struct Recorded<P> {
    policy: P,
    report: Report,
}

/// Decisions of a policy, and the bytes that followed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages on which the policy decided.
    pub decisions: u64,
    /// Decisions for another mode than the one before.
    pub switches: u64,
    /// Bytes of messages too small for a decision. They are part of the bytes by mode.
    pub skipped_bytes: u64,
    /// Bytes by mode, in the order of [`Mode::ALL`].
    pub bytes: [u64; Mode::ALL.len()],
    last: Option<Mode>,
}

impl<P: Policy> Recorded<P> {
    /// `policy` before its first decision.
    pub fn new(policy: P) -> Self {
        let report = Report::default();
        Recorded { policy, report }
    }

    /// Counts so far.
    pub fn report(&self) -> &Report {
        &self.report
    }
}

impl<P: Policy> Policy for Recorded<P> {
    fn decides(&self, message: &Outgoing) -> bool {
        self.policy.decides(message)
    }

    fn choose(&mut self, message: &Outgoing) -> Mode {
        let decides = self.policy.decides(message);
        let mode = self.policy.choose(message);
        self.report.bytes[mode as usize] += message.bytes;
        match decides {
            true => self.report.decision(mode),
            false => self.report.skipped_bytes += message.bytes,
        }
        mode
    }

    fn learn(&mut self, of: Mode, counted: &Counters) {
        self.policy.learn(of, counted);
    }
}

impl Report {
    /// Bytes of messages in `mode`.
    pub fn bytes_of(&self, mode: Mode) -> u64 {
        self.bytes[mode as usize]
    }

    /// Bytes in all modes.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Adds the counts of another sender.
    pub fn add(&mut self, other: &Report) {
        self.decisions += other.decisions;
        self.switches += other.switches;
        self.skipped_bytes += other.skipped_bytes;
        for (sum, more) in self.bytes.iter_mut().zip(other.bytes) {
            *sum += more;
        }
    }

    fn decision(&mut self, mode: Mode) {
        self.decisions += 1;
        let last = self.last.replace(mode);
        self.switches += u64::from(last.is_some_and(|last| last != mode));
    }
}
