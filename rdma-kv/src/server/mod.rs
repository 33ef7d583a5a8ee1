//! The server: one store behind TCP, a unix socket and RDMA.
//!
//! [`run`] serves until it is stopped. One thread accepts connections and deals them to
//! [`Settings::threads`] workers. One thread serves all RDMA clients, and sleeps when they are
//! idle. One thread publishes the clock.

mod backend;
mod converse;
mod proxied_session;
pub(crate) mod rdma;
mod settings;
pub(crate) mod sockets;
mod stop;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use toroid_client::member::{Domain, Member, MemberError};
use toroid_fabric::{Access, Place, Region};

pub use converse::converse;
pub use settings::{Commands, Rdma, Settings, Tuning, UnixSocket};
pub use sockets::{Listen, ListenError, Users, UsersError};
pub use stop::Stop;

pub use crate::store::shared::Shared;
pub use crate::store::{Limits, LimitsError};

use self::sockets::Listeners;
use crate::protocol::messages::PROTOCOL;
use crate::store::Store;
use crate::store::index::IndexError;

#[cfg(test)]
pub(crate) use self::rdma::tests::Cluster;

/// Failure to start a server, or its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Caller: invalid limits.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Caller: neither sockets nor RDMA are enabled.
    #[error("nothing to serve: TCP is off, and there is no domain to serve in")]
    Nothing,
    /// Listening at an address failed.
    #[error("cannot listen at {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The agent denied a request, or is gone.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The system lacks threads, descriptors or memory.
    #[error("{0}")]
    System(#[from] io::Error),
    /// A bug of the store.
    #[error("the store broke: {0}")]
    Store(#[from] IndexError),
}

/// Addresses of a server that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// TCP addresses.
    pub tcp: Vec<SocketAddr>,
    /// File of the unix socket.
    pub unix: Option<PathBuf>,
    /// Domain and place of the node, if it serves by RDMA.
    pub rdma: Option<(String, Place)>,
}

/// Shown as `ready tcp 0.0.0.0:11211 rdma blue 0,0,0`.
impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ready")?;
        self.tcp
            .iter()
            .try_for_each(|address| write!(f, " tcp {address}"))?;
        if let Some(path) = &self.unix {
            write!(f, " unix {}", path.display())?;
        }
        match &self.rdma {
            Some((domain, place)) => write!(f, " rdma {domain} {place}"),
            None => Ok(()),
        }
    }
}

/// Serves until `stop`, or until the agent ends. Calls `ready` once clients can connect, with the
/// store, for connections that [`converse`] serves. Raises the limit of descriptors as far as the
/// system allows.
///
/// # Errors
/// [`ServeError`].
pub fn run(
    settings: &Settings,
    stop: &Stop,
    ready: impl FnOnce(&Ready, &Shared),
) -> Result<(), ServeError> {
    settings.limits.check()?;
    raise_descriptor_limit();
    let domain = find_domain(&settings.rdma)?;
    let listeners = Listeners::bind(settings)?;
    if domain.is_none() && listeners.is_empty() {
        return Err(ServeError::Nothing);
    }
    let store = make_store(settings, domain.as_ref())?;
    store.with(|store| {
        store.set_may_evict(settings.commands.evictions);
        store.set_has_cas(settings.commands.cas);
    });
    let backend = backend::Backend {
        store: store.clone(),
        server: Arc::new(backend::server_state(settings, &listeners, stop)),
    };
    store.with(|store| store.set_eviction_log(backend.server.eviction_log()));
    let rdma = match &domain {
        Some(domain) => Some(rdma::Server::new(
            domain.clone(),
            domain.listen(PROTOCOL)?,
            backend.clone(),
        )),
        None => None,
    };
    let serving = Ready {
        tcp: listeners.addresses(),
        unix: settings.unix.as_ref().map(|unix| unix.path.clone()),
        rdma: domain.map(|domain| (domain.name().to_owned(), domain.member().place())),
    };
    std::thread::scope(|scope| {
        // The end of one thread, for any reason, ends all.
        let clock = spawn(scope, || stop.after(|| keep_time(&store, stop)))?;
        let rdma = rdma.map(|rdma| spawn(scope, || stop.after(|| rdma.run(stop))));
        let ready = || ready(&serving, &store);
        let sockets = stop.after(|| match &rdma {
            Some(Err(_)) => Ok(()),
            _ => sockets::serve(&listeners, settings, &backend, stop, ready),
        });
        let rdma = rdma.map(|thread| thread?.join().unwrap_or_else(resume));
        clock.join().unwrap_or_else(resume)?;
        rdma.transpose()?;
        Ok(sockets?)
    })
}

/// Raises the limit of descriptors: each client needs some.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

/// Spawns a thread; a failure is an error rather than a panic.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    std::thread::Builder::new().spawn_scoped(scope, run)
}

/// Continues the panic of a thread.
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

fn make_store(settings: &Settings, domain: Option<&Domain>) -> Result<Shared, ServeError> {
    let limits = settings.limits;
    let local = |limits: Limits| {
        let (index, items) = limits.regions();
        io::Result::Ok([
            Region::local(index as usize)?,
            Region::local(items as usize)?,
        ])
    };
    let [index, items] = match domain {
        Some(domain) => {
            let (index, items) = limits.regions();
            let region = |len| domain.alloc(len, Access::REMOTE_READ);
            [region(index)?, region(items)?]
        }
        // Where the system limits the addresses of a process (`ulimit -v`), the memory
        // cannot grow.
        None if settings.may_grow => local(limits.largest()).or_else(|_| local(limits))?,
        None => local(limits)?,
    };
    let random = || getrandom::u64().map_err(io::Error::other);
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let random = [random()?, random()?];
    let store = Store::new(index, items, limits, random, unix.as_secs() as i64)?;
    Ok(Shared::new(store))
}

fn keep_time(store: &Shared, stop: &Stop) -> Result<(), ServeError> {
    let start = Instant::now();
    loop {
        let uptime = start.elapsed();
        store.tick(uptime.as_secs()).map_err(IndexError::from)?;
        // A few items at a time, so that others can use the store and the clock advances.
        while store.with(Store::sweep).map_err(IndexError::from)?
            && start.elapsed().as_secs() == uptime.as_secs()
        {
            std::thread::yield_now();
        }
        let next = std::time::Duration::from_secs(uptime.as_secs() + 1);
        if stop.wait(next.saturating_sub(uptime))? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{IpAddr, Ipv4Addr, TcpStream};
    use std::sync::mpsc;

    use super::*;

    fn settings() -> Settings {
        Settings {
            listen: vec![IpAddr::from(Ipv4Addr::LOCALHOST).into()],
            port: Some(0),
            rdma: Rdma::Off,
            ..Settings::default()
        }
    }

    /// Runs a server while `test` talks to it, then stops it.
    fn serving(settings: Settings, test: impl FnOnce(SocketAddr)) {
        let stop = Stop::new().unwrap();
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                run(&settings, &stop, |ready, _| {
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
        serving(settings(), |address| {
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
    fn a_server_raises_its_descriptor_limit_to_the_maximum() {
        serving(settings(), |_| {
            let limit = getrlimit(Resource::Nofile);
            assert_eq!(limit.current, limit.maximum);
        });
    }

    #[test]
    fn connections_over_the_limit_get_an_error() {
        serving(
            Settings {
                connections: 1,
                ..settings()
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
    fn connections_over_the_limit_wait_without_maxconns_fast() {
        let settings = Settings {
            connections: 1,
            refuse_at_once: false,
            ..settings()
        };
        serving(settings, |address| {
            let mut first = TcpStream::connect(address).unwrap();
            ask(&mut first, b"get a\r\n", "END\r\n");
            let mut second = TcpStream::connect(address).unwrap();
            second.write_all(b"set a 0 0 1\r\n2\r\n").unwrap();
            ask(&mut first, b"get a\r\n", "END\r\n");
            drop(first);
            ask(&mut second, b"", "STORED\r\n");
        });
    }

    #[test]
    fn every_worker_thread_serves_connections() {
        for threads in [1, 3] {
            let settings = Settings {
                threads,
                ..settings()
            };
            serving(settings, |address| {
                let mut streams: Vec<_> = (0..10)
                    .map(|_| TcpStream::connect(address).unwrap())
                    .collect();
                for (n, stream) in streams.iter_mut().enumerate() {
                    let set = format!("set k{n} 0 0 1\r\n{n}\r\n");
                    ask(stream, set.as_bytes(), "STORED\r\n");
                }
                for (n, stream) in streams.iter_mut().rev().enumerate() {
                    let value = format!("VALUE k{n} 0 1\r\n{n}\r\nEND\r\n");
                    ask(stream, format!("get k{n}\r\n").as_bytes(), &value);
                }
            });
        }
    }

    #[test]
    fn a_client_with_endless_requests_does_not_block_others() {
        let settings = Settings {
            threads: 1,
            ..settings()
        };
        serving(settings, |address| {
            let mut first = TcpStream::connect(address).unwrap();
            let value = vec![b'v'; 1_000_000];
            first.write_all(b"set k 0 0 1000000\r\n").unwrap();
            first.write_all(&value).unwrap();
            ask(&mut first, b"\r\n", "STORED\r\n");
            // Never reads; its replies fill the buffers of the system.
            let mut deaf = TcpStream::connect(address).unwrap();
            deaf.write_all("get k k k k\r\n".repeat(100).as_bytes())
                .unwrap();
            // Reads all that it asks for, and asks for much.
            let mut greedy = TcpStream::connect(address).unwrap();
            greedy
                .write_all("version\r\n".repeat(1_000).as_bytes())
                .unwrap();
            ask(&mut first, b"get a\r\n", "END\r\n");
            let mut line = [0; 9];
            greedy.read_exact(&mut line).unwrap();
            assert_eq!(&line, b"VERSION 1");
        });
    }

    #[test]
    fn an_idle_client_is_disconnected_after_the_timeout() {
        let settings = Settings {
            idle_timeout: Some(std::time::Duration::from_secs(1)),
            ..settings()
        };
        serving(settings, |address| {
            let mut idle = TcpStream::connect(address).unwrap();
            ask(&mut idle, b"get a\r\n", "END\r\n");
            assert_eq!(idle.read(&mut [0]).unwrap(), 0);
        });
    }

    #[test]
    fn a_unix_socket_serves_with_tcp_or_without() {
        let path = std::env::temp_dir().join(format!("toroid-kv-serve-{}", std::process::id()));
        let settings = Settings {
            unix: Some(UnixSocket {
                path: path.clone(),
                mode: 0o700,
            }),
            ..settings()
        };
        serving(settings, |address| {
            let mut tcp = TcpStream::connect(address).unwrap();
            ask(&mut tcp, b"set a 0 0 1\r\n1\r\n", "STORED\r\n");
            let mut unix = std::os::unix::net::UnixStream::connect(&path).unwrap();
            unix.write_all(b"get a\r\nquit\r\n").unwrap();
            let mut reply = String::new();
            unix.read_to_string(&mut reply).unwrap();
            assert_eq!(reply, "VALUE a 0 1\r\n1\r\nEND\r\n");
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_full_store_without_evictions_refuses_sets_and_keeps_items() {
        let settings = Settings {
            limits: Limits {
                memory: 2 << 20,
                item: 1 << 20,
            },
            commands: Commands {
                evictions: false,
                ..Commands::default()
            },
            ..settings()
        };
        serving(settings, |address| {
            let mut stream = TcpStream::connect(address).unwrap();
            let value = "v".repeat(100_000);
            let mut set = |key: usize| {
                let set = format!("set k{key} 0 0 {}\r\n{value}\r\n", value.len());
                stream.write_all(set.as_bytes()).unwrap();
                let mut reply = Vec::new();
                while !reply.ends_with(b"\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    reply.extend_from_slice(&byte);
                }
                String::from_utf8(reply).unwrap()
            };
            let stored = (0..30).position(|key| set(key) != "STORED\r\n").unwrap();
            assert!(stored > 0);
            assert_eq!(set(30), "SERVER_ERROR out of memory storing object\r\n");
            for key in 0..stored {
                let head = format!("VALUE k{key} 0 100000\r\n{value}\r\nEND\r\n");
                ask(&mut stream, format!("get k{key}\r\n").as_bytes(), &head);
            }
        });
    }

    #[test]
    fn unauthenticated_clients_are_refused_when_users_are_set() {
        let path = std::env::temp_dir().join(format!("toroid-kv-auth-{}", std::process::id()));
        std::fs::write(&path, "me:secret\n").unwrap();
        let settings = Settings {
            users: Some(Users::load(&path).unwrap()),
            ..settings()
        };
        std::fs::remove_file(&path).unwrap();
        serving(settings, |address| {
            let mut stranger = TcpStream::connect(address).unwrap();
            ask(
                &mut stranger,
                b"get a\r\n",
                "CLIENT_ERROR unauthenticated\r\n",
            );
            let mut known = TcpStream::connect(address).unwrap();
            let both = b"set x 0 0 9\r\nme secret\r\nset a 0 0 1\r\n1\r\n";
            ask(&mut known, both, "STORED\r\nSTORED\r\n");
            ask(&mut known, b"get a x\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n");
            ask(
                &mut stranger,
                b"get a\r\n",
                "CLIENT_ERROR unauthenticated\r\n",
            );
        });
    }

    #[test]
    fn invalid_settings_are_refused_with_the_reason() {
        let run = |settings| {
            run(&settings, &Stop::new().unwrap(), |_, _| {
                panic!("it started")
            })
        };
        let limits = Limits {
            memory: 1 << 20,
            item: 1 << 20,
        };
        let small = run(Settings {
            limits,
            ..settings()
        });
        assert!(matches!(
            small,
            Err(ServeError::Limits(LimitsError::TooSmall { .. }))
        ));
        let nothing = run(Settings {
            port: None,
            ..settings()
        });
        assert!(matches!(nothing, Err(ServeError::Nothing)));
        serving(settings(), |address| {
            let taken = run(Settings {
                port: Some(address.port()),
                ..settings()
            });
            assert!(
                matches!(taken, Err(ServeError::Listen { address: a, .. }) if a == address.to_string())
            );
        });
    }
}
