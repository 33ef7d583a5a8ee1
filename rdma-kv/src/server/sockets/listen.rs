//! Listening sockets of a server.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt,
};

use crate::server::{ServeError, Settings, UnixSocket};

/// An address to listen at, as memcached's `-l` takes it: `HOST`, `HOST:PORT`, `[IPv6]:PORT`, or
/// `*` in the host's place. A name stands for all of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address or name; all addresses when `None`.
    pub(super) host: Option<String>,
    /// Port; the server's own when `None`.
    pub(super) port: Option<u16>,
}

/// Malformed address to listen at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// A bracket is not closed.
    #[error("Invalid IPV6 address: \"{0}\"")]
    Bracket(String),
    /// The port is no number.
    #[error("Invalid port number: \"{0}\"")]
    Port(String),
    /// The prefix `notls`, which memcached has for listeners without TLS.
    #[error("'notls' option is valid only when SSL is enabled")]
    NoTls,
    /// A prefix for a listener with a protocol or a tag of its own.
    #[error("\"{0}\": listeners with a protocol or a tag of their own are not supported")]
    Prefix(String),
    /// The address is empty.
    #[error("an address to listen at is empty")]
    Empty,
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        if text.starts_with("notls") {
            return Err(ListenError::NoTls);
        }
        if text.starts_with("proto[") || text.starts_with("tag[") {
            return Err(ListenError::Prefix(text.to_owned()));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let bracket = || ListenError::Bracket(text.to_owned());
                let (host, rest) = rest.split_once(']').ok_or_else(bracket)?;
                match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(bracket()),
                }
            }
            // More than one colon is an IPv6 address without a port.
            None => match text.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, Some(port)),
                _ => (text, None),
            },
        };
        if host.is_empty() {
            return Err(ListenError::Empty);
        }
        let number = |port: &str| port.parse().map_err(|_| ListenError::Port(port.to_owned()));
        Ok(Listen {
            host: (host != "*").then(|| host.to_owned()),
            port: port.map(number).transpose()?,
        })
    }
}

impl From<IpAddr> for Listen {
    fn from(address: IpAddr) -> Self {
        Listen {
            host: Some(address.to_string()),
            port: None,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.as_deref().unwrap_or("*");
        match self.port {
            Some(port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
            None => f.write_str(host),
        }
    }
}

/// All listening sockets of a server.
pub(crate) struct Listeners {
    tcp: Vec<TcpListener>,
    unix: Option<UnixListener>,
}

impl Listeners {
    /// Binds all sockets.
    pub(crate) fn bind(settings: &Settings) -> Result<Self, ServeError> {
        let mut tcp = Vec::new();
        if let Some(port) = settings.port {
            let everywhere = [Listen {
                host: None,
                port: None,
            }];
            let places = match settings.listen.as_slice() {
                [] => &everywhere,
                places => places,
            };
            for place in places {
                bind_at(
                    place,
                    place.port.unwrap_or(port),
                    settings.backlog,
                    &mut tcp,
                )?;
            }
        }
        let unix = settings.unix.as_ref();
        Ok(Listeners {
            tcp,
            unix: unix
                .map(|unix| UnixListener::bind(unix, settings.backlog))
                .transpose()?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.unix.is_none()
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let address = |listener: &TcpListener| listener.local_addr().ok();
        self.tcp.iter().filter_map(address).collect()
    }

    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let unix = self.unix.iter().map(|unix| unix.socket.as_fd());
        self.tcp.iter().map(AsFd::as_fd).chain(unix).collect()
    }
}

fn bind_at(
    place: &Listen,
    port: u16,
    backlog: i32,
    bound: &mut Vec<TcpListener>,
) -> Result<(), ServeError> {
    let failed = |error| ServeError::Listen {
        address: format!("{}:{port}", place.host.as_deref().unwrap_or("*")),
        error,
    };
    let bind = |address| bind_tcp(address, backlog);
    let Some(host) = &place.host else {
        return bind_everywhere(port, backlog, bound).map_err(failed);
    };
    let addresses: Vec<_> = (host.as_str(), port)
        .to_socket_addrs()
        .map_err(failed)?
        .collect();
    let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
    let before = bound.len();
    for (n, &address) in addresses.iter().enumerate() {
        if addresses[..n].contains(&address) {
            continue;
        }
        match bind(address) {
            Ok(listener) => bound.push(listener),
            // A name may have addresses of a family that this host does not speak.
            Err(error) if error.kind() != ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(failed(error)),
        }
    }
    if bound.len() > before {
        Ok(())
    } else {
        Err(failed(last))
    }
}

/// A listener for each family that this host speaks, as memcached has; both at one port, unless any
/// port will do and the other family has that one in use.
fn bind_everywhere(port: u16, backlog: i32, bound: &mut Vec<TcpListener>) -> io::Result<()> {
    let v4 = bind_tcp((Ipv4Addr::UNSPECIFIED, port).into(), backlog);
    let same = match &v4 {
        Ok(listener) => listener.local_addr()?.port(),
        Err(_) => port,
    };
    let v6 = |port| bind_tcp((Ipv6Addr::UNSPECIFIED, port).into(), backlog);
    let v6 = v6(same).or_else(|error| match (port, error.kind()) {
        (0, ErrorKind::AddrInUse) => v6(0),
        _ => Err(error),
    });
    let refused = |kind| matches!(kind, ErrorKind::AddrInUse | ErrorKind::PermissionDenied);
    match (v4, v6) {
        (Err(error), _) | (_, Err(error)) if refused(error.kind()) => Err(error),
        (Err(error), Err(_)) => Err(error),
        (v4, v6) => {
            bound.extend(v4.into_iter().chain(v6));
            Ok(())
        }
    }
}

/// A listener whose connections send at once and notice when their client's host is gone.
fn bind_tcp(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = stream_socket(family)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Accepted sockets inherit both.
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, backlog)?;
    Ok(socket.into())
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A unix socket, whose file is removed with it.
struct UnixListener {
    socket: OwnedFd,
    path: PathBuf,
}

impl UnixListener {
    fn bind(unix: &UnixSocket, backlog: i32) -> Result<Self, ServeError> {
        let UnixSocket { path, mode } = unix;
        bind_unix(path, *mode, backlog).map_err(|error| ServeError::Listen {
            address: path.display().to_string(),
            error,
        })
    }
}

fn bind_unix(path: &Path, mode: u32, backlog: i32) -> io::Result<UnixListener> {
    // A socket that an earlier server left; any other file is in use.
    if path
        .symlink_metadata()
        .is_ok_and(|file| file.file_type().is_socket())
    {
        std::fs::remove_file(path)?;
    }
    let socket = stream_socket(AddressFamily::UNIX)?;
    // The file gets the mode of the socket less the umask: it is never open to more than `mode`
    // says.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode & 0o777))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let listener = UnixListener {
        socket,
        path: path.to_owned(),
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & 0o777))?;
    listen(&listener.socket, backlog)?;
    Ok(listener)
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        // Fails if the file is gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_parse_as_in_memcached() {
        let good = [
            ("127.0.0.1", Some("127.0.0.1"), None),
            ("127.0.0.1:1", Some("127.0.0.1"), Some(1)),
            ("::1", Some("::1"), None),
            ("[::1]", Some("::1"), None),
            ("[::1]:65535", Some("::1"), Some(65535)),
            ("host.name:80", Some("host.name"), Some(80)),
            ("*", None, None),
            ("*:81", None, Some(81)),
        ];
        for (text, host, port) in good {
            let place: Listen = text.parse().unwrap();
            let host = host.map(str::to_owned);
            assert_eq!(place, Listen { host, port }, "{text}");
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        let bad = [
            ("", ListenError::Empty),
            (":1", ListenError::Empty),
            ("[]:1", ListenError::Empty),
            ("[::1", ListenError::Bracket("[::1".to_owned())),
            ("[::1]1", ListenError::Bracket("[::1]1".to_owned())),
            ("a:b", ListenError::Port("b".to_owned())),
            ("a:", ListenError::Port(String::new())),
            ("a:65536", ListenError::Port("65536".to_owned())),
            ("notls:a:1", ListenError::NoTls),
            ("tag[x]:a:1", ListenError::Prefix("tag[x]:a:1".to_owned())),
        ];
        for (text, error) in bad {
            assert_eq!(text.parse::<Listen>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_host_name_resolves_to_its_addresses_and_an_unknown_name_fails() {
        let mut bound = Vec::new();
        bind_at(&"localhost".parse().unwrap(), 0, 1, &mut bound).unwrap();
        assert!(
            bound
                .iter()
                .all(|listener| listener.local_addr().unwrap().ip().is_loopback())
        );
        assert!(!bound.is_empty());
        let unknown = "name.invalid".parse().unwrap();
        let Err(ServeError::Listen { address, .. }) = bind_at(&unknown, 7, 1, &mut bound) else {
            panic!("it has no address");
        };
        assert_eq!(address, "name.invalid:7");
    }

    /// Readers of the port file expect the line of IPv4.
    #[test]
    fn wildcard_listens_on_each_family_at_one_port() {
        let mut bound = Vec::new();
        bind_at(&"*".parse().unwrap(), 0, 1, &mut bound).unwrap();
        let addresses: Vec<_> = bound.iter().map(|it| it.local_addr().unwrap()).collect();
        assert!(addresses[0].is_ipv4() && addresses[0].ip().is_unspecified());
        let v6 = addresses.iter().filter(|address| address.is_ipv6());
        assert!(v6.clone().count() == addresses.len() - 1);
        assert!(v6.clone().all(|v6| v6.port() == addresses[0].port()));
    }

    #[test]
    fn a_unix_socket_replaces_only_a_stale_socket() {
        let path = std::env::temp_dir().join(format!("toroid-kv-{}.sock", std::process::id()));
        let stale = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(stale);
        let listener = bind_unix(&path, 0o620, 1).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o620);
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "somebody's").unwrap();
        assert!(bind_unix(&path, 0o700, 1).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
        std::fs::remove_file(&path).unwrap();
    }
}
