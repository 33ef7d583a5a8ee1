//! Candidacy of a host for the lead of a directory on etcd.
//!
//! An agent's role is a property of its start: it leads if it wins the election then, and otherwise
//! follows. When the role changes the agent [starts again](crate::start::again): a follower that
//! wins later, and a leader that another one has replaced. So does a leader that etcd does not
//! answer for the time of its lease, because another candidate may lead then, and one whose change
//! etcd has refused because another one leads.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;
use toroid_model::directory::records::Records;
use toroid_model::hosts::etcd::EtcdConfig;
use toroid_model::hosts::{ETCD, HostConfig};
use toroid_model::info::EtcdState;
use toroid_model::refusal::Refusal;

use super::Cluster;
use super::confirmation::Reads;
use super::etcd::{Election, Etcd, EtcdError, EtcdStore, Tenure};
use super::moves::Moves;
use crate::error::{AgentError, during};
use crate::leases::Leases;
use crate::store::{Store, ownership};
use crate::threads;

/// Time that the start waits for etcd. Then this host follows, and goes on trying.
const PATIENCE: Duration = Duration::from_secs(3);

/// The same after etcd has not answered a former life.
const GLANCE: Duration = Duration::from_millis(500);

/// The same after a former life has won the election: other hosts wait for this one. Then it leaves
/// the lead to them.
const ELECTED: Duration = Duration::from_secs(9);

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Pauses before a host stands again that could not begin to lead, so that others come first. Each
/// is twice as long as the one before, up to the last.
const REST: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

/// File with the lease of this host's last tenure, in its data directory.
const LEASE: &str = "lease";

/// Makes the agent start again.
pub(crate) type StartAgain = Arc<dyn Fn() + Send + Sync>;

/// State of the candidacy that a life of the agent passes on to the next one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Legacy {
    /// Why etcd could not be used.
    problem: Option<Refusal>,
    /// Lease of the leader's key, if this host has won the election.
    lease: Option<i64>,
    /// Last attempt to lead, if it failed.
    failed: Option<Failed>,
}

impl Legacy {
    /// State of a host that has this lease.
    pub(crate) fn with(lease: i64) -> Self {
        Legacy {
            lease: Some(lease),
            ..Legacy::default()
        }
    }
}

/// An attempt to begin to lead that failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Failed {
    why: Refusal,
    /// Number of such attempts without success between them.
    times: u32,
}

impl Failed {
    /// Time before the next attempt.
    fn rest(&self) -> Duration {
        let doubled = 2_u32.saturating_pow(self.times.saturating_sub(1));
        REST[0].saturating_mul(doubled).min(REST[1])
    }
}

/// The candidacy.
#[derive(Debug)]
pub(crate) struct Candidacy {
    config: EtcdConfig,
    host: String,
    torus: Torus,
    lease: PathBuf,
    moves: Arc<Moves>,
    state: Mutex<State>,
    changed: Condvar,
    /// The tenure of this life.
    tenure: OnceLock<Tenure>,
    pub(super) reads: Reads,
    /// Store of the tenure, from the begin of its term.
    pub(crate) store: Arc<OnceLock<Mutex<EtcdStore>>>,
}

#[derive(Debug, Default)]
struct State {
    etcd: Option<Etcd>,
    outcome: Option<Result<Option<Lead>, EtcdError>>,
    /// Whether this host ends, and takes the lead no more.
    is_ending: bool,
    /// Whether the start does not wait for the outcome any more.
    is_late: bool,
    /// End of the rest after the last attempt to lead.
    rests_until: Option<Instant>,
    /// Lease of the leader's key, if this host has won the election.
    won: Option<i64>,
    /// Last attempt to lead, if it failed.
    failed: Option<Failed>,
    /// Whether a move of the directory keeps this host from the lead.
    is_barred: bool,
    /// Present problem with etcd.
    problem: Option<Refusal>,
    /// Whether this host has led, and does not any more because of this problem.
    has_stepped_down: bool,
}

impl State {
    /// Whether other candidates come first.
    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|end| Instant::now() < end)
    }

    /// Notes that an attempt to lead has failed.
    fn fail(&mut self, why: &Refusal) {
        let failed = Failed {
            why: why.clone(),
            times: self.failed.as_ref().map_or(1, |before| before.times + 1),
        };
        let rest = failed.rest();
        tracing::error!("this host cannot lead, and tries again in {rest:?}: {why}");
        self.rests_until = Some(Instant::now() + rest);
        self.failed = Some(failed);
        self.won = None;
    }
}

/// A won election.
#[derive(Debug)]
pub(crate) struct Lead {
    etcd: Etcd,
    tenure: Tenure,
    /// Time before the records were read.
    pub(crate) since: Duration,
    /// Records of the directory; none if etcd has no directory yet.
    pub(crate) records: Records,
}

impl Lead {
    pub(crate) fn store(&self) -> EtcdStore {
        self.etcd.store(&self.tenure)
    }
}

impl Candidacy {
    /// Candidacy of a host whose data are there, if the host may lead with a directory on etcd.
    pub(crate) fn of(
        config: &HostConfig,
        data: &Path,
        legacy: Legacy,
        moves: Arc<Moves>,
    ) -> Option<Arc<Self>> {
        let etcd = config.candidacy()?;
        let failed = legacy.failed.as_ref().filter(|_| legacy.lease.is_none());
        let state = State {
            rests_until: failed.map(|failed| Instant::now() + failed.rest()),
            won: legacy.lease,
            failed: legacy.failed,
            problem: legacy.problem,
            ..State::default()
        };
        Some(Arc::new(Candidacy {
            config: etcd.clone(),
            host: config.host.clone(),
            torus: config.torus,
            lease: data.join(LEASE),
            moves,
            state: Mutex::new(state),
            changed: Condvar::new(),
            tenure: OnceLock::new(),
            reads: Reads::default(),
            store: Arc::default(),
        }))
    }

    /// State for the next life.
    pub(crate) fn legacy(&self) -> Legacy {
        let state = self.state.lock();
        Legacy {
            problem: state.problem.clone().filter(|_| state.has_stepped_down),
            lease: state.won,
            failed: state.failed.clone(),
        }
    }

    /// Whether this host leads in this life of its agent.
    pub(crate) fn is_elected(&self) -> bool {
        self.tenure.get().is_some()
    }

    /// Whether etcd can be used at present, and the problem if there is one.
    pub(crate) fn describe(&self) -> (EtcdState, Option<Refusal>) {
        let state = self.state.lock();
        let trouble = state.etcd.as_ref().and_then(Etcd::trouble);
        let trouble = trouble.map(|error| error.refusal());
        match (&state.etcd, trouble.or(state.problem.clone())) {
            (Some(_), None) => {
                let failed = state.failed.as_ref().filter(|_| state.rests());
                (EtcdState::Connected, failed.map(|its| its.why.clone()))
            }
            (None, None) => (EtcdState::Connecting, None),
            (_, problem) => (EtcdState::Unreachable, problem),
        }
    }

    /// Stands for election. Returns the lead if this host has won; `None` if another host leads, or
    /// if that is not known soon. If this host wins later its agent starts again.
    ///
    /// # Errors
    /// [`EtcdError`] if etcd cannot be used as the file says.
    pub(crate) fn stand(self: &Arc<Self>, again: StartAgain) -> Result<Option<Lead>, StandError> {
        let standing = Arc::clone(self);
        let mut state = self.state.lock();
        let patience = match (&state.problem, state.won) {
            (Some(_), _) => GLANCE,
            (None, Some(_)) => ELECTED,
            (None, None) => PATIENCE,
        };
        threads::start_named("election", move || standing.try_to_stand(&again))
            .map_err(StandError::Thread)?;
        let is_open = |state: &mut State| state.outcome.is_none();
        self.changed.wait_while_for(&mut state, is_open, patience);
        state.is_late = true;
        let error = match state.outcome.take() {
            Some(Ok(lead)) => return Ok(lead),
            Some(Err(error)) => Some(error),
            None => None,
        };
        if patience == ELECTED {
            let late = || EtcdError::Unreachable(format!("no answer in {ELECTED:?}"));
            let why = error.clone().unwrap_or_else(late);
            state.fail(&why.refusal());
        }
        // The lease ends, because no further attempt renews it.
        state.won = None;
        if let Some(error) = error {
            return Err(error.into());
        }
        let why = state.problem.as_ref().map(ToString::to_string);
        let why = why.unwrap_or_else(|| "it has not answered yet".into());
        tracing::warn!("following without etcd: {why}");
        Ok(None)
    }

    fn try_to_stand(&self, again: &StartAgain) {
        loop {
            let tried = self.try_once();
            let mut state = self.state.lock();
            match tried {
                Ok(Some(lead)) if state.is_late && state.rests() => {
                    drop(state);
                    return lead.etcd.resign();
                }
                Ok(lead) if state.is_late => {
                    if let Some(lead) = lead {
                        state.won = Some(lead.tenure.lease);
                        drop(state);
                        start_again(again, "this host leads from now on");
                    }
                    return;
                }
                Ok(lead) => {
                    state.outcome = Some(Ok(lead));
                    self.changed.notify_all();
                    return;
                }
                Err(error) => {
                    if is_final(&error) && !state.is_late {
                        state.outcome = Some(Err(error));
                        self.changed.notify_all();
                    }
                }
            }
            drop(state);
            thread::sleep(PAUSE);
        }
    }

    /// Connects if there is no connection, and stands for election.
    fn try_once(&self) -> Result<Option<Lead>, EtcdError> {
        let state = self.state.lock();
        let (present, won) = (state.etcd.clone(), state.won);
        drop(state);
        let opened = match present {
            Some(etcd) => Ok(etcd),
            None => Etcd::open(&self.config, self.torus, won),
        };
        let etcd = self.note(opened)?;
        self.state.lock().etcd = Some(etcd.clone());
        self.changed.notify_all();
        if self.state.lock().rests() {
            // The lease that a former life has won was renewed.
            etcd.resign();
            return Ok(None);
        }
        let Some(tenure) = self.campaign(&etcd)? else {
            return Ok(None);
        };
        let since = Leases::now();
        let records = etcd.store(&tenure).load().map_err(|error| {
            self.state.lock().won = None;
            etcd.resign();
            EtcdError::Refused(error.to_string())
        });
        let records = self.note(records)?;
        Ok(Some(Lead {
            etcd,
            tenure,
            since,
            records,
        }))
    }

    /// Whether the directory has moved away from etcd, or has arrived there by a move which was not
    /// committed as far as this host knows.
    fn is_barred(&self, etcd: &Etcd) -> Result<bool, EtcdError> {
        let Some((moved, is_arriving)) = self.note(etcd.moved())? else {
            self.state.lock().is_barred = false;
            return Ok(false);
        };
        let is_elsewhere = moved.to != ETCD;
        let is_barred = is_elsewhere || is_arriving && self.moves.kept().as_ref() != Some(&moved);
        let before = std::mem::replace(&mut self.state.lock().is_barred, is_barred);
        if is_barred && !before {
            tracing::warn!("this host does not lead: the directory was moved to {moved}");
        }
        if is_elsewhere {
            self.moves.note(moved);
        }
        Ok(is_barred)
    }

    /// Takes the lead if it is free, unless this host ends.
    fn campaign(&self, etcd: &Etcd) -> Result<Option<Tenure>, EtcdError> {
        let state = self.state.lock();
        let (won, is_ending) = (state.won, state.is_ending);
        drop(state);
        if is_ending || self.is_barred(etcd)? {
            return Ok(None);
        }
        let outcome = self.note(etcd.campaign(&self.host, won.or_else(|| self.kept_lease())))?;
        Ok(match outcome {
            Election::Won(tenure) => {
                let mut state = self.state.lock();
                if state.is_ending {
                    // It may have found nothing to give up before.
                    drop(state);
                    etcd.resign();
                    return Ok(None);
                }
                state.won = Some(tenure.lease);
                drop(state);
                let text = format!("{}\n", tenure.lease);
                if let Err(error) = ownership::replace(&self.lease, text.as_bytes()) {
                    // Only a killed agent's next life would need it.
                    tracing::warn!("{}: {error}", self.lease.display());
                }
                Some(tenure)
            }
            Election::Led(leader) => {
                if leader != self.host {
                    self.state.lock().won = None;
                }
                None
            }
        })
    }

    /// Lease of this host's last tenure, which may have ended.
    fn kept_lease(&self) -> Option<i64> {
        let text = fs::read_to_string(&self.lease).ok()?;
        text.trim().parse().ok()
    }

    /// Notes whether etcd could be used.
    fn note<T>(&self, result: Result<T, EtcdError>) -> Result<T, EtcdError> {
        let problem = result.as_ref().err().map(EtcdError::refusal);
        let before = std::mem::replace(&mut self.state.lock().problem, problem.clone());
        if let Some(problem) = problem.filter(|problem| before.as_ref() != Some(problem)) {
            tracing::warn!("etcd: {problem}");
        }
        result
    }

    /// Whether a majority says that this host leads.
    pub(super) fn leads(&self) -> Result<bool, EtcdError> {
        let etcd = self.state.lock().etcd.clone();
        match (etcd, self.tenure.get()) {
            (Some(etcd), Some(tenure)) => etcd.lasts(tenure),
            _ => Ok(false),
        }
    }

    /// Notes that this host leads in this life.
    pub(crate) fn lead(&self, lead: &Lead) {
        // There is one election in a life.
        let _ = self.tenure.set(lead.tenure);
        tracing::info!(
            "this host leads, elected in etcd's revision {}",
            lead.tenure.term
        );
    }

    /// Keeps changes in the store of the term from now on.
    pub(crate) fn begin(&self, store: EtcdStore) {
        // There is one term in a life.
        let _ = self.store.set(Mutex::new(store));
    }

    /// Notes that this host makes changes from now on.
    pub(crate) fn has_begun(&self) {
        self.state.lock().failed = None;
    }

    /// Gives the lead up, which this host cannot begin. It stands for election again after a pause,
    /// and other candidates before.
    pub(crate) fn fail(&self, why: &Refusal) {
        self.state.lock().fail(why);
        self.resign();
    }

    /// Takes the lead no more, because this host ends.
    pub(crate) fn stand_no_more(&self) {
        self.state.lock().is_ending = true;
    }

    /// Gives the lead up, if this host has it.
    pub(crate) fn resign(&self) {
        let mut state = self.state.lock();
        state.won = None;
        let etcd = state.etcd.clone();
        drop(state);
        if let Some(etcd) = etcd {
            etcd.resign();
        }
    }

    /// Watches who leads from now on.
    pub(crate) fn watch(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        again: StartAgain,
    ) -> Result<(), AgentError> {
        let (candidacy, cluster) = (Arc::clone(self), Arc::clone(cluster));
        let attend = move || candidacy.attend(&cluster, &again);
        threads::start_named("candidacy", attend)
            .map(drop)
            .map_err(during("start the thread that watches the leader"))
    }

    fn attend(&self, cluster: &Cluster, again: &StartAgain) {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |state| state.etcd.is_none());
        let Some(etcd) = state.etcd.clone() else {
            return;
        };
        drop(state);
        let (sender, leaders) = mpsc::channel();
        // The receiver is there as long as this agent.
        etcd.watch_leader(move |leader| _ = sender.send(leader));
        let mut is_free = false;
        loop {
            let left = etcd.left().filter(|_| self.is_elected());
            let pause = left.map_or(PAUSE, |left| left.min(PAUSE));
            let leader = match (is_free, leaders.recv_timeout(pause)) {
                (_, Ok(leader)) => leader,
                (true, Err(RecvTimeoutError::Timeout)) => None,
                (false, Err(RecvTimeoutError::Timeout)) => match etcd.left() {
                    _ if !self.is_elected() => continue,
                    None => return self.lead_no_more(again, "its lease in etcd has ended"),
                    Some(Duration::ZERO) => return self.step_down(cluster, &etcd, again),
                    Some(_) => continue,
                },
                (_, Err(RecvTimeoutError::Disconnected)) => return,
            };
            is_free = leader.is_none();
            if self.is_elected() {
                if leader.as_ref() != Some(&self.host) {
                    let next = leader.map_or("no host".into(), |leader| format!("host {leader}"));
                    return self.lead_no_more(again, &format!("{next} does"));
                }
                continue;
            }
            if !is_free {
                // Its own name is that of a former life, whose lease ends soon.
                cluster.name_leader(leader.filter(|leader| *leader != self.host));
                continue;
            }
            let is_barred = self.state.lock().is_barred;
            if !is_barred {
                cluster.name_leader(None);
            }
            if self.state.lock().rests() {
                continue;
            }
            match self.campaign(&etcd) {
                Ok(Some(_)) => return start_again(again, "this host leads from now on"),
                // The watch tells of the leader.
                Ok(None) => is_free = self.state.lock().is_barred,
                Err(_) => {}
            }
        }
    }

    /// Starts again as a follower, because this host has lost the lead.
    fn lead_no_more(&self, again: &StartAgain, why: &str) {
        self.state.lock().won = None;
        start_again(again, &format!("this host leads no more; {why}"));
    }

    /// Leads no more, because another candidate may do so. Changes that wait for etcd end before
    /// this life does, so that their callers get an answer.
    fn step_down(&self, cluster: &Cluster, etcd: &Etcd, again: &StartAgain) {
        let mut state = self.state.lock();
        state.problem = Some(EtcdError::Unrenewed.refusal());
        state.has_stepped_down = true;
        drop(state);
        etcd.give_up();
        start_again(again, &EtcdError::Unrenewed.to_string());
        // Changes that take effect may last until this life ends, and followers shall not wait.
        cluster.part_from_followers();
    }
}

fn start_again(again: &StartAgain, why: &str) {
    tracing::warn!("{why}");
    again();
}

/// Failure to stand for election.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StandError {
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Whether an error does not go away by itself.
fn is_final(error: &EtcdError) -> bool {
    !matches!(
        error,
        EtcdError::Unreachable(_)
            | EtcdError::NoMajority(_)
            | EtcdError::NoSpace
            | EtcdError::Unrenewed
            | EtcdError::Overtaken
            | EtcdError::Refused(_)
    )
}

#[cfg(test)]
mod tests {
    use toroid_model::refusal::RefusalKind;

    use super::*;

    #[test]
    fn pauses_before_further_attempts_to_lead_grow_up_to_a_bound() {
        let rest = |times| {
            let why = Refusal::new(RefusalKind::Exhausted, "full", "");
            Failed { why, times }.rest()
        };
        let rests: Vec<u64> = (1..9).map(|times| rest(times).as_secs()).collect();
        assert_eq!(rests, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(rest(u32::MAX), REST[1]);
    }
}
