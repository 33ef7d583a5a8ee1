//! Admission of hosts by their keys.
//!
//! The directory has the keys of the admitted hosts. A host with one of them needs no more. A new
//! host must prove the pre-shared key to the leader, and the leader to the host; from then on each
//! knows the other by its public key, and the pre-shared key is of no use in that name.

use std::collections::BTreeSet;
use std::time::Instant;

use toroid_model::directory::{Directory, Domain};
use toroid_model::host_key::PublicKey;
use toroid_model::hosts::{Admission, Provider, unencrypted};
use toroid_model::info::{HostAdmission, HostInfo};
use toroid_model::refusal::{Refusal, RefusalKind};

use super::Cluster;
use crate::channel::SessionError;
use crate::channel::handshake::Peer;

/// Most hosts that are shown to wait for admission.
pub(super) const MAX_PENDING: usize = 256;

/// Result of a check of a connecting host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The directory has its key.
    Admitted,
    /// The leader may enter its key.
    New,
}

/// Checks the accepting side of a session. `known` are its keys in the directory. A host without a
/// directory believes a leader that has the pre-shared key.
pub(crate) fn check_dialled(
    peer: &Peer,
    known: Option<&[PublicKey]>,
    is_leader: bool,
) -> Result<(), SessionError> {
    match known {
        Some(keys) if keys.contains(&peer.key) => Ok(()),
        Some([]) => Err(SessionError::NotAdmitted),
        Some(_) => Err(SessionError::OtherKey(peer.key)),
        None if !peer.has_secret => Err(SessionError::WrongKey),
        None if is_leader => Ok(()),
        None => Err(SessionError::NotAdmitted),
    }
}

/// Checks the connecting side of a session, before any message of it is read. The pre-shared key
/// helps at the leader alone, which admits: on other hosts it may be one that a removed host had.
pub(crate) fn check_stranger(
    directory: &Directory,
    peer: &Peer,
    is_leader: bool,
) -> Result<(), SessionError> {
    if is_leader && peer.has_secret || directory.host_by_key(&peer.key).is_some() {
        Ok(())
    } else {
        Err(SessionError::WrongKey)
    }
}

/// Checks the name that the connecting side has said. `by_key` tells whether the pre-shared key
/// admits new hosts.
pub(crate) fn check_name(
    directory: &Directory,
    peer: &Peer,
    host: &str,
    by_key: bool,
) -> Result<Entry, Refusal> {
    let key = peer.key;
    let owner = directory.host_by_key(&key);
    let (message, remedy) = match directory.keys_of(host) {
        Some(keys) if keys.contains(&key) => return Ok(Entry::Admitted),
        _ if owner.is_some() => (
            format!(
                "host {host} shows the key of host {}",
                owner.unwrap_or_default()
            ),
            "a copy of another host's data directory: remove its file `host.key`, and start it \
             again"
                .into(),
        ),
        Some([]) => (
            format!("host {host} was removed"),
            format!("to admit it again: `toroid host admit {host} {key}`"),
        ),
        Some(_) => (
            format!("host {host} shows another key than the host that was admitted as {host}"),
            format!(
                "if that host is new or has lost its data: `toroid host remove {host}`, then \
                 `toroid host admit {host} {key}`; otherwise give it another name"
            ),
        ),
        None if by_key && peer.has_secret => return Ok(Entry::New),
        None => (
            format!("host {host} is not admitted yet"),
            format!("`toroid host admit {host} {key}`"),
        ),
    };
    Err(Refusal::new(RefusalKind::Denied, message, remedy))
}

impl Cluster {
    /// Whether the pre-shared key admits new hosts: not if a removed host had it.
    fn admits_by_key(&self, directory: &Directory) -> bool {
        let digest = self.secret.digest();
        self.config.admission == Admission::Key && directory.spent_secret() != Some(&digest)
    }

    /// Checks the name that the connecting side has said, and notes the key of a host that waits
    /// for admission.
    pub(crate) fn check_name(
        &self,
        directory: &Directory,
        peer: &Peer,
        host: &str,
    ) -> Result<Entry, Refusal> {
        let checked = check_name(directory, peer, host, self.admits_by_key(directory));
        let mut pending = self.pending.lock();
        match checked {
            Ok(_) => pending.remove(host),
            Err(_)
                if !directory.is_admitted(host) && directory.host_by_key(&peer.key).is_none() =>
            {
                pending.note(host, peer.key, Instant::now());
            }
            Err(_) => {}
        }
        checked
    }

    /// Refuses a sealed domain, if data between hosts is not encrypted.
    pub(crate) fn check_sealed(&self, domain: &Domain) -> Result<(), Refusal> {
        let why = unencrypted(self.config.provider, self.config.encryption);
        match why.filter(|_| domain.sealed) {
            None => Ok(()),
            Some(why) => Err(Refusal::new(
                RefusalKind::Denied,
                format!("domain {} is sealed, and this host has {why}", domain.name),
                "let its members be on one host, change the files of all hosts, or `toroid domain \
                 set --sealed false`",
            )),
        }
    }

    /// Refuses a fence where RDMA devices reach memory of other hosts without their processes.
    pub(crate) fn check_fence(&self, domain: &Domain) -> Result<(), Refusal> {
        if domain.fence.is_none() || self.config.provider != Provider::Verbs {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalKind::Invalid,
            format!(
                "domain {} cannot have a fence: this host has provider = \"verbs\", and RDMA devices \
                 do not stop with their members",
                domain.name
            ),
            "leave the fence out, or use provider = \"tcp\" in the files of all hosts",
        ))
    }

    /// The other admitted hosts.
    pub(crate) fn others_in(&self, directory: &Directory) -> BTreeSet<String> {
        let others = directory
            .admitted()
            .filter(|host| *host != self.config.host);
        others.map(str::to_owned).collect()
    }

    /// Adds to a description whether the host is admitted, and its key.
    pub(crate) fn describe_admission(&self, directory: &Directory, host: HostInfo) -> HostInfo {
        let now = Instant::now();
        let pending = self.pending.lock().of(&host.name, now).copied();
        let own = (host.name == self.config.host).then(|| self.keys.lock().public());
        let keys = directory.keys_of(&host.name);
        let (admission, key) = match keys {
            Some([.., newest]) => (HostAdmission::Admitted, Some(*newest)),
            _ if pending.is_some() => (HostAdmission::Pending, pending),
            Some(_) => (HostAdmission::Removed, None),
            None => (HostAdmission::New, None),
        };
        HostInfo {
            admission,
            key: own.or(key),
            ..host
        }
    }

    /// Ends what a host has open here, except for connections of its nodes.
    pub(crate) fn cut(&self, host: &str) {
        let follower = self.followers().get(host).cloned();
        let peer = self.peers().remove(host);
        let incoming = self.incoming.lock().clone();
        let incoming = incoming.into_iter().filter(|link| link.host == host);
        // No lock is held, because the end of a session takes them.
        for link in follower.into_iter().chain(peer).chain(incoming) {
            link.end();
        }
        self.tickets.revoke(host);
        self.addresses.forget(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(key: u8, has_secret: bool) -> Peer {
        let key = PublicKey([key; 32]);
        Peer { key, has_secret }
    }

    fn directory() -> Directory {
        let mut directory = Directory::new("2x2x1".parse().unwrap());
        directory.set_host_keys("a", vec![PublicKey([1; 32])]);
        directory.set_host_keys("b", vec![PublicKey([2; 32]), PublicKey([3; 32])]);
        directory.set_host_keys("c", Vec::new());
        directory
    }

    #[test]
    fn an_admitted_host_needs_its_key_alone_and_nobody_else_gets_its_name() {
        let directory = directory();
        let name = |peer: Peer, host| check_name(&directory, &peer, host, true);
        for key in [2, 3] {
            assert_eq!(name(peer(key, false), "b"), Ok(Entry::Admitted));
            check_stranger(&directory, &peer(key, false), false).unwrap();
        }
        let refused = [
            (peer(4, true), "b", "another key than", "admit b 0404"),
            (peer(1, true), "b", "key of host a", "host.key"),
            (peer(1, true), "d", "key of host a", "host.key"),
            (peer(4, true), "c", "c was removed", "admit c 0404"),
            (peer(4, false), "d", "not admitted", "admit d 0404"),
        ];
        for (peer, host, message, remedy) in refused {
            let refusal = name(peer, host).unwrap_err();
            assert!(refusal.message.contains(message), "{refusal}");
            assert!(refusal.remedy.contains(remedy), "{refusal}");
        }
        check_stranger(&directory, &peer(4, true), true).unwrap();
        check_stranger(&directory, &peer(4, true), false).unwrap_err();
        check_stranger(&directory, &peer(4, false), true).unwrap_err();
    }

    #[test]
    fn a_new_host_is_admitted_by_the_pre_shared_key_unless_by_hand() {
        let directory = directory();
        let new =
            |has_secret, by_key| check_name(&directory, &peer(4, has_secret), "d", by_key).is_ok();
        assert!(new(true, true));
        assert!(!new(true, false) && !new(false, true));
    }

    #[test]
    fn a_leader_is_believed_by_its_key_or_at_first_by_the_pre_shared_one() {
        let keys = [PublicKey([1; 32])];
        check_dialled(&peer(1, false), Some(&keys), true).unwrap();
        check_dialled(&peer(1, true), None, true).unwrap();
        let refused = [
            (peer(4, true), Some(&keys[..]), true, "other key"),
            (peer(4, true), Some(&[]), true, "not admitted"),
            (peer(1, false), None, true, "wrong key"),
            (peer(1, true), None, false, "not admitted"),
        ];
        for (peer, known, is_leader, kind) in refused {
            let error = check_dialled(&peer, known, is_leader).unwrap_err();
            assert_eq!(error.kind(), kind);
        }
    }
}
