//! Proxy: memcached's protocol for the clients of a node, with gets that read the memory of a server on
//! another node.
//!
//! [`run`] serves with the same sockets and threads as a server. Each connection has a [`ProxyConversation`],
//! which answers plain gets by one-sided reads and forwards all other commands unchanged, in a session
//! of its own at the server. So each command has one implementation.
//!
//! * `client_pool`: one client of the server per thread.
//! * `framing`: which commands the proxy answers; `getting`: their answers.

mod client_pool;
mod conversation;
mod framing;
mod getting;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use toroid_client::member::{Domain, Member, MemberError};
use toroid_fabric::Place;
use toroid_model::refusal::RefusalKind;

pub use self::conversation::ProxyConversation;

use self::client_pool::{ClientPool, ConnectError, UpstreamSession};
use crate::client::reader::{ItemRef, Lookup};
use crate::client::{Client, ClientError};
use crate::network::Network;
use crate::protocol::messages::Awaiting;
use crate::server::sockets::{self, Converse, Listeners, SessionFactory};
use crate::server::{Rdma, Ready, ServeError, Settings, Stop, raise_descriptor_limit};
use crate::text::input::Input;
use crate::text::{Ends, Next};

/// Period of reports and of checks for lost clients.
const MAINTENANCE_PERIOD: Duration = Duration::from_secs(1);

/// Failure to start a proxy, or its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// Sockets or threads failed, as with a server.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The server cannot be reached at the start.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// The domain or the agent is gone.
    #[error("the domain is gone: {0}")]
    Domain(MemberError),
}

impl From<io::Error> for ProxyError {
    fn from(error: io::Error) -> Self {
        ServeError::from(error).into()
    }
}

/// The server, as a conversation uses it.
pub trait Upstream {
    /// Looks keys up by one-sided reads. Calls `each` in any order with the index of a key and its result,
    /// and again for the same key after a reconnection.
    ///
    /// # Errors
    /// [`UpstreamError`]; some keys then have no result.
    fn look(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), UpstreamError>;

    /// Sends up to [`crate::protocol::messages::TEXT_LIMIT`] bytes in this session, and appends the replies. `goes_on`
    /// if the bytes continue a command: a server that does not know its beginning must not get them.
    ///
    /// # Errors
    /// [`UpstreamError`]; whether the server received the bytes is then unknown.
    fn say(
        &mut self,
        goes_on: bool,
        text: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<Awaiting, UpstreamError>;

    /// Reports the gets of all sessions to the server, and waits for it to count them.
    fn report(&mut self);
}

/// Reason for which the server is unreachable at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    /// One of the two nodes has left the domain.
    Revoked,
    /// The server does not answer in time.
    Silent,
    /// The server is gone.
    Gone,
}

impl UpstreamError {
    /// Reply to a client's command.
    pub fn text(self) -> &'static [u8] {
        match self {
            UpstreamError::Revoked => b"SERVER_ERROR revoked\r\n",
            UpstreamError::Silent => b"SERVER_ERROR the server does not answer\r\n",
            UpstreamError::Gone => b"SERVER_ERROR the server is gone\r\n",
        }
    }
}

/// Serves memcached's protocol until `stop`, from the server at `place`, or from the only one of the domain.
/// Calls `ready` once clients can connect. Uses the `settings` for sockets, threads, users and the domain.
///
/// # Errors
/// [`ProxyError`]; also when the domain is removed, or the agent ends.
pub fn run(
    settings: &Settings,
    place: Option<Place>,
    stop: &Stop,
    ready: impl FnOnce(&Ready),
) -> Result<(), ProxyError> {
    raise_descriptor_limit();
    let domain = find_domain(&settings.rdma)?;
    let first = Client::connect(&domain, place)?;
    let server = domain.member().torus().place(first.server());
    let listeners = Listeners::bind(settings)?;
    if listeners.is_empty() {
        return Err(ServeError::Nothing.into());
    }
    let (member, name) = (domain.member().clone(), domain.name().to_owned());
    let connect = move || connect(&member, &name, place);
    let pool = ClientPool::new(settings.threads.max(1), connect, first);
    let proxy = Proxy(Arc::new(pool));
    let serving = Ready {
        tcp: listeners.addresses(),
        unix: settings.unix.as_ref().map(|unix| unix.path.clone()),
        rdma: server.map(|server| (domain.name().to_owned(), server)),
    };
    std::thread::scope(|scope| {
        // The end of one thread, for any reason, ends both.
        let maintenance = scope.spawn(|| stop.after(|| maintain(&proxy.0, stop)));
        let sockets =
            stop.after(|| sockets::serve(&listeners, settings, &proxy, stop, || ready(&serving)));
        match maintenance.join() {
            Ok(ended) => ended?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok(sockets?)
    })
}

fn find_domain(rdma: &Rdma) -> Result<Domain, ProxyError> {
    let name = match rdma {
        Rdma::Domain(name) => Some(name.as_str()),
        Rdma::Auto | Rdma::Off => None,
    };
    let domain = Member::attach().and_then(|member| member.domain_or_only(name));
    Ok(domain.map_err(ClientError::from)?)
}

/// Opens the domain anew as well: the node may have left it and rejoined.
fn connect(member: &Member, name: &str, place: Option<Place>) -> Result<Client, ConnectError> {
    let domain = member.domain(name).map_err(|error| match &error {
        MemberError::Refused(refusal) if refusal.kind == RefusalKind::NotFound => {
            ConnectError::Permanent(error)
        }
        MemberError::Agent(_) => ConnectError::Permanent(error),
        _ => ConnectError::Temporary(error.into()),
    })?;
    Ok(Client::connect(&domain, place)?)
}

/// Reports gets, and notices lost clients that are not in use.
fn maintain<N: Network>(pool: &ClientPool<N>, stop: &Stop) -> Result<(), ProxyError> {
    while !stop.wait(MAINTENANCE_PERIOD)? {
        pool.maintain().map_err(ProxyError::Domain)?;
    }
    Ok(())
}

/// Makes the conversations of a proxy's connections.
struct Proxy<N: Network>(Arc<ClientPool<N>>);

impl<N: Network> SessionFactory for Proxy<N>
where
    Client<N>: Send,
{
    type Conversation = ProxyConversation<UpstreamSession<N>>;

    fn converse(&self, thread: usize, _: Ends) -> Self::Conversation {
        ProxyConversation::new(UpstreamSession::new(Arc::clone(&self.0), thread))
    }

    fn refused(&self) {}

    fn accepts(&self, _: bool) {}
}

impl<U: Upstream> Converse for ProxyConversation<U> {
    fn logged_in(&self, _: bool) {}

    fn is_idle(&self) -> bool {
        ProxyConversation::is_idle(self)
    }

    fn input(&mut self) -> &mut Input {
        ProxyConversation::input(self)
    }

    fn room(&mut self) -> &mut [u8] {
        ProxyConversation::room(self)
    }

    fn received(&mut self, count: usize) {
        ProxyConversation::received(self, count);
    }

    fn run(&mut self, replies: &mut Vec<u8>) -> io::Result<Next> {
        Ok(ProxyConversation::run(self, replies))
    }
}

#[cfg(test)]
mod tests;
