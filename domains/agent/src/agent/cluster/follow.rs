//! A follower: one session with the holder of the directory, again and again.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Reply, Request};
use toroid_protocol::hosts::{Answer, Ask, Claim, Who};

use super::link::{Link, NoAnswer};
use super::{Cluster, adopt, broker, listeners, unreachable};
use crate::agent::AgentError;
use crate::agent::audit::Caller;
use crate::agent::host::Host;
use crate::hosts::secure::Session;

/// Pauses before the holder is called again.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// How long the holder may take to make a change: others may come before it.
const PATIENCE: Duration = Duration::from_secs(300);

const STACK_BYTES: usize = 256 * 1024;

/// Follows until the agent ends.
pub(super) fn begin(host: &Arc<Host>, cluster: &Arc<Cluster>) -> Result<(), AgentError> {
    let (host, cluster) = (Arc::clone(host), Arc::clone(cluster));
    let builder = thread::Builder::new().stack_size(STACK_BYTES);
    let started = builder.spawn(move || follow(&host, &cluster));
    started.map(drop).map_err(|source| AgentError::System {
        action: "start the thread that follows the directory",
        source,
    })
}

fn follow(host: &Arc<Host>, cluster: &Arc<Cluster>) {
    let holder = &cluster.config.directory;
    let claim = Claim {
        nodes: cluster.config.nodes.clone(),
        aliases: cluster.config.aliases.clone(),
    };
    let mut pause = BACK_OFF[0];
    while !host.is_ending() {
        match cluster.dial(holder, Some(claim.clone())) {
            Ok(session) => {
                pause = BACK_OFF[0];
                attend(host, cluster, session);
            }
            Err(error) => host.note_problem(cluster, holder, &error.to_string()),
        }
        thread::sleep(pause);
        pause = BACK_OFF[1].min(pause * 2);
    }
}

fn attend(host: &Arc<Host>, cluster: &Arc<Cluster>, session: Session) {
    let holder = &cluster.config.directory;
    tracing::info!("following the directory of host {holder}");
    cluster.problems.clear(holder);
    let link = Link::new(holder.clone(), session.writer);
    let mut to_holder = cluster.holder();
    to_holder.link = Some(Arc::clone(&link));
    to_holder.differs = true;
    drop(to_holder);
    let (served, books) = (Arc::clone(host), Arc::clone(cluster));
    let end = link.attend(session.reader, move |ask| serve(&served, &books, ask));
    cluster.holder().link = None;
    if !host.is_ending() {
        host.note_problem(cluster, holder, &format!("its session has ended: {end}"));
    }
}

fn serve(host: &Arc<Host>, cluster: &Cluster, ask: Ask) -> Answer {
    match ask {
        Ask::Adopt(adoption) => match adopt::adopt(host, adoption) {
            Ok(exceptions) => {
                let mut holder = cluster.holder();
                holder.has_come = true;
                holder.differs = false;
                drop(holder);
                cluster.came.notify_all();
                done_except(&exceptions)
            }
            Err(refusal) => {
                cluster.holder().differs = true;
                host.note_problem(cluster, &cluster.config.directory, &refusal.message);
                Answer::Refused(refusal)
            }
        },
        Ask::Ticket(wanted) => {
            broker::give_ticket(host, cluster, &cluster.config.directory, wanted)
        }
        Ask::Listeners(sought) => {
            listeners::answer(host, cluster, &cluster.config.directory, sought)
        }
        Ask::Change { .. } => {
            let message = format!("host {} does not hold the directory", cluster.config.host);
            Answer::Refused(Refusal::new(RefusalKind::Invalid, message, ""))
        }
    }
}

fn done_except(exceptions: &[Refusal]) -> Answer {
    for exception in exceptions {
        tracing::warn!("{exception}");
    }
    let texts: Vec<&str> = exceptions.iter().map(|e| e.message.as_str()).collect();
    if texts.is_empty() {
        Answer::Done
    } else {
        Answer::DoneExcept(texts.join("; "))
    }
}

impl Cluster {
    /// Lets the holder make a change for somebody here; answers with its words.
    pub(in crate::agent) fn forward(
        &self,
        who: Who,
        caller: &Caller,
        request: &Request,
    ) -> Result<Reply, Refusal> {
        let holder = &self.config.directory;
        let link = self.holder().link.clone();
        let Some(link) = link else {
            let why = self.problems.of(holder);
            let why = why.unwrap_or_else(|| "it has not answered yet".into());
            let remedy = "nothing was changed; see to that host, because its agent holds the \
                          directory";
            return Err(unreachable(holder, &why, remedy));
        };
        let ask = Ask::Change {
            who,
            pid: caller.pid,
            request: request.clone(),
        };
        match link.ask(ask, PATIENCE) {
            Ok(Answer::Reply(reply)) => Ok(*reply),
            Ok(Answer::Refused(refusal)) => Err(refusal),
            Ok(_) => Err(unreachable(holder, "it does not answer as it should", "")),
            Err(error @ (NoAnswer::Ended | NoAnswer::Late)) => {
                let remedy =
                    "whether the change was made is unknown: look, and make it again if not";
                Err(unreachable(holder, &error.to_string(), remedy))
            }
        }
    }
}
