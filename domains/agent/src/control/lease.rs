//! Leases of hosts: until when a host that hears nothing may go on in fenced domains.
//!
//! ```text
//!   host     ──┬── renewal ──┐             ┌──▶ extends to (sending + fence), once it has applied R
//!            sent            ▼             │
//!   leader ────────── looks at the directory: R ──── commits R + 1 ───── wait ────▶ replies
//! ```
//!
//! A host renews its lease with the leader again and again. The answer has the last change that
//! concerns the host, as the leader knows it *after the renewal came*. The lease begins with the
//! *sending* of the renewal, and counts only once the host has applied that change. So a renewal
//! that came after a change extends no lease of a host without it, and one that came before was
//! sent before. A leader that waits for the length of a lease [and a little](surely_over) from the
//! commit of a change on finds each host with the change, or without a lease.
//!
//! No clocks are compared: only their rates are equal, to one percent. An elected leader answers
//! after it has read from a majority that it still leads.

use std::collections::VecDeque;
use std::time::Duration;

use toroid_model::directory::revision::Revision;

/// Time before the end of its lease at which a host begins to stop its members.
pub(crate) const EARLY: Duration = Duration::from_millis(500);

/// Interval of renewals.
pub(crate) const RENEWAL: Duration = Duration::from_millis(500);

/// Answers that wait for the change that they need. Renewals are rarer than updates.
const MAX_EARLY: usize = 64;

/// Time from the commit of a change after which no host has a lease of this length that began
/// before, by the leader's clock. Its rate and the host's may differ by one percent each.
pub(crate) fn surely_over(fence: Duration) -> Duration {
    fence + fence / 50 + Duration::from_millis(200)
}

/// The lease of a host, on its own clock, which does not stop while the machine is suspended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Time of sending of the renewal that counts.
    since: Option<Duration>,
    /// Revision that is in effect on this host, as far as it is known.
    applied: Option<Revision>,
    /// Answers that need a later revision, each with the time of its renewal; oldest first.
    early: VecDeque<(Duration, Revision)>,
}

impl Lease {
    /// A lease that an earlier agent of this host has left.
    pub(crate) fn since(since: Option<Duration>) -> Self {
        Lease {
            since,
            ..Lease::default()
        }
    }

    /// Begin of the lease.
    pub(crate) fn begin(&self) -> Option<Duration> {
        self.since
    }

    /// Notes the answer to a renewal that was sent at this time: the host needs this revision.
    pub(crate) fn answered(&mut self, sent: Duration, needs: Revision) {
        if self.early.len() == MAX_EARLY {
            self.early.pop_front();
        }
        self.early.push_back((sent, needs));
        self.extend();
    }

    /// Notes that this revision is in effect on this host, and no process of a former member runs.
    pub(crate) fn applied(&mut self, revision: Revision) {
        self.applied = Some(revision);
        self.extend();
    }

    /// Whether the leader has said that this host needs a later revision.
    pub(crate) fn is_behind(&self) -> bool {
        !self.early.is_empty()
    }

    fn extend(&mut self) {
        let Some(applied) = self.applied else {
            return;
        };
        let (since, early) = (&mut self.since, &mut self.early);
        early.retain(|(sent, needs)| {
            let counts = has_all(&applied, needs);
            if counts {
                *since = (*since).max(Some(*sent));
            }
            !counts
        });
    }
}

/// Whether a copy of a directory has all changes up to a revision. The copy of a later term has all
/// that earlier leaders have made durable.
fn has_all(copy: &Revision, needs: &Revision) -> bool {
    copy.fabric == needs.fabric
        && (copy.term.number > needs.term.number
            || copy.is_of_same_term(needs) && copy.number >= needs.number)
}

#[cfg(test)]
mod tests;
