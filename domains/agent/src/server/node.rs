//! Connections to node sockets.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use toroid_fabric::NodeId;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Reply, Request};
use toroid_protocol::wire::{Reader, WireError};

use super::backlog::Backlog;
use super::share::Share;
use super::{MALFORMED, remote};
use crate::core::audit::Caller;
use crate::core::changes::Standing;
use crate::core::host::{Host, names};
use crate::core::look::look;
use crate::core::once::{self, Asked, Ended, Once, carry_out};
use crate::members::outbox::Outbox;
use crate::members::{AttachmentId, Known};
use crate::net::stack_link;
use crate::threads;

/// A connection to a node socket.
#[derive(Clone)]
pub(super) struct Attached {
    pub(super) host: Arc<Host>,
    pub(super) caller: Caller,
    pub(super) node: NodeId,
    /// Generation of the node; the target proxy has none.
    pub(super) generation: Option<u64>,
    pub(super) outbox: Outbox,
    pub(super) share: Arc<Share>,
}

impl Attached {
    /// Whether the process did not end the connection itself. Then it may go on with its grants.
    pub(super) fn was_cut(&self, end: &Result<(), WireError>) -> bool {
        self.outbox.is_cut() || !matches!(end, Err(WireError::Closed))
    }

    /// Serves the connection to its end. `id` is its attachment, after a resumption that of before.
    pub(super) fn converse(&self, reader: Reader, id: &mut AttachmentId) -> Result<(), WireError> {
        let backlog = Arc::new(Backlog::new(Arc::clone(&self.share)));
        let (attached, waiting) = (self.clone(), Arc::clone(&backlog));
        let serve = move || {
            let all = || {
                while let Some((id, request)) = waiting.next() {
                    attached.outbox.await_room();
                    attached.answer(id, request);
                }
            };
            if panic::catch_unwind(AssertUnwindSafe(all)).is_err() {
                // The reading thread must not wait for this one.
                waiting.close();
                attached.outbox.shut_down();
            }
        };
        let server = threads::start(serve)?;
        let end = self.read_all(reader, id, &backlog);
        // The connection counts against limits until its last change has been made.
        backlog.close();
        let _ = server.join();
        end
    }

    fn read_all(
        &self,
        mut reader: Reader,
        id: &mut AttachmentId,
        backlog: &Backlog<(AttachmentId, Request)>,
    ) -> Result<(), WireError> {
        let members = &self.host.members;
        loop {
            match self.share.receive_from_node(&mut reader) {
                // Neither has a reply, and another request may wait for its effect, even a change
                // of this process itself.
                Ok(Request::Ack { partition, epoch }) => {
                    members.acknowledge(*id, partition, epoch);
                }
                Ok(Request::Fetch { key, chunk }) => members.fetch(*id, key, chunk),
                Ok(request @ Request::Resume { .. }) => self.resume(id, &request),
                Ok(request) => backlog.push((*id, request), reader.last_len()),
                Err(error) => {
                    if let WireError::Malformed(_) = &error {
                        let refusal =
                            Refusal::new(RefusalKind::Invalid, error.to_string(), MALFORMED);
                        self.outbox.reply(Reply::Error(refusal), vec![]);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Resumes a process that was attached to the predecessor.
    fn resume(&self, id: &mut AttachmentId, request: &Request) {
        let Request::Resume {
            attachment,
            secret,
            regions,
            channels,
            listeners,
        } = request
        else {
            return;
        };
        let known = Known {
            regions,
            channels,
            listeners,
        };
        let ticket = (*attachment, secret.as_str());
        match self.host.members.resume(*id, ticket, &known) {
            Ok(before) => *id = before,
            Err(refusal) => self.outbox.reply(Reply::Error(refusal), vec![]),
        }
    }

    fn answer(&self, id: AttachmentId, request: Request) {
        let answer = match once::take_apart(request) {
            Err(refusal) => Err(refusal),
            Ok((request_id, request)) if request.is_change() => {
                self.change(request_id, request).map(Some)
            }
            Ok((_, request)) => {
                let answer = match look(&self.host, self.caller.actor, &request) {
                    Some(answer) => answer.map(Some),
                    None => self.serve(id, &request),
                };
                self.host.note_denial(&self.caller, &request, answer)
            }
        };
        match answer {
            Ok(None) => {}
            Ok(Some(reply)) => self.outbox.reply(reply, vec![]),
            Err(refusal) => self.outbox.reply(Reply::Error(refusal), vec![]),
        }
    }

    fn change(&self, once: Option<Once>, request: Request) -> Result<Reply, Refusal> {
        let standing = Standing::Generation(self.generation.ok_or_else(not_here)?);
        let asked = Asked::new(once, request)?;
        // After the end of the agent the process asks its next life.
        let enter = || Some(self.host.gate.wait());
        match carry_out(&self.host, &self.caller, standing, &asked, enter, || ()) {
            Ended::Answered(result, _) => result,
            Ended::Again { .. } => Err(not_here()),
        }
    }

    /// Serves requests of processes in nodes. Returns the reply, unless it has been sent.
    fn serve(&self, id: AttachmentId, request: &Request) -> Result<Option<Reply>, Refusal> {
        let members = &self.host.members;
        // These send their replies themselves, with descriptors.
        let replied = |()| None;
        let done = |()| Some(Reply::Done);
        match request {
            _ if remote::is_remote(&self.host, request) => remote::serve(&self.host, id, request),
            Request::Alloc {
                domain,
                len,
                access,
            } => members.alloc(id, domain, *len, *access).map(replied),
            Request::Open { key, .. } if self.host.is_elsewhere(key.node) => {
                Ok(Some(Reply::Elsewhere))
            }
            Request::Open { key, access } => members.open(id, *key, *access).map(replied),
            Request::Reach { domain, place } => {
                members.lock().fellow(id, domain, *place)?;
                Ok(Some(Reply::Here))
            }
            Request::Connect {
                domain,
                place,
                protocol,
            } => members.connect(id, domain, *place, *protocol).map(replied),
            Request::Stack { domain } => {
                let driver = self.host.driver.as_deref();
                let (info, socket) = stack_link::grant(driver, members, self.node, domain)?;
                self.outbox.reply(Reply::Stack(info), vec![socket]);
                Ok(None)
            }
            Request::Fence => members.show_fence(id).map(replied),
            Request::Free { key } => members.free(id, *key).map(done),
            Request::Listen { domain, protocol } => members.listen(id, domain, *protocol).map(done),
            Request::Unlisten { domain, protocol } => {
                members.unlisten(id, domain, *protocol).map(done)
            }
            Request::Disconnect { id: channel } => members.disconnect(id, *channel).map(done),
            Request::Lookup { .. } => remote::serve(&self.host, id, request),
            Request::Whoami => self.whoami().map(Some),
            Request::Ticket => members.ticket(id).map(Some),
            _ => Err(not_here()),
        }
    }

    fn whoami(&self) -> Result<Reply, Refusal> {
        let place = self.host.torus.place(self.node);
        let unknown = || {
            Refusal::new(
                RefusalKind::Failed,
                format!("{} has no place", self.node),
                "",
            )
        };
        Ok(Reply::Whoami {
            torus: self.host.torus,
            node: self.node.0,
            place: place.ok_or_else(unknown)?,
            domains: self.host.members.directory(|d| names(d, self.node)),
        })
    }
}

fn not_here() -> Refusal {
    Refusal::new(
        RefusalKind::Denied,
        "a process in a node may not ask this",
        "ask outside of the node",
    )
}
