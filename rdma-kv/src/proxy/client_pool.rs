//! Pool of a proxy's clients of the server: one per thread, reconnected after a loss.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use toroid_client::member::MemberError;
use toroid_fabric::OpError;
use toroid_fabric::channel::ChannelError;
use toroid_model::refusal::RefusalKind;

use super::{Upstream, UpstreamError};
use crate::client::reader::{ItemRef, Lookup};
use crate::client::{Client, ClientError};
use crate::network::Network;
use crate::protocol::messages::Awaiting;

/// Pauses between attempts to connect: the first, doubled after each attempt, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Failure of an attempt to connect.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// A later attempt may succeed.
    #[error(transparent)]
    Temporary(#[from] ClientError),
    /// No attempt will succeed: the domain or the agent is gone.
    #[error(transparent)]
    Permanent(MemberError),
}

/// Connects a client.
type Connect<N> = dyn Fn() -> Result<Client<N>, ConnectError> + Send + Sync;

/// The clients of all threads.
pub(super) struct ClientPool<N: Network> {
    connect: Box<Connect<N>>,
    clients: Vec<Mutex<PooledClient<N>>>,
    /// Set once no attempt to connect will succeed.
    ended: Mutex<Option<MemberError>>,
}

/// One thread's client.
struct PooledClient<N: Network> {
    client: Option<Client<N>>,
    /// Clients so far. A session at the server belongs to one of them.
    count: u64,
    /// Number of the last session.
    session: u32,
    /// Error of the last attempt to connect, or of the last use.
    last_error: UpstreamError,
    /// Earliest time of the next attempt, and the pause after it.
    retry: Instant,
    pause: Duration,
}

impl<N: Network> ClientPool<N> {
    /// The first thread's client is `first`. The others connect on their first use.
    pub(super) fn new(
        threads: usize,
        connect: impl Fn() -> Result<Client<N>, ConnectError> + Send + Sync + 'static,
        first: Client<N>,
    ) -> Self {
        let mut first = Some(first);
        let clients = (0..threads).map(|_| {
            let client = first.take();
            Mutex::new(PooledClient {
                count: u64::from(client.is_some()),
                client,
                session: 0,
                last_error: UpstreamError::Gone,
                retry: Instant::now(),
                pause: FIRST_PAUSE,
            })
        });
        ClientPool {
            connect: Box::new(connect),
            clients: clients.collect(),
            ended: Mutex::new(None),
        }
    }

    /// Reports gets to the server, and reconnects lost clients.
    ///
    /// # Errors
    /// The domain or the agent is gone.
    pub(super) fn maintain(&self) -> Result<(), MemberError> {
        for number in 0..self.clients.len() {
            let mut pooled = self.lock(number);
            if pooled.count > 0 && self.connected(&mut pooled).is_ok() {
                pooled.report();
            }
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.take().map_or(Ok(()), Err)
    }

    /// Reports all gets and waits until the server has counted them: a request of one client could overtake
    /// another client's report.
    fn report_all(&self) {
        for number in 0..self.clients.len() {
            let mut pooled = self.lock(number);
            if let Some(Err(error)) = pooled.client.as_mut().map(Client::report_and_wait) {
                pooled.lose(&error);
            }
        }
    }

    fn lock(&self, number: usize) -> MutexGuard<'_, PooledClient<N>> {
        let pooled = &self.clients[number % self.clients.len()];
        pooled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client, reconnected if it is known to be lost.
    fn connected<'a>(
        &self,
        pooled: &'a mut PooledClient<N>,
    ) -> Result<&'a mut Client<N>, UpstreamError> {
        if let Some(Err(error)) = pooled.client.as_mut().map(Client::check) {
            pooled.lose(&error);
        }
        if pooled.client.is_none() {
            if Instant::now() < pooled.retry {
                return Err(pooled.last_error);
            }
            match (self.connect)() {
                Ok(client) => {
                    pooled.client = Some(client);
                    (pooled.count, pooled.pause) = (pooled.count + 1, FIRST_PAUSE);
                }
                Err(error) => {
                    self.failed(pooled, error);
                    return Err(pooled.last_error);
                }
            }
        }
        pooled.client.as_mut().ok_or(pooled.last_error)
    }

    fn failed(&self, pooled: &mut PooledClient<N>, error: ConnectError) {
        tracing::info!("no link to the server: {error}");
        match error {
            ConnectError::Temporary(error) => pooled.last_error = UpstreamError::of(&error),
            ConnectError::Permanent(error) => {
                pooled.last_error = UpstreamError::Revoked;
                let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                *ended = Some(error);
            }
        }
        pooled.retry = Instant::now() + pooled.pause;
        pooled.pause = (2 * pooled.pause).min(LONGEST_PAUSE);
    }
}

impl<N: Network> PooledClient<N> {
    fn lose(&mut self, error: &ClientError) {
        tracing::info!("lost the link to the server: {error}");
        self.last_error = UpstreamError::of(error);
        self.client = None;
    }

    fn report(&mut self) {
        // A lost report does no harm, and the next use notices a lost server.
        let _ = self.client.as_mut().map(Client::report);
    }
}

impl UpstreamError {
    fn of(error: &ClientError) -> Self {
        match error {
            ClientError::Operation(OpError::Revoked)
            | ClientError::Channel(ChannelError::Revoked)
            | ClientError::Member(MemberError::Revoked) => UpstreamError::Revoked,
            ClientError::Member(MemberError::Refused(refusal))
                if matches!(refusal.kind, RefusalKind::Denied | RefusalKind::Leaving) =>
            {
                UpstreamError::Revoked
            }
            ClientError::Timeout => UpstreamError::Silent,
            _ => UpstreamError::Gone,
        }
    }
}

/// A connection's session at the server, over the client of its thread.
pub(super) struct UpstreamSession<N: Network> {
    pool: Arc<ClientPool<N>>,
    thread: usize,
    /// The client's count and the session's number, once a session has begun.
    session: Option<(u64, u32)>,
}

impl<N: Network> UpstreamSession<N> {
    pub(super) fn new(pool: Arc<ClientPool<N>>, thread: usize) -> Self {
        UpstreamSession {
            pool,
            thread,
            session: None,
        }
    }
}

impl<N: Network> Upstream for UpstreamSession<N> {
    fn look(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), UpstreamError> {
        let mut pooled = self.pool.lock(self.thread);
        // Reads may be repeated, so a restart of the server stays invisible.
        for _ in 0..2 {
            let client = self.pool.connected(&mut pooled)?;
            match client.look_many(keys, &mut *each) {
                Ok(()) => return Ok(()),
                Err(error) => pooled.lose(&error),
            }
        }
        Err(pooled.last_error)
    }

    fn say(
        &mut self,
        goes_on: bool,
        text: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<Awaiting, UpstreamError> {
        let mut pooled = self.pool.lock(self.thread);
        self.pool.connected(&mut pooled)?;
        let session = match self.session {
            Some((count, session)) if count == pooled.count => session,
            // The command began at a server that is gone.
            _ if goes_on => return Err(UpstreamError::Gone),
            _ => {
                pooled.session = pooled.session.wrapping_add(1);
                self.session = Some((pooled.count, pooled.session));
                pooled.session
            }
        };
        let client = pooled.client.as_mut().ok_or(UpstreamError::Gone)?;
        match client.say(session, text, replies) {
            Ok(then) => {
                if then == Awaiting::End {
                    self.session = None;
                }
                Ok(then)
            }
            Err(error) => {
                pooled.lose(&error);
                Err(pooled.last_error)
            }
        }
    }

    fn report(&mut self) {
        self.pool.report_all();
    }
}

/// Reports, so that the server's counters include the gets of a client that has gone.
impl<N: Network> Drop for UpstreamSession<N> {
    fn drop(&mut self) {
        let mut pooled = self.pool.lock(self.thread);
        pooled.report();
        if let Some((count, session)) = self.session
            && count == pooled.count
            && let Some(client) = &mut pooled.client
        {
            client.leave(session);
        }
    }
}
