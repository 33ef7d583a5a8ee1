//! Rates of members.

use std::collections::BTreeSet;

use toroid_fabric::NodeId;

use super::{Directory, DirectoryError, Domain, members_with};
use crate::link::Rate;
use crate::nodeset::NodeSetError;

impl Directory {
    /// Gives members a rate, or lifts it.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], [`NodeSetError::Empty`], and
    /// [`DirectoryError::NotMembers`] with those that are none.
    pub fn set_rate(
        &mut self,
        name: &str,
        nodes: &BTreeSet<NodeId>,
        rate: Option<Rate>,
    ) -> Result<Domain, DirectoryError> {
        let others = nodes - &self.domain(name)?.nodes();
        if nodes.is_empty() {
            return Err(NodeSetError::Empty.into());
        }
        if !others.is_empty() {
            return Err(DirectoryError::NotMembers {
                domain: name.into(),
                nodes: self.places(&others),
            });
        }
        self.change(name, |domain| {
            for node in nodes {
                if let Some(spec) = domain.members.get_mut(node) {
                    spec.rate = rate;
                }
            }
        })
    }

    /// Checks that those of some nodes that are members of a domain have this rate.
    pub(super) fn check_rate(
        &self,
        domain: &Domain,
        nodes: &BTreeSet<NodeId>,
        rate: Rate,
    ) -> Result<(), DirectoryError> {
        let others = members_with(&domain.members, |present| present.rate != Some(rate));
        let others = &others & nodes;
        if others.is_empty() {
            return Ok(());
        }
        Err(DirectoryError::OtherRate {
            domain: domain.name.clone(),
            nodes: self.places(&others),
            rate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::MemberSpec;
    use crate::directory::sample::{nodes, wanted};
    use crate::directory::transition::Transition;

    const SLOW: Option<Rate> = Some(Rate(8_000));

    fn directory() -> Directory {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        directory.create(wanted("blue", &[0, 1])).unwrap();
        directory
    }

    fn admit(directory: &mut Directory, numbers: &[u32], rate: Option<Rate>) -> Result<(), String> {
        let spec = MemberSpec {
            rate,
            ..MemberSpec::default()
        };
        let admitted = directory.admit("blue", &nodes(numbers), spec);
        admitted.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn only_members_have_a_rate() {
        let mut directory = directory();
        let error = directory.set_rate("blue", &nodes(&[1, 2]), SLOW);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("0,1,0") && !error.contains("1,0,0"),
            "{error}"
        );
        assert_eq!(directory.domain("blue").unwrap().spec(NodeId(1)).rate, None);
        let error = directory.set_rate("blue", &nodes(&[]), SLOW).unwrap_err();
        assert_eq!(error.to_string(), "no node is given");
        directory.set_rate("red", &nodes(&[1]), SLOW).unwrap_err();
        directory.set_rate("blue", &nodes(&[1]), SLOW).unwrap();
        assert_eq!(directory.domain("blue").unwrap().spec(NodeId(1)).rate, SLOW);
    }

    #[test]
    fn growth_changes_no_present_rate() {
        let mut directory = directory();
        let error = admit(&mut directory, &[1, 2], SLOW).unwrap_err();
        assert!(error.contains("1,0,0 are members"), "{error}");
        admit(&mut directory, &[2], SLOW).unwrap();
        // A repetition, and one without a wish.
        admit(&mut directory, &[2], SLOW).unwrap();
        admit(&mut directory, &[1, 2, 3], None).unwrap();
        let rates = directory.domain("blue").unwrap().members.values();
        let rates: Vec<_> = rates.map(|spec| spec.rate).collect();
        assert_eq!(rates, [None, None, SLOW, None]);
    }

    /// A member whose rate changes has not left.
    #[test]
    fn a_copy_that_missed_a_rate_has_to_take_it_over() {
        let old = directory();
        let mut new = old.clone();
        new.set_rate("blue", &nodes(&[1]), SLOW).unwrap();
        for (old, new) in [(&old, &new), (&new, &old)] {
            let transition = Transition::between(old, new).unwrap();
            assert!(transition.leaving.is_empty() && transition.joining.is_empty());
            assert_eq!(transition.altered, [new.domain("blue").unwrap().clone()]);
            assert_eq!(transition.meanwhile.records(), new.records());
        }
    }
}
