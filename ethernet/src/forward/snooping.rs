//! Who hears which groups of a segment, as members have reported it (RFC 4541).
//!
//! A group that nobody has reported is heard by all. What a report says concerns its sender only, so
//! nobody has another miss anything by it.
//!
//! **Nothing ages.** Hosts repeat a report only when a router asks, and a domain has none as a rule: a report
//! that is forgotten after the usual 260 s would be missed for ever. What ends it is its host's word, which
//! kernels give when the last of their sockets leaves a group, or the end of the membership. Such a word that
//! was lost costs frames that are heard in vain.
//!
//! **Not every report arrives.** A host that joins says so twice and then waits to be asked, so a member whose queue
//! may have overflowed (`backlog`) hears every group from then on.
//!
//! **One reporter does not speak for another.** There can be several hosts behind an interface (`ipvlan`), and
//! the interface hears a group until all have left it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use toroid_fabric::Place;

use crate::headers::igmp_mld::{Claim, Report};

/// How many reports of a member are kept; one that has more hears everything. Linux allows a socket 20
/// groups.
const MOST: usize = 256;

/// What is known of the listeners of a segment.
#[derive(Debug, Default)]
pub(super) struct Audience {
    /// Group and reporter, of each member that has reported any.
    reports: HashMap<Place, BTreeSet<(IpAddr, IpAddr)>>,
    /// How many of these there are for a group.
    heard: HashMap<IpAddr, usize>,
    /// Those that hear every group and every report.
    all: HashSet<Place>,
}

impl Audience {
    /// Lets a member hear every group: it is a router, or nobody knows all that it has reported.
    pub(super) fn hears_all(&mut self, place: Place) {
        self.forget(place);
        self.all.insert(place);
    }

    /// Forgets a member.
    pub(super) fn forget(&mut self, place: Place) {
        self.all.remove(&place);
        for (group, _) in self.reports.remove(&place).unwrap_or_default() {
            self.forget_one(group);
        }
    }

    /// Whether anybody has reported a group: then it is for those who did, and for who hears all.
    pub(super) fn is_heard(&self, group: IpAddr) -> bool {
        self.heard.contains_key(&group)
    }

    /// Whether a member hears a group that is heard.
    pub(super) fn hears(&self, place: Place, group: IpAddr) -> bool {
        let from = (group, Ipv4Addr::UNSPECIFIED.into());
        let next = |reports: &BTreeSet<_>| reports.range(from..).next().copied();
        let next = self.reports.get(&place).and_then(next);
        next.is_some_and(|(next, _)| next == group) || self.is_router(place)
    }

    /// Whether a member hears every report.
    pub(super) fn is_router(&self, place: Place) -> bool {
        self.all.contains(&place)
    }

    /// Whether any does.
    pub(super) fn has_routers(&self) -> bool {
        !self.all.is_empty()
    }

    /// Believes what a member reports.
    pub(super) fn learn(&mut self, place: Place, report: &Report<'_>) {
        if self.is_router(place) {
            return;
        }
        if report.len() > MOST {
            return self.hears_all(place);
        }
        for Claim { group, listens } in report.claims() {
            match listens {
                Some(true) => self.join(place, group, report.reporter),
                Some(false) => self.leave(place, group, report.reporter),
                None => {}
            }
        }
    }

    fn join(&mut self, place: Place, group: IpAddr, reporter: IpAddr) {
        if self.is_router(place) {
            return;
        }
        let reports = self.reports.entry(place).or_default();
        if reports.insert((group, reporter)) {
            *self.heard.entry(group).or_default() += 1;
        }
        if reports.len() > MOST {
            self.hears_all(place);
        }
    }

    fn leave(&mut self, place: Place, group: IpAddr, reporter: IpAddr) {
        // It may have reported before it had an address.
        let nobody = match reporter {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        for reporter in [reporter, nobody] {
            let reports = self.reports.get_mut(&place);
            if reports.is_some_and(|reports| reports.remove(&(group, reporter))) {
                self.forget_one(group);
            }
        }
        if self.reports.get(&place).is_some_and(BTreeSet::is_empty) {
            self.reports.remove(&place);
        }
    }

    fn forget_one(&mut self, group: IpAddr) {
        if let Some(count) = self.heard.get_mut(&group) {
            *count -= 1;
            if *count == 0 {
                self.heard.remove(&group);
            }
        }
    }
}
