//! The audit log: its entries, and how clients read them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use toroid_fabric::NodeId;
use toroid_model::audit::{AuditEvent, Outcome};
use toroid_model::directory::{Directory, Domain};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{Reply, Request};

use super::host::Host;
use crate::store::events::{self, Log};

/// Most events of one reply.
const AT_ONCE: usize = 500;

/// Time that a waiting request takes at most before the client must ask again.
const WAIT: Duration = Duration::from_secs(5);

/// Audit log of an agent.
#[derive(Debug)]
pub(crate) struct Audit {
    directory: PathBuf,
    log: Mutex<Log>,
    /// Signals a new line.
    written: Condvar,
}

/// Author of a request: actor, process id, and the other host it came from.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) actor: Actor,
    pub(crate) pid: Option<u32>,
    pub(crate) host: Option<Arc<str>>,
}

impl Audit {
    pub(crate) fn new(directory: PathBuf, log: Log) -> Self {
        Audit {
            directory,
            log: Mutex::new(log),
            written: Condvar::new(),
        }
    }

    /// Logs the end of a request if it is a change or was denied. `before` is the directory before
    /// the request.
    pub(crate) fn note<T>(
        &self,
        caller: &Caller,
        request: &Request,
        before: &Directory,
        result: &Result<T, Refusal>,
    ) {
        let mut text = serde_json::to_value(request).unwrap_or_default();
        let field = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| text[name].as_str());
            found.map(str::to_owned)
        };
        let (what, domain) = (field(["request", "request"]), field(["domain", "name"]));
        let named = domain.as_deref().and_then(|name| before.domain(name).ok());
        // The caller is told that the domain does not exist. Its owner gets to know of the attempt.
        let is_hidden =
            request.is_change() && named.is_some_and(|domain| !caller.actor.sees(before, domain));
        let outcome = match result {
            Ok(_) if request.is_change() || *request == Request::Down => Outcome::Done,
            Err(refusal) => match refusal.kind {
                RefusalKind::Denied | RefusalKind::Leaving => Outcome::Denied,
                RefusalKind::Exhausted => Outcome::Exhausted,
                RefusalKind::Failed if request.is_change() => Outcome::Failed,
                RefusalKind::NotFound if is_hidden => Outcome::Denied,
                _ => return,
            },
            Ok(_) => return,
        };
        let mut concerns = concerns(caller.actor, &text, domain.as_deref(), before);
        let mut reason = result.as_ref().err().map(|refusal| refusal.message.clone());
        if let (true, Err(refusal), Some(domain)) = (is_hidden, result, named)
            && refusal.kind == RefusalKind::NotFound
        {
            let who = match caller.actor {
                Actor::Node(node) => before.owner_of(node),
                actor => actor.uid(),
            };
            concerns.retain(|uid| Some(*uid) != who || *uid == domain.owner);
            reason = Some(caller.actor.not_of(domain).to_string());
        }
        if matches!(request, Request::Exec { .. }) {
            // Environments hold secrets.
            text = Value::Null;
        }
        self.append(
            AuditEvent {
                what: what.unwrap_or_default(),
                domain,
                request: text,
                reason,
                ..blank(caller, before, outcome)
            },
            concerns,
        );
    }

    /// Logs the start of an agent.
    pub(crate) fn note_start(&self, uid: u32, directory: &Directory) {
        let caller = Caller {
            actor: Actor::Administrator(uid),
            pid: Some(std::process::id()),
            host: None,
        };
        let event = AuditEvent {
            what: "up".into(),
            ..blank(&caller, directory, Outcome::Done)
        };
        self.append(event, BTreeSet::new());
    }

    /// Logs a problem of another host. Callers limit the number of these entries.
    pub(crate) fn note_host(&self, host: &str, problem: &str) {
        let event = AuditEvent {
            host: Some(host.into()),
            what: "host".into(),
            reason: Some(problem.into()),
            ..empty(Outcome::Denied)
        };
        self.append(event, BTreeSet::new());
    }

    /// Logs that members of this host use a gateway no more, or again.
    pub(crate) fn note_gateway(&self, domain: &Domain, is_used: bool, reason: String) {
        let outcome = if is_used {
            Outcome::Done
        } else {
            Outcome::Failed
        };
        let event = AuditEvent {
            what: "gateway".into(),
            domain: Some(domain.name.clone()),
            reason: Some(reason),
            ..empty(outcome)
        };
        self.append(event, [domain.owner].into());
    }

    /// Events from number `since` on that the actor may see. With `wait`, waits for a new one for
    /// some time.
    pub(crate) fn since(&self, actor: Actor, since: u64, wait: bool) -> Result<Reply, Refusal> {
        let reader = match actor {
            Actor::Administrator(_) => None,
            Actor::User(uid) => Some(uid),
            Actor::Node(_) => {
                actor.may_administer("read the log of events")?;
                None
            }
        };
        if wait {
            let nothing_new = |log: &mut Log| log.next() <= since;
            self.written
                .wait_while_for(&mut self.log.lock(), nothing_new, WAIT);
        }
        let (end, files) = {
            let log = self.log.lock();
            (log.next(), events::files(&self.directory))
        };
        let events = events::since(files, since, reader, AT_ONCE);
        let next = match events.last() {
            Some(last) if events.len() == AT_ONCE => last.seq + 1,
            Some(last) => end.max(last.seq + 1),
            None => end,
        };
        Ok(Reply::Events { events, next })
    }

    fn append(&self, event: AuditEvent, concerns: BTreeSet<u32>) {
        if self.log.lock().append(event, concerns) {
            self.written.notify_all();
        }
    }
}

fn blank(caller: &Caller, directory: &Directory, result: Outcome) -> AuditEvent {
    let place = |node: NodeId| directory.places(&[node].into());
    AuditEvent {
        uid: caller.actor.uid(),
        pid: caller.pid,
        node: match caller.actor {
            Actor::Node(node) => Some(place(node)),
            _ => None,
        },
        host: caller.host.as_deref().map(str::to_owned),
        ..empty(result)
    }
}

fn empty(result: Outcome) -> AuditEvent {
    AuditEvent {
        seq: 0,
        time_ms: 0,
        uid: None,
        pid: None,
        node: None,
        host: None,
        what: String::new(),
        domain: None,
        request: Value::Null,
        result,
        reason: None,
        unwritten: 0,
    }
}

/// Users that an event concerns: the caller, the domain's owner, the owners of its members and of
/// named nodes, and named users.
fn concerns(
    actor: Actor,
    request: &Value,
    domain: Option<&str>,
    directory: &Directory,
) -> BTreeSet<u32> {
    let domain = domain.and_then(|name| directory.domain(name).ok());
    let named = request["nodes"].as_array().into_iter().flatten();
    let named = named.chain([&request["node"]]).filter_map(Value::as_str);
    let sets: Vec<String> = named.map(str::to_owned).collect();
    let mut nodes = directory.resolve(&sets).unwrap_or_default();
    if let Some(domain) = domain {
        nodes.extend(domain.members.keys());
    }
    if let Actor::Node(node) = actor {
        nodes.insert(node);
    }
    let owners = nodes.iter().filter_map(|node| directory.owner_of(*node));
    let owner = domain.map(|domain| domain.owner);
    // Users that get something or are limited.
    let users = ["owner", "user"].map(|name| request[name].as_u64());
    let users = users.into_iter().flatten();
    let users = users.filter_map(|uid| u32::try_from(uid).ok());
    owners
        .chain(owner)
        .chain(actor.uid())
        .chain(users)
        .collect()
}

impl Host {
    /// Carries out a request and logs its end.
    pub(crate) fn audited<T>(
        &self,
        caller: &Caller,
        request: &Request,
        carry_out: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let before = self.members.directory(Directory::clone);
        let result = carry_out();
        self.audit.note(caller, request, &before, &result);
        result
    }

    /// Logs the denial of a request that changes nothing.
    pub(crate) fn note_denial<T>(
        &self,
        caller: &Caller,
        request: &Request,
        result: Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        if result.is_err() {
            let now = self.members.directory(Directory::clone);
            self.audit.note(caller, request, &now, &result);
        }
        result
    }
}
