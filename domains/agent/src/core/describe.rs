//! Descriptions of the host, its nodes and its domains for clients.

use std::collections::{BTreeMap, BTreeSet};

use toroid_fabric::NodeId;
use toroid_model::addressing::{ipv6, mac, mac_text};
use toroid_model::directory::{Directory, Domain, MemberSpec};
use toroid_model::info::{DomainInfo, HostInfo, MemberDrops, MemberInfo, NodeInfo, Status};
use toroid_model::placement::Figures;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;

use super::host::Host;
use crate::net::driver::Drops;
use crate::nodes::HostedNode;
use crate::proxy::supervisor::ProxySupervisor;

impl Host {
    /// State of the agent, with the sums that concern the actor.
    pub(crate) fn status(&self, actor: Actor) -> Status {
        let directory = self.members.directory(Directory::clone);
        let concerns = |node| match actor {
            Actor::Administrator(_) => true,
            Actor::User(uid) => directory.owner_of(node) == Some(uid),
            Actor::Node(only) => node == only,
        };
        // The target proxy attaches for nodes of other hosts, and is no process of a node.
        let its = |node| self.node(node).is_some() && concerns(node);
        let (attached, registered_bytes) = self.members.totals(its);
        let moving_bytes = self.members.migrating_bytes(its);
        let compacting_bytes = self.members.compactor.due_bytes(its);
        let domains = directory.domains().filter(|d| actor.sees(&directory, d));
        let driver = self.driver.as_ref().map(|driver| driver.status());
        let (driver_pid, driver_restarts) = driver.unwrap_or_default();
        let candidacy = self.cluster.as_ref().and_then(|c| c.candidacy.as_ref());
        let (etcd, etcd_problem) = candidacy.map(|its| its.describe()).unzip();
        Status {
            pid: std::process::id(),
            state: self.state.display().to_string(),
            data: self.data.display().to_string(),
            torus: self.torus,
            nodes: self.nodes.len() as u32,
            hosts: self.describe_hosts(),
            etcd,
            etcd_problem: etcd_problem.flatten(),
            // Its steps would tell others how often domains change.
            revision: directory
                .revision()
                .filter(|_| self.cluster.is_some() && matches!(actor, Actor::Administrator(_))),
            moved: self.cluster.as_ref().and_then(|c| c.describe_move()),
            between_hosts: self.cluster.as_ref().map(|c| c.config.provider),
            encryption: self.cluster.as_ref().map(|c| c.config.encryption),
            cipher: self
                .cluster
                .as_ref()
                .and_then(|c| c.cipher())
                .map(|c| c.to_string()),
            rdma: self.rdma(),
            domains: domains.count() as u32,
            provider: "shm".into(),
            fabric: self.emulation.fabric.as_ref().map(|its| its.name.clone()),
            ethernet: match &self.driver {
                None => "none",
                Some(_) if self.interfaces.stacks => "stack",
                Some(_) => "tap",
            }
            .into(),
            no_taps: self.no_taps.clone(),
            limits: self.limits,
            no_limits: self.no_limits.clone(),
            rootless: self.identity.rootless,
            private_users: self.users.is_some(),
            offload: match &self.driver {
                Some(driver) if self.interfaces.offload => driver.offload(),
                _ => Vec::new(),
            },
            without_kernel: self.without_kernel(),
            driver_pid,
            driver_restarts,
            adapter_pid: self.proxy.as_deref().and_then(ProxySupervisor::pid),
            attached: attached as u32,
            registered_bytes,
            moving_bytes,
            compacting_bytes,
        }
    }

    fn describe_hosts(&self) -> Vec<HostInfo> {
        let directory = self.members.directory(Directory::clone);
        let hosts = self.cluster.iter().flat_map(|cluster| {
            let hosts = cluster.describe(&directory).into_iter();
            hosts.map(|host| cluster.describe_admission(&directory, host))
        });
        let Some(driver) = &self.driver else {
            return hosts.collect();
        };
        let has_rdma = self.rdma().is_some();
        let by_rdma = has_rdma.then(|| driver.frames_by_rdma()).flatten();
        hosts
            .map(|host| HostInfo {
                frames: driver.has_tunnel(&host.name),
                frames_over: driver.tunnel_provider(&host.name),
                frames_by_rdma: by_rdma
                    .as_ref()
                    .and_then(|all| all.get(&host.name))
                    .copied(),
                ..host
            })
            .collect()
    }

    /// All nodes, each with the details that the actor may see.
    pub(crate) fn list_nodes(&self, actor: Actor) -> Vec<NodeInfo> {
        let describe = |id: NodeId| {
            // Asked before the lock is taken: a node that does not answer must not hold up the
            // directory.
            let pid = self.node(id).map(HostedNode::pid);
            let place = self.torus.place(id)?;
            self.members.directory(|directory| {
                let knows = actor.knows(directory, id);
                let owner = directory.owner_of(id);
                Some(NodeInfo {
                    id: id.0,
                    place,
                    host: directory.host_of(id).map(Into::into),
                    aliases: directory
                        .aliases_of(id)
                        .filter(|_| knows)
                        .map(Into::into)
                        .collect(),
                    owner: Some(owner.unwrap_or(self.identity.uid))
                        .filter(|_| knows || owner.is_none()),
                    allocated: owner.is_some(),
                    free: directory.is_free(id),
                    domains: directory
                        .domains_of(id)
                        .filter(|domain| actor.sees(directory, domain))
                        .map(|domain| domain.name.clone())
                        .collect(),
                    consents: directory
                        .consents_of(id)
                        .filter(|name| {
                            directory
                                .domain(name)
                                .is_ok_and(|d| actor.sees(directory, d))
                        })
                        .map(Into::into)
                        .collect(),
                    pid: pid.filter(|_| actor.has(directory, id)),
                })
            })
        };
        let all = (0..self.torus.nodes()).map(NodeId);
        all.filter_map(describe).collect()
    }

    /// Counts of dropped frames of a domain's members: of all for an actor that may own the domain,
    /// otherwise of the actor's own nodes.
    pub(crate) fn drops(&self, actor: Actor, name: &str) -> Result<Vec<MemberDrops>, Refusal> {
        let directory = self.members.directory(Directory::clone);
        let domain = actor.named(&directory, name)?;
        let driver = self.driver.as_ref().ok_or_else(|| {
            let message = "the agent runs without Ethernet, so it drops no frames";
            Refusal::new(
                RefusalKind::Invalid,
                message,
                "start it without --no-ethernet",
            )
        })?;
        let owns = actor.may_own(&directory, domain).is_ok();
        let sees = |node: NodeId| match actor {
            Actor::Node(own) => own == node,
            _ => {
                owns || actor
                    .uid()
                    .is_some_and(|uid| directory.owner_of(node) == Some(uid))
            }
        };
        let Drops { ports, hosts } = driver.drops(domain.id.into()).map_err(|error| {
            Refusal::new(RefusalKind::Failed, error.to_string(), "ask once more")
        })?;
        let seen = ports.into_iter().filter(|port| sees(NodeId(port.node)));
        let mut drops: Vec<_> = seen
            .filter_map(|port| {
                Some(MemberDrops {
                    node: Some(self.torus.place(NodeId(port.node))?),
                    host: None,
                    outside: port.outside,
                    dropped: port.dropped,
                })
            })
            .collect();
        drops.sort_by_key(|member| member.node.and_then(|place| self.torus.node(place)));
        let of_host = |(host, dropped)| MemberDrops {
            node: None,
            host: Some(host),
            outside: false,
            dropped,
        };
        drops.extend(hosts.into_iter().filter(|_| owns).map(of_host));
        Ok(drops)
    }

    pub(crate) fn places(&self, nodes: &BTreeSet<NodeId>) -> Vec<String> {
        let places = nodes.iter().filter_map(|node| self.torus.place(*node));
        places.map(|place| place.to_string()).collect()
    }

    /// The hosts of nodes, where there are several.
    fn hosts_of(&self, nodes: &BTreeSet<NodeId>) -> BTreeMap<NodeId, String> {
        let named = |directory: &Directory, node: NodeId| {
            let host = directory.host_of(node)?;
            Some((node, host.to_owned()))
        };
        self.members
            .directory(|directory| nodes.iter().filter_map(|n| named(directory, *n)).collect())
    }

    /// Describes a domain for clients.
    pub(crate) fn describe(&self, domain: &Domain) -> DomainInfo {
        let has_interface =
            |id: &NodeId| self.driver.is_some() && !self.interfaces.is_stack(domain, *id);
        let gateways = self.describe_gateways(domain);
        let mut hosts = self.hosts_of(&domain.nodes());
        let member = |(id, spec): (&NodeId, &MemberSpec)| {
            let place = self.torus.place(*id)?;
            Some(MemberInfo {
                node: place,
                host: hosts.remove(id),
                limited: spec.limited,
                plain: spec.no_offload,
                stack: spec.userspace_stack,
                rate: spec.rate,
                ifname: has_interface(id).then(|| domain.name.clone()),
                mac: mac_text(mac(domain.id, place)),
                ipv4: domain.address(*id)?,
                ipv6: ipv6(domain.id, place),
            })
        };
        DomainInfo {
            name: domain.name.clone(),
            id: domain.id.into(),
            epoch: domain.epoch,
            owner: domain.owner,
            mtu: domain.mtu,
            subnet: domain.subnet.to_string(),
            capacity: domain.capacity(),
            public: domain.public,
            managers: self.places(&domain.managers),
            forward: domain.forward,
            sealed: domain.sealed,
            fence: domain.fence.map(|fence| fence.seconds),
            ethernet: domain.ethernet,
            without_kernel: domain
                .without_kernel()
                .map(Into::into)
                .or_else(|| self.without_kernel()),
            fence_pending: domain.fence.is_some_and(|fence| !fence.is_agreed()),
            cut_off: Vec::new(),
            gateway: gateways.first().cloned(),
            gateways,
            links: domain.links.renamed(|node| self.torus.place(node)),
            figures: Figures::of(self.torus, &domain.nodes()),
            members: domain.members.iter().filter_map(member).collect(),
        }
    }
}
