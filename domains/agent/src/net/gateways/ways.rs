//! Choice among the gateways of a domain, as seen from this host.
//!
//! Members use the first gateway, in order of preference, that works. A gateway with a problem is
//! given up at once. One to whose host no frames pass is given up after [`PATIENCE`], because a
//! driver that is made anew has its connections back before. A gateway that works again is preferred
//! again after [`PROBATION`], so that routes do not flap.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::Domain;
use toroid_model::gateway::Gateway;

use super::GatewayId;

/// Time without frames to the host of a gateway after which the gateway is given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for which a gateway must have worked before it is preferred again.
const PROBATION: Duration = Duration::from_secs(3);

/// State of a gateway as seen at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    Works,
    /// No frames pass to its host.
    Cut,
    /// Its host has a problem with it.
    Fails,
    /// The driver has not reported yet.
    Unknown,
}

/// A gateway that does not work, or has not worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Cut since then, and still used.
    Doubted(Instant),
    GivenUp,
    /// Given up, and working since then.
    Probation(Instant),
}

/// Gateways that do not work, or have not worked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ways {
    standings: BTreeMap<GatewayId, Standing>,
}

impl Ways {
    /// Ways of an agent whose predecessor had given up these gateways.
    pub(super) fn without(given_up: impl IntoIterator<Item = GatewayId>) -> Self {
        let given_up = given_up.into_iter();
        Ways {
            standings: given_up.map(|id| (id, Standing::GivenUp)).collect(),
        }
    }

    /// Takes note of all gateways. Returns the time to look again even if none has changed. A driver
    /// that has not reported yet will wake the watcher, so unknown gateways need no such time.
    pub(crate) fn look(
        &mut self,
        all: &BTreeMap<GatewayId, Sight>,
        now: Instant,
    ) -> Option<Instant> {
        self.standings.retain(|id, _| all.contains_key(id));
        for (id, sight) in all {
            match next(self.standings.get(id).copied(), *sight, now) {
                Some(standing) => self.standings.insert(*id, standing),
                None => self.standings.remove(id),
            };
        }
        let known = self
            .standings
            .iter()
            .filter(|(id, _)| all.get(id) != Some(&Sight::Unknown));
        let ends = known.filter_map(|(_, standing)| match standing {
            Standing::Doubted(since) => Some(*since + PATIENCE),
            Standing::Probation(since) => Some(*since + PROBATION),
            Standing::GivenUp => None,
        });
        ends.min()
    }

    /// The gateway of a member to the outside. If none works, one that works again, or else the
    /// preferred one.
    pub(crate) fn choose<'d>(&self, domain: &'d Domain, member: NodeId) -> Option<&'d Gateway> {
        let ways_out = domain.ways_out(member);
        ways_out.min_by_key(|gateway| self.rank(domain, gateway))
    }

    /// The gateway at the top of a domain's present order: that of members that may use all.
    pub(crate) fn first(&self, domain: &Domain) -> Option<NodeId> {
        let first = domain
            .gateways
            .iter()
            .min_by_key(|gateway| self.rank(domain, gateway));
        first.map(|gateway| gateway.node)
    }

    /// Whether all gateways of a domain have been given up.
    pub(crate) fn has_none(&self, domain: &Domain) -> bool {
        let standing = |gateway| self.standings.get(&GatewayId::of(domain, gateway));
        let mut gateways = domain.gateways.iter();
        gateways.all(|gateway| standing(gateway) == Some(&Standing::GivenUp))
    }

    /// Present order of a domain's gateways. A lower rank comes first.
    pub(crate) fn ranks(&self, domain: &Domain) -> Vec<u8> {
        let gateways = domain.gateways.iter();
        gateways.map(|gateway| self.rank(domain, gateway)).collect()
    }

    fn rank(&self, domain: &Domain, gateway: &Gateway) -> u8 {
        match self.standings.get(&GatewayId::of(domain, gateway)) {
            None | Some(Standing::Doubted(_)) => 0,
            Some(Standing::Probation(_)) => 1,
            Some(Standing::GivenUp) => 2,
        }
    }

    /// Gateways that are not used if another one works.
    pub(crate) fn given_up(&self) -> BTreeSet<GatewayId> {
        let is_used = |standing: &Standing| matches!(standing, Standing::Doubted(_));
        let unused = self.standings.iter().filter(|(_, its)| !is_used(its));
        unused.map(|(id, _)| *id).collect()
    }
}

fn next(standing: Option<Standing>, sight: Sight, now: Instant) -> Option<Standing> {
    match (standing, sight) {
        (standing, Sight::Unknown) => standing,
        (_, Sight::Fails) => Some(Standing::GivenUp),
        (None, Sight::Cut) => Some(Standing::Doubted(now)),
        (Some(Standing::Doubted(since)), Sight::Cut) if now < since + PATIENCE => standing,
        (Some(_), Sight::Cut) => Some(Standing::GivenUp),
        (Some(Standing::GivenUp), Sight::Works) => Some(Standing::Probation(now)),
        (Some(Standing::Probation(since)), Sight::Works) if now < since + PROBATION => standing,
        (_, Sight::Works) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::gateways::tests::connected;

    struct Look {
        blue: Domain,
        ways: Ways,
        now: Instant,
    }

    impl Look {
        fn new() -> Self {
            Look {
                blue: connected().domain("blue").unwrap().clone(),
                ways: Ways::default(),
                now: Instant::now(),
            }
        }

        /// Looks at both gateways after some time. Returns the node of the chosen one, and the
        /// milliseconds until the next look.
        fn after(&mut self, ms: u64, sights: [Sight; 2]) -> (u32, Option<u128>) {
            self.now += Duration::from_millis(ms);
            let ids = self
                .blue
                .gateways
                .iter()
                .map(|g| GatewayId::of(&self.blue, g));
            let next = self.ways.look(&ids.zip(sights).collect(), self.now);
            let chosen = self.ways.choose(&self.blue, NodeId(3)).unwrap();
            (
                chosen.node.0,
                next.map(|next| (next - self.now).as_millis()),
            )
        }
    }

    use Sight::{Cut, Fails, Unknown, Works};

    #[test]
    fn a_gateway_with_a_problem_is_given_up_at_once_and_preferred_again_later() {
        let mut look = Look::new();
        assert_eq!(look.after(0, [Works, Works]), (1, None));
        assert_eq!(look.after(0, [Fails, Works]), (2, None));
        assert_eq!(look.after(9000, [Fails, Works]), (2, None));
        assert_eq!(look.after(0, [Works, Works]), (2, Some(3000)));
        // A flapping one begins anew.
        assert_eq!(look.after(2000, [Fails, Works]), (2, None));
        assert_eq!(look.after(10, [Works, Works]), (2, Some(3000)));
        assert_eq!(look.after(2999, [Works, Works]), (2, Some(1)));
        assert_eq!(look.after(1, [Works, Works]), (1, None));
    }

    #[test]
    fn a_short_interruption_between_hosts_changes_nothing() {
        let mut look = Look::new();
        assert_eq!(look.after(0, [Cut, Works]), (1, Some(2000)));
        assert_eq!(look.after(1999, [Works, Works]), (1, None));
        assert_eq!(look.after(0, [Cut, Works]), (1, Some(2000)));
        assert_eq!(look.after(2000, [Cut, Works]), (2, None));
        assert_eq!(look.after(0, [Works, Works]), (2, Some(3000)));
        // Not by an unknown state either.
        assert_eq!(look.after(9000, [Unknown, Works]), (2, None));
        assert_eq!(look.after(0, [Works, Works]), (1, None));
        assert_eq!(look.after(0, [Unknown, Unknown]), (1, None));
        assert_eq!(look.after(0, [Cut, Works]), (1, Some(2000)));
        assert_eq!(look.after(9000, [Unknown, Works]), (1, None));
    }

    #[test]
    fn of_failed_gateways_the_first_that_works_again_is_used() {
        let mut look = Look::new();
        assert_eq!(look.after(0, [Works, Fails]), (1, None));
        assert!(!look.ways.has_none(&look.blue));
        assert_eq!(look.after(0, [Fails, Fails]), (1, None));
        assert!(look.ways.has_none(&look.blue));
        assert_eq!(look.after(0, [Fails, Works]), (2, Some(3000)));
        assert!(!look.ways.has_none(&look.blue));
        assert_eq!(look.after(1000, [Works, Works]).0, 1);
        assert_eq!(look.after(3000, [Works, Works]), (1, None));
    }

    #[test]
    fn a_successor_goes_on_without_the_given_up_ones() {
        let mut look = Look::new();
        look.after(0, [Fails, Works]);
        look.ways = Ways::without(look.ways.given_up());
        assert_eq!(look.after(0, [Unknown, Unknown]), (2, None));
        assert_eq!(look.after(0, [Works, Works]), (2, Some(3000)));
        // A gateway that is gone is forgotten.
        look.blue.gateways.remove(0);
        assert_eq!(look.after(0, [Works, Works]), (2, None));
        assert!(look.ways.given_up().is_empty());
    }
}
