//! A proxy: memcached's protocol for the clients of a node, with gets that read the memory of a
//! server elsewhere.
//!
//! [`run`] is all of it. It has the server's sockets and threads; behind each connection is a
//! [`Conversation`], which reads what can be read, and says all else to the server as it came, in
//! a conversation there that is this connection's alone. So there is one meaning of each command.
//! Each thread has a client of the server for itself (`link`), and connects anew when that is gone.
//!
//! * `framing`: which commands are whose; `getting`: those that are answered here.

mod conversation;
mod framing;
mod getting;
mod link;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use domains::member::{Domain, Member, MemberError};
use domains::protocol::RefusalKind;
use toroid_fabric::Place;

pub use self::conversation::Conversation;

use self::link::{Links, NoLink, UpstreamSession};
use crate::client::{Client, ClientError};
use crate::control::Then;
use crate::network::Network;
use crate::reader::{ItemRef, Lookup};
use crate::server::front::{self, Converse, Listeners};
use crate::server::{Rdma, Ready, ServeError, Settings, Stop, raise_descriptor_limit};
use crate::text::input::Input;
use crate::text::{Ends, Next};

/// How often links that nobody uses are looked after.
const CARE: Duration = Duration::from_secs(1);

/// Why a proxy could not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// As a server.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// There is no server to speak to.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// Its domain is gone, or the agent.
    #[error("the domain is gone: {0}")]
    Domain(MemberError),
}

impl From<io::Error> for ProxyError {
    fn from(error: io::Error) -> Self {
        ServeError::from(error).into()
    }
}

/// What a conversation asks of the server.
pub trait Upstream {
    /// Looks for keys by reading: `each` gets, in any order, the number of a key and what came of it;
    /// perhaps again, if the server has to be found anew.
    ///
    /// # Errors
    /// [`Away`]; then it has not told of all keys.
    fn look(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, Lookup<ItemRef<'_>>),
    ) -> Result<(), Away>;

    /// Says up to [`crate::control::TEXT_LIMIT`] bytes in this conversation, and appends what is
    /// answered. `goes_on` if they belong to what was said before: another server does not know it.
    ///
    /// # Errors
    /// [`Away`]; whether the server took them is not known.
    fn say(&mut self, goes_on: bool, text: &[u8], replies: &mut Vec<u8>) -> Result<Then, Away>;

    /// Lets the server know of all that was read so far, by all conversations.
    fn report(&mut self);
}

/// Why the server cannot be reached just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// One of the two nodes has left the domain.
    Revoked,
    /// It does not answer.
    Silent,
    /// It is gone.
    Gone,
}

impl Away {
    /// What clients are told.
    pub fn text(self) -> &'static [u8] {
        match self {
            Away::Revoked => b"SERVER_ERROR revoked\r\n",
            Away::Silent => b"SERVER_ERROR the server does not answer\r\n",
            Away::Gone => b"SERVER_ERROR the server is gone\r\n",
        }
    }
}

/// Serves by memcached's protocol, from the server at `place` or the only one of the domain, until
/// `stop`; calls `ready` when clients may come. Of `settings`, those count that concern sockets, their
/// threads and users, and the domain.
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
    let links = Links::new(settings.threads.max(1), connect, first);
    let proxy = Proxy(Arc::new(links));
    let serving = Ready {
        tcp: listeners.addresses(),
        unix: settings.unix.as_ref().map(|unix| unix.path.clone()),
        rdma: server.map(|server| (domain.name().to_owned(), server)),
    };
    std::thread::scope(|scope| {
        // Whichever ends first, for whatever reason, ends both.
        let carer = scope.spawn(|| stop.after(|| care(&proxy.0, stop)));
        let sockets =
            stop.after(|| front::serve(&listeners, settings, &proxy, stop, || ready(&serving)));
        match carer.join() {
            Ok(cared) => cared?,
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

/// Asks for the domain, too: the node may have left it and be back.
fn connect(member: &Member, name: &str, place: Option<Place>) -> Result<Client, NoLink> {
    let domain = member.domain(name).map_err(|error| match &error {
        MemberError::Refused(refusal) if refusal.kind == RefusalKind::NotFound => {
            NoLink::Ever(error)
        }
        MemberError::Agent(_) => NoLink::Ever(error),
        _ => NoLink::Now(error.into()),
    })?;
    Ok(Client::connect(&domain, place)?)
}

/// Reports what was read, and notices when a link is broken that nobody uses just now.
fn care<N: Network>(links: &Links<N>, stop: &Stop) -> Result<(), ProxyError> {
    while !stop.wait(CARE)? {
        links.care().map_err(ProxyError::Domain)?;
    }
    Ok(())
}

/// What connections to a proxy lead to.
struct Proxy<N: Network>(Arc<Links<N>>);

impl<N: Network> front::SessionFactory for Proxy<N>
where
    Client<N>: Send,
{
    type Conversation = Conversation<UpstreamSession<N>>;

    fn converse(&self, thread: usize, _: Ends) -> Self::Conversation {
        Conversation::new(UpstreamSession::new(Arc::clone(&self.0), thread))
    }

    fn refused(&self) {}

    fn accepts(&self, _: bool) {}
}

impl<U: Upstream> Converse for Conversation<U> {
    fn logged_in(&self, _: bool) {}

    fn is_idle(&self) -> bool {
        Conversation::is_idle(self)
    }

    fn input(&mut self) -> &mut Input {
        Conversation::input(self)
    }

    fn room(&mut self) -> &mut [u8] {
        Conversation::room(self)
    }

    fn received(&mut self, count: usize) {
        Conversation::received(self, count);
    }

    fn run(&mut self, replies: &mut Vec<u8>) -> io::Result<Next> {
        Ok(Conversation::run(self, replies))
    }
}

#[cfg(test)]
mod tests;
