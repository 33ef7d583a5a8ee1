//! Renewals of leases, and the check that no host without an answered change of a fenced domain has
//! one.

use std::time::Duration;

use toroid_model::directory::revision::Revision;

use super::{Asked, DOMAINS, EXCEPTION, Happening, Mutant, World, name, revision_of};
use crate::control::core::{ChangeId, Reached, SessionId};
use crate::control::lease::surely_over;

/// Length of all leases.
pub(super) const FENCE: Duration = Duration::from_secs(2);

/// Interval of renewals: short, so that cables are cut while they are under way.
const RENEWAL: Duration = Duration::from_millis(100);

/// Longest time from a decision to its effect here, in a domain that is not slow, and of a second
/// part of a change.
const DECIDED: Duration = Duration::from_millis(500);

pub(super) fn is_fenced(domain: usize) -> bool {
    ["blue", "white"].contains(&DOMAINS[domain])
}

impl World {
    /// Present time of a host's clock.
    fn clock(&self, host: usize) -> Duration {
        self.now * self.followers[host].rate / 1000
    }

    fn has_lease(&self, host: usize) -> bool {
        let begin = self.followers[host].lease.begin();
        begin.is_some_and(|begin| self.clock(host) < begin + FENCE)
    }

    /// Sends a renewal, and the next one some time later.
    pub(super) fn renew(
        &mut self,
        host: usize,
        session: SessionId,
        run: u64,
    ) -> Result<(), String> {
        let follower = &self.followers[host];
        if (follower.session, follower.run) == (Some(session), run) && self.now < super::FAULTY {
            let sent = self.clock(host);
            self.deliver(host, 1, Happening::Renewal(host, session, sent));
            self.at(self.now + RENEWAL, Happening::Renew(host, session, run));
        }
        Ok(())
    }

    pub(super) fn answer_renewal(
        &mut self,
        host: usize,
        session: SessionId,
        sent: Duration,
    ) -> Result<(), String> {
        let core = self.core.as_ref();
        let needs = core.and_then(|core| core.needs(&name(host), session));
        if let Some(needs) = needs {
            self.deliver(host, 0, Happening::Renewed(host, session, sent, needs));
        }
        Ok(())
    }

    pub(super) fn hear_renewed(
        &mut self,
        host: usize,
        sent: Duration,
        needs: Revision,
    ) -> Result<(), String> {
        let sent = match self.is(Mutant::LeaseFromAnswer) {
            true => self.clock(host),
            false => sent,
        };
        let number = if self.is(Mutant::NoRead) {
            0
        } else {
            needs.number
        };
        let follower = &mut self.followers[host];
        follower.lease.answered(sent, Revision { number, ..needs });
        self.check_lease(host)
    }

    /// Notes that a host has applied an update.
    pub(super) fn extend(&mut self, host: usize) -> Result<(), String> {
        let follower = &mut self.followers[host];
        if let Some(has) = revision_of(&follower.records) {
            follower.lease.applied(has);
        }
        self.check_lease(host)
    }

    /// A host without an answered change must not have a lease, nor get one.
    fn check_lease(&self, host: usize) -> Result<(), String> {
        let follower = &self.followers[host];
        if follower.version() < follower.fenced && self.has_lease(host) {
            let version = follower.fenced;
            return Err(format!("host {host} has a lease without version {version}"));
        }
        Ok(())
    }

    /// The contract of a reply about a fenced domain.
    pub(super) fn check_fenced(
        &mut self,
        (id, asked): (ChangeId, &Asked),
        version: usize,
        reached: &Reached,
    ) -> Result<(), String> {
        if !is_fenced(asked.domain) {
            return match reached.fenced.is_empty() {
                true => Ok(()),
                false => Err(format!("{id:?} counts on a fence that is not there")),
            };
        }
        if let Some(why) = reached.lacking.values().find(|why| *why != EXCEPTION) {
            return Err(format!("{id:?} does not wait for the fence: {why}"));
        }
        if self.now > asked.decided + DECIDED + surely_over(FENCE) {
            return Err(format!("{id:?} is answered later than after the fence"));
        }
        for host in &asked.concerned {
            let fenced = &mut self.followers[*host].fenced;
            *fenced = version.max(*fenced);
            self.check_lease(*host)?;
        }
        Ok(())
    }
}
