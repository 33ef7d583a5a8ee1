//! What a connected follower has of the directory, and what it is sent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Action, Answer, SessionId, TIMEOUT, Update};
use crate::control::log::Log;

/// Pauses before an update is sent again to a host that failed to apply it.
const BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// A connected follower.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) session: SessionId,
    /// Number of the last change for which it does not wait for a round.
    pub(super) urgent: u64,
    /// Number of the last change that is in effect there.
    pub(super) has: Option<u64>,
    /// Number of the directory there, if known.
    pub(super) base: Option<u64>,
    pub(super) is_asked: bool,
    /// Number of the change that failed there, and the reason.
    failed: Option<(u64, String)>,
    /// Number of the last change that is in effect there with exceptions, and these.
    except: Option<(u64, String)>,
    /// Earliest time of the next update, after a failure.
    pub(super) retry: Option<Instant>,
    pause: Duration,
}

impl Follower {
    pub(super) fn new(session: SessionId) -> Self {
        Follower {
            session,
            urgent: 0,
            has: None,
            base: None,
            is_asked: false,
            failed: None,
            except: None,
            retry: None,
            pause: BACKOFF[0],
        }
    }

    /// Sends it the changes that it lacks, as one update, unless it has to answer one or its pause
    /// after a failure has not passed.
    pub(super) fn update(&mut self, now: Instant, log: &mut Log, actions: &mut Vec<Action>) {
        let number = log.number();
        let may_send = !self.is_asked && self.retry.is_none_or(|at| at <= now);
        if may_send && self.base != Some(number) {
            self.is_asked = true;
            self.retry = None;
            actions.push(Action::Send {
                session: self.session,
                update: Update {
                    number,
                    directory: log.since(self.base),
                },
            });
        }
    }

    pub(super) fn hear(&mut self, now: Instant, number: u64, answer: Answer) {
        self.is_asked = false;
        if let Answer::Failed(why) = answer {
            self.base = None;
            self.failed = Some((number, why));
            self.retry = Some(now + self.pause);
            self.pause = BACKOFF[1].min(self.pause * 2);
            return;
        }
        (self.has, self.base) = (Some(number), Some(number));
        self.failed = None;
        self.pause = BACKOFF[0];
        if let Answer::Except(what) = answer {
            self.except = Some((number, what));
        }
    }

    /// Whether the host may still apply a change.
    pub(super) fn lacks(&self, number: u64) -> bool {
        let has_failed = self
            .failed
            .as_ref()
            .is_some_and(|(failed, _)| *failed >= number);
        self.has.is_none_or(|has| has < number) && !has_failed
    }

    /// Reason why a change is not in effect there.
    pub(super) fn why_not(&self, number: u64) -> Option<String> {
        match &self.failed {
            _ if self.has.is_some_and(|has| has >= number) => {
                let except = self.except.as_ref().filter(|(last, _)| *last >= number);
                except.map(|(_, what)| what.clone())
            }
            Some((_, why)) => Some(why.clone()),
            None => Some(format!("it has not answered in {} s", TIMEOUT.as_secs())),
        }
    }
}

/// The follower of a host, if this is its session.
pub(super) fn in_session<'a>(
    followers: &'a mut BTreeMap<String, Follower>,
    host: &str,
    session: SessionId,
) -> Option<&'a mut Follower> {
    let follower = followers.get_mut(host);
    follower.filter(|follower| follower.session == session)
}
