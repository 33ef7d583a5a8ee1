//! Ways of this host's members to the outside: each member uses the first gateway of its domain that
//! works as seen from this host.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use toroid_model::directory::{Directory, Domain};
use toroid_model::gateway::Gateway;

use super::host::Host;
use super::ports::log_errors;
use crate::net::gateways::ways::{Sight, Ways};
use crate::net::gateways::{GatewayId, way_out};

/// Directory and ways at the last look.
struct Seen {
    directory: Directory,
    ways: Ways,
}

/// Domains whose members may have other routes since the last look. A domain that has lost gateways
/// counts as well: its members may have been led by the former ones.
fn differing<'d>(
    last: Option<&Seen>,
    directory: &'d Directory,
    ways: &Ways,
) -> impl Iterator<Item = &'d Domain> {
    let former = last.into_iter();
    let former = former.flat_map(|last| last.directory.connected_domains());
    let former = former.filter_map(|former| directory.domain_by_id(former.id.into()));
    let lost = former.filter(|domain| domain.gateways.is_empty());
    directory
        .connected_domains()
        .chain(lost)
        .filter(move |domain| {
            let seen = |last: &Seen| {
                let before = last.directory.domain_by_id(domain.id.into());
                // Directories share unchanged domains.
                before.is_some_and(|before| ptr::eq(before, *domain))
                    && last.ways.ranks(domain) == ways.ranks(domain)
            };
            !last.is_some_and(seen)
        })
}

impl Host {
    /// Lets [`watch`] look again: at gateways, and at members.
    pub(crate) fn rethink_ways(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_watchers();
        }
    }

    /// Chooses the ways of this host's members. Returns the time to look again even if nothing has
    /// changed.
    fn choose_ways(&self, last: &mut Option<Seen>) -> Option<Instant> {
        let directory = self.members.directory(Directory::clone);
        let is_chosen = |its: &&Domain| its.gateways.len() > 1 && self.has_members(its);
        let several = || directory.connected_domains().filter(is_chosen);
        let gateways = |domain: &Domain| -> Vec<_> {
            let sight = |gateway| {
                let (sight, _) = self.sight(&directory, domain, gateway);
                (GatewayId::of(domain, gateway), sight)
            };
            domain.gateways.iter().map(sight).collect()
        };
        let all: BTreeMap<GatewayId, Sight> = several().flat_map(gateways).collect();
        let ([given_up, used_again], next) = self.gateways.look(&all, Instant::now());
        let ways = self.gateways.ways().clone();
        let before = last.as_ref();
        let differing = differing(before, &directory, &ways);
        let led = differing.flat_map(|domain| self.lead_here(domain.id));
        self.await_routes(&led.collect());
        for domain in several() {
            self.note_ways(domain, &given_up, &used_again);
            let had_none = before.is_some_and(|last| last.ways.has_none(domain));
            if ways.has_none(domain) && !had_none {
                tracing::warn!("no gateway of {} works", domain.name);
            }
        }
        *last = Some(Seen { directory, ways });
        next
    }

    /// Whether this host has members of a domain.
    pub(super) fn has_members(&self, domain: &Domain) -> bool {
        let mut members = domain.members.keys();
        members.any(|node| self.node(*node).is_some())
    }

    /// Gives the members of a domain on this host their default routes, by the present directory: the
    /// domain may have lost a gateway since the look. Returns the ports with other routes than before.
    fn lead_here(&self, id: u16) -> Vec<(u32, u32)> {
        let Some(driver) = &self.driver else {
            return Vec::new();
        };
        let ways = self.gateways.ways();
        let domain = self
            .members
            .directory(|directory| directory.domain_by_id(id.into()).cloned());
        let Some(domain) = domain else {
            return Vec::new();
        };
        let members = domain.members.keys();
        let here = members.filter(|node| self.node(**node).is_some());
        let led = here.filter(|node| {
            let gateway = way_out(&domain, **node, &ways);
            driver.lead(id.into(), node.0, gateway)
        });
        led.map(|node| (id.into(), node.0)).collect()
    }

    /// Waits for the routes of these ports. Logs failures.
    fn await_routes(&self, led: &BTreeSet<(u32, u32)>) {
        let Some(driver) = self.driver.as_ref().filter(|_| !led.is_empty()) else {
            return;
        };
        match driver.sync_of(|error| led.contains(&(error.domain_id, error.node))) {
            Ok(errors) => log_errors(&errors),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    fn note_ways(
        &self,
        domain: &Domain,
        given_up: &BTreeSet<GatewayId>,
        used_again: &BTreeSet<GatewayId>,
    ) {
        for gateway in &domain.gateways {
            let (id, name) = (GatewayId::of(domain, gateway), &domain.name);
            let Some(node) = self.torus.place(gateway.node) else {
                continue;
            };
            if given_up.contains(&id) {
                let why = self.gateway_problem(domain, gateway).unwrap_or_default();
                tracing::warn!("members of {name} do without the gateway at {node}: {why}");
                let reason = format!("members here do without the one at {node}: {why}");
                self.audit.note_gateway(domain, false, reason);
            } else if used_again.contains(&id) {
                tracing::info!("members of {name} may use the gateway at {node} again");
                let reason = format!("members here may use the one at {node} again");
                self.audit.note_gateway(domain, true, reason);
            }
        }
    }

    /// Why nothing passes a gateway, as far as this host knows.
    pub(super) fn gateway_problem(&self, domain: &Domain, gateway: &Gateway) -> Option<String> {
        let directory = self.members.directory(Directory::clone);
        let (_, problem) = self.sight(&directory, domain, gateway);
        problem
    }

    /// State of a gateway as seen from this host, with the reason if it does not work.
    fn sight(
        &self,
        directory: &Directory,
        domain: &Domain,
        gateway: &Gateway,
    ) -> (Sight, Option<String>) {
        let id = GatewayId::of(domain, gateway);
        let known = |problem: Option<String>| match problem {
            Some(problem) => (Sight::Fails, Some(problem)),
            None => (Sight::Works, None),
        };
        if self.node(gateway.node).is_some() {
            return known(self.own_problem(id));
        }
        let Some(carrier) = directory.host_of(gateway.node) else {
            return known(Some("no host has its node".into()));
        };
        let reported = self.gateways.reported();
        let problem = reported.get(carrier).and_then(|its| its.get(&id)).cloned();
        drop(reported);
        if problem.is_some() {
            return known(problem);
        }
        match self.driver.as_ref().and_then(|its| its.passes_to(carrier)) {
            Some(true) => known(None),
            Some(false) => {
                let problem = format!("no frames pass to host {carrier}");
                (Sight::Cut, Some(problem))
            }
            None => (Sight::Unknown, None),
        }
    }
}

/// Chooses ways whenever a gateway may have changed, until the agent ends.
pub(crate) fn watch(host: &Arc<Host>) {
    let Some(driver) = &host.driver else {
        return;
    };
    let (mut seen, mut next, mut last) = (0, None, None);
    while let Some(pulse) = driver.await_pulse(seen, next) {
        if host.is_ending() {
            return;
        }
        seen = pulse;
        next = host.choose_ways(&mut last);
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::NodeId;

    use super::*;
    use crate::net::gateways::tests::connected;

    fn seen(directory: &Directory) -> Seen {
        Seen {
            directory: directory.clone(),
            ways: Ways::default(),
        }
    }

    fn differs(last: Option<&Seen>, directory: &Directory, ways: &Ways) -> bool {
        differing(last, directory, ways).count() > 0
    }

    /// Members were led to a removed gateway for good: the look had begun before the removal, and no
    /// later look heeded a domain with one gateway.
    #[test]
    fn members_of_a_domain_that_has_lost_gateways_are_led_again() {
        let (mut directory, ways) = (connected(), Ways::default());
        assert!(differs(None, &directory, &ways));
        for node in [1, 2] {
            let before = seen(&directory);
            assert!(!differs(Some(&before), &directory, &ways));
            directory.remove_gateway("blue", NodeId(node)).unwrap();
            assert!(differs(Some(&before), &directory, &ways));
        }
        let before = seen(&directory);
        directory.set("blue", Some(true), None, None).unwrap();
        let differs = differs(Some(&before), &directory, &ways);
        assert!(!differs, "it has no gateways");
    }

    #[test]
    fn members_are_led_again_after_another_choice() {
        let directory = connected();
        let blue = directory.domain("blue").unwrap();
        let id = GatewayId::of(blue, &blue.gateways[0]);
        let mut ways = Ways::default();
        ways.look(&BTreeMap::from([(id, Sight::Fails)]), Instant::now());
        assert!(differs(Some(&seen(&directory)), &directory, &ways));
    }
}
