//! Multicast snooping (RFC 4541): which members of a partition receive which groups.
//!
//! Frames of a group that no member has reported go to every member. A report changes what its own
//! sender receives, and nothing for others.
//!
//! **Reports do not expire.** Hosts repeat a report only when a router queries, and most domains have no
//! router: a report that expired after the usual 260 s would never come again. A report ends with a leave
//! message, which a kernel sends when its last socket leaves the group, or with the membership in the
//! domain. A lost leave message costs unread frames.
//!
//! **Reports get lost.** A host reports a group twice and then waits for queries. A member whose transmit
//! queue may have overflowed (`overrun`) receives every group from then on.
//!
//! **Reporters are distinguished.** Several hosts can be behind one interface (`ipvlan`). The interface
//! receives a group until all of them have left it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use toroid_fabric::Place;

use crate::headers::igmp_mld::{GroupRecord, MembershipReport};

/// Reports kept of one member. A member with more of them receives every group. Linux allows 20 groups
/// per socket.
const MAX_REPORTS: usize = 256;

/// Group memberships in one partition.
#[derive(Debug, Default)]
pub(super) struct Snooping {
    /// Group and reporter of each report, by member.
    reports: HashMap<Place, BTreeSet<(IpAddr, IpAddr)>>,
    /// Number of reports of each group.
    reporters: HashMap<IpAddr, usize>,
    /// Members that receive every group and every report.
    all: HashSet<Place>,
}

impl Snooping {
    /// Sends every group to a member from now on: a router, or a member of which reports may be lost.
    pub(super) fn receive_all(&mut self, place: Place) {
        self.forget(place);
        self.all.insert(place);
    }

    /// Forgets the reports of a member.
    pub(super) fn forget(&mut self, place: Place) {
        self.all.remove(&place);
        for (group, _) in self.reports.remove(&place).unwrap_or_default() {
            self.drop_report(group);
        }
    }

    /// Whether a member has reported the group. Its frames then go to subscribers only.
    pub(super) fn is_known(&self, group: IpAddr) -> bool {
        self.reporters.contains_key(&group)
    }

    /// Whether a member receives a group that is known.
    pub(super) fn is_subscribed(&self, place: Place, group: IpAddr) -> bool {
        let from = (group, Ipv4Addr::UNSPECIFIED.into());
        let next = |reports: &BTreeSet<_>| reports.range(from..).next().copied();
        let next = self.reports.get(&place).and_then(next);
        next.is_some_and(|(next, _)| next == group) || self.receives_all(place)
    }

    /// Whether a member receives every group and every report.
    pub(super) fn receives_all(&self, place: Place) -> bool {
        self.all.contains(&place)
    }

    /// Whether a member receives every report.
    pub(super) fn has_routers(&self) -> bool {
        !self.all.is_empty()
    }

    /// Applies a report of a member.
    pub(super) fn learn(&mut self, place: Place, report: &MembershipReport<'_>) {
        if self.receives_all(place) {
            return;
        }
        if report.stated_len() > MAX_REPORTS {
            return self.receive_all(place);
        }
        for GroupRecord { group, joins } in report.records() {
            match joins {
                Some(true) => self.join(place, group, report.reporter),
                Some(false) => self.leave(place, group, report.reporter),
                None => {}
            }
        }
    }

    fn join(&mut self, place: Place, group: IpAddr, reporter: IpAddr) {
        if self.receives_all(place) {
            return;
        }
        let reports = self.reports.entry(place).or_default();
        if reports.insert((group, reporter)) {
            *self.reporters.entry(group).or_default() += 1;
        }
        if reports.len() > MAX_REPORTS {
            self.receive_all(place);
        }
    }

    fn leave(&mut self, place: Place, group: IpAddr, reporter: IpAddr) {
        // The host may have reported before it had an address.
        let unspecified = match reporter {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        for reporter in [reporter, unspecified] {
            let reports = self.reports.get_mut(&place);
            if reports.is_some_and(|reports| reports.remove(&(group, reporter))) {
                self.drop_report(group);
            }
        }
        if self.reports.get(&place).is_some_and(BTreeSet::is_empty) {
            self.reports.remove(&place);
        }
    }

    fn drop_report(&mut self, group: IpAddr) {
        if let Some(count) = self.reporters.get_mut(&group) {
            *count -= 1;
            if *count == 0 {
                self.reporters.remove(&group);
            }
        }
    }
}
