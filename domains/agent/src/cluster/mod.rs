//! This agent among those of other hosts.
//!
//! ```text
//!            follower b                        leader a                        follower c
//!   toroid ── change ──>│── Change ───────────>│ decides, makes durable         │
//!                       │<─ Adopt ─────────────│──── Adopt ────────────────────>│
//!                carries it out         carries it out                   carries it out
//!                       │── Done ─────────────>│<──────────────── Done ─────────│
//!   toroid <── reply ───│<─ Reply ─────────────│
//! ```
//!
//! One agent, the leader, has the directory: the one that all files name, or with a directory on
//! [`etcd`] the one that was elected (see [`candidacy`]). Each follower keeps a copy, with which its nodes go on
//! while the leader is away, and makes no change by itself. The leader sends durable changes to its
//! [`followers`] and waits for those that a change concerns, see [`crate::control`]. A [`link`] is a
//! session with another agent; [`unauthenticated`] connections have not shown a key yet, and
//! [`admission`] decides which keys are enough. [`addresses`] says where hosts are. Processes of one
//! host reach nodes of another with [`tickets`]. [`crate::sessions`] serves the requests of other
//! agents.

pub(crate) mod addresses;
pub(crate) mod admission;
pub(crate) mod candidacy;
pub(crate) mod confirmation;
pub(crate) mod etcd;
pub(crate) mod followers;
pub(crate) mod leader;
pub(crate) mod link;
pub(crate) mod moves;
pub(crate) mod pages;
pub(crate) mod problems;
pub(crate) mod recent;
pub(crate) mod revisions;
pub(crate) mod tickets;
pub(crate) mod unauthenticated;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use toroid_fabric::tcp::secure::Cipher;
use toroid_model::directory::Directory;
use toroid_model::directory::moved::Moved;
use toroid_model::directory::requests::RequestId;
use toroid_model::directory::revision::FabricId;
use toroid_model::host_key::PublicKey;
use toroid_model::hosts::{ETCD, Encryption, HostConfig};
use toroid_model::info::{HostAdmission, HostInfo, HostState};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Reply, Request};
use toroid_protocol::hosts::{Claim, Hello, HostMessage, HostRequest, HostResponse, Requester};

use crate::channel::key_pair::KeyPair;
use crate::channel::secret::Secret;
use crate::channel::secure::{HANDSHAKE, Session};
use crate::channel::{SessionError, handshake};
use crate::control::Control;
use crate::error::AgentError;
use crate::slots::Slots;
use addresses::{Addresses, no_address};
use candidacy::{Candidacy, Legacy};
use leader::LeaderLink;
use link::{Link, NoAnswer, too_long};
use moves::Moves;
use problems::Problems;
use recent::Recent;
use tickets::Tickets;

/// Time for a connection and a handshake with a host that may lead.
const SEARCH: Duration = Duration::from_secs(1);

/// Time that the leader may take for a change: others may come before it.
const TIMEOUT: Duration = Duration::from_secs(300);

/// State of this agent about the other hosts.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Configuration of this life, which names the place of the directory.
    pub(crate) config: HostConfig,
    /// The file. It may name a former place.
    pub(crate) file: HostConfig,
    pub(crate) moves: Arc<Moves>,
    /// Admits this host to the leader, and hosts to this one if it is the leader.
    pub(crate) secret: Secret,
    pub(crate) keys: Mutex<KeyPair>,
    /// Control of changes and of followers (leader).
    pub(crate) control: Arc<Control>,
    /// Connected followers by host (leader).
    pub(crate) followers: Mutex<BTreeMap<String, Arc<Link>>>,
    /// Slots for messages of long updates (leader).
    pub(crate) long_updates: Slots,
    /// Candidacy of this host, if it may lead with a directory on etcd.
    pub(crate) candidacy: Option<Arc<Candidacy>>,
    /// Link to the leader (follower).
    pub(super) leader: Mutex<LeaderLink>,
    /// Signals a change of [`LeaderLink`].
    pub(crate) came: Condvar,
    /// Sessions for tickets only, by host.
    pub(crate) peers: Mutex<BTreeMap<String, Arc<Link>>>,
    /// Sessions of other hosts for tickets only.
    pub(crate) incoming: Mutex<Vec<Arc<Link>>>,
    /// Keys that other hosts have shown without being admitted.
    pub(crate) pending: Mutex<Recent<PublicKey>>,
    /// Locked while this host's key pair changes.
    pub(crate) rotation: Mutex<()>,
    pub(crate) tickets: Tickets,
    pub(crate) addresses: Addresses,
    pub(crate) problems: Problems,
}

impl Cluster {
    /// Does the same as [`Cluster::new`] with the key pair of this host, whose data are there, and
    /// its socket, if that is bound already. Its copy of the directory has
    /// the `known` move and fabric.
    pub(crate) fn open(
        file: HostConfig,
        data: &Path,
        known: (Option<Moved>, Option<FabricId>),
        bound: Option<TcpListener>,
        legacy: Legacy,
    ) -> Result<(Self, TcpListener), AgentError> {
        let moves = Moves::new(&file, known).map_err(AgentError::Moved)?;
        let moves = Arc::new(moves);
        let config = file.redirected(moves.last().as_ref());
        let mut cluster = Self::new(config, KeyPair::read_or_make(data)?)?;
        (cluster.file, cluster.moves) = (file, moves);
        if let Some(refusal) = cluster.describe_move() {
            tracing::warn!("{refusal}");
        }
        let moves = Arc::clone(&cluster.moves);
        cluster.candidacy = Candidacy::of(&cluster.config, data, legacy, moves);
        let address = cluster.config.listen;
        let bind = || TcpListener::bind(address);
        let listener = bound.map_or_else(bind, Ok);
        let listener = listener.map_err(|source| AgentError::Listen { address, source })?;
        Ok((cluster, listener))
    }

    /// Reads the pre-shared key.
    pub(crate) fn new(config: HostConfig, keys: KeyPair) -> Result<Self, AgentError> {
        let secret = Secret::read(&config.key)?;
        let control = Arc::new(Control::new(Some(config.host.clone())));
        let tickets = Tickets::new(config.encryption);
        let leader = LeaderLink::of(&config);
        Ok(Cluster {
            file: config.clone(),
            moves: Arc::default(),
            config,
            candidacy: None,
            secret,
            keys: Mutex::new(keys),
            control,
            followers: Mutex::default(),
            long_updates: Slots::new(pages::AT_ONCE),
            leader: Mutex::new(leader),
            came: Condvar::new(),
            peers: Mutex::default(),
            incoming: Mutex::default(),
            pending: Mutex::new(Recent::new(admission::MAX_PENDING)),
            rotation: Mutex::default(),
            tickets,
            addresses: Addresses::default(),
            problems: Problems::default(),
        })
    }

    /// Cipher of the data connections that this host opens; `None` if they are clear.
    pub(crate) fn cipher(&self) -> Option<Cipher> {
        (self.config.encryption == Encryption::On).then(Cipher::fastest)
    }

    /// Opens a session with another agent, up to its `Welcome`. This host's directory has the keys
    /// of the other; without one, a leader is known by the pre-shared key. Each known address is tried
    /// until the other agent has been found.
    pub(crate) fn dial(
        &self,
        host: &str,
        directory: Option<&Directory>,
        follows: Option<Claim>,
    ) -> Result<Session, CannotDial> {
        let known = directory.and_then(|directory| directory.keys_of(host));
        if known.is_some_and(<[_]>::is_empty) {
            return Err(SessionError::NotAdmitted.into());
        }
        let mut failed = Vec::new();
        for address in self.addresses_of(host, directory) {
            match self.dial_at(address, (host, known), directory, follows.clone()) {
                Err(CannotDial::Session(error)) => failed.push((address, error)),
                found => {
                    self.addresses.note(host, address);
                    return found;
                }
            }
        }
        Err(if failed.is_empty() {
            CannotDial::Unknown(no_address(host, &self.config.host))
        } else {
            CannotDial::Nowhere(failed)
        })
    }

    fn dial_at(
        &self,
        address: SocketAddr,
        (host, known): (&str, Option<&[PublicKey]>),
        directory: Option<&Directory>,
        follows: Option<Claim>,
    ) -> Result<Session, CannotDial> {
        let (place, leaders) = self.whereabouts();
        let may_lead = leaders.iter().any(|leader| leader == host);
        // Among several candidates, one that is away must not hold up the search for the leader. Nor
        // must one that led formerly.
        let time = if follows.is_some() && (place == ETCD || !may_lead) {
            SEARCH
        } else {
            HANDSHAKE
        };
        let stream = TcpStream::connect_timeout(&address, time).map_err(SessionError::Io)?;
        let keys = self.keys.lock().clone();
        let mut session = handshake::connect(stream, &keys, &self.secret, time)?;
        admission::check_dialled(&session.peer, known, may_lead)?;
        link::stay_alive(&session.writer)?;
        session.writer.send(&HostMessage::Hello(Hello {
            version: session.version,
            host: self.config.host.clone(),
            to: host.into(),
            torus: self.config.torus,
            provider: self.config.provider,
            encryption: self.config.encryption,
            revision: directory.and_then(Directory::revision),
            is_partial: directory.is_some_and(Directory::is_partial),
            moved: directory.and_then(|its| its.moved().cloned().map(Box::new)),
            follows,
        }))?;
        loop {
            match session.reader.receive()? {
                HostMessage::Alive => {}
                HostMessage::Welcome => return Ok(session),
                HostMessage::Refused(refusal) => return Err(CannotDial::Refused(refusal)),
                HostMessage::NotLeader {
                    leader,
                    moved,
                    addresses,
                } => {
                    self.addresses
                        .hear(addresses, leader.as_deref(), moved.as_deref());
                    return Err(CannotDial::NotLeader(leader, moved));
                }
                other => {
                    let message = format!("{} comes before a welcome", other.kind());
                    return Err(SessionError::Malformed(message).into());
                }
            }
        }
    }

    /// Forwards a change to the leader, and returns its reply. The caller has
    /// [waited](Cluster::await_leader) for a leader.
    pub(crate) fn forward(
        &self,
        who: Requester,
        pid: Option<u32>,
        id: RequestId,
        request: &Request,
    ) -> Result<Reply, Setback> {
        let link = self.leader().link.clone();
        let link = link.ok_or_else(|| Setback::Unsettled(self.nobody_leads()))?;
        let leader = link.host.as_str();
        let ask = HostRequest::Change {
            who,
            pid,
            id,
            request: request.clone(),
        };
        let refused = |refusal| Err(Setback::Refused(refusal));
        match link.ask(ask, TIMEOUT) {
            Ok(HostResponse::Reply(reply)) => Ok(*reply),
            Ok(HostResponse::Refused(refusal)) => refused(refusal),
            Ok(HostResponse::Unsettled(refusal)) => Err(Setback::Unsettled(refusal)),
            Ok(HostResponse::Again(refusal)) => Err(Setback::Lost(refusal)),
            Ok(_) => refused(unreachable(leader, "it does not answer as it should", "")),
            Err(NoAnswer::TooLong) => refused(too_long("the request", "nothing was changed")),
            Err(NoAnswer::Ended) => {
                let why = NoAnswer::Ended.to_string();
                Err(Setback::Lost(unreachable(leader, &why, "")))
            }
            Err(NoAnswer::Late) => {
                let remedy =
                    "whether the change was made is unknown: look, and make it again if not";
                refused(unreachable(leader, &NoAnswer::Late.to_string(), remedy))
            }
        }
    }

    /// Describes the hosts as this agent knows them, without the state of drivers: those of the
    /// directory and of its file, and those that were refused.
    pub(crate) fn describe(&self, directory: &Directory) -> Vec<HostInfo> {
        let config = &self.config;
        let mut hosts: BTreeSet<String> = directory.host_keys().keys().cloned().collect();
        hosts.extend(directory.hosts().keys().cloned());
        hosts.extend(config.hosts.keys().chain([&config.host]).cloned());
        let now = Instant::now();
        hosts.extend(self.pending.lock().hosts(now));
        hosts.extend(self.problems.refused(now));
        let double = directory.hosts_at_one_address();
        let describe = |host: &String| {
            let double = double.get(host.as_str()).copied();
            self.describe_host(host, self.address_of(host, directory), double)
        };
        hosts.iter().map(describe).collect()
    }

    fn describe_host(
        &self,
        host: &str,
        address: Option<SocketAddr>,
        double: Option<&str>,
    ) -> HostInfo {
        let is_linked = if self.is_leader() {
            self.followers().contains_key(host)
        } else {
            self.leader().link.is_some()
        };
        let leads = self.leader_name().as_deref() == Some(host);
        let state = if host == self.config.host {
            HostState::Here
        } else if !self.is_leader() && !leads {
            HostState::Unknown
        } else if is_linked {
            HostState::Connected
        } else {
            HostState::Away
        };
        HostInfo {
            name: host.into(),
            address: address.map(|address| address.to_string()),
            directory: leads,
            candidate: self.config.directory == ETCD && self.config.may_lead(host),
            state,
            frames: false,
            frames_over: None,
            frames_by_rdma: None,
            admission: HostAdmission::New,
            key: None,
            problem: self
                .problems
                .of(host, Instant::now())
                .or_else(|| self.address_problem(host, double)),
        }
    }

    pub(crate) fn followers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Link>>> {
        self.followers.lock()
    }

    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Link>>> {
        self.peers.lock()
    }
}

/// Why an attempt to make a change has no reply. Each has a reason.
#[derive(Clone, Debug)]
pub(crate) enum Setback {
    /// It was refused. Nor has an earlier attempt made the change, unless the reason says so.
    Refused(Refusal),
    /// It was refused before the leader looked for an earlier attempt.
    Unsettled(Refusal),
    /// The leader was lost, and may have made the change.
    Lost(Refusal),
}

impl From<Refusal> for Setback {
    fn from(refusal: Refusal) -> Self {
        Setback::Refused(refusal)
    }
}

impl From<Setback> for Refusal {
    fn from(setback: Setback) -> Self {
        match setback {
            Setback::Refused(why) | Setback::Unsettled(why) | Setback::Lost(why) => why,
        }
    }
}

/// Failure to open a session with another agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CannotDial {
    #[error("{0}")]
    Unknown(Refusal),
    #[error(transparent)]
    Session(#[from] SessionError),
    /// What failed at each address of the host.
    #[error("{}", attempts(.0))]
    Nowhere(Vec<(SocketAddr, SessionError)>),
    #[error("{0}")]
    Refused(Refusal),
    /// The other host follows, too, or the directory has moved from there.
    #[error("it does not lead")]
    NotLeader(Option<String>, Option<Box<Moved>>),
}

fn attempts(failed: &[(SocketAddr, SessionError)]) -> String {
    let attempt = |(address, error): &(SocketAddr, SessionError)| format!("at {address}: {error}");
    failed.iter().map(attempt).collect::<Vec<_>>().join("; ")
}

/// Makes the refusal for a host that cannot be reached.
pub(crate) fn unreachable(host: &str, why: &str, remedy: &str) -> Refusal {
    let message = format!("the agent of host {host} cannot be reached: {why}");
    Refusal::new(RefusalKind::Failed, message, remedy)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use toroid_model::hosts::{Admission, Commands, Provider};

    use super::*;

    /// Host `a`, the leader, with host `b`.
    pub(crate) fn cluster() -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("key");
        fs::write(&key, "00".repeat(32)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let config = HostConfig {
            host: "a".into(),
            torus: "2x1x1".parse().unwrap(),
            nodes: [0].into(),
            aliases: BTreeMap::new(),
            listen: "127.0.0.1:0".parse().unwrap(),
            address: None,
            key,
            directory: "a".into(),
            provider: Provider::Tcp,
            encryption: Encryption::On,
            admission: Admission::Key,
            commands: Commands::On,
            candidates: Default::default(),
            etcd: None,
            rdma: None,
            hosts: [("b".into(), "127.0.0.1:1".parse().unwrap())].into(),
            lost: None,
        };
        let keys = KeyPair::generate().unwrap();
        Cluster::new(config, keys).unwrap()
    }
}
