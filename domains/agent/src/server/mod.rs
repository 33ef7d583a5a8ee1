//! Connections to the control socket and node sockets: identities and rights of clients, and a
//! thread for each.

mod backlog;
mod control;
mod node;
mod remote;
pub(crate) mod share;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use toroid_client::credentials::{peer_pid, peer_uid};
use toroid_fabric::NodeId;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{Message, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use crate::core::audit::Caller;
use crate::core::host::Host;
use crate::members::outbox::Outbox;
use crate::nodes::HostedNode;
use crate::nodes::subordinate;
use crate::nodes::users::is_of_nodes;
use crate::process;
use crate::proxy::supervisor::ProxySupervisor;
use crate::slots::Slots;
use crate::threads;
use control::Administration;
use node::Attached;
use share::Share;

/// Connections at a time to one socket.
const MAX_CONNECTIONS: usize = 256;

/// Connections to the control socket that are reserved for administrators: they can act against a
/// user that has all the others.
const KEPT_CONNECTIONS: usize = 16;

/// Connections to the control socket of one user that is no administrator.
const CONNECTIONS_OF_USER: usize = 64;

/// Remedy for a malformed message.
const MALFORMED: &str = "write what docs/agent-protocol.md says, or use the library";

/// Time for a client's handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Time that a reply may wait for its client to read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Nodes and domains whose description is not long.
const FEW: u32 = 1024;

/// Pause after the system had no descriptor for a connection, so that the wait does not spin.
const BREATH: Duration = Duration::from_millis(100);

/// Socket of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketKind {
    /// The control socket.
    Control,
    /// A node socket, in one generation of the node.
    Node(NodeId, u64),
    /// No socket: the target proxy of this host speaks for a node on another host.
    TargetProxy(NodeId),
}

/// Serves connections until the listener is shut down.
pub(crate) fn serve(host: &Arc<Host>, listener: &UnixListener, socket: SocketKind) {
    let open = Arc::default();
    loop {
        match listener.accept() {
            Ok((stream, _)) => admit(host, stream, socket, &open),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                tracing::warn!(?socket, "cannot accept a connection: {error}");
                thread::sleep(BREATH);
            }
        }
    }
}

/// Connections to one socket by user.
#[derive(Debug)]
struct Open {
    users: Mutex<HashMap<u32, OfUser>>,
    replies: Arc<Slots>,
}

#[derive(Debug)]
struct OfUser {
    connections: usize,
    share: Arc<Share>,
}

impl Default for Open {
    fn default() -> Self {
        Open {
            users: Mutex::default(),
            replies: Share::all(),
        }
    }
}

impl Open {
    /// Counts another connection, and returns the share of the user's connections. A user gets at
    /// most half of the connections that others leave, so a few users do not take all.
    ///
    /// # Errors
    /// The exceeded limit.
    fn add(&self, uid: u32, of_all: usize, of_user: Option<usize>) -> Result<Arc<Share>, usize> {
        let mut open = self.users.lock();
        let all: usize = open.values().map(|its| its.connections).sum();
        if all >= of_all {
            return Err(of_all);
        }
        let its = open.entry(uid).or_insert_with(|| OfUser {
            connections: 0,
            share: Arc::new(Share::among(&self.replies)),
        });
        if let Some(of_user) = of_user {
            let left_by_others = of_all - (all - its.connections);
            let limit = of_user.min(left_by_others.div_ceil(2));
            if its.connections >= limit {
                return Err(limit);
            }
        }
        its.connections += 1;
        Ok(Arc::clone(&its.share))
    }

    fn remove(&self, uid: u32) {
        let mut open = self.users.lock();
        if let Some(its) = open.get_mut(&uid) {
            its.connections -= 1;
        }
        open.retain(|_, its| its.connections > 0);
    }
}

fn admit(host: &Arc<Host>, stream: UnixStream, socket: SocketKind, open: &Arc<Open>) {
    let Ok(uid) = peer_uid(&stream) else {
        return;
    };
    let uid = uid.as_raw();
    let caller = Caller {
        actor: match socket {
            SocketKind::Control => actor(host, uid),
            SocketKind::Node(node, _) | SocketKind::TargetProxy(node) => Actor::Node(node),
        },
        pid: peer_pid(&stream),
        host: None,
    };
    let (of_all, of_user) = match socket {
        SocketKind::Control if !is_administrator(host, uid) => {
            let of_users = MAX_CONNECTIONS - KEPT_CONNECTIONS;
            (of_users, Some(CONNECTIONS_OF_USER))
        }
        _ => (MAX_CONNECTIONS, None),
    };
    let account = match socket {
        SocketKind::Control if is_administrator(host, uid) => uid,
        SocketKind::Control => subordinate::account(uid),
        // All users of a node are one tenant.
        SocketKind::Node(..) | SocketKind::TargetProxy(_) => 0,
    };
    let share = match open.add(account, of_all, of_user) {
        Ok(share) => share,
        Err(limit) => return turn_away(stream, limit),
    };
    let (host, count) = (Arc::clone(host), Arc::clone(open));
    let talk = move || {
        if let Err(error) = converse(&host, stream, socket, caller, share) {
            tracing::debug!(?socket, "a connection ended: {error}");
        }
        count.remove(account);
    };
    if let Err(error) = threads::start(talk) {
        tracing::warn!(?socket, "no thread for a connection: {error}");
        open.remove(account);
    }
}

/// Serves the target proxy, which speaks for a node on another host, on a thread of its own.
pub(crate) fn serve_target_proxy(
    host: &Arc<Host>,
    node: NodeId,
    stream: UnixStream,
) -> io::Result<()> {
    let caller = Caller {
        actor: Actor::Node(node),
        pid: host.proxy.as_deref().and_then(ProxySupervisor::pid),
        host: None,
    };
    let host = Arc::clone(host);
    let talk = move || {
        let socket = SocketKind::TargetProxy(node);
        if let Err(error) = converse(&host, stream, socket, caller, Arc::default()) {
            tracing::debug!(?socket, "a connection ended: {error}");
        }
    };
    threads::start(talk).map(drop)
}

/// Actor of a connection to the control socket. The socket of a user's agent accepts that user
/// only, and there the user is root.
fn actor(host: &Host, uid: u32) -> Actor {
    if host.identity.rootless {
        Actor::Administrator(host.identity.uid)
    } else if uid == 0 || uid == host.identity.uid {
        Actor::Administrator(uid)
    } else {
        Actor::User(uid)
    }
}

fn is_administrator(host: &Host, uid: u32) -> bool {
    matches!(actor(host, uid), Actor::Administrator(_))
}

/// Whether a client runs in a node, where any user may be root, or one of many users.
fn comes_from_node(host: &Host, caller: &Caller, stream: &UnixStream) -> bool {
    if host.users.is_some() {
        return caller.actor.uid().is_some_and(is_of_nodes);
    }
    // A client outside of this PID namespace is in no node, because nodes are inside.
    let Some(pid) = peer_pid(stream) else {
        return false;
    };
    let nodes: HashSet<u32> = host.nodes.iter().map(HostedNode::pid).collect();
    process::descends_from(pid, &nodes)
}

fn turn_away(stream: UnixStream, limit: usize) {
    let refusal = Refusal::new(
        RefusalKind::Exhausted,
        format!("the agent has {limit} connections to this socket, its limit for you"),
        "end some processes that use it",
    );
    if let Ok((_, writer)) = wire::split(stream) {
        // A new socket's buffer has room. If this fails, the client sees the end.
        let _ = writer.send(&Message::Reply(Reply::Error(refusal)), &[]);
    }
}

fn converse(
    host: &Arc<Host>,
    stream: UnixStream,
    socket: SocketKind,
    caller: Caller,
    share: Arc<Share>,
) -> Result<(), WireError> {
    let (mut reader, mut writer) = wire::split(stream)?;
    writer.give_up_after(WRITE_TIMEOUT)?;
    reader.take_no_descriptors();
    if matches!(socket, SocketKind::Control) && comes_from_node(host, &caller, reader.stream()) {
        let refusal = Refusal::new(
            RefusalKind::Denied,
            "processes in nodes may not use the agent's control socket",
            "leave --state and TOROID_STATE out there, and `toroid` asks through the node's own",
        );
        return refuse(&writer, refusal);
    }
    shake_hands(&mut reader, &writer)?;
    match socket {
        SocketKind::Control => {
            writer.send_long();
            Administration {
                host,
                reader,
                writer,
                caller,
                share,
            }
            .converse()
        }
        SocketKind::Node(node, _) | SocketKind::TargetProxy(node) => {
            let generation = match socket {
                SocketKind::Node(_, generation) => Some(generation),
                _ => None,
            };
            let outbox = Outbox::start(writer)?;
            let mut id = host.members.attach(node, outbox.clone())?;
            if generation.is_some() {
                host.members.send_links(id);
            }
            let attached = Attached {
                host: Arc::clone(host),
                caller,
                node,
                generation,
                outbox,
                share,
            };
            // Checked after attaching: processes attached at the end of a generation are expelled.
            let is_current = match generation {
                Some(generation) => host.is_current(node, generation),
                None => host.node(node).is_none(),
            };
            let end = if is_current {
                attached.converse(reader, &mut id)
            } else {
                Err(WireError::Closed)
            };
            if let SocketKind::TargetProxy(node) = socket
                && attached.was_cut(&end)
            {
                // While it is attached: a change of membership waits for its end.
                host.invalidate_registrations(&[node].into());
            }
            host.members.detach(id);
            end
        }
    }
}

fn shake_hands(reader: &mut Reader, writer: &Writer) -> Result<(), WireError> {
    let version = match reader.receive_first(share::SHORT, Instant::now() + HANDSHAKE) {
        Ok((Request::Hello { version }, _)) => version,
        Ok(_) => {
            let refusal = Refusal::new(
                RefusalKind::Invalid,
                "the first request must be hello",
                "use `toroid` or the library of this release",
            );
            return refuse(writer, refusal);
        }
        Err(error) => return malformed(writer, error),
    };
    if version != VERSION {
        let refusal = Refusal::new(
            RefusalKind::Version,
            format!("the agent speaks version {VERSION} of its protocol, the client {version}"),
            "use both from the same release: `toroid down`, then `toroid up`",
        );
        return refuse(writer, refusal);
    }
    let pid = std::process::id();
    let welcome = Reply::Welcome { version, pid };
    writer.send(&Message::Reply(welcome), &[])
}

/// Sends a refusal, and ends the connection.
fn refuse(writer: &Writer, refusal: Refusal) -> Result<(), WireError> {
    writer.send(&Message::Reply(Reply::Error(refusal)), &[])?;
    Err(WireError::Closed)
}

/// Sends a client the error of its message, and ends the connection.
fn malformed(writer: &Writer, error: WireError) -> Result<(), WireError> {
    if let WireError::Malformed(_) = &error {
        let refusal = Refusal::new(RefusalKind::Invalid, error.to_string(), MALFORMED);
        refuse(writer, refusal)?;
    }
    Err(error)
}

/// Whether the reply to a query may be long: there are many nodes or domains.
fn may_be_long(host: &Host, request: &Request) -> bool {
    let is_list = matches!(
        request,
        Request::Status
            | Request::NodeList
            | Request::DomainList
            | Request::DomainShow { .. }
            | Request::ShrinkNeeds { .. }
            | Request::DomainDrops { .. }
            | Request::QuotaShow { .. }
    );
    is_list
        && host.members.directory(|directory| {
            directory.torus().nodes() > FEW || directory.domains().nth(FEW as usize).is_some()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One user could once take all connections that were not reserved for administrators.
    #[test]
    fn one_user_leaves_connections_to_others() {
        let open = Open::default();
        for _ in 0..3 {
            open.add(1, 8, Some(3)).unwrap();
        }
        assert_eq!(open.add(1, 8, Some(3)).err(), Some(3));
        // Three of the five that are left, then one of the two, and the last.
        for _ in 0..3 {
            open.add(2, 8, Some(4)).unwrap();
        }
        assert_eq!(open.add(2, 8, Some(4)).err(), Some(3));
        open.add(3, 8, Some(4)).unwrap();
        assert_eq!(open.add(3, 8, Some(4)).err(), Some(1));
        open.add(4, 8, Some(4)).unwrap();
        assert_eq!(open.add(5, 8, Some(4)).err(), Some(8));
        open.add(0, 9, None).unwrap();
        open.remove(1);
        open.add(5, 8, Some(4)).unwrap_err();
        open.remove(1);
        open.add(5, 8, Some(4)).unwrap();
    }
}
