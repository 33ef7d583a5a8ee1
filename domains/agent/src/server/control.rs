//! Connections to the control socket.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use toroid_client::credentials::{Ids, peer_ids};
use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{Bind, Event, MAX_BINDS, Message, Reply, Request};
use toroid_protocol::command::Start;
use toroid_protocol::node::StartCommand;
use toroid_protocol::wire::{Reader, WireError, Writer};

use super::share::Share;
use super::{malformed, may_be_long};
use crate::core::audit::Caller;
use crate::core::changes::{Standing, usable_node};
use crate::core::host::{Ending, Host, names};
use crate::core::once::{self, Asked, Ended, Once, carry_out};
use crate::nodes::courier::FdCourier;
use crate::sessions::{commands, gateways, queries};

/// A connection to the control socket.
pub(super) struct Administration<'a> {
    pub(super) host: &'a Arc<Host>,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) caller: Caller,
    pub(super) share: Arc<Share>,
}

impl Administration<'_> {
    pub(super) fn converse(mut self) -> Result<(), WireError> {
        let share = Arc::clone(&self.share);
        loop {
            let request = match share.receive(&mut self.reader) {
                Ok(request) => request,
                Err(error) => return malformed(&self.writer, error),
            };
            let (id, request) = match once::take_apart(request) {
                Ok(apart) => apart,
                Err(refusal) => {
                    self.writer
                        .send(&Message::Reply(Reply::Error(refusal)), &[])?;
                    continue;
                }
            };
            if request.is_change() {
                if self.change(id, request)? {
                    continue;
                }
                return Ok(());
            }
            // Held until the client has read the reply, or takes too long. An administrator does not
            // wait for users.
            let may_be_long = !matches!(self.caller.actor, Actor::Administrator(_))
                && may_be_long(self.host, &request);
            let _slots = may_be_long.then(|| share.take_reply());
            // Those that wait for something are cut off when the agent starts again.
            let inside = match request {
                Request::Down | Request::Events { wait: true, .. } => None,
                _ => match self.host.gate.enter() {
                    Some(inside) => Some(inside),
                    None => return self.send_again(false),
                },
            };
            let reply = match &request {
                Request::Down => match self.may_end_agent(&request) {
                    Ok(()) => return self.end_agent(),
                    Err(refusal) => Err(refusal),
                },
                Request::Exec { .. } => {
                    let execute = || self.execute(&request);
                    match self.host.audited(&self.caller, &request, execute) {
                        Ok((session, courier)) => {
                            let started = Message::Reply(Reply::Started);
                            let sent = self.writer.send(&started, &[session.as_fd()]);
                            drop(session);
                            // Dropping the courier waits for its end.
                            drop(courier);
                            sent?;
                            continue;
                        }
                        Err(refusal) => Err(refusal),
                    }
                }
                request => self.answer(request),
            };
            let reply = reply.unwrap_or_else(Reply::Error);
            self.writer.send(&Message::Reply(reply), &[])?;
            drop(inside);
        }
    }

    fn answer(&self, request: &Request) -> Result<Reply, Refusal> {
        let answer = queries::answer(self.host, self.caller.actor, request).unwrap_or_else(|| {
            Err(Refusal::new(
                RefusalKind::Invalid,
                "only a process in a node may ask this",
                "run it with `toroid exec NODE -- ...`",
            ))
        });
        self.host.note_denial(&self.caller, request, answer)
    }

    /// Makes a change. Returns whether the connection goes on.
    fn change(&self, once: Option<Once>, request: Request) -> Result<bool, WireError> {
        let (host, caller) = (self.host, &self.caller);
        let enter = || host.gate.enter();
        // The client may have ended, and is told so with the reply.
        let waits = || _ = self.writer.send(&Message::Event(Event::Waiting), &[]);
        // A repeated one may have been made before.
        let is_repeated = once.is_some_and(|(_, again)| again);
        let checked = if is_repeated {
            Ok(())
        } else {
            gateways::check(host, caller.actor, &request)
        };
        let ended = match checked.and_then(|()| Asked::new(once, request)) {
            Ok(asked) => carry_out(host, caller, Standing::Own, &asked, enter, waits),
            Err(refusal) => Ended::Answered(Err(refusal), None),
        };
        match ended {
            Ended::Answered(result, inside) => {
                let reply = Message::Reply(result.unwrap_or_else(Reply::Error));
                self.writer.send(&reply, &[])?;
                drop(inside);
                Ok(true)
            }
            Ended::Again { begun } => self.send_again(begun).map(|()| false),
        }
    }

    fn send_again(&self, begun: bool) -> Result<(), WireError> {
        self.writer
            .send(&Message::Reply(Reply::Again { begun }), &[])
    }

    fn may_end_agent(&self, request: &Request) -> Result<(), Refusal> {
        self.host.audited(&self.caller, request, || {
            Ok(self.caller.actor.may_administer("end it")?)
        })
    }

    fn check_binds(&self, binds: &[Bind]) -> Result<(), Refusal> {
        let invalid = |message: String, remedy| Refusal::new(RefusalKind::Invalid, message, remedy);
        if binds.len() > MAX_BINDS {
            return Err(invalid(
                format!("a command gets at most {MAX_BINDS} directories"),
                "bind one above them",
            ));
        }
        let is_place = |bind: &&Bind| bind.place.starts_with('/') && bind.place != "/";
        if let Some(bind) = binds.iter().find(|bind| !is_place(bind)) {
            return Err(invalid(
                format!("\"{}\" is no place for a directory", bind.place),
                "choose an absolute path other than /: --bind DIR:/run/NAME",
            ));
        }
        match (&self.host.users, binds) {
            (None, [_, ..]) => Err(Refusal::new(
                RefusalKind::Denied,
                "this agent's nodes have its users, so their commands get no directories",
                "leave --bind out: they see the files of the host as you do (those in /tmp with \
                 `toroid up --share-tmp`)",
            )),
            _ => Ok(()),
        }
    }

    fn end_agent(mut self) -> Result<(), WireError> {
        // The agent's main thread answers when all has ended.
        let asked = Ending::Asked(self.writer.clone());
        if self.host.ending.send(asked).is_err() {
            return Err(WireError::Closed);
        }
        loop {
            self.reader.receive::<Request>()?;
        }
    }

    /// Starts a command; returns its session, and the courier of its descriptors if a node of this
    /// host gets them.
    fn execute(&self, request: &Request) -> Result<(OwnedFd, Option<FdCourier>), Refusal> {
        let invalid = |message: &str| {
            let remedy = "run it with `toroid exec NODE -- ...`";
            Refusal::new(RefusalKind::Invalid, message, remedy)
        };
        let Request::Exec {
            node,
            argv,
            env,
            cwd,
            program,
            terminal,
            binds,
        } = request
        else {
            return Err(invalid("this is no command"));
        };
        let texts = env.iter().flat_map(|(name, value)| [name, value]);
        let places = binds.iter().map(|bind| &bind.place);
        if argv
            .iter()
            .chain(program)
            .chain(texts)
            .chain(places)
            .any(|text| text.contains('\0'))
        {
            return Err(invalid("arguments, environment and places may hold no NUL"));
        }
        if !cwd.starts_with('/') || program.as_ref().is_some_and(|path| !path.starts_with('/')) {
            return Err(invalid("directory and program must be absolute paths"));
        }
        self.check_binds(binds)?;
        let mut order = StartCommand {
            argv: argv.clone(),
            env: env.clone(),
            cwd: cwd.clone(),
            program: program.clone(),
            has_directory: false,
            has_file: false,
            terminal: *terminal,
            binds: binds.clone(),
        };
        let of_nodes = ["TOROID_NODE", "TOROID_DOMAIN"];
        order.env.retain(|(name, _)| !of_nodes.contains(&&**name));
        let directory = || self.host.members.directory(Directory::clone);
        let id = usable_node(&directory(), self.caller.actor, node)?;
        let caller = peer_ids(self.reader.stream()).map_err(|error| invalid(&error.to_string()))?;
        let Some(hosted) = self.host.node(id) else {
            return Ok((self.execute_elsewhere(id, caller, &order)?, None));
        };
        if self.host.users.is_none() {
            self.caller
                .actor
                .may_administer("run commands in nodes whose root is that of the host")?;
        }
        let _held = hosted.generation.hold().ok_or_else(|| {
            let message = format!("node {} is just changing hands", hosted.place);
            Refusal::new(RefusalKind::Denied, message, "see `toroid node ls`")
        })?;
        // Checked again, because the node may have changed hands before the guard was taken.
        usable_node(&directory(), self.caller.actor, node)?;
        if self.host.leases.is_stopped(id) {
            let message = format!(
                "node {} is frozen: this host has heard nothing from the leader for the time of a \
                 fence",
                hosted.place
            );
            let remedy = "it goes on when the hosts are connected; see `toroid status`";
            return Err(Refusal::new(RefusalKind::Failed, message, remedy));
        }
        may_bind(directory().owner_of(id), caller, binds)?;
        let (node, domains) = (hosted, names(&directory(), id));
        let place = node.place.to_string();
        order.env.push(("TOROID_NODE".into(), place));
        if let [only] = &domains[..] {
            order.env.push(("TOROID_DOMAIN".into(), only.clone()));
        }
        let started = node.start(&order, caller).map_err(|error| {
            let message = format!("cannot start a command in node {}: {error}", node.place);
            Refusal::new(
                RefusalKind::Exhausted,
                message,
                "raise `ulimit -n` of the agent",
            )
        })?;
        Ok((started.0, Some(started.1)))
    }

    /// Starts a command in a node of another host; returns its session.
    fn execute_elsewhere(
        &self,
        node: NodeId,
        caller: Ids,
        order: &StartCommand,
    ) -> Result<OwnedFd, Refusal> {
        let carrier = self.host.carrier(node);
        let carrier = carrier.ok_or_else(|| self.host.elsewhere(node))?;
        let place = self.host.places(&[node].into()).remove(0);
        if let Some(bind) = order.binds.first() {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!(
                    "node {place} is on host {carrier}, which does not have {} of this host",
                    bind.directory
                ),
                format!("leave --bind out, or run the command on host {carrier}"),
            ));
        }
        let path = order.env.iter().find(|(name, _)| name == "PATH");
        let found = order.program.as_ref();
        let found = found.and_then(|path| Path::new(path).parent()?.to_str());
        let mut search: Vec<&str> = path.map(|(_, path)| path.as_str()).into_iter().collect();
        search.extend(found);
        search.retain(|part| !part.is_empty());
        let start = Start {
            node: place.clone(),
            argv: order.argv.clone(),
            env: order.env.clone(),
            search: search.join(":"),
            cwd: order.cwd.clone(),
            terminal: order.terminal,
        };
        let user = self.caller.actor.uid().unwrap_or(caller.uid);
        commands::start(self.host, (user, caller), &carrier, start)
    }
}

/// Checks that a caller may bind its directories in a node of this owner. The node's root could
/// leave programs there that act for the caller, such as a set-user-ID program.
fn may_bind(owner: Option<u32>, caller: Ids, binds: &[Bind]) -> Result<(), Refusal> {
    let is_anothers = owner.is_some_and(|owner| owner != caller.uid);
    match binds.iter().find(|bind| is_anothers && !bind.read_only) {
        None => Ok(()),
        Some(bind) => Err(Refusal::new(
            RefusalKind::Denied,
            format!(
                "the node belongs to another user, who could write as you in {}",
                bind.directory
            ),
            format!("bind it read-only: --bind {}:ro", bind.directory),
        )),
    }
}
