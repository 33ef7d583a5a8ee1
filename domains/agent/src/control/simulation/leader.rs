//! The leader: its core, requests, decisions, and the check of its replies.

use std::collections::BTreeSet;
use std::time::Duration;

use toroid_model::directory::records::Changes;

use super::clients::Record;
use super::leases::{FENCE, is_fenced};
use super::{Asked, DECISION, DOMAINS, EFFECT, EXCEPTION, HEALTHY, Happening, Mutant, TERM};
use super::{VERSION, World, hosts_in, name, number_in, revision, revision_of};
use crate::control::core::{Action, COURTESY, ChangeId, Core, Event, MAX_UNFINISHED, Reached};

impl World {
    pub(super) fn start_leader(&mut self) {
        let mut core = Core::new(Some("leader".into()));
        let mut start = Some(revision(1, 0));
        if !self.is(Mutant::CountAnew) {
            // A term begins with a change.
            let term = number_in(&self.records, TERM) + 1;
            let numbers = [(TERM, term), (VERSION, self.versions.len() as u64)];
            let numbers = numbers.map(|(key, number)| (key.into(), number.to_string()));
            self.records.extend(numbers);
            self.versions.push(self.records.clone());
            start = revision_of(&self.records);
        }
        core.begin(self.records.clone(), start);
        core.handle(self.start + self.now, Event::Opened);
        self.core = Some(core);
        for host in 0..self.followers.len() {
            self.disturb(host, 2_000);
            self.after(200, Happening::Connect(host));
        }
    }

    pub(super) fn handle(&mut self, event: Event) -> Result<(), String> {
        let Some(core) = &mut self.core else {
            return Ok(());
        };
        let actions = core.handle(self.start + self.now, event);
        let wake = core.wake();
        for action in actions {
            match action {
                Action::Decide(change) => {
                    self.deciding.push_back(change);
                    if self.deciding.len() == 1 {
                        self.after(DECISION, Happening::Decide(change));
                    }
                }
                Action::Refuse(change) => {
                    let asked = self.asked.values();
                    if asked.count() <= MAX_UNFINISHED {
                        return Err(format!("{change:?} is refused for nothing"));
                    }
                    let refused = self.asked.remove(&change);
                    let repeated = refused.filter(|its| self.is_repeated(its.request));
                    if let Some(asked) = repeated {
                        self.lose(asked.request);
                    }
                }
                Action::Send { session, update } => self.send(session, update)?,
                Action::Reply { change, reached } => self.check_reply(change, &reached)?,
            }
        }
        if let Some(wake) = wake {
            // As a thread does that sleeps until then.
            let wake = wake.saturating_duration_since(self.start).max(self.now);
            if !self.has_tick(wake) {
                self.at(wake, Happening::Tick);
            }
        }
        Ok(())
    }

    pub(super) fn has_tick(&self, at: Duration) -> bool {
        let mut same = self.happenings.range((at, 0)..=(at, u64::MAX));
        same.any(|(_, happening)| matches!(happening, Happening::Tick))
    }

    /// Decides the first change in the queue: other hosts in the domain than before.
    pub(super) fn decide(&mut self, id: ChangeId) -> Result<(), String> {
        let Some(asked) = self.asked.get(&id).cloned() else {
            return Ok(());
        };
        let under_way = |(other, its): (&ChangeId, &Asked)| {
            let is_before = its.domain == asked.domain && its.version.is_some();
            *other != id && is_before && !its.is_in_effect
        };
        if self.asked.iter().any(under_way) {
            return Err(format!(
                "{id:?} is decided while one of its domain is not in effect"
            ));
        }
        let record = self.record(asked.request);
        let is_made = match record {
            Record::None => false,
            Record::Leaving => self.is(Mutant::FirstIsAll),
            Record::Made => true,
        };
        if is_made {
            self.find_made(id, &asked)?;
        } else {
            self.make(id, &asked, record == Record::Leaving)?;
        }
        self.deciding.pop_front();
        if let Some(next) = self.deciding.front() {
            self.after(DECISION, Happening::Decide(*next));
        }
        Ok(())
    }

    /// A repeated request whose change was made only has to come into effect everywhere.
    fn find_made(&mut self, id: ChangeId, asked: &Asked) -> Result<(), String> {
        let recorded = self.recorded_hosts(asked.request);
        self.tell(|| format!("{id:?} was made before, concerns {recorded:?}"));
        let made = self.made(asked.request);
        let (version, concerned) = made.ok_or("a record of a request that was not made")?;
        if let Some(asked) = self.asked.get_mut(&id) {
            (asked.version, asked.concerned) = (Some(version), concerned);
            asked.decided = self.now;
        }
        let told = if self.is(Mutant::DoneAtOnce) {
            BTreeSet::new()
        } else {
            recorded.iter().map(|n| name(*n)).collect()
        };
        self.decided(id, asked, told)?;
        self.after(EFFECT, Happening::InEffect(id));
        Ok(())
    }

    /// Makes a part of a change.
    fn make(&mut self, id: ChangeId, asked: &Asked, is_second: bool) -> Result<(), String> {
        let key = format!("domain/{}", DOMAINS[asked.domain]);
        let before = hosts_in(self.records.get(&key).map_or("", String::as_str));
        let all = 0..self.followers.len();
        let after: BTreeSet<usize> = all.filter(|_| self.rng.u32(0..3) == 0).collect();
        let mut changes = Changes::default();
        if after.is_empty() {
            changes.remove.insert(key);
        } else {
            let text: Vec<String> = after.iter().map(usize::to_string).collect();
            changes.put.insert(key, text.join(" "));
        }
        let mut concerned = &before | &after;
        // The second part of a change concerns other hosts than the first.
        concerned.extend(self.recorded_hosts(asked.request));
        let may_have_two = !is_second && !self.is(Mutant::DoneLater);
        let is_first_of_two = may_have_two && self.rng.u32(0..8) == 0;
        self.note(asked.request, &mut changes, &concerned, is_first_of_two);
        let version = self.commit(&mut changes);
        self.count(asked.request, usize::from(is_second), version, &concerned)?;
        self.tell(|| format!("{id:?} is version {version}, concerns {concerned:?}"));
        let names = |hosts: &BTreeSet<usize>| hosts.iter().map(|n| name(*n)).collect();
        let told = match self.mutant {
            Some(Mutant::NoWait) => BTreeSet::new(),
            Some(Mutant::WaitForAll) => names(&(0..self.followers.len()).collect()),
            _ => names(&concerned),
        };
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.version = Some(version);
            asked.decided = self.now;
            asked.concerned = concerned;
        }
        if !self.is(Mutant::Unpublished) || self.rng.u32(0..4) > 0 {
            self.handle(Event::Durable(changes))?;
        }
        self.decided(id, asked, told)?;
        if is_first_of_two {
            self.deciding.push_back(id);
        } else {
            let is_slow = DOMAINS[asked.domain] == "slow" && self.rng.bool();
            let most = if is_slow { 10_000 } else { EFFECT };
            self.after(most, Happening::InEffect(id));
        }
        if self.is(Mutant::Early) {
            self.handle(Event::InEffect(id))?;
        }
        Ok(())
    }

    /// Tells the core that a part of a change is durable, and which hosts it concerns.
    fn decided(
        &mut self,
        id: ChangeId,
        asked: &Asked,
        concerned: BTreeSet<String>,
    ) -> Result<(), String> {
        self.handle(Event::Decided {
            change: id,
            concerned,
            asker: asked.asker.map(name),
            fence: self.fence(asked.domain),
        })
    }

    fn fence(&self, domain: usize) -> Option<Duration> {
        is_fenced(domain).then_some(if self.is(Mutant::NoFence) {
            Duration::ZERO
        } else {
            FENCE
        })
    }

    /// Makes changes durable, in the next version.
    pub(super) fn commit(&mut self, changes: &mut Changes) -> usize {
        let version = self.versions.len();
        changes.put.insert(VERSION.into(), version.to_string());
        changes.apply_to(&mut self.records);
        self.versions.push(self.records.clone());
        version
    }

    pub(super) fn be_in_effect(&mut self, id: ChangeId) -> Result<(), String> {
        let Some(asked) = self.asked.get_mut(&id) else {
            return Ok(());
        };
        asked.is_in_effect = true;
        self.tell(|| format!("{id:?} is in effect at the leader"));
        self.handle(Event::InEffect(id))
    }

    /// The contract of a reply.
    pub(super) fn check_reply(&mut self, id: ChangeId, reached: &Reached) -> Result<(), String> {
        let Reached { lacking, fenced } = reached;
        self.tell(|| format!("{id:?} is answered, lacking {lacking:?}, fenced {fenced:?}"));
        let asked = self.asked.remove(&id);
        let asked = asked.ok_or_else(|| format!("{id:?} is answered twice"))?;
        self.replies += 1;
        let version = asked.version.ok_or("a reply before the decision")?;
        if !asked.is_in_effect {
            return Err(format!("{id:?} is answered before it is in effect here"));
        }
        let was_troubled = |host: usize| {
            let follower = &self.followers[host];
            let is_troubled = follower.session.is_none() || !follower.faults.is_empty();
            is_troubled || follower.trouble >= asked.at
        };
        for host in &asked.concerned {
            let follower = &self.followers[*host];
            let lacks = lacking.get(&name(*host));
            let is_fenced = fenced.contains(&name(*host));
            if is_fenced && !was_troubled(*host) {
                return Err(format!("{id:?} does not wait for host {host}"));
            }
            if lacks.is_none() && !is_fenced && follower.version() < version {
                return Err(format!("{id:?} is not in effect on host {host}"));
            }
            let is_excepted = lacks.is_some_and(|why| why == EXCEPTION);
            if lacks.is_some() && !is_excepted && !was_troubled(*host) {
                return Err(format!("{id:?} lacks host {host}: {lacks:?}"));
            }
        }
        let waited = self.now - asked.at;
        // Changes of the slow domain wait for each other here.
        let may_wait = DOMAINS[asked.domain] == "slow"
            || self.is_repeated(asked.request)
            || asked.concerned.iter().any(|host| was_troubled(*host));
        let courtesy = asked.asker.is_some_and(was_troubled);
        let most = HEALTHY + if courtesy { COURTESY } else { Duration::ZERO };
        if !may_wait && waited > most {
            return Err(format!(
                "{id:?} took {waited:?} for hosts that it does not concern"
            ));
        }
        self.check_fenced((id, &asked), version, reached)?;
        self.hear_reply(&asked)
    }
}
