//! Addresses of hosts, which these have told the leader, for the others that connect to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Directory, DirectoryError};
use crate::host_address::check_address;
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

    /// Notes the address that a host has told. The present one of the host is never refused: no
    /// other host can take it meanwhile.
    ///
    /// # Errors
    /// [`DirectoryError::BadAddress`], and [`DirectoryError::AddressTaken`] if another host has it.
    pub fn tell_address(&mut self, host: &str, address: SocketAddr) -> Result<(), DirectoryError> {
        if self.address_of(host) == Some(address) {
            return Ok(());
        }
        let bad = |why| DirectoryError::BadAddress {
            host: host.into(),
            address,
            why,
        };
        check_address(address).map_err(bad)?;
        if let Some(other) = self.host_at(address, host) {
            return Err(DirectoryError::AddressTaken {
                host: host.into(),
                address,
                other: other.into(),
            });
        }
        self.set_address(host, Some(address));
        Ok(())
    }

    /// Gives the leader's own host this address, or none. Another host with it loses it.
    pub fn take_address(&mut self, host: &str, address: Option<SocketAddr>) {
        let other = address.and_then(|address| self.host_at(address, host));
        if let Some(other) = other.map(str::to_owned) {
            self.set_address(&other, None);
        }
        self.set_address(host, address);
    }

    /// Another host than `host` with an address.
    fn host_at(&self, address: SocketAddr, host: &str) -> Option<&str> {
        let mut others = self.host_addresses.iter();
        let found = others.find(|(other, its)| **its == address && other.as_str() != host);
        found.map(|(other, _)| other.as_str())
    }

    pub(super) fn set_address(&mut self, host: &str, address: Option<SocketAddr>) {
        if self.address_of(host) == address {
            return;
        }
        let all = Arc::make_mut(&mut self.host_addresses);
        match address {
            Some(address) => all.insert(host.into(), address),
            None => all.remove(host),
        };
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

    #[test]
    fn a_host_has_an_address_of_its_own() {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        directory.set_host_keys("b", vec![PublicKey([2; 32])]);
        let (first, second) = (at("10.0.0.2:7470"), at("10.0.0.3:7470"));
        directory.tell_address("b", first).unwrap();
        let refused = directory.tell_address("c", first).unwrap_err();
        let taken = DirectoryError::AddressTaken {
            host: "c".into(),
            address: first,
            other: "b".into(),
        };
        assert_eq!(refused, taken);
        assert_eq!(directory.address_of("c"), None);
        // Another port is another address.
        directory.tell_address("c", at("10.0.0.2:7471")).unwrap();
        directory.tell_address("c", second).unwrap();
        directory.tell_address("b", second).unwrap_err();
        assert_eq!(directory.address_of("b"), Some(first));
        directory.tell_address("b", first).unwrap();
        directory.remove_host("b", "00").unwrap();
        assert_eq!(directory.address_of("b"), None);
        directory.tell_address("c", first).unwrap();
    }

    #[test]
    fn the_leader_takes_its_own_address_from_others() {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        let address = at("10.0.0.1:7470");
        directory.tell_address("b", address).unwrap();
        directory.take_address("a", Some(address));
        assert_eq!(directory.address_of("a"), Some(address));
        assert_eq!(directory.address_of("b"), None);
        directory.tell_address("b", address).unwrap_err();
        directory.take_address("a", None);
        directory.tell_address("b", address).unwrap();
    }

    #[test]
    fn an_address_that_no_other_host_can_reach_is_refused() {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        for bad in ["0.0.0.0:7470", "[::]:7470", "10.0.0.1:0", "224.0.0.1:7470"] {
            let refused = directory.tell_address("b", at(bad)).unwrap_err();
            assert!(
                matches!(refused, DirectoryError::BadAddress { .. }),
                "{bad}"
            );
        }
        assert!(directory.host_addresses().is_empty());
    }
}
