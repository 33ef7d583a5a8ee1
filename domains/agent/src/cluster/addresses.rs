//! Addresses of the other hosts. Each host tells its own to the leader, and the directory has them.
//! An entry in `[hosts]` of this host's file comes before that, for networks in which the host has
//! another address here. A host that has moved since the file was written is still found.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use parking_lot::Mutex;
use toroid_model::directory::moved::Moved;
use toroid_model::directory::{Directory, DirectoryError};
use toroid_model::refusal::{Refusal, RefusalKind};

use super::Cluster;

/// Time for a connection to an address that a host has told.
const CHECK: Duration = Duration::from_secs(2);

/// Addresses that are neither in the file nor in the directory, and results of earlier attempts.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// Addresses of hosts that may lead, as one of these has told them. They are later than this
    /// host's copy of the directory, until the next update.
    told: Mutex<BTreeMap<String, SocketAddr>>,
    /// Address at which each host was reached the last time.
    reached: Mutex<BTreeMap<String, SocketAddr>>,
    /// Told addresses at which this host, the leader, found no agent, with the problem.
    useless: Mutex<BTreeMap<String, (SocketAddr, String)>>,
    /// Problems of told addresses that are not in the directory, at the leader.
    refused: Mutex<BTreeMap<String, String>>,
}

impl Addresses {
    /// Notes that a host answers at an address.
    pub(crate) fn note(&self, host: &str, address: SocketAddr) {
        self.reached.lock().insert(host.into(), address);
        self.useless.lock().remove(host);
    }

    /// Notes addresses of hosts that may lead, after a redirection to them.
    pub(super) fn hear(
        &self,
        mut addresses: BTreeMap<String, SocketAddr>,
        leader: Option<&str>,
        moved: Option<&Moved>,
    ) {
        addresses.retain(|host, _| {
            let is_named = |moved: &Moved| moved.to == *host || moved.candidates.contains(host);
            leader == Some(host) || moved.is_some_and(is_named)
        });
        self.told.lock().extend(addresses);
    }

    /// Forgets a host, which was removed.
    pub(super) fn forget(&self, host: &str) {
        self.reached.lock().remove(host);
        self.useless.lock().remove(host);
        self.refused.lock().remove(host);
    }

    /// Notes whether the directory has refused the address that a host has told last.
    pub(crate) fn note_refused(&self, host: &str, problem: Option<&str>) {
        let mut refused = self.refused.lock();
        match problem {
            Some(problem) => refused.insert(host.into(), problem.into()),
            None => refused.remove(host),
        };
    }

    /// Forgets these: the directory here has present ones.
    pub(crate) fn forget_told(&self) {
        self.told.lock().clear();
    }
}

impl Cluster {
    /// Addresses at which a host may be reached, the most likely one first.
    pub(crate) fn addresses_of(
        &self,
        host: &str,
        directory: Option<&Directory>,
    ) -> Vec<SocketAddr> {
        let known = [
            self.config.hosts.get(host).copied(),
            self.addresses.told.lock().get(host).copied(),
            directory.and_then(|directory| directory.address_of(host)),
        ];
        let mut all: Vec<SocketAddr> = Vec::new();
        for address in known.into_iter().flatten() {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        let reached = self.addresses.reached.lock().get(host).copied();
        all.sort_by_key(|address| Some(*address) != reached);
        all
    }

    /// The address at which a host is reached first.
    pub(crate) fn address_of(&self, host: &str, directory: &Directory) -> Option<SocketAddr> {
        if host == self.config.host {
            return self.config.told_address();
        }
        self.addresses_of(host, Some(directory)).first().copied()
    }

    /// Addresses of hosts that may lead where the directory is, and of the leader, for a host that
    /// asks here.
    pub(crate) fn leaders_addresses(
        &self,
        leader: Option<&str>,
        directory: &Directory,
    ) -> BTreeMap<String, SocketAddr> {
        let (_, leaders) = self.whereabouts();
        let hosts = leaders.iter().map(String::as_str).chain(leader);
        let of = |host: &str| Some((host.to_owned(), self.address_of(host, directory)?));
        hosts.filter_map(of).collect()
    }

    /// Whether a host is in the directory or in this host's file.
    pub(crate) fn knows(&self, host: &str, directory: &Directory) -> bool {
        self.config.hosts.contains_key(host) || directory.keys_of(host).is_some()
    }

    /// Problem of the address that a host has told, which may be that of an `other` one. The leader
    /// knows more.
    pub(super) fn address_problem(&self, host: &str, other: Option<&str>) -> Option<String> {
        let refused = self.addresses.refused.lock().get(host).cloned();
        let useless = self.addresses.useless.lock();
        let useless = || useless.get(host).map(|(_, problem)| problem.clone());
        refused.or_else(|| other.map(double)).or_else(useless)
    }

    /// Connects to the address that a follower has told, unless this host's file has another one.
    /// Returns the problem, if it is new and the directory still has the address then. Other hosts may
    /// reach the address nevertheless.
    pub(crate) fn check_told(
        &self,
        host: &str,
        address: SocketAddr,
        is_present: impl FnOnce() -> bool,
    ) -> Option<String> {
        if self.config.hosts.contains_key(host) {
            return None;
        }
        let result = TcpStream::connect_timeout(&address, CHECK);
        if !is_present() {
            return None;
        }
        let mut useless = self.addresses.useless.lock();
        let Err(error) = result else {
            useless.remove(host);
            return None;
        };
        let problem = format!(
            "the leader cannot reach its address {address}: {error}; write `address` in the file of \
             host {host}, or open the port"
        );
        let before = useless.insert(host.into(), (address, problem.clone()));
        before
            .is_none_or(|(former, _)| former != address)
            .then_some(problem)
    }
}

/// Enters the address that a host has told in a session `from` another address. Returns the problem of
/// a bad one, for which the host keeps its former address: an address is a hint, and no reason to
/// refuse the host.
pub(crate) fn enter_told(
    directory: &mut Directory,
    host: &str,
    address: SocketAddr,
    from: SocketAddr,
) -> Option<String> {
    let is_local = |address: SocketAddr| address.ip().to_canonical().is_loopback();
    if is_local(address) && !is_local(from) {
        // Between the hosts of one machine it is right.
        let (host, why) = (host.into(), "is of its own machine only");
        let error = DirectoryError::BadAddress { host, address, why };
        return Some(Refusal::from(error).to_string());
    }
    let refusal = directory
        .tell_address(host, address)
        .err()
        .map(Refusal::from)?;
    Some(refusal.to_string())
}

/// The problem of a host whose address is that of another one, too.
pub(crate) fn double(other: &str) -> String {
    format!(
        "its address is also that of host {other}; write another `listen` or `address` in the file \
         of one of the two, and start its agent again, or `toroid host remove` the one that is gone"
    )
}

/// Makes the refusal for a host whose address is unknown here.
pub(crate) fn no_address(host: &str, here: &str) -> Refusal {
    Refusal::new(
        RefusalKind::Failed,
        format!(
            "host {host} has no address: it has told none to the leader, and the file of host {here} \
             has none in [hosts]"
        ),
        format!("start the agent of host {host}; see `toroid host ls`"),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    use toroid_model::directory::revision::FabricId;
    use toroid_model::host_key::PublicKey;

    use super::*;
    use crate::cluster::tests::cluster;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// The file of host a has b at 127.0.0.1:1.
    #[test]
    fn the_file_comes_before_the_directory_and_a_stale_file_is_no_obstacle() {
        let cluster = cluster();
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        let (by_file, by_directory) = (at("127.0.0.1:1"), at("10.0.0.2:7470"));
        assert_eq!(cluster.addresses_of("b", None), [by_file]);
        directory.tell_address("b", by_directory).unwrap();
        directory.tell_address("c", at("10.0.0.3:7470")).unwrap();
        let of = |host| cluster.addresses_of(host, Some(&directory));
        assert_eq!(of("b"), [by_file, by_directory]);
        assert_eq!(of("c"), [at("10.0.0.3:7470")]);
        assert!(of("d").is_empty());
        cluster.addresses.note("b", by_directory);
        assert_eq!(of("b"), [by_directory, by_file]);
        // It has moved on.
        let mut next = directory.clone();
        next.tell_address("b", at("10.0.0.9:7470")).unwrap();
        let of_b = cluster.addresses_of("b", Some(&next));
        assert_eq!(of_b, [by_file, at("10.0.0.9:7470")]);
    }

    /// Only the last failure was named once, without its address.
    #[test]
    fn a_host_that_is_nowhere_is_said_to_be_at_none_of_its_addresses() {
        let cluster = cluster();
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        directory.set_host_keys("b", vec![PublicKey([2; 32])]);
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let told = closed.local_addr().unwrap();
        drop(closed);
        directory.tell_address("b", told).unwrap();
        let error = cluster.dial("b", Some(&directory), None).map(drop);
        let text = error.unwrap_err().to_string();
        for address in ["127.0.0.1:1".to_owned(), told.to_string()] {
            assert!(text.contains(&format!("at {address}: ")), "{text}");
        }
    }

    #[test]
    fn a_redirection_tells_addresses_of_hosts_that_may_lead() {
        let cluster = cluster();
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        directory.begin_term(FabricId(1), 1);
        directory.relocate("a", "c", BTreeSet::new(), 7);
        let told = [
            ("c", "10.0.0.3:1"),
            ("d", "10.0.0.4:1"),
            ("e", "10.0.0.5:1"),
        ];
        let told: BTreeMap<_, _> = told.map(|(host, text)| (host.into(), at(text))).into();
        let addresses = &cluster.addresses;
        addresses.hear(told, Some("d"), directory.moved());
        assert_eq!(cluster.addresses_of("c", None), [at("10.0.0.3:1")]);
        assert_eq!(cluster.addresses_of("d", None), [at("10.0.0.4:1")]);
        assert!(cluster.addresses_of("e", None).is_empty());
        // They are later than a copy, and earlier than the next update.
        directory.tell_address("c", at("10.0.0.7:1")).unwrap();
        let of_c = || cluster.addresses_of("c", Some(&directory));
        assert_eq!(of_c(), [at("10.0.0.3:1"), at("10.0.0.7:1")]);
        addresses.forget_told();
        assert_eq!(of_c(), [at("10.0.0.7:1")]);
    }

    /// Such an address once shut the host out.
    #[test]
    fn a_bad_or_double_address_is_a_problem_and_the_host_stays() {
        let cluster = cluster();
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        let good = at("10.0.0.2:7470");
        let from = at("10.0.0.2:55555");
        assert_eq!(enter_told(&mut directory, "b", good, from), None);
        let problem = enter_told(&mut directory, "b", at("0.0.0.0:7470"), from).unwrap();
        assert!(problem.contains("names all interfaces"), "{problem}");
        assert!(problem.contains("write `address`"), "{problem}");
        assert_eq!(directory.address_of("b"), Some(good));
        cluster.addresses.note_refused("b", Some(&problem));
        assert_eq!(cluster.address_problem("b", None), Some(problem));
        cluster.addresses.note_refused("b", None);
        assert_eq!(cluster.address_problem("b", None), None);

        assert_eq!(enter_told(&mut directory, "c", good, from), None);
        let all = cluster.describe(&directory);
        let b = all.iter().find(|host| host.name == "b").unwrap();
        let problem = b.problem.as_deref().unwrap();
        assert!(problem.contains("is also that of host c"), "{problem}");
    }

    #[test]
    fn an_address_of_its_own_machine_is_good_for_hosts_of_one_machine_only() {
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        for own in ["127.0.0.1:7470", "[::1]:7470", "[::ffff:127.0.0.1]:7470"] {
            let mut tell = |from| enter_told(&mut directory, "b", at(own), at(from));
            let problem = tell("10.0.0.2:55555").unwrap();
            assert!(problem.contains("is of its own machine only"), "{problem}");
            assert_eq!(tell("127.0.0.1:55555"), None);
            assert_eq!(tell("[::ffff:127.0.0.1]:55555"), None);
        }
    }

    #[test]
    fn an_address_without_an_agent_is_a_problem_until_there_is_one() {
        let cluster = cluster();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(cluster.check_told("c", address, || true), None);
        drop(listener);
        let problem = cluster.check_told("c", address, || true).unwrap();
        let words = format!("cannot reach its address {address}: ");
        assert!(problem.contains(&words), "{problem}");
        assert!(problem.contains("write `address` in the file of host c"));
        assert_eq!(cluster.address_problem("c", None), Some(problem));
        assert_eq!(cluster.check_told("c", address, || true), None);
        let _listener = TcpListener::bind(address).unwrap();
        assert_eq!(cluster.check_told("c", address, || true), None);
        assert_eq!(cluster.address_problem("c", None), None);
        // The file has an address of b that is good here.
        assert_eq!(cluster.check_told("b", at("127.0.0.1:1"), || true), None);
    }
}
