//! Resumption of the attachment at the next agent after one was killed.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use toroid_fabric::mem::Status;
use toroid_fabric::{NodeId, Partition};
use toroid_model::info::DomainMembers;
use toroid_model::refusal::RefusalKind;
use toroid_protocol::agent::{Message, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use super::{Control, lock};
use crate::member::regions;
use crate::once::repeat;

/// First and longest pause between attempts.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// Reason why an attempt failed.
enum Failure {
    /// An agent may start later.
    NotYet,
    /// The agent does not know this process.
    Never,
}

impl From<io::Error> for Failure {
    fn from(_: io::Error) -> Self {
        Failure::NotYet
    }
}

impl From<WireError> for Failure {
    fn from(_: WireError) -> Self {
        Failure::NotYet
    }
}

/// Resumes the attachment. Returns the reader of the new connection, or `None` if the attachment has
/// ended. The application may drop the attachment meanwhile, so this function holds no reference.
pub(super) fn come_back(listening: &Weak<Control>) -> Option<Reader> {
    let mut pause = BACK_OFF[0];
    loop {
        if listening.upgrade()?.remaining_timeout().is_zero() {
            listening.upgrade()?.end_awaited();
        }
        match attempt(listening) {
            Ok(reader) => return reader,
            Err(Failure::NotYet) => {}
            Err(Failure::Never) => {
                listening.upgrade()?.close();
                return None;
            }
        }
        thread::sleep(pause);
        pause = BACK_OFF[1].min(pause * 2);
    }
}

fn attempt(listening: &Weak<Control>) -> Result<Option<Reader>, Failure> {
    let Some(control) = listening.upgrade() else {
        return Ok(None);
    };
    let stream = control.dial.dial().map_err(|_| Failure::NotYet)?;
    drop(control);
    let (mut reader, writer) = wire::split(stream)?;
    match listening.upgrade() {
        Some(control) => control.ask_for_return(&writer)?,
        None => return Ok(None),
    }
    // The socket accepts connections also while no agent runs.
    await_answer(listening, &reader)?;
    let welcome = answer(&mut reader)?;
    if !matches!(welcome, Reply::Welcome { .. }) {
        return Err(Failure::Never);
    }
    let resumed = answer(&mut reader)?;
    let Some(control) = listening.upgrade() else {
        return Ok(None);
    };
    match resumed {
        Reply::Resumed {
            regions,
            channels,
            listeners,
            domains,
        } => {
            control.learn_domains(&domains);
            control.end_all_but(&regions, &channels, &listeners);
            control.ask_again(writer)?;
            Ok(Some(reader))
        }
        _ => Err(Failure::Never),
    }
}

/// Waits for the answer of an agent. After [`AGENT_TIMEOUT`](super::AGENT_TIMEOUT), ends the regions
/// for which accesses wait.
fn await_answer(listening: &Weak<Control>, reader: &Reader) -> Result<(), Failure> {
    let Some(remaining) = listening
        .upgrade()
        .map(|control| control.remaining_timeout())
    else {
        return Ok(());
    };
    let mut stream = [PollFd::new(reader.stream().as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX);
    match poll(&mut stream, timeout) {
        Ok(0) => {}
        Ok(_) => return Ok(()),
        Err(error) => return Err(io::Error::from(error).into()),
    }
    if let Some(control) = listening.upgrade() {
        control.end_awaited();
    }
    Ok(())
}

fn answer(reader: &mut Reader) -> Result<Reply, Failure> {
    loop {
        match reader.receive()?.0 {
            // The agent has no free attachment or thread.
            Message::Reply(Reply::Error(refusal)) if refusal.kind == RefusalKind::Exhausted => {
                return Err(Failure::NotYet);
            }
            Message::Reply(Reply::Error(refusal)) => {
                tracing::warn!("the next agent turns us away: {refusal}");
                return Err(Failure::Never);
            }
            Message::Reply(reply) => return Ok(reply),
            Message::Event(_) => {}
        }
    }
}

impl Control {
    fn ask_for_return(&self, writer: &Writer) -> Result<(), Failure> {
        // Dropping the last handle shuts this writer down, which ends the wait for the answer.
        lock(&self.outbox).writer = writer.clone();
        let ticket = self.ticket.get().ok_or(Failure::Never)?.clone();
        let state = lock(&self.state);
        let listeners = state.listeners.keys();
        let resume = Request::Resume {
            attachment: ticket.attachment,
            secret: ticket.secret,
            regions: state.exports.iter().map(|key| key.id.0).collect(),
            channels: state.channels.keys().copied().collect(),
            listeners: listeners.map(|(of, protocol)| (of.0, protocol.0)).collect(),
        };
        drop(state);
        writer.send(&Request::Hello { version: VERSION }, &[])?;
        Ok(writer.send(&resume, &[])?)
    }

    /// Ends all objects that the agent did not list.
    fn end_all_but(&self, regions: &[u64], channels: &[u64], listeners: &[(u32, u16)]) {
        let regions: HashSet<&u64> = regions.iter().collect();
        let channels: HashSet<&u64> = channels.iter().collect();
        let mut state = lock(&self.state);
        let ended = state
            .regions
            .forget_where(|key, _| !regions.contains(&key.id.0));
        state.detach_channels(|id| !channels.contains(id));
        state.end_listeners(|(of, protocol)| listeners.contains(&(of.0, protocol.0)));
        drop(state);
        regions::end(ended, Status::peer_died);
    }

    /// Applies changes of membership that happened without a connection to the agent.
    fn learn_domains(&self, domains: &[DomainMembers]) {
        let known: Vec<Partition> = lock(&self.state).partitions.keys().copied().collect();
        for partition in known {
            let now = domains
                .iter()
                .find(|domain| domain.partition == partition.0);
            let epoch = now.map_or(0, |domain| domain.epoch);
            let stays = |peer: NodeId| now.is_some_and(|domain| domain.members.contains(&peer.0));
            let ended = lock(&self.state).on_epoch(partition, epoch, |peer| !stays(peer));
            regions::end(ended, Status::revoke);
        }
        let stays = |partition: Partition| domains.iter().any(|its| its.partition == partition.0);
        lock(&self.emulation).retain(stays);
    }

    /// Repeats the requests that the previous agent has not answered: [`Request::Resume`] releases the
    /// grant of a first execution, and changes have identifiers. The new agent sends the events to be
    /// acknowledged again.
    fn ask_again(self: &Arc<Self>, writer: Writer) -> Result<(), Failure> {
        let mut outbox = lock(&self.outbox);
        for expected in &mut outbox.expected {
            repeat(&mut expected.request);
            writer.send(&expected.request, &[])?;
        }
        outbox.writer = writer;
        outbox.lost = None;
        drop(outbox);
        let migrating = lock(&self.state).regions.migrating();
        regions::ask_again(self, migrating);
        Ok(())
    }
}
