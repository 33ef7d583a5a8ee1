//! The way back to the next agent, after one was killed.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use toroid_fabric::mem::Status;
use toroid_fabric::{NodeId, Partition, Protocol};
use toroid_model::info::DomainMembers;
use toroid_model::refusal::RefusalKind;
use toroid_protocol::agent::{Message, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use super::{Control, End, lock};
use crate::member::regions;

/// Pauses between attempts grow from the first to the second.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// Why an attempt has failed.
enum Failure {
    /// There may be an agent later.
    NotYet,
    /// There is one, and it does not know us.
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

/// Comes back; returns where the next agent is heard, or nothing when that makes no sense any more.
/// The application may drop the attachment meanwhile, so it is not held.
pub(super) fn come_back(listening: &Weak<Control>) -> Option<Reader> {
    let mut pause = BACK_OFF[0];
    loop {
        if listening.upgrade()?.patience().is_zero() {
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
    // Until there is an agent nobody answers.
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

/// Calls and accesses that wait for an agent do not wait for ever.
fn await_answer(listening: &Weak<Control>, reader: &Reader) -> Result<(), Failure> {
    let Some(patience) = listening.upgrade().map(|control| control.patience()) else {
        return Ok(());
    };
    let mut stream = [PollFd::new(reader.stream().as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
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
            // It had no place for us, or no thread.
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
        // Who drops the last handle shuts this down, and so ends our wait.
        lock(&self.outbox).writer = writer.clone();
        let ticket = self.ticket.get().ok_or(Failure::Never)?.clone();
        let books = lock(&self.books);
        let listeners = books.listeners.keys();
        let resume = Request::Resume {
            attachment: ticket.attachment,
            secret: ticket.secret,
            regions: books.exports.iter().map(|key| key.id.0).collect(),
            channels: books.channels.keys().copied().collect(),
            listeners: listeners.map(|(of, protocol)| (of.0, protocol.0)).collect(),
        };
        drop(books);
        writer.send(&Request::Hello { version: VERSION }, &[])?;
        Ok(writer.send(&resume, &[])?)
    }

    /// What the agent no longer knows has ended.
    fn end_all_but(&self, regions: &[u64], channels: &[u64], listeners: &[(u32, u16)]) {
        let regions: HashSet<&u64> = regions.iter().collect();
        let channels: HashSet<&u64> = channels.iter().collect();
        let mut books = lock(&self.books);
        let ended = books
            .regions
            .forget_where(|key, _| !regions.contains(&key.id.0));
        books.forsake_channels(|id| !channels.contains(id));
        books
            .listeners
            .retain(|(Partition(of), Protocol(protocol)), listener| {
                let stays = listeners.contains(&(*of, *protocol));
                if !stays {
                    listener.close(End::Revoked);
                }
                stays
            });
        drop(books);
        regions::end(ended, Status::peer_died);
    }

    /// Members may have left while there was no agent to tell.
    fn learn_domains(&self, domains: &[DomainMembers]) {
        let known: Vec<Partition> = lock(&self.books).partitions.keys().copied().collect();
        for partition in known {
            let now = domains
                .iter()
                .find(|domain| domain.partition == partition.0);
            let epoch = now.map_or(0, |domain| domain.epoch);
            let stays = |peer: NodeId| now.is_some_and(|domain| domain.members.contains(&peer.0));
            let ended = lock(&self.books).on_epoch(partition, epoch, |peer| !stays(peer));
            regions::end(ended, Status::revoke);
        }
    }

    /// The agent has taken us back: asks again what its predecessor has not answered. What there
    /// is to acknowledge it tells again.
    fn ask_again(self: &Arc<Self>, writer: Writer) -> Result<(), Failure> {
        let mut outbox = lock(&self.outbox);
        // A grant of the predecessor is taken back by `Resume`, or found done. A change may have
        // been made: its caller learns that the agent was lost.
        outbox
            .expected
            .retain(|expected| !expected.request.is_change());
        for expected in &outbox.expected {
            writer.send(&expected.request, &[])?;
        }
        outbox.writer = writer;
        outbox.lost = None;
        drop(outbox);
        let moving = lock(&self.books).regions.moving();
        regions::ask_again(self, moving);
        Ok(())
    }
}
