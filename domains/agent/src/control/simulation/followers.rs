//! The followers: messages to and from them, application of updates, and faults.

use std::time::Duration;

use toroid_model::directory::records::Changes;
use toroid_model::directory::requests::RequestId;
use toroid_model::directory::revision::Revision;
use toroid_protocol::hosts::DirectoryUpdate;

use super::revision_of;
use super::{
    APPLICATION, Asked, EXCEPTION, Fault, Happening, MESSAGE, Mutant, NOTICED, World, name,
};
use crate::control::core::{Answer, Event, SessionId, Update};
use crate::control::lease::Lease;

impl World {
    pub(super) fn host_of(&self, session: SessionId) -> Option<usize> {
        let mut followers = self.followers.iter();
        followers.position(|follower| follower.session == Some(session))
    }

    pub(super) fn send(&mut self, session: SessionId, update: Update) -> Result<(), String> {
        if let Some(host) = self.host_of(session) {
            self.check_first(host, &update)?;
            self.tell(|| format!("version {} goes to host {host}", update.number));
            self.deliver(host, 0, Happening::Arrive(host, session, update));
        }
        Ok(())
    }

    /// A host with a copy of this term gets only the changes since.
    fn check_first(&mut self, host: usize, update: &Update) -> Result<(), String> {
        let Some(had) = self.followers[host].had.take() else {
            return Ok(());
        };
        let now = revision_of(&self.records);
        let is_of_term = now.is_some_and(|now| now.is_of_same_term(&had));
        if !update.directory.is_whole() {
            self.resumed += 1;
        } else if is_of_term && had.number <= update.number {
            return Err(format!("host {host} with {had} gets the whole directory"));
        }
        Ok(())
    }

    /// Delivers a message to a host (0) or from it (1), in order.
    pub(super) fn deliver(&mut self, host: usize, way: usize, message: Happening) {
        let pause = Duration::from_millis(self.rng.u64(1..=MESSAGE));
        let at = self.followers[host].last[way].max(self.now + pause);
        self.followers[host].last[way] = at;
        self.at(at, message);
    }

    pub(super) fn arrive(&mut self, message: Happening) -> Result<(), String> {
        let (Happening::Arrive(host, session, _)
        | Happening::Reply(host, session, ..)
        | Happening::Renewal(host, session, _)
        | Happening::Renewed(host, session, ..)) = message
        else {
            return Ok(());
        };
        let follower = &mut self.followers[host];
        if follower.session != Some(session) {
            // It was lost with its connection.
            return Ok(());
        }
        if follower.faults.contains(&Fault::Cut) {
            follower.held.push_back(message);
            return Ok(());
        }
        let is_for_host = matches!(message, Happening::Arrive(..) | Happening::Renewed(..));
        if follower.session_run != follower.run && is_for_host {
            return Ok(());
        }
        match message {
            Happening::Arrive(_, _, update) => {
                let number = update.number;
                if self.is(Mutant::AnswerFirst) {
                    self.deliver(
                        host,
                        1,
                        Happening::Reply(host, session, number, Answer::Done),
                    );
                }
                let pause = Duration::from_millis(self.rng.u64(1..=APPLICATION));
                let follower = &mut self.followers[host];
                follower.busy = follower.busy.max(self.now) + pause;
                let (run, at) = (follower.run, follower.busy);
                let update = update.directory.whole_message();
                self.at(at, Happening::Applied(host, session, number, update, run));
                Ok(())
            }
            Happening::Reply(_, _, number, answer) => {
                self.tell(|| format!("host {host} answers {number}: {answer:?}"));
                let host = name(host);
                self.handle(Event::Answered {
                    host,
                    session,
                    number,
                    answer,
                })
            }
            Happening::Renewal(_, _, sent) => self.answer_renewal(host, session, sent),
            Happening::Renewed(_, _, sent, needs) => self.hear_renewed(host, sent, needs),
            _ => Ok(()),
        }
    }

    pub(super) fn apply(
        &mut self,
        host: usize,
        session: SessionId,
        number: u64,
        update: DirectoryUpdate,
        run: u64,
    ) -> Result<(), String> {
        let follower = &mut self.followers[host];
        if follower.run != run {
            return Ok(());
        }
        if follower.faults.contains(&Fault::Stuck) {
            let applied = Happening::Applied(host, session, number, update, run);
            follower.stuck.push_back(applied);
            return Ok(());
        }
        let has = revision_of(&follower.records);
        let answer = if follower.faults.contains(&Fault::Full) {
            Answer::Failed("no space".into())
        } else {
            let had = follower.version();
            match update {
                DirectoryUpdate::Whole(records) => follower.records = records,
                DirectoryUpdate::Changes { since, put, remove } => {
                    let goes_on =
                        |has: Revision| has.is_of_same_term(&since) && since.number <= has.number;
                    if !has.is_some_and(goes_on) {
                        return Err(format!(
                            "host {host} gets changes since {since}, has {has:?}"
                        ));
                    }
                    Changes { put, remove }.apply_to(&mut follower.records);
                }
            }
            let has = follower.version();
            if has < had {
                return Err(format!("host {host} goes back from version {had} to {has}"));
            }
            if follower.records != self.versions[has] {
                return Err(format!("host {host} has no true version {has}"));
            }
            self.extend(host)?;
            if self.rng.u32(0..20) == 0 {
                Answer::Except(EXCEPTION.into())
            } else {
                Answer::Done
            }
        };
        let is_done = self.is(Mutant::FailedIsDone);
        let answer = if is_done { Answer::Done } else { answer };
        let version = self.followers[host].version();
        self.tell(|| format!("host {host} has version {version}: {answer:?}"));
        if self.followers[host].session == Some(session) && !self.is(Mutant::AnswerFirst) {
            self.deliver(host, 1, Happening::Reply(host, session, number, answer));
        }
        Ok(())
    }

    pub(super) fn fail(&mut self) -> Result<(), String> {
        let count = self.followers.len();
        let host = self.rng.usize(0..=count);
        if host == count {
            self.kill_leader();
            return Ok(());
        }
        let faults = [Fault::Stuck, Fault::Cut, Fault::Killed, Fault::Full];
        let fault = faults[self.rng.usize(0..faults.len())];
        if self.followers[host].faults.contains(&fault) {
            return Ok(());
        }
        self.tell(|| format!("host {host} is {fault:?}"));
        self.followers[host].faults.push(fault);
        let most = if fault == Fault::Stuck {
            60_000
        } else {
            20_000
        };
        self.after(most, Happening::End(host, fault));
        match fault {
            Fault::Killed => {
                self.lose_clients(Some(host));
                let follower = &mut self.followers[host];
                follower.run += 1;
                follower.lease = Lease::since(follower.lease.begin());
                follower.stuck.clear();
                let session = follower.session;
                // The kernel of its host ends the connection, unless the cable is cut.
                let is_cut = follower.faults.contains(&Fault::Cut);
                let notice = if is_cut { NOTICED } else { 10 };
                if let Some(session) = session {
                    self.after(notice, Happening::Notice(host, session));
                }
            }
            Fault::Cut => {
                if let Some(session) = self.followers[host].session {
                    let at = self.now + Duration::from_millis(NOTICED);
                    self.at(at, Happening::Notice(host, session));
                }
            }
            Fault::Stuck | Fault::Full => {}
        }
        Ok(())
    }

    pub(super) fn recover(&mut self, host: usize, fault: Fault) -> Result<(), String> {
        self.tell(|| format!("host {host} is not {fault:?} any more"));
        // It may still have to connect, to catch up, and to wait for the next try.
        self.disturb(host, 8_000);
        let follower = &mut self.followers[host];
        follower.faults.retain(|its| *its != fault);
        match fault {
            Fault::Stuck => {
                for applied in std::mem::take(&mut follower.stuck) {
                    self.at(self.now, applied);
                }
            }
            Fault::Cut => {
                for message in std::mem::take(&mut follower.held) {
                    self.at(self.now, message);
                }
                self.after(2_000, Happening::Connect(host));
            }
            Fault::Killed => self.after(2_000, Happening::Connect(host)),
            Fault::Full => {}
        }
        Ok(())
    }

    /// Both sides notice the end of a connection, unless the cable was mended in time.
    pub(super) fn notice(&mut self, host: usize, session: SessionId) -> Result<(), String> {
        let follower = &self.followers[host];
        let is_dead = follower.session_run != follower.run || follower.faults.contains(&Fault::Cut);
        if follower.session != Some(session) || !is_dead {
            return Ok(());
        }
        self.tell(|| format!("the session with host {host} has ended"));
        self.disturb(host, 8_000);
        let follower = &mut self.followers[host];
        follower.session = None;
        follower.held.clear();
        self.lose_leader(|asked| asked.session == Some(session));
        self.after(2_000, Happening::Connect(host));
        self.handle(Event::Left {
            host: name(host),
            session,
        })
    }

    pub(super) fn connect(&mut self, host: usize) -> Result<(), String> {
        let follower = &self.followers[host];
        let is_away = [Fault::Cut, Fault::Killed];
        let is_away = follower.faults.iter().any(|fault| is_away.contains(fault));
        if is_away || follower.session.is_some() || self.core.is_none() {
            return Ok(());
        }
        self.last += 1;
        let session = SessionId(self.last);
        self.tell(|| format!("host {host} connects as {session:?}"));
        self.disturb(host, 1_000);
        let is_silent = self.is(Mutant::Silent);
        let follower = &mut self.followers[host];
        (follower.session, follower.session_run) = (Some(session), follower.run);
        let has = revision_of(&follower.records);
        follower.had = has;
        let run = follower.run;
        self.at(self.now, Happening::Renew(host, session, run));
        self.handle(Event::Joined {
            host: name(host),
            session,
            has: has.filter(|_| !is_silent),
        })
    }

    /// The sessions of these attempts have ended.
    fn lose_leader(&mut self, which: impl Fn(&Asked) -> bool) {
        let lost = self.asked.values().filter(|asked| which(asked));
        let lost: Vec<RequestId> = lost.map(|asked| asked.request).collect();
        lost.into_iter().for_each(|request| self.lose(request));
    }

    /// Everything in memory is lost, with all requests and sessions.
    pub(super) fn kill_leader(&mut self) {
        if self.core.take().is_none() {
            return;
        }
        self.tell(|| "the leader is killed".into());
        self.lose_clients(None);
        self.lose_leader(|asked| asked.session.is_some());
        self.asked.clear();
        self.deciding.clear();
        for host in 0..self.followers.len() {
            self.disturb(host, 20_000);
            let follower = &mut self.followers[host];
            follower.session = None;
            follower.held.clear();
        }
        self.after(10_000, Happening::Restart);
    }
}
