//! This agent among those of other hosts.
//!
//! ```text
//!            follower b                        holder a                        follower c
//!   toroid ── change ──>│── Ask::Change ──────>│ decides, makes durable         │
//!                       │<─ Ask::Adopt ────────│──── Ask::Adopt ───────────────>│
//!                carries it out         carries it out                   carries it out
//!                       │── Done ─────────────>│<──────────────── Done ─────────│
//!   toroid <── reply ───│<─ Answer::Reply ─────│
//! ```
//!
//! One agent holds the directory. The others [`follow`] it: each keeps a copy, which its nodes go on
//! with when the holder is away, and changes nothing by itself. The holder [`publish`]es what has
//! become durable and waits for the hosts that it concerns. [`adopt`] is how a host becomes what
//! another directory says. Strangers stand at the [`door`] until they have shown the key, or a
//! ticket of the [`broker`], with which they connect for [`data`]. [`trunks`]
//! connect the drivers.

mod adopt;
mod broker;
mod data;
mod door;
mod follow;
mod hold;
mod link;
pub(super) mod listeners;
mod problems;
pub(super) mod publish;
mod strangers;
mod trunks;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use toroid_model::hosts::HostConfig;
use toroid_model::info::{HostInfo, HostState};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{Claim, Hello, Said};

use super::AgentError;
use super::host::Host;
use crate::hosts::SessionError;
use crate::hosts::secret::Secret;
use crate::hosts::secure::{self, HANDSHAKE, Session};
use broker::Broker;
use hold::Follower;
use link::Link;
use problems::Problems;
use publish::Publication;

/// How long `toroid up` waits for the holder of the directory, which may be away.
const FIRST_WORD: Duration = Duration::from_secs(3);

/// What an agent has of the others.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) config: HostConfig,
    secret: Secret,
    /// Of the holder: what has become durable.
    pub(super) publication: Arc<Publication>,
    /// Of the holder: who follows.
    followers: Mutex<BTreeMap<String, Follower>>,
    /// A follower has said how far it is, has come or has gone.
    heard: Condvar,
    /// Of a follower.
    holder: Mutex<ToHolder>,
    /// The directory has come for the first time.
    came: Condvar,
    /// Sessions that were made for the sake of tickets.
    peers: Mutex<BTreeMap<String, Arc<Link>>>,
    pub(super) broker: Broker,
    problems: Problems,
}

/// A follower's way to the holder.
#[derive(Debug, Default)]
struct ToHolder {
    link: Option<Arc<Link>>,
    has_come: bool,
    /// Whether this host has refused what the holder has last told it, or not been told yet. Numbers
    /// of domains mean something else then, perhaps.
    differs: bool,
}

impl Cluster {
    /// Reads the key and begins to listen; nobody is let in yet.
    pub(super) fn new(config: HostConfig) -> Result<(Self, TcpListener), AgentError> {
        let secret = Secret::read(&config.key)?;
        let listener = TcpListener::bind(config.listen).map_err(|source| AgentError::Listen {
            address: config.listen,
            source,
        })?;
        let cluster = Cluster {
            config,
            secret,
            publication: Arc::default(),
            followers: Mutex::default(),
            heard: Condvar::new(),
            holder: Mutex::default(),
            came: Condvar::new(),
            peers: Mutex::default(),
            broker: Broker::default(),
            problems: Problems::default(),
        };
        Ok((cluster, listener))
    }

    /// Whether it holds the directory.
    pub(super) fn holds(&self) -> bool {
        self.config.holds_directory()
    }

    /// Waits for the directory when this is a follower that has just begun, unless its holder is away.
    pub(super) fn await_directory(&self) {
        let not_yet = |holder: &mut ToHolder| !self.holds() && !holder.has_come;
        drop(
            self.came
                .wait_timeout_while(self.holder(), FIRST_WORD, not_yet),
        );
    }

    /// A session with another agent, in which it has said welcome.
    fn dial(&self, host: &str, follows: Option<Claim>) -> Result<Session, CannotDial> {
        let address = self.config.hosts.get(host);
        let address = address.ok_or_else(|| CannotDial::Unknown(host.into()))?;
        let stream = TcpStream::connect_timeout(address, HANDSHAKE).map_err(SessionError::Io)?;
        let mut session = secure::connect(stream, &self.secret)?;
        link::stay_alive(&session.writer)?;
        session.writer.send(&Said::Hello(Hello {
            version: session.version,
            host: self.config.host.clone(),
            to: host.into(),
            torus: self.config.torus,
            provider: self.config.provider,
            follows,
        }))?;
        loop {
            match session.reader.receive()? {
                Said::Alive => {}
                Said::Welcome => return Ok(session),
                Said::Refused(refusal) => return Err(CannotDial::Refused(refusal)),
                other => {
                    let message = format!("{} comes before a welcome", other.kind());
                    return Err(SessionError::Malformed(message).into());
                }
            }
        }
    }

    /// The hosts as this agent knows them.
    /// Drivers are not its matter.
    pub(super) fn describe(&self) -> Vec<HostInfo> {
        let config = &self.config;
        let all = config.hosts.iter().map(|(host, address)| (host, *address));
        let ours = (&config.host, config.listen);
        let mut hosts: Vec<HostInfo> = all
            .chain([ours])
            .map(|(host, address)| self.describe_host(host, address))
            .collect();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        hosts
    }

    fn describe_host(&self, host: &str, address: SocketAddr) -> HostInfo {
        let is_linked = if self.holds() {
            self.followers().contains_key(host)
        } else {
            self.holder().link.is_some()
        };
        let state = if host == self.config.host {
            HostState::Here
        } else if !self.holds() && host != self.config.directory {
            HostState::Unknown
        } else if is_linked {
            HostState::Connected
        } else {
            HostState::Away
        };
        HostInfo {
            name: host.into(),
            address: address.to_string(),
            directory: host == self.config.directory,
            state,
            frames: false,
            frames_over: None,
            frames_by_rdma: None,
            problem: self.problems.of(host),
        }
    }

    /// Refuses to have to do with other hosts' nodes as long as the directory here is not that of the
    /// holder.
    fn check_directory(&self) -> Result<(), Refusal> {
        if self.holder().differs {
            Err(Refusal::new(
                RefusalKind::Failed,
                format!(
                    "host {} has not agreed with host {} on the directory",
                    self.config.host, self.config.directory
                ),
                "see `toroid status` on both hosts",
            ))
        } else {
            Ok(())
        }
    }

    fn holder(&self) -> MutexGuard<'_, ToHolder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn followers(&self) -> MutexGuard<'_, BTreeMap<String, Follower>> {
        self.followers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Link>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets others in, and, unless the directory is here, follows whoever holds it.
pub(super) fn begin(host: &Arc<Host>, listener: TcpListener) -> Result<(), AgentError> {
    let Some(cluster) = &host.cluster else {
        return Ok(());
    };
    data::serve(host, cluster);
    door::open(host, cluster, listener)?;
    trunks::begin(host, cluster)?;
    if cluster.holds() {
        Ok(())
    } else {
        follow::begin(host, cluster)
    }
}

/// Why there is no session with another agent.
#[derive(Debug, thiserror::Error)]
enum CannotDial {
    #[error("no address is known of host {0}")]
    Unknown(String),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{0}")]
    Refused(Refusal),
}

/// The other host cannot be asked.
fn unreachable(host: &str, why: &str, remedy: &str) -> Refusal {
    let message = format!("the agent of host {host} cannot be reached: {why}");
    Refusal::new(RefusalKind::Failed, message, remedy)
}
