//! Fences: hosts that hear nothing stop the members of a domain by themselves.

use serde::{Deserialize, Serialize};

use super::{Directory, DirectoryError, Domain};

/// Shortest fence, in seconds: some renewals of a lease fit into it.
pub const MIN_FENCE: u32 = 2;

/// Longest fence, in seconds: callers wait for it.
pub const MAX_FENCE: u32 = 120;

/// Fence of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// Length of the hosts' leases, in seconds.
    pub seconds: u32,
    /// The longest lease that a host with members may have, in seconds. Absent until all of them
    /// have the first fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreed: Option<u32>,
    /// Number of changes of the length.
    pub changes: u32,
}

impl Fence {
    /// The first fence of a domain.
    pub(super) fn first(seconds: u32) -> Self {
        Fence {
            seconds,
            agreed: None,
            changes: 0,
        }
    }

    /// The fence after a change of the length. A longer one holds where a shorter one did.
    fn changed(before: Option<Fence>, seconds: u32) -> Self {
        let Some(before) = before else {
            return Fence::first(seconds);
        };
        if before.seconds == seconds {
            return before;
        }
        Fence {
            seconds,
            agreed: before.agreed.map(|agreed| agreed.max(seconds)),
            changes: before.changes.wrapping_add(1),
        }
    }

    /// Whether no host may have a longer lease.
    pub fn is_agreed(&self) -> bool {
        self.agreed == Some(self.seconds)
    }

    /// Checks the length.
    pub(in crate::directory) fn check(seconds: u32) -> Result<(), DirectoryError> {
        if (MIN_FENCE..=MAX_FENCE).contains(&seconds) {
            Ok(())
        } else {
            Err(DirectoryError::BadFence(seconds))
        }
    }
}

impl Directory {
    /// Fences a domain, or ends that with `None`.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], [`DirectoryError::BadFence`].
    pub fn fence(&mut self, name: &str, seconds: Option<u32>) -> Result<Domain, DirectoryError> {
        seconds.map_or(Ok(()), Fence::check)?;
        self.change(name, |domain| {
            domain.fence = seconds.map(|seconds| Fence::changed(domain.fence, seconds));
        })
    }

    /// Notes that all hosts with members of a domain have this fence, unless fence or members have
    /// changed meanwhile.
    pub fn agree_on_fence(&mut self, agreed: &Domain) {
        let is_same = |present: &&Domain| {
            let key = |domain: &Domain| (domain.id, domain.epoch, domain.fence);
            key(present) == key(agreed) && present.members == agreed.members
        };
        if self
            .domain(&agreed.name)
            .ok()
            .is_some_and(|its| is_same(&its))
        {
            let agree = |domain: &mut Domain| {
                if let Some(fence) = &mut domain.fence {
                    fence.agreed = Some(fence.seconds);
                }
            };
            // It is there.
            let _ = self.change(&agreed.name, agree);
        }
    }

    /// Domains with a fence.
    pub fn fenced_domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.fenced()
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::NodeId;

    use super::*;
    use crate::directory::sample::wanted;

    fn directory() -> Directory {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        directory.create(wanted("blue", &[0])).unwrap();
        directory
    }

    fn agreed(directory: &Directory) -> Option<u32> {
        directory.domain("blue").unwrap().fence.unwrap().agreed
    }

    #[test]
    fn a_fence_counts_once_all_hosts_have_none_longer() {
        let mut directory = directory();
        let first = directory.fence("blue", Some(10)).unwrap();
        assert_eq!(agreed(&directory), None);
        directory.agree_on_fence(&first);
        assert_eq!(agreed(&directory), Some(10));
        directory.fence("blue", Some(20)).unwrap();
        assert_eq!(agreed(&directory), Some(20));
        let shorter = directory.fence("blue", Some(5)).unwrap();
        assert_eq!(agreed(&directory), Some(20));
        // Repeated, because some host was away.
        assert_eq!(directory.fence("blue", Some(5)).unwrap(), shorter);
        directory.agree_on_fence(&shorter);
        assert_eq!(agreed(&directory), Some(5));
        let records = directory.records();
        let copy = Directory::from_records(&records).unwrap();
        assert_eq!(copy.records(), records);
        directory.fence("blue", None).unwrap();
        assert_eq!(directory.domain("blue").unwrap().fence, None);
    }

    /// Some hosts may have had the fence in between, or have got a member.
    #[test]
    fn an_agreement_on_an_earlier_fence_counts_no_more() {
        let mut directory = directory();
        let early = directory.fence("blue", Some(5)).unwrap();
        directory.grow("blue", &[NodeId(1)].into()).unwrap();
        directory.agree_on_fence(&early);
        assert_eq!(agreed(&directory), None);
        let early = directory.fence("blue", Some(5)).unwrap();
        directory.fence("blue", Some(50)).unwrap();
        directory.fence("blue", Some(5)).unwrap();
        directory.agree_on_fence(&early);
        assert_eq!(agreed(&directory), None);
    }

    #[test]
    fn a_fence_has_a_sensible_length() {
        for wrong in [0, MIN_FENCE - 1, MAX_FENCE + 1] {
            let error = directory().fence("blue", Some(wrong)).unwrap_err();
            assert_eq!(error, DirectoryError::BadFence(wrong));
        }
    }
}
