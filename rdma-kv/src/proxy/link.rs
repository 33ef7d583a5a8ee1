//! A proxy's clients of the server: one for each thread, connected anew when it is lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domains::member::MemberError;
use domains::protocol::RefusalKind;
use toroid_fabric::OpError;
use toroid_fabric::channel::ChannelError;

use super::{Away, Upstream};
use crate::client::{Client, ClientError};
use crate::control::Then;
use crate::network::Network;
use crate::reader::{ItemRef, Lookup};

/// Between two attempts to connect: twice as long after each, up to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoLink {
    /// Perhaps later.
    #[error(transparent)]
    Now(#[from] ClientError),
    /// There will be none: the domain is gone, or the agent.
    #[error(transparent)]
    Ever(MemberError),
}

/// How a client is made.
type Connect<N> = dyn Fn() -> Result<Client<N>, NoLink> + Send + Sync;

/// The links of all threads.
pub(super) struct Links<N: Network> {
    connect: Box<Connect<N>>,
    links: Vec<Mutex<Link<N>>>,
    /// Why there will be no more of them.
    ended: Mutex<Option<MemberError>>,
}

/// One thread's.
struct Link<N: Network> {
    client: Option<Client<N>>,
    /// How many clients there were: a conversation is of one of them.
    count: u64,
    /// Of the next conversation.
    session: u32,
    /// Why there is no client, since the last attempt.
    away: Away,
    /// When the next attempt may be made, and how long to wait after that.
    retry: Instant,
    pause: Duration,
}

impl<N: Network> Links<N> {
    /// The first has its client already; the others connect when they are used.
    pub(super) fn new(
        threads: usize,
        connect: impl Fn() -> Result<Client<N>, NoLink> + Send + Sync + 'static,
        first: Client<N>,
    ) -> Self {
        let mut first = Some(first);
        let links = (0..threads).map(|_| {
            let client = first.take();
            Mutex::new(Link {
                count: u64::from(client.is_some()),
                client,
                session: 0,
                away: Away::Gone,
                retry: Instant::now(),
                pause: FIRST_PAUSE,
            })
        });
        Links {
            connect: Box::new(connect),
            links: links.collect(),
            ended: Mutex::new(None),
        }
    }

    /// Reports what was read, and connects anew what is lost.
    ///
    /// # Errors
    /// Why there will be no links any more.
    pub(super) fn care(&self) -> Result<(), MemberError> {
        for number in 0..self.links.len() {
            let mut link = self.lock(number);
            // Others were never used.
            if link.count > 0 && self.connected(&mut link).is_ok() {
                link.report();
            }
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.take().map_or(Ok(()), Err)
    }

    /// Waits for the server to count what was read: what is asked over one link could overtake the
    /// report of another.
    fn report_all(&self) {
        for number in 0..self.links.len() {
            let mut link = self.lock(number);
            if let Some(Err(error)) = link.client.as_mut().map(Client::report_and_wait) {
                link.lose(&error);
            }
        }
    }

    fn lock(&self, number: usize) -> MutexGuard<'_, Link<N>> {
        let link = &self.links[number % self.links.len()];
        link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client that is not known to be lost.
    fn connected<'a>(&self, link: &'a mut Link<N>) -> Result<&'a mut Client<N>, Away> {
        if let Some(Err(error)) = link.client.as_mut().map(Client::check) {
            link.lose(&error);
        }
        if link.client.is_none() {
            if Instant::now() < link.retry {
                return Err(link.away);
            }
            match (self.connect)() {
                Ok(client) => {
                    link.client = Some(client);
                    (link.count, link.pause) = (link.count + 1, FIRST_PAUSE);
                }
                Err(error) => {
                    self.failed(link, error);
                    return Err(link.away);
                }
            }
        }
        link.client.as_mut().ok_or(link.away)
    }

    fn failed(&self, link: &mut Link<N>, error: NoLink) {
        tracing::info!("no link to the server: {error}");
        match error {
            NoLink::Now(error) => link.away = Away::of(&error),
            NoLink::Ever(error) => {
                link.away = Away::Revoked;
                let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                *ended = Some(error);
            }
        }
        link.retry = Instant::now() + link.pause;
        link.pause = (2 * link.pause).min(LONGEST_PAUSE);
    }
}

impl<N: Network> Link<N> {
    fn lose(&mut self, error: &ClientError) {
        tracing::info!("lost the link to the server: {error}");
        self.away = Away::of(error);
        self.client = None;
    }

    fn report(&mut self) {
        // Lost reports harm nobody; a lost server is noticed when it is needed.
        let _ = self.client.as_mut().map(Client::report);
    }
}

impl Away {
    fn of(error: &ClientError) -> Self {
        match error {
            ClientError::Operation(OpError::Revoked)
            | ClientError::Channel(ChannelError::Revoked)
            | ClientError::Member(MemberError::Revoked) => Away::Revoked,
            ClientError::Member(MemberError::Refused(refusal))
                if refusal.kind == RefusalKind::Denied =>
            {
                Away::Revoked
            }
            ClientError::Timeout => Away::Silent,
            _ => Away::Gone,
        }
    }
}

/// A connection's place at the link of its thread.
pub(super) struct UpstreamSession<N: Network> {
    links: Arc<Links<N>>,
    thread: usize,
    /// Its conversation with the server: which client's, and the number.
    session: Option<(u64, u32)>,
}

impl<N: Network> UpstreamSession<N> {
    pub(super) fn new(links: Arc<Links<N>>, thread: usize) -> Self {
        UpstreamSession {
            links,
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
    ) -> Result<(), Away> {
        let mut link = self.links.lock(self.thread);
        // Reading may be done twice, so a server that came back is not even noticed.
        for _ in 0..2 {
            let client = self.links.connected(&mut link)?;
            match client.look_many(keys, &mut *each) {
                Ok(()) => return Ok(()),
                Err(error) => link.lose(&error),
            }
        }
        Err(link.away)
    }

    fn say(&mut self, goes_on: bool, text: &[u8], replies: &mut Vec<u8>) -> Result<Then, Away> {
        let mut link = self.links.lock(self.thread);
        self.links.connected(&mut link)?;
        let session = match self.session {
            Some((count, session)) if count == link.count => session,
            // It began with a server that is gone.
            _ if goes_on => return Err(Away::Gone),
            _ => {
                link.session = link.session.wrapping_add(1);
                self.session = Some((link.count, link.session));
                link.session
            }
        };
        let client = link.client.as_mut().ok_or(Away::Gone)?;
        match client.say(session, text, replies) {
            Ok(then) => {
                if then == Then::End {
                    self.session = None;
                }
                Ok(then)
            }
            Err(error) => {
                link.lose(&error);
                Err(link.away)
            }
        }
    }

    fn report(&mut self) {
        self.links.report_all();
    }
}

/// Whoever looks at the server's counts after a client has gone finds its gets among them.
impl<N: Network> Drop for UpstreamSession<N> {
    fn drop(&mut self) {
        let mut link = self.links.lock(self.thread);
        link.report();
        if let Some((count, session)) = self.session
            && count == link.count
            && let Some(client) = &mut link.client
        {
            client.leave(session);
        }
    }
}
