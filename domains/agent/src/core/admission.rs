//! Hosts of the directory: `toroid host admit`, `remove` and `rotate`.

use std::collections::BTreeSet;
use std::sync::Arc;

use toroid_model::directory::{Directory, Domain};
use toroid_model::host_key::PublicKey;
use toroid_model::hosts::ETCD;
use toroid_model::names::is_host_name;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::Request;

use super::audit::Caller;
use super::changes::publish;
use super::host::Host;
use super::membership::Departure;
use crate::channel::key_pair::KeyPair;
use crate::cluster::Cluster;

impl Host {
    /// Enters the key of a host, which is new or was removed.
    pub(super) fn admit_host(
        &self,
        caller: &Caller,
        host: &str,
        key: PublicKey,
    ) -> Result<(), Refusal> {
        caller.actor.may_administer("admit hosts")?;
        let cluster = self.among_hosts()?;
        if !is_host_name(host) || host == ETCD {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!("\"{host}\" cannot be the name of a host"),
                "name it as `host` in its file does",
            ));
        }
        self.edit(|directory| {
            let exists = |message, remedy| Err(Refusal::new(RefusalKind::Exists, message, remedy));
            match (directory.keys_of(host), directory.host_by_key(&key)) {
                (Some(keys), _) if keys.contains(&key) => Ok(()),
                (_, Some(other)) => exists(
                    format!("that is the key of host {other}"),
                    "see `toroid host ls`".into(),
                ),
                (Some([_, ..]), None) => exists(
                    format!("host {host} is admitted with another key"),
                    format!("remove it first: `toroid host remove {host}`"),
                ),
                (Some([]) | None, None) => {
                    directory.admit_host(host, key)?;
                    Ok(())
                }
            }
        })?;
        cluster.pending.lock().remove(host);
        self.note_others();
        Ok(())
    }

    /// Notes which other hosts there are, and tells the driver.
    pub(crate) fn note_others(&self) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        let others = self.members.directory(|its| cluster.others_in(its));
        cluster.problems.admit(others.iter().map(String::as_str));
        if let Some(driver) = &self.driver {
            driver.set_others(others);
        }
    }

    /// Takes a host out of the directory and ends what it has open here. [`Departure`]s of its
    /// nodes are to be completed, if there are any.
    pub(super) fn remove_host(
        &self,
        caller: &Caller,
        host: &str,
    ) -> Result<Option<Departure>, Refusal> {
        caller.actor.may_administer("remove hosts")?;
        let cluster = self.among_hosts()?;
        if host == cluster.config.host {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!("host {host} holds the directory"),
                "move the directory to another host first: `toroid directory move HOST`",
            ));
        }
        let digest = cluster.secret.digest();
        let (changes, directory) = self
            .members
            .plan(|directory| directory.remove_host(host, &digest))?;
        let departure = if changes.is_empty() {
            self.members.adopt(directory)?;
            None
        } else {
            Some(self.begin_departure(changes, directory)?)
        };
        cluster.pending.lock().remove(host);
        self.cut_removed_hosts();
        Ok(departure)
    }

    /// Ends sessions, tickets, tunnels and commands of all removed hosts.
    pub(crate) fn cut_removed_hosts(&self) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        let removed = self.members.directory(|directory| {
            let hosts = directory.host_keys().keys();
            let removed = hosts.filter(|host| directory.is_removed(host));
            removed.cloned().collect::<Vec<String>>()
        });
        self.note_others();
        for host in &removed {
            cluster.cut(host);
            if let Some(driver) = &self.driver {
                driver.end_tunnel(host);
            }
            self.relays.end_of(host);
            self.gateways.reported().remove(host);
        }
        self.await_driver();
    }

    /// Ends the tunnel of a host that was removed while the tunnel was made.
    pub(crate) fn end_tunnel_if_removed(&self, host: &str) {
        let is_removed = self
            .members
            .directory(|directory| directory.is_removed(host));
        if let (true, Some(driver)) = (is_removed, &self.driver) {
            driver.end_tunnel(host);
        }
    }

    /// Gives this host a new key pair. Both are valid until the connected hosts know the new one.
    pub(super) fn rotate_keys(&self, caller: &Caller) -> Result<(), Refusal> {
        caller.actor.may_administer("give hosts new keys")?;
        let cluster = self.among_hosts()?;
        let Some(_rotation) = cluster.rotation.try_lock() else {
            let message = "the key pair of this host is being changed";
            return Err(Refusal::new(
                RefusalKind::Exists,
                message,
                "see `toroid host ls`",
            ));
        };
        self.check_all_there(cluster)?;
        let failed = |error: std::io::Error| {
            let message = format!("cannot make a key pair: {error}; the old one stays");
            Refusal::new(RefusalKind::Failed, message, "see to that, and try again")
        };
        let former = cluster.keys.lock().public();
        let keys = KeyPair::generate().map_err(failed)?;
        let now_valid = |keys: &[PublicKey]| {
            let keys = keys.to_vec();
            publish(self, caller, &Request::HostRotate { keys }).map(drop)
        };
        now_valid(&[former, keys.public()])?;
        keys.write(&self.data).map_err(|error| {
            // The file may be either one.
            let message = format!("cannot keep the new key pair: {error}; both are valid");
            Refusal::new(
                RefusalKind::Failed,
                message,
                "see to that, and rotate again",
            )
        })?;
        let public = keys.public();
        *cluster.keys.lock() = keys;
        now_valid(&[public]).map_err(|refusal| {
            let message = format!(
                "the new key pair is in use, but the former one is still valid: {}",
                refusal.message
            );
            Refusal::new(refusal.kind, message, "see to that, and rotate again")
        })
    }

    /// Refuses a rotation of the leader's keys without one of its followers: it would not recognize
    /// the leader any more.
    fn check_all_there(&self, cluster: &Cluster) -> Result<(), Refusal> {
        if !cluster.is_leader() {
            return Ok(());
        }
        let directory = self.members.directory(Directory::clone);
        let followers = cluster.followers();
        let admitted = directory
            .host_keys()
            .keys()
            .filter(|host| directory.is_admitted(host));
        let mut away =
            admitted.filter(|host| **host != cluster.config.host && !followers.contains_key(*host));
        match away.next() {
            None => Ok(()),
            Some(host) => Err(Refusal::new(
                RefusalKind::Failed,
                format!("host {host} is away, and would not recognize the new key of its leader"),
                format!("start it, or remove it: `toroid host remove {host}`"),
            )),
        }
    }

    /// Enters the keys that a host has from now on, of which one was valid before.
    pub(super) fn rekey_host(&self, caller: &Caller, keys: &[PublicKey]) -> Result<(), Refusal> {
        caller.actor.may_administer("give hosts new keys")?;
        let cluster = self.among_hosts()?;
        let host = caller.host.as_deref().unwrap_or(&cluster.config.host);
        self.edit(|directory| {
            let is_others = |key| {
                directory
                    .host_by_key(key)
                    .is_some_and(|other| other != host)
            };
            let valid = directory.keys_of(host).unwrap_or_default();
            let is_sound = (1..=2).contains(&keys.len())
                && keys.iter().any(|key| valid.contains(key))
                && !keys.iter().any(is_others);
            if !is_sound {
                let message = format!("these are no keys for host {host}");
                return Err(Refusal::new(
                    RefusalKind::Denied,
                    message,
                    "see `toroid host ls`",
                ));
            }
            directory.set_host_keys(host, keys.to_vec());
            Ok(())
        })
    }

    /// Refuses a sealed domain with members on several hosts, if data between these is not encrypted.
    pub(super) fn check_sealed(
        &self,
        directory: &Directory,
        domain: &Domain,
    ) -> Result<(), Refusal> {
        let hosts = domain.members.keys().map(|node| directory.host_of(*node));
        let hosts: BTreeSet<Option<&str>> = hosts.collect();
        match &self.cluster {
            Some(cluster) if hosts.len() > 1 => cluster.check_sealed(domain),
            _ => Ok(()),
        }
    }

    pub(super) fn among_hosts(&self) -> Result<&Arc<Cluster>, Refusal> {
        let refusal = || {
            Refusal::new(
                RefusalKind::Invalid,
                "this agent knows no other hosts",
                "start it with `toroid up --config` (docs/hosts.md)",
            )
        };
        self.cluster.as_ref().ok_or_else(refusal)
    }
}
