//! Addresses of hosts, which these have told the leader, for the others that connect to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Directory, DirectoryError};
use crate::host_address::{canonical, check_address};
use crate::names::is_host_name;

impl Directory {
    /// Address of each host that has told one.
    pub fn host_addresses(&self) -> &BTreeMap<String, SocketAddr> {
        &self.host_addresses
    }

    /// Address at which a host's agent is reached, if the host has told one.
    pub fn address_of(&self, host: &str) -> Option<SocketAddr> {
        self.host_addresses.get(host).copied()
    }

    /// Notes the address that a host has told. Another host may have it, too: which of the two is
    /// there is known by its key.
    ///
    /// # Errors
    /// [`DirectoryError::BadAddress`]. The present address of the host is never refused.
    pub fn tell_address(&mut self, host: &str, address: SocketAddr) -> Result<(), DirectoryError> {
        let address = canonical(address);
        if self.address_of(host) == Some(address) {
            return Ok(());
        }
        let bad = |why| DirectoryError::BadAddress {
            host: host.into(),
            address,
            why,
        };
        check_address(address).map_err(bad)?;
        self.set_address(host, Some(address));
        Ok(())
    }

    /// Gives a host this address, or none.
    pub fn set_address(&mut self, host: &str, address: Option<SocketAddr>) {
        if self.address_of(host) == address {
            return;
        }
        let all = Arc::make_mut(&mut self.host_addresses);
        match address {
            Some(address) => all.insert(host.into(), address),
            None => all.remove(host),
        };
    }

    /// Hosts with the address of another one, each with the first such other.
    pub fn hosts_at_one_address(&self) -> BTreeMap<&str, &str> {
        let mut all: BTreeMap<SocketAddr, Vec<&str>> = BTreeMap::new();
        for (host, address) in self.host_addresses() {
            all.entry(*address).or_default().push(host);
        }
        let mut double = BTreeMap::new();
        for hosts in all.into_values().filter(|hosts| hosts.len() > 1) {
            double.extend(hosts.iter().map(|host| (*host, hosts[0])));
            double.insert(hosts[0], hosts[1]);
        }
        double
    }

    pub(super) fn restore_address(
        &mut self,
        host: &str,
        address: SocketAddr,
    ) -> Result<(), &'static str> {
        if !is_host_name(host) {
            return Err("names no host");
        }
        self.set_address(host, Some(address));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_key::PublicKey;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Two hosts that had exchanged their addresses once shut each other out.
    #[test]
    fn hosts_exchange_addresses_and_a_double_one_is_known() {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        directory.set_host_keys("b", vec![PublicKey([2; 32])]);
        let (first, second) = (at("10.0.0.2:7470"), at("10.0.0.3:7470"));
        directory.tell_address("b", first).unwrap();
        directory.tell_address("c", second).unwrap();
        // Another port is another address.
        directory.tell_address("d", at("10.0.0.2:7471")).unwrap();
        assert!(directory.hosts_at_one_address().is_empty());
        directory.tell_address("b", second).unwrap();
        let double = [("b", "c"), ("c", "b")];
        assert_eq!(directory.hosts_at_one_address(), double.into());
        directory.tell_address("d", second).unwrap();
        let triple = [("b", "c"), ("c", "b"), ("d", "b")];
        assert_eq!(directory.hosts_at_one_address(), triple.into());
        directory.tell_address("c", first).unwrap();
        assert_eq!(directory.address_of("b"), Some(second));
        directory.remove_host("b", "00").unwrap();
        assert_eq!(directory.address_of("b"), None);
        assert!(directory.hosts_at_one_address().is_empty());
    }

    #[test]
    fn an_address_that_no_other_host_can_reach_is_refused() {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        let bad = [
            "0.0.0.0:7470",
            "[::]:7470",
            "10.0.0.1:0",
            "224.0.0.1:7470",
            "[fe80::1]:7470",
            "[fe80::1%2]:7470",
        ];
        for bad in bad {
            let refused = directory.tell_address("b", at(bad)).unwrap_err();
            assert!(
                matches!(refused, DirectoryError::BadAddress { .. }),
                "{bad}"
            );
        }
        assert!(directory.host_addresses().is_empty());
    }

    /// One address in two forms once seemed to be two.
    #[test]
    fn an_address_has_one_form() {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        let mut tell = |host, address| directory.tell_address(host, at(address)).unwrap();
        tell("b", "[::ffff:10.0.0.2]:7470");
        tell("c", "[fd00::1%2]:7470");
        tell("d", "10.0.0.2:7470");
        assert_eq!(directory.address_of("b"), Some(at("10.0.0.2:7470")));
        assert_eq!(directory.address_of("c"), Some(at("[fd00::1]:7470")));
        assert_eq!(directory.hosts_at_one_address()["d"], "b");
    }
}
