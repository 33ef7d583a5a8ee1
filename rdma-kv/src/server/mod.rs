//! The server: one store behind TCP and RDMA.
//!
//! [`run`] is all of it. Each TCP connection has a thread; one thread serves all RDMA clients,
//! and sleeps when they do; one publishes the clock.

mod rdma;
mod stop;
mod tcp;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use domains::member::{Domain, Member, MemberError};
use fabric::{Access, Place, Region};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use stop::Stop;
pub use tcp::converse;

use crate::control::PROTOCOL;
use crate::index::IndexError;
use crate::shared::Shared;
use crate::store::{Limits, LimitsError, Store};

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses to listen at; all of them when empty.
    pub listen: Vec<IpAddr>,
    /// TCP port; `Some(0)` takes any free one, `None` serves no TCP.
    pub port: Option<u16>,
    /// TCP connections at a time.
    pub connections: usize,
    /// Memory for items, and the largest item.
    pub limits: Limits,
    /// Where to serve by RDMA.
    pub rdma: Rdma,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            listen: Vec::new(),
            port: Some(11211),
            connections: 1024,
            limits: Limits::DEFAULT,
            rdma: Rdma::Auto,
        }
    }
}

/// Whether to serve by RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rdma {
    /// In a node, in its only domain; else by TCP alone, which [`Ready`] says.
    Auto,
    /// In this domain.
    Domain(String),
    /// Not at all.
    Off,
}

/// Why a server could not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Caller: impossible limits.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Caller: neither TCP nor RDMA is left.
    #[error("nothing to serve: TCP is off, and there is no domain to serve in")]
    Nothing,
    /// An address cannot be listened at.
    #[error("cannot listen at {address}: {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// The agent refused, or has gone.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The system has no thread, descriptor or memory left.
    #[error("{0}")]
    System(#[from] io::Error),
    /// Us.
    #[error("the store broke: {0}")]
    Store(#[from] IndexError),
}

/// Where a server serves, once it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// TCP addresses.
    pub tcp: Vec<SocketAddr>,
    /// Domain and place, when it serves by RDMA.
    pub rdma: Option<(String, Place)>,
}

/// `ready tcp 0.0.0.0:11211 rdma blue 0,0,0`
impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ready")?;
        self.tcp
            .iter()
            .try_for_each(|address| write!(f, " tcp {address}"))?;
        match &self.rdma {
            Some((domain, place)) => write!(f, " rdma {domain} {place}"),
            None => Ok(()),
        }
    }
}

/// Serves until `stop`, or until the agent ends, with as many descriptors as the system lets this
/// process have; calls `ready` when clients may come, with the store for whoever serves more of them
/// by [`converse`].
///
/// # Errors
/// [`ServeError`].
pub fn run(
    options: &Options,
    stop: &Stop,
    ready: impl FnOnce(&Ready, &Shared),
) -> Result<(), ServeError> {
    options.limits.check()?;
    raise_descriptor_limit();
    let domain = find_domain(&options.rdma)?;
    let listeners = match options.port {
        Some(port) => tcp::listen(&options.listen, port)?,
        None => Vec::new(),
    };
    if domain.is_none() && listeners.is_empty() {
        return Err(ServeError::Nothing);
    }
    let store = make_store(options.limits, domain.as_ref())?;
    let rdma = match &domain {
        Some(domain) => Some(rdma::Server::new(
            domain.clone(),
            domain.listen(PROTOCOL)?,
            store.clone(),
        )),
        None => None,
    };
    let addresses = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok());
    let serving = Ready {
        tcp: addresses.collect(),
        rdma: domain.map(|domain| (domain.name().to_owned(), domain.member().place())),
    };
    ready(&serving, &store);
    std::thread::scope(|scope| {
        // Whichever ends first, for whatever reason, ends all.
        let clock = scope.spawn(|| stop.after(|| keep_time(&store, stop)));
        let rdma = rdma.map(|rdma| scope.spawn(|| stop.after(|| rdma.run(stop))));
        let tcp = stop.after(|| tcp::serve(&listeners, options.connections, &store, stop));
        let rdma = rdma
            .map(|thread| thread.join().unwrap_or_else(resume))
            .transpose();
        clock.join().unwrap_or_else(resume)?;
        rdma?;
        Ok(tcp?)
    })
}

/// Lets this process have as many descriptors as it may: each client needs some.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

/// A thread's panic is ours.
fn resume<T>(panic: Box<dyn std::any::Any + Send>) -> T {
    std::panic::resume_unwind(panic)
}

fn find_domain(rdma: &Rdma) -> Result<Option<Domain>, ServeError> {
    let name = match rdma {
        Rdma::Off => return Ok(None),
        Rdma::Auto => None,
        Rdma::Domain(name) => Some(name.as_str()),
    };
    match Member::attach() {
        Err(MemberError::NotInNode) if name.is_none() => Ok(None),
        member => Ok(Some(member?.domain_or_only(name)?)),
    }
}

fn make_store(limits: Limits, domain: Option<&Domain>) -> Result<Shared, ServeError> {
    let (index, items) = limits.regions();
    let region = |len: u64| match domain {
        Some(domain) => Ok(domain.alloc(len, Access::REMOTE_READ)?),
        None => Ok::<_, ServeError>(Region::local(len as usize)?),
    };
    let random = || getrandom::u64().map_err(io::Error::other);
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let random = [random()?, random()?];
    let store = Store::new(
        region(index)?,
        region(items)?,
        limits,
        random,
        unix.as_secs() as i64,
    )?;
    Ok(Shared::new(store))
}

fn keep_time(store: &Shared, stop: &Stop) -> Result<(), ServeError> {
    let start = Instant::now();
    loop {
        let uptime = start.elapsed();
        store.tick(uptime.as_secs()).map_err(IndexError::from)?;
        let next = std::time::Duration::from_secs(uptime.as_secs() + 1);
        if stop.wait(next.saturating_sub(uptime))? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::sync::mpsc;

    use super::*;

    fn options() -> Options {
        Options {
            listen: vec![Ipv4Addr::LOCALHOST.into()],
            port: Some(0),
            rdma: Rdma::Off,
            ..Options::default()
        }
    }

    /// Runs a server while `test` talks to it, then stops it.
    fn serving(options: Options, test: impl FnOnce(SocketAddr)) {
        let stop = Stop::new().unwrap();
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                run(&options, &stop, |ready, _| {
                    sender.send(ready.tcp[0]).unwrap();
                })
            });
            // Stopped also when the test fails, or its panic would wait for the server.
            stop.after(|| test(receiver.recv().unwrap()));
            server.join().unwrap().unwrap();
        });
    }

    fn ask(stream: &mut TcpStream, request: &[u8], expected: &str) {
        stream.write_all(request).unwrap();
        let mut reply = vec![0; expected.len()];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(String::from_utf8_lossy(&reply), expected);
    }

    #[test]
    fn connections_share_the_store_and_end_with_the_server() {
        let mut left_open = None;
        serving(options(), |address| {
            let mut first = TcpStream::connect(address).unwrap();
            let mut second = TcpStream::connect(address).unwrap();
            ask(&mut first, b"set a 1 0 3\r\none\r\n", "STORED\r\n");
            ask(&mut second, b"get a\r\n", "VALUE a 1 3\r\none\r\nEND\r\n");
            second.write_all(b"get a\r\nquit\r\n").unwrap();
            let mut rest = String::new();
            second.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "VALUE a 1 3\r\none\r\nEND\r\n");
            left_open = Some(first);
        });
        assert_eq!(left_open.unwrap().read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_server_may_have_as_many_descriptors_as_the_system_lets_it() {
        serving(options(), |_| {
            let limit = getrlimit(Resource::Nofile);
            assert_eq!(limit.current, limit.maximum);
        });
    }

    #[test]
    fn connections_over_the_limit_are_told_so() {
        serving(
            Options {
                connections: 1,
                ..options()
            },
            |address| {
                let mut first = TcpStream::connect(address).unwrap();
                ask(&mut first, b"get a\r\n", "END\r\n");
                let mut reply = String::new();
                TcpStream::connect(address)
                    .unwrap()
                    .read_to_string(&mut reply)
                    .unwrap();
                assert_eq!(reply, "ERROR Too many open connections\r\n");
                ask(&mut first, b"get a\r\n", "END\r\n");
            },
        );
    }

    #[test]
    fn impossible_options_are_named() {
        let run = |options| run(&options, &Stop::new().unwrap(), |_, _| panic!("it started"));
        let limits = Limits {
            memory: 1 << 20,
            item: 1 << 20,
        };
        let small = run(Options {
            limits,
            ..options()
        });
        assert!(matches!(
            small,
            Err(ServeError::Limits(LimitsError::TooSmall { .. }))
        ));
        let nothing = run(Options {
            port: None,
            ..options()
        });
        assert!(matches!(nothing, Err(ServeError::Nothing)));
        serving(options(), |address| {
            let taken = run(Options {
                port: Some(address.port()),
                ..options()
            });
            assert!(matches!(taken, Err(ServeError::Listen { address: a, .. }) if a == address));
        });
    }
}
