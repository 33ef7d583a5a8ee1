//! Queries that each host answers for itself, such as counts of dropped frames: the answers of all
//! hosts together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use toroid_fabric::Place;
use toroid_model::directory::Directory;
use toroid_model::info::{MemberDrops, QuotaInfo, ShrinkNeeds};
use toroid_model::quota::Resource;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{Reply, Request};
use toroid_protocol::hosts::{HostRequest, HostResponse, Requester};

use super::lookup::ask_all;
use crate::cluster::Cluster;
use crate::core::audit::Caller;
use crate::core::host::Host;
use crate::core::look::look;

/// Time for all hosts together, shorter than a restart of the agent waits for its callers.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Resources that each host counts for itself. The directory counts the others.
const PER_HOST: [Resource; 4] = [
    Resource::Regions,
    Resource::Bytes,
    Resource::Rings,
    Resource::Descriptors,
];

/// Answers a query of an actor on this host. Names the hosts whose part is missing.
pub(crate) fn answer(
    host: &Arc<Host>,
    actor: Actor,
    request: &Request,
) -> Option<Result<Reply, Refusal>> {
    let own = look(host, actor, request)?;
    let (Some(cluster), true) = (&host.cluster, is_query(request)) else {
        return Some(own);
    };
    let mut reply = match own {
        Ok(reply) => reply,
        Err(refusal) => return Some(Err(refusal)),
    };
    let directory = host.members.directory(Directory::clone);
    let carries = |carrier: &str, place: &str| {
        let place = place.parse().ok();
        let node = place.and_then(|place: Place| directory.torus().node(place));
        node.is_some_and(|node| directory.host_of(node) == Some(carrier))
    };
    if let Reply::ShrinkNeeds(needs) = &mut reply {
        let ours = &cluster.config.host;
        // Processes of other hosts' nodes, which their own hosts count.
        needs.acknowledging.retain(|of| carries(ours, &of.node));
    }
    let others = others(&directory, cluster, request);
    let who = Requester::of(actor, &directory);
    let asked = request.clone();
    let query = move || HostRequest::Query {
        who,
        request: asked.clone(),
    };
    let mut missing: BTreeMap<String, String> = BTreeMap::new();
    let mut answers = ask_all(host, others.clone(), query, TIMEOUT);
    for other in others {
        let why = match answers.remove(&other) {
            Some(HostResponse::Reply(part)) => {
                let of_host = Part {
                    from: &other,
                    knows: &|host| directory.hosts().contains_key(host),
                    carries: &|place| carries(&other, place),
                };
                if of_host.add(&mut reply, *part) {
                    continue;
                }
                "its copy of the directory differs".into()
            }
            Some(HostResponse::Refused(refusal)) => refusal.message,
            _ => "it does not answer".into(),
        };
        missing.insert(other, why);
    }
    name_missing(&mut reply, missing);
    Some(Ok(reply))
}

/// Whether each host counts a part of the reply.
fn is_query(request: &Request) -> bool {
    matches!(
        request,
        Request::DomainDrops { .. } | Request::ShrinkNeeds { .. } | Request::QuotaShow { .. }
    )
}

/// Other hosts that are to be asked.
fn others(directory: &Directory, cluster: &Cluster, request: &Request) -> BTreeSet<String> {
    let mut hosts: BTreeSet<String> = match request {
        Request::DomainDrops { name } | Request::ShrinkNeeds { name, .. } => {
            let members = directory.domain(name).map(|domain| domain.nodes());
            let members = members.into_iter().flatten();
            let carriers = members.filter_map(|node| directory.host_of(node));
            carriers.map(str::to_owned).collect()
        }
        _ => directory.hosts().keys().cloned().collect(),
    };
    hosts.remove(&cluster.config.host);
    hosts
}

/// Part of another host, which answers for its own nodes only.
struct Part<'a> {
    from: &'a str,
    /// Whether a host of this name is in the directory.
    knows: &'a dyn Fn(&str) -> bool,
    /// Whether it carries the node at this place.
    carries: &'a dyn Fn(&str) -> bool,
}

impl Part<'_> {
    /// Adds the part to a reply, unless it is an answer to another question.
    fn add(&self, reply: &mut Reply, part: Reply) -> bool {
        match (reply, part) {
            (Reply::Drops { members, .. }, Reply::Drops { members: more, .. }) => {
                self.add_drops(members, more);
            }
            (Reply::Quotas { quotas, .. }, Reply::Quotas { quotas: more, .. }) => {
                self.add_quotas(quotas, more);
            }
            (Reply::ShrinkNeeds(needs), Reply::ShrinkNeeds(more))
                if needs.leaving == more.leaving =>
            {
                self.add_needs(needs, more);
            }
            _ => return false,
        }
        true
    }

    /// Drops are of a member, counted on its own host, or of a host, counted on each that it sends
    /// to.
    fn add_drops(&self, drops: &mut Vec<MemberDrops>, more: Vec<MemberDrops>) {
        for row in more {
            match (&row.node, &row.host) {
                (Some(node), None) if (self.carries)(&node.to_string()) => drops.push(row),
                (None, Some(host)) if (self.knows)(host) => {
                    let same = |other: &&mut MemberDrops| other.host == row.host;
                    let Some(sum) = drops.iter_mut().find(same) else {
                        drops.push(row);
                        continue;
                    };
                    for (reason, count) in row.dropped {
                        let sum = sum.dropped.entry(reason).or_default();
                        *sum = sum.saturating_add(count);
                    }
                }
                _ => {}
            }
        }
        // By number, hosts last.
        drops.sort_by_key(|row| {
            let node = row.node.map(|Place { x, y, z }| (z, y, x));
            (node.is_none(), node, row.outside, row.host.clone())
        });
    }

    /// Limits are those of this host's directory.
    fn add_quotas(&self, quotas: &mut Vec<QuotaInfo>, more: Vec<QuotaInfo>) {
        let used_there = more.into_iter().filter_map(|there| {
            let same = |own: &&QuotaInfo| (own.user, &own.node) == (there.user, &there.node);
            let own = quotas.iter().find(same)?;
            let used = there.used.into_iter();
            let used: BTreeMap<_, _> = used
                .filter(|(what, used)| PER_HOST.contains(what) && *used > 0)
                .collect();
            let row = QuotaInfo {
                host: Some(self.from.into()),
                used,
                ..own.clone()
            };
            (!row.used.is_empty()).then_some(row)
        });
        let used_there: Vec<_> = used_there.collect();
        quotas.extend(used_there);
    }

    fn add_needs(&self, needs: &mut ShrinkNeeds, more: ShrinkNeeds) {
        let its = |node: &String| (self.carries)(node);
        let acknowledging = more.acknowledging.into_iter();
        needs
            .acknowledging
            .extend(acknowledging.filter(|of| its(&of.node)));
        let moving = more.moving.into_iter();
        needs.moving.extend(moving.filter(|of| its(&of.node)));
        let ending = more.ending.into_iter();
        needs.ending.extend(ending.filter(|of| its(&of.node)));
        needs.ending_channels = needs.ending_channels.saturating_add(more.ending_channels);
        needs.extra_bytes = needs.extra_bytes.saturating_add(more.extra_bytes);
    }
}

fn name_missing(reply: &mut Reply, hosts: BTreeMap<String, String>) {
    if let Reply::Drops { missing, .. }
    | Reply::Quotas { missing, .. }
    | Reply::ShrinkNeeds(ShrinkNeeds { missing, .. }) = reply
    {
        missing.extend(hosts);
    }
}

/// Answers another host's query with what this host counts.
pub(super) fn answer_host(
    host: &Host,
    cluster: &Cluster,
    (from, who): (&str, Requester),
    request: &Request,
) -> HostResponse {
    let refuse = |message: String| {
        let refusal = Refusal::new(RefusalKind::Denied, message, "ask your own agent");
        HostResponse::Refused(refusal)
    };
    let actor = who.actor(host.identity.uid);
    if let Actor::Node(node) = actor
        && host.members.directory(|d| d.host_of(node) != Some(from))
    {
        return refuse(format!("host {from} does not carry {node}"));
    }
    let Some(_inside) = host.gate.enter() else {
        return refuse("it is starting again".into());
    };
    let Some(answer) = is_query(request)
        .then(|| look(host, actor, request))
        .flatten()
    else {
        return refuse(format!("host {} is not asked this", cluster.config.host));
    };
    let caller = Caller {
        actor,
        pid: None,
        host: Some(from.into()),
    };
    match host.note_denial(&caller, request, answer) {
        Ok(reply) => HostResponse::Reply(Box::new(reply)),
        Err(refusal) => HostResponse::Refused(refusal),
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::ethernet::DropReason;
    use toroid_model::info::{Acknowledging, Ending, Moving};

    use super::*;

    fn row(node: Option<Place>, host: Option<&str>, count: u64) -> MemberDrops {
        MemberDrops {
            node,
            host: host.map(Into::into),
            outside: false,
            dropped: BTreeMap::from([(DropReason::Full, count)]),
        }
    }

    fn add(reply: &mut Reply, part: Reply) -> bool {
        let of_b = Part {
            from: "b",
            knows: &|host| host != "x",
            carries: &|place| place == "1,0,0",
        };
        of_b.add(reply, part)
    }

    #[test]
    fn drops_of_members_are_of_their_host_and_those_of_hosts_are_added() {
        let [first, second] = [0, 1].map(|x| Some(Place { x, y: 0, z: 0 }));
        let ours = vec![row(first, None, 1), row(None, Some("b"), 2)];
        let theirs = vec![
            row(first, None, 64),
            row(second, None, 3),
            row(None, Some("b"), 4),
            row(None, Some("a"), 5),
            row(None, Some("x"), 6),
            row(None, None, 7),
        ];
        let drops = |members| Reply::Drops {
            members,
            missing: BTreeMap::new(),
        };
        let mut reply = drops(ours);
        assert!(add(&mut reply, drops(theirs)));
        let all = vec![
            row(first, None, 1),
            row(second, None, 3),
            row(None, Some("a"), 5),
            row(None, Some("b"), 6),
        ];
        assert_eq!(reply, drops(all));
        assert!(!add(&mut reply, Reply::Done));
    }

    #[test]
    fn the_work_of_a_shrink_is_that_of_all_hosts() {
        let part = |nodes: &[&str]| {
            let nodes = || nodes.iter().map(|node| String::from(*node));
            let of = |node| Acknowledging { node, processes: 2 };
            let moving = |node| Moving {
                node,
                written: true,
                regions: 1,
                bytes: 64,
            };
            let ending = |node| Ending {
                node,
                regions: 1,
                bytes: 64,
            };
            ShrinkNeeds {
                leaving: vec!["1,1,0".into()],
                acknowledging: nodes().map(of).collect(),
                moving: nodes().map(moving).collect(),
                ending: nodes().map(ending).collect(),
                ending_channels: 1,
                extra_bytes: 64,
                missing: BTreeMap::new(),
            }
        };
        let mut reply = Reply::ShrinkNeeds(part(&["0,0,0"]));
        // The work of this host's nodes, as another host has it, is left out.
        let theirs = Reply::ShrinkNeeds(part(&["0,0,0", "1,0,0"]));
        assert!(add(&mut reply, theirs));
        name_missing(
            &mut reply,
            [("c".into(), "it does not answer".into())].into(),
        );
        let other = ShrinkNeeds::default();
        assert!(
            !add(&mut reply, Reply::ShrinkNeeds(other)),
            "of other leavers"
        );
        let all = ShrinkNeeds {
            ending_channels: 2,
            extra_bytes: 128,
            missing: [("c".into(), "it does not answer".into())].into(),
            ..part(&["0,0,0", "1,0,0"])
        };
        assert_eq!(reply, Reply::ShrinkNeeds(all));
    }

    #[test]
    fn another_host_tells_only_what_is_used_there() {
        let quota = |host: &str, resource, used| QuotaInfo {
            user: Some(1000),
            node: None,
            host: Some(host.into()),
            used: [(resource, used)].into(),
            limits: [].into(),
            in_force: [].into(),
        };
        let quotas = |quotas| Reply::Quotas {
            quotas,
            missing: BTreeMap::new(),
        };
        let mut reply = quotas(vec![quota("a", Resource::Regions, 0)]);
        // Its domains are the same on all hosts.
        let theirs = vec![
            quota("b", Resource::Domains, 7),
            quota("b", Resource::Regions, 0),
            QuotaInfo {
                user: Some(1001),
                ..quota("b", Resource::Regions, 3)
            },
            QuotaInfo {
                limits: [(Resource::Regions, 9)].into(),
                ..quota("a", Resource::Regions, 3)
            },
        ];
        assert!(add(&mut reply, quotas(theirs)));
        let all = vec![
            quota("a", Resource::Regions, 0),
            quota("b", Resource::Regions, 3),
        ];
        assert_eq!(reply, quotas(all));
    }
}
