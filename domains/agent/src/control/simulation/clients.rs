//! Requests, and their repetition by the agents that have them from clients.

use std::collections::BTreeSet;
use std::time::Duration;

use toroid_model::directory::records::Changes;
use toroid_model::directory::requests::RequestId;
use toroid_model::rights::Actor;

use super::{Asked, DOMAINS, Happening, Mutant, World, hosts_in};
use crate::control::core::{ChangeId, Event};

/// Time for which a request is repeated.
const REPEATED: Duration = Duration::from_secs(15);

/// Longest pause before that.
const PAUSE: u64 = 500;

/// Prefix of the keys of records of requests.
const RECORD: &str = "done/";

/// A client with one request.
#[derive(Debug)]
pub(super) struct Client {
    domain: usize,
    actor: Actor,
    /// Host of the client, unless that is the leader.
    host: Option<usize>,
    /// Number of times that each part of the change was made, and number of its parts.
    made: [usize; 2],
    parts: usize,
    /// Version after the last part, and hosts that the change concerns.
    version: usize,
    concerned: BTreeSet<usize>,
    /// Time when it lost its leader first.
    lost: Option<Duration>,
    is_answered: bool,
    /// Whether it waits for no reply any more.
    is_gone: bool,
}

/// What the records say of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    None,
    /// The first of two parts was made.
    Leaving,
    Made,
}

impl World {
    pub(super) fn request(&mut self) -> Result<(), String> {
        if self.core.is_none() {
            return Ok(());
        }
        self.last += 1;
        let request = RequestId(self.last.into());
        let host = self.rng.usize(0..=self.followers.len());
        let client = Client {
            domain: self.rng.usize(0..DOMAINS.len()),
            actor: Actor::User(self.rng.u32(1..4)),
            host: (host < self.followers.len()).then_some(host),
            made: [0; 2],
            parts: 1,
            version: 0,
            concerned: BTreeSet::new(),
            lost: None,
            is_answered: false,
            is_gone: false,
        };
        self.clients.insert(request, client);
        self.ask(request)
    }

    fn ask(&mut self, request: RequestId) -> Result<(), String> {
        self.last += 1;
        let id = ChangeId(self.last);
        let client = &self.clients[&request];
        let (domain, actor, asker) = (client.domain, client.actor, client.host);
        let asked = Asked {
            request,
            domain,
            at: self.now,
            asker,
            session: asker.and_then(|host| self.followers[host].session),
            version: None,
            decided: self.now,
            concerned: BTreeSet::new(),
            is_in_effect: false,
        };
        self.tell(|| {
            let number = request.0;
            format!(
                "{id:?} of {} asked at {asker:?}, request {number}",
                DOMAINS[domain]
            )
        });
        self.asked.insert(id, asked);
        let subjects = if self.is(Mutant::NoOrder) {
            BTreeSet::new()
        } else {
            [DOMAINS[domain].to_owned()].into()
        };
        self.handle(Event::Asked {
            change: id,
            actor,
            request,
            subjects,
        })
    }

    /// The agent of a client loses the leader, or is refused for a limit.
    pub(super) fn lose(&mut self, request: RequestId) {
        if let Some(client) = self.clients.get_mut(&request) {
            client.lost.get_or_insert(self.now);
            self.after(PAUSE, Happening::Repeat(request));
        }
    }

    /// All clients of a killed agent: what they know is lost with it.
    pub(super) fn lose_clients(&mut self, host: Option<usize>) {
        let clients = self.clients.values_mut();
        let its = clients.filter(|client| client.host == host);
        its.for_each(|client| client.is_gone = true);
    }

    pub(super) fn repeat(&mut self, request: RequestId) -> Result<(), String> {
        let now = self.now;
        let Some(client) = self.clients.get_mut(&request) else {
            return Ok(());
        };
        client.is_gone |= client.lost.is_some_and(|lost| now > lost + REPEATED);
        if client.is_gone || client.is_answered {
            return Ok(());
        }
        let is_there = client
            .host
            .is_some_and(|host| self.followers[host].session.is_some());
        if is_there && self.core.is_some() {
            self.ask(request)
        } else {
            self.after(PAUSE, Happening::Repeat(request));
            Ok(())
        }
    }

    pub(super) fn is_repeated(&self, request: RequestId) -> bool {
        let client = self.clients.get(&request);
        client.is_some_and(|client| client.lost.is_some())
    }

    pub(super) fn record(&self, request: RequestId) -> Record {
        match self.records.get(&key(request)).map(String::as_str) {
            None => Record::None,
            Some(text) if text.starts_with("leaving") => Record::Leaving,
            Some(_) => Record::Made,
        }
    }

    /// Hosts that the change of a request concerns, as its record says.
    pub(super) fn recorded_hosts(&self, request: RequestId) -> BTreeSet<usize> {
        let text = self.records.get(&key(request));
        hosts_in(text.map_or("", String::as_str))
    }

    /// Adds the record of a request to its change.
    pub(super) fn note(
        &mut self,
        request: RequestId,
        changes: &mut Changes,
        concerned: &BTreeSet<usize>,
        is_first_of_two: bool,
    ) {
        let hosts: Vec<String> = concerned.iter().map(usize::to_string).collect();
        let stage = if is_first_of_two { "leaving" } else { "made" };
        let text = format!("{stage} {}", hosts.join(" "));
        if self.is(Mutant::DoneLater) {
            self.after(PAUSE, Happening::Note(request, text));
        } else {
            changes.put.insert(key(request), text);
        }
        if self.is(Mutant::ForgetEarly) {
            let kept = self.records.keys().filter(|key| key.starts_with(RECORD));
            changes.remove.extend(kept.cloned());
            changes.remove.remove(&key(request));
        }
        if let Some(client) = self.clients.get_mut(&request)
            && is_first_of_two
        {
            client.parts = 2;
        }
    }

    /// Makes the record of a request in a change of its own, if the leader lives until then.
    pub(super) fn note_later(&mut self, request: RequestId, text: String) -> Result<(), String> {
        if self.core.is_none() {
            return Ok(());
        }
        let mut changes = Changes::default();
        changes.put.insert(key(request), text);
        self.commit(&mut changes);
        self.handle(Event::Durable(changes))
    }

    /// A part of the change of a request is durable.
    pub(super) fn count(
        &mut self,
        request: RequestId,
        part: usize,
        version: usize,
        concerned: &BTreeSet<usize>,
    ) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&request) else {
            return Ok(());
        };
        client.made[part] += 1;
        client.version = version;
        client.concerned.extend(concerned);
        if client.made[part] > 1 {
            return Err(format!("request {} is made twice", request.0));
        }
        Ok(())
    }

    /// Version after the change of a request, and hosts that it concerns.
    pub(super) fn made(&self, request: RequestId) -> Option<(usize, BTreeSet<usize>)> {
        let client = self.clients.get(&request)?;
        (client.made[0] > 0).then(|| (client.version, client.concerned.clone()))
    }

    /// The reply to an attempt arrives, unless its session has ended.
    pub(super) fn hear_reply(&mut self, asked: &Asked) -> Result<(), String> {
        let is_heard = asked.asker.is_none_or(|host| {
            asked.session.is_some() && self.followers[host].session == asked.session
        });
        let Some(client) = self.clients.get_mut(&asked.request).filter(|_| is_heard) else {
            return Ok(());
        };
        client.is_answered = true;
        self.repeated += usize::from(client.lost.is_some());
        if client.made[..client.parts].contains(&0) {
            return Err(format!(
                "request {} is answered and not made",
                asked.request.0
            ));
        }
        Ok(())
    }

    /// Each client that has lost its leader and has waited was answered.
    pub(super) fn check_clients(&self) -> Result<(), String> {
        let is_open = |client: &Client| client.lost.is_some() && !client.is_answered;
        let mut open = self.clients.iter().filter(|(_, its)| is_open(its));
        match open.find(|(_, client)| !client.is_gone) {
            Some((request, _)) => Err(format!("request {} is not answered", request.0)),
            None => Ok(()),
        }
    }
}

fn key(request: RequestId) -> String {
    format!("{RECORD}{request}")
}
