//! Requests in words, as people would ask for them.

use toroid_model::audit::AuditEvent;
use toroid_protocol::agent::{NewDomain, NodeAllocation, Request};
use toroid_protocol::{connection_request, query_request};

use crate::names;

/// Sentence for a request. A request that the log contains in part is described by kind and domain.
pub(super) fn of(event: &AuditEvent) -> String {
    let request = serde_json::from_value(event.request.clone());
    request
        .ok()
        .and_then(|request| sentence(&request))
        .unwrap_or_else(|| kind(event))
}

fn kind(event: &AuditEvent) -> String {
    let kind = match event.what.as_str() {
        "up" => "the agent begins".into(),
        "exec" => "run a command in a node".into(),
        "host" => "another host".into(),
        "gateway" => "gateway of".into(),
        what => what.replace('_', " "),
    };
    match &event.domain {
        Some(domain) => format!("{kind} {domain}"),
        None => kind,
    }
}

fn sentence(request: &Request) -> Option<String> {
    Some(match request {
        Request::Down => "end the agent".into(),
        Request::DomainCreate(new) => create(new),
        Request::DomainGrow {
            name, nodes, rate, ..
        } => {
            let rate = rate.map_or_else(String::new, |rate| format!(" with {rate}"));
            format!("grow {name} by {}{rate}", list(nodes))
        }
        Request::DomainRate { name, nodes, rate } => match rate {
            Some(rate) => format!("limit {} in {name} to {rate}", list(nodes)),
            None => format!("lift the rate of {} in {name}", list(nodes)),
        },
        Request::DomainShrink { name, nodes } => format!("shrink {name} by {}", list(nodes)),
        Request::DomainRemove { name } => format!("remove {name}"),
        Request::DomainManage {
            name,
            nodes,
            revoke,
        } => {
            if *revoke {
                format!("let {} manage {name} no longer", list(nodes))
            } else {
                format!("let {} manage {name}", list(nodes))
            }
        }
        Request::DomainSet {
            name,
            public,
            forward,
            sealed,
            fence,
            ethernet,
            owner,
        } => {
            let switch = |what: &str, on: &Option<bool>| {
                let on = on.as_ref()?;
                Some(format!("{what} {}", if *on { "on" } else { "off" }))
            };
            let owner = owner.map(|uid| format!("owner {}", names::user(uid)));
            let changes = [
                switch("public", public),
                switch("forward", forward),
                switch("sealed", sealed),
                fence.map(|seconds| match seconds {
                    0 => "fence off".into(),
                    _ => format!("fence {seconds} s"),
                }),
                ethernet.map(|path| format!("ethernet {path}")),
                owner,
            ];
            let changes: Vec<String> = changes.into_iter().flatten().collect();
            format!("set {name}: {}", changes.join(", "))
        }
        Request::GatewayAdd {
            node,
            domain,
            uplink,
            kind,
        } => format!("connect {domain} at {node} to {uplink} ({kind})"),
        Request::GatewayRemove { node, domain } => format!("disconnect {domain} at {node}"),
        Request::LinkSet { domain, links, .. } => {
            let all = (!links.default.is_empty()).then(|| links.default.to_string());
            let single = links.pairs.iter();
            let single = single.map(|(pair, link)| format!("{pair} {link}"));
            let links: Vec<String> = all.into_iter().chain(single).collect();
            format!("link {domain}: {}", list(&links))
        }
        Request::LinkRemove { domain, pairs } => {
            let pairs: Vec<String> = pairs.iter().map(ToString::to_string).collect();
            match pairs[..] {
                [] => format!("end the links of {domain}"),
                _ => format!("end links of {domain}: {}", list(&pairs)),
            }
        }
        Request::NodeAlias { node, alias } => format!("name {node} {alias}"),
        Request::NodeUnalias { alias } => format!("take the name {alias} away"),
        Request::NodeChown { nodes, owner } => match owner {
            Some(uid) => format!("give {} to {}", list(nodes), names::user(*uid)),
            None => format!("give {} back to the agent", list(nodes)),
        },
        Request::NodeAlloc(asked) => allocate(asked),
        Request::NodeFree { nodes } => format!("free {}", list(nodes)),
        Request::NodeConsent {
            nodes,
            domain,
            withdraw,
        } => {
            if *withdraw {
                format!("let {} be placed in {domain} no longer", list(nodes))
            } else {
                format!("let {} be placed in {domain}", list(nodes))
            }
        }
        Request::QuotaSet {
            user,
            nodes,
            limits,
        } => {
            let user = user.map(names::user).into_iter();
            let whose: Vec<String> = user.chain(nodes.iter().cloned()).collect();
            let limits = limits.iter().map(|(resource, limit)| match limit {
                Some(limit) => format!("{resource} {limit}"),
                None => format!("{resource} without limit"),
            });
            let limits: Vec<String> = limits.collect();
            format!("limit {}: {}", list(&whose), limits.join(", "))
        }
        Request::HostAdmit { host, key } => format!("admit host {host} with key {key}"),
        Request::HostRemove { host } => format!("remove host {host}"),
        Request::HostRotate { .. } => "give the host a new key".into(),
        Request::DirectoryMove { to } => format!("move the directory to {to}"),
        query_request!() | connection_request!() => return None,
    })
}

fn create(new: &NewDomain) -> String {
    let sets = [&new.nodes, &new.limited, &new.plain, &new.stacks];
    let mut nodes: Vec<String> = Vec::new();
    for node in sets.into_iter().flatten() {
        if !nodes.contains(node) {
            nodes.push(node.clone());
        }
    }
    let owner = new.owner.map(names::user);
    let owner = owner.map_or_else(String::new, |owner| format!(" for {owner}"));
    if nodes.is_empty() {
        format!("create {}{owner}", new.name)
    } else {
        format!("create {} of {}{owner}", new.name, list(&nodes))
    }
}

fn allocate(asked: &NodeAllocation) -> String {
    let nodes = match asked.count {
        1 => "1 node".to_owned(),
        count => format!("{count} nodes"),
    };
    match &asked.domain {
        Some(domain) => format!("allocate {nodes} for {domain}"),
        None => format!("allocate {nodes}"),
    }
}

fn list(words: &[String]) -> String {
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn words(what: &str, domain: Option<&str>, request: Value) -> String {
        let event = json!({
            "seq": 1, "time_ms": 0, "uid": 0, "pid": 1, "node": null, "what": what,
            "domain": domain, "request": request, "result": "done", "reason": null, "unwritten": 0
        });
        of(&serde_json::from_value(event).unwrap())
    }

    #[test]
    fn a_request_names_nodes_and_the_new_owner() {
        let chown = json!({"request": "node_chown", "nodes": ["*,0,0"], "owner": 0});
        assert_eq!(words("node_chown", None, chown), "give *,0,0 to root");
        let shrink = json!({"request": "domain_shrink", "name": "blue", "nodes": ["1,0,0", "db"]});
        assert_eq!(
            words("domain_shrink", Some("blue"), shrink),
            "shrink blue by 1,0,0 db"
        );
        let link = json!({
            "request": "link_set", "domain": "blue", "keep": true,
            "links": {"default": {"latency": "5us"}, "pairs": {"0,0,0>1,0,0": {"loss": "1%"}}}
        });
        assert_eq!(
            words("link_set", Some("blue"), link),
            "link blue: latency=5us 0,0,0>1,0,0 loss=1%"
        );
        let set = json!({
            "request": "domain_set", "name": "blue", "public": true, "forward": null, "owner": 0
        });
        assert_eq!(
            words("domain_set", Some("blue"), set),
            "set blue: public on, owner root"
        );
    }

    #[test]
    fn of_a_request_that_is_not_there_its_kind_remains() {
        let gone = words("domain_grow", Some("blue"), Value::Null);
        assert_eq!(gone, "domain grow blue");
        assert_eq!(words("up", None, Value::Null), "the agent begins");
    }
}
