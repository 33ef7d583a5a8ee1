//! Subnets of new domains, as large as the domains need.

use super::{Directory, DirectoryError, Wanted};
use crate::addressing::{self, DEFAULT_CAPACITY, Subnet};

impl Directory {
    /// Members for which a new domain has addresses.
    pub(crate) fn capacity_of(&self, wanted: &Wanted) -> u32 {
        addressing::capacity(self.torus, wanted.members.len(), wanted.capacity)
    }

    /// Whether the nodes of a subnet have indexes of their own: it has no address for each.
    pub(super) fn is_indexed(&self, subnet: Subnet) -> bool {
        subnet.capacity() < self.torus.nodes()
    }

    /// Checks that a subnet has room for so many members, and that no domain has a part of it.
    ///
    /// # Errors
    /// [`DirectoryError::Subnet`], [`DirectoryError::SubnetTaken`].
    pub(super) fn check_subnet(
        &self,
        subnet: Subnet,
        capacity: u32,
    ) -> Result<Subnet, DirectoryError> {
        subnet.check_for(capacity)?;
        match self.domains.overlapping(subnet) {
            None => Ok(subnet),
            Some(other) => Err(DirectoryError::SubnetTaken {
                subnet,
                taken: other.subnet,
                domain: other.name.clone(),
            }),
        }
    }

    /// Chooses a free subnet. The smallest ones come in turn, from the first half of the range as
    /// long as it has some, and larger ones from its end: otherwise a few small ones would soon be
    /// in each part that a large one needs.
    ///
    /// # Errors
    /// [`DirectoryError::Exhausted`].
    pub(super) fn choose_subnet(&mut self, capacity: u32) -> Result<Subnet, DirectoryError> {
        let candidate = |n| Subnet::candidate(capacity, n);
        let is_free = |n: &u32| self.domains.is_free(candidate(*n));
        let exhausted = DirectoryError::Exhausted("subnets");
        let (count, smallest) = (Subnet::candidates(capacity), Subnet::candidates(1));
        if count < smallest {
            let n = (0..count).rev().find(is_free);
            return n.map(candidate).ok_or(exhausted);
        }
        let has_larger = self.torus.nodes() > DEFAULT_CAPACITY;
        let turn = if has_larger { count / 2 } else { count };
        let next = self.next_subnet % turn;
        let mut order = (next..turn).chain(0..next).chain(turn..count);
        let n = order.find(is_free).ok_or(exhausted)?;
        let subnet = candidate(n);
        self.next_subnet = (n + 1) % count;
        Ok(subnet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::sample::wanted;

    fn largest() -> Directory {
        Directory::new("151x31x14".parse().unwrap())
    }

    fn with_room(name: &str, capacity: u32) -> Wanted {
        Wanted {
            capacity: Some(capacity),
            ..wanted(name, &[0])
        }
    }

    /// The largest torus once had 64 domains.
    #[test]
    fn the_largest_torus_has_8192_small_domains_beside_32_of_all_nodes() {
        let mut directory = largest();
        for n in 0..8192 {
            directory
                .create(wanted(&format!("small{n}"), &[n]))
                .unwrap();
        }
        for n in 0..32 {
            directory
                .create(with_room(&format!("large{n}"), 65_534))
                .unwrap();
        }
        for capacity in [1, 255, 65_534] {
            let error = directory.create(with_room("more", capacity)).unwrap_err();
            assert_eq!(error, DirectoryError::Exhausted("subnets"));
        }
        assert_eq!(directory.domain("large0").unwrap().capacity(), None);
    }

    /// Small domains that come and go leave room for large ones, although each subnet is reused
    /// late.
    #[test]
    fn short_lived_small_domains_leave_room_for_large_ones() {
        let mut directory = largest();
        for n in 0..10_000 {
            directory.create(wanted(&format!("d{n}"), &[0])).unwrap();
            if n % 100 != 0 {
                directory.remove(&format!("d{n}")).unwrap();
            }
        }
        for n in 0..32 {
            directory
                .create(with_room(&format!("large{n}"), 65_534))
                .unwrap();
        }
    }

    #[test]
    fn a_chosen_subnet_has_room_for_254_members_unless_fewer_are_wanted() {
        let mut directory = largest();
        let with = |subnet: &str, capacity| Wanted {
            subnet: Some(subnet.parse().unwrap()),
            capacity,
            ..wanted("blue", &[0, 65_533])
        };
        for (subnet, capacity, needed) in [
            ("10.1.0.0/25", None, 254),
            ("10.1.0.0/29", Some(7), 7),
            ("10.1.0.0/30", Some(3), 3),
        ] {
            let error = directory.create(with(subnet, capacity)).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(&format!("too small for {needed} nodes")),
                "{text}"
            );
        }
        let domain = directory
            .create(with("10.1.0.0/30", Some(2)))
            .unwrap()
            .domain;
        assert_eq!(domain.capacity(), Some(2));
    }

    /// The search does not look at each domain.
    #[test]
    fn a_subnet_is_free_when_no_domain_has_an_address_of_it() {
        let mut directory = Directory::new("4x1x1".parse().unwrap());
        let subnets = [
            "10.64.0.0/29",
            "10.64.0.128/25",
            "10.64.2.0/23",
            "10.127.255.0/24",
            "192.168.0.0/16",
            "10.96.0.0/11",
            "10.0.0.0/8",
        ];
        let check = |directory: &Directory| {
            for capacity in [1, 300, 65_534] {
                for n in 0..Subnet::candidates(capacity) {
                    let subnet = Subnet::candidate(capacity, n);
                    let is_free = directory.domains.overlapping(subnet).is_none();
                    assert_eq!(directory.domains.is_free(subnet), is_free, "{subnet}");
                }
            }
        };
        let mut taken = 0;
        for keeps in [0b0111, 0b0101, 0b0010, 0b1111, 0] {
            for (n, subnet) in subnets.iter().enumerate() {
                let subnet = Some(subnet.parse().unwrap());
                let wanted = Wanted {
                    subnet,
                    ..wanted(&format!("d{n}"), &[0])
                };
                taken += u32::from(directory.create(wanted).is_ok());
                check(&directory);
            }
            for n in (0..subnets.len()).filter(|n| keeps >> n & 1 == 0) {
                let _ = directory.remove(&format!("d{n}"));
                check(&directory);
            }
        }
        assert!(taken > 10, "{taken}");
    }
}
